//! Leaving: asks servers to drain the node, and waits for the end of the drain.
//!
//! In: drain options, and a future for when all local allocations have ended. Out: the result. Nothing waits for unresponsive servers
//! without limit: shutting down must terminate.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use herdlet_rpc::{Service, codec::Time, connect::Dial, error::CallError};
use tokio::time::{Instant, sleep, timeout};

use super::{Newer, Queries};
use crate::wire::{
    node::DrainStrategy,
    registration::{DrainRequest, NodeUpdateResponse},
};

/// Time limit for servers to accept the request.
const ASKED: Duration = Duration::from_secs(15);

/// How long servers may then be unreachable: longer than an election.
const LOST: Duration = Duration::from_secs(60);

/// Wait between two failed queries.
const PAUSE: Duration = Duration::from_secs(2);

/// Servers end the drain at the deadline; the node learns that a little later.
const AFTER: Duration = Duration::from_secs(5);

/// Time limit for allocations that servers stop at the deadline to end and be reported: longer than any common `kill_timeout`.
const ENDS: Duration = Duration::from_secs(60);

/// Drain options.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drain {
    /// Time limit; `None` for no limit.
    pub deadline: Option<Duration>,
    /// Stop everything at once, whatever the jobs' `migrate` blocks say.
    pub force: bool,
    /// Do not stop system jobs.
    pub ignore_system_jobs: bool,
}

/// Why a node leaves without having been drained. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// No server answered.
    #[error("request the drain from the servers: none answered within {} s", ASKED.as_secs())]
    Unanswered,
    /// Servers refused the request, or none are known.
    #[error("request the drain from the servers")]
    Refused(#[source] CallError),
    /// Servers became unreachable during the drain.
    #[error("learn from the servers whether the drain has ended: none answered for {} s", LOST.as_secs())]
    Lost,
    /// The deadline has passed.
    #[error("complete the drain before its deadline")]
    Late,
    /// The drain is over, but not all allocations have ended.
    #[error("end all allocations that the servers stopped within {} s", ENDS.as_secs())]
    Left,
}

impl Drain {
    fn strategy(self) -> DrainStrategy {
        let now = SystemTime::now();
        let nanos = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
        // The value that `nomad node drain -force` sends.
        let at_once = -nanos(Duration::from_secs(1));
        let ends = self.deadline.filter(|_| !self.force).and_then(|deadline| now.checked_add(deadline));
        DrainStrategy {
            deadline: if self.force { at_once } else { self.deadline.map_or(0, nanos) },
            ignore_system_jobs: self.ignore_system_jobs,
            force_deadline: ends.map(Time::from).unwrap_or_default(),
            started_at: Time::from(now),
        }
    }
}

impl<S: Service, D: Dial> Queries<S, D> {
    /// Has servers drain the node. Returns once servers report the end of the drain and all local allocations have ended and were reported.
    /// If servers stop answering, it returns once `all_ended` completes: all local allocations that must end have ended. Dropping the
    /// future is safe: the drain continues.
    ///
    /// # Errors
    /// See [`DrainError`]. Allocations keep running.
    pub async fn drain<F: Future<Output = ()>>(
        &self,
        how: Drain,
        all_ended: impl Fn() -> F,
    ) -> Result<(), DrainError> {
        let request = |options| DrainRequest {
            node_id: self.node_id().clone(),
            drain_strategy: Some(how.strategy()),
            mark_eligible: false,
            meta: BTreeMap::from([("message".to_owned(), "shutting down".to_owned())]),
            options,
        };
        let asked =
            timeout(ASKED, self.send_once::<_, NodeUpdateResponse>("Node.UpdateDrain", request)).await;
        asked.map_err(|_| DrainError::Unanswered)?.map_err(DrainError::Refused)?;
        let drained = self.drained(all_ended());
        let drained = match how.deadline {
            Some(deadline) => timeout(deadline + AFTER, drained).await.unwrap_or(Err(DrainError::Late)),
            None => drained.await,
        };
        drained?;
        // At the deadline, servers end the drain before they stop the remaining allocations.
        timeout(ENDS, all_ended()).await.map_err(|_| DrainError::Left)?;
        // Servers that miss these reports will consider the allocations lost.
        let _ = timeout(AFTER, self.until_acknowledged()).await;
        Ok(())
    }

    async fn drained(&self, all_ended: impl Future<Output = ()>) -> Result<(), DrainError> {
        tokio::pin!(all_ended);
        let mut newer = Newer::Now;
        let mut failing: Option<Instant> = None;
        loop {
            // A blocking query ends with its connection; one that does not block could hang for too long.
            let asked = async {
                let answer = self.node(self.node_id(), newer);
                match newer {
                    Newer::Now => timeout(ASKED, answer).await.unwrap_or(Err(CallError::Late(ASKED))),
                    Newer::Than(_) | Newer::Within { .. } => answer.await,
                }
            };
            let error = match asked.await {
                Ok(answer) => {
                    let drains = answer.node.is_some_and(|node| node.drain_strategy.is_some());
                    if !drains {
                        return Ok(());
                    }
                    (newer, failing) = (Newer::Than(answer.meta.index), None);
                    continue;
                }
                Err(error) => error,
            };
            tracing::warn!(%error, "failed to query whether the drain has ended");
            if failing.get_or_insert_with(Instant::now).elapsed() >= LOST {
                return Err(DrainError::Lost);
            }
            newer = Newer::Now;
            tokio::select! {
                () = &mut all_ended => return Ok(()),
                () = sleep(PAUSE) => {}
            }
        }
    }
}
