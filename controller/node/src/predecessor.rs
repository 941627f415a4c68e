//! Waits for the ends of allocations on other nodes, so that their successors can start, and fetches their disks.
//!
//! In: ids of allocations. Out: an event for the planner once servers report that an allocation has ended, is unknown with its node, or was
//! deleted; before that, its disk ([`mover`]) for its successor.
//!
//! Facts: `hashicorp/nomad:client/allocwatcher/alloc_watcher.go` (`remotePrevAlloc.Wait`).

pub mod mover;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use herdlet_agent::{planner::Input, publish::ReadModel};
use herdlet_api_types::{AllocId, alloc::Desired};
use herdlet_nomad::{
    session::{Newer, Queries},
    wire::{ClientStatus, NodeId, Secret},
};
use herdlet_plan::event::{DesiredChange, Event};
use herdlet_rpc::{
    Service,
    connect::Dial,
    error::{CallError, ErrorKind},
};
use herdlet_runtime::{Inbox, off_thread};
use tokio::{sync::mpsc, task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use self::mover::{MoveError, Mover};
use super::report;

/// Capacity of the channel of requests; senders wait while it is full.
pub const WAITING_MAX: usize = 64;

/// Wait after a failed query.
const AGAIN: Duration = Duration::from_secs(30);

/// How often a denied query is repeated: a node that re-registers after servers forgot it is denied for a moment.
const REFUSED_MAX: u32 = 3;

/// An allocation on another node whose end is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Awaited {
    pub id: AllocId,
    /// The allocation that takes over its disk, if any.
    pub successor: Option<AllocId>,
}

/// The mover, and the read model with the allocations that want disks; `None` if no disks are moved.
pub type Moving = Option<Arc<(Mover, Arc<ReadModel>)>>;

/// Handles requests until the channel closes.
pub async fn follow<S: Service, D: Dial>(
    mut asked: mpsc::Receiver<Awaited>,
    queries: Queries<S, D>,
    inbox: Inbox<Input>,
    moving: Moving,
) {
    // By predecessor, the successors that take over its disk: each pair is handled once.
    let mut followed: BTreeMap<AllocId, Vec<Option<AllocId>>> = BTreeMap::new();
    let mut waits = JoinSet::new();
    loop {
        tokio::select! {
            awaited = asked.recv() => {
                let Some(Awaited { id, successor }) = awaited else { return };
                let known = followed.entry(id).or_default();
                if known.contains(&successor) {
                    continue;
                }
                known.push(successor);
                let (queries, moving) = (queries.clone(), moving.clone());
                waits.spawn(async move {
                    let node = ended(id, &queries).await;
                    if let (Some(successor), Some(node), Some(moving)) = (successor, node, moving) {
                        bring(id, node, successor, &queries, &moving).await;
                    }
                    (id, successor)
                });
            }
            Some(ended) = waits.join_next() => {
                let Ok((id, successor)) = ended else { continue };
                let Some(left) = followed.get_mut(&id) else { continue };
                left.retain(|known| *known != successor);
                if !left.is_empty() {
                    // A disk is still being transferred.
                    continue;
                }
                followed.remove(&id);
                let event = Event::Desired(DesiredChange::EndedElsewhere(id));
                if inbox.send(Input::Event(event)).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Waits until servers know that it no longer runs. Returns its node; `None` if servers do not know the allocation.
async fn ended<S: Service, D: Dial>(id: AllocId, queries: &Queries<S, D>) -> Option<NodeId> {
    let mut newer = Newer::Now;
    let mut refused = 0;
    loop {
        match queries.alloc(&report::id(id), newer).await {
            Ok(answer) => {
                let alloc = answer.alloc?;
                if alloc.client_status.is_terminal() || alloc.client_status == ClientStatus::Unknown {
                    return Some(alloc.node_id);
                }
                newer = Newer::Than(answer.meta.index);
                refused = 0;
            }
            Err(CallError::Server(error)) if error.kind() == ErrorKind::UnknownAllocation => return None,
            // Servers keep refusing, so waiting longer would never end.
            Err(CallError::Server(error))
                if error.kind() == ErrorKind::PermissionDenied && refused == REFUSED_MAX =>
            {
                tracing::warn!(alloc = %id, %error, "servers refuse to report whether an allocation has ended; assuming that it has");
                return None;
            }
            Err(error) => {
                let is_refused = error.kind() == ErrorKind::PermissionDenied;
                refused = if is_refused { refused + 1 } else { 0 };
                tracing::warn!(alloc = %id, %error, "failed to query whether an allocation has ended; retrying");
                sleep(AGAIN).await;
            }
        }
    }
}

/// Fetches the disk, or logs why not: the successor starts either way.
async fn bring<S: Service, D: Dial>(
    id: AllocId,
    node: NodeId,
    successor: AllocId,
    queries: &Queries<S, D>,
    moving: &(Mover, Arc<ReadModel>),
) {
    let (mover, model) = moving;
    if node == mover.node {
        // The allocation was on this node and is already collected.
        return;
    }
    let unwanted = CancellationToken::new();
    let fetch = async {
        let known = queries.node(&node, Newer::Now).await;
        let known = known.map_err(|error| MoveError::Node(error.to_string()))?.node;
        let known = known.ok_or_else(|| MoveError::Node("servers do not know it".to_owned()))?;
        let tokens = Arc::clone(&mover.tokens);
        let token: Secret = match off_thread(move || tokens.of_disk(successor)).await {
            Ok(Ok(token)) => token,
            Ok(Err(error)) => return Err(MoveError::Machine(error.to_string())),
            Err(error) => return Err(MoveError::Machine(error.to_string())),
        };
        mover.fetch(id, &known, successor, &token, &unwanted).await
    };
    tokio::pin!(fetch);
    let fetched = tokio::select! {
        fetched = &mut fetch => fetched,
        () = is_unwanted(successor, model) => {
            unwanted.cancel();
            fetch.await
        }
    };
    match fetched {
        Ok(()) => tracing::info!(alloc = %successor, previous = %id, "received a disk from another node"),
        Err(MoveError::Unwanted) => {}
        Err(error) => {
            tracing::warn!(
                alloc = %successor, previous = %id, %node, %error,
                "failed to fetch a disk from another node; the allocation starts with an empty one"
            );
        }
    }
}

/// Waits until a published allocation should no longer start.
async fn is_unwanted(id: AllocId, model: &ReadModel) {
    let mut was_shown = false;
    loop {
        let version = model.version();
        match model.alloc(&id) {
            Some(view) if view.spec.desired != Desired::Run || view.status.is_terminal() => return,
            Some(_) => was_shown = true,
            None if was_shown => return,
            None => {}
        }
        model.changed(version).await;
    }
}

#[cfg(test)]
pub(super) mod tests;
