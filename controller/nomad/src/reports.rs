//! On what the runner reports: a buffer that takes everything at once, whatever servers do.

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

/// What reports and the session have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) node_id: NodeId,
    pub(crate) updates: Mutex<Updates>,
    pub(crate) report_came: Notify,
    /// Wakes the heartbeat that waits until servers have acknowledged a report.
    pub(crate) told: Notify,
    /// Wakes the keeper of acknowledgements: servers have acknowledged a report, or may have forgotten one.
    pub(crate) acknowledged: Notify,
    pub(crate) events: Mutex<Events>,
    pub(crate) event_came: Notify,
    pub(crate) contact: watch::Sender<Contact>,
}

impl Shared {
    /// With what servers had acknowledged before. That of another node is nothing.
    pub(crate) fn new(node_id: NodeId, before: Acknowledged) -> Self {
        let before = if before.node == node_id { before } else { Acknowledged::default() };
        Self {
            node_id,
            updates: Mutex::new(Updates::remembering(before)),
            report_came: Notify::new(),
            told: Notify::new(),
            acknowledged: Notify::new(),
            events: Mutex::default(),
            event_came: Notify::new(),
            contact: watch::Sender::new(Contact::new()),
        }
    }
}

/// Takes reports on allocations, and events of the node. Clones are one and the same.
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

    /// How an allocation is. Never waits; of several reports on one allocation the newest is sent, and nothing that servers have already.
    pub fn report(&self, mut report: AllocReport) {
        report.node_id = self.shared.node_id.clone();
        if lock(&self.shared.updates).report(report, Instant::now()) {
            self.shared.report_came.notify_one();
        }
    }

    /// Something that users should know of the node. Never waits; the newest ten are kept.
    pub fn event(&self, event: NodeEvent) {
        lock(&self.shared.events).add(event, Instant::now(), &mut Chance::new());
        self.shared.event_came.notify_one();
    }

    /// How the node stands with its servers.
    #[must_use]
    pub fn contact(&self) -> watch::Receiver<Contact> {
        self.shared.contact.subscribe()
    }
}

/// What servers have acknowledged, for whoever keeps it for the next agent. One is enough.
#[derive(Debug)]
pub struct Acknowledgements {
    shared: Arc<Shared>,
}

impl Acknowledgements {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Waits until servers have acknowledged something that was not waited for yet.
    pub async fn changed(&mut self) {
        self.shared.acknowledged.notified().await;
    }

    /// All of it. To be given to the next session: [`Options::acknowledged`](crate::session::Options::acknowledged).
    #[must_use]
    pub fn all(&self) -> Acknowledged {
        lock(&self.shared.updates).acknowledged(&self.shared.node_id)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
