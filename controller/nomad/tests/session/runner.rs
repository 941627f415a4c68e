//! A minimal runner: no drivers, no directories. Allocations run or stop as servers ask.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use herdlet_nomad::{
    reports::Reports,
    seam::{Desired, DesiredAlloc, Factory, Runner},
    wire::{AllocId, AllocReport, Allocation, ClientStatus, RunState, TaskState, alloc::DeploymentStatus},
};

use crate::world::Living;

/// The runner's state as tests see it. It outlives the session, and the next session starts with it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bench(Arc<Mutex<RunnerCalls>>);

#[derive(Debug, Default)]
pub(crate) struct RunnerCalls {
    /// All allocations, as last delivered.
    pub(crate) allocs: BTreeMap<AllocId, Allocation>,
    /// The delivered indexes.
    pub(crate) indexes: Vec<u64>,
    /// All allocations ever removed.
    pub(crate) removed: Vec<AllocId>,
    /// All unreadable allocations, and the reasons.
    pub(crate) unreadable: Vec<(AllocId, String)>,
    /// Number of starts per allocation.
    pub(crate) started: BTreeMap<AllocId, usize>,
    /// Allocations that have ended here, and their status. They never run again.
    pub(crate) ended: BTreeMap<AllocId, ClientStatus>,
    /// How often `report_again` was called.
    pub(crate) again: usize,
}

pub(crate) struct Minimal {
    bench: Bench,
    reports: Reports,
}

impl Bench {
    pub(crate) fn see<T>(&self, look: impl FnOnce(&mut RunnerCalls) -> T) -> T {
        look(&mut self.0.lock().unwrap())
    }

    pub(crate) fn ids(&self) -> Vec<AllocId> {
        self.see(|seen| seen.allocs.keys().cloned().collect())
    }
}

impl Living {
    /// The tasks of an allocation end by themselves.
    pub(crate) fn ends(&self, id: &AllocId, how: ClientStatus) {
        let report = self.bench.see(|seen| {
            seen.ended.entry(id.clone()).or_insert(how);
            seen.allocs.get(id).map(|alloc| seen.state_of(alloc))
        });
        report.into_iter().for_each(|report| self.reports.report(report));
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
            for DesiredAlloc { alloc, .. } in desired.changed {
                let (id, status) = (alloc.id.clone(), alloc.client_status.clone());
                if alloc.desired_status.is_terminal() {
                    seen.ended.entry(id.clone()).or_insert(ClientStatus::Complete);
                } else if status.is_terminal() {
                    seen.ended.entry(id.clone()).or_insert(status);
                } else if !seen.ended.contains_key(&id) {
                    seen.started.entry(id.clone()).or_insert(1);
                }
                self.reports.report(seen.state_of(&alloc));
                seen.allocs.insert(id, alloc);
            }
        });
    }

    fn report_again(&self) {
        self.bench.see(|seen| {
            seen.again += 1;
            seen.allocs.values().for_each(|alloc| self.reports.report(seen.state_of(alloc)));
        });
    }
}

impl RunnerCalls {
    /// An allocation's state: running and healthy until it ends.
    pub(crate) fn state_of(&self, alloc: &Allocation) -> AllocReport {
        let client_status = self.ended.get(&alloc.id).cloned().unwrap_or(ClientStatus::Running);
        let state = if client_status.is_terminal() { RunState::Dead } else { RunState::Running };
        let failed = client_status == ClientStatus::Failed;
        let tasks = alloc.job.tasks(&alloc.task_group);
        let task = |name: &str| {
            (name.to_owned(), TaskState { state: state.clone(), failed, ..TaskState::default() })
        };
        let healthy = DeploymentStatus { healthy: Some(!failed), ..DeploymentStatus::default() };
        AllocReport {
            id: alloc.id.clone(),
            client_status,
            task_states: tasks.map(task).collect(),
            deployment_status: (!alloc.deployment_id.is_empty()).then_some(healthy),
            ..AllocReport::default()
        }
    }
}
