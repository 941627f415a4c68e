//! Options of the driver `qemu` in the agent's config. Names and defaults are those of Nomad's plugin options
//! (`drivers/qemu/driver.go`); the denied users and groups are herdlet's.

use std_alloc::{string::String, vec::Vec};

use serde::Deserialize;

/// The options of `qemu`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct QemuOptions {
    /// Whether the driver is enabled.
    pub enabled: Option<bool>,
    /// Directories of the machine whose images tasks may use, in addition to those in the allocation's directory.
    pub image_paths: Vec<String>,
    /// Options of the emulator that `args` of tasks may have, such as `-nodefaults`; empty allows every one.
    pub args_allowlist: Vec<String>,
    /// Emulators that tasks may use, such as `x86_64` or `qemu-system-x86_64`; empty allows every one.
    pub emulators_allowlist: Vec<String>,
    /// Names of users as which no task runs; default `root`.
    pub denied_users: Option<Vec<String>>,
    /// User ids as which no task runs, such as `0,100-199`.
    pub denied_host_uids: Option<String>,
    /// Group ids as which no task runs.
    pub denied_host_gids: Option<String>,
}
