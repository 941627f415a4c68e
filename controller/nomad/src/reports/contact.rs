//! The node's contact with its servers: for `stop_on_client_after`, for metrics, and for server discovery.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::{
    decide::contact::next_beat,
    wire::{Eligibility, registration::NodeUpdateResponse},
};

/// The state of a node's contact with its servers.
#[derive(Debug, Clone, PartialEq)]
pub struct Contact {
    /// Whether the node is registered, as far as it knows.
    pub is_registered: bool,
    /// The last answered registration or heartbeat. A group's `stop_on_client_after` counts from it.
    pub last: Option<Heard>,
    /// How long after `last` the next heartbeat was due.
    pub ttl: Duration,
    /// Whether the last registration or heartbeat was answered.
    pub is_in_reach: bool,
    /// Whether the server that answered last sees a leader.
    pub has_leader: bool,
    /// Number of known servers.
    pub servers: usize,
    /// Number of nodes in the cluster.
    pub nodes: u32,
    /// Whether the node may get new work; servers before 1.2 do not report it.
    pub eligibility: Eligibility,
    /// Whether a first list of allocations was processed.
    pub is_listed: bool,
    /// Since when the leader has returned lists older than earlier ones: servers were restored from an older state, or belong to another
    /// cluster. The node ignores these lists, and accepts them after a few minutes. `None` if there is no such conflict.
    pub disbelieved: Option<Heard>,
    /// Number of registrations and heartbeats that failed or were refused.
    pub failures: u64,
    /// How often servers may have marked the node as down.
    pub losses: u64,
    /// Incremented whenever other servers should be discovered.
    pub wants_servers: u64,
}

/// Time limit for healthy servers to answer a heartbeat.
const ANSWER: Duration = Duration::from_secs(5);

/// A moment, by the monotonic clock and the wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// For deadlines of this process.
    pub at: Instant,
    /// For values that outlive the process.
    pub wall: SystemTime,
}

impl Heard {
    pub(crate) fn now() -> Self {
        Self { at: Instant::now(), wall: SystemTime::now() }
    }
}

impl Contact {
    pub(crate) fn new() -> Self {
        Self {
            is_registered: false,
            last: None,
            ttl: Duration::ZERO,
            is_in_reach: false,
            has_leader: false,
            servers: 0,
            nodes: 0,
            eligibility: Eligibility::Unsaid,
            is_listed: false,
            disbelieved: None,
            failures: 0,
            losses: 0,
            wants_servers: 0,
        }
    }

    /// How long servers may be silent under normal conditions: until the next heartbeat is due and has had time for an answer.
    #[must_use]
    pub fn silence_max(&self) -> Duration {
        self.ttl + ANSWER
    }

    /// Whether servers have been silent for longer than [`Contact::silence_max`].
    #[must_use]
    pub fn is_overdue(&self) -> bool {
        self.last.is_some_and(|heard| heard.at.elapsed() > self.silence_max())
    }

    pub(crate) fn record_answer(&mut self, answer: &NodeUpdateResponse, servers: usize) {
        self.last = Some(Heard::now());
        self.ttl = next_beat(answer.heartbeat_ttl);
        self.is_in_reach = true;
        self.has_leader = !answer.leader_rpc_addr.is_empty();
        self.wants_servers += u64::from(!self.has_leader);
        self.servers = servers;
        self.nodes = u32::try_from(answer.num_nodes).unwrap_or_default();
        if answer.scheduling_eligibility != Eligibility::Unsaid {
            self.eligibility = answer.scheduling_eligibility.clone();
        }
    }
}
