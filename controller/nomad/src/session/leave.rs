//! Leaving: servers are asked to drain the node, and the end of that is waited for.
//!
//! In: how, and when all that is to end has ended here. Out: how that went. Nothing waits for servers that don't answer: who leaves has to
//! come to an end.

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

/// Servers have to take the wish within this time.
const ASKED: Duration = Duration::from_secs(15);

/// For so long servers that have taken it may then be out of reach: an election takes less.
const LOST: Duration = Duration::from_secs(60);

/// Between two questions that fail.
const PAUSE: Duration = Duration::from_secs(2);

/// Servers end what is left at the deadline. That they have done so is seen a little later.
const AFTER: Duration = Duration::from_secs(5);

/// What servers ask to end at the deadline has so long for it, and to be told: more than any `kill_timeout` that is usual.
const ENDS: Duration = Duration::from_secs(60);

/// How a node is to be drained.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drain {
    /// How long it may take; none: as long as it does.
    pub deadline: Option<Duration>,
    /// Everything ends at once, whatever its job says of migration.
    pub force: bool,
    /// System jobs stay.
    pub ignore_system_jobs: bool,
}

/// Why a node leaves without having been drained. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// No server answers.
    #[error("ask servers for it: none has answered within {} s", ASKED.as_secs())]
    Unanswered,
    /// They don't want to, or there are none.
    #[error("ask servers for it")]
    Refused(#[source] CallError),
    /// They are gone meanwhile.
    #[error("hear from servers whether it is over: none has answered for {} s", LOST.as_secs())]
    Lost,
    /// The deadline has passed.
    #[error("drain it before its deadline")]
    Late,
    /// It is over, and not all has ended.
    #[error("end what servers have stopped within {} s", ENDS.as_secs())]
    Left,
}

impl Drain {
    fn strategy(self) -> DrainStrategy {
        let now = SystemTime::now();
        let nanos = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
        // As `nomad node drain -force` says it.
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
    /// Lets servers drain the node. Returns once they say that this is over, and all has ended here and was told; where they don't answer any
    /// more, once `all_ended` does: what is to end has ended here. It may be dropped at any time: the drain goes on.
    ///
    /// # Errors
    /// See [`DrainError`]. What runs goes on.
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
        let asked = timeout(ASKED, self.tell::<_, NodeUpdateResponse>("Node.UpdateDrain", request)).await;
        asked.map_err(|_| DrainError::Unanswered)?.map_err(DrainError::Refused)?;
        let drained = self.drained(all_ended());
        let drained = match how.deadline {
            Some(deadline) => timeout(deadline + AFTER, drained).await.unwrap_or(Err(DrainError::Late)),
            None => drained.await,
        };
        drained?;
        // At the deadline a drain is over for servers before they stop what is left.
        timeout(ENDS, all_ended()).await.map_err(|_| DrainError::Left)?;
        // Who does not hear it any more takes it for lost.
        let _ = timeout(AFTER, self.told()).await;
        Ok(())
    }

    async fn drained(&self, all_ended: impl Future<Output = ()>) -> Result<(), DrainError> {
        tokio::pin!(all_ended);
        let mut newer = Newer::Now;
        let mut failing: Option<Instant> = None;
        loop {
            // One that waits is given up with the connection; one that doesn't wait may hang for longer than anybody wants to.
            let asked = async {
                let answer = self.node(self.node_id(), newer);
                match newer {
                    Newer::Now => timeout(ASKED, answer).await.unwrap_or(Err(CallError::Late(ASKED))),
                    Newer::Than(_) => answer.await,
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
            tracing::warn!(%error, "servers don't say whether the node is drained");
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
