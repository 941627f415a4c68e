//! `templates` of a task: files rendered before it starts, and again when their data changes.

use std_alloc::{string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::Duration;

/// A template. Paths may contain `${…}`; its text is not interpolated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    /// Where its text is.
    pub source: TemplateSource,
    /// The file to write, relative to the task's directory.
    pub destination: String,
    /// Mode of the file.
    #[serde(default = "default_perms")]
    pub perms: u32,
    /// Owner of the file; the task directory's default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group of the file; the task directory's default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Whether its lines `NAME=value` become variables of the task.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub env: bool,
    /// What a running task is notified with when the output has changed.
    pub on_change: TemplateChange,
    /// Upper bound of a random delay before that notification.
    pub splay: Duration,
    /// How long to wait until its data is quiet; the agent's default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<TemplateWait>,
    /// Begins an action.
    pub left_delimiter: String,
    /// Ends an action.
    pub right_delimiter: String,
    /// Whether a key that a map lacks is an error; it renders as `<no value>` otherwise.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub error_on_missing_key: bool,
    /// Whether it is never rendered again.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub once: bool,
}

/// Where a template's text is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TemplateSource {
    /// In the job.
    Inline(String),
    /// In a file, relative to the task's directory.
    File(String),
}

/// The effect of a changed output on a running task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TemplateChange {
    /// No effect.
    Noop,
    /// Restarts the task; this does not count as an attempt.
    Restart,
    /// Sends this signal.
    Signal(String),
    /// Runs a command inside the task.
    Script(ChangeScript),
}

/// A command to run inside the task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeScript {
    /// The program.
    pub command: String,
    /// Its arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// After this time it is killed.
    pub timeout: Duration,
    /// Whether its failure ends the task.
    #[serde(default)]
    pub fail_on_error: bool,
    /// Whether it also runs after the task's first start.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub run_on_first_render: bool,
}

/// How long the data of a template must be quiet before it is rendered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateWait {
    /// Without a change for this long.
    pub min: Duration,
    /// However often it changes, not longer than this.
    pub max: Duration,
}

impl Template {
    /// The mode of the file unless the job sets another.
    pub const PERMS_DEFAULT: u32 = 0o644;
    /// The delay's upper bound unless the job sets another.
    pub const SPLAY_DEFAULT: Duration = Duration::from_secs(5);
    /// Begins an action unless the job sets another text.
    pub const LEFT_DELIMITER: &str = "{{";
    /// Ends an action unless the job sets another text.
    pub const RIGHT_DELIMITER: &str = "}}";
}

impl TemplateChange {
    /// Nomad's name of the mode.
    pub const fn mode(&self) -> &'static str {
        match self {
            Self::Noop => "noop",
            Self::Restart => "restart",
            Self::Signal(_) => "signal",
            Self::Script(_) => "script",
        }
    }
}

impl ChangeScript {
    /// The time limit unless the job sets another.
    pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);
}

const fn default_perms() -> u32 {
    Template::PERMS_DEFAULT
}
