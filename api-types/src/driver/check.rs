//! A driver's own check of a task's `config`, before the task runs anywhere.

use core::{fmt, ptr};
use std_alloc::{collections::BTreeSet, string::String, vec::Vec};

use serde_json::Value;

use crate::job::Resources;

/// A task of a job file. Texts may contain `${…}`, whose value is known only at the start.
#[derive(Debug, Clone, Copy)]
pub struct Planned<'t> {
    /// The config; it fits the driver's schema.
    pub config: &'t Value,
    /// The limits.
    pub resources: &'t Resources,
    /// Labels of the ports that the task may use.
    pub ports: &'t BTreeSet<&'t str>,
    /// Whether the group has a network of its own.
    pub network: Sharing,
}

/// Whether the tasks of a group share a network of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// They share one.
    Shares,
    /// They use the machine's, or networks of their drivers.
    Own,
}

/// A problem with a key of a config, or a remark about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFinding {
    /// The path of the key within the config, such as `volumes[0]`; or `resources.…` for one of the task's resources.
    pub field: String,
    /// The message.
    pub message: String,
    /// What it means for the job.
    pub verdict: Verdict,
}

/// What a finding means for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// No agent can start the task.
    Refused,
    /// The task starts, and the key has no effect.
    NoEffect,
}

/// The rules for a config that its schema cannot express and that depend on nothing but the job: neither on an agent's options
/// nor on what the machine has.
#[derive(Clone, Copy)]
pub struct ConfigCheck(pub fn(&Planned<'_>) -> Vec<ConfigFinding>);

impl ConfigCheck {
    /// All findings.
    pub fn findings(self, planned: &Planned<'_>) -> Vec<ConfigFinding> {
        (self.0)(planned)
    }
}

impl PartialEq for ConfigCheck {
    fn eq(&self, other: &Self) -> bool {
        ptr::fn_addr_eq(self.0, other.0)
    }
}

impl fmt::Debug for ConfigCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConfigCheck")
    }
}
