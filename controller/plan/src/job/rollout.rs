//! Which allocations of a job to create, stop and remove next.
//!
//! A slot is one index of one group. At most one allocation of a slot lives at a time: the old one ends before the new
//! one is created. If the group has `update`, at most `max_parallel` slots are between versions at a time, and a new
//! allocation that failed or is unhealthy halts the roll-out, as does a failed deployment. Canaries are the exception:
//! until their promotion they run beside the old allocation of their slot, and no old one is stopped. An allocation
//! that has failed for good is followed by another one after the delay of the group's `reschedule`.

use std_alloc::{string::String, vec::Vec};

use herdlet_api_types::{
    AllocId,
    alloc::{ClientStatus, Desired},
    deployment::{DeploymentGroup, DeploymentStatus},
    job::{Group, Job},
};

use crate::{
    job::{
        JobState, Slot,
        deployment::DeploymentState,
        placed::{Placed, has_ended, is_bad},
        reschedule::{self, Rescheduled},
        same_work,
    },
    state::{Durable, Followed},
    time::Now,
};

/// Reason to stop an allocation that a newer version replaces.
pub const OUTDATED: &str = "replaced by a newer version of the job";
/// Reason to stop a failed canary of an older version, which never held its slot.
pub const CANARY_OUTDATED: &str = "canary of an older version of the job";
/// Reason to stop an allocation beyond the count of its group.
pub const COUNT_LOWERED: &str = "group count was lowered";
/// Reason to stop an allocation whose whole job is stopped, but not deleted.
pub const STOPPED: &str = "job was stopped";
/// Reason to stop an allocation whose group was removed.
pub const GROUP_REMOVED: &str = "group removed";

/// One step of a job's plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Create an allocation for this slot.
    Create {
        /// Group name.
        group: String,
        /// Slot index.
        index: u32,
        /// The allocation it follows.
        previous: Option<AllocId>,
    },
    /// Create a canary beside this slot's allocation.
    Canary {
        /// Group name.
        group: String,
        /// Slot index.
        index: u32,
    },
    /// The allocation continues unchanged under the job's current version.
    TakeOver(AllocId),
    /// Stop an allocation so that one of a newer version can take its slot.
    Replace(AllocId),
    /// The group may not run on this node: nothing of it is created or replaced.
    Hold {
        /// Group name.
        group: String,
    },
    /// Store what follows a failed allocation.
    Follow {
        /// The allocation.
        alloc: AllocId,
        /// The decision.
        followed: Followed,
    },
    /// Change the desired state of an allocation.
    Want {
        /// The allocation.
        alloc: AllocId,
        /// The desired state.
        desired: Desired,
        /// The reason, in a sentence.
        why: String,
    },
    /// Nothing of the job is left: remove it.
    Forget,
}

impl Step {
    /// Whether it brings the current version onto this node.
    fn places(&self) -> bool {
        match self {
            Self::Create { .. } | Self::Canary { .. } | Self::TakeOver(_) | Self::Replace(_) => true,
            Self::Follow { .. } | Self::Hold { .. } | Self::Want { .. } | Self::Forget => false,
        }
    }
}

/// Plans the next steps. `allocs` are all allocations of the job; `find` looks one up by id, `fits` tests whether a
/// group may run here.
pub fn plan<'a>(
    now: Now,
    job: &Job,
    state: &JobState,
    allocs: &[AllocId],
    find: &dyn Fn(AllocId) -> Option<Placed<'a>>,
    fits: &dyn Fn(&Group) -> bool,
) -> Vec<Step> {
    let mut steps = Vec::new();
    if state.deleting {
        for alloc in allocs {
            want(&mut steps, *alloc, find, Desired::Gone, "job deleted");
        }
        if allocs.is_empty() {
            steps.push(Step::Forget);
        }
        return steps;
    }
    if job.makes_children() {
        for alloc in allocs {
            want(
                &mut steps,
                *alloc,
                find,
                Desired::Gone,
                "the job is periodic or parameterized now: only its children run",
            );
        }
        return steps;
    }
    let lingering = Lingering::of(state, allocs, find);
    for group in &job.groups {
        let mut own = Vec::new();
        plan_group(now, &mut own, job, group, state, &lingering, find);
        plan_canaries(&mut own, job, group, state, &lingering, find);
        // Running allocations continue: none is stopped for a version that can't replace it.
        if own.iter().any(Step::places) && !fits(group) {
            own.retain(|step| !step.places());
            own.push(Step::Hold { group: group.name.clone() });
        }
        steps.append(&mut own);
    }
    for (group, slots) in &state.slots {
        if job.group(group).is_none() {
            for alloc in slots.iter().filter_map(|slot| slot.alloc) {
                want(&mut steps, alloc, find, Desired::Gone, GROUP_REMOVED);
            }
        }
    }
    // Of the replaced allocations only each slot's last predecessor is kept, for its logs.
    let mut kept: Vec<AllocId> = Vec::with_capacity(2 * allocs.len());
    for current in state.slots.values().flatten().filter_map(|slot| slot.alloc) {
        kept.push(current);
        kept.extend(find(current).and_then(|placed| placed.previous));
    }
    let known_slots = state.slots.iter().filter(|(group, _)| job.group(group).is_some());
    for canary in known_slots.flat_map(|(_, slots)| slots).filter_map(|slot| slot.canary) {
        // A stopped job's canaries are stopped with it, and kept for their logs.
        if job.stop {
            want(&mut steps, canary, find, Desired::Stop, STOPPED);
            kept.push(canary);
        } else if is_of_deployment(canary, state.deployment(), find) {
            kept.push(canary);
        } else if find(canary).is_some_and(|placed| is_bad(placed.known)) {
            // Its logs show why its version was given up. The next canary in its slot replaces it.
            want(&mut steps, canary, find, Desired::Stop, CANARY_OUTDATED);
            kept.push(canary);
        }
    }
    kept.sort_unstable();
    for alloc in allocs.iter().filter(|alloc| kept.binary_search(alloc).is_err()) {
        want(&mut steps, *alloc, find, Desired::Gone, "replaced");
    }
    steps
}

fn plan_group<'a>(
    now: Now,
    steps: &mut Vec<Step>,
    job: &Job,
    group: &Group,
    state: &JobState,
    lingering: &Lingering<'_>,
    find: &dyn Fn(AllocId) -> Option<Placed<'a>>,
) {
    let slots = slots_of(state, group);
    let deployment = state.deployment();
    let known = deployment.and_then(|known| known.group(&group.name));
    let canarying = known.is_some_and(DeploymentGroup::is_canarying);
    let count = usize::try_from(job.desired_count(group)).unwrap_or(usize::MAX);
    let why = if job.stop { STOPPED } else { COUNT_LOWERED };
    for slot in slots.iter().skip(count) {
        if let Some(alloc) = slot.alloc {
            want(steps, alloc, find, Desired::Stop, why);
        }
    }
    let placed = |index: usize| {
        let alloc = slots.get(index).and_then(|slot| slot.alloc)?;
        Some((alloc, find(alloc)?))
    };
    let current =
        |placed: &Placed<'_>| placed.desired == Desired::Run && same_work(placed.job, job, &group.name);
    // Allocations that join the running deployment have to become healthy again.
    let running =
        deployment.filter(|known| known.deployment.is_running() && known.group(&group.name).is_some());
    let joins = |placed: &Placed<'_>| {
        running.is_some_and(|known| placed.deployment.is_none_or(|of| of.id != known.deployment.id))
    };
    let mut changing = 0;
    let paused = deployment.is_some_and(|known| known.deployment.is_paused());
    let mut halted = canarying
        || paused
        || deployment.is_some_and(|known| known.deployment.status == DeploymentStatus::Failed);
    for index in 0..count {
        match placed(index) {
            Some((_, placed)) if current(&placed) => {
                halted |= group.update.is_some() && is_bad(placed.known);
                changing += u32::from(joins(&placed) || !is_settled(group, job, placed.known));
            }
            // Even after the old one has ended, its slot is between versions until the new one is healthy.
            Some((_, placed)) => changing += u32::from(placed.desired != Desired::Run),
            None => changing += 1,
        }
    }
    let mut outdated = Vec::new();
    // One slot, one allocation: a new one also waits for those that have left the slot.
    let lingers = |index: usize| lingering.is_in(group, index);
    for index in 0..count {
        let create = |previous| Step::Create {
            group: group.name.clone(),
            index: u32::try_from(index).unwrap_or(u32::MAX),
            previous,
        };
        match placed(index) {
            // Missing allocations are created after the promotion: until then the new version is unproven.
            None if canarying || paused || lingers(index) => {}
            None => steps.push(create(None)),
            Some((alloc, placed)) if current(&placed) => {
                if placed.version != state.version || joins(&placed) {
                    steps.push(Step::TakeOver(alloc));
                } else if !canarying {
                    let past = slots.get(index).map_or(&[][..], |slot| &slot.rescheduled);
                    steps.extend(reschedule(now, group, past, alloc, &placed, deployment));
                }
            }
            Some((alloc, placed)) if has_ended(placed.known) && placed.desired != Desired::Run => {
                if !canarying && !lingers(index) {
                    steps.push(create(Some(alloc)));
                }
            }
            Some((_, placed)) if placed.desired != Desired::Run => {}
            Some((alloc, placed)) => outdated.push((!is_bad(placed.known), alloc)),
        }
    }
    // Allocations that don't work are replaced first.
    outdated.sort_by_key(|(works, _)| *works);
    for (_, alloc) in outdated {
        let room = group.update.as_ref().is_none_or(|update| changing < update.max_parallel && !halted);
        if room {
            changing += 1;
            steps.push(Step::Replace(alloc));
        }
    }
}

/// What follows an allocation that has failed for good, if not decided yet, or due now.
fn reschedule(
    now: Now,
    group: &Group,
    past: &[Rescheduled],
    alloc: AllocId,
    placed: &Placed<'_>,
    deployment: Option<&DeploymentState>,
) -> Option<Step> {
    let known = placed.known;
    if known.status != ClientStatus::Failed || !has_ended(known) {
        return None;
    }
    let may = may_reschedule(group, placed, deployment);
    let followed = match known.followed {
        Some(Followed::At(_)) if !may => Followed::Never,
        Some(decided) => decided,
        None if !may => return None,
        None => reschedule::due(now, &group.reschedule, past).map_or(Followed::Never, Followed::At),
    };
    if known.followed != Some(followed) {
        return Some(Step::Follow { alloc, followed });
    }
    let why = String::from("alloc was rescheduled because it failed");
    let due = known.reschedule().filter(|due| due.is_due(now));
    due.map(|_| Step::Want { alloc, desired: Desired::Stop, why })
}

/// Allocations of a failed deployment are not rescheduled, nor those that are about to fail one.
fn may_reschedule(group: &Group, placed: &Placed<'_>, deployment: Option<&DeploymentState>) -> bool {
    let is_in = |known: &&DeploymentState| placed.deployment.is_some_and(|of| of.id == known.deployment.id);
    let goes_on = match deployment.filter(is_in).map(|known| (known, known.deployment.status)) {
        Some((_, DeploymentStatus::Failed)) => false,
        Some((known, DeploymentStatus::Running)) => {
            known.group(&group.name).is_none_or(|group| !group.progress_deadline.is_zero())
        }
        Some((_, DeploymentStatus::Successful | DeploymentStatus::Cancelled)) | None => true,
    };
    goes_on && group.reschedule.is_enabled()
}

/// Creates missing canaries, and stops those of a failed deployment.
fn plan_canaries<'a>(
    steps: &mut Vec<Step>,
    job: &Job,
    group: &Group,
    state: &JobState,
    lingering: &Lingering<'_>,
    find: &dyn Fn(AllocId) -> Option<Placed<'a>>,
) {
    let Some(deployment) = state.deployment() else { return };
    let Some(known) = deployment.group(&group.name).filter(|known| known.is_canarying()) else { return };
    let slots = slots_of(state, group);
    if !deployment.deployment.is_running() {
        let canaries = slots.iter().filter_map(|slot| slot.canary);
        for canary in canaries.filter(|canary| is_of_deployment(*canary, Some(deployment), find)) {
            want(steps, canary, find, Desired::Stop, "canary of a failed deployment");
        }
        return;
    }
    if deployment.deployment.is_paused() {
        return;
    }
    let wanted = usize::try_from(known.desired_canaries).unwrap_or(usize::MAX);
    let count = usize::try_from(group.count).unwrap_or(usize::MAX);
    let slot = |index: usize| slots.get(index).cloned().unwrap_or_default();
    // A canary of an older deployment, or one that was stopped, is about to end.
    let leaves = |canary: AllocId| {
        !is_of_deployment(canary, Some(deployment), find)
            || find(canary).is_some_and(|placed| placed.desired != Desired::Run)
    };
    let ended = |canary: AllocId| find(canary).is_none_or(|placed| has_ended(placed.known));
    let is_free = |index: &usize| slot(*index).canary.is_none_or(|canary| leaves(canary) && ended(canary));
    let is_outdated = |index: &usize| {
        let placed = slot(*index).alloc.and_then(find);
        placed.is_some_and(|placed| !same_work(placed.job, job, &group.name))
    };
    // First beside allocations that they replace, then in other slots, then beyond the group's count: names as in
    // Nomad.
    let replacing = (0..count).filter(is_outdated);
    let others = (0..count.saturating_add(wanted)).filter(|index| *index >= count || !is_outdated(index));
    // The successor of a stopped canary waits until that has ended.
    let of_this = slots.iter().filter_map(|slot| slot.canary);
    let of_this = of_this.filter(|canary| is_of_deployment(*canary, Some(deployment), find));
    let ending = of_this.filter(|canary| leaves(*canary) && !ended(*canary)).count();
    let missing = wanted.saturating_sub(known.placed_canaries.len() + ending);
    let chosen = replacing.chain(others).filter(is_free).take(missing);
    // A slot has room for two: its allocation, and a canary.
    for index in chosen.filter(|index| !lingering.is_in(group, *index)) {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        steps.push(Step::Canary { group: group.name.clone(), index });
    }
}

fn slots_of<'s>(state: &'s JobState, group: &Group) -> &'s [Slot] {
    state.slots.get(&group.name).map_or(&[][..], Vec::as_slice)
}

fn is_of_deployment<'a>(
    alloc: AllocId,
    deployment: Option<&DeploymentState>,
    find: &dyn Fn(AllocId) -> Option<Placed<'a>>,
) -> bool {
    let of = find(alloc).and_then(|placed| placed.deployment);
    of.is_some_and(|of| deployment.is_some_and(|known| known.deployment.id == of.id))
}

/// Slots with a live allocation that they no longer hold, by group and index, in order: a promoted canary ran beside
/// the one that it replaced, and may end before it.
struct Lingering<'a>(Vec<(&'a str, usize)>);

impl<'a> Lingering<'a> {
    fn of(state: &JobState, allocs: &[AllocId], find: &dyn Fn(AllocId) -> Option<Placed<'a>>) -> Self {
        let lingers = |alloc: &AllocId| {
            let placed = find(*alloc).filter(|placed| !has_ended(placed.known))?;
            let index = usize::try_from(placed.index).unwrap_or(usize::MAX);
            let slot = state.slots.get(placed.group).and_then(|slots| slots.get(index));
            let holds = slot.is_some_and(|slot| [slot.alloc, slot.canary].contains(&Some(*alloc)));
            (!holds).then_some((placed.group, index))
        };
        let mut found: Vec<_> = allocs.iter().filter_map(lingers).collect();
        found.sort_unstable();
        Self(found)
    }

    fn is_in(&self, group: &Group, index: usize) -> bool {
        self.0.binary_search(&(&*group.name, index)).is_ok()
    }
}

/// Whether its roll-out is over: it is healthy, or there is nothing to wait for.
fn is_settled(group: &Group, job: &Job, known: &Durable) -> bool {
    job.kind.completes() || group.update.is_none() || known.is_judged_healthy()
}

fn want<'a>(
    steps: &mut Vec<Step>,
    alloc: AllocId,
    find: &dyn Fn(AllocId) -> Option<Placed<'a>>,
    desired: Desired,
    why: &str,
) {
    if find(alloc).is_some_and(|placed| placed.desired < desired) {
        steps.push(Step::Want { alloc, desired, why: String::from(why) });
    }
}

#[cfg(test)]
mod tests;
