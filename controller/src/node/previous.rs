//! The ends of allocations on other nodes: what takes the place of one begins only then.
//!
//! In: their ids. Out: word to the planner once servers say that one has ended, is unknown to them with its node, or was forgotten.
//!
//! Facts: `hashicorp/nomad:client/allocwatcher/alloc_watcher.go` (`remotePrevAlloc.Wait`).

use std::{collections::BTreeSet, time::Duration};

use herdlet_api_types::AllocId;
use herdlet_nomad::{
    session::{Newer, Queries},
    wire::ClientStatus,
};
use herdlet_plan::event::{DesiredChange, Event};
use herdlet_rpc::{Service, connect::Dial};
use herdlet_runtime::Inbox;
use tokio::{sync::mpsc, task::JoinSet, time::sleep};

use super::report;
use crate::planner::Input;

/// So many are told before they are followed; whoever tells of more waits for a moment.
pub const WAITING_MAX: usize = 64;

/// Between a question that failed and the next.
const AGAIN: Duration = Duration::from_secs(30);

/// Follows all of them, until nobody asks any more.
pub async fn follow<S: Service, D: Dial>(
    mut asked: mpsc::Receiver<AllocId>,
    queries: Queries<S, D>,
    inbox: Inbox<Input>,
) {
    let mut followed = BTreeSet::new();
    let mut waits = JoinSet::new();
    loop {
        tokio::select! {
            id = asked.recv() => {
                let Some(id) = id else { return };
                if followed.insert(id) {
                    let queries = queries.clone();
                    waits.spawn(async move { ended(id, &queries).await; id });
                }
            }
            Some(ended) = waits.join_next() => {
                let Ok(id) = ended else { continue };
                followed.remove(&id);
                let event = Event::Desired(DesiredChange::EndedElsewhere(id));
                if inbox.send(Input::Event(event)).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Resolves when it doesn't run any more, as far as servers know.
async fn ended<S: Service, D: Dial>(id: AllocId, queries: &Queries<S, D>) {
    let mut newer = Newer::Now;
    loop {
        match queries.alloc(&report::id(id), newer).await {
            Ok(answer) => {
                let over = answer.alloc.as_ref().is_none_or(|alloc| {
                    alloc.client_status.is_terminal() || alloc.client_status == ClientStatus::Unknown
                });
                if over {
                    return;
                }
                newer = Newer::Than(answer.meta.index);
            }
            Err(error) => {
                tracing::warn!(alloc = %id, %error, "servers can't be asked whether an allocation has ended");
                sleep(AGAIN).await;
            }
        }
    }
}
