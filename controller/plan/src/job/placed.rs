//! One allocation as its job's plan sees it, and what its state means for the job.

use herdlet_api_types::{
    AllocId,
    alloc::{AllocDeployment, ClientStatus, Desired},
    job::Job,
};

use crate::state::Durable;

/// What a job's plan sees of one allocation.
#[derive(Debug, Clone, Copy)]
pub struct Placed<'a> {
    /// The version it was made from.
    pub job: &'a Job,
    /// That version's number.
    pub version: u64,
    /// Its group.
    pub group: &'a str,
    /// Its slot in the group.
    pub index: u32,
    /// Its part in a deployment.
    pub deployment: Option<AllocDeployment>,
    /// What is wanted of it.
    pub desired: Desired,
    /// The allocation it replaced.
    pub previous: Option<AllocId>,
    /// What is remembered of it.
    pub known: &'a Durable,
}

/// All its tasks have ended, or it never had any.
pub fn has_ended(known: &Durable) -> bool {
    known.adopted && known.tasks.iter().all(|task| !task.status_live())
}

/// It will not become what was wanted.
pub fn is_bad(known: &Durable) -> bool {
    known.status == ClientStatus::Failed || known.health.is_some_and(|health| !health.healthy)
}

/// The same, and nothing follows it that might.
pub fn is_lost(known: &Durable) -> bool {
    is_bad(known) && known.reschedule().is_none()
}
