//! The agent's views, updated by its stream of changes.

use std::collections::BTreeMap;

use herdlet_api_types::{
    AllocId, JobKey,
    api::Change,
    view::{AllocView, JobView, VolumeView},
};
use std::sync::Arc;

/// All views received so far.
#[derive(Debug, Default)]
pub(super) struct Shown {
    pub(super) jobs: BTreeMap<JobKey, Arc<JobView>>,
    pub(super) allocs: BTreeMap<AllocId, Arc<AllocView>>,
    pub(super) volumes: BTreeMap<String, Arc<VolumeView>>,
    /// The last complete commit.
    pub(super) index: u64,
}

/// What a change completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChangeStep {
    /// A commit: the views are consistent.
    Commit,
    /// A part of a commit.
    Part,
}

impl Shown {
    pub(super) fn apply(&mut self, change: Change) -> ChangeStep {
        match change {
            Change::Reset => *self = Self::default(),
            Change::Job(view) => {
                self.jobs.insert(view.key.clone(), view);
            }
            Change::JobGone(key) => {
                self.jobs.remove(&key);
            }
            Change::Alloc(view) => {
                self.allocs.insert(view.spec.id, view);
            }
            Change::AllocGone(id) => {
                self.allocs.remove(&id);
            }
            Change::Volume(view) => {
                self.volumes.insert(view.spec.name.clone(), view);
            }
            Change::VolumeGone(name) => {
                self.volumes.remove(&name);
            }
            Change::Index(index) => {
                self.index = index;
                return ChangeStep::Commit;
            }
        }
        ChangeStep::Part
    }

    /// The allocations of a job, by group, index and age.
    pub(super) fn allocs_of(&self, key: &JobKey) -> Vec<&AllocView> {
        let mut allocs: Vec<&AllocView> =
            self.allocs.values().map(AsRef::as_ref).filter(|view| view.spec.job_key == *key).collect();
        allocs.sort_by_key(|view| (view.spec.group.clone(), view.spec.index, view.spec.create_index));
        allocs
    }
}
