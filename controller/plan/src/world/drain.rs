//! Eligibility and drains of the node in the world: requests, what is held back, and the end of a drain.
//!
//! In: requests, ends of allocations. Out: jobs to plan again, the stored state, its view. Which allocations a drain stops next is
//! decided in `job/drain`.

use std_alloc::{collections::BTreeMap, string::String, sync::Arc, vec::Vec};

use herdlet_api_types::{
    JobKey,
    alloc::Desired,
    view::{DrainStatus, LastDrain},
};

use crate::{
    event::{Refusal, Reply},
    job::{drain, placed::has_ended, rollout::Step},
    node::{DRAINING, Drain, DrainLimit, DrainRequest},
    op::Key,
    policy::Owner,
    time::Now,
    turn::{OpenTurn, Turn, View},
    world::World,
};

impl World {
    /// Sets whether the node takes new allocations.
    pub(super) fn set_eligibility(
        &mut self,
        open: &mut OpenTurn<'_>,
        eligible: bool,
    ) -> Result<Reply, Refusal> {
        let node = &self.meta.node;
        if eligible && node.drain.is_some() {
            return Err(Refusal::Conflict(String::from(DRAINING)));
        }
        if node.ineligible == eligible {
            self.meta.node.ineligible = !eligible;
            self.node_is_changed(open);
        }
        Ok(Reply::Accepted { index: self.meta.index })
    }

    /// Begins a drain, changes one, or ends it before it is complete.
    pub(super) fn set_drain(
        &mut self,
        open: &mut OpenTurn<'_>,
        request: Option<DrainRequest>,
        mark_eligible: bool,
        meta: BTreeMap<String, String>,
    ) -> Reply {
        let now = open.now;
        let node = &mut self.meta.node;
        let started_at = node.drain.as_ref().map_or(now.wall, |drain| drain.started_at);
        match request {
            Some(DrainRequest { deadline, ignore_system }) => {
                let until = DrainLimit::of(now, deadline);
                node.drain = Some(Drain { until, ignore_system, started_at });
                node.ineligible = true;
                node.last_drain =
                    Some(LastDrain { started_at, updated_at: now.wall, status: DrainStatus::Draining, meta });
            }
            None => {
                let was_draining = node.drain.take().is_some();
                if mark_eligible {
                    node.ineligible = false;
                }
                if let Some(last) = node.last_drain.as_mut().filter(|_| was_draining) {
                    last.status = DrainStatus::Canceled;
                    last.updated_at = now.wall;
                    last.meta.extend(meta);
                }
            }
        }
        self.node_is_changed(open);
        self.finish_drain(open);
        Reply::Accepted { index: self.meta.index }
    }

    /// The node has changed: all jobs are planned again.
    fn node_is_changed(&mut self, open: &mut OpenTurn<'_>) {
        self.meta.index += 1;
        self.meta.node.modify_index = self.meta.index;
        self.node_is_shown = false;
        for (key, entry) in &mut self.jobs {
            entry.stale = true;
            open.dirty.insert(Key::Job(key.clone()));
        }
    }

    /// Publishes the node if that was not done since its last change.
    pub(super) fn show_node(&mut self, turn: &mut Turn) {
        if !core::mem::replace(&mut self.node_is_shown, true) {
            turn.views.push(View::Node(Arc::new(self.meta.node.view())));
        }
    }

    /// Removes the steps that would place something on a node that takes no new allocations. Those in place continue.
    pub(super) fn hold_back(&mut self, key: &JobKey, steps: &mut Vec<Step>) {
        let Some(why) = self.meta.node.held() else { return };
        let Some(entry) = self.jobs.get_mut(key) else { return };
        steps.retain(|step| {
            let group = match step {
                Step::Create { group, .. } | Step::Canary { group, .. } => Some(group.as_str()),
                Step::Replace(alloc) => self.allocs.placement(*alloc).map(|placed| placed.group),
                Step::TakeOver(_)
                | Step::Follow { .. }
                | Step::Hold { .. }
                | Step::Want { .. }
                | Step::Forget => None,
            };
            if let Some(group) = group {
                entry.hold(group, why.clone().of(&std_alloc::format!("{}.{group}:", key.id)));
            }
            group.is_none()
        });
    }

    /// The steps of a drain for one job.
    pub(super) fn drain_steps(&self, now: Now, key: &JobKey) -> Vec<Step> {
        let (Some(drain), Some(entry)) = (&self.meta.node.drain, self.jobs.get(key)) else {
            return Vec::new();
        };
        let is_last = || self.live_jobs().all(|job| job.kind.is_on_each_machine());
        entry.read(now, &self.allocs, |pass| drain::plan(pass, drain, is_last))
    }

    /// When the drain's limit is reached, if that is ahead.
    pub(super) fn drain_wake_ns(&self, now: Now) -> Option<u64> {
        self.meta.node.drain.as_ref()?.until.wake_ns(now)
    }

    /// Whether the drain's limit was reached while the job still has allocations that should run.
    pub(super) fn drain_is_due(&self, now: Now, key: &JobKey) -> bool {
        let is_due = self.meta.node.drain.as_ref().is_some_and(|drain| drain.until.is_due(now));
        is_due && self.allocs.of_job(key).any(|(_, alloc)| alloc.spec.desired == Desired::Run)
    }

    /// An allocation has ended: system jobs may be next, or the drain is complete.
    pub(super) fn follow_drain(&mut self, open: &mut OpenTurn<'_>) {
        if self.meta.node.drain.is_none() {
            return;
        }
        let of_system = self.jobs.iter().filter(|(_, entry)| entry.current.kind.is_on_each_machine());
        let keys: Vec<JobKey> = of_system.map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.mark_stale(open, key);
        }
        self.finish_drain(open);
    }

    /// Ends the drain once nothing is left that it stops.
    fn finish_drain(&mut self, open: &mut OpenTurn<'_>) {
        let Some(drain) = &self.meta.node.drain else { return };
        if self.live_jobs().any(|job| drain::concerns(drain, job)) {
            return;
        }
        let node = &mut self.meta.node;
        node.drain = None;
        if let Some(last) = &mut node.last_drain {
            last.status = DrainStatus::Complete;
            last.updated_at = open.now.wall;
        }
        self.node_is_changed(open);
    }

    /// The job of each allocation of this machine's jobs that has not ended.
    fn live_jobs(&self) -> impl Iterator<Item = &herdlet_api_types::job::Job> {
        let own = self.allocs.iter().filter(|(_, alloc)| alloc.spec.policy().owner == Owner::Job);
        own.filter(|(_, alloc)| !has_ended(&alloc.state.durable)).map(|(_, alloc)| &*alloc.spec.job)
    }
}
