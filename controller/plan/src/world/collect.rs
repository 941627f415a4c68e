//! Garbage collection: removes what has ended and nothing depends on.
//!
//! In: jobs and allocations chosen by the caller, by age, number or disk space. Out: jobs that are over are removed
//! with all their allocations; an ended allocation loses its directory and, unless it is the newest in its slot, its
//! state. Jobs and allocations that are not over are left alone: the caller may have seen an older state.

use std_alloc::{string::String, vec::Vec};

use herdlet_api_types::{AllocId, JobKey, alloc::Desired};

use crate::{
    event::Reply,
    job::{placed::has_ended, rollout},
    op::Key,
    policy::Owner,
    spec::AllocSpec,
    time::Now,
    turn::OpenTurn,
    world::{JobEntry, World, allocs::AllocEntry},
};

/// Reason to remove a collected allocation.
const COLLECTED: &str = "collected";

impl World {
    /// Collects the given jobs and allocations that are over. The reply lists them.
    pub(super) fn collect(
        &mut self,
        open: &mut OpenTurn<'_>,
        jobs: Vec<JobKey>,
        allocs: Vec<AllocId>,
    ) -> Reply {
        let jobs: Vec<JobKey> = jobs.into_iter().filter(|key| self.is_over(open.now, key)).collect();
        for key in &jobs {
            self.delete_job(open, key);
            let of_job: Vec<AllocId> = self.allocs.of_job(key).map(|(id, _)| id).collect();
            for id in of_job {
                self.want_of(open, id, Desired::Gone, String::from(COLLECTED));
            }
        }
        let mut collected = Vec::new();
        for id in allocs {
            if self.collect_alloc(open, id) {
                collected.push(id);
            }
        }
        if !collected.is_empty() {
            self.meta.index += 1;
        }
        Reply::Collected { index: self.meta.index, jobs, allocs: collected }
    }

    /// Whether the job has done all that it ever will. A job that runs forever is not over before it is stopped, nor is
    /// a job that makes children.
    fn is_over(&self, now: Now, key: &JobKey) -> bool {
        let Some(entry) = self.jobs.get(key) else { return false };
        let is_sound = entry.quarantine.is_none() && !entry.stale && !entry.state.deleting;
        let ends = entry.current.ends();
        is_sound
            && ends
            && self.allocs.of_job(key).all(|(_, alloc)| can_be_collected(alloc))
            && self.has_finished(now, key, entry)
    }

    /// Whether nothing of the job runs or will run. Depends only on stored state, so that it is known right after a
    /// start.
    pub(super) fn has_finished(&self, now: Now, key: &JobKey, job: &JobEntry) -> bool {
        if !self.allocs.of_job(key).all(|(_, alloc)| has_ended(&alloc.state.durable)) {
            return false;
        }
        if job.state.deleting || job.quarantine.is_some() {
            return true;
        }
        // Allocations that may not run here now, or wait for capacity, are still to come.
        self.allocs.next_retry(key, now).is_none()
            && job.read(now, &self.allocs, |pass| rollout::plan(pass, &|_| true)).is_empty()
    }

    fn collect_alloc(&mut self, open: &mut OpenTurn<'_>, id: AllocId) -> bool {
        let Some(entry) = self.allocs.get(id) else { return false };
        if !can_be_collected(entry) || entry.state.durable.collected || entry.spec.desired == Desired::Gone {
            return false;
        }
        if !self.fills_a_slot(&entry.spec) {
            return self.want_of(open, id, Desired::Gone, String::from(COLLECTED));
        }
        let Some(entry) = self.allocs.get_mut(id) else { return false };
        entry.state.durable.collected = true;
        entry.changed = true;
        open.dirty.insert(Key::Alloc(id))
    }

    /// Whether the job would create another allocation in its place if it were removed.
    fn fills_a_slot(&self, spec: &AllocSpec) -> bool {
        if spec.policy().owner == Owner::Servers {
            // Its servers continue to name it.
            return true;
        }
        let Some(job) = self.jobs.get(&spec.job_key) else { return false };
        let Some(group) = job.current.group(&spec.group) else { return false };
        let at = usize::try_from(spec.index).unwrap_or(usize::MAX);
        let slot = job.state.slots.get(&spec.group).and_then(|slots| slots.get(at));
        let deployment = job.state.deployment().filter(|known| known.deployment.is_running());
        let is_canary =
            spec.deployment.is_some_and(|of| deployment.is_some_and(|known| known.deployment.id == of.id));
        slot.is_some_and(|slot| {
            (slot.canary == Some(spec.id) && is_canary && !job.current.stop)
                || (slot.alloc == Some(spec.id) && spec.index < job.current.desired_count(group))
        })
    }
}

fn can_be_collected(entry: &AllocEntry) -> bool {
    has_ended(&entry.state.durable) && entry.state.durable.quarantine.is_none()
}
