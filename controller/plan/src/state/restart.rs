//! A restart of a whole group, and its progress.
//!
//! In: a request, or a check that keeps failing. Out: what is stored until all tasks of the restart have been stopped.
//! Each task then starts again by itself.

use serde::{Deserialize, Serialize};

use crate::time::Deadline;

/// An accepted restart of the whole group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRestart {
    /// Restarts dead tasks too, in lifecycle order.
    pub all: bool,
    /// End of the group's `shutdown_delay`.
    pub delay: Deadline,
    /// A check asked for it: each task's restart policy counts it.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub unhealthy: bool,
    /// The current phase. The services are down until the restart is over.
    #[serde(default, skip_serializing_if = "RestartPhase::is_delay")]
    pub phase: RestartPhase,
}

/// The phases of a restart of the whole group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestartPhase {
    /// The group's `shutdown_delay` runs.
    #[default]
    Delay,
    /// Its tasks are being stopped, in the stop order.
    Stopping,
}

impl RestartPhase {
    fn is_delay(&self) -> bool {
        *self == Self::Delay
    }
}
