//! What a group or a task wants done when something ends, fails or changes: `restart`, `reschedule`, `update`, `scaling`.

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
    /// Wait before a restart; up to a quarter is added as jitter.
    pub delay: Duration,
    /// What follows the last attempt.
    pub mode: RestartMode,
}

/// What happens when the attempts of a restart policy are used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum RestartMode {
    /// The task fails.
    Fail,
    /// It waits for the next window.
    Delay,
}

/// `reschedule`: when another allocation follows one that has failed. Its default is never.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReschedulePolicy {
    /// So many follow within `interval`.
    pub attempts: u32,
    /// How long each of them counts.
    pub interval: Duration,
    /// How long the first one waits.
    pub delay: Duration,
    /// How the delay grows from one to the next.
    pub delay_function: DelayFunction,
    /// The longest delay; 0 for any.
    pub max_delay: Duration,
    /// They are not counted.
    pub unlimited: bool,
}

impl ReschedulePolicy {
    /// Whether any follows.
    pub fn is_enabled(&self) -> bool {
        self.unlimited || self.attempts > 0
    }
}

/// How the delay grows from one allocation to the next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum DelayFunction {
    /// It doesn't.
    #[default]
    Constant,
    /// It doubles.
    Exponential,
    /// It is the sum of the two before.
    Fibonacci,
}

impl DelayFunction {
    /// Nomad's word for it.
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
    /// Allocations replaced at the same time, at least 1.
    pub max_parallel: u32,
    /// How long an allocation must be healthy without a break to count as healthy.
    pub min_healthy_time: Duration,
    /// How long it may take to become healthy.
    pub healthy_deadline: Duration,
    /// How long a deployment may take until one more allocation is healthy; with 0 the first unhealthy one fails it.
    pub progress_deadline: Duration,
    /// What health means.
    pub health_check: HealthCheck,
    /// A deployment that fails takes the job back to its last stable version.
    pub auto_revert: bool,
    /// Canaries are promoted once all of them are healthy.
    pub auto_promote: bool,
    /// Allocations of the new version that stand beside the old ones until they are promoted.
    pub canary: u32,
    /// Stored; acts in a later release.
    pub stagger: Duration,
}

/// `migrate`: when what takes the place of an allocation on a node that is drained is healthy. Only servers drain nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migrate {
    /// What health means.
    pub health_check: HealthCheck,
    /// How long an allocation must be healthy without a break to count as healthy.
    pub min_healthy_time: Duration,
    /// How long it may take to become healthy.
    pub healthy_deadline: Duration,
}

/// What makes an allocation healthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum HealthCheck {
    /// All its tasks run and all its checks pass.
    Checks,
    /// All its tasks run; checks don't count.
    TaskStates,
    /// Somebody says so through the API (`/v1/deployment/allocation-health/ID`), of allocations in a deployment.
    Manual,
}

/// `scaling`: between which counts a group may be scaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scaling {
    /// Whether an autoscaler should act; for its eyes only.
    pub enabled: bool,
    /// The least count.
    pub min: u32,
    /// The greatest count.
    pub max: u32,
}

impl Scaling {
    /// Why the group may not have this count; none where it may.
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
