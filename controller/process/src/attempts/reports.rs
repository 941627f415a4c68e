//! Reports about the attempts of one driver, for the stream of its events.
//!
//! In: drift and repairs, from the reader of kernel events, which never waits. Out: one stream at a time. Drift is a mark on an
//! attempt, not an entry of a queue: however much is reported at once, none of it is lost.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use futures_util::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use herdlet_driver::{AttemptId, Outlet, TaskEvent};
use tokio::sync::Notify;

use super::lock;

/// Reports about the attempts of one driver.
#[derive(Debug, Default)]
pub struct Reports {
    for_people: Outlet<TaskEvent>,
    drifted: Mutex<BTreeSet<AttemptId>>,
    marked: Notify,
}

impl Reports {
    /// Marks an attempt as drifted.
    pub fn mark_drift(&self, id: AttemptId) {
        lock(&self.drifted).insert(id);
        self.marked.notify_one();
    }

    /// Reports a repair. For people only: it is dropped if too many wait.
    pub fn add_repair(&self, id: AttemptId, kind: &'static str, what: &str) {
        if !self.for_people.try_send(TaskEvent::Repaired { id, kind, what: what.to_owned() }) {
            tracing::debug!(kind, what, "dropped the event of a repair: the channel is full");
        }
    }

    /// Reports something for people, which is dropped as a repair is.
    pub fn add_message(&self, id: AttemptId, message: String) {
        tracing::info!(%id, message, "a remark about a task");
        let _ = self.for_people.try_send(TaskEvent::Message { id, message });
    }

    /// Streams the reports not taken yet, and all later ones.
    pub fn stream(self: &Arc<Self>) -> BoxStream<'static, TaskEvent> {
        let marks = stream::unfold(Arc::clone(self), |reports| async move {
            let id = loop {
                let marked = reports.marked.notified();
                if let Some(id) = lock(&reports.drifted).pop_first() {
                    break id;
                }
                marked.await;
            };
            Some((TaskEvent::Drift { id }, reports))
        });
        stream::select(self.for_people.stream(), marks).boxed()
    }
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::AllocId;

    use super::*;

    /// A thousand cgroups were removed at once, and those beyond the queue's length were never repaired.
    #[tokio::test]
    async fn no_drift_event_is_lost() {
        let reports = Arc::new(Reports::default());
        let id = |attempt| AttemptId { alloc: AllocId::from_hash([1; 16]), task: "t".to_owned(), attempt };
        for attempt in 1..=5_000 {
            reports.add_repair(id(attempt), "record", "its record was gone");
            reports.mark_drift(id(attempt));
            reports.mark_drift(id(attempt));
        }
        let mut left: BTreeSet<u32> = (1..=5_000).collect();
        let mut stream = reports.stream();
        while !left.is_empty() {
            if let Some(TaskEvent::Drift { id }) = stream.next().await {
                assert!(left.remove(&id.attempt), "it is reported once");
            }
        }
    }
}
