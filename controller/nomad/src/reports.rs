//! The runner's reports: a buffer that accepts everything without waiting for servers.

mod contact;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use herdlet_rpc::pool::Chance;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

pub use contact::{Contact, Heard};

use crate::{
    decide::{acknowledged::Acknowledged, events::Events, updates::Updates},
    wire::{AllocReport, NodeEvent, NodeId},
};

/// State shared by [`Reports`] and the session.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) node_id: NodeId,
    pub(crate) updates: Mutex<Updates>,
    pub(crate) report_came: Notify,
    /// Wakes the heartbeat task, which waits until servers have acknowledged a report.
    pub(crate) report_acknowledged: Notify,
    /// Wakes the owner of [`Acknowledgements`]: servers have acknowledged a report, or may have forgotten one.
    pub(crate) acknowledged: Notify,
    pub(crate) events: Mutex<Events>,
    pub(crate) event_came: Notify,
    pub(crate) contact: watch::Sender<Contact>,
}

impl Shared {
    /// `before` is what servers had acknowledged to the previous session. It is discarded if it belongs to another node.
    pub(crate) fn new(node_id: NodeId, before: Acknowledged) -> Self {
        let before = if before.node == node_id { before } else { Acknowledged::default() };
        Self {
            node_id,
            updates: Mutex::new(Updates::remembering(before)),
            report_came: Notify::new(),
            report_acknowledged: Notify::new(),
            acknowledged: Notify::new(),
            events: Mutex::default(),
            event_came: Notify::new(),
            contact: watch::Sender::new(Contact::new()),
        }
    }
}

/// Accepts reports on allocations, and node events. Clones share the buffer.
#[derive(Clone)]
pub struct Reports {
    shared: Arc<Shared>,
}

impl fmt::Debug for Reports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reports of node {}", self.shared.node_id)
    }
}

impl Reports {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Reports the state of an allocation. Never waits. Only the newest report of an allocation is sent, and only if servers do not have it
    /// yet.
    pub fn report(&self, mut report: AllocReport) {
        report.node_id = self.shared.node_id.clone();
        if lock(&self.shared.updates).report(report, Instant::now()) {
            self.shared.report_came.notify_one();
        }
    }

    /// Adds an event for the node's users. Never waits; the newest ten are kept.
    pub fn event(&self, event: NodeEvent) {
        lock(&self.shared.events).add(event, Instant::now(), &mut Chance::new());
        self.shared.event_came.notify_one();
    }

    /// The node's contact with its servers.
    #[must_use]
    pub fn contact(&self) -> watch::Receiver<Contact> {
        self.shared.contact.subscribe()
    }
}

/// What servers have acknowledged, to be stored for the next agent. Use only one.
#[derive(Debug)]
pub struct Acknowledgements {
    shared: Arc<Shared>,
}

impl Acknowledgements {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Waits until the acknowledged reports change.
    pub async fn changed(&mut self) {
        self.shared.acknowledged.notified().await;
    }

    /// All acknowledged reports, for the next session: [`Options::acknowledged`](crate::session::Options::acknowledged).
    #[must_use]
    pub fn all(&self) -> Acknowledged {
        lock(&self.shared.updates).acknowledged(&self.shared.node_id)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
