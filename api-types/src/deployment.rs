//! A deployment: how the roll-out of one version of a job goes, in Nomad's words.
//!
//! Source of the words: Nomad's `nomad/structs/structs.go` (`Deployment`, `DeploymentState`).

use std_alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{AllocId, DeploymentId, Duration, JobKey, UnixNanos};

/// The roll-out of one version of a job. Immutable once it has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deployment {
    /// Unique for ever.
    pub id: DeploymentId,
    /// The job that it belongs to.
    pub job_key: JobKey,
    /// The version that is rolled out.
    pub job_version: u64,
    /// How far it has come.
    pub status: DeploymentStatus,
    /// The same in a sentence.
    pub description: String,
    /// Groups that have `update`, by name.
    pub groups: BTreeMap<String, DeploymentGroup>,
    /// The version whose text became the newest version when it failed.
    #[serde(default)]
    pub reverted_to: Option<u64>,
    /// Commit in which it was made.
    pub create_index: u64,
    /// Commit in which it last changed.
    pub modify_index: u64,
    /// When it was made.
    pub create_time: UnixNanos,
    /// When it last changed.
    pub modify_time: UnixNanos,
}

/// How far a deployment has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeploymentStatus {
    /// It goes on, or waits for somebody to promote it.
    Running,
    /// Every group was healthy at once.
    Successful,
    /// It got stuck, or somebody said so.
    Failed,
    /// A newer version came, or the job is stopped.
    Cancelled,
}

impl DeploymentStatus {
    /// Nomad's word for it.
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
    /// Where it fails, the job goes back to its last stable version.
    pub auto_revert: bool,
    /// It is promoted once all its canaries are healthy.
    pub auto_promote: bool,
    /// Its canaries have taken the place of what they stood beside.
    pub promoted: bool,
    /// How long it may take until one more allocation is healthy; with 0 the first unhealthy one fails it.
    pub progress_deadline: Duration,
    /// When that is over; none before the first allocation, or without a deadline.
    pub require_progress_by: Option<UnixNanos>,
    /// Canaries to stand beside the old allocations; 0 where nothing old is replaced.
    pub desired_canaries: u32,
    /// Allocations of the new version in the end.
    pub desired_total: u32,
    /// Canaries that were made.
    pub placed_canaries: Vec<AllocId>,
    /// Allocations that were made for it, or taken over unchanged.
    pub placed_allocs: u32,
    /// Those that proved healthy.
    pub healthy_allocs: u32,
    /// Those that did not.
    pub unhealthy_allocs: u32,
}

impl DeploymentGroup {
    /// Its canaries stand beside the old allocations until somebody decides.
    pub fn is_canarying(&self) -> bool {
        self.desired_canaries > 0 && !self.promoted
    }
}

impl Deployment {
    /// It goes on.
    pub fn is_running(&self) -> bool {
        self.status == DeploymentStatus::Running
    }

    /// Some group's canaries wait to be promoted.
    pub fn requires_promotion(&self) -> bool {
        self.groups.values().any(DeploymentGroup::is_canarying)
    }
}
