//! The job controller: a job's versions become allocations. Pure, separately keyed, in the same turns.

use std_alloc::{collections::BTreeMap, string::String, vec::Vec};

use herdlet_api_types::{AllocId, JobKey, UnixNanos};
use serde::{Deserialize, Serialize};

/// What is remembered of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobState {
    /// Which.
    pub key: JobKey,
    /// Number of the current version, from 0.
    pub version: u64,
    /// Commit in which it was made.
    pub create_index: u64,
    /// Commit in which it last changed.
    pub modify_index: u64,
    /// When the current version was accepted.
    pub submit_time: UnixNanos,
    /// It is being stopped and will be forgotten.
    pub deleting: bool,
    /// Slots by group: slot n holds the allocation with index n.
    pub slots: BTreeMap<String, Vec<Slot>>,
}

/// The place of one allocation index.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// How many allocations this slot has had.
    pub had: u32,
    /// The newest of them.
    pub alloc: Option<AllocId>,
}
