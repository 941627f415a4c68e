//! Telling servers how allocations are.

use std::time::Duration;

use herdlet_rpc::{Service, connect::Dial};
use tokio::time::{Instant, sleep_until};

use super::Inner;
use crate::reports::lock;
use crate::wire::{queries::AllocUpdateRequest, registration::GenericResponse};

const METHOD: &str = "Node.UpdateAlloc";

/// Servers gather reports for 50 ms, and may look for a leader for 5 s. Who takes longer than this is busy or hangs, and is told again.
const WITHIN: Duration = Duration::from_secs(15);

impl<S: Service, D: Dial> Inner<S, D> {
    pub(super) async fn updates(&self) {
        loop {
            self.registered().await;
            let now = Instant::now();
            let due = lock(&self.shared.updates).due(now);
            match due {
                Some(at) if at <= now => self.update().await,
                Some(at) => self.rest(at, now).await,
                None => self.shared.report_came.notified().await,
            }
        }
    }

    /// Waits for what is due, or for something that may be due sooner. After a failure: for the next heartbeat or registration that is
    /// answered, since servers take reports again once they have heard of a node that was away. That other calls succeed means nothing.
    async fn rest(&self, until: Instant, now: Instant) {
        if !lock(&self.shared.updates).is_held(now) {
            tokio::select! {
                () = sleep_until(until) => {}
                () = self.shared.report_came.notified() => {}
            }
            return;
        }
        let mut contact = self.shared.contact.subscribe();
        let heard = contact.wait_for(|contact| contact.last.is_some_and(|last| last.at > now));
        tokio::select! {
            () = sleep_until(until) => {}
            Ok(_) = heard => {}
        }
        lock(&self.shared.updates).release();
    }

    async fn update(&self) {
        let alloc = lock(&self.shared.updates).begin(Instant::now());
        if alloc.is_empty() {
            return;
        }
        let options = self.write(lock(&self.tokens).to_call());
        let request = AllocUpdateRequest { alloc, options };
        // To say twice how something is does no harm: where a connection is lost, the next server hears it.
        let call = self.pool.query_within(METHOD, Duration::ZERO, |_| &request, WITHIN);
        match self.while_kept(call).await {
            Ok(answer) => {
                // Without an index the next agent tells everything once more.
                let GenericResponse { index } = answer.decode().unwrap_or_default();
                lock(&self.shared.updates).done(index);
                self.shared.told.notify_waiters();
                self.shared.acknowledged.notify_one();
            }
            Err(error) => {
                tracing::warn!(%error, reports = request.alloc.len(), "allocations could not be reported");
                let now = Instant::now();
                self.chance(|chance| lock(&self.shared.updates).failed(request.alloc, now, chance));
            }
        }
    }
}
