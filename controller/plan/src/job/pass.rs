//! What the plan of a job reads.

use std_alloc::{string::String, sync::Arc};

use herdlet_api_types::{AllocId, alloc::Desired, job::Job};

use crate::{
    job::{JobState, deployment::DeploymentState, placed::Placed, rollout::Step},
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

    /// The step that lowers the desired state of the allocation, unless it is that low already.
    pub(super) fn want(&self, alloc: AllocId, desired: Desired, why: &str) -> Option<Step> {
        let placed = self.placed(alloc)?;
        (placed.desired < desired).then(|| Step::Want { alloc, desired, why: String::from(why) })
    }

    /// Whether the allocation was made for this deployment.
    pub(super) fn is_of_deployment(&self, alloc: AllocId, deployment: Option<&DeploymentState>) -> bool {
        let of = self.placed(alloc).and_then(|placed| placed.deployment);
        of.is_some_and(|of| deployment.is_some_and(|known| known.deployment.id == of.id))
    }
}
