//! Heartbeats: one per TTL, and an extra one as soon as servers have the reports of a node that was away.

use std::time::Duration;

use herdlet_rpc::{Service, call::Reply, connect::Dial, error::CallError};
use tokio::time::{Instant, sleep, sleep_until};

use super::Inner;
use crate::{
    decide::{
        contact::{
            self, Beat, HEARD_WITHIN, beat_again, denied_again, first_beat, next_beat, should_switch_server,
        },
        status_tracker::{Meaning, StatusTracker, Transition},
    },
    reports::lock,
    seam::Runner,
    wire::{
        NodeStatus,
        registration::{NodeUpdateResponse, NodeUpdateStatusRequest},
    },
};

const UPDATE: &str = "Node.UpdateStatus";

/// Maximum number of servers tried per heartbeat: all three of a common cluster, and two more in a larger one.
const ASKED: usize = 5;

impl<S: Service, D: Dial> Inner<S, D> {
    pub(super) async fn heartbeats(&self, runner: &impl Runner) {
        let mut last: Option<Beat> = None;
        let mut standing = StatusTracker::default();
        loop {
            self.registered().await;
            let (nodes, ttl) = {
                let contact = self.shared.contact.borrow();
                (contact.nodes, contact.ttl)
            };
            // A TTL of zero means that servers have marked the node as down: they accept no reports until its heartbeat.
            if !ttl.is_zero() {
                sleep(self.chance(|chance| first_beat(nodes, chance))).await;
            }
            let mut is_first = true;
            loop {
                // Measure from the request: servers start the TTL when they receive it, at the earliest.
                let asked = Instant::now();
                let error = match self.heartbeat().await {
                    Ok(answer) => {
                        self.on_heartbeat_answer(&answer, &mut standing, runner);
                        let ttl = next_beat(answer.heartbeat_ttl);
                        last = Some(Beat { at: asked, ttl });
                        is_first = false;
                        self.rest_until(asked + ttl, &mut standing).await;
                        continue;
                    }
                    Err(error) => error,
                };
                standing.failed();
                tracing::warn!(%error, "a heartbeat failed");
                self.missed();
                let meaning = contact::meaning(&error);
                match meaning {
                    contact::Meaning::Unregistered => {
                        if is_first {
                            self.pause(self.chance(denied_again)).await;
                        }
                        self.unregistered();
                        break;
                    }
                    contact::Meaning::NoLeader | contact::Meaning::Failed => {
                        let now = Instant::now();
                        self.pause(self.chance(|chance| beat_again(last, meaning, now, chance))).await;
                    }
                }
            }
        }
    }

    /// Repeats reports to servers that may not have them.
    fn on_heartbeat_answer(
        &self,
        answer: &NodeUpdateResponse,
        standing: &mut StatusTracker,
        runner: &impl Runner,
    ) {
        let is_listed = self.shared.contact.borrow().is_listed;
        let has_nothing_to_tell = is_listed && lock(&self.shared.updates).all_has_ended();
        // Servers return an index only if the heartbeat has changed the node.
        let transition = if answer.meta.index == 0 { Transition::None } else { Transition::Changed };
        match standing.on_heartbeat_answer(transition) {
            Meaning::Expected => {}
            // Before the first list nothing was reported, and earlier acknowledgements are checked against the servers' state.
            Meaning::First if !is_listed || has_nothing_to_tell => {}
            meaning @ (Meaning::First | Meaning::Lost) => {
                // A new signed identity also changes the node. Both may have happened.
                if meaning == Meaning::Lost && answer.signed().is_none() {
                    tracing::warn!("servers may have marked the node as down");
                    self.shared.contact.send_modify(|contact| contact.losses += 1);
                }
                lock(&self.shared.updates).missed();
                self.shared.acknowledged.notify_one();
                runner.report_again();
            }
        }
        if has_nothing_to_tell {
            standing.on_no_updates();
        }
    }

    /// Waits until the next heartbeat is due.
    async fn rest_until(&self, due: Instant, standing: &mut StatusTracker) {
        // Reports cannot be acknowledged before this wait starts: the updates are part of the same task.
        loop {
            tokio::select! {
                () = sleep_until(due) => return,
                () = self.shared.report_acknowledged.notified(), if standing.awaits_reports() => {}
            }
            // Once the node is ready, servers may replace allocations that they have no report on.
            if lock(&self.shared.updates).is_all_live_acknowledged() {
                return standing.on_updates_acknowledged();
            }
        }
    }

    /// Sends a heartbeat. Repeating one is harmless, so if a server hangs or a connection is lost, the next server gets it.
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
            if !should_switch_server(&error) {
                return Err(error);
            }
            if tries >= servers {
                return Err(error);
            }
            tracing::info!(%error, "sending the heartbeat to another server");
        }
    }

    async fn heartbeat(&self) -> Result<NodeUpdateResponse, CallError> {
        let wanted = lock(&self.tokens).is_due();
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
        self.on_node_update(&answer);
        Ok(answer)
    }
}
