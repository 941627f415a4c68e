//! Which host ports a new allocation gets. Two live allocations never have the same port.

use core::ops::RangeInclusive;
use std_alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};

use herdlet_api_types::{
    AllocId, JobKey,
    alloc::{Allocation, AssignedPort, Ports},
    job::{Group, PortRequest, Task},
    view::{Reason, Unplaced},
};

use crate::backoff::fraction;

/// A network of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostNetwork {
    /// The address of ports on it; `None` if the machine has none.
    pub ip: Option<String>,
    /// Ports of it that no allocation gets.
    pub reserved_ports: BTreeSet<u16>,
}

/// Why ports can't be assigned now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoPorts {
    /// Another allocation holds this port.
    Taken(u16),
    /// The agent's config keeps this port for the machine.
    Reserved(u16),
    /// The agent's config keeps this port of one of the machine's networks for the machine.
    ReservedIn(u16, String),
    /// The agent's config has no network of this name, for the port with this label.
    NoNetwork(String, String),
    /// The machine has no address in the network of this name.
    NoAddress(String),
    /// No dynamic port is free.
    Exhausted,
}

impl NoPorts {
    /// The reason as a user sees it. `holder_of` names the allocation that holds a port.
    pub fn unplaced(&self, holder_of: impl FnOnce(u16) -> Option<String>) -> Unplaced {
        let (message, dimension) = match self {
            Self::Taken(port) => (
                match holder_of(*port) {
                    Some(holder) => format!("needs port {port}, which {holder} holds"),
                    None => format!("needs port {port} more than once"),
                },
                format!("network: reserved port collision {port}"),
            ),
            Self::Reserved(port) => (
                format!("needs port {port}, which `reserved` of the agent's config keeps for the machine"),
                format!("network: reserved port collision {port}"),
            ),
            Self::ReservedIn(port, network) => (
                format!(
                    "needs port {port} of the host network `{network}`, which its `reserved_ports` keep for the machine"
                ),
                format!("network: reserved port collision {port}"),
            ),
            Self::NoNetwork(network, label) => (
                format!(
                    "needs the host network `{network}` for port `{label}`: add it to `network.host_networks` of the agent's config"
                ),
                format!("missing host network \"{network}\" for port \"{label}\""),
            ),
            Self::NoAddress(network) => (
                format!(
                    "needs the host network `{network}`, and the machine has no such address: compare \
                     `network.host_networks` of the agent's config with the machine's addresses"
                ),
                format!("network: no addresses available for \"{network}\" network"),
            ),
            Self::Exhausted => (
                String::from("needs a dynamic port, and none is free"),
                String::from("network: dynamic port selection failed"),
            ),
        };
        Unplaced { reason: Reason::Port, message, filtered_by: Vec::new(), exhausted: Vec::from([dimension]) }
    }
}

/// Host ports held by allocations, with their holders: a fixed port of an operator may be held twice for a while.
#[derive(Debug, Default)]
pub struct PortClaims {
    by: BTreeMap<u16, Vec<AllocId>>,
    /// Never assigned.
    reserved: BTreeSet<u16>,
    /// Something listens there, as last reported: not assigned while there are others.
    listening: BTreeSet<u16>,
    /// Published ports, with the allocations whose services publish them, and their jobs.
    published: BTreeMap<u16, BTreeMap<AllocId, JobKey>>,
}

impl PortClaims {
    /// No port is held; the machine keeps `reserved` for itself.
    pub fn beside(reserved: BTreeSet<u16>) -> Self {
        Self { reserved, ..Self::default() }
    }

    /// Sets the ports on which something listens.
    pub fn set_listening(&mut self, ports: BTreeSet<u16>) {
        self.listening = ports;
    }

    /// Whether something listens on the port, as last reported.
    pub fn is_listening(&self, port: u16) -> bool {
        self.listening.contains(&port)
    }

    /// Adds the allocation's ports.
    pub fn take(&mut self, alloc: &Allocation) {
        for port in alloc.host_ports() {
            self.by.entry(port.value).or_default().push(alloc.id);
        }
        for port in alloc.published_ports() {
            self.published.entry(port).or_default().insert(alloc.id, alloc.job_key.clone());
        }
    }

    /// Removes the allocation's ports.
    pub fn release(&mut self, alloc: &Allocation) {
        for port in alloc.host_ports() {
            let Some(holders) = self.by.get_mut(&port.value) else { continue };
            if let Some(at) = holders.iter().position(|holder| *holder == alloc.id) {
                holders.remove(at);
            }
            if holders.is_empty() {
                self.by.remove(&port.value);
            }
        }
        for port in alloc.published_ports() {
            let Some(publishers) = self.published.get_mut(&port) else { continue };
            publishers.remove(&alloc.id);
            if publishers.is_empty() {
                self.published.remove(&port);
            }
        }
    }

    /// The first of the allocations that hold or publish the port.
    pub fn holder(&self, port: u16) -> Option<AllocId> {
        let held = self.by.get(&port).and_then(|holders| holders.first());
        held.or_else(|| self.published.get(&port)?.keys().next()).copied()
    }

    /// Why the port can't be assigned: it is reserved for the machine, or an allocation holds or publishes it.
    pub fn refuses(&self, port: u16) -> Option<NoPorts> {
        let is_published = self.published.contains_key(&port);
        self.refuses_as_held(port).or_else(|| is_published.then_some(NoPorts::Taken(port)))
    }

    /// Why services of the job can't publish the port: it is reserved for the machine, or held, or published by another job.
    fn refuses_publication(&self, port: u16, job: &JobKey) -> Option<NoPorts> {
        let mut publishers = self.published.get(&port).into_iter().flat_map(BTreeMap::values);
        let is_anothers = publishers.any(|publisher| publisher != job);
        self.refuses_as_held(port).or_else(|| is_anothers.then_some(NoPorts::Taken(port)))
    }

    fn refuses_as_held(&self, port: u16) -> Option<NoPorts> {
        if self.reserved.contains(&port) {
            Some(NoPorts::Reserved(port))
        } else {
            self.by.contains_key(&port).then_some(NoPorts::Taken(port))
        }
    }
}

/// The ports of a new allocation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllocPorts {
    /// Of the group, by label.
    pub group: Ports,
    /// Of single tasks, by task.
    pub tasks: BTreeMap<String, Ports>,
}

/// The ports of a machine for new allocations.
#[derive(Debug, Clone, Copy)]
pub struct OfferedPorts<'s> {
    /// The dynamic ports.
    pub dynamic: &'s RangeInclusive<u16>,
    /// The address that they are on.
    pub host_ip: &'s str,
    /// The machine's networks on which they can be instead, by name.
    pub networks: &'s BTreeMap<String, HostNetwork>,
}

/// Where a port is.
#[derive(Clone, Copy)]
struct Place<'s> {
    ip: &'s str,
    /// The network, if it is not the usual one.
    network: Option<(&'s str, &'s HostNetwork)>,
}

impl<'s> OfferedPorts<'s> {
    /// Where a port of the group is; ports of tasks are on the usual network.
    fn place<'p>(&self, group: &'p Group, task: Option<&Task>, label: &str) -> Result<Place<'p>, NoPorts>
    where
        's: 'p,
    {
        let named = group.network.as_ref().filter(|_| task.is_none());
        self.place_on(named.and_then(|network| network.host_networks.get(label)), label)
    }

    fn place_on<'p>(&self, network: Option<&'p String>, label: &str) -> Result<Place<'p>, NoPorts>
    where
        's: 'p,
    {
        let Some(name) = network else { return Ok(Place { ip: self.host_ip, network: None }) };
        let network =
            self.networks.get(name).ok_or_else(|| NoPorts::NoNetwork(name.clone(), String::from(label)))?;
        let ip = network.ip.as_deref().ok_or_else(|| NoPorts::NoAddress(name.clone()))?;
        Ok(Place { ip, network: Some((name, network)) })
    }
}

impl Place<'_> {
    /// Why a port can't be assigned here.
    fn refuses(&self, port: u16, held: &PortClaims) -> Option<NoPorts> {
        held.refuses(port).or_else(|| self.reserves(port))
    }

    fn reserves(&self, port: u16) -> Option<NoPorts> {
        let in_network = self.network.filter(|(_, network)| network.reserved_ports.contains(&port));
        in_network.map(|(name, _)| NoPorts::ReservedIn(port, String::from(name)))
    }
}

/// Checks that the fixed ports of the group and its tasks are free, or held by an allocation that is about to release them (`own`).
///
/// # Errors
/// The first port that can't be assigned.
pub fn check_fixed(group: &Group, held: &PortClaims, own: &BTreeSet<u16>) -> Result<(), NoPorts> {
    let published = group.published_ports().map(|publish| publish.port);
    let mut refused = group.fixed_ports().chain(published).filter_map(|port| held.refuses(port));
    let is_own = |why: &NoPorts| matches!(why, NoPorts::Taken(port) if own.contains(port));
    refused.find(|why| !is_own(why)).map_or(Ok(()), Err)
}

/// Checks that the job's services in this group may publish their ports: another job of this machine may do so already.
///
/// # Errors
/// The first port that can't be published.
pub fn check_published(
    group: &Group,
    job: &JobKey,
    held: &PortClaims,
    offered: &OfferedPorts<'_>,
) -> Result<(), NoPorts> {
    for publish in group.published_ports() {
        let place = offered.place_on(publish.host_network.as_ref(), &format!("{}", publish.port))?;
        let refused = held.refuses_publication(publish.port, job);
        if let Some(why) = refused.or_else(|| place.reserves(publish.port)) {
            return Err(why);
        }
    }
    Ok(())
}

/// Assigns ports to a new allocation, for its group and its tasks. Dynamic ports are chosen by a hash of the
/// allocation's id, so that the choice differs between agents on one machine and needs no state.
///
/// # Errors
/// The first port that can't be assigned.
pub fn assign(
    group: &Group,
    id: AllocId,
    held: &PortClaims,
    offered: &OfferedPorts<'_>,
) -> Result<AllocPorts, NoPorts> {
    let range = offered.dynamic;
    let mut own: BTreeSet<u16> = group.published_ports().map(|publish| publish.port).collect();
    let mut ports = AllocPorts::default();
    let mut give = |(task, label): (Option<&Task>, &String), request: &PortRequest, value: u16, ip: &str| {
        let of_owner = match task {
            Some(task) => ports.tasks.entry(task.name.clone()).or_default(),
            None => &mut ports.group,
        };
        of_owner.insert(label.clone(), port_of(ip, value, request.to));
    };
    for (task, label, request) in group.port_requests() {
        let Some(port) = request.fixed else { continue };
        let place = offered.place(group, task, label)?;
        if let Some(why) = place.refuses(port, held) {
            return Err(why);
        }
        if !own.insert(port) {
            return Err(NoPorts::Taken(port));
        }
        give((task, label), request, port, place.ip);
    }
    for (task, label, request) in group.port_requests().filter(|(_, _, request)| request.fixed.is_none()) {
        let place = offered.place(group, task, label)?;
        let count = i64::from(range.end().saturating_sub(*range.start()).saturating_add(1));
        let first = match task {
            Some(task) => fraction(count, (id, task.name.as_str(), label.as_str())),
            None => fraction(count, (id, label.as_str())),
        };
        let mut free = (0..count)
            .map(|step| *range.start() + ((step + first) % count) as u16)
            .filter(|port| place.refuses(*port, held).is_none() && !own.contains(port));
        // The report may be outdated: a port whose owner has just ended is better than none.
        let unused = free.clone().find(|port| !held.listening.contains(port));
        let free = unused.or_else(|| free.next()).ok_or(NoPorts::Exhausted)?;
        own.insert(free);
        give((task, label), request, free, place.ip);
    }
    Ok(ports)
}

fn port_of(host_ip: &str, value: u16, to: Option<u16>) -> AssignedPort {
    AssignedPort { host_ip: String::from(host_ip), value, to: to.unwrap_or(0) }
}

#[cfg(test)]
mod tests;
