//! Sends node events to servers.

use std::collections::BTreeMap;

use herdlet_rpc::{Service, connect::Dial};
use tokio::time::{Instant, sleep_until};

use super::Inner;
use crate::reports::lock;
use crate::wire::registration::EmitEventsRequest;

impl<S: Service, D: Dial> Inner<S, D> {
    pub(super) async fn events(&self) {
        loop {
            self.registered().await;
            let due = lock(&self.shared.events).due();
            let Some(due) = due else {
                self.shared.event_came.notified().await;
                continue;
            };
            tokio::select! {
                () = sleep_until(due) => {}
                () = self.shared.event_came.notified() => continue,
            }
            self.send_events().await;
        }
    }

    async fn send_events(&self) {
        let events = lock(&self.shared.events).take();
        let node_events = BTreeMap::from([(self.identity.id.clone(), events)]);
        let mut request =
            EmitEventsRequest { node_events, options: self.write(lock(&self.tokens).to_call()) };
        if let Err(error) = self.pool.write("Node.EmitEvents", &request).await {
            tracing::warn!(%error, "node events could not be sent; retrying later");
            let events = request.node_events.remove(&self.identity.id).unwrap_or_default();
            let now = Instant::now();
            self.chance(|chance| lock(&self.shared.events).failed(events, now, chance));
        }
    }
}
