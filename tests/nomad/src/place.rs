//! Placement of an allocation: its node, ports and resources.
//!
//! In: the servers' state, a job and one of its groups. Out: a node with enough room, and an allocation for it. Of all
//! fitting nodes the one with the fewest allocations is chosen, so that tests use more than one.

use std::collections::{BTreeMap, BTreeSet};

use herdlet_nomad::wire::{
    AllocId, Allocation, ClientStatus, DesiredStatus, Eligibility, Node, NodeId, NodeStatus, Secret,
    assigned::{
        AllocatedCpu, AllocatedMemory, AllocatedResources, PortMapping, SharedResources, TaskResources,
    },
    resources::NetworkResource,
};

use crate::{
    jobs::{Group, Spec, Stored},
    state::{State, is_over},
};

/// The default range of dynamic ports.
const PORTS: (i64, i64) = (20_000, 32_000);

/// The properties of an allocation to place.
#[derive(Debug, Default)]
pub(crate) struct PlacementRequest {
    /// Its index in the group.
    pub(crate) index: usize,
    /// The allocation that it replaces.
    pub(crate) previous: Option<AllocId>,
    /// Its deployment.
    pub(crate) deployment: String,
    /// The only permitted node, if set.
    pub(crate) node: Option<NodeId>,
}

/// Networks by task.
type TaskNetworks = BTreeMap<String, Vec<NetworkResource>>;

impl State {
    /// Places an allocation. `None` if there is no room now.
    pub(crate) fn place_one(
        &mut self,
        job: &Stored,
        group: &Group,
        wanted: PlacementRequest,
    ) -> Option<AllocId> {
        let node = match &wanted.node {
            Some(node) => node.clone(),
            None => self.choose(&job.spec, group)?,
        };
        let stored = self.nodes.get(&node)?.node.clone();
        let (shared, mut networks) = self.network(&stored, group)?;
        let (index, id) = self.next_alloc();
        let mut task = |task: &crate::jobs::Task| {
            let needs = task.resources.clone().unwrap_or_default();
            let cpu = AllocatedCpu { cpu_shares: needs.cpu, ..AllocatedCpu::default() };
            let memory = AllocatedMemory { memory_mb: needs.memory_mb, memory_max_mb: needs.memory_max_mb };
            let networks = networks.remove(&task.name).unwrap_or_default();
            (task.name.clone(), TaskResources { cpu, memory, networks, ..TaskResources::default() })
        };
        let lifecycle = |task: &crate::jobs::Task| (task.name.clone(), task.lifecycle.clone());
        let identity = |task: &crate::jobs::Task| {
            let jwt = format!("header.{id}-{}.signature", task.name);
            (task.name.clone(), Secret::from(jwt))
        };
        let alloc = Allocation {
            id: id.clone(),
            namespace: job.spec.namespace.clone(),
            eval_id: format!("{index:08x}-0000-4000-8001-000000000000"),
            name: format!("{}.{}[{}]", job.spec.id, group.name, wanted.index),
            node_id: node,
            node_name: stored.name.clone(),
            job_id: job.spec.id.clone(),
            job: job.job.clone(),
            task_group: group.name.clone(),
            allocated_resources: Some(AllocatedResources {
                tasks: group.tasks.iter().map(&mut task).collect(),
                task_lifecycles: group.tasks.iter().map(lifecycle).collect(),
                shared,
            }),
            desired_status: DesiredStatus::Run,
            client_status: ClientStatus::Pending,
            previous_allocation: wanted.previous.as_ref().map(ToString::to_string).unwrap_or_default(),
            deployment_id: wanted.deployment,
            signed_identities: if self.signs {
                group.tasks.iter().map(identity).collect()
            } else {
                BTreeMap::new()
            },
            create_index: index,
            modify_index: index,
            alloc_modify_index: index,
            ..Allocation::default()
        };
        self.add(alloc);
        if let Some(previous) = wanted.previous {
            self.change(&previous, |alloc| alloc.next_allocation = id.to_string());
        }
        Some(id)
    }

    /// Nodes that may get an allocation of this group, regardless of their room.
    pub(crate) fn feasible(&self, spec: &Spec, group: &Group) -> impl Iterator<Item = &Node> {
        let is_named = |node: &Node| {
            let dcs = &spec.datacenters;
            dcs.is_empty() || dcs.iter().any(|dc| dc == "*" || *dc == node.datacenter)
        };
        let has_drivers = |node: &Node| {
            let healthy = |name: &String| node.drivers.get(name).is_some_and(|driver| driver.healthy);
            let attribute = |name: &String| {
                let value = node.attributes.get(&format!("driver.{name}"));
                value.is_some_and(|value| matches!(&value[..], "1" | "true"))
            };
            // Nodes of tests that report no drivers accept anything.
            let is_bare = node.drivers.is_empty();
            group.tasks.iter().all(|task| is_bare || healthy(&task.driver) || attribute(&task.driver))
        };
        // Servers' `NetworkChecker`: a group without networks requires the host's.
        let has_network = |node: &Node| {
            let networks = node.node_resources.iter().flat_map(|all| &all.networks);
            node.drivers.is_empty()
                || networks.into_iter().any(|network| matches!(&*network.mode, "" | "host"))
        };
        let is_fit = move |node: &&Node| {
            node.status == NodeStatus::Ready
                && node.scheduling_eligibility == Eligibility::Eligible
                && node.drain_strategy.is_none()
                && is_named(node)
                && has_drivers(node)
                && has_network(node)
        };
        self.nodes.values().map(|stored| &stored.node).filter(is_fit)
    }

    fn choose(&self, spec: &Spec, group: &Group) -> Option<NodeId> {
        let roomy = self.feasible(spec, group).filter(|node| self.has_room(node, group));
        let live = |node: &Node| self.of(&node.id).filter(|alloc| !is_over(alloc)).count();
        roomy.min_by_key(|node| live(node)).map(|node| node.id.clone())
    }

    /// Whether a node has the memory and the processors. A node that reports none has unlimited resources.
    pub(crate) fn has_room(&self, node: &Node, group: &Group) -> bool {
        let Some(all) = &node.node_resources else { return true };
        let mut free = (all.cpu.cpu_shares, all.memory.memory_mb);
        if let Some(reserved) = &node.reserved_resources {
            free = (free.0 - reserved.cpu.cpu_shares, free.1 - reserved.memory.memory_mb);
        }
        for alloc in self.of(&node.id).filter(|alloc| !is_over(alloc)) {
            for task in alloc.allocated_resources.iter().flat_map(|given| given.tasks.values()) {
                free = (free.0 - task.cpu.cpu_shares, free.1 - task.memory.memory_mb);
            }
        }
        for needs in group.tasks.iter().filter_map(|task| task.resources.as_ref()) {
            free = (free.0 - needs.cpu, free.1 - needs.memory_mb);
        }
        (all.cpu.cpu_shares == 0 || free.0 >= 0) && (all.memory.memory_mb == 0 || free.1 >= 0)
    }

    /// The resources that the tasks of an allocation share, and the networks of single tasks. `None` if a port is
    /// taken.
    fn network(&self, node: &Node, group: &Group) -> Option<(SharedResources, TaskNetworks)> {
        let live = self.of(&node.id).filter(|alloc| !is_over(alloc));
        let given = live.filter_map(|alloc| alloc.allocated_resources.as_ref());
        let mut used: BTreeSet<i64> = given
            .flat_map(|given| {
                let of_tasks = given.tasks.values().flat_map(|task| &task.networks);
                let of_tasks =
                    of_tasks.flat_map(|network| network.reserved_ports.iter().chain(&network.dynamic_ports));
                given.shared.ports.iter().map(|port| port.value).chain(of_tasks.map(|port| port.value))
            })
            .collect();
        let resources = node.node_resources.clone().unwrap_or_default();
        let or = |value: i64, default| if value == 0 { default } else { value };
        let range = or(resources.min_dynamic_port, PORTS.0)..=or(resources.max_dynamic_port, PORTS.1);
        let address = |name: &str| {
            let name = if name.is_empty() { "default" } else { name };
            let all = resources.node_networks.iter().flat_map(|network| &network.addresses);
            all.filter(|address| address.alias == name).map(|address| address.address.clone()).next()
        };
        let ip = address("default").unwrap_or_else(|| "127.0.0.1".to_owned());
        let mut give = |network: &NetworkResource, ip: &str| {
            let mut given = NetworkResource { ip: ip.to_owned(), ..network.clone() };
            for port in &mut given.reserved_ports {
                if !used.insert(port.value) {
                    return None;
                }
            }
            for port in &mut given.dynamic_ports {
                port.value = range.clone().find(|port| !used.contains(port))?;
                used.insert(port.value);
            }
            Some(given)
        };
        let mut shared = SharedResources {
            disk_mb: group.ephemeral_disk.as_ref().map_or(300, |disk| disk.size_mb),
            ..SharedResources::default()
        };
        for network in &group.networks {
            let given = give(network, &ip)?;
            for port in given.reserved_ports.iter().chain(&given.dynamic_ports) {
                shared.ports.push(PortMapping {
                    label: port.label.clone(),
                    value: port.value,
                    to: if port.to == -1 { port.value } else { port.to },
                    host_ip: address(&port.host_network).unwrap_or_else(|| ip.clone()),
                    ignore_collision: port.ignore_collision,
                });
            }
            shared.networks.push(given);
        }
        let mut of_tasks = TaskNetworks::new();
        for task in &group.tasks {
            for network in task.resources.iter().flat_map(|needs| &needs.networks) {
                of_tasks.entry(task.name.clone()).or_default().push(give(network, &ip)?);
            }
        }
        Some((shared, of_tasks))
    }
}
