//! `config` of tasks for the built-in drivers. Drivers read their configuration through these types, and manifests are
//! checked against their schemas.

use std_alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use super::{Span, Text};

/// `config` for `raw_exec`: a process of the machine without isolation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RawExecConfig {
    /// The program: a path, or a name that is looked up in `PATH`.
    #[cfg_attr(feature = "schema", schemars(extend("x-command" = true)))]
    pub command: String,
    /// Its arguments; `${…}` is filled in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<Text>,
    /// The directory it starts in, absolute or relative to the task directory; the task directory unless written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_dir: Option<String>,
    /// How eagerly the kernel kills it when memory runs out: 0 (the default) to 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = 1000)))]
    pub oom_score_adj: Option<u16>,
    /// Variables that it does not get; a `*` stands for anything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denied_envvars: Vec<String>,
    /// Whether programs with set-user-id bits or file capabilities (`sudo`, `ping`) give it no further rights; default false.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub no_new_privs: bool,
    /// How many processes and threads it may have, with its script checks and commands executed in it; no limit unless written.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub pids_limit: Option<u32>,
}

/// `config` for `mock`: a pretended process, for trying things out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct MockConfig {
    /// How long it runs before it ends by itself; default 0.
    pub run_for: Span,
    /// The exit code it ends with.
    pub exit_code: u8,
    /// The number of the signal it ends by; 0 for none.
    #[cfg_attr(feature = "schema", schemars(range(max = 64)))]
    pub exit_signal: u8,
    /// The error that waiting for it ends with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_err_msg: Option<String>,
    /// The error that its start fails with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_error: Option<String>,
    /// Whether that error may be tried again.
    pub start_error_recoverable: bool,
    /// How long its start takes.
    pub start_block_for: Span,
    /// How long it takes to end after it was asked to.
    pub kill_after: Span,
    /// After this, waiting for it says that the driver has gone; 0 for never.
    pub plugin_exit_after: Span,
    /// The error that sending it a signal fails with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal_error: Option<String>,
    /// What it writes to standard output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout_string: Option<Text>,
    /// How often it writes that again.
    #[cfg_attr(feature = "schema", schemars(range(max = 1_000_000)))]
    pub stdout_repeat: u32,
    /// Time between two of these.
    pub stdout_repeat_duration: Span,
    /// What it writes to standard error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr_string: Option<Text>,
    /// How often it writes that again.
    #[cfg_attr(feature = "schema", schemars(range(max = 1_000_000)))]
    pub stderr_repeat: u32,
    /// Time between two of these.
    pub stderr_repeat_duration: Span,
    /// The address of its pretended network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_ip: Option<String>,
    /// Whether that address is the one to register by default.
    pub driver_advertise: bool,
    /// Ports of its pretended network by label.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub driver_port_map: BTreeMap<String, u16>,
    /// What a command executed in it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec_command: Option<MockExec>,
}

/// What a command executed in a mock task does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct MockExec {
    /// How long it runs; default 0.
    pub run_for: Span,
    /// The exit code it ends with.
    pub exit_code: u8,
    /// The error it ends with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_err_msg: Option<String>,
    /// What it writes to standard output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout_string: Option<Text>,
    /// How often it writes that again.
    #[cfg_attr(feature = "schema", schemars(range(max = 1_000_000)))]
    pub stdout_repeat: u32,
    /// Time between two of these.
    pub stdout_repeat_duration: Span,
    /// What it writes to standard error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr_string: Option<Text>,
    /// How often it writes that again.
    #[cfg_attr(feature = "schema", schemars(range(max = 1_000_000)))]
    pub stderr_repeat: u32,
    /// Time between two of these.
    pub stderr_repeat_duration: Span,
}
