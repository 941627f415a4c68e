//! Fencing: no attempt starts twice, and none starts after it was cancelled, even across crashes.
//!
//! An attempt is claimed in a ledger when it starts, and only the first claim counts. A fence is a claim that prevents the
//! attempt from ever starting. The kind of ledger depends on the driver:
//!
//! | kind | a claim | a fence | how it is found again |
//! | --- | --- | --- | --- |
//! | a record | the supervisor creates the record's file, as its first act | the agent creates it, as a tombstone | by the attempt's name |
//! | a record and a unique name | the driver creates the record's file, then the engine a container of the attempt's name | the record, as a tombstone | by the record and the name |
//! | a plugin | the plugin's start returns a handle, which is stored | the plugin's destroy, by the attempt's id | by the handle; without it the attempt is destroyed and lost |
//!
//! A driver's start makes the claim. [`recover_by`] is the recovery logic that ledgers share. Drivers of container engines have their
//! own: while the engine is out of reach, a claim can be neither found nor excluded.

use std::{collections::BTreeSet, sync::OnceLock};

use futures_util::{FutureExt as _, future::BoxFuture};

use super::{AttemptId, DriverResult, Recovered};

/// Knows which attempts are claimed.
pub trait Ledger: Send + Sync {
    /// The ledger's data about a claimed attempt.
    type Entry: Send;

    /// Looks up the claim of an attempt.
    fn find<'a>(&'a self, id: &'a AttemptId) -> BoxFuture<'a, DriverResult<Claim<Self::Entry>>>;

    /// Fences an unclaimed attempt, so that it never starts. Returns the claim as it was before.
    fn fence<'a>(&'a self, id: &'a AttemptId) -> BoxFuture<'a, DriverResult<Claim<Self::Entry>>>;

    /// Whether an attempt without an entry may have started nevertheless.
    fn may_have_begun(&self, id: &AttemptId) -> bool;

    /// Whether processes of an attempt without an entry run.
    fn is_running<'a>(&'a self, id: &'a AttemptId) -> BoxFuture<'a, DriverResult<bool>> {
        let _ = id;
        async { Ok(false) }.boxed()
    }

    /// Kills all processes of an attempt that has no entry or was fenced.
    fn end<'a>(&'a self, id: &'a AttemptId) -> BoxFuture<'a, DriverResult<()>> {
        let _ = id;
        async { Ok(()) }.boxed()
    }
}

/// The state of an attempt's claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim<E> {
    /// Unclaimed.
    Free,
    /// Cancelled before it started.
    Fenced,
    /// Started.
    Taken(E),
}

/// The attempts that an earlier agent may have started.
#[derive(Debug, Default)]
pub struct Earlier(OnceLock<BTreeSet<AttemptId>>);

impl Earlier {
    /// See [`TaskDriver::set_earlier`](super::TaskDriver::set_earlier).
    pub fn set(&self, known: &BTreeSet<AttemptId>) {
        let _ = self.0.set(known.clone());
    }

    /// Whether an attempt is one of them. Always true until [`set`](Self::set) is called.
    pub fn has(&self, id: &AttemptId) -> bool {
        self.0.get().is_none_or(|known| known.contains(id))
    }
}

/// Determines the state of an attempt that its driver does not supervise yet. `take_over` handles a claimed attempt.
///
/// # Errors
/// The errors of the ledger and of `take_over`; nothing is decided then.
pub async fn recover_by<L, F>(
    ledger: &L,
    id: &AttemptId,
    take_over: impl FnOnce(L::Entry) -> F,
) -> DriverResult<Recovered>
where
    L: Ledger + ?Sized,
    F: Future<Output = DriverResult<Recovered>>,
{
    let lost = |why: &str| Ok(Recovered::Lost { why: why.to_owned() });
    match ledger.find(id).await? {
        Claim::Taken(entry) => take_over(entry).await,
        Claim::Fenced => {
            ledger.end(id).await?;
            lost("it was cancelled before it started")
        }
        Claim::Free => {
            let ran = ledger.is_running(id).await?;
            if !ran && !ledger.may_have_begun(id) {
                return Ok(Recovered::NotStarted);
            }
            ledger.fence(id).await?;
            ledger.end(id).await?;
            lost(if ran {
                "it ran, but its record is gone"
            } else {
                "it may have run, but its record is gone"
            })
        }
    }
}
