//! Which allocations a node has, as its servers tell it: what of an answer counts, what has to be fetched, what is gone.
//!
//! ```text
//!   question ──► list ──► older or the same: ignored
//!                     └─► newer ──► batches to fetch ──► all there, all as new as listed ──► Desired, and the index moves
//!                                                    └─► something is missing: pause, and ask again from the old index
//! ```
//!
//! - The first question goes to the leader; later ones to any server, since an answer counts only where its index is greater than any
//!   before. So no server that lags behind, and none that has lost its state, can take something back.
//! - An allocation is fetched when servers have changed it since it was handed over last. What became of it then makes no difference: one
//!   that could not be set up, or whose directory was collected here, is not fetched again for that.
//! - One that can't be read is found by halving batches, and the runner is told: it holds up no other.
//! - What is gone is found by comparing with a whole list, never told by a message that could be missed.

use std::{collections::BTreeMap, time::Duration};

use herdlet_rpc::{
    error::{CallError, MessageError},
    pool::{Chance, jitter},
};

use crate::{
    seam::{Changed, Desired},
    wire::{
        AllocId, Allocation, Secret,
        queries::{AllocsResponse, ClientAllocsResponse},
    },
};

/// As many are fetched in one call: enough for speed, few enough to bound what is in memory at a time.
pub const BATCH: usize = 256;

/// A server that can't be asked, or has not seen what another one told, is left alone for this long, and up to as much again.
const FAILED: Duration = Duration::from_secs(30);

/// Likewise one that misses some of what was listed: most often it was collected just now.
const MISSING: Duration = Duration::from_secs(2);

/// An answer that brings nothing new and comes at once would come at once again.
const HASTE: Duration = Duration::from_secs(1);

/// What is known, and of which index.
#[derive(Debug, Default)]
pub struct Watch {
    index: u64,
    /// When each allocation was changed last, of those that were handed over.
    held: BTreeMap<AllocId, u64>,
    is_begun: bool,
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
        Self { index: 0, held: known.into_iter().collect(), is_begun: false }
    }

    /// What to ask next.
    #[must_use]
    pub fn question(&self) -> Question {
        Question { index: self.index, allow_stale: self.is_begun }
    }

    /// Whether a list counts. None: it does not.
    ///
    /// # Errors
    /// When the answer holds no list.
    pub fn listed(&self, answer: ClientAllocsResponse) -> Result<Option<Listing>, Unfit> {
        if answer.meta.index <= self.index {
            return Ok(None);
        }
        let ClientAllocsResponse { allocs, migrate_tokens, meta } = answer;
        let allocs = allocs.ok_or(Unfit::NoList)?;
        let changed = |(id, index): &(&AllocId, &u64)| self.held.get(*id).is_none_or(|held| held < *index);
        let fetch = allocs.iter().filter(changed).map(|(id, _)| id.clone()).collect();
        Ok(Some(Listing { index: meta.index, allocs, migrate_tokens, fetch }))
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
        self.held.retain(|id, _| listing.allocs.contains_key(id));
        self.held.extend(fetched);
    }
}

impl Listing {
    /// All allocations of the node.
    pub fn ids(&self) -> impl Iterator<Item = &AllocId> {
        self.allocs.keys()
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

/// Whether an answer has come and can't be read.
#[must_use]
pub fn is_unreadable(error: &CallError) -> bool {
    matches!(error, CallError::Message(MessageError::Decode(_)))
}

/// How long to wait after a question that failed.
pub fn after_failure(chance: &mut Chance) -> Duration {
    jitter(FAILED, chance)
}

/// How long to wait after an answer that can't be used.
pub fn after_unfit(unfit: &Unfit, chance: &mut Chance) -> Duration {
    match unfit {
        Unfit::NoList | Unfit::Behind => jitter(FAILED, chance),
        Unfit::Missing(_) | Unfit::Old(_) => jitter(MISSING, chance),
    }
}

/// How long to wait after a list that does not count and took so long to come.
pub fn after_nothing(took: Duration, chance: &mut Chance) -> Duration {
    if took < HASTE { jitter(HASTE, chance) } else { Duration::ZERO }
}

/// Lets allocations of one job share it: each came with a copy.
pub fn share_jobs(allocs: &mut [Allocation]) {
    let mut jobs: BTreeMap<(String, u64), crate::wire::Job> = BTreeMap::new();
    for alloc in allocs {
        let key = (alloc.job.id().to_owned(), alloc.job.modify_index());
        match jobs.get(&key) {
            Some(known) => {
                alloc.job.share(known);
            }
            None => {
                jobs.insert(key, alloc.job.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests;
