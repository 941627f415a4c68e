//! Networks of allocations on the simulated machine: namespaces with addresses from a small pool, and the processes in
//! them.
//!
//! In: operations on networks, starts of processes. Out: their facts, or a violation: two networks share an address or a
//! port.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use herdlet_api_types::{
    AllocId,
    alloc::Allocation,
    job::{Group, NetworkMode},
};
use herdlet_plan::{
    facts::{Facts, Input, Revision},
    network::AllocNetwork,
    op::Part,
};

/// An attempt: its allocation, the index of its task, its number.
type AttemptKey = (AllocId, u16, u32);

/// Addresses of the pool: more than allocations live at once, so that networks that are never removed use them up.
const ADDRESSES: u64 = 1_000;

/// One network. Its claims on an address and on ports outlive its namespace.
#[derive(Debug, Clone)]
struct Network {
    /// Each new namespace has another number.
    namespace: u64,
    address: u64,
    ports: BTreeSet<u16>,
}

/// All networks.
#[derive(Debug, Default)]
pub struct Networks {
    known: BTreeMap<AllocId, Network>,
    /// Namespaces made so far.
    made: u64,
    /// The namespaces in which attempts were started.
    entered: BTreeMap<AttemptKey, u64>,
}

impl Networks {
    /// Sets up the network of an allocation, in a new namespace if the last one is gone.
    ///
    /// # Errors
    /// It is not needed, or another network has what it needs.
    pub(super) fn make(&mut self, alloc: &Allocation, has_namespace: bool) -> Result<Arc<Facts>, String> {
        if !alloc.group().is_some_and(Group::has_own_network) {
            return Err(format!("{} gets a network that it does not need", alloc.name()));
        }
        let ports: BTreeSet<u16> = alloc.host_ports().map(|port| port.value).collect();
        let others = || self.known.iter().filter(|(id, _)| **id != alloc.id).map(|(_, network)| network);
        if others().any(|other| !other.ports.is_disjoint(&ports)) {
            return Err(format!("the network of {} maps a port that another one maps", alloc.name()));
        }
        let last = self.known.get(&alloc.id).cloned();
        let taken: BTreeSet<u64> = others().map(|other| other.address).collect();
        let free = || (0..ADDRESSES).find(|address| !taken.contains(address));
        let address = last.as_ref().map(|network| network.address).or_else(free);
        let address = address.ok_or("no address is free: networks are not removed")?;
        let namespace = match last {
            Some(last) if has_namespace => last.namespace,
            Some(_) | None => {
                self.made += 1;
                self.made
            }
        };
        self.known.insert(alloc.id, Network { namespace, address, ports });
        self.facts(alloc.id).ok_or_else(|| "no network".to_owned())
    }

    /// The facts of an allocation's network; none if nothing of it is left.
    pub(super) fn facts(&self, alloc: AllocId) -> Option<Arc<Facts>> {
        let network = self.known.get(&alloc)?;
        let about = AllocNetwork {
            interface: "eth0".to_owned(),
            address: format!("10.9.0.{}", network.address),
            ..AllocNetwork::default()
        };
        let revision = Revision(network.namespace);
        Some(Arc::new(Facts { revision, network: Some(about), ..Facts::none() }))
    }

    /// Removes all of it.
    pub(super) fn remove(&mut self, alloc: AllocId) {
        self.known.remove(&alloc);
    }

    /// A process enters the namespace.
    ///
    /// # Errors
    /// Its start lacks the network's facts.
    pub(super) fn enter(&mut self, key: AttemptKey, group: &Group, inputs: &[Input]) -> Result<(), String> {
        if !group.has_own_network() {
            return Ok(());
        }
        if !inputs.iter().any(|input| input.part == Part::Network && input.facts.network.is_some()) {
            return Err(format!("{key:?} starts without the facts of its network"));
        }
        let namespace = self.known.get(&key.0).map(|network| network.namespace);
        self.entered.insert(key, namespace.ok_or_else(|| format!("{key:?} starts without a network"))?);
        Ok(())
    }

    /// Whether the process of an attempt is in the present network of its allocation, as each one must be in the end.
    pub(super) fn is_current(&self, key: AttemptKey, group: &Group) -> bool {
        let present = self.known.get(&key.0).map(|network| network.namespace);
        !group.has_own_network() || (present.is_some() && self.entered.get(&key).copied() == present)
    }

    /// An allocation that still has a network.
    pub(super) fn left(&self) -> Option<AllocId> {
        self.known.keys().next().copied()
    }

    /// A reboot removes all of them.
    pub(super) fn reboot(&mut self) {
        self.known.clear();
        self.entered.clear();
    }
}

/// The mode of a random job's network, by the number of its tasks.
pub(super) fn mode_of(tasks: usize) -> NetworkMode {
    match tasks {
        2 => NetworkMode::Bridge,
        4 => NetworkMode::None,
        5 => NetworkMode::Cni("other".to_owned()),
        _ => NetworkMode::Host,
    }
}
