//! Heartbeats: one in each TTL, and one more as soon as servers have heard what goes on on a node that was away.

use std::time::Duration;

use herdlet_rpc::{Service, call::Reply, connect::Dial, error::CallError};
use tokio::time::{Instant, sleep, sleep_until};

use super::Inner;
use crate::{
    decide::{
        contact::{self, Beat, HEARD_WITHIN, asks_another, beat_again, denied_again, first_beat, next_beat},
        standing::{Meaning, Standing},
    },
    reports::lock,
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
        let mut standing = Standing::default();
        loop {
            self.registered().await;
            let (nodes, ttl) = {
                let contact = self.shared.contact.borrow();
                (contact.nodes, contact.ttl)
            };
            // Servers that give no time at all have taken the node for dead: until they have heard it, they take no reports.
            if !ttl.is_zero() {
                sleep(self.chance(|chance| first_beat(nodes, chance))).await;
            }
            let mut is_first = true;
            loop {
                // Servers count from when they hear it, at the earliest.
                let asked = Instant::now();
                let error = match self.heartbeat().await {
                    Ok(answer) => {
                        self.answered(&answer, &mut standing, runner);
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

    /// What goes on is told again to servers that may not know it.
    fn answered(&self, answer: &NodeUpdateResponse, standing: &mut Standing, runner: &impl Runner) {
        let is_listed = self.shared.contact.borrow().is_listed;
        let has_nothing_to_tell = is_listed && lock(&self.shared.updates).all_has_ended();
        match standing.answered(answer.meta.index != 0) {
            Meaning::Expected => {}
            // Before the first list nothing was told, and what was acknowledged before is held against what servers know.
            Meaning::First if !is_listed || has_nothing_to_tell => {}
            meaning @ (Meaning::First | Meaning::Lost) => {
                // Or they have signed another identity, which changes the node, too. Both may have happened.
                if meaning == Meaning::Lost && answer.signed().is_none() {
                    tracing::warn!("servers may have taken the node for dead");
                    self.shared.contact.send_modify(|contact| contact.losses += 1);
                }
                lock(&self.shared.updates).missed();
                self.shared.acknowledged.notify_one();
                runner.report_again();
            }
        }
        if has_nothing_to_tell {
            standing.has_nothing_to_tell();
        }
    }

    /// Waits for the next heartbeat.
    async fn rest_until(&self, due: Instant, standing: &mut Standing) {
        // Nothing is told before this is awaited: whoever tells is a part of the same task.
        loop {
            tokio::select! {
                () = sleep_until(due) => return,
                () = self.shared.told.notified(), if standing.awaits_reports() => {}
            }
            // Once the node is ready, what they don't know of may be replaced.
            if lock(&self.shared.updates).all_that_goes_on_is_told() {
                return standing.told();
            }
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
