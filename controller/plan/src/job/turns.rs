//! Whose turn it is to restart because templates have changed: at most `max_parallel` allocations of a group at a time.
//!
//! In: which allocations restart or are not healthy, and which wait. Out: whom an allocation waits for, and which to
//! plan again. Kept up to date by each change, so that no plan has to visit the others of its group.

use std_alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
};

use herdlet_api_types::{AllocId, JobKey, alloc::Allocation};

use crate::spec::AllocSpec;

/// The groups in which an allocation restarts or waits.
#[derive(Debug, Default)]
pub(crate) struct RestartTurns(BTreeMap<(JobKey, String), GroupTurns>);

#[derive(Debug, Default)]
struct GroupTurns {
    /// The allocations that restart or are not healthy, with their names.
    unsettled: BTreeMap<AllocId, String>,
    waiting: BTreeSet<AllocId>,
}

impl RestartTurns {
    /// The first allocation that this one waits for, by name; `None` if it may restart.
    pub(crate) fn blocker(&self, spec: &AllocSpec) -> Option<&String> {
        let most = usize::try_from(spec.policy().parallel_restarts?).unwrap_or(usize::MAX);
        let group = self.0.get(&key(spec))?;
        let others = || group.unsettled.iter().filter(|(other, _)| **other != spec.id);
        others().next().filter(|_| others().count() >= most).map(|(_, name)| name)
    }

    /// The allocation waits for its turn.
    pub(crate) fn wait(&mut self, spec: &AllocSpec) {
        self.0.entry(key(spec)).or_default().waiting.insert(spec.id);
    }

    /// The allocation restarts, or is not healthy.
    pub(crate) fn hold(&mut self, spec: &AllocSpec) {
        self.0.entry(key(spec)).or_default().unsettled.insert(spec.id, spec.name());
    }

    /// The allocation is healthy, or gone. Returns those that have waited.
    pub(crate) fn release(&mut self, spec: &AllocSpec) -> BTreeSet<AllocId> {
        let key = key(spec);
        let Some(group) = self.0.get_mut(&key) else { return BTreeSet::new() };
        group.unsettled.remove(&spec.id);
        let waiting = core::mem::take(&mut group.waiting);
        if group.unsettled.is_empty() {
            self.0.remove(&key);
        }
        waiting
    }
}

fn key(spec: &Allocation) -> (JobKey, String) {
    (spec.job_key.clone(), spec.group.clone())
}
