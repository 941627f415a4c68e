//! Turns of allocations that restart because their templates have changed.
//!
//! In: an allocation that was planned, created or removed. Out: the index that plans of its group read, and which of
//! them to plan again. No plan visits the other allocations.

use herdlet_api_types::{
    AllocId,
    alloc::{ClientStatus, Desired},
};

use crate::{
    job::placed::has_ended,
    op::Key,
    plan::{Plan, Waiting},
    spec::AllocSpec,
    state::AllocState,
    turn::OpenTurn,
    world::World,
};

impl World {
    /// The allocation was planned.
    pub(super) fn follow_restarts(&mut self, open: &mut OpenTurn<'_>, id: AllocId, plan: &Plan) {
        self.review_restart(open, id);
        let Some(entry) = self.allocs.get(id) else { return };
        if plan.waits.iter().any(|wait| matches!(wait, Waiting::Turn(..))) {
            self.ctx.restarts.wait(&entry.spec);
        }
    }

    /// Updates the index after a change of the allocation's state.
    pub(super) fn review_restart(&mut self, open: &mut OpenTurn<'_>, id: AllocId) {
        let Some(entry) = self.allocs.get_mut(id) else { return };
        let is_unsettled = is_unsettled(&entry.spec, &entry.state);
        if core::mem::replace(&mut entry.unsettled, is_unsettled) == is_unsettled {
            return;
        }
        if is_unsettled {
            self.ctx.restarts.hold(&entry.spec);
        } else {
            let next = self.ctx.restarts.release(&entry.spec);
            open.dirty.extend(next.into_iter().map(Key::Alloc));
        }
    }

    /// The allocation was removed.
    pub(super) fn forget_restart(&mut self, open: &mut OpenTurn<'_>, spec: &AllocSpec) {
        let next = self.ctx.restarts.release(spec);
        open.dirty.extend(next.into_iter().filter(|other| *other != spec.id).map(Key::Alloc));
    }
}

/// Whether others of its group that would restart because of their templates wait for it: it restarts for that reason
/// and is not healthy again, or a roll-out has not found it healthy.
fn is_unsettled(spec: &AllocSpec, state: &AllocState) -> bool {
    let known = &state.durable;
    if spec.policy().parallel_restarts.is_none() || spec.desired != Desired::Run {
        return false;
    }
    if has_ended(known) {
        // It failed with the new data, and nothing has replaced it.
        return known.takes_turn && known.status == ClientStatus::Failed;
    }
    // A verdict is given once: one that was unhealthy in time may be healthy now.
    let is_in_rollout =
        known.health.is_none_or(|verdict| !verdict.healthy && state.healthy_since_ns.is_none());
    known.takes_turn || is_in_rollout
}
