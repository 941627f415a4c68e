//! `config` of tasks for the driver `java`. Names and defaults are Nomad's (`drivers/java/driver.go`); `init`, `no_new_privs` and
//! `pids_limit` are herdlet's.

use std_alloc::{string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use super::NamespaceMode;
use crate::manifest::Text;

/// `config` for `java`: a class or a jar file in namespaces and a root of its own. One of `jar_path` and `class` is required.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("x-misplaced" = {
    "capabilities": "did you mean `cap_add`?",
    "caps": "did you mean `cap_add`?",
    "chroot_env": "`chroot_env` belongs to `drivers.java` of the agent's config",
    "user": "`user` belongs to the task, beside `config`",
})))]
#[serde(deny_unknown_fields)]
pub struct JavaConfig {
    /// The jar file to run: a path in the task's root, such as `local/app.jar`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub jar_path: Option<String>,
    /// The class to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub class: Option<String>,
    /// Where classes are searched: paths in the task's root, separated by colons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class_path: Option<String>,
    /// Options of the virtual machine, such as `-Xmx256m`; `${…}` is replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jvm_options: Vec<Text>,
    /// Arguments of the program; `${…}` is replaced.
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
