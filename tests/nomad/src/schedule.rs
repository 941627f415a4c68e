//! The scheduler: places missing allocations, stops surplus ones, and replaces old ones at the pace of a deployment.
//!
//! In: jobs, nodes, allocations, and the time. Out: the same, changed as far as possible now. It is called after every
//! change and twice a second, so it decides by the present state, not by events. It has no canaries, preemption, spread
//! or affinities, and ignores all constraints except datacenters and drivers.

use std::collections::{BTreeMap, BTreeSet};

use herdlet_nomad::wire::{AllocId, Allocation, ClientStatus, DesiredStatus, Job, NodeId, NodeStatus};
use herdlet_rpc::codec::Value;
use tokio::time::Instant;

use crate::{
    jobs::{Group, Spec, Stored, index_of, is_in_place, value, with},
    place::PlacementRequest,
    state::{Deployment, Key, State, is_over},
};

/// Reasons for stopping an allocation, in the texts of stock servers.
const NOT_NEEDED: &str = "alloc not needed due to job update";
const UPDATED: &str = "alloc is being updated due to job update";
const MIGRATES: &str = "alloc is being migrated";
const RESCHEDULED: &str = "alloc was rescheduled because it failed";
const RECONNECTED: &str = "alloc not needed due to disconnected client reconnect";
const LOST: &str = "alloc is lost since its node is down";

impl State {
    /// Submits a job, as `nomad job run` does. Submitting the same job again changes nothing.
    ///
    /// # Errors
    /// When it is not a job.
    pub fn submit(&mut self, job: &(impl serde::Serialize + ?Sized)) -> Result<Key, String> {
        let job = value(job)?;
        let spec = Spec::of(&job).map_err(|error| format!("failed to {error}"))?;
        if spec.id.is_empty() || spec.task_groups.is_empty() {
            return Err("missing job ID or task groups".to_owned());
        }
        let key = (spec.namespace.clone(), spec.id.clone());
        let known = self.jobs.get(&key);
        if known.is_some_and(|known| !known.is_stopped && known.spec_value() == spec_value(&job)) {
            return Ok(key);
        }
        let version = known.map_or(0, |known| known.version + 1);
        let before = known.map(|known| known.job.value().clone());
        let index = self.next();
        let fields = [
            ("Namespace", Value::Text(spec.namespace.clone())),
            ("Type", Value::Text(spec.kind.clone())),
            ("Version", Value::Uint(version)),
            ("JobModifyIndex", Value::Uint(index)),
            ("ModifyIndex", Value::Uint(index)),
            ("CreateIndex", Value::Uint(index)),
        ];
        let job = fields.into_iter().fold(job, |job, (name, value)| with(job, name, value));
        let deploys =
            spec.kind == "service" && spec.task_groups.iter().any(|group| group.max_parallel().is_some());
        if deploys {
            let id = format!("{index:08x}-0000-4000-8002-000000000000");
            self.deployments.insert(key.clone(), Deployment { id, version, status: "running".to_owned() });
        } else {
            self.deployments.remove(&key);
        }
        self.jobs
            .insert(key.clone(), Stored { job: Job::new(job), spec, version, is_stopped: false, before });
        Ok(key)
    }

    /// Stops a job. With `purge` it is removed after its allocations have been told to stop.
    pub fn stop_job(&mut self, key: &Key, purge: bool) {
        self.next();
        if let Some(job) = self.jobs.get_mut(key) {
            job.is_stopped = true;
        }
        self.deployments.remove(key);
        if purge {
            for id in self.running(key, |_| true) {
                self.stop(&id, NOT_NEEDED);
            }
            self.jobs.remove(key);
        }
    }

    /// Makes all decisions that are possible now.
    pub fn evaluate(&mut self, now: Instant) {
        if !self.unknown_since.is_empty() {
            self.lose_overdue(now);
        }
        let keys: Vec<_> = self.jobs.keys().cloned().collect();
        for key in keys {
            let Some(job) = self.jobs.get(&key).cloned() else { continue };
            for group in &job.spec.task_groups {
                if job.spec.kind.starts_with("sys") {
                    self.everywhere(&key, &job, group);
                } else {
                    self.counted(&key, &job, group, now);
                }
            }
            self.judge(&key, &job);
        }
        self.end_drains();
    }

    /// The job's wanted allocations for which `is_so` holds.
    fn running(&self, key: &Key, is_so: impl Fn(&Allocation) -> bool) -> Vec<AllocId> {
        self.desired_allocs(key).filter(|alloc| is_so(alloc)).map(|alloc| alloc.id.clone()).collect()
    }

    pub(crate) fn stop(&mut self, id: &AllocId, why: &str) {
        self.change(id, |alloc| {
            alloc.desired_status = DesiredStatus::Stop;
            why.clone_into(&mut alloc.desired_description);
        });
    }

    /// Reconciles a service or batch group with its count.
    fn counted(&mut self, key: &Key, job: &Stored, group: &Group, now: Instant) {
        let count = if job.is_stopped { 0 } else { group.count() };
        let of_group = |alloc: &Allocation| alloc.task_group == group.name;
        for id in self.running(key, |alloc| of_group(alloc) && index_of(alloc) >= count && !is_over(alloc)) {
            self.stop(&id, NOT_NEEDED);
        }
        self.settle(key, group);
        self.renew(key, job, group);
        let mut taken: BTreeSet<usize> = BTreeSet::new();
        for id in self.running(key, |alloc| of_group(alloc) && alloc.next_allocation.is_empty()) {
            let Some(alloc) = self.allocs.get(&id).cloned() else { continue };
            let index = index_of(&alloc);
            let is_draining = self.nodes.get(&alloc.node_id).is_some_and(|n| n.node.drain_strategy.is_some());
            let replaces = match &alloc.client_status {
                ClientStatus::Complete => job.spec.kind == "service",
                ClientStatus::Failed => self.is_due(&alloc, job, group, now),
                ClientStatus::Lost => true,
                ClientStatus::Unknown => group.is_replaced(),
                ClientStatus::Unsaid
                | ClientStatus::Pending
                | ClientStatus::Running
                | ClientStatus::Other(_) => is_draining,
            };
            if !replaces || index >= count {
                taken.insert(index);
                continue;
            }
            match &alloc.client_status {
                ClientStatus::Unknown => {}
                ClientStatus::Failed => self.stop(&id, RESCHEDULED),
                ClientStatus::Lost => self.stop(&id, LOST),
                ClientStatus::Complete => self.stop(&id, NOT_NEEDED),
                ClientStatus::Unsaid
                | ClientStatus::Pending
                | ClientStatus::Running
                | ClientStatus::Other(_) => {
                    self.change(&id, |alloc| alloc.desired_transition.migrate = Some(true));
                    self.stop(&id, MIGRATES);
                }
            }
            let wanted = PlacementRequest { index, previous: Some(id), ..self.new_one(key, job) };
            if self.place_one(job, group, wanted).is_some() {
                taken.insert(index);
            }
        }
        // A replacement takes the index of the allocation that it replaces.
        for id in self.running(key, |alloc| of_group(alloc) && !is_over(alloc)) {
            taken.extend(self.allocs.get(&id).map(index_of));
        }
        for index in (0..count).filter(|index| !taken.contains(index)) {
            let previous = self.last_of(key, group, index);
            let wanted = PlacementRequest { index, previous, ..self.new_one(key, job) };
            if self.place_one(job, group, wanted).is_none() {
                break;
            }
        }
    }

    fn new_one(&self, key: &Key, job: &Stored) -> PlacementRequest {
        let deployment = self.deployments.get(key);
        let deployment = deployment.filter(|it| it.version == job.version && it.status == "running");
        PlacementRequest {
            deployment: deployment.map(|it| it.id.clone()).unwrap_or_default(),
            ..PlacementRequest::default()
        }
    }

    /// The last allocation with this index, if nothing has replaced it.
    fn last_of(&self, key: &Key, group: &Group, index: usize) -> Option<AllocId> {
        let is_of = |alloc: &&Allocation| {
            alloc.job_id == key.1 && alloc.namespace == key.0 && alloc.task_group == group.name
        };
        let all = self.allocs.values().filter(is_of).filter(|alloc| index_of(alloc) == index);
        let last = all.max_by_key(|alloc| alloc.create_index)?;
        last.next_allocation.is_empty().then(|| last.id.clone())
    }

    /// Whether a failed allocation must be replaced now.
    fn is_due(&self, alloc: &Allocation, job: &Stored, group: &Group, now: Instant) -> bool {
        let mut times = 0;
        let mut at = alloc;
        while let Some(previous) = self.allocs.get(&AllocId::from(&at.previous_allocation[..])) {
            (times, at) = (times + 1, previous);
        }
        let since = self.failed_at.get(&alloc.id).copied().unwrap_or(now);
        let after = group.reschedules_after(&job.spec.kind, times);
        after.is_some_and(|after| since + after <= now)
    }

    /// Keeps one of two allocations with the same index, after a node has reconnected.
    fn settle(&mut self, key: &Key, group: &Group) {
        let live = self.running(key, |alloc| {
            alloc.task_group == group.name && !is_over(alloc) && alloc.client_status != ClientStatus::Unknown
        });
        let mut by_index: BTreeMap<usize, Vec<&Allocation>> = BTreeMap::new();
        for alloc in live.iter().filter_map(|id| self.allocs.get(id)) {
            by_index.entry(index_of(alloc)).or_default().push(alloc);
        }
        let mut stops = Vec::new();
        for mut several in by_index.into_values().filter(|several| several.len() > 1) {
            several.sort_by_key(|alloc| alloc.create_index);
            let stays = if group.keeps_replacement() { several.len() - 1 } else { 0 };
            stops.extend(
                several.iter().enumerate().filter(|(at, _)| *at != stays).map(|(_, it)| it.id.clone()),
            );
        }
        for id in stops {
            self.stop(&id, RECONNECTED);
        }
    }

    /// Updates allocations of an older version in place, or stops them for a replacement, as many at a time as the job
    /// permits.
    fn renew(&mut self, key: &Key, job: &Stored, group: &Group) {
        let deployment = self.new_one(key, job).deployment;
        let live = self.running(key, |alloc| alloc.task_group == group.name && !is_over(alloc));
        let live: Vec<_> = live.iter().filter_map(|id| self.allocs.get(id)).cloned().collect();
        let is_old = |alloc: &&Allocation| alloc.job.version() != job.version;
        let is_healthy = |alloc: &Allocation| {
            alloc.deployment_status.as_ref().is_some_and(|status| status.healthy == Some(true))
        };
        let unproven = live.iter().filter(|alloc| !is_old(alloc) && !is_healthy(alloc)).count();
        let mut room = match group.max_parallel() {
            Some(max) if job.spec.kind == "service" => {
                // After a failed deployment nothing is changed any more.
                if deployment.is_empty() { 0 } else { max.saturating_sub(unproven) }
            }
            Some(_) | None => usize::MAX,
        };
        for alloc in live.iter().filter(is_old) {
            if is_in_place(&alloc.job, &job.job, &group.name) {
                self.change(&alloc.id, |alloc| {
                    alloc.job = job.job.clone();
                    if !deployment.is_empty() {
                        alloc.deployment_id.clone_from(&deployment);
                        alloc.deployment_status = None;
                    }
                });
            } else if room > 0 {
                room -= 1;
                self.stop(&alloc.id, UPDATED);
            }
        }
    }

    /// Reconciles a system job: one allocation on each node.
    fn everywhere(&mut self, key: &Key, job: &Stored, group: &Group) {
        let of_group = |alloc: &Allocation| alloc.task_group == group.name;
        let mut had: BTreeSet<NodeId> = BTreeSet::new();
        for id in self.running(key, of_group) {
            let Some(alloc) = self.allocs.get(&id).cloned() else { continue };
            let is_old = alloc.job.version() != job.version;
            let is_in_place = is_in_place(&alloc.job, &job.job, &group.name);
            let drains = self.drains_system(&alloc.node_id);
            if is_over(&alloc) {
                // Failed and complete allocations stay until the job changes.
                if !is_old {
                    had.insert(alloc.node_id);
                }
            } else if job.is_stopped || drains || (is_old && !is_in_place) {
                self.stop(&id, if drains { MIGRATES } else { UPDATED });
            } else {
                if is_old {
                    self.change(&id, |alloc| alloc.job = job.job.clone());
                }
                had.insert(alloc.node_id);
            }
        }
        if job.is_stopped {
            return;
        }
        let feasible = self.feasible(&job.spec, group).filter(|node| self.has_room(node, group));
        let nodes: Vec<_> = feasible.map(|node| node.id.clone()).filter(|id| !had.contains(id)).collect();
        for node in nodes {
            self.place_one(job, group, PlacementRequest { node: Some(node), ..self.new_one(key, job) });
        }
    }

    /// Whether a node's drain has reached system jobs, that is, all other allocations have ended.
    fn drains_system(&self, node: &NodeId) -> bool {
        let drain = self.nodes.get(node).and_then(|stored| stored.node.drain_strategy.as_ref());
        drain.is_some_and(|drain| !drain.ignore_system_jobs)
            && self
                .of(node)
                .all(|alloc| alloc.client_status.is_terminal() || alloc.job.kind().starts_with("sys"))
    }

    fn end_drains(&mut self) {
        let is_empty = |id: &NodeId, system: bool| {
            self.of(id).all(|alloc| {
                alloc.client_status.is_terminal() || (system && alloc.job.kind().starts_with("sys"))
            })
        };
        let ended: Vec<_> = self
            .draining
            .iter()
            .filter(|id| {
                let drain = self.nodes.get(*id).and_then(|stored| stored.node.drain_strategy.as_ref());
                drain.is_none_or(|drain| is_empty(id, drain.ignore_system_jobs))
            })
            .cloned()
            .collect();
        for id in ended {
            let index = self.next();
            self.draining.remove(&id);
            if let Some(stored) = self.nodes.get_mut(&id) {
                stored.node.drain_strategy = None;
                stored.node.modify_index = index;
            }
        }
    }

    /// Updates the status of a deployment.
    fn judge(&mut self, key: &Key, job: &Stored) {
        let Some(deployment) = self.deployments.get(key).filter(|it| it.status == "running").cloned() else {
            return;
        };
        let of_it = self.running(key, |alloc| alloc.deployment_id == deployment.id);
        let health = |id: &AllocId| self.allocs.get(id)?.deployment_status.as_ref()?.healthy;
        let (mut healthy, mut failed) = (0, false);
        for id in &of_it {
            match health(id) {
                Some(true) => healthy += 1,
                Some(false) => failed = true,
                None => {}
            }
        }
        let wanted: usize = job.spec.task_groups.iter().map(Group::count).sum();
        let status = match (failed, healthy >= wanted) {
            (true, _) => "failed",
            (false, true) => "successful",
            (false, false) => return,
        };
        self.next();
        if let Some(deployment) = self.deployments.get_mut(key) {
            status.clone_into(&mut deployment.status);
        }
        let reverts = |group: &Group| group.update.as_ref().is_some_and(|update| update.auto_revert);
        if failed
            && let Some(before) = &job.before
            && job.spec.task_groups.iter().any(reverts)
        {
            // It was accepted as a job before, so this can't fail.
            let _ = self.submit(before);
        }
    }

    /// Allocations whose node lost contact for longer than their job outlives are lost.
    fn lose_overdue(&mut self, now: Instant) {
        let is_late = |alloc: &&Allocation| {
            let since = self.unknown_since.get(&alloc.id);
            alloc.client_status == ClientStatus::Unknown
                && since.is_some_and(|(since, after)| *since + *after <= now)
        };
        let late: Vec<_> = self
            .allocs
            .values()
            .filter(is_late)
            .map(|alloc| (alloc.id.clone(), alloc.node_id.clone()))
            .collect();
        for (id, node) in late {
            self.unknown_since.remove(&id);
            self.change(&id, |alloc| {
                alloc.client_status = ClientStatus::Lost;
                alloc.desired_status = DesiredStatus::Stop;
                LOST.clone_into(&mut alloc.desired_description);
            });
            let is_left = self.of(&node).any(|alloc| alloc.client_status == ClientStatus::Unknown);
            if let Some(stored) = self.nodes.get_mut(&node)
                && stored.node.status == NodeStatus::Disconnected
                && !is_left
            {
                stored.node.status = NodeStatus::Down;
            }
        }
    }
}

impl Stored {
    fn spec_value(&self) -> Vec<(Value, Value)> {
        spec_value(self.job.value())
    }
}

/// A job as submitted: without the fields that servers add, and sorted.
fn spec_value(job: &Value) -> Vec<(Value, Value)> {
    let added = ["Namespace", "Type", "Version", "JobModifyIndex", "ModifyIndex", "CreateIndex"];
    let Value::Map(entries) = job else { return Vec::new() };
    let mut entries: Vec<_> = entries
        .iter()
        .filter(|(key, _)| key.as_text().is_none_or(|key| !added.contains(&key)))
        .cloned()
        .collect();
    entries.sort_by(|one, other| one.0.as_text().cmp(&other.0.as_text()));
    entries
}
