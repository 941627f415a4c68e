//! Reports the ports on which processes of this machine listen, so that no allocation gets one of them.
//!
//! In: the kernel's tables of sockets. Out: an event when they have changed: before each request that may place allocations,
//! and regularly for launches, reschedules and folders, because the kernel sends no event when a socket begins to listen.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use herdlet_fingerprint::listening;
use herdlet_plan::event::Event;
use herdlet_runtime::{Inbox, off_thread};

use crate::{networks::AllocNetworks, planner::Input};

/// The kernel lists sockets that listen in well under a millisecond.
const PERIOD: Duration = Duration::from_secs(5);

/// Reports the ports.
pub struct PortReporter {
    inbox: Inbox<Input>,
    networks: Arc<AllocNetworks>,
    /// As last reported.
    last: Mutex<BTreeSet<u16>>,
}

impl PortReporter {
    pub fn new(inbox: Inbox<Input>, networks: Arc<AllocNetworks>) -> Self {
        Self { inbox, networks, last: Mutex::default() }
    }

    /// The networks of allocations.
    pub fn networks(&self) -> Arc<AllocNetworks> {
        Arc::clone(&self.networks)
    }

    /// Reports the present ports if they have changed. Nothing is reported if they can't be determined.
    pub async fn report(&self) {
        let Ok(mut now) = off_thread(listening::ports).await else { return };
        // UDP ports that are held for allocations look like those on which something listens.
        let held = self.networks.held_ports();
        now.retain(|port| !held.contains(port));
        {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            if *last == now {
                return;
            }
            last.clone_from(&now);
        }
        // The loop has ended.
        let _ = self.inbox.send(Input::Event(Event::Listening(now))).await;
    }

    /// Reports regularly, until the agent ends.
    pub async fn follow(&self) {
        while !self.inbox.is_closed() {
            self.report().await;
            tokio::time::sleep(PERIOD).await;
        }
    }
}
