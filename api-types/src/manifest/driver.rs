//! `config` of tasks for the built-in drivers. Drivers read their configuration through these types, and manifests are
//! checked against their schemas.

use std_alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use super::{Span, Text};

mod docker;
mod exec;
mod java;
mod podman;
mod qemu;
mod shapes;

pub use docker::{
    BindOptions, DockerAuth, DockerConfig, DockerDevice, DockerHealthchecks, DockerLogging, DockerMount,
    TmpfsOptions, VolumeDriver, VolumeOptions,
};
pub use exec::{ExecConfig, NamespaceMode};
pub use java::JavaConfig;
pub use podman::PodmanConfig;
pub use qemu::{DriveInterface, QemuConfig};
pub use shapes::{Block, OneOrMany, Pairs};

/// `config` for `raw_exec`: a process on the machine without isolation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("x-misplaced" = {
    "user": "`user` belongs to the task, beside `config`",
})))]
#[serde(deny_unknown_fields)]
pub struct RawExecConfig {
    /// The program: a path, or a name to find in `PATH`.
    #[cfg_attr(feature = "schema", schemars(length(min = 1), extend("x-command" = true)))]
    pub command: String,
    /// Its arguments; `${…}` is replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<Text>,
    /// The working directory, absolute or relative to the task directory; default the task directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_dir: Option<String>,
    /// How likely the kernel kills it when memory runs out: 0 (the default) to 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = 1000)))]
    pub oom_score_adj: Option<u16>,
    /// Environment variables to withhold; `*` is a wildcard.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denied_envvars: Vec<String>,
    /// Whether programs with set-user-id bits or file capabilities (`sudo`, `ping`) give it no additional rights; default false.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub no_new_privs: bool,
    /// The maximum number of its processes and threads, including script checks and executed commands; default no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub pids_limit: Option<u32>,
}

/// `config` for `mock`: a simulated process, for experiments.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct MockConfig {
    /// How long it runs before it exits by itself; default 0.
    pub run_for: Span,
    /// Its exit code.
    pub exit_code: u8,
    /// The number of the signal that ends it; 0 for none.
    #[cfg_attr(feature = "schema", schemars(range(max = 64)))]
    pub exit_signal: u8,
    /// The error that waiting for it returns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_err_msg: Option<String>,
    /// How long it takes to prepare its start, as if an image were pulled; this delays no other start.
    pub prepare_block_for: Span,
    /// The error of preparing its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prepare_error: Option<String>,
    /// The error of its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_error: Option<String>,
    /// Whether that error allows another try.
    pub start_error_recoverable: bool,
    /// How long its start takes.
    pub start_block_for: Span,
    /// How long it takes to exit after a stop request.
    pub kill_after: Span,
    /// After this time, waiting for it reports that the driver is gone; 0 for never.
    pub plugin_exit_after: Span,
    /// The error of sending it a signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal_error: Option<String>,
    /// Its standard output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout_string: Option<Text>,
    /// How often to repeat that.
    #[cfg_attr(feature = "schema", schemars(range(max = 1_000_000)))]
    pub stdout_repeat: u32,
    /// Time between two repetitions.
    pub stdout_repeat_duration: Span,
    /// Its standard error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr_string: Option<Text>,
    /// How often to repeat that.
    #[cfg_attr(feature = "schema", schemars(range(max = 1_000_000)))]
    pub stderr_repeat: u32,
    /// Time between two repetitions.
    pub stderr_repeat_duration: Span,
    /// The address of its simulated network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_ip: Option<String>,
    /// Whether to register that address by default.
    pub driver_advertise: bool,
    /// Ports of its simulated network by label.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub driver_port_map: BTreeMap<String, u16>,
    /// The behaviour of a command executed in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec_command: Option<MockExec>,
}

/// The behaviour of a command executed in a mock task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct MockExec {
    /// How long it runs; default 0.
    pub run_for: Span,
    /// Its exit code.
    pub exit_code: u8,
    /// Its error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_err_msg: Option<String>,
    /// Its standard output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout_string: Option<Text>,
    /// How often to repeat that.
    #[cfg_attr(feature = "schema", schemars(range(max = 1_000_000)))]
    pub stdout_repeat: u32,
    /// Time between two repetitions.
    pub stdout_repeat_duration: Span,
    /// Its standard error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr_string: Option<Text>,
    /// How often to repeat that.
    #[cfg_attr(feature = "schema", schemars(range(max = 1_000_000)))]
    pub stderr_repeat: u32,
    /// Time between two repetitions.
    pub stderr_repeat_duration: Span,
}
