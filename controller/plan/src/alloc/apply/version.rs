//! An allocation that continues under other terms: another version of its job, another deployment, a promotion.
//!
//! In: the allocation's state, and what changed. Out: the parts to inspect again, and an open verdict on its health.

use herdlet_api_types::{
    alloc::Allocation,
    job::{Group, Service},
};

use crate::{
    op::{Part, TaskPart},
    parts::has_own_checks,
    state::{AllocState, PartState, healthy_by},
    time::Now,
};

/// A deployment takes the allocation over: the verdict on its health is open again, with a new deadline.
pub fn reset_health(now: Now, spec: &Allocation, state: &mut AllocState) {
    if state.durable.adopted {
        state.durable.health = None;
        state.durable.verdict_outdated = false;
        state.durable.healthy_by = healthy_by(now, spec);
    }
}

/// Moves the allocation to another version of its job. Services that differ are registered again, and checks that
/// differ begin again. Known results stay valid until then: see [`AllocState::expect_checks`].
pub fn take_new_version(old: &Group, new: &Group, state: &mut AllocState) {
    if old.services != new.services {
        take_new_owner_version(&old.services, &new.services, None, [Part::Services, Part::Checks], state);
    }
    for (index, (old, new)) in (0..).zip(old.tasks.iter().zip(&new.tasks)) {
        if old.services != new.services {
            let parts = [TaskPart::Services, TaskPart::Checks].map(|part| Part::Task(index, part));
            take_new_owner_version(&old.services, &new.services, Some(&*old.name), parts, state);
        }
    }
}

fn take_new_owner_version(
    old: &[Service],
    new: &[Service],
    task: Option<&str>,
    [services, checks]: [Part; 2],
    state: &mut AllocState,
) {
    let alike = old.len() == new.len() && old.iter().zip(new).all(|(old, new)| new.is_checked_as(old));
    if new.iter().all(|service| service.checks.is_empty()) {
        state.remove_checks(|result| result.task.as_deref() == task);
    }
    if !alike && has_own_checks(old) && !has_own_checks(new) {
        state.checks.outdated.insert(checks);
    } else if !alike && *state.parts.get(checks) != PartState::Absent {
        mark_for_inspection(checks, state);
    }
    if new.is_empty() {
        state.durable.retire(services);
    } else {
        state.durable.end_retirement(services);
        mark_for_inspection(services, state);
    }
}

/// The allocation is no longer a canary: services that are registered differently for canaries are registered again.
/// Their checks are the same.
pub fn serve_as_promoted(group: &Group, state: &mut AllocState) {
    let differ_in_canaries = |services: &[Service]| services.iter().any(Service::differs_in_canaries);
    if differ_in_canaries(&group.services) {
        mark_for_inspection(Part::Services, state);
    }
    for (index, _) in (0..).zip(&group.tasks).filter(|(_, task)| differ_in_canaries(&task.services)) {
        mark_for_inspection(Part::Task(index, TaskPart::Services), state);
    }
}

/// Causes an inspection of the part, services or checks, that compares it with the specification.
pub(super) fn mark_for_inspection(part: Part, state: &mut AllocState) {
    state.parts.supersede_part(part);
    state.parts.set_part(part, PartState::Unknown);
}
