//! Poststop tasks that run forever: only a request ends them.
//!
//! In: a request to end stopping allocations, repeated or forced. Out: marked allocations, whose plan ends these tasks
//! within their `kill_timeout`.

use herdlet_api_types::job::Lifecycle;

use crate::{
    event::{Ending, Reply},
    op::Key,
    state::TaskState,
    turn::OpenTurn,
    world::{World, allocs::AllocEntry},
};

/// Which poststop tasks a request ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PoststopScope {
    /// Started ones: the request was repeated.
    Begun,
    /// All, and no further one is started: the request was explicit.
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
        let ids = self.ending(of, |entry| {
            let is_meant = scope == PoststopScope::All || has_begun_poststop(entry);
            is_meant && !entry.state.durable.no_poststop
        });
        for id in &ids {
            self.write(open, *id, |writer| writer.end_poststop());
            open.dirty.insert(Key::Alloc(*id));
        }
        self.accept_change_of(&ids)
    }
}

/// Whether a poststop task of the allocation has started and not ended.
pub(super) fn has_begun_poststop(entry: &AllocEntry) -> bool {
    let tasks = entry.spec.group().into_iter().flat_map(|group| &group.tasks);
    let begun = |known: &TaskState| known.newest() > 0 && known.status_live();
    tasks
        .zip(&entry.state.durable.tasks)
        .any(|(task, known)| task.lifecycle == Lifecycle::Poststop && begun(known))
}
