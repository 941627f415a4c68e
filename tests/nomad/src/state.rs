//! The servers' state: nodes, allocations, and the index of each one's last change.

mod catalogue;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use herdlet_nomad::wire::{
    AllocId, AllocReport, Allocation, ClientStatus, DesiredStatus, Eligibility, Job, Node, NodeEvent, NodeId,
    NodeStatus, Secret, node::DrainStrategy,
};
use herdlet_rpc::codec::Value;
use tokio::time::Instant;

use crate::jobs::{self, Spec};

pub use self::catalogue::Catalogue;

/// A job's namespace and id.
pub type Key = (String, String);

/// The roll-out of a version of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployment {
    /// A UUID.
    pub id: String,
    /// The version of the job.
    pub version: u64,
    /// `running`, `successful` or `failed`.
    pub status: String,
}

/// The whole state. A server that lags behind has a clone.
#[derive(Debug, Clone)]
pub struct State {
    /// The index of the last change.
    pub index: u64,
    /// The index of the last change of any allocation.
    pub alloc_index: u64,
    /// All nodes.
    pub nodes: BTreeMap<NodeId, Stored>,
    /// All allocations.
    pub allocs: BTreeMap<AllocId, Allocation>,
    /// The accepted reports on each allocation.
    pub reports: BTreeMap<AllocId, Vec<ClientStatus>>,
    /// Allocations that are sent with an invalid field.
    pub unreadable: BTreeSet<AllocId>,
    /// Allocations that are too large for any message.
    pub huge: BTreeSet<AllocId>,
    /// The number of allocations that fit in one message.
    pub most: usize,
    /// Submitted jobs.
    pub jobs: BTreeMap<Key, jobs::Stored>,
    /// The last deployment of each job.
    pub deployments: BTreeMap<Key, Deployment>,
    /// Allocations get an identity for each task.
    pub signs: bool,
    /// Tokens with which a node fetches the directory of an allocation's predecessor.
    pub migrate_tokens: BTreeMap<AllocId, Secret>,
    /// When allocations failed.
    pub(crate) failed_at: BTreeMap<AllocId, Instant>,
    /// Since when allocations have been out of contact, and how long they outlive that.
    pub(crate) unknown_since: BTreeMap<AllocId, (Instant, Duration)>,
    /// Nodes that are being drained.
    pub(crate) draining: BTreeSet<NodeId>,
    /// The newest identity of each node (1.11 and later). A node whose identity is removed has to get another.
    pub signed: BTreeMap<NodeId, Secret>,
    /// The allocation of each service, by namespace and id.
    pub services: BTreeMap<(String, String), AllocId>,
    /// Variables, and what services consist of.
    pub catalogue: Catalogue,
    by_node: BTreeMap<NodeId, BTreeSet<AllocId>>,
    /// The allocations of each job that should run.
    wanted: BTreeMap<Key, BTreeSet<AllocId>>,
    /// The index at which an allocation of a node was last removed.
    collected: BTreeMap<NodeId, u64>,
    made: u64,
}

/// A stored node.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The node.
    pub node: Node,
    /// When its heartbeat counts as missed.
    pub deadline: Instant,
    /// The events that it has reported.
    pub events: Vec<NodeEvent>,
}

/// A core that a task may get and that is not at the position of its number, where servers of 1.7 to 1.10.0 look it up.
fn core_without_place(node: &Node) -> Option<u16> {
    let topology = node.node_resources.as_ref()?.processors.topology.as_ref()?;
    let found = |id: u16| topology.cores.get(usize::from(id)).map(|core| core.id);
    topology.cores.iter().find(|core| !core.disable && found(core.id) != Some(core.id)).map(|core| core.id)
}

impl Default for State {
    fn default() -> Self {
        Self {
            index: 1,
            alloc_index: 1,
            nodes: BTreeMap::new(),
            allocs: BTreeMap::new(),
            reports: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            jobs: BTreeMap::new(),
            deployments: BTreeMap::new(),
            signs: false,
            migrate_tokens: BTreeMap::new(),
            draining: BTreeSet::new(),
            signed: BTreeMap::new(),
            failed_at: BTreeMap::new(),
            unknown_since: BTreeMap::new(),
            huge: BTreeSet::new(),
            most: usize::MAX,
            services: BTreeMap::new(),
            catalogue: Catalogue::default(),
            by_node: BTreeMap::new(),
            wanted: BTreeMap::new(),
            collected: BTreeMap::new(),
            made: 0,
        }
    }
}

impl State {
    /// The state of new servers. `signs`: allocations get identities.
    #[must_use]
    pub fn new(signs: bool) -> Self {
        Self { signs, ..Self::default() }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.index += 1;
        self.index
    }

    /// `Node.Register`.
    ///
    /// # Errors
    /// In the texts of stock servers, except for a core that is not at its position.
    pub fn register(&mut self, mut node: Node, deadline: Instant) -> Result<u64, String> {
        let missing = |what: &str| Err(format!("missing {what} for client registration"));
        if node.id.as_str().is_empty() {
            return missing("node ID");
        }
        if node.datacenter.is_empty() {
            return missing("datacenter");
        }
        if node.name.is_empty() {
            return missing("node name");
        }
        if node.attributes.is_empty() {
            return missing("attributes");
        }
        if node.secret_id.is_empty() {
            return missing("node secret ID");
        }
        if let Some(core) = core_without_place(&node) {
            return Err(format!(
                "core {core} is not at the position of its number: servers before 1.10.1 would crash"
            ));
        }
        match node.status {
            NodeStatus::Unsaid => node.status = NodeStatus::Initializing,
            NodeStatus::Initializing | NodeStatus::Ready | NodeStatus::Down | NodeStatus::Disconnected => {}
            NodeStatus::Other(_) => return Err("invalid status for node".to_owned()),
        }
        if node.scheduling_eligibility == Eligibility::Unsaid {
            node.scheduling_eligibility = Eligibility::Eligible;
        }
        let mut events = Vec::new();
        if let Some(stored) = self.nodes.get(&node.id) {
            if stored.node.secret_id != node.secret_id {
                return Err("node secret ID does not match. Not registering node.".to_owned());
            }
            node.status = stored.node.status.clone();
            node.scheduling_eligibility = stored.node.scheduling_eligibility.clone();
            node.create_index = stored.node.create_index;
            node.last_missed_heartbeat_index = stored.node.last_missed_heartbeat_index;
            node.last_alloc_update_index = stored.node.last_alloc_update_index;
            node.drain_strategy.clone_from(&stored.node.drain_strategy);
            events.clone_from(&stored.events);
        }
        let index = self.next();
        node.modify_index = index;
        if node.create_index == 0 {
            node.create_index = index;
        }
        self.nodes.insert(node.id.clone(), Stored { node, deadline, events });
        Ok(index)
    }

    /// `Node.UpdateStatus` with `ready`. Returns the index, or zero if the status does not change.
    ///
    /// # Errors
    /// In the texts of stock servers.
    pub fn heartbeat(&mut self, id: &NodeId, deadline: Instant) -> Result<u64, String> {
        let lives = self.of(id).any(|alloc| !is_over(alloc));
        let Some(stored) = self.nodes.get_mut(id) else { return Err("node not found".to_owned()) };
        stored.deadline = deadline;
        let node = &mut stored.node;
        let is_told = node.last_missed_heartbeat_index == 0
            || node.last_alloc_update_index > node.last_missed_heartbeat_index;
        let status = match &node.status {
            NodeStatus::Initializing if !lives || is_told => NodeStatus::Ready,
            NodeStatus::Down => NodeStatus::Ready,
            NodeStatus::Disconnected => NodeStatus::Initializing,
            same @ (NodeStatus::Unsaid
            | NodeStatus::Initializing
            | NodeStatus::Ready
            | NodeStatus::Other(_)) => same.clone(),
        };
        if status == node.status {
            return Ok(0);
        }
        node.status = status;
        let index = self.next();
        if let Some(stored) = self.nodes.get_mut(id) {
            stored.node.modify_index = index;
        }
        Ok(index)
    }

    /// Handles nodes whose heartbeats are missing. Their allocations are lost, or unknown if they outlive the loss of
    /// contact (`outlive`: all do). Returns whether there were any.
    pub fn expire(&mut self, now: Instant, outlive: bool) -> bool {
        let is_late = |stored: &&Stored| match stored.node.status {
            NodeStatus::Ready | NodeStatus::Initializing => stored.deadline <= now,
            NodeStatus::Unsaid | NodeStatus::Down | NodeStatus::Disconnected | NodeStatus::Other(_) => false,
        };
        let late: Vec<_> = self.nodes.values().filter(is_late).map(|stored| stored.node.id.clone()).collect();
        for id in &late {
            let index = self.next();
            let lives = self.of(id).any(|alloc| !is_over(alloc) && outlives(alloc, outlive).is_some());
            if let Some(Stored { node, .. }) = self.nodes.get_mut(id) {
                node.status = if lives { NodeStatus::Disconnected } else { NodeStatus::Down };
                node.modify_index = index;
                node.last_missed_heartbeat_index = index;
            }
            let live = self.of(id).filter(|alloc| !is_over(alloc));
            let live: Vec<_> = live.map(|alloc| (alloc.id.clone(), outlives(alloc, outlive))).collect();
            for (alloc, after) in live {
                match after {
                    Some(after) => {
                        self.unknown_since.insert(alloc.clone(), (now, after));
                        self.change(&alloc, |alloc| alloc.client_status = ClientStatus::Unknown);
                    }
                    None => self.lose_one(&alloc),
                }
            }
        }
        !late.is_empty()
    }

    /// Allocations of a job that should run.
    pub(crate) fn desired_allocs(&self, key: &Key) -> impl Iterator<Item = &Allocation> {
        self.wanted.get(key).into_iter().flatten().filter_map(|id| self.allocs.get(id))
    }

    /// Allocations of a node.
    pub fn of<'a>(&'a self, node: &NodeId) -> impl Iterator<Item = &'a Allocation> {
        let ids = self.by_node.get(node).into_iter().flatten();
        ids.filter_map(|id| self.allocs.get(id))
    }

    /// The index of the last change of any of a node's allocations.
    #[must_use]
    pub fn index_of(&self, node: &NodeId) -> u64 {
        let changed = self.of(node).map(|alloc| alloc.modify_index).max();
        changed.map_or(self.alloc_index, |index| index.max(self.collected.get(node).copied().unwrap_or(0)))
    }

    /// `Node.UpdateAlloc`, from an authorized node.
    pub fn update(&mut self, node: &NodeId, reports: Vec<AllocReport>, now: Instant) -> u64 {
        let index = self.next();
        self.alloc_index = index;
        if let Some(stored) = self.nodes.get_mut(node) {
            stored.node.last_alloc_update_index = index;
        }
        for report in reports {
            self.reports.entry(report.id.clone()).or_default().push(report.client_status.clone());
            if report.client_status.is_terminal() {
                self.remove_services(|_, alloc| *alloc == report.id);
            }
            let Some(alloc) = self.allocs.get_mut(&report.id) else { continue };
            if report.client_status == ClientStatus::Failed {
                self.failed_at.entry(report.id.clone()).or_insert(now);
            }
            self.unknown_since.remove(&report.id);
            alloc.client_status = report.client_status;
            alloc.client_description = report.client_description;
            alloc.task_states = report.task_states;
            alloc.network_status = report.network_status;
            if let Some(health) = report.deployment_status {
                let canary = alloc.deployment_status.as_ref().is_some_and(|known| known.canary);
                alloc.deployment_status =
                    Some(herdlet_nomad::wire::alloc::DeploymentStatus { canary, ..health });
            }
            alloc.modify_index = index;
        }
        index
    }

    /// The index and the id of a new allocation.
    pub(crate) fn next_alloc(&mut self) -> (u64, AllocId) {
        self.alloc_index = self.next();
        self.made += 1;
        (self.index, AllocId::from(format!("{:08x}-0000-4000-8000-{:012x}", self.made, self.made)))
    }

    pub(crate) fn add(&mut self, alloc: Allocation) {
        self.by_node.entry(alloc.node_id.clone()).or_default().insert(alloc.id.clone());
        self.wanted.entry(key_of(&alloc)).or_default().insert(alloc.id.clone());
        self.allocs.insert(alloc.id.clone(), alloc);
    }

    /// Places a new allocation of a job, which need not be submitted, on a node.
    pub fn place(&mut self, node: &NodeId, job: &Job, group: &str) -> AllocId {
        let (index, id) = self.next_alloc();
        let alloc = Allocation {
            id: id.clone(),
            namespace: "default".to_owned(),
            name: format!("{}.{group}[0]", job.id()),
            node_id: node.clone(),
            job_id: job.id().to_owned(),
            job: job.clone(),
            task_group: group.to_owned(),
            desired_status: DesiredStatus::Run,
            client_status: ClientStatus::Pending,
            create_index: index,
            modify_index: index,
            alloc_modify_index: index,
            ..Allocation::default()
        };
        self.add(alloc);
        id
    }

    /// Changes an allocation on the servers' side.
    pub fn change(&mut self, id: &AllocId, change: impl FnOnce(&mut Allocation)) {
        let index = self.next();
        self.alloc_index = index;
        if let Some(alloc) = self.allocs.get_mut(id) {
            change(alloc);
            (alloc.modify_index, alloc.alloc_modify_index) = (index, index);
            let wanted = self.wanted.entry(key_of(alloc)).or_default();
            if alloc.desired_status == DesiredStatus::Run {
                wanted.insert(id.clone());
            } else {
                wanted.remove(id);
            }
        }
    }

    /// Removes an allocation.
    pub fn collect(&mut self, id: &AllocId) {
        self.alloc_index = self.next();
        if let Some(alloc) = self.allocs.remove(id)
            && let Some(ids) = self.by_node.get_mut(&alloc.node_id)
        {
            ids.remove(id);
            self.wanted.entry(key_of(&alloc)).or_default().remove(id);
            self.collected.insert(alloc.node_id, self.alloc_index);
        }
    }

    /// Removes an allocation without answering its node's blocking query: the index of the node's allocations becomes
    /// that of the others.
    pub fn collect_quietly(&mut self, id: &AllocId) {
        self.next();
        if let Some(alloc) = self.allocs.remove(id)
            && let Some(ids) = self.by_node.get_mut(&alloc.node_id)
        {
            ids.remove(id);
            self.wanted.entry(key_of(&alloc)).or_default().remove(id);
        }
    }

    /// Replaces the state with an older one, as when servers are restored from a snapshot.
    pub fn restore(&mut self, snapshot: Self) {
        *self = Self { made: self.made, ..snapshot };
    }

    /// A new leader gives every node this time for its heartbeat.
    pub fn wait_for_nodes(&mut self, until: Instant) {
        self.nodes.values_mut().for_each(|stored| stored.deadline = until);
    }

    /// Removes a node. Its allocations are lost.
    pub fn purge(&mut self, id: &NodeId) {
        self.next();
        self.nodes.remove(id);
        self.lose(id);
    }

    /// Marks a node's allocations as lost.
    fn lose(&mut self, node: &NodeId) {
        let ids: Vec<_> =
            self.of(node).filter(|alloc| !is_over(alloc)).map(|alloc| alloc.id.clone()).collect();
        ids.iter().for_each(|id| self.lose_one(id));
    }

    fn lose_one(&mut self, id: &AllocId) {
        self.change(id, |alloc| {
            alloc.client_status = ClientStatus::Lost;
            alloc.desired_status = DesiredStatus::Stop;
        });
    }

    /// Drains a node: it gets no new allocations, and its own move elsewhere.
    pub fn drain(&mut self, id: &NodeId, strategy: Option<DrainStrategy>) {
        let index = self.next();
        if let Some(Stored { node, .. }) = self.nodes.get_mut(id) {
            let is_begun = strategy.is_some();
            if is_begun {
                self.draining.insert(id.clone());
            } else {
                self.draining.remove(id);
            }
            node.drain_strategy = strategy;
            node.scheduling_eligibility =
                if is_begun { Eligibility::Ineligible } else { Eligibility::Eligible };
            node.modify_index = index;
        }
    }

    /// Sets whether a node may get new allocations.
    pub fn set_eligible(&mut self, id: &NodeId, is_eligible: bool) {
        let index = self.next();
        if let Some(Stored { node, .. }) = self.nodes.get_mut(id) {
            node.scheduling_eligibility =
                if is_eligible { Eligibility::Eligible } else { Eligibility::Ineligible };
            node.modify_index = index;
        }
    }
}

fn key_of(alloc: &Allocation) -> Key {
    (alloc.namespace.clone(), alloc.job_id.clone())
}

/// How long an allocation outlives the loss of contact with its node; `None` if it doesn't. `any`: every job outlives
/// it, for a day.
fn outlives(alloc: &Allocation, any: bool) -> Option<Duration> {
    if any {
        return Some(Duration::from_secs(86_400));
    }
    let spec = Spec::of(alloc.job.value()).ok()?;
    spec.group(&alloc.task_group).map(jobs::Group::lost_after).filter(|after| !after.is_zero())
}

/// Whether an allocation has ended, for its node or for the servers.
#[must_use]
pub fn is_over(alloc: &Allocation) -> bool {
    alloc.client_status.is_terminal() || alloc.desired_status.is_terminal()
}

/// A job with one task.
#[must_use]
pub fn job(id: &str) -> Job {
    let text = |text: &str| Value::Text(text.to_owned());
    let map = |entries: &[(&str, Value)]| {
        Value::Map(entries.iter().map(|(key, value)| (text(key), value.clone())).collect())
    };
    let task = map(&[("Name", text("main")), ("Driver", text("mock")), ("Config", map(&[]))]);
    let group = map(&[("Name", text("group")), ("Tasks", Value::List(vec![task]))]);
    Job::new(map(&[
        ("ID", text(id)),
        ("Type", text("service")),
        ("JobModifyIndex", Value::Uint(1)),
        ("TaskGroups", Value::List(vec![group])),
    ]))
}

/// When a heartbeat counts as missed: after the TTL given to the node, and the servers' grace.
#[must_use]
pub fn deadline(now: Instant, ttl: Duration, grace: Duration) -> Instant {
    now + ttl + grace
}
