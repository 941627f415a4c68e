//! Fencing: no attempt begins twice, and none begins after it was cancelled, whatever crashed in between.
//!
//! An attempt is claimed in a ledger when it begins, and only the first claim counts. A fence is a claim after which the attempt never begins.
//! The kind of ledger depends on the driver:
//!
//! | kind | a claim | a fence | how it is found again |
//! | --- | --- | --- | --- |
//! | a record | the supervisor creates the record's file, as its first act | the agent creates it, as a tombstone | by the attempt's name |
//! | a unique name | the engine makes a container of the attempt's name | a container of that name that never runs | by the name |
//! | a plugin | the plugin's start returns a handle, which is stored | the plugin's destroy, by the attempt's id | by the handle; without it the attempt is destroyed and lost |
//!
//! The claim itself belongs to a driver's start. What all drivers have in common is what follows from a ledger: [`recover_by`].

use std::{collections::BTreeSet, sync::OnceLock};

use futures_util::{FutureExt as _, future::BoxFuture};

use super::{AttemptId, DriverResult, Recovered};

/// Knows which attempts were claimed.
pub trait Ledger: Send + Sync {
    /// What it keeps of a claimed attempt.
    type Entry: Send;

    /// What it knows of an attempt.
    fn find<'a>(&'a self, id: &'a AttemptId) -> BoxFuture<'a, DriverResult<Claim<Self::Entry>>>;

    /// Keeps an attempt that nobody has claimed from ever beginning. What was known of it before.
    fn fence<'a>(&'a self, id: &'a AttemptId) -> BoxFuture<'a, DriverResult<Claim<Self::Entry>>>;

    /// Whether an attempt that is not in the ledger may have begun all the same.
    fn may_have_begun(&self, id: &AttemptId) -> bool;

    /// Whether something runs of an attempt that is not in the ledger.
    fn is_running<'a>(&'a self, id: &'a AttemptId) -> BoxFuture<'a, DriverResult<bool>> {
        let _ = id;
        async { Ok(false) }.boxed()
    }

    /// Ends whatever may run of an attempt that is not in the ledger, or was fenced.
    fn end<'a>(&'a self, id: &'a AttemptId) -> BoxFuture<'a, DriverResult<()>> {
        let _ = id;
        async { Ok(()) }.boxed()
    }
}

/// The state of an attempt's claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim<E> {
    /// Nobody has claimed it.
    Free,
    /// It was cancelled before it began.
    Fenced,
    /// It was begun.
    Taken(E),
}

/// The attempts that an earlier agent may have begun.
#[derive(Debug, Default)]
pub struct Earlier(OnceLock<BTreeSet<AttemptId>>);

impl Earlier {
    /// See [`TaskDriver::set_earlier`](super::TaskDriver::set_earlier).
    pub fn set(&self, known: &BTreeSet<AttemptId>) {
        let _ = self.0.set(known.clone());
    }

    /// Whether an attempt is one of them; any may be while nobody has said which are.
    pub fn has(&self, id: &AttemptId) -> bool {
        self.0.get().is_none_or(|known| known.contains(id))
    }
}

/// What became of an attempt that its driver does not follow yet. `take_over` answers for one that was claimed.
///
/// # Errors
/// What the ledger or `take_over` fails with; nothing is decided then.
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
            lost("it was cancelled before it began")
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
                "whether it ran is not known: its record is gone"
            })
        }
    }
}
