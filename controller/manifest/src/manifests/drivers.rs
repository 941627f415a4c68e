//! What manifests must know about task drivers.
//!
//! In: the descriptions of the caller's drivers. Out: the schemas of their task configs, their own checks of these, and the
//! capabilities that decide whether a manifest is valid. This module does not know how a driver works.

use std::{collections::BTreeMap, sync::Arc};

use herdlet_api_types::driver::{Capabilities, ConfigCheck, DriverInfo, built_in};
use schemars::Schema;

use crate::yaml;

/// The task drivers and Consuls that manifests may use, and the functions that their templates may not use. Clones are cheap.
#[derive(Debug, Clone, PartialEq)]
pub struct Drivers {
    rules: Arc<BTreeMap<String, DriverRules>>,
    denied_functions: Arc<[String]>,
    /// Absent if the agent's config is not known.
    consuls: Option<Arc<[String]>>,
}

/// Functions that templates may not use unless the agent's config allows them, as in Nomad.
pub const DENIED_FUNCTIONS: [&str; 3] = ["executeTemplate", "plugin", "writeToFile"];

/// The rules for manifests that use a driver.
#[derive(Debug, Clone, PartialEq)]
pub struct DriverRules {
    /// The strict schema of `config`.
    pub config: Schema,
    /// The driver's own check of it.
    pub check: Option<ConfigCheck>,
    pub capabilities: Capabilities,
}

/// Nomad drivers that manifests may name but this release lacks.
pub(super) const KNOWN: [&str; 5] = ["exec2", "mock_driver", "nomad-driver-virt", "rkt", "virt"];

impl Drivers {
    /// The built-in drivers, without their own checks.
    pub fn built_in() -> Self {
        built_in().iter().collect()
    }

    /// The same drivers, with other functions that templates may not use; `*` is any text.
    pub fn denying(self, functions: &[String]) -> Self {
        Self { denied_functions: functions.into(), ..self }
    }

    /// The same drivers, with the names of the Consuls in the agent's config.
    pub fn with_consuls(self, names: &[String]) -> Self {
        Self { consuls: Some(names.into()), ..self }
    }

    /// Why there is no Consul of this name.
    pub(super) fn consul_problem(&self, name: &str) -> Option<String> {
        let known = self.consuls.as_ref().filter(|known| !known.iter().any(|one| one == name))?;
        let known = known.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        Some(format!(
            "the agent's config has no Consul `{name}`; use one of {known}, or add it to `consul.clusters` of the config"
        ))
    }

    /// The functions that templates may not use.
    pub(super) fn denied_functions(&self) -> &[String] {
        &self.denied_functions
    }

    /// The driver of that name.
    pub fn get(&self, name: &str) -> Option<&DriverRules> {
        self.rules.get(name)
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.rules.keys().map(String::as_str)
    }
}

impl Default for Drivers {
    fn default() -> Self {
        [].iter().collect()
    }
}

impl<'i> FromIterator<&'i DriverInfo> for Drivers {
    fn from_iter<I: IntoIterator<Item = &'i DriverInfo>>(infos: I) -> Self {
        let rules = |info: &DriverInfo| DriverRules {
            config: yaml::strictly(info.schema.clone()),
            check: info.check,
            capabilities: info.capabilities,
        };
        let rules = infos.into_iter().map(|info| (info.name.clone(), rules(info))).collect();
        let denied_functions = DENIED_FUNCTIONS.map(str::to_owned).into();
        Self { rules: Arc::new(rules), denied_functions, consuls: None }
    }
}
