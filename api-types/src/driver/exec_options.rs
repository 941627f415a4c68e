//! Options of the drivers `exec` and `java` in the agent's config. Names and defaults are those of Nomad's plugin options
//! (`drivers/exec/driver.go`); `allowed_modes`, `denied_users` and `chroot_env` are herdlet's. The last two are options of the
//! client in Nomad.

use std_alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::Deserialize;

use crate::manifest::driver::{Block, NamespaceMode};

/// The options of `exec` and `java`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ExecOptions {
    /// Whether the driver is enabled.
    pub enabled: Option<bool>,
    /// The `pid_mode` of tasks that name none; default `private`.
    pub default_pid_mode: NamespaceMode,
    /// The `ipc_mode` of tasks that name none; default `private`.
    pub default_ipc_mode: NamespaceMode,
    /// Namespaces of the machine that tasks may ask for; default none.
    pub allowed_modes: Option<Block<AllowedNamespaces>>,
    /// Capabilities that tasks may have; default those of a task without options. `all` allows every one.
    pub allow_caps: Option<Vec<String>>,
    /// Names of users as which no task runs; default `root`.
    pub denied_users: Option<Vec<String>>,
    /// User ids as which no task runs, such as `0,100-199`.
    pub denied_host_uids: Option<String>,
    /// Group ids as which no task runs.
    pub denied_host_gids: Option<String>,
    /// What a task sees of the machine: directories and files, each with its place in the task's root; default `/bin`, `/etc`, `/lib`,
    /// `/lib32`, `/lib64`, `/run/resolvconf`, `/run/systemd/resolve`, `/sbin` and `/usr`.
    pub chroot_env: Option<BTreeMap<String, String>>,
    /// Without effect: a root of a task is always entered by pivot_root.
    pub no_pivot_root: bool,
}

/// `allowed_modes` of the options.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct AllowedNamespaces {
    /// Values of `pid_mode`.
    pub pid: Vec<NamespaceMode>,
    /// Values of `ipc_mode`.
    pub ipc: Vec<NamespaceMode>,
}
