//! Heartbeats: one in each TTL, and one more when servers have to hear of allocations before the node is ready.
//!
//! An answer that says that the node's status has changed, and is not the first one, tells that servers had taken the node for dead: what
//! goes on is told again. The clock would tell nothing, as it stands still while the machine is suspended. From 1.3 on a node that was
//! away, or has registered anew, gets no work before its allocations were told of, and a heartbeat came after that
//! (`nomad/node_endpoint.go`, `UpdateStatus`): that one is sent as soon as they were.

use std::time::Duration;

use herdlet_rpc::{Service, call::Reply, connect::Dial, error::CallError};
use tokio::time::{Instant, sleep, sleep_until};

use super::{Inner, lock};
use crate::{
    decide::contact::{
        Beat, HEARD_WITHIN, Meaning, asks_another, beat_again, denied_again, first_beat, meaning, next_beat,
    },
    seam::Runner,
    wire::{
        NodeStatus,
        registration::{NodeUpdateResponse, NodeUpdateStatusRequest},
    },
};

const UPDATE: &str = "Node.UpdateStatus";

/// As many servers are asked for one heartbeat: the first three of a cluster, and two more where it is larger.
const ASKED: usize = 5;

impl<S: Service, D: Dial> Inner<S, D> {
    pub(super) async fn heartbeats(&self, runner: &impl Runner) {
        let mut last: Option<Beat> = None;
        loop {
            self.registered().await;
            let nodes = self.shared.contact.borrow().nodes;
            sleep(self.chance(|chance| first_beat(nodes, chance))).await;
            let mut is_first = true;
            // This heartbeat asks for the status that servers give once they know of the allocations.
            let mut is_told = false;
            loop {
                // Servers count from when they hear it, at the earliest.
                let asked = Instant::now();
                let error = match self.heartbeat().await {
                    Ok(answer) => {
                        let has_changed = answer.meta.index != 0 && !is_told;
                        if has_changed && last.is_some() {
                            // Or they have signed another identity, which changes the node, too. Both may have happened.
                            if answer.signed_identity.is_none() {
                                tracing::warn!("servers may have taken the node for dead");
                                self.shared.contact.send_modify(|contact| contact.losses += 1);
                            }
                            lock(&self.shared.updates).missed();
                            runner.report_again();
                        }
                        let ttl = next_beat(answer.heartbeat_ttl);
                        last = Some(Beat { at: asked, ttl });
                        is_first = false;
                        is_told = self.rest_until(asked + ttl, has_changed).await;
                        continue;
                    }
                    Err(error) => error,
                };
                tracing::warn!(%error, "a heartbeat failed");
                self.missed();
                let meaning = meaning(&error);
                match meaning {
                    Meaning::Unregistered => {
                        if is_first {
                            self.pause(self.chance(denied_again)).await;
                        }
                        self.unregistered();
                        break;
                    }
                    Meaning::NoLeader | Meaning::Failed => {
                        let now = Instant::now();
                        self.pause(self.chance(|chance| beat_again(last, meaning, now, chance))).await;
                    }
                }
            }
        }
    }

    /// Waits for the next heartbeat. Where the node's status `has_changed` until then or until servers were told of what goes on: true.
    async fn rest_until(&self, due: Instant, has_changed: bool) -> bool {
        let is_listed = self.shared.contact.borrow().is_listed;
        let waits = has_changed && !(is_listed && lock(&self.shared.updates).all_has_ended());
        // Nothing is told before this is awaited: whoever tells is a part of the same task.
        tokio::select! {
            () = sleep_until(due) => false,
            () = self.shared.told.notified(), if waits => true,
        }
    }

    /// To say twice that one lives does no harm: where a server hangs, or a connection is lost, the next server hears it.
    async fn heartbeat_anywhere(
        &self,
        servers: usize,
        request: impl Fn() -> NodeUpdateStatusRequest,
    ) -> Result<Reply, CallError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let error = match self.pool.once(UPDATE, &request(), HEARD_WITHIN).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if !asks_another(&error) {
                return Err(error);
            }
            if tries >= servers {
                return Err(error);
            }
            tracing::info!(%error, "another server is told that the node lives");
        }
    }

    async fn heartbeat(&self) -> Result<NodeUpdateResponse, CallError> {
        let wanted = lock(&self.tokens).is_wanted();
        let request = || NodeUpdateStatusRequest {
            node_id: self.identity.id.clone(),
            status: NodeStatus::Ready,
            force_identity_renewal: wanted,
            options: self.write(lock(&self.tokens).to_call()),
        };
        let servers = self.pool.servers().len().min(ASKED);
        let answer = if servers < 2 {
            self.pool.query(UPDATE, Duration::ZERO, |_| request()).await?
        } else {
            self.heartbeat_anywhere(servers, request).await?
        };
        let answer: NodeUpdateResponse = answer.decode()?;
        self.heard(&answer);
        Ok(answer)
    }
}
