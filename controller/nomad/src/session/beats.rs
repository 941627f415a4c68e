//! Heartbeats.

use std::time::Duration;

use herdlet_rpc::{Service, connect::Dial, error::CallError};
use tokio::time::{Instant, sleep};

use super::{Inner, lock};
use crate::{
    decide::contact::{
        Beat, HEARD_WITHIN, Meaning, asks_another, beat_again, denied_again, first_beat, meaning, next_beat,
        was_missed,
    },
    seam::Runner,
    wire::{
        NodeStatus,
        registration::{NodeUpdateResponse, NodeUpdateStatusRequest},
    },
};

const UPDATE: &str = "Node.UpdateStatus";

impl<S: Service, D: Dial> Inner<S, D> {
    pub(super) async fn heartbeats(&self, runner: &impl Runner) {
        let mut last: Option<Beat> = None;
        loop {
            self.registered().await;
            sleep(self.chance(first_beat)).await;
            let mut is_first = true;
            loop {
                // Servers count from when they hear it, at the earliest.
                let asked = Instant::now();
                let error = match self.heartbeat().await {
                    Ok(answer) => {
                        if was_missed(last, answer.meta.index) {
                            tracing::warn!("servers may have taken the node for dead");
                            lock(&self.shared.updates).missed();
                            runner.report_again();
                        }
                        last = Some(Beat { at: asked, ttl: answer.heartbeat_ttl });
                        is_first = false;
                        tokio::time::sleep_until(asked + next_beat(answer.heartbeat_ttl)).await;
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

    async fn heartbeat(&self) -> Result<NodeUpdateResponse, CallError> {
        let request = || NodeUpdateStatusRequest {
            node_id: self.identity.id.clone(),
            status: NodeStatus::Ready,
            force_identity_renewal: false,
            options: self.write(lock(&self.tokens).to_call()),
        };
        // To say twice that one lives does no harm: where a server hangs, or a connection is lost, the next server hears it.
        let hasty = match self.pool.servers().len() {
            0 | 1 => None,
            _ => Some(self.pool.once(UPDATE, &request(), HEARD_WITHIN).await),
        };
        let answer = match hasty {
            Some(Err(error)) if asks_another(&error) => {
                tracing::info!(%error, "another server is told that the node lives");
                self.pool.query(UPDATE, Duration::ZERO, |_| request()).await?
            }
            Some(answered) => answered?,
            None => self.pool.query(UPDATE, Duration::ZERO, |_| request()).await?,
        };
        let answer: NodeUpdateResponse = answer.decode()?;
        self.heard(&answer);
        Ok(answer)
    }
}
