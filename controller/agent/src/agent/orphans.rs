//! Attempts, allocation directories and networks that the agent finds at its start and that belong to no known allocation.
//!
//! In: the instance, and the database's knowledge of allocations. Out: events for the planner about attempts of known
//! allocations. Of the others, certain leaks are removed; the rest is left alone, logged and counted.
//!
//! | the allocation | its attempts | its directory |
//! | --- | --- | --- |
//! | is known | are reported to the planner | is the planner's |
//! | was forgotten, and the database names it: a power cut has brought its directory back | are removed, unless they run | is
//! removed once no attempt is left |
//! | is unknown, without a directory | are removed: a forgotten allocation loses its directory first | |
//! | is unknown, with a directory | are left alone | is left alone: a lost database is rebuilt from it |
//!
//! A network is removed if its allocation is unknown, and has neither attempts nor a directory; the socket of a CSI plugin, if its
//! allocation is unknown and has no attempts.
//!
//! If part of the database was lost, nothing is removed: it may be wanted. [`crate::state_db`] describes how the database records
//! forgotten allocations, and why that is reliable.

use std::{collections::BTreeSet, sync::Arc};

use herdlet_api_types::AllocId;
use herdlet_base::{
    error::in_full,
    paths::{Paths, alloc_ids},
};
use herdlet_csi::directories::Directories;
use herdlet_driver::{AttemptId, Leftover, TaskDriver};
use herdlet_plan::{event::Event, world::World};
use herdlet_storage::alloc_dir::{AllocDir, close_unused, sweep_came};

use crate::{
    instance::Instance,
    networks::{AllocNetworks, SweepCount},
};

/// Objects of this instance that belong to no allocation.
#[derive(Debug, Clone, Copy, Default)]
pub struct Orphans {
    pub attempts: Tally,
    pub alloc_dirs: Tally,
    pub networks: Tally,
}

/// Counts of orphans.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    /// Still present.
    pub left: u64,
    /// Removed.
    pub removed: u64,
}

impl Tally {
    fn count(&mut self, done: &Done) {
        match done {
            Done::Removed => self.removed += 1,
            Done::Left => self.left += 1,
        }
    }
}

enum Done {
    Removed,
    Left,
}

/// The attempts that a driver found.
pub(super) struct Found {
    pub(super) driver: Arc<dyn TaskDriver>,
    /// None if it could not list them.
    pub(super) attempts: Option<Vec<AttemptId>>,
}

/// The database's knowledge of allocations.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) known: BTreeSet<AllocId>,
    /// The known allocations whose tasks have ended for good.
    pub(super) ended: BTreeSet<AllocId>,
    /// The allocations that the database names as forgotten.
    pub(super) forgotten: BTreeSet<AllocId>,
    pub(super) extent: Extent,
}

/// How much of the stored state was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Extent {
    Whole,
    /// Part may be missing: objects unknown to the database may be wanted, and are left to an operator.
    #[default]
    Part,
}

/// The database's knowledge of an allocation.
enum RecordState {
    Known,
    Forgotten,
    Unknown,
}

impl Memory {
    pub(super) fn new(world: &World, forgotten: BTreeSet<AllocId>, extent: Extent) -> Self {
        let ended = world.allocations().filter(|(_, state)| state.durable.status.is_terminal());
        Self {
            known: world.allocations().map(|(spec, _)| spec.id).collect(),
            ended: ended.map(|(spec, _)| spec.id).collect(),
            forgotten,
            extent,
        }
    }

    fn of(&self, id: &AllocId) -> RecordState {
        if self.known.contains(id) {
            RecordState::Known
        } else if self.extent == Extent::Whole && self.forgotten.contains(id) {
            RecordState::Forgotten
        } else {
            RecordState::Unknown
        }
    }

    /// How thoroughly to remove an attempt of an unknown allocation; none if it may be wanted.
    fn leak(&self, id: &AllocId, has_directory: bool) -> Option<Leftover> {
        match (self.of(id), self.extent) {
            (RecordState::Known, _) | (_, Extent::Part) => None,
            (RecordState::Forgotten | RecordState::Unknown, Extent::Whole) if !has_directory => {
                Some(Leftover::Kill)
            }
            (RecordState::Forgotten, Extent::Whole) => Some(Leftover::MainMustBeGone),
            (RecordState::Unknown, Extent::Whole) => None,
        }
    }
}

/// Sorts found attempts, and removes leaks.
pub(super) struct Leaks<'a> {
    paths: &'a Paths,
    memory: &'a Memory,
    tally: Tally,
    used: Used,
}

impl<'a> Leaks<'a> {
    pub(super) fn new(paths: &'a Paths, memory: &'a Memory) -> Self {
        Self { paths, memory, tally: Tally::default(), used: Used::Only(BTreeSet::new()) }
    }

    /// Removes the attempts that are certainly leaks. Returns events about those of known allocations.
    pub(super) async fn sort(&mut self, Found { driver, attempts }: Found) -> Vec<Event> {
        let Some(attempts) = attempts else {
            self.used = Used::Any;
            return Vec::new();
        };
        let mut events = Vec::new();
        for id in attempts {
            if let RecordState::Known = self.memory.of(&id.alloc) {
                self.used.insert(id.alloc);
                events.push(Event::Found { alloc: id.alloc, task: id.task, attempt: id.attempt });
                continue;
            }
            let done = attempt(self.paths, self.memory, &*driver, &id).await;
            self.tally.count(&done);
            if let Done::Left = done {
                self.used.insert(id.alloc);
            }
        }
        events
    }
}

/// Sorts found attempts and directories, and removes those that are certainly leaks.
pub(super) async fn reconcile_found(
    (instance, networks): (&Instance, &Arc<AllocNetworks>),
    memory: &Memory,
    found: Vec<Found>,
) -> (Vec<Event>, Orphans) {
    let mut events = Vec::new();
    let mut leaks = Leaks::new(&instance.paths, memory);
    for found in found {
        events.extend(leaks.sort(found).await);
    }
    let Leaks { tally, used, .. } = leaks;
    let mut orphans = Orphans { attempts: tally, ..Orphans::default() };
    for id in alloc_ids(&instance.paths.allocs()) {
        if (memory.ended.contains(&id) || !used.has(&id))
            && let Err(error) = close_unused(&instance.paths, id)
        {
            tracing::warn!(alloc = %id, %error, "failed to revoke other users' access to an allocation's directory");
        }
        let done = match memory.of(&id) {
            RecordState::Known => continue,
            RecordState::Forgotten if !used.has(&id) => alloc_dir(instance, id).await,
            RecordState::Forgotten | RecordState::Unknown => {
                tracing::warn!(alloc = %id, "found the directory of an unknown allocation; leaving it alone");
                Done::Left
            }
        };
        orphans.alloc_dirs.count(&done);
    }
    if let (Extent::Whole, Used::Only(used)) = (memory.extent, &used) {
        let kept: BTreeSet<AllocId> = memory.known.union(used).copied().collect();
        remove_ownerless_sockets(instance, kept.clone()).await;
        orphans.networks = remove_ownerless_networks(instance, networks, kept).await;
    }
    if memory.extent == Extent::Whole
        && let Err(error) = sweep_came(&instance.paths, |id| memory.known.contains(id))
    {
        tracing::warn!(%error, "failed to remove migrated disks of allocations that no longer exist");
    }
    (events, orphans)
}

/// Allocations that still have attempts.
enum Used {
    Only(BTreeSet<AllocId>),
    Any,
}

impl Used {
    fn insert(&mut self, id: AllocId) {
        match self {
            Self::Only(allocs) => {
                allocs.insert(id);
            }
            Self::Any => {}
        }
    }

    fn has(&self, id: &AllocId) -> bool {
        match self {
            Self::Only(allocs) => allocs.contains(id),
            Self::Any => true,
        }
    }
}

/// Removes an attempt of an unknown allocation if it is certainly a leak.
async fn attempt(paths: &Paths, memory: &Memory, driver: &dyn TaskDriver, id: &AttemptId) -> Done {
    let has_directory = paths.alloc(&id.alloc).exists();
    let Some(leftover) = memory.leak(&id.alloc, has_directory) else {
        tracing::warn!(attempt = %id, "found an unknown attempt; leaving it alone");
        return Done::Left;
    };
    tracing::warn!(attempt = %id, "removing an attempt that belongs to no allocation");
    match driver.destroy(id, leftover).await {
        Ok(()) => Done::Removed,
        Err(error) => {
            tracing::warn!(attempt = %id, error = error.why(), "failed to remove the attempt");
            Done::Left
        }
    }
}

/// Removes the sockets of CSI plugins of unknown allocations that have no tasks.
async fn remove_ownerless_sockets(instance: &Instance, kept: BTreeSet<AllocId>) {
    let directories = Directories::new(&instance.paths);
    let is_known = move |begin: &str| kept.iter().any(|id| id.to_string().starts_with(begin));
    let why = match herdlet_runtime::off_thread(move || directories.sweep(is_known)).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => in_full(&error),
        Err(error) => error.to_string(),
    };
    tracing::warn!(error = why, "failed to remove sockets of CSI plugins without an allocation");
}

/// Removes the networks of unknown allocations that have neither tasks nor a directory. After the loss of the database the tasks of
/// an allocation may still run, and its directory is its only record.
async fn remove_ownerless_networks(
    instance: &Instance,
    networks: &Arc<AllocNetworks>,
    kept: BTreeSet<AllocId>,
) -> Tally {
    let (networks, allocs) = (Arc::clone(networks), instance.paths.allocs());
    let is_leak = move |id: AllocId| !kept.contains(&id) && !allocs.join(id.to_string()).exists();
    let swept = herdlet_runtime::off_thread(move || networks.sweep(is_leak)).await;
    let SweepCount { removed, left } = swept.unwrap_or_default();
    Tally { left, removed }
}

/// Removes the directory of a forgotten allocation.
async fn alloc_dir(instance: &Instance, id: AllocId) -> Done {
    tracing::info!(alloc = %id, "removing the directory of a forgotten allocation, as after a power cut");
    let dir = AllocDir::new(&instance.paths, id);
    let why = match herdlet_runtime::off_thread(move || dir.down_without_others_mounts()).await {
        Ok(Ok(())) => return Done::Removed,
        Ok(Err(error)) => in_full(&error),
        Err(error) => error.to_string(),
    };
    tracing::warn!(alloc = %id, error = why, "failed to remove the directory; retrying at the next start");
    Done::Left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_certainly_forgotten_directories_count_as_leaks() {
        let [known, forgotten, unknown] = [1, 2, 3].map(|byte| AllocId::from_hash([byte; 16]));
        let memory = |extent| Memory {
            known: [known].into(),
            ended: BTreeSet::new(),
            forgotten: [known, forgotten].into(),
            extent,
        };
        let whole = memory(Extent::Whole);
        let leaks = |memory: &Memory, has_directory| {
            [known, forgotten, unknown].map(|id| memory.leak(&id, has_directory))
        };
        assert_eq!(leaks(&whole, true), [None, Some(Leftover::MainMustBeGone), None]);
        assert_eq!(leaks(&whole, false), [None, Some(Leftover::Kill), Some(Leftover::Kill)]);
        assert!(matches!(whole.of(&forgotten), RecordState::Forgotten));
        let part = memory(Extent::Part);
        assert_eq!((leaks(&part, true), leaks(&part, false)), ([None; 3], [None; 3]));
        assert!(matches!(part.of(&forgotten), RecordState::Unknown), "its directory is kept too");
    }
}
