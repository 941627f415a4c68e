//! The data of templates changes, and allocations restart in turns.
//!
//! In: the state of the simulation. Out: changes of the data with their events, or a violation: more allocations of a
//! group restart at a time than `max_parallel`.

use std::collections::BTreeSet;

use herdlet_api_types::{AllocId, JobKey, view::JobView};
use herdlet_plan::{
    event::Event,
    op::TaskPart,
    record::{RecordKey, RecordValue},
};

use super::Life;
use crate::sim::coverage::Kind;

/// Begins the message of an allocation that waits for others to restart.
const TURN: &str = "waits for its turn to restart";

impl Life {
    /// The data of one job's templates changes.
    pub(super) fn change_data(&mut self) {
        let jobs: Vec<JobKey> = self.jobs.keys().cloned().collect();
        if jobs.is_empty() {
            return;
        }
        let job = &jobs[self.rng.below(jobs.len() as u64) as usize];
        let value = self.rng.below(12);
        self.set_data(job, value);
    }

    fn set_data(&mut self, job: &JobKey, value: u64) {
        self.met.note(Kind::ChangedData);
        self.trace.note(self.now_ns, || format!("the data of {job} is {value}"));
        for (alloc, part) in self.machine.templates.change(job, value) {
            // Both are from one watch: the first is never late.
            self.see(Event::SourceChanging { alloc, part });
            self.post(Event::SourceChanged { alloc, part });
        }
    }

    /// All data can be read, and that of each job changes once more.
    pub(in crate::sim) fn complete_data(&mut self) {
        self.machine.templates.down_until = 0;
        self.machine.templates.is_complete = true;
        for job in self.jobs.keys().cloned().collect::<Vec<_>>() {
            let value = self.rng.below(12);
            self.set_data(&job, value);
        }
    }

    /// Whether a task keeps old data because another allocation of its group does not become healthy.
    pub(in crate::sim) fn waits_for_turn(&self, alloc: AllocId, index: u16) -> bool {
        let Some((spec, state)) = self.world.allocation(alloc) else { return false };
        let known = state.durable.tasks.get(usize::from(index));
        let owed = known.and_then(|known| known.owed.get(&TaskPart::Templates));
        owed.is_some_and(|owed| owed.action.is_restart()) && self.is_group_open(&spec.job_key)
    }

    /// Whether a job waits only because an allocation of it does not become healthy.
    pub(in crate::sim) fn is_turn_blocked(&self, job: &JobView) -> bool {
        job.convergence.message.contains(TURN) && self.is_group_open(&job.key)
    }

    /// Whether an allocation of the job is not healthy, or not judged.
    fn is_group_open(&self, job: &JobKey) -> bool {
        self.allocs.values().any(|view| {
            view.spec.job_key == *job && (view.healthy != Some(true) || view.verdict != Some(true))
        })
    }

    /// The allocations that restart in their turn, as stored.
    pub(super) fn restart_turns(&self) -> BTreeSet<AllocId> {
        let taking = |(key, value): (&RecordKey, &RecordValue)| match (key, value) {
            (RecordKey::AllocState(id), RecordValue::AllocState(state)) if state.takes_turn => Some(*id),
            (_, _) => None,
        };
        self.stored.iter().filter_map(taking).collect()
    }

    /// Checks that of each group at most `max_parallel` allocations restart. One that was not healthy does not wait: only
    /// those that still appear healthy are known to have been.
    pub(super) fn check_restart_turns(&self, before: &BTreeSet<AllocId>) -> Result<(), String> {
        let now = self.restart_turns();
        for id in now.difference(before) {
            let Some(view) = self.allocs.get(id).filter(|view| view.healthy == Some(true)) else { continue };
            let update = view.spec.group().and_then(|group| group.update.as_ref());
            let Some(most) = update.map(|update| update.max_parallel) else { continue };
            let is_with = |other: &&AllocId| {
                let other = self.allocs.get(*other);
                other.is_some_and(|other| {
                    other.spec.job_key == view.spec.job_key
                        && other.spec.group == view.spec.group
                        && other.spec.desired == herdlet_api_types::alloc::Desired::Run
                })
            };
            let count = now.intersection(before).filter(is_with).count();
            if count >= usize::try_from(most).unwrap_or(usize::MAX) {
                return Err(format!("{} restarts while {count} others do", view.spec.name()));
            }
        }
        Ok(())
    }
}
