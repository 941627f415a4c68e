//! What manifests must know of task drivers.
//!
//! In: what the caller's drivers say of themselves. Out: the schemas of their tasks' configuration and the few abilities that decide
//! whether a manifest makes sense. It must not know how a driver works.

use std::{collections::BTreeMap, sync::Arc};

use herdlet_api_types::driver::{Capabilities, DriverInfo, built_in};
use schemars::Schema;

use crate::yaml;

/// The task drivers that manifests may name. Clones are cheap.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Drivers(Arc<BTreeMap<String, DriverRules>>);

/// What a manifest must obey for one driver.
#[derive(Debug, Clone, PartialEq)]
pub struct DriverRules {
    /// Strict schema of `config`.
    pub config: Schema,
    pub capabilities: Capabilities,
}

/// Drivers of Nomad that manifests will want and this release doesn't have.
pub(super) const KNOWN: [&str; 10] =
    ["docker", "exec", "exec2", "java", "mock_driver", "nomad-driver-virt", "podman", "qemu", "rkt", "virt"];

impl Drivers {
    /// The drivers that are built in.
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
