//! Watches the node's allocations and passes changes to the runner.

use std::time::Duration;

use herdlet_rpc::{
    Service,
    connect::Dial,
    error::{CallError, ErrorKind},
};
use tokio::time::{Instant, sleep};

use super::Inner;
use crate::{
    decide::{
        acknowledged,
        watch::{
            self, Batch, Listing, Meaning, NextServer, Question, Responder, Rounds, Unfit, Watch,
            after_failure, after_nothing, after_unfit,
        },
    },
    reports::{Heard, lock},
    seam::Runner,
    wire::{
        AllocId, Allocation,
        queries::{
            AllocsRequest, AllocsResponse, ClientAllocsRequest, ClientAllocsResponse, NodeRequest,
            NodeResponse,
        },
    },
};

/// For how long a server may block a question: the maximum that servers accept.
const BLOCK: Duration = Duration::from_secs(300);

/// For how long a server may wait for allocations that another one has listed. Servers before 2.0.4 wait the whole time for ids that were
/// collected in the meantime, which delays newer lists.
const FETCH: Duration = Duration::from_secs(30);

/// Why a list could not be processed.
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
        let mut rounds = Rounds::default();
        let mut left = self.pool.left();
        // After a failure, servers may be different ones or restored: ask for their current state without blocking.
        let mut block = BLOCK;
        loop {
            self.registered().await;
            let wait = rounds.next(Instant::now());
            // tokio would round a zero sleep up to a millisecond.
            if !wait.is_zero() {
                sleep(wait).await;
            }
            left.borrow_and_update();
            let asked = self.listen(&mut watch, block, runner).await;
            block = if asked.is_ok() { BLOCK } else { Duration::ZERO };
            let wait = match asked {
                Ok(wait) => wait,
                Err(Failure::Unfit(unfit)) => self.unfit(&unfit).await,
                Err(Failure::Call(error)) => {
                    tracing::warn!(%error, "failed to list allocations");
                    if error.kind() == ErrorKind::NodeSecret {
                        self.unregistered();
                    }
                    let is_left = left.has_changed().unwrap_or_default();
                    let next = if is_left { NextServer::Another } else { NextServer::Same };
                    self.chance(|chance| after_failure(next, chance))
                }
            };
            if !wait.is_zero() {
                self.pause(wait).await;
            }
        }
    }

    /// Logs the problem and returns how long to wait.
    async fn unfit(&self, unfit: &Unfit) -> Duration {
        let wait = self.chance(|chance| after_unfit(unfit, chance));
        match unfit {
            Unfit::Unregistered => {
                tracing::warn!(%unfit, "listing allocations again");
                self.unregistered();
            }
            Unfit::Older { .. } => {
                tracing::error!(
                    %unfit,
                    "the servers were restored from an older state, or belong to another cluster; their state is accepted in a few minutes"
                );
                self.distrust_leader();
                // Wait unconditionally, whatever other calls succeed: this gives the leader time.
                sleep(wait).await;
                return Duration::ZERO;
            }
            Unfit::NoList | Unfit::Behind | Unfit::Missing(_) | Unfit::Old(_) => {
                tracing::info!(%unfit, "listing allocations again");
            }
        }
        wait
    }

    /// Asks once and passes on changes. Returns how long to wait before the next question.
    async fn listen(
        &self,
        watch: &mut Watch,
        block: Duration,
        runner: &impl Runner,
    ) -> Result<Duration, Failure> {
        let (asked, question) = (Instant::now(), watch.question());
        let block = if question.index == 0 { Duration::ZERO } else { block };
        let answer = self.list(question, block).await?;
        let index = answer.meta.index;
        let listing = match watch.listed(answer).map_err(Failure::Unfit)? {
            Meaning::Nothing => None,
            Meaning::Counts(listing) => Some(listing),
            Meaning::Doubtful => {
                tracing::info!(
                    index,
                    known = question.index,
                    "a list of allocations is doubtful; asking the leader"
                );
                // Boxed, here and below: the session mostly waits for a list, and should not hold memory for these steps.
                Box::pin(self.confirm(watch)).await?
            }
        };
        self.trust_leader();
        let Some(listing) = listing else {
            tracing::debug!(index, known = question.index, "a list has nothing new");
            return Ok(self.chance(|chance| after_nothing(asked.elapsed(), chance)));
        };
        Box::pin(self.take(watch, listing, runner)).await?;
        Ok(Duration::ZERO)
    }

    async fn list(&self, question: Question, block: Duration) -> Result<ClientAllocsResponse, CallError> {
        let request = |block| ClientAllocsRequest {
            node_id: self.identity.id.clone(),
            secret_id: self.identity.secret.clone(),
            options: self.query(question, block),
        };
        self.while_kept(self.pool.query("Node.GetClientAllocs", block, request)).await?.decode()
    }

    /// Has the leader confirm a doubtful list.
    async fn confirm(&self, watch: &mut Watch) -> Result<Option<Listing>, Failure> {
        let before = self.own_node().await?;
        let answer = self.list(Question::LATEST, Duration::ZERO).await?;
        let after = self.own_node().await?;
        let updates = lock(&self.shared.updates);
        let has_ended = |id: &AllocId| updates.has_ended(id);
        watch.confirmed(&before, answer, &after, has_ended, Instant::now()).map_err(Failure::Unfit)
    }

    /// The node as the leader returns it.
    async fn own_node(&self) -> Result<NodeResponse, CallError> {
        let request = |block| NodeRequest {
            node_id: self.identity.id.clone(),
            options: self.query(Question::LATEST, block),
        };
        self.while_kept(self.pool.query("Node.GetNode", Duration::ZERO, request)).await?.decode()
    }

    /// Records that the leader's lists can be accepted.
    fn trust_leader(&self) {
        self.shared.contact.send_if_modified(|contact| contact.disbelieved.take().is_some());
    }

    /// Records that the leader's lists cannot be accepted.
    fn distrust_leader(&self) {
        self.shared.contact.send_if_modified(|contact| {
            let is_news = contact.disbelieved.is_none();
            contact.disbelieved.get_or_insert_with(Heard::now);
            is_news
        });
    }

    async fn take(&self, watch: &mut Watch, listing: Listing, runner: &impl Runner) -> Result<(), Failure> {
        self.check_what_was_acknowledged().await?;
        let (mut fetched, mut unreadable) = (Vec::new(), Vec::new());
        let (mut batches, mut again): (Vec<_>, _) = (listing.batches().collect(), None);
        while let Some(batch) = batches.pop() {
            match self.fetch(&batch).await {
                Ok(answer) => fetched.extend(listing.fetched(&batch, answer).map_err(Failure::Unfit)?),
                Err(error) if watch::is_unreadable(&error) => match listing.halves(&batch) {
                    Some(halves) => batches.extend(halves),
                    // A single failure may be transient.
                    None if again.as_ref() != Some(&batch) => {
                        again = Some(batch.clone());
                        batches.push(batch);
                    }
                    None => unreadable.extend(batch.ids.into_iter().map(|id| {
                        tracing::error!(alloc = %id, %error, "an allocation cannot be decoded");
                        (id, error.to_string())
                    })),
                },
                Err(error) => return Err(error.into()),
            }
        }
        let is_anew = listing.is_restored();
        if is_anew {
            tracing::error!("the servers were restored from an older state, which is accepted from now on");
            lock(&self.shared.updates).restart_from_snapshot();
            self.shared.acknowledged.notify_one();
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
            tracing::info!(index = desired.index, changed, removed, unreadable, "allocations have changed");
            runner.apply(desired).await;
        }
        watch.applied(listing, held);
        if is_first {
            // Covers allocations that ended while no server was reachable, and those that servers consider lost.
            runner.report_again();
            lock(&self.shared.updates).open();
            self.shared.contact.send_modify(|contact| contact.is_listed = true);
        } else if is_anew {
            runner.report_again();
        }
        // Reports made during `apply` may be due now.
        self.shared.report_came.notify_one();
        Ok(())
    }

    /// Drops what servers acknowledged to the previous session unless their state still agrees with it.
    async fn check_what_was_acknowledged(&self) -> Result<(), Failure> {
        let Some(index) = lock(&self.shared.updates).remembered() else { return Ok(()) };
        let node = self.own_node().await?.node;
        if !acknowledged::is_known_to(index, node.as_ref()) {
            tracing::info!(index, "servers may have lost acknowledged reports; sending all again");
            lock(&self.shared.updates).forget();
        }
        Ok(())
    }

    async fn fetch(&self, batch: &Batch) -> Result<AllocsResponse, CallError> {
        let question = Question { index: batch.index, responder: Responder::AnyServer };
        let request =
            |block| AllocsRequest { alloc_ids: batch.ids.clone(), options: self.query(question, block) };
        self.while_kept(self.pool.query("Alloc.GetAllocs", FETCH, request)).await?.decode()
    }
}
