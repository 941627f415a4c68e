//! Which allocations a node has, as its servers tell it: what of an answer counts, what has to be fetched, what is gone.
//!
//! ```text
//!   question ──► list ──► not newer, and says what is known: ignored
//!                     ├─► newer ──► batches to fetch ──► all there, all as new as listed ──► Desired, and the index moves
//!                     │                              └─► something is missing: pause, and ask again from the old index
//!                     └─► doubtful ──► the leader, asked once more, between two looks at the node ──► as above
//! ```
//!
//! - The first question goes to the leader; later ones to any server, since an answer counts only where its index is greater than any
//!   before. So no server that lags behind, and none that has lost its state, can take something back.
//! - Servers give an empty list to a node that they don't know, with the index of all allocations there are: a node that was purged would
//!   lose everything. So an empty list is doubtful while there is something here. What the leader says counts, if the node was registered
//!   before and after, and was not registered anew between.
//! - A list that is not newer, and yet not what is known, comes from a server that lags behind; or from servers that were restored from an
//!   older state, whose index stays lower for long. So it is doubtful. If the leader itself stays behind, [`ANEW_TIMES`] times and for
//!   [`ANEW_AFTER`], its list is believed whatever its index, as after a restart of the agent. Until then it is told and nothing is done: time
//!   for whoever has taken the wrong servers. A follower is never believed. Where all that is missing has ended, servers have just collected
//!   it while nobody asked, which moves no index: that is believed at once.
//! - An allocation is fetched when servers have changed it since it was handed over last. What became of it then makes no difference: one
//!   that could not be set up, or whose directory was collected here, is not fetched again for that.
//! - One that can't be read is found by halving batches, and the runner is told: it holds up no other.
//! - What is gone is found by comparing with a whole list, never told by a message that could be missed.

use std::{collections::BTreeMap, time::Duration};

use herdlet_rpc::{
    error::{CallError, MessageError},
    pool::{Chance, jitter},
};

use tokio::time::Instant;

use super::desired::{Changed, Desired};
use crate::wire::{
    AllocId, Allocation, Secret,
    queries::{AllocsResponse, ClientAllocsResponse, NodeResponse},
};

/// As many are fetched in one call: enough for speed, few enough to bound what is in memory at a time.
pub const BATCH: usize = 256;

/// A server that can't be asked, or has not seen what another one told, is left alone for this long, and up to as much again.
const FAILED: Duration = Duration::from_secs(30);

/// Likewise one that misses some of what was listed: most often it was collected just now.
const MISSING: Duration = Duration::from_secs(2);

/// As often, at least, the leader must stay behind until it is believed that servers have begun anew.
pub const ANEW_TIMES: u32 = 5;

/// Likewise for so long, between the first and the last time.
pub const ANEW_AFTER: Duration = Duration::from_secs(300);

/// Between two of these times, and up to as much again.
const ANEW_EVERY: Duration = Duration::from_secs(60);

/// An answer that brings nothing new and comes at once would come at once again.
const HASTE: Duration = Duration::from_secs(1);

/// What is known, and of which index.
#[derive(Debug, Default)]
pub struct Watch {
    index: u64,
    /// When each allocation was changed last, of those that were handed over.
    held: BTreeMap<AllocId, u64>,
    is_begun: bool,
    behind: Option<Behind>,
}

/// The leader says something older than is known.
#[derive(Debug, Clone, Copy)]
struct Behind {
    since: Instant,
    times: u32,
}

/// What a list means.
#[derive(Debug)]
pub enum Meaning {
    /// Nothing new.
    Nothing,
    /// It counts.
    Counts(Listing),
    /// It can't be believed as it is: see [`Watch::confirmed`].
    Doubtful,
}

/// What to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// Wait for something newer than this.
    pub index: u64,
    /// Any server may answer.
    pub allow_stale: bool,
}

/// A list that counts.
#[derive(Debug)]
pub struct Listing {
    index: u64,
    allocs: BTreeMap<AllocId, u64>,
    migrate_tokens: BTreeMap<AllocId, Secret>,
    fetch: Vec<AllocId>,
    is_anew: bool,
}

/// Allocations that are fetched in one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Which.
    pub ids: Vec<AllocId>,
    /// The answer must be newer than this.
    pub index: u64,
}

/// Why an answer can't be used. Reads after "failed to".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The answer holds no list.
    #[error("hear of allocations: the answer has no list of them")]
    NoList,
    /// The servers don't know the node, or had to learn of it again meanwhile.
    #[error("hear of allocations: the node is not registered")]
    Unregistered,
    /// The leader says something older than is known, and it is not taken for a new beginning yet.
    #[error(
        "hear of allocations: the leader says what is older (index {found}) than what it has said (index {known})"
    )]
    Older {
        /// The index of its list.
        found: u64,
        /// That of what is known.
        known: u64,
    },
    /// The server is behind the one that gave the list.
    #[error("fetch allocations: the server is behind")]
    Behind,
    /// Some are missing.
    #[error("fetch allocations: {0} of them are missing")]
    Missing(usize),
    /// One is older than listed.
    #[error("fetch allocation {0}: it is older than listed")]
    Old(AllocId),
}

impl Watch {
    /// A node that has these already, from before it was started, each as it was changed last.
    #[must_use]
    pub fn new(known: impl IntoIterator<Item = (AllocId, u64)>) -> Self {
        Self { held: known.into_iter().collect(), ..Self::default() }
    }

    /// What to ask next.
    #[must_use]
    pub fn question(&self) -> Question {
        // A leader that is behind would let the question wait.
        let index = if self.behind.is_some() { 0 } else { self.index };
        Question { index, allow_stale: self.is_begun && self.behind.is_none() }
    }

    /// What a list means.
    ///
    /// # Errors
    /// When the answer holds no list.
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
        Ok(Meaning::Counts(self.listing(meta.index, allocs, migrate_tokens, false)))
    }

    /// What the leader has said about a doubtful list; `before` and `after` is what it has said of the node before and after that.
    /// `has_ended`: of what servers know that it has. None: there is nothing new.
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
        // An empty list has the index of all allocations there are, so it is no less than any that was ever held.
        let known = if allocs.is_empty() { self.held.values().max().copied().unwrap_or(0) } else { 0 };
        let is_new = meta.index > self.index && meta.index >= known;
        let is_known = self.is_begun && allocs == self.held;
        let is_collected = self.is_begun
            && allocs.iter().all(|(id, index)| self.held.get(id) == Some(index))
            && self.held.keys().all(|id| allocs.contains_key(id) || has_ended(id));
        if is_new || is_known || is_collected {
            self.behind = None;
            let index = meta.index.max(self.index);
            return Ok((!is_known || is_new).then(|| self.listing(index, allocs, migrate_tokens, false)));
        }
        let behind = self.behind.get_or_insert(Behind { since: now, times: 0 });
        behind.times = behind.times.saturating_add(1);
        if behind.times < ANEW_TIMES || now.saturating_duration_since(behind.since) < ANEW_AFTER {
            return Err(Unfit::Older { found: meta.index, known: self.index.max(known) });
        }
        Ok(Some(self.listing(meta.index, allocs, migrate_tokens, true)))
    }

    fn listing(
        &self,
        index: u64,
        allocs: BTreeMap<AllocId, u64>,
        migrate_tokens: BTreeMap<AllocId, Secret>,
        is_anew: bool,
    ) -> Listing {
        let is_changed = |(id, index): &(&AllocId, &u64)| match self.held.get(*id) {
            None => true,
            // Where servers have begun anew, perhaps while nobody was here, the same may have a lower index.
            Some(held) if is_anew || !self.is_begun => held != *index,
            Some(held) => held < *index,
        };
        let fetch = allocs.iter().filter(is_changed).map(|(id, _)| id.clone()).collect();
        Listing { index, allocs, migrate_tokens, fetch, is_anew }
    }

    /// What is wanted by a list, with what was fetched for it.
    #[must_use]
    pub fn desired(
        &self,
        listing: &Listing,
        fetched: Vec<Allocation>,
        unreadable: Vec<(AllocId, String)>,
    ) -> Desired {
        let changed = fetched.into_iter().map(|alloc| {
            let migrate_token = listing.migrate_tokens.get(&alloc.id).cloned();
            Changed { alloc, migrate_token }
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

    /// It was handed over. `fetched`: each one's id, and when it was changed last.
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

    /// Servers have begun anew from an older state: they know nothing of what they were told since.
    #[must_use]
    pub fn is_anew(&self) -> bool {
        self.is_anew
    }

    /// What has to be fetched.
    pub fn batches(&self) -> impl Iterator<Item = Batch> {
        self.fetch.chunks(BATCH).map(|ids| self.batch(ids))
    }

    /// A batch in two, since something in it can't be read. None: it is that one allocation.
    #[must_use]
    pub fn halves(&self, batch: &Batch) -> Option<[Batch; 2]> {
        let (one, other) = batch.ids.split_at(batch.ids.len() / 2);
        (!one.is_empty()).then(|| [self.batch(one), self.batch(other)])
    }

    /// When servers have changed an allocation last.
    #[must_use]
    pub fn index_of(&self, id: &AllocId) -> u64 {
        self.allocs.get(id).copied().unwrap_or_default()
    }

    fn batch(&self, ids: &[AllocId]) -> Batch {
        let newest = ids.iter().map(|id| self.index_of(id)).max();
        Batch { ids: ids.to_vec(), index: newest.unwrap_or_default().saturating_sub(1) }
    }

    /// The allocations of a batch, if all are there and none is older than listed.
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

/// Whether an answer has come and can't be read, or is too large.
#[must_use]
pub fn is_unreadable(error: &CallError) -> bool {
    matches!(error, CallError::Message(MessageError::Decode(_) | MessageError::Limit(_)))
}

/// How long to wait after a question that failed. `is_left`: meanwhile a server was left that did not answer, and another one is asked.
pub fn after_failure(is_left: bool, chance: &mut Chance) -> Duration {
    jitter(if is_left { HASTE } else { FAILED }, chance)
}

/// How long to wait after an answer that can't be used.
pub fn after_unfit(unfit: &Unfit, chance: &mut Chance) -> Duration {
    match unfit {
        Unfit::NoList | Unfit::Behind => jitter(FAILED, chance),
        Unfit::Unregistered | Unfit::Missing(_) | Unfit::Old(_) => jitter(MISSING, chance),
        Unfit::Older { .. } => jitter(ANEW_EVERY, chance),
    }
}

/// How long to wait after a list that does not count and took so long to come.
pub fn after_nothing(took: Duration, chance: &mut Chance) -> Duration {
    if took < HASTE { jitter(HASTE, chance) } else { Duration::ZERO }
}

/// So often servers are asked for a list, when they always have another one: as fast as stock ones write down what nodes report.
const ROUND: Duration = Duration::from_millis(50);

/// After a rest as many lists may follow each other without a wait.
const ROUNDS: u32 = 40;

/// How fast lists follow each other. A server that answers without pause would otherwise keep both sides busy with nothing else.
#[derive(Debug, Default)]
pub struct Rounds {
    /// When all that was saved for a burst would be there again.
    full_at: Option<Instant>,
}

impl Rounds {
    /// How long to wait before the next one.
    pub fn next(&mut self, now: Instant) -> Duration {
        let full_at = self.full_at.map_or(now, |at| at.max(now)) + ROUND;
        self.full_at = Some(full_at);
        full_at.duration_since(now).saturating_sub(ROUND * ROUNDS)
    }
}

#[cfg(test)]
mod tests;
