//! What manifests must know about task drivers.
//!
//! In: the descriptions of the caller's drivers. Out: the schemas of their task configs, and the capabilities that decide whether
//! a manifest is valid. This module does not know how a driver works.

use std::{collections::BTreeMap, sync::Arc};

use herdlet_api_types::driver::{Capabilities, DriverInfo, built_in};
use schemars::Schema;

use crate::yaml;

/// The task drivers that manifests may use. Clones are cheap.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Drivers(Arc<BTreeMap<String, DriverRules>>);

/// The rules for manifests that use a driver.
#[derive(Debug, Clone, PartialEq)]
pub struct DriverRules {
    /// The strict schema of `config`.
    pub config: Schema,
    pub capabilities: Capabilities,
}

/// Nomad drivers that manifests may name but this release lacks.
pub(super) const KNOWN: [&str; 8] =
    ["exec", "exec2", "java", "mock_driver", "nomad-driver-virt", "qemu", "rkt", "virt"];

impl Drivers {
    /// The built-in drivers.
    pub fn built_in() -> Self {
        built_in().iter().collect()
    }

    /// The driver of that name.
    pub fn get(&self, name: &str) -> Option<&DriverRules> {
        self.0.get(name)
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.0.keys().map(String::as_str)
    }
}

impl<'i> FromIterator<&'i DriverInfo> for Drivers {
    fn from_iter<I: IntoIterator<Item = &'i DriverInfo>>(infos: I) -> Self {
        let rules = |info: &DriverInfo| DriverRules {
            config: yaml::strictly(info.schema.clone()),
            capabilities: info.capabilities,
        };
        Self(Arc::new(infos.into_iter().map(|info| (info.name.clone(), rules(info))).collect()))
    }
}
