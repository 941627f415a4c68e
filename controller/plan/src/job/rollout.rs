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
        pass::JobPass,
        placed::{Placed, has_ended, is_bad},
        reschedule, same_work,
    },
    state::{Durable, Followed},
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
const ONLY_CHILDREN_RUN: &str = "the job is periodic or parameterized now: only its children run";

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

/// Plans the next steps; `fits` tests whether a group may run here.
pub fn plan(pass: &JobPass<'_, '_>, fits: &dyn Fn(&Group) -> bool) -> Vec<Step> {
    let (job, state) = (pass.job, pass.state);
    let mut steps = Vec::new();
    if state.deleting {
        steps.extend(pass.allocs.iter().filter_map(|alloc| pass.want(*alloc, Desired::Gone, "job deleted")));
        if pass.allocs.is_empty() {
            steps.push(Step::Forget);
        }
        return steps;
    }
    if job.makes_children() {
        steps.extend(
            pass.allocs.iter().filter_map(|alloc| pass.want(*alloc, Desired::Gone, ONLY_CHILDREN_RUN)),
        );
        return steps;
    }
    let lingering = Lingering::of(pass);
    for group in &job.groups {
        let plan = GroupPlan { pass, group, lingering: &lingering, slots: slots_of(state, group) };
        let mut own = plan.steps();
        // Running allocations continue: none is stopped for a version that can't replace it.
        if own.iter().any(Step::places) && !fits(group) {
            own.retain(|step| !step.places());
            own.push(Step::Hold { group: group.name.clone() });
        }
        steps.append(&mut own);
    }
    let removed = state.slots.iter().filter(|(group, _)| job.group(group).is_none());
    let removed = removed.flat_map(|(_, slots)| slots).filter_map(|slot| slot.alloc);
    steps.extend(removed.filter_map(|alloc| pass.want(alloc, Desired::Gone, GROUP_REMOVED)));
    retire(pass, &mut steps);
    steps
}

impl JobPass<'_, '_> {
    /// The step that lowers the desired state of the allocation, unless it is that low already.
    fn want(&self, alloc: AllocId, desired: Desired, why: &str) -> Option<Step> {
        let placed = self.placed(alloc)?;
        (placed.desired < desired).then(|| Step::Want { alloc, desired, why: String::from(why) })
    }

    /// Whether the allocation was made for this deployment.
    fn is_of_deployment(&self, alloc: AllocId, deployment: Option<&DeploymentState>) -> bool {
        let of = self.placed(alloc).and_then(|placed| placed.deployment);
        of.is_some_and(|of| deployment.is_some_and(|known| known.deployment.id == of.id))
    }
}

/// Stops canaries that no deployment needs, and removes allocations that were replaced.
fn retire(pass: &JobPass<'_, '_>, steps: &mut Vec<Step>) {
    let state = pass.state;
    // Of the replaced allocations only each slot's last predecessor is kept, for its logs.
    let mut kept: Vec<AllocId> = Vec::with_capacity(2 * pass.allocs.len());
    for current in state.slots.values().flatten().filter_map(|slot| slot.alloc) {
        kept.push(current);
        kept.extend(pass.placed(current).and_then(|placed| placed.previous));
    }
    let known_slots = state.slots.iter().filter(|(group, _)| pass.job.group(group).is_some());
    for canary in known_slots.flat_map(|(_, slots)| slots).filter_map(|slot| slot.canary) {
        // A stopped job's canaries are stopped with it, and kept for their logs.
        if pass.job.stop {
            steps.extend(pass.want(canary, Desired::Stop, STOPPED));
            kept.push(canary);
        } else if pass.is_of_deployment(canary, state.deployment()) {
            kept.push(canary);
        } else if pass.placed(canary).is_some_and(|placed| is_bad(placed.known)) {
            // Its logs show why its version was given up. The next canary in its slot replaces it.
            steps.extend(pass.want(canary, Desired::Stop, CANARY_OUTDATED));
            kept.push(canary);
        }
    }
    kept.sort_unstable();
    let replaced = pass.allocs.iter().filter(|alloc| kept.binary_search(alloc).is_err());
    steps.extend(replaced.filter_map(|alloc| pass.want(*alloc, Desired::Gone, "replaced")));
}

/// One group of a job, while its steps are planned.
struct GroupPlan<'p, 'w> {
    pass: &'p JobPass<'p, 'w>,
    group: &'p Group,
    lingering: &'p Lingering<'w>,
    slots: &'p [Slot],
}

impl<'w> GroupPlan<'_, 'w> {
    fn steps(&self) -> Vec<Step> {
        let count = usize::try_from(self.pass.job.desired_count(self.group)).unwrap_or(usize::MAX);
        let why = if self.pass.job.stop { STOPPED } else { COUNT_LOWERED };
        let beyond = self.slots.iter().skip(count).filter_map(|slot| slot.alloc);
        let mut steps: Vec<Step> =
            beyond.filter_map(|alloc| self.pass.want(alloc, Desired::Stop, why)).collect();
        let outdated = self.fill_slots(count, &mut steps);
        self.replace(outdated, count, &mut steps);
        self.place_canaries(&mut steps);
        steps
    }

    /// The allocation of this slot.
    fn placed(&self, index: usize) -> Option<(AllocId, Placed<'w>)> {
        let alloc = self.slots.get(index).and_then(|slot| slot.alloc)?;
        Some((alloc, self.pass.placed(alloc)?))
    }

    /// Whether it does the work of the current version.
    fn is_current(&self, placed: &Placed<'_>) -> bool {
        placed.desired == Desired::Run && same_work(placed.job, self.pass.job, &self.group.name)
    }

    /// Whether it has to join the running deployment: then it has to become healthy again.
    fn joins(&self, placed: &Placed<'_>) -> bool {
        let running = self.pass.state.deployment();
        let running =
            running.filter(|known| known.deployment.is_running() && known.group(&self.group.name).is_some());
        running.is_some_and(|known| placed.deployment.is_none_or(|of| of.id != known.deployment.id))
    }

    fn is_canarying(&self) -> bool {
        let known = self.pass.state.deployment().and_then(|known| known.group(&self.group.name));
        known.is_some_and(DeploymentGroup::is_canarying)
    }

    fn is_paused(&self) -> bool {
        self.pass.state.deployment().is_some_and(|known| known.deployment.is_paused())
    }

    /// Creates missing allocations, and keeps those that do the work of the current version. Returns the outdated ones.
    fn fill_slots(&self, count: usize, steps: &mut Vec<Step>) -> Vec<(AllocId, Placed<'w>)> {
        let (is_canarying, is_paused) = (self.is_canarying(), self.is_paused());
        let mut outdated = Vec::new();
        for index in 0..count {
            // One slot, one allocation: a new one also waits for those that have left the slot.
            let lingers = || self.lingering.is_in(self.group, index);
            let create = |previous| Step::Create {
                group: self.group.name.clone(),
                index: u32::try_from(index).unwrap_or(u32::MAX),
                previous,
            };
            match self.placed(index) {
                // Missing allocations are created after the promotion: until then the new version is unproven.
                None if is_canarying || is_paused || lingers() => {}
                None => steps.push(create(None)),
                Some((alloc, placed)) if self.is_current(&placed) => {
                    if placed.version != self.pass.state.version || self.joins(&placed) {
                        steps.push(Step::TakeOver(alloc));
                    } else if !is_canarying {
                        steps.extend(self.reschedule(index, alloc, &placed));
                    }
                }
                Some((alloc, placed)) if has_ended(placed.known) && placed.desired != Desired::Run => {
                    if !is_canarying && !lingers() {
                        steps.push(create(Some(alloc)));
                    }
                }
                Some((_, placed)) if placed.desired != Desired::Run => {}
                Some(found) => outdated.push(found),
            }
        }
        outdated
    }

    /// Replaces as many outdated allocations as `max_parallel` allows, those that do not work first.
    fn replace(&self, mut outdated: Vec<(AllocId, Placed<'w>)>, count: usize, steps: &mut Vec<Step>) {
        let failed = |known: &DeploymentState| known.deployment.status == DeploymentStatus::Failed;
        let mut changing = 0;
        let mut halted =
            self.is_canarying() || self.is_paused() || self.pass.state.deployment().is_some_and(failed);
        for index in 0..count {
            match self.placed(index) {
                Some((_, placed)) if self.is_current(&placed) => {
                    halted |= self.group.update.is_some() && is_bad(placed.known);
                    let settled = is_settled(self.group, self.pass.job, placed.known);
                    changing += u32::from(self.joins(&placed) || !settled);
                }
                // Even after the old one has ended, its slot is between versions until the new one is healthy.
                Some((_, placed)) => changing += u32::from(placed.desired != Desired::Run),
                None => changing += 1,
            }
        }
        outdated.sort_by_key(|(_, placed)| !is_bad(placed.known));
        for (alloc, _) in outdated {
            let update = self.group.update.as_ref();
            if update.is_none_or(|update| changing < update.max_parallel && !halted) {
                changing += 1;
                steps.push(Step::Replace(alloc));
            }
        }
    }

    /// What follows an allocation that has failed for good, if not decided yet, or due now.
    fn reschedule(&self, index: usize, alloc: AllocId, placed: &Placed<'_>) -> Option<Step> {
        let (now, known) = (self.pass.now, placed.known);
        if known.status != ClientStatus::Failed || !has_ended(known) {
            return None;
        }
        let may = may_reschedule(self.group, placed, self.pass.state.deployment());
        let followed = match known.followed {
            Some(Followed::At(_)) if !may => Followed::Never,
            Some(decided) => decided,
            None if !may => return None,
            None => {
                let past = self.slots.get(index).map_or(&[][..], |slot| &slot.rescheduled);
                reschedule::due(now, &self.group.reschedule, past).map_or(Followed::Never, Followed::At)
            }
        };
        if known.followed != Some(followed) {
            return Some(Step::Follow { alloc, followed });
        }
        let why = String::from("alloc was rescheduled because it failed");
        let due = known.reschedule().filter(|due| due.is_due(now));
        due.map(|_| Step::Want { alloc, desired: Desired::Stop, why })
    }

    /// Creates missing canaries, and stops those of a failed deployment.
    fn place_canaries(&self, steps: &mut Vec<Step>) {
        let Self { pass, group, slots, .. } = *self;
        let Some(deployment) = pass.state.deployment() else { return };
        let Some(known) = deployment.group(&group.name).filter(|known| known.is_canarying()) else { return };
        let is_of_this = |canary: &AllocId| pass.is_of_deployment(*canary, Some(deployment));
        let of_this = || slots.iter().filter_map(|slot| slot.canary).filter(is_of_this);
        if !deployment.deployment.is_running() {
            let why = "canary of a failed deployment";
            steps.extend(of_this().filter_map(|canary| pass.want(canary, Desired::Stop, why)));
            return;
        }
        if deployment.deployment.is_paused() {
            return;
        }
        let wanted = usize::try_from(known.desired_canaries).unwrap_or(usize::MAX);
        let count = usize::try_from(group.count).unwrap_or(usize::MAX);
        // A canary of an older deployment, or one that was stopped, is about to end.
        let leaves = |canary: AllocId| {
            !is_of_this(&canary) || pass.placed(canary).is_some_and(|placed| placed.desired != Desired::Run)
        };
        let ended = |canary: AllocId| pass.placed(canary).is_none_or(|placed| has_ended(placed.known));
        let is_free = |index: &usize| {
            let canary = slots.get(*index).and_then(|slot| slot.canary);
            canary.is_none_or(|canary| leaves(canary) && ended(canary))
        };
        let is_outdated = |index: &usize| {
            self.placed(*index).is_some_and(|(_, placed)| !same_work(placed.job, pass.job, &group.name))
        };
        // First beside allocations that they replace, then in other slots, then beyond the group's count: names as in
        // Nomad.
        let replacing = (0..count).filter(is_outdated);
        let others = (0..count.saturating_add(wanted)).filter(|index| *index >= count || !is_outdated(index));
        // The successor of a stopped canary waits until that has ended.
        let ending = of_this().filter(|canary| leaves(*canary) && !ended(*canary)).count();
        let missing = wanted.saturating_sub(known.placed_canaries.len() + ending);
        let chosen = replacing.chain(others).filter(is_free).take(missing);
        // A slot has room for two: its allocation, and a canary.
        for index in chosen.filter(|index| !self.lingering.is_in(group, *index)) {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            steps.push(Step::Canary { group: group.name.clone(), index });
        }
    }
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

fn slots_of<'s>(state: &'s JobState, group: &Group) -> &'s [Slot] {
    state.slots.get(&group.name).map_or(&[][..], Vec::as_slice)
}

/// Slots with a live allocation that they no longer hold, by group and index, in order: a promoted canary ran beside
/// the one that it replaced, and may end before it.
struct Lingering<'a>(Vec<(&'a str, usize)>);

impl<'a> Lingering<'a> {
    fn of(pass: &JobPass<'_, 'a>) -> Self {
        let lingers = |alloc: &AllocId| {
            let placed = pass.placed(*alloc).filter(|placed| !has_ended(placed.known))?;
            let index = usize::try_from(placed.index).unwrap_or(usize::MAX);
            let slot = pass.state.slots.get(placed.group).and_then(|slots| slots.get(index));
            let holds = slot.is_some_and(|slot| [slot.alloc, slot.canary].contains(&Some(*alloc)));
            (!holds).then_some((placed.group, index))
        };
        let mut found: Vec<_> = pass.allocs.iter().filter_map(lingers).collect();
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

#[cfg(test)]
mod tests;
