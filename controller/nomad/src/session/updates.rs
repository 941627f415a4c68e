//! Sends reports on allocations to servers.

use std::time::Duration;

use herdlet_rpc::{Service, connect::Dial};
use tokio::time::{Instant, sleep_until};

use super::Inner;
use crate::reports::lock;
use crate::wire::{queries::AllocUpdateRequest, registration::GenericResponse};

const METHOD: &str = "Node.UpdateAlloc";

/// Time limit: servers batch reports for 50 ms, and may wait 5 s for a leader. A slower server is busy or hangs, and the reports are sent
/// again.
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

    /// Waits until a call is due, or a report may have made one due earlier. After a failure, waits for the next answered heartbeat or
    /// registration instead, since servers accept reports again once they have heard from a node that was away. Success of other calls has
    /// no meaning here.
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
        // Repeating a report is harmless, so if a connection is lost, the next server gets it.
        let call = self.pool.query_within(METHOD, Duration::ZERO, |_| &request, WITHIN);
        match self.while_kept(call).await {
            Ok(answer) => {
                // Without an index, the next agent repeats all reports.
                let GenericResponse { index } = answer.decode().unwrap_or_default();
                lock(&self.shared.updates).done(index);
                self.shared.report_acknowledged.notify_waiters();
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
