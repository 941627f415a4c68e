//! What is remembered of one deployment, and how it is counted.
//!
//! In: allocations made for it or taken over, what became of them. Out: its counters and when one more must be healthy. It decides
//! nothing.

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
    job::placed::Placed,
    time::{Deadline, Now},
};

/// What is remembered of a deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeploymentState {
    /// As it is shown.
    pub deployment: Arc<Deployment>,
    /// By group, when one more allocation must be healthy.
    pub progress_by: BTreeMap<String, Deadline>,
    /// Allocations that have their verdict, and which: each counts once, and once more when it fails after all.
    pub judged: BTreeMap<AllocId, bool>,
}

impl DeploymentState {
    /// An allocation is made for it, or taken over. The first one starts the clock.
    pub fn place(&mut self, now: Now, group: &str, alloc: AllocId, canary: bool) {
        let deployment = Arc::make_mut(&mut self.deployment);
        let Some(known) = deployment.groups.get_mut(group) else { return };
        known.placed_allocs = known.placed_allocs.saturating_add(1);
        if canary {
            known.placed_canaries.push(alloc);
        }
        if !known.progress_deadline.is_zero() && known.require_progress_by.is_none() {
            self.extend(now, group);
        }
    }

    /// The group's canaries have taken their places; what follows has all of its time.
    pub fn promote(&mut self, now: Now, group: &str) {
        let deployment = Arc::make_mut(&mut self.deployment);
        let Some(known) = deployment.groups.get_mut(group) else { return };
        known.promoted = true;
        deployment.description = running(deployment).to_string();
        self.extend(now, group);
    }

    /// Its group of that name, where it has one.
    pub fn group(&self, name: &str) -> Option<&DeploymentGroup> {
        self.deployment.groups.get(name)
    }

    /// Some group's time is over.
    pub fn is_due(&self, now: Now) -> bool {
        self.progress_by.values().any(|by| by.is_due(now))
    }

    /// In this group of it nothing more has to become healthy before somebody decides on its canaries, or at all. What was taken
    /// over from before does not stand in for a canary.
    pub(super) fn is_content(&self, group: &DeploymentGroup) -> bool {
        if !group.is_canarying() {
            return group.healthy_allocs >= group.desired_total;
        }
        let healthy = group.placed_canaries.iter().filter(|id| self.judged.get(id) == Some(&true));
        healthy.count() >= group.desired_canaries as usize
    }

    /// When it has to be looked at again by itself.
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

    /// From now on one more allocation of the group has the whole of its deadline to become healthy.
    fn extend(&mut self, now: Now, group: &str) {
        let Some(known) = Arc::make_mut(&mut self.deployment).groups.get_mut(group) else { return };
        if known.progress_deadline.is_zero() {
            return;
        }
        let by = Deadline::after(now, known.progress_deadline);
        known.require_progress_by = Some(by.wall);
        self.progress_by.insert(String::from(group), by);
    }

    /// Counts what its allocations have come to.
    fn count<'a>(&mut self, now: Now, allocs: &[AllocId], find: &dyn Fn(AllocId) -> Option<Placed<'a>>) {
        self.drop_stopped(now, find);
        let id = self.deployment.id;
        let members = allocs.iter().filter_map(|alloc| Some((*alloc, find(*alloc)?)));
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
            self.extend(now, &name);
        }
        // Of what is forgotten nothing more is heard.
        if self.judged.len() > allocs.len() {
            self.judged.retain(|alloc, _| allocs.contains(alloc));
        }
    }

    /// What was stopped proves nothing any more: another one takes its place, and has the whole of the deadline for it.
    fn drop_stopped<'a>(&mut self, now: Now, find: &dyn Fn(AllocId) -> Option<Placed<'a>>) {
        let runs = |id: &AllocId| find(*id).is_none_or(|placed| placed.desired == Desired::Run);
        let lacks = |group: &DeploymentGroup| group.is_canarying() && !group.placed_canaries.iter().all(runs);
        if self.deployment.groups.values().any(lacks) {
            let groups = Arc::make_mut(&mut self.deployment).groups.values_mut();
            groups.filter(|group| group.is_canarying()).for_each(|group| group.placed_canaries.retain(runs));
        }
        let stopped: Vec<AllocId> = self.judged.keys().filter(|id| !runs(id)).copied().collect();
        for id in stopped {
            let was_healthy = self.judged.remove(&id) == Some(true);
            let Some(placed) = find(id).filter(|_| was_healthy) else { continue };
            if let Some(group) = Arc::make_mut(&mut self.deployment).groups.get_mut(placed.group) {
                group.healthy_allocs = group.healthy_allocs.saturating_sub(1);
            }
            self.extend(now, placed.group);
        }
    }

    /// The same, with all that its allocations have come to.
    pub fn counted<'a>(
        &self,
        now: Now,
        allocs: &[AllocId],
        find: &dyn Fn(AllocId) -> Option<Placed<'a>>,
    ) -> Self {
        let mut counted = self.clone();
        counted.count(now, allocs, find);
        counted
    }

    /// The same, ended.
    pub(super) fn ended(&self, status: DeploymentStatus, description: &str) -> Self {
        let mut deployment = Deployment::clone(&self.deployment);
        deployment.status = status;
        deployment.description = String::from(description);
        Self { deployment: Arc::new(deployment), progress_by: BTreeMap::new(), judged: BTreeMap::new() }
    }
}
