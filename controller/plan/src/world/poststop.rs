//! Poststop tasks that run forever: only a request ends them.
//!
//! In: a request to end stopping allocations, repeated or forced. Out: marked allocations, whose plan ends these tasks
//! within their `kill_timeout`.

use std_alloc::vec::Vec;

use herdlet_api_types::{AllocId, alloc::Desired, job::Lifecycle};

use crate::{
    event::{Ending, Reply},
    job::placed::has_ended,
    op::Key,
    state::TaskState,
    turn::OpenTurn,
    world::{JobEntry, World, allocs::AllocEntry},
};

/// Which poststop tasks a request ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PoststopScope {
    /// Those that have begun: the request was repeated.
    Begun,
    /// All, and none is started any more: the request was explicit.
    All,
}

impl World {
    /// Ends poststop tasks of stopping allocations.
    pub(super) fn end_poststop(
        &mut self,
        open: &mut OpenTurn<'_>,
        of: &Ending,
        scope: PoststopScope,
    ) -> Reply {
        let of_job = |key| self.allocs.of_job(key).map(|(id, _)| id).collect();
        let (ids, is_stopped): (Vec<AllocId>, bool) = match of {
            Ending::Job(key) => (of_job(key), self.jobs.get(key).is_some_and(JobEntry::is_stopped)),
            Ending::Alloc(id) => (Vec::from([*id]), false),
        };
        let concerns = |entry: &AllocEntry| {
            let durable = &entry.state.durable;
            let ends = is_stopped || entry.spec.desired != Desired::Run;
            let is_meant = scope == PoststopScope::All || has_begun_poststop(entry);
            ends && is_meant && !durable.no_poststop && !has_ended(durable)
        };
        let mut index = self.meta.index;
        for id in ids {
            if self.allocs.get(id).is_some_and(concerns) {
                self.write(open, id, |writer| writer.end_poststop());
                open.dirty.insert(Key::Alloc(id));
                index = self.meta.index + 1;
            }
        }
        if index != self.meta.index {
            self.meta.index = index;
        }
        Reply::Accepted { index }
    }
}

/// Whether a poststop task of the allocation has begun and not ended.
pub(super) fn has_begun_poststop(entry: &AllocEntry) -> bool {
    let tasks = entry.spec.group().into_iter().flat_map(|group| &group.tasks);
    let begun = |known: &TaskState| known.newest() > 0 && known.status_live();
    tasks
        .zip(&entry.state.durable.tasks)
        .any(|(task, known)| task.lifecycle == Lifecycle::Poststop && begun(known))
}
