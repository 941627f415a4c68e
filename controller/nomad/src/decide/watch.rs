//! Which allocations a node has, from its servers' lists: whether a list counts, what to fetch, what was removed.
//!
//! ```text
//!   question ──► list ──► not newer, same as known: ignored
//!                     ├─► newer ──► batches to fetch ──► all there, all as new as listed ──► Desired, and the index moves
//!                     │                              └─► something is missing: pause, and ask again from the old index
//!                     └─► doubtful ──► ask the leader again, reading the node before and after ──► as above
//! ```
//!
//! - The first question goes to the leader, later ones to any server: an answer counts only if its index is greater than all earlier ones.
//!   So neither a lagging server nor one that lost its state can take anything back.
//! - Servers return an empty list, with the index of all allocations, to a node that they do not know: a purged node would lose everything.
//!   So an empty list is doubtful while the node has allocations. The leader's answer counts if the node was registered before and after
//!   it, and was not re-registered in between.
//! - A list with an index that is not newer, but with different content, comes from a lagging server, or from servers that were restored
//!   from an older state, whose index stays lower for long. So it is doubtful. If the leader itself stays behind, [`ANEW_TIMES`] times and
//!   for [`ANEW_AFTER`], its list is accepted whatever its index, as after a restart of the agent. Until then the session only reports the
//!   conflict: time for the operator who connected the wrong servers. A follower's list is never accepted this way. If all missing
//!   allocations have ended, servers have just collected them between two questions, which moves no index: the list is accepted at once.
//! - An allocation is fetched if servers have changed it since it was last delivered. What became of it here does not matter: an allocation
//!   that could not be set up, or whose directory was collected, is not fetched again.
//! - An undecodable allocation is found by halving batches, and the runner is informed. It does not delay others.
//! - Removed allocations are found by comparison with a whole list, not from a message that could be missed.

use std::{collections::BTreeMap, time::Duration};

use herdlet_rpc::{
    error::{CallError, MessageError},
    pool::{Chance, jitter},
};

use tokio::time::Instant;

use super::desired::{Desired, DesiredAlloc};
use crate::wire::{
    AllocId, Allocation, Secret,
    queries::{AllocsResponse, ClientAllocsResponse, NodeResponse},
};

/// Number of allocations per call: large enough for speed, small enough to bound memory.
pub const BATCH: usize = 256;

/// Wait after a call that failed, or whose server lags behind the listing one, plus up to the same at random.
const FAILED: Duration = Duration::from_secs(30);

/// Wait after a response that lacks listed allocations, most often because they were just collected; plus up to the same at random.
const MISSING: Duration = Duration::from_secs(2);

/// How many times the leader must return an older list before the node concludes that servers were restored.
pub const ANEW_TIMES: u32 = 5;

/// Minimum time between the first and the last of these lists.
pub const ANEW_AFTER: Duration = Duration::from_secs(300);

/// Time between two of these lists, plus up to the same at random.
const ANEW_EVERY: Duration = Duration::from_secs(60);

/// A response that arrives this fast with nothing new would do so again: wait this long, plus up to the same at random.
const HASTE: Duration = Duration::from_secs(1);

/// The known allocations, and the index of their list.
#[derive(Debug, Default)]
pub struct Watch {
    index: u64,
    /// The `AllocModifyIndex` of each delivered allocation.
    held: BTreeMap<AllocId, u64>,
    is_begun: bool,
    behind: Option<Behind>,
}

/// The leader returns older lists than the known one.
#[derive(Debug, Clone, Copy)]
struct Behind {
    since: Instant,
    times: u32,
}

/// The meaning of a list.
#[derive(Debug)]
pub enum Meaning {
    /// Nothing new.
    Nothing,
    /// The list counts.
    Counts(Listing),
    /// The list needs confirmation: see [`Watch::confirmed`].
    Doubtful,
}

/// The servers that may answer a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Responder {
    /// Only the leader.
    Leader,
    /// Any server, which may be behind the leader.
    AnyServer,
}

/// The next question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// Block until there is something newer than this.
    pub index: u64,
    /// Who may answer.
    pub responder: Responder,
}

impl Question {
    /// Asks the leader for its current answer.
    pub const LATEST: Self = Self { index: 0, responder: Responder::Leader };
}

/// A list that counts.
#[derive(Debug)]
pub struct Listing {
    index: u64,
    allocs: BTreeMap<AllocId, u64>,
    migrate_tokens: BTreeMap<AllocId, Secret>,
    fetch: Vec<AllocId>,
    source: Source,
}

/// The servers' state that a list is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// It continues the known state.
    Continued,
    /// It was restored from an older state.
    Restored,
}

/// Allocations to fetch in one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The allocations' ids.
    pub ids: Vec<AllocId>,
    /// The response's index must be greater than this.
    pub index: u64,
}

/// Why a response cannot be used. Reads after "failed to".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The response holds no list.
    #[error("list allocations: the answer holds no list")]
    NoList,
    /// The servers do not know the node, or it was re-registered in the meantime.
    #[error("list allocations: the node is not registered")]
    Unregistered,
    /// The leader's list is older than the known one, and it is too early to conclude that servers were restored.
    #[error(
        "list allocations: the leader's list (index {found}) is older than the known one (index {known})"
    )]
    Older {
        /// The index of the leader's list.
        found: u64,
        /// The index of the known list.
        known: u64,
    },
    /// The server lags behind the one that sent the list.
    #[error("fetch allocations: the server lags behind")]
    Behind,
    /// Listed allocations are missing.
    #[error("fetch allocations: {0} of them are missing")]
    Missing(usize),
    /// An allocation is older than listed.
    #[error("fetch allocation {0}: it is older than listed")]
    Old(AllocId),
}

impl Watch {
    /// `known`: the allocations from before the start, each with its `AllocModifyIndex`.
    #[must_use]
    pub fn new(known: impl IntoIterator<Item = (AllocId, u64)>) -> Self {
        Self { held: known.into_iter().collect(), ..Self::default() }
    }

    /// The next question.
    #[must_use]
    pub fn question(&self) -> Question {
        // A leader that is behind would block a question with our index.
        let index = if self.behind.is_some() { 0 } else { self.index };
        let is_current = self.is_begun && self.behind.is_none();
        let responder = if is_current { Responder::AnyServer } else { Responder::Leader };
        Question { index, responder }
    }

    /// Interprets a list.
    ///
    /// # Errors
    /// If the response holds no list.
    pub fn listed(&mut self, answer: ClientAllocsResponse) -> Result<Meaning, Unfit> {
        let ClientAllocsResponse { allocs, migrate_tokens, meta } = answer;
        if meta.index <= self.index {
            if self.is_begun && allocs.is_some_and(|allocs| allocs != self.held) {
                return Ok(Meaning::Doubtful);
            }
            self.behind = None;
            return Ok(Meaning::Nothing);
        }
        let allocs = allocs.ok_or(Unfit::NoList)?;
        if allocs.is_empty() && !self.held.is_empty() {
            return Ok(Meaning::Doubtful);
        }
        self.behind = None;
        Ok(Meaning::Counts(self.listing(meta.index, allocs, migrate_tokens, Source::Continued)))
    }

    /// Interprets the leader's list after a doubtful one. `before` and `after` are the node as the leader returned it before and after the
    /// list; `has_ended`: whether servers know that an allocation has ended. `None` if there is nothing new.
    ///
    /// # Errors
    /// See [`Unfit`].
    pub fn confirmed(
        &mut self,
        before: &NodeResponse,
        answer: ClientAllocsResponse,
        after: &NodeResponse,
        has_ended: impl Fn(&AllocId) -> bool,
        now: Instant,
    ) -> Result<Option<Listing>, Unfit> {
        let (Some(before), Some(after)) = (&before.node, &after.node) else {
            return Err(Unfit::Unregistered);
        };
        if before.create_index != after.create_index {
            return Err(Unfit::Unregistered);
        }
        let ClientAllocsResponse { allocs, migrate_tokens, meta } = answer;
        let allocs = allocs.ok_or(Unfit::NoList)?;
        // An empty list has the index of all allocations, so it is at least the index of every allocation ever held.
        let known = if allocs.is_empty() { self.held.values().max().copied().unwrap_or(0) } else { 0 };
        let is_new = meta.index > self.index && meta.index >= known;
        let is_known = self.is_begun && allocs == self.held;
        let is_collected = self.is_begun
            && allocs.iter().all(|(id, index)| self.held.get(id) == Some(index))
            && self.held.keys().all(|id| allocs.contains_key(id) || has_ended(id));
        if is_new || is_known || is_collected {
            self.behind = None;
            let index = meta.index.max(self.index);
            return Ok(
                (!is_known || is_new).then(|| self.listing(index, allocs, migrate_tokens, Source::Continued))
            );
        }
        let behind = self.behind.get_or_insert(Behind { since: now, times: 0 });
        behind.times = behind.times.saturating_add(1);
        if behind.times < ANEW_TIMES || now.saturating_duration_since(behind.since) < ANEW_AFTER {
            return Err(Unfit::Older { found: meta.index, known: self.index.max(known) });
        }
        Ok(Some(self.listing(meta.index, allocs, migrate_tokens, Source::Restored)))
    }

    fn listing(
        &self,
        index: u64,
        allocs: BTreeMap<AllocId, u64>,
        migrate_tokens: BTreeMap<AllocId, Secret>,
        source: Source,
    ) -> Listing {
        let is_changed = |(id, index): &(&AllocId, &u64)| match self.held.get(*id) {
            None => true,
            // If servers were restored, perhaps while no agent ran, the same allocation may have a lower index.
            Some(held) if source == Source::Restored || !self.is_begun => held != *index,
            Some(held) => held < *index,
        };
        let fetch = allocs.iter().filter(is_changed).map(|(id, _)| id.clone()).collect();
        Listing { index, allocs, migrate_tokens, fetch, source }
    }

    /// The desired state after a list, with the allocations fetched for it.
    #[must_use]
    pub fn desired(
        &self,
        listing: &Listing,
        fetched: Vec<Allocation>,
        unreadable: Vec<(AllocId, String)>,
    ) -> Desired {
        let changed = fetched.into_iter().map(|alloc| {
            let migrate_token = listing.migrate_tokens.get(&alloc.id).cloned();
            DesiredAlloc { alloc, migrate_token }
        });
        let removed = self.held.keys().filter(|id| !listing.allocs.contains_key(*id)).cloned();
        Desired {
            index: listing.index,
            is_first: !self.is_begun,
            changed: changed.collect(),
            removed: removed.collect(),
            unreadable,
        }
    }

    /// Records that the list was delivered. `fetched`: each allocation with its `AllocModifyIndex`.
    pub fn applied(&mut self, listing: Listing, fetched: Vec<(AllocId, u64)>) {
        self.index = listing.index;
        self.is_begun = true;
        self.behind = None;
        self.held.retain(|id, _| listing.allocs.contains_key(id));
        self.held.extend(fetched);
    }
}

impl Listing {
    /// All allocations of the node.
    pub fn ids(&self) -> impl Iterator<Item = &AllocId> {
        self.allocs.keys()
    }

    /// Whether servers were restored from an older state: they have lost the reports since then.
    #[must_use]
    pub fn is_restored(&self) -> bool {
        self.source == Source::Restored
    }

    /// The allocations to fetch.
    pub fn batches(&self) -> impl Iterator<Item = Batch> {
        self.fetch.chunks(BATCH).map(|ids| self.batch(ids))
    }

    /// Splits a batch that holds an undecodable allocation. `None` if it has only one.
    #[must_use]
    pub fn halves(&self, batch: &Batch) -> Option<[Batch; 2]> {
        let (one, other) = batch.ids.split_at(batch.ids.len() / 2);
        (!one.is_empty()).then(|| [self.batch(one), self.batch(other)])
    }

    /// The `AllocModifyIndex` of an allocation in the list.
    #[must_use]
    pub fn index_of(&self, id: &AllocId) -> u64 {
        self.allocs.get(id).copied().unwrap_or_default()
    }

    fn batch(&self, ids: &[AllocId]) -> Batch {
        let newest = ids.iter().map(|id| self.index_of(id)).max();
        Batch { ids: ids.to_vec(), index: newest.unwrap_or_default().saturating_sub(1) }
    }

    /// The allocations of a batch, if none is missing or older than listed.
    ///
    /// # Errors
    /// See [`Unfit`].
    pub fn fetched(&self, batch: &Batch, answer: AllocsResponse) -> Result<Vec<Allocation>, Unfit> {
        if answer.meta.index <= batch.index {
            return Err(Unfit::Behind);
        }
        let mut found: BTreeMap<_, _> =
            answer.allocs.into_iter().map(|alloc| (alloc.id.clone(), alloc)).collect();
        let allocs: Vec<_> = batch.ids.iter().filter_map(|id| found.remove(id)).collect();
        if allocs.len() < batch.ids.len() {
            return Err(Unfit::Missing(batch.ids.len() - allocs.len()));
        }
        let is_old = |alloc: &&Allocation| self.allocs.get(&alloc.id) > Some(&alloc.alloc_modify_index);
        match allocs.iter().find(is_old) {
            Some(old) => Err(Unfit::Old(old.id.clone())),
            None => Ok(allocs),
        }
    }
}

/// Whether a response arrived but cannot be decoded or is too large.
#[must_use]
pub fn is_unreadable(error: &CallError) -> bool {
    matches!(error, CallError::Message(MessageError::Decode(_) | MessageError::Limit(_)))
}

/// The server that is asked after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextServer {
    /// Possibly the same one.
    Same,
    /// Another one: the pool has meanwhile left an unresponsive server.
    Another,
}

/// The wait after a failed question.
pub fn after_failure(next: NextServer, chance: &mut Chance) -> Duration {
    let wait = match next {
        NextServer::Same => FAILED,
        NextServer::Another => HASTE,
    };
    jitter(wait, chance)
}

/// The wait after an unusable response.
pub fn after_unfit(unfit: &Unfit, chance: &mut Chance) -> Duration {
    match unfit {
        Unfit::NoList | Unfit::Behind => jitter(FAILED, chance),
        Unfit::Unregistered | Unfit::Missing(_) | Unfit::Old(_) => jitter(MISSING, chance),
        Unfit::Older { .. } => jitter(ANEW_EVERY, chance),
    }
}

/// The wait after a list with nothing new, which took `took` to arrive.
pub fn after_nothing(took: Duration, chance: &mut Chance) -> Duration {
    if took < HASTE { jitter(HASTE, chance) } else { Duration::ZERO }
}

/// Minimum average time between lists if each answer differs: as often as stock servers commit nodes' reports.
const ROUND: Duration = Duration::from_millis(50);

/// How many lists may follow each other without a wait after a pause.
const ROUNDS: u32 = 40;

/// Rate limit for lists. A server that answers without pause would otherwise occupy both sides completely.
#[derive(Debug, Default)]
pub struct Rounds {
    /// When the budget for a burst is full again.
    full_at: Option<Instant>,
}

impl Rounds {
    /// The wait before the next list.
    pub fn next(&mut self, now: Instant) -> Duration {
        let full_at = self.full_at.map_or(now, |at| at.max(now)) + ROUND;
        self.full_at = Some(full_at);
        full_at.duration_since(now).saturating_sub(ROUND * ROUNDS)
    }
}

#[cfg(test)]
mod tests;
