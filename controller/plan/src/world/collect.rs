//! Garbage collection: what has ended is given up, where nothing depends on it any more.
//!
//! In: what somebody outside chose, by age, number or the disk's room. Out: jobs that are over are forgotten with all they have; of
//! an allocation that has ended the directory goes, and what is remembered of it too where it is not the newest in its slot. What
//! is not over, any more or yet, stays: whoever chose may have seen an older state.

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

/// Why of what was collected nothing is left.
const COLLECTED: &str = "collected";

impl World {
    /// Collects what of this is over, and says what that was.
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

    /// Whether the job has done all that it ever will. One that is to run for ever is never over
    /// before it is stopped, nor is one that makes children.
    fn is_over(&self, now: Now, key: &JobKey) -> bool {
        let Some(entry) = self.jobs.get(key) else { return false };
        let is_sound = entry.quarantine.is_none() && !entry.stale && !entry.state.deleting;
        let ends = entry.current.ends();
        is_sound
            && ends
            && self.allocs.of_job(key).all(|(_, alloc)| can_be_collected(alloc))
            && self.has_finished(now, key, entry)
    }

    /// Whether nothing of the job runs or will. Told by what is remembered, so that it is known at once after a start.
    pub(super) fn has_finished(&self, now: Now, key: &JobKey, job: &JobEntry) -> bool {
        if !self.allocs.of_job(key).all(|(_, alloc)| has_ended(&alloc.state.durable)) {
            return false;
        }
        if job.state.deleting || job.quarantine.is_some() {
            return true;
        }
        let allocs: Vec<AllocId> = self.allocs.of_job(key).map(|(id, _)| id).collect();
        let placed = |id| self.allocs.placed(id);
        // What may not run here now, or waits for room, is still to come.
        self.allocs.next_retry(key, now).is_none()
            && rollout::plan(now, &job.current, &job.state, &allocs, &placed, &|_| true).is_empty()
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

    /// Whether another would be made in its place, were it not remembered.
    fn fills_a_slot(&self, spec: &AllocSpec) -> bool {
        if spec.policy().owner == Owner::Servers {
            // Its servers go on naming it.
            return true;
        }
        let Some(job) = self.jobs.get(&spec.job_key) else { return false };
        let Some(group) = job.current.group(&spec.group) else { return false };
        let at = usize::try_from(spec.index).unwrap_or(usize::MAX);
        let slot = job.state.slots.get(&spec.group).and_then(|slots| slots.get(at));
        slot.is_some_and(|slot| {
            (slot.canary == Some(spec.id) && !job.current.stop)
                || (slot.alloc == Some(spec.id) && spec.index < job.current.wanted(group))
        })
    }
}

fn can_be_collected(entry: &AllocEntry) -> bool {
    has_ended(&entry.state.durable) && entry.state.durable.quarantine.is_none()
}
