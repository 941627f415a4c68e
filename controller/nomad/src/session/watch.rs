//! Hearing which allocations the node has, and handing them over.

use std::time::Duration;

use herdlet_rpc::{
    Service,
    connect::Dial,
    error::{CallError, ErrorKind},
};
use tokio::time::Instant;

use super::{Inner, lock};
use crate::{
    decide::{
        contact::kind,
        watch::{self, Batch, Listing, Unfit, Watch, after_failure, after_nothing, after_unfit, share_jobs},
    },
    seam::Runner,
    wire::{
        Allocation,
        queries::{AllocsRequest, AllocsResponse, ClientAllocsRequest, ClientAllocsResponse},
    },
};

/// For how long a server may keep a question, all that it accepts.
const BLOCK: Duration = Duration::from_secs(300);

/// For how long a server may look for what another one has listed. Servers before 2.0.4 wait for ids that were collected meanwhile to the
/// end, and nothing else is heard during that.
const FETCH: Duration = Duration::from_secs(30);

/// Why a list could not be taken.
enum Failure {
    Call(CallError),
    Unfit(Unfit),
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

impl<S: Service, D: Dial> Inner<S, D> {
    pub(super) async fn allocations(&self, runner: &impl Runner) {
        let mut watch = Watch::new(runner.known());
        loop {
            self.registered().await;
            let wait = match self.listen(&mut watch, runner).await {
                Ok(wait) => wait,
                Err(Failure::Unfit(unfit)) => {
                    tracing::info!(%unfit, "allocations are asked for again");
                    self.chance(|chance| after_unfit(&unfit, chance))
                }
                Err(Failure::Call(error)) => {
                    tracing::warn!(%error, "allocations could not be asked for");
                    if kind(&error) == ErrorKind::NodeSecret {
                        self.unregistered();
                    }
                    self.chance(after_failure)
                }
            };
            if !wait.is_zero() {
                self.pause(wait).await;
            }
        }
    }

    /// Asks once, and hands over what is new. Says how long to wait before the next time.
    async fn listen(&self, watch: &mut Watch, runner: &impl Runner) -> Result<Duration, Failure> {
        let (asked, question) = (Instant::now(), watch.question());
        let block = if question.index == 0 { Duration::ZERO } else { BLOCK };
        let request = |block| ClientAllocsRequest {
            node_id: self.identity.id.clone(),
            secret_id: self.identity.secret.clone(),
            options: self.query(question.index, block, question.allow_stale),
        };
        let answer = self.pool.query("Node.GetClientAllocs", block, request).await?;
        let answer: ClientAllocsResponse = answer.decode()?;
        let index = answer.meta.index;
        let Some(listing) = watch.listed(answer).map_err(Failure::Unfit)? else {
            tracing::debug!(index, known = question.index, "a list is not newer");
            return Ok(self.chance(|chance| after_nothing(asked.elapsed(), chance)));
        };
        self.take(watch, listing, runner).await?;
        Ok(Duration::ZERO)
    }

    async fn take(&self, watch: &mut Watch, listing: Listing, runner: &impl Runner) -> Result<(), Failure> {
        let (mut fetched, mut unreadable) = (Vec::new(), Vec::new());
        let mut batches: Vec<_> = listing.batches().collect();
        while let Some(batch) = batches.pop() {
            match self.fetch(&batch).await {
                Ok(answer) => fetched.extend(listing.fetched(&batch, answer).map_err(Failure::Unfit)?),
                Err(error) if watch::is_unreadable(&error) => match listing.halves(&batch) {
                    Some(halves) => batches.extend(halves),
                    None => unreadable.extend(batch.ids.into_iter().map(|id| {
                        tracing::error!(alloc = %id, %error, "an allocation can't be read");
                        (id, error.to_string())
                    })),
                },
                Err(error) => return Err(error.into()),
            }
            share_jobs(&mut fetched);
        }
        lock(&self.shared.updates).listed(listing.ids(), &fetched);
        let held = fetched.iter().map(|alloc: &Allocation| (alloc.id.clone(), alloc.alloc_modify_index));
        let unread = unreadable.iter().map(|(id, _)| (id.clone(), listing.index_of(id)));
        let held = held.chain(unread).collect();
        let desired = watch.desired(&listing, fetched, unreadable);
        let is_first = desired.is_first;
        let counts = (desired.changed.len(), desired.removed.len(), desired.unreadable.len());
        if is_first || counts != (0, 0, 0) {
            let (changed, removed, unreadable) = counts;
            tracing::info!(
                index = desired.index,
                changed,
                removed,
                unreadable,
                "allocations are handed over"
            );
            runner.apply(desired).await;
        }
        watch.applied(listing, held);
        if is_first {
            // What ended while nobody could be told, and what servers took for lost.
            runner.report_again();
            lock(&self.shared.updates).open();
            self.shared.contact.send_modify(|contact| contact.is_listed = true);
        }
        // What was reported while it was handed over may be due now.
        self.shared.report_came.notify_one();
        Ok(())
    }

    async fn fetch(&self, batch: &Batch) -> Result<AllocsResponse, CallError> {
        let request = |block| AllocsRequest {
            alloc_ids: batch.ids.clone(),
            options: self.query(batch.index, block, true),
        };
        self.pool.query("Alloc.GetAllocs", FETCH, request).await?.decode()
    }
}
