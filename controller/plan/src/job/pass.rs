//! What the plan of a job reads.

use std_alloc::sync::Arc;

use herdlet_api_types::{AllocId, job::Job};

use crate::{
    job::{JobState, placed::Placed},
    time::Now,
};

/// What the plan of a job reads: parts of the world `'w`.
#[derive(Clone, Copy)]
pub struct JobPass<'p, 'w> {
    /// The time of the turn.
    pub now: Now,
    /// The current version.
    pub job: &'p Job,
    /// The stored state.
    pub state: &'p JobState,
    /// All allocations of the job.
    pub allocs: &'p [AllocId],
    /// Finds an allocation by its id.
    pub find: &'p dyn Fn(AllocId) -> Option<Placed<'w>>,
    /// Finds a version of the job by its number.
    pub version: &'p dyn Fn(u64) -> Option<Arc<Job>>,
}

impl<'w> JobPass<'_, 'w> {
    /// The allocation with this id.
    pub fn placed(&self, id: AllocId) -> Option<Placed<'w>> {
        (self.find)(id)
    }
}
