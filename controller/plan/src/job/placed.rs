//! One allocation as seen by its job's plan, and what its state means for the job.

use herdlet_api_types::{
    AllocId,
    alloc::{AllocDeployment, ClientStatus, Desired},
    job::Job,
};

use crate::state::Durable;

/// One allocation as seen by its job's plan.
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
    /// Its desired state.
    pub desired: Desired,
    /// The allocation it replaced.
    pub previous: Option<AllocId>,
    /// Its stored state.
    pub known: &'a Durable,
}

/// All its tasks have ended, or it never had any.
pub fn has_ended(known: &Durable) -> bool {
    known.adopted && known.tasks.iter().all(|task| !task.status_live())
}

/// It has failed, or its roll-out has found it unhealthy: the verdict is final, also if it is healthy now.
pub fn is_bad(known: &Durable) -> bool {
    known.status == ClientStatus::Failed || known.health.is_some_and(|health| !health.healthy)
}

/// It has failed or is unhealthy now, and no rescheduling is due.
pub fn is_lost(known: &Durable) -> bool {
    (known.status == ClientStatus::Failed || known.is_unhealthy()) && known.reschedule().is_none()
}
