//! How a node stands with its servers: for `stop_on_client_after`, for metrics, and for whoever knows of more servers.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::{
    decide::contact::next_beat,
    wire::{Eligibility, registration::NodeUpdateResponse},
};

/// How a node stands with its servers.
#[derive(Debug, Clone, PartialEq)]
pub struct Contact {
    /// It is registered, as far as it knows.
    pub is_registered: bool,
    /// The last registration or heartbeat that was answered. The limit of a group's `stop_on_client_after` counts from it.
    pub last: Option<Heard>,
    /// When the next heartbeat was due after that.
    pub ttl: Duration,
    /// The last registration or heartbeat was answered.
    pub is_in_reach: bool,
    /// Whoever answered last sees a leader.
    pub has_leader: bool,
    /// How many servers are known.
    pub servers: usize,
    /// How many nodes the cluster has.
    pub nodes: u32,
    /// Whether the node may get new work; unsaid by servers before 1.2.
    pub eligibility: Eligibility,
    /// A first list of allocations was taken.
    pub is_listed: bool,
    /// Since when the leader says what is older than what it has said before: servers were restored from an older state, or they are others.
    /// Nothing is done for that; after a few minutes it is believed. None: all is well.
    pub disbelieved: Option<Heard>,
    /// How many registrations and heartbeats were not answered, or refused.
    pub failures: u64,
    /// How often servers may have taken the node for dead.
    pub losses: u64,
    /// Grows whenever it would be good to look for other servers.
    pub wants_servers: u64,
}

/// Servers that are well answer a heartbeat within this time.
const ANSWER: Duration = Duration::from_secs(5);

/// A moment, by both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// For deadlines of this process.
    pub at: Instant,
    /// For what outlives it.
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

    /// For how long servers can be silent without anything being wrong: until the next heartbeat is due, and has had time for an answer.
    #[must_use]
    pub fn silence_max(&self) -> Duration {
        self.ttl + ANSWER
    }

    /// Whether servers have been silent for longer than that.
    #[must_use]
    pub fn is_overdue(&self) -> bool {
        self.last.is_some_and(|heard| heard.at.elapsed() > self.silence_max())
    }

    pub(crate) fn hear(&mut self, answer: &NodeUpdateResponse, servers: usize) {
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
