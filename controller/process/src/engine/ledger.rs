//! The ledger of attempts whose claims are records: see the table in [`herdlet_driver::Ledger`]'s module.
//!
//! In: records and cgroups of attempts. Out: which claim was first. A supervisor claims an attempt by creating its record; the
//! agent fences it by creating the same file as a tombstone.

use futures_util::{FutureExt as _, future::BoxFuture};
use herdlet_driver::{AttemptId, Claim, DriverResult, Ledger};

use super::{Shared, retry};
use crate::supervisor::{Record, State, TombstoneOutcome};

impl Ledger for Shared {
    type Entry = Record;

    fn find<'a>(&'a self, id: &'a AttemptId) -> BoxFuture<'a, DriverResult<Claim<Record>>> {
        async move { Ok(self.attempts().record(id)?.map_or(Claim::Free, claim)) }.boxed()
    }

    fn fence<'a>(&'a self, id: &'a AttemptId) -> BoxFuture<'a, DriverResult<Claim<Record>>> {
        async move {
            Ok(match self.attempts().fence(id)? {
                TombstoneOutcome::Cancelled => Claim::Free,
                TombstoneOutcome::TooLate(record) => claim(record),
            })
        }
        .boxed()
    }

    fn may_have_begun(&self, id: &AttemptId) -> bool {
        self.attempts().may_lack_records() && self.earlier.has(id)
    }

    fn is_running<'a>(&'a self, id: &'a AttemptId) -> BoxFuture<'a, DriverResult<bool>> {
        async move { self.cgroup(id).map_or(Ok(false), |cgroup| cgroup.is_populated().map_err(retry)) }
            .boxed()
    }

    /// Kills something only if the record was lost, or a tombstone replaced a damaged one.
    fn end<'a>(&'a self, id: &'a AttemptId) -> BoxFuture<'a, DriverResult<()>> {
        async move {
            self.kill_all(id, None).await?;
            match self.cgroup(id) {
                Some(cgroup) => cgroup.remove().await.map_err(retry),
                None => Ok(()),
            }
        }
        .boxed()
    }
}

fn claim(record: Record) -> Claim<Record> {
    match record.state {
        State::Tombstone => Claim::Fenced,
        State::Created | State::Running | State::Exited(_) | State::StartFailed { .. } => {
            Claim::Taken(record)
        }
    }
}
