//! What manifests must know of task drivers.
//!
//! In: the drivers that the caller has. Out: their configuration's schemas and the few abilities that decide whether a
//! manifest makes sense. It must not know how a driver works.

use std::collections::BTreeMap;

use herdlet_api_types::manifest::driver::{MockConfig, RawExecConfig};
use schemars::Schema;

use crate::yaml;

/// The task drivers that manifests may name.
#[derive(Debug, Clone, Default)]
pub struct Drivers(BTreeMap<String, DriverRules>);

/// What a manifest must obey for one driver.
#[derive(Debug, Clone)]
pub struct DriverRules {
    /// Schema of `config`.
    pub config: Schema,
    /// What a task sees of the machine's files.
    pub filesystem: Filesystem,
}

/// What a task sees of the machine's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filesystem {
    /// All of them: volumes can only be mounted inside the task's own directory.
    Shared,
    /// A tree of its own: volumes can be mounted anywhere in it.
    Own,
}

/// Drivers of Nomad that manifests will want and this release doesn't have.
pub(super) const KNOWN: [&str; 10] =
    ["docker", "exec", "exec2", "java", "mock_driver", "nomad-driver-virt", "podman", "qemu", "rkt", "virt"];

impl Drivers {
    /// The drivers that are built in.
    pub fn built_in() -> Self {
        let mut drivers = Self::default();
        let shared = |config| DriverRules { config, filesystem: Filesystem::Shared };
        drivers.insert("raw_exec", shared(yaml::schema_for::<RawExecConfig>()));
        drivers.insert("mock", shared(yaml::schema_for::<MockConfig>()));
        drivers
    }

    /// Adds a driver.
    pub fn insert(&mut self, name: &str, rules: DriverRules) {
        self.0.insert(name.to_owned(), rules);
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
