//! `config` of tasks for the driver `exec`. Names and defaults are Nomad's (`drivers/exec/driver.go`); `init`, `no_new_privs` and
//! `pids_limit` are herdlet's.

use std_alloc::{string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::manifest::Text;

/// `config` for `exec`: a process in namespaces and a root of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("x-misplaced" = {
    "capabilities": "did you mean `cap_add`?",
    "caps": "did you mean `cap_add`?",
    "chroot_env": "`chroot_env` belongs to `drivers.exec` of the agent's config",
    "user": "`user` belongs to the task, beside `config`",
})))]
#[serde(deny_unknown_fields)]
pub struct ExecConfig {
    /// The program: a path in the task's root, or a name.
    #[cfg_attr(feature = "schema", schemars(length(min = 1), extend("x-command" = true)))]
    pub command: String,
    /// Its arguments; `${…}` is replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<Text>,
    /// The working directory in the task's root; default `/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_dir: Option<String>,
    /// Whether it sees the machine's processes (`host`) or only its own (`private`); the default is an option of the driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid_mode: Option<NamespaceMode>,
    /// Whether it shares message queues, semaphores and shared memory with the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipc_mode: Option<NamespaceMode>,
    /// Capabilities to add, such as `net_raw`; `all` adds every one. The driver's `allow_caps` lists those that are allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cap_add: Vec<Text>,
    /// Capabilities to drop.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cap_drop: Vec<Text>,
    /// Whether the first process of its pid namespace is an init, which passes signals on and reaps processes; default false.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub init: bool,
    /// Whether programs with set-user-id bits or file capabilities give it no additional rights; default false.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub no_new_privs: bool,
    /// The maximum number of its processes and threads, including script checks and executed commands; default no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub pids_limit: Option<u32>,
}

/// Whose namespace a task is in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum NamespaceMode {
    /// Its own.
    #[default]
    Private,
    /// The machine's.
    Host,
}
