//! The job controller turns a job's versions into allocations. It is pure and has keys of its own in the same turns.
//!
//! In: a job's current version, its slots and the states of their allocations. Out: allocations to create, stop and
//! remove. It never touches a task: that is the allocation's own plan.

pub mod capacity;
pub mod children;
pub mod cores;
pub mod deployment;
pub mod difference;
pub(crate) mod drain;
pub mod feasibility;
pub mod pass;
pub mod periodic;
pub mod placed;
pub mod ports;
pub mod reschedule;
pub mod rollout;
pub mod scale;
pub(crate) mod turns;

use std_alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    sync::Arc,
    vec::Vec,
};

use herdlet_api_types::{AllocId, JobKey, UnixNanos, scaling::ScalingEvents, view::VersionTag};
use serde::{Deserialize, Serialize};

pub use self::difference::same_work;
use crate::job::{deployment::DeploymentState, periodic::Launches, reschedule::Rescheduled};

/// Stored state of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobState {
    /// The job's key.
    pub key: JobKey,
    /// Number of the current version, from 0.
    pub version: u64,
    /// Versions whose specification is stored: the newest ones, and older ones that allocations were made from.
    #[serde(default)]
    pub versions: BTreeSet<u64>,
    /// When each of these versions was accepted, where still known.
    #[serde(default)]
    pub submitted: BTreeMap<u64, Submission>,
    /// Commit in which it was created.
    pub create_index: u64,
    /// Commit in which it last changed.
    pub modify_index: u64,
    /// When the current version was accepted.
    pub submit_time: UnixNanos,
    /// It is being stopped and will be removed.
    pub deleting: bool,
    /// Slots by group: slot n holds the allocation with index n.
    pub slots: BTreeMap<String, Vec<Slot>>,
    /// Its newest deployments, oldest first; at most one for each version.
    #[serde(default)]
    pub deployments: Vec<DeploymentState>,
    /// Launches of a periodic job.
    #[serde(default)]
    pub launches: Option<Launches>,
    /// Versions that a deployment has marked as stable.
    #[serde(default)]
    pub stable: BTreeSet<u64>,
    /// The names of versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<u64, VersionTag>,
    /// Its scaling events.
    #[serde(default)]
    pub scaled: Arc<ScalingEvents>,
    /// The definition in a folder of manifests; `None` if it was last applied from elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<Definition>,
}

/// What a folder of manifests defined when the job was last applied from there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// The definition.
    pub source: Source,
    /// The version that it became.
    pub version: u64,
    /// Whether a revert has put another version in force. It stays until the definition changes.
    pub held: bool,
}

/// Where a folder defines a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The path of the file.
    pub file: String,
    /// A hash of the file's bytes.
    pub file_hash: String,
    /// A hash of the job as it was read.
    pub job_hash: String,
}

impl Source {
    /// Whether the definition has changed since `earlier`. A new release may read the same file as another job, and a
    /// file may change in what does not concern the job.
    pub fn differs(&self, earlier: &Self) -> bool {
        self.file_hash != earlier.file_hash && self.job_hash != earlier.job_hash
    }
}

impl JobState {
    /// The file of a folder whose definition is not in force because of a revert.
    pub fn held(&self) -> Option<&str> {
        let definition = self.definition.as_ref().filter(|definition| definition.held)?;
        Some(&definition.source.file)
    }

    /// The newest stable version that `find` still knows: a failed deployment goes back to it.
    pub fn newest_stable<T>(&self, find: impl Fn(u64) -> Option<T>) -> Option<(u64, T)> {
        self.stable.iter().rev().find_map(|version| Some((*version, find(*version)?)))
    }

    /// The deployment of the current version.
    pub fn deployment(&self) -> Option<&DeploymentState> {
        self.deployments.iter().rev().find(|known| known.deployment.job_version == self.version)
    }
}

/// When a version was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submission {
    /// The commit.
    pub index: u64,
    /// The time.
    pub time: UnixNanos,
}

/// The place of one allocation index.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// How many allocations this slot has had.
    pub had: u32,
    /// The newest of them that is not a canary.
    pub alloc: Option<AllocId>,
    /// The canary beside it.
    #[serde(default)]
    pub canary: Option<AllocId>,
    /// Failed allocations of the current work that were replaced, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rescheduled: Vec<Rescheduled>,
}
