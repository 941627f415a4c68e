//! Contents of the state database: immutable specifications separate from small states.
//!
//! Only what an inspection can't find out is stored: intents, attempts, exits, deadlines, accepted generations.

use std_alloc::{boxed::Box, string::String, sync::Arc};

use herdlet_api_types::{AllocId, JobKey, alloc::Allocation, job::Job};
use serde::{Deserialize, Serialize};

use crate::{job::JobState, node::NodeState, shared::volume::VolumeState, state::Durable};

/// Key of a record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordKey {
    /// Counters of this instance.
    Meta,
    /// State of a job.
    Job(JobKey),
    /// One accepted version of a job.
    JobVersion(JobKey, u64),
    /// State of a volume.
    Volume(String),
    /// A wanted allocation.
    AllocSpec(AllocId),
    /// State of an allocation.
    AllocState(AllocId),
}

/// Value of a record.
#[derive(Debug, Clone)]
pub enum RecordValue {
    /// See [`RecordKey::Meta`].
    Meta(Meta),
    /// See [`RecordKey::Job`].
    Job(Box<JobState>),
    /// See [`RecordKey::JobVersion`].
    JobVersion(Arc<Job>),
    /// See [`RecordKey::Volume`].
    Volume(Box<VolumeState>),
    /// See [`RecordKey::AllocSpec`].
    AllocSpec(Arc<Allocation>),
    /// See [`RecordKey::AllocState`].
    AllocState(Box<Durable>),
}

/// A change of the database. All records of a turn are written in one transaction.
#[derive(Debug, Clone)]
pub enum Record {
    /// Write.
    Put(RecordKey, RecordValue),
    /// Remove.
    Delete(RecordKey),
}

/// Counters of this instance, and the state of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Nomad's index: increases with every turn that changes something durable, also over restarts.
    pub index: u64,
    /// Whether the node takes new allocations, and its drain.
    #[serde(default, skip_serializing_if = "NodeState::is_default")]
    pub node: NodeState,
}
