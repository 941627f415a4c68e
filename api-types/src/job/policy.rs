//! Policies of groups and tasks for exits, failures and changes: `restart`, `reschedule`, `update`, `scaling`.

use std_alloc::{format, string::String};

use serde::{Deserialize, Serialize};

use crate::Duration;

/// `restart`: what happens when a task ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartPolicy {
    /// Restarts allowed within `interval`.
    pub attempts: u32,
    /// Length of the window in which attempts are counted.
    pub interval: Duration,
    /// Delay before a restart; up to a quarter is added as jitter.
    pub delay: Duration,
    /// What happens after the last attempt.
    pub mode: RestartMode,
    /// Whether a restart waits until all data of the task's templates is there again, as the first start does.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub render_templates: bool,
}

/// What happens after the last attempt of a restart policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum RestartMode {
    /// The task fails.
    Fail,
    /// It waits for the next period.
    Delay,
}

/// `reschedule`: when a failed allocation is replaced. The default is never.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReschedulePolicy {
    /// The number of replacements allowed within `interval`.
    pub attempts: u32,
    /// How long each of them counts.
    pub interval: Duration,
    /// The delay before the first one.
    pub delay: Duration,
    /// How the delay grows.
    pub delay_function: DelayFunction,
    /// The maximum delay; 0 for none.
    pub max_delay: Duration,
    /// Whether the number of replacements is unlimited.
    pub unlimited: bool,
}

impl ReschedulePolicy {
    /// Whether failed allocations are replaced.
    pub fn is_enabled(&self) -> bool {
        self.unlimited || self.attempts > 0
    }
}

/// How the delay grows with each replacement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum DelayFunction {
    /// It stays the same.
    #[default]
    Constant,
    /// It doubles.
    Exponential,
    /// It is the sum of the previous two.
    Fibonacci,
}

impl DelayFunction {
    /// Nomad's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::Exponential => "exponential",
            Self::Fibonacci => "fibonacci",
        }
    }
}

/// `update`: how a new version replaces the old one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Update {
    /// The number of allocations replaced at the same time, at least 1.
    pub max_parallel: u32,
    /// How long an allocation must be continuously healthy to count as healthy.
    pub min_healthy_time: Duration,
    /// Time limit for becoming healthy.
    pub healthy_deadline: Duration,
    /// Time limit of a deployment for each further healthy allocation; with 0 the first unhealthy one fails it.
    pub progress_deadline: Duration,
    /// How health is determined.
    pub health_check: HealthCheck,
    /// Return the job to its last stable version if a deployment fails.
    pub auto_revert: bool,
    /// Promote the canaries once all of them are healthy.
    pub auto_promote: bool,
    /// The number of allocations of the new version beside the old ones until promotion.
    pub canary: u32,
    /// Stored, but not implemented yet.
    pub stagger: Duration,
}

/// `migrate`: when the replacement of an allocation on a drained node counts as healthy. Only servers drain nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migrate {
    /// How health is determined.
    pub health_check: HealthCheck,
    /// How long an allocation must be continuously healthy to count as healthy.
    pub min_healthy_time: Duration,
    /// Time limit for becoming healthy.
    pub healthy_deadline: Duration,
}

/// How the health of an allocation is determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum HealthCheck {
    /// All its tasks are running and all its checks pass.
    Checks,
    /// All its tasks are running; checks don't count.
    TaskStates,
    /// For allocations of a deployment, through the API (`/v1/deployment/allocation-health/ID`).
    Manual,
}

/// `scaling`: the range in which a group may be scaled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scaling {
    /// Whether an autoscaler should act; only passed on to it.
    pub enabled: bool,
    /// The minimum count.
    pub min: u32,
    /// The maximum count.
    pub max: u32,
    /// The rules of an autoscaler; only passed on to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<serde_json::Value>,
}

impl Scaling {
    /// Why this count is not allowed; `None` if it is.
    pub fn refuses(&self, count: u32) -> Option<String> {
        if count < self.min {
            Some(format!("count {count} is less than scaling.min, which is {}", self.min))
        } else if count > self.max {
            Some(format!("count {count} is greater than scaling.max, which is {}", self.max))
        } else {
            None
        }
    }
}
