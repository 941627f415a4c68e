//! Deployments: the roll-out of one version of a job, in Nomad's terms.
//!
//! Source of the terms: Nomad's `nomad/structs/structs.go` (`Deployment`, `DeploymentState`).

use std_alloc::{collections::BTreeMap, format, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{AllocId, DeploymentId, Duration, JobKey, UnixNanos};

/// The roll-out of one version of a job. Immutable once it has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deployment {
    /// Never reused.
    pub id: DeploymentId,
    /// The job.
    pub job_key: JobKey,
    /// The version being rolled out.
    pub job_version: u64,
    /// The status.
    pub status: DeploymentStatus,
    /// The status in a sentence.
    pub description: String,
    /// Whether a running one is paused: nothing is placed, replaced or promoted for it, and its deadlines stand still.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub paused: bool,
    /// Groups with an `update` block, by name.
    pub groups: BTreeMap<String, DeploymentGroup>,
    /// The version whose text became the newest version after a failure.
    #[serde(default)]
    pub reverted_to: Option<u64>,
    /// The commit that created it.
    pub create_index: u64,
    /// The commit of the last change.
    pub modify_index: u64,
    /// The creation time.
    pub create_time: UnixNanos,
    /// The time of the last change.
    pub modify_time: UnixNanos,
}

impl Deployment {
    /// That its version failed and what runs instead, for people.
    pub fn revert_message(&self) -> String {
        let to = self.reverted_to.map_or_else(String::new, |to| format!(" to version {to}"));
        format!("version {} failed and was reverted{to}", self.job_version)
    }
}

/// The status of a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeploymentStatus {
    /// In progress, or waiting for promotion.
    Running,
    /// All groups were healthy at the same time.
    Successful,
    /// It made no progress in time, or a user failed it.
    Failed,
    /// A newer version replaced it, or the job was stopped.
    Cancelled,
}

impl DeploymentStatus {
    /// Nomad's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Successful => "successful",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A group in a deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeploymentGroup {
    /// On failure, the job returns to its last stable version.
    pub auto_revert: bool,
    /// Promote the canaries once all of them are healthy.
    pub auto_promote: bool,
    /// The canaries have replaced the allocations beside them.
    pub promoted: bool,
    /// Time limit for each further healthy allocation; with 0 the first unhealthy one fails the deployment.
    pub progress_deadline: Duration,
    /// The current deadline; `None` before the first allocation, or without a deadline.
    pub require_progress_by: Option<UnixNanos>,
    /// Number of canaries to place beside the old allocations; 0 if none are replaced.
    pub desired_canaries: u32,
    /// The final number of allocations of the new version.
    pub desired_total: u32,
    /// The canaries created so far.
    pub placed_canaries: Vec<AllocId>,
    /// The number of allocations created for it, or taken over unchanged.
    pub placed_allocs: u32,
    /// The number of these that became healthy.
    pub healthy_allocs: u32,
    /// The number of these that became unhealthy.
    pub unhealthy_allocs: u32,
}

impl DeploymentGroup {
    /// Whether its canaries wait beside the old allocations for a decision.
    pub fn is_canarying(&self) -> bool {
        self.desired_canaries > 0 && !self.promoted
    }
}

impl Deployment {
    /// Nomad's name of its status.
    pub fn status_name(&self) -> &'static str {
        if self.is_paused() { "paused" } else { self.status.as_str() }
    }

    /// Whether it is in progress and paused.
    pub fn is_paused(&self) -> bool {
        self.paused && self.is_running()
    }

    /// Whether it is in progress.
    pub fn is_running(&self) -> bool {
        self.status == DeploymentStatus::Running
    }

    /// Whether the canaries of any group wait for promotion.
    pub fn requires_promotion(&self) -> bool {
        self.groups.values().any(DeploymentGroup::is_canarying)
    }
}
