//! The least that runs allocations: no drivers, no directories. What is to run, runs; what is to stop, stops.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use herdlet_nomad::{
    seam::{Desired, Factory, Runner},
    session::Reports,
    wire::{AllocId, AllocReport, Allocation, ClientStatus, RunState, TaskState},
};

/// What a test sees of it, also after the session's end: the next session begins with it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bench(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// All that is here, as it was handed over last.
    pub(crate) allocs: BTreeMap<AllocId, Allocation>,
    /// Indexes that were handed over.
    pub(crate) indexes: Vec<u64>,
    /// All that has ever been removed.
    pub(crate) removed: Vec<AllocId>,
    /// All that could not be read, and why.
    pub(crate) unreadable: Vec<(AllocId, String)>,
    /// How often everything was to be reported again.
    pub(crate) again: usize,
}

pub(crate) struct Minimal {
    bench: Bench,
    reports: Reports,
}

impl Bench {
    pub(crate) fn see<T>(&self, look: impl FnOnce(&mut Seen) -> T) -> T {
        look(&mut self.0.lock().unwrap())
    }

    pub(crate) fn ids(&self) -> Vec<AllocId> {
        self.see(|seen| seen.allocs.keys().cloned().collect())
    }
}

impl Factory for Bench {
    type Runner = Minimal;

    fn start(self, reports: Reports) -> Minimal {
        Minimal { bench: self, reports }
    }
}

impl Runner for Minimal {
    fn known(&self) -> Vec<(AllocId, u64)> {
        let known = |(id, alloc): (&AllocId, &Allocation)| (id.clone(), alloc.alloc_modify_index);
        self.bench.see(|seen| seen.allocs.iter().map(known).collect())
    }

    async fn apply(&self, desired: Desired) {
        self.bench.see(|seen| {
            seen.indexes.push(desired.index);
            for id in desired.removed {
                seen.allocs.remove(&id);
                seen.removed.push(id);
            }
            for (id, why) in desired.unreadable {
                if !seen.allocs.contains_key(&id) {
                    let client_status = ClientStatus::Failed;
                    let client_description = why.clone();
                    self.reports.report(AllocReport {
                        id: id.clone(),
                        client_status,
                        client_description,
                        ..AllocReport::default()
                    });
                }
                seen.unreadable.push((id, why));
            }
            for changed in desired.changed {
                self.reports.report(state_of(&changed.alloc));
                seen.allocs.insert(changed.alloc.id.clone(), changed.alloc);
            }
        });
    }

    fn report_again(&self) {
        self.bench.see(|seen| {
            seen.again += 1;
            seen.allocs.values().for_each(|alloc| self.reports.report(state_of(alloc)));
        });
    }
}

pub(crate) fn state_of(alloc: &Allocation) -> AllocReport {
    let is_over = alloc.desired_status.is_terminal();
    let (client_status, state) = if is_over {
        (ClientStatus::Complete, RunState::Dead)
    } else {
        (ClientStatus::Running, RunState::Running)
    };
    let tasks = alloc.job.tasks(&alloc.task_group);
    let task = |name: &str| (name.to_owned(), TaskState { state: state.clone(), ..TaskState::default() });
    AllocReport {
        id: alloc.id.clone(),
        client_status,
        task_states: tasks.map(task).collect(),
        ..AllocReport::default()
    }
}
