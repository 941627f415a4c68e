//! The stored state of one deployment, and how its allocations are counted.
//!
//! In: allocations made for it or taken over, and their states. Out: its counters and the deadline for the next healthy
//! allocation. It decides nothing.

use std_alloc::{
    collections::{BTreeMap, BTreeSet},
    string::{String, ToString},
    sync::Arc,
    vec::Vec,
};

use herdlet_api_types::{
    AllocId,
    alloc::Desired,
    deployment::{Deployment, DeploymentGroup, DeploymentStatus},
};
use serde::{Deserialize, Serialize};

use super::{running, verdict};
use crate::{
    job::pass::JobPass,
    time::{Deadline, Now},
};

/// Stored state of a deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeploymentState {
    /// The deployment as the API shows it.
    pub deployment: Arc<Deployment>,
    /// By group: the deadline for the next healthy allocation.
    pub progress_by: BTreeMap<String, Deadline>,
    /// Verdicts of its allocations. Each allocation counts once, and once more if it becomes unhealthy later.
    pub judged: BTreeMap<AllocId, bool>,
}

/// What an allocation is in its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It holds the slot.
    Holder,
    /// It runs beside the slot's holder until it is promoted.
    Canary,
}

impl DeploymentState {
    /// Adds an allocation that was made for it or taken over. The first one starts the deadline.
    pub fn place(&mut self, now: Now, group: &str, alloc: AllocId, role: Role) {
        let deployment = Arc::make_mut(&mut self.deployment);
        let Some(known) = deployment.groups.get_mut(group) else { return };
        known.placed_allocs = known.placed_allocs.saturating_add(1);
        if role == Role::Canary {
            known.placed_canaries.push(alloc);
        }
        if !known.progress_deadline.is_zero() && known.require_progress_by.is_none() {
            self.extend(now, group);
        }
    }

    /// Marks the group's canaries as promoted; the allocations that follow get the full deadline.
    pub fn promote(&mut self, now: Now, group: &str) {
        let deployment = Arc::make_mut(&mut self.deployment);
        let Some(known) = deployment.groups.get_mut(group) else { return };
        known.promoted = true;
        deployment.description = running(deployment).to_string();
        self.extend(now, group);
    }

    /// The group with that name.
    pub fn group(&self, name: &str) -> Option<&DeploymentGroup> {
        self.deployment.groups.get(name)
    }

    /// Whether a group's deadline has passed.
    pub fn is_due(&self, now: Now) -> bool {
        self.progress_by.values().any(|by| by.is_due(now))
    }

    /// Whether no more allocations of this group have to become healthy before its canaries are promoted or, without
    /// canaries, at all. An allocation taken over from an older version does not count as a canary.
    pub(super) fn is_content(&self, group: &DeploymentGroup) -> bool {
        if !group.is_canarying() {
            return group.healthy_allocs >= group.desired_total;
        }
        let healthy = group.placed_canaries.iter().filter(|id| self.judged.get(id) == Some(&true));
        healthy.count() >= group.desired_canaries as usize
    }

    /// When it has to be planned again without an event.
    pub fn wake_ns(&self, now: Now) -> Option<u64> {
        let due = self.progress_by.values().map(|by| by.due_ns(now)).filter(|due| *due > now.boot_ns);
        if self.deployment.is_running() { due.min() } else { None }
    }

    /// Binds its deadlines to this boot.
    pub fn rebase(&mut self, now: Now) {
        for by in self.progress_by.values_mut() {
            *by = by.rebased(now);
        }
    }

    /// Pauses it: it has no deadlines meanwhile.
    pub(crate) fn pause(&mut self, now: Now) {
        if !self.deployment.paused {
            Arc::make_mut(&mut self.deployment).paused = true;
            self.begin_again(now);
        }
    }

    /// Resumes it, with new deadlines for the groups that have begun.
    pub(crate) fn resume(&mut self, now: Now) {
        if self.deployment.paused {
            Arc::make_mut(&mut self.deployment).paused = false;
            self.begin_again(now);
        }
    }

    fn begin_again(&mut self, now: Now) {
        let deployment = Arc::make_mut(&mut self.deployment);
        deployment.description = running(deployment).to_string();
        let begun = deployment.groups.iter_mut().filter(|(_, group)| group.require_progress_by.is_some());
        let begun: Vec<String> = begun.map(|(name, _)| name.clone()).collect();
        self.progress_by.clear();
        for name in begun {
            self.extend(now, &name);
        }
    }

    /// Restarts the group's deadline: one more allocation has to become healthy within it.
    fn extend(&mut self, now: Now, group: &str) {
        let is_paused = self.deployment.paused;
        let Some(known) = Arc::make_mut(&mut self.deployment).groups.get_mut(group) else { return };
        if known.progress_deadline.is_zero() {
            return;
        }
        if is_paused {
            known.require_progress_by.get_or_insert(now.wall);
            return;
        }
        let by = Deadline::after(now, known.progress_deadline);
        known.require_progress_by = Some(by.wall);
        self.progress_by.insert(String::from(group), by);
    }

    /// Counts the verdicts of its allocations.
    fn count(&mut self, pass: &JobPass<'_, '_>) {
        self.drop_stopped(pass);
        let id = self.deployment.id;
        let members = pass.allocs.iter().filter_map(|alloc| Some((*alloc, pass.placed(*alloc)?)));
        let members = members.filter(|(_, placed)| {
            placed.desired == Desired::Run && placed.deployment.is_some_and(|of| of.id == id)
        });
        let verdicts: Vec<(AllocId, String, bool)> = members
            .filter_map(|(alloc, placed)| Some((alloc, String::from(placed.group), verdict(&placed)?)))
            .filter(|(alloc, _, healthy)| self.judged.get(alloc) != Some(healthy))
            .collect();
        let mut progressed = BTreeSet::new();
        for (alloc, name, healthy) in verdicts {
            let was = self.judged.insert(alloc, healthy);
            let Some(group) = Arc::make_mut(&mut self.deployment).groups.get_mut(&name) else { continue };
            match (was, healthy) {
                (Some(true), false) => {
                    group.healthy_allocs = group.healthy_allocs.saturating_sub(1);
                    group.unhealthy_allocs += 1;
                }
                (None | Some(false), false) => group.unhealthy_allocs += 1,
                (None | Some(_), true) => {
                    group.healthy_allocs += 1;
                    progressed.insert(name);
                }
            }
        }
        for name in progressed {
            self.extend(pass.now, &name);
        }
        // Removed allocations are not judged again.
        if self.judged.len() > pass.allocs.len() {
            self.judged.retain(|alloc, _| pass.allocs.contains(alloc));
        }
    }

    /// Removes stopped allocations from the count. The replacement of each has the full deadline to become healthy.
    fn drop_stopped(&mut self, pass: &JobPass<'_, '_>) {
        let runs = |id: &AllocId| pass.placed(*id).is_none_or(|placed| placed.desired == Desired::Run);
        let lacks = |group: &DeploymentGroup| group.is_canarying() && !group.placed_canaries.iter().all(runs);
        if self.deployment.groups.values().any(lacks) {
            let groups = Arc::make_mut(&mut self.deployment).groups.values_mut();
            groups.filter(|group| group.is_canarying()).for_each(|group| group.placed_canaries.retain(runs));
        }
        let stopped: Vec<AllocId> = self.judged.keys().filter(|id| !runs(id)).copied().collect();
        for id in stopped {
            let was_healthy = self.judged.remove(&id) == Some(true);
            let Some(placed) = pass.placed(id).filter(|_| was_healthy) else { continue };
            if let Some(group) = Arc::make_mut(&mut self.deployment).groups.get_mut(placed.group) {
                group.healthy_allocs = group.healthy_allocs.saturating_sub(1);
            }
            self.extend(pass.now, placed.group);
        }
    }

    /// A copy with the current verdicts of its allocations counted.
    pub fn counted(&self, pass: &JobPass<'_, '_>) -> Self {
        let mut counted = self.clone();
        counted.count(pass);
        counted
    }

    /// A copy that has ended.
    pub(super) fn ended(&self, status: DeploymentStatus, description: &str) -> Self {
        let mut deployment = Deployment::clone(&self.deployment);
        deployment.status = status;
        deployment.description = String::from(description);
        Self { deployment: Arc::new(deployment), progress_by: BTreeMap::new(), judged: BTreeMap::new() }
    }
}
