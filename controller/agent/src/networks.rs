//! The networks of this agent's allocations: an allocation as the kernel's interfaces need it, its network as the planner needs it.
//!
//! In: allocations whose group has a network of its own. Out: networks, as outcomes of operations. All calls block.
//!
//! The bridge, its rules and their sockets are opened by the first allocation that needs them: an agent without such allocations
//! changes nothing of the machine's network.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use herdlet_api_types::{
    AllocId, InstanceId,
    alloc::{Allocation, AssignedPort},
    job::{Dns, Network, NetworkMode},
};
use herdlet_base::{error::in_full, paths::Paths};
use herdlet_cni::networks::{CniNetworks, Depth};
use herdlet_config::network::Network as Settings;
use herdlet_network::{
    namespace::NamespaceId,
    networks::{
        AllocNetwork as Made, Bridge, BridgeSettings, ConnectError, INTERFACE, LoneNetworks, NetworkError,
        NetworkRequest, NetworkState, Remains, RequestedPort,
    },
    port_owner::HeldPort,
};
use herdlet_plan::{
    action::Outcome,
    env::NodeFacts,
    facts::{Facts, Revision},
    network::AllocNetwork,
};

pub use self::view::dropping_chains;
use self::{
    description::Description,
    failure::{failed, fatal, not_held, retry},
};
use crate::current_node::CurrentNode;
pub use herdlet_network::networks::{NameServer, NameSockets};

mod cni;
mod description;
mod dns;
mod drift;
mod failure;
mod permission;
mod view;

pub use drift::{RuleRepairFailure, is_on_bridge};
pub use permission::Permission;

/// The networks.
#[derive(Debug)]
pub struct AllocNetworks {
    bridge: Arc<Bridge>,
    paths: Paths,
    machine: Machine,
    lone: LoneNetworks,
    cni: CniNetworks,
}

/// What networks depend on, besides the config.
#[derive(Debug, Clone)]
pub struct Machine {
    pub permission: Permission,
    /// The default addresses of ports. Each port of theirs belongs to at most one allocation, so the same port of the loopback
    /// address can lead there too.
    pub usual_addresses: Vec<IpAddr>,
    /// The facts that variables in jobs stand for, and that plugins get.
    pub node: CurrentNode,
}

impl Machine {
    /// For an agent with this address of ports, in the facts about its node or in its config.
    pub fn new(host_ip: &str, node: CurrentNode) -> Self {
        let facts = node.get();
        let of_node = facts.attributes.get("unique.network.ip-address").map(String::as_str);
        let addresses = [Some(host_ip), of_node].into_iter().flatten();
        let usual_addresses = addresses.filter_map(|ip| ip.parse().ok()).collect();
        Self { permission: Permission::probe(), usual_addresses, node }
    }

    /// For an agent that only removes.
    pub fn of_process() -> Self {
        let node = CurrentNode::new(NodeFacts::default());
        Self { permission: Permission::probe(), usual_addresses: Vec::new(), node }
    }
}

/// Numbers of networks that belong to no allocation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepCount {
    /// Removed.
    pub removed: u64,
    /// Still there.
    pub left: u64,
}

/// Why the agent makes no networks.
pub const NO_PERMISSION: &str = "the agent lacks the capabilities CAP_SYS_ADMIN and CAP_NET_ADMIN: run it as root, or use \
                                 the machine's network (mode host)";

/// The bridge of an instance, which allocations and containers share.
pub fn bridge_of(instance: &InstanceId, settings: &Settings, paths: &Paths) -> Arc<Bridge> {
    Arc::new(Bridge::new(BridgeSettings {
        instance: instance.0.clone(),
        name: settings.bridge.clone(),
        subnet4: settings.subnet,
        subnet6: settings.subnet6,
        mtu: settings.mtu,
        hairpin: settings.hairpin,
        runtime: paths.runtime.clone(),
        name_serving: settings.dns,
    }))
}

impl AllocNetworks {
    /// The networks of the instance that has this bridge. Changes nothing.
    pub fn new(bridge: Arc<Bridge>, settings: Settings, paths: &Paths, machine: Machine) -> Self {
        Self {
            cni: CniNetworks::new(settings.cni, &paths.state, &paths.runtime),
            bridge,
            paths: paths.clone(),
            machine,
            lone: LoneNetworks::in_runtime(&paths.runtime),
        }
    }

    /// Makes the network of an allocation, or corrects what differs, with the files about it in the allocation's directory.
    pub fn up(&self, alloc: &Allocation) -> Outcome {
        let about = match self.describe(alloc) {
            Ok(about) => about,
            Err(why) => return fatal(why),
        };
        let mode = mode_of(alloc);
        if self.machine.permission == Permission::Missing && !mode.is_host() {
            return fatal(NO_PERMISSION.to_owned());
        }
        let owner = alloc.id.to_string();
        match mode {
            NetworkMode::Host => about.written(&[], facts_of_machine()),
            NetworkMode::None => match self.lone.up(&owner) {
                Ok(namespace) => about.written(&[], facts_of(namespace, None)),
                Err(error) => failed(&error),
            },
            NetworkMode::Bridge => self.bridge_up(&about, &owner).unwrap_or_else(|error| failed(&error)),
            NetworkMode::Cni(name) => self.cni_up(&about, &name),
        }
    }

    /// Removes the network of an allocation, and the files about it.
    pub fn down(&self, alloc: &Allocation) -> Outcome {
        let mode = mode_of(alloc);
        if self.machine.permission == Permission::Missing && !mode.is_host() {
            return Outcome::Done(None);
        }
        let owner = alloc.id.to_string();
        let removed = match mode {
            NetworkMode::Host => Ok(()),
            NetworkMode::Cni(_) => return self.cni_down(alloc),
            NetworkMode::None => self.lone.down(&owner),
            NetworkMode::Bridge => self.bridge.disconnect(&owner),
        };
        match removed {
            Ok(()) => description::removed(&self.paths.alloc(&alloc.id)),
            Err(error) => failed(&error),
        }
    }

    /// Inspects the network of an allocation.
    pub fn inspect(&self, alloc: &Allocation) -> Outcome {
        let mode = mode_of(alloc);
        let about = match self.describe(alloc) {
            Ok(about) => about,
            Err(why) => return retry(why),
        };
        if self.machine.permission == Permission::Missing && !mode.is_host() {
            return Outcome::Absent;
        }
        let owner = alloc.id.to_string();
        let seen = match mode {
            NetworkMode::Host => return about.of_machine(),
            NetworkMode::Cni(_) => return self.cni_inspect(&about, Depth::Plugins),
            NetworkMode::None => {
                let seen = self.lone.inspect(&owner);
                seen.map(|state| about.observed(state, |namespace| (Vec::new(), facts_of(namespace, None))))
            }
            NetworkMode::Bridge => self.inspect_bridged(&about, &owner),
        };
        seen.unwrap_or_else(|error| failed(&error))
    }

    /// Inspects the network of an allocation without the start of a process.
    pub fn inspect_often(&self, alloc: &Allocation) -> Outcome {
        match (mode_of(alloc), self.describe(alloc)) {
            (NetworkMode::Cni(_), Ok(about)) if self.machine.permission == Permission::Granted => {
                self.cni_inspect(&about, Depth::Kernel)
            }
            (NetworkMode::Host | NetworkMode::None | NetworkMode::Bridge | NetworkMode::Cni(_), _) => {
                self.inspect(alloc)
            }
        }
    }

    /// The numbers of the ports that this agent holds.
    pub fn held_ports(&self) -> BTreeSet<u16> {
        self.held().into_iter().map(|HeldPort { port, .. }| port).collect()
    }

    fn held(&self) -> Vec<HeldPort> {
        let mut held = self.bridge.holder().held();
        held.extend(self.cni.held_ports());
        held
    }

    /// Removes the remains of networks whose allocation satisfies `is_leak`: after the loss of the database
    /// there is no other record of them.
    pub fn sweep(&self, is_leak: impl Fn(AllocId) -> bool) -> SweepCount {
        if self.machine.permission == Permission::Missing {
            return SweepCount::default();
        }
        // Plugins detach a network before its namespace goes.
        let mut swept = self.cni_sweep(&is_leak);
        if !self.bridge.may_be_used() {
            return swept;
        }
        let found = self.bridge.networks().and_then(|networks| Ok((networks.owners()?, networks)));
        let (owners, networks) = match found {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(error = in_full(&error), "failed to list networks of earlier allocations");
                return swept;
            }
        };
        let is_leak = |owner: &str| owner.parse().is_ok_and(|id| is_leak(AllocId(id)));
        for (owner, remains) in owners.iter().filter(|(owner, _)| is_leak(owner)) {
            remains.log_removal(owner);
            match networks.down(owner) {
                Ok(()) => swept.removed += u64::from(*remains == Remains::Network),
                Err(error) => {
                    tracing::warn!(alloc = owner, error = in_full(&error), "failed to remove the network");
                    swept.left += 1;
                }
            }
        }
        swept
    }

    /// Removes all networks, the bridge and its rules, at the end of an instance.
    ///
    /// # Errors
    /// What is left of them.
    pub fn remove_all(&self) -> Result<(), String> {
        if self.machine.permission == Permission::Missing {
            return Ok(());
        }
        let detached = self.cni.remove_all().map_err(|error| in_full(&error));
        let removed = if self.bridge.may_be_used() { self.remove_bridged() } else { Ok(()) };
        detached.and(removed.map_err(|error| in_full(&error)))
    }

    /// Removes the bridge and its rules if no allocation has a network: at the end of an agent they would be left if the instance is not
    /// used again. The next network makes them again.
    pub fn remove_unused(&self) {
        if self.machine.permission == Permission::Missing || !self.bridge.may_be_used() {
            return;
        }
        let removed = self
            .bridge
            .networks()
            .and_then(|networks| if networks.is_unused()? { networks.remove() } else { Ok(()) });
        if let Err(error) = removed {
            tracing::warn!(error = in_full(&error), "failed to remove the bridge that no allocation uses");
        }
    }

    fn remove_bridged(&self) -> Result<(), NetworkError> {
        let networks = self.bridge.networks()?;
        let mut removed = Ok(());
        for owner in networks.owners()?.keys() {
            removed = removed.and(networks.down(owner));
        }
        removed.and(networks.remove())
    }

    fn bridge_up(&self, about: &Description<'_>, owner: &str) -> Result<Outcome, NetworkError> {
        let ports = self.ports_of(about.alloc);
        let made = match self.bridge.connect(&request(owner, &ports)) {
            Ok(made) => made,
            Err(ConnectError::Port(error)) => return Ok(not_held(&error)),
            Err(ConnectError::Network(error)) => return Err(error),
        };
        let about = about.with_name_server(self.bridge.name_server(&*self.bridge.networks()?));
        Ok(about.written(&addresses_of(&made), bridged_facts(&made)))
    }

    fn describe<'a>(&self, alloc: &'a Allocation) -> Result<Description<'a>, String> {
        let dns = dns::interpolated(alloc, &self.machine.node)?;
        let hostname = dns::hostname(alloc, &self.machine.node)?;
        Ok(Description { alloc, dir: self.paths.alloc(&alloc.id), dns, hostname, name_server: None })
    }

    fn inspect_bridged(&self, about: &Description<'_>, owner: &str) -> Result<Outcome, NetworkError> {
        let outcome = self.seen_on_bridge(about, owner)?;
        // The sockets have ended with the earlier agent.
        if matches!(outcome, Outcome::Present(_)) {
            let ports = self.ports_of(about.alloc);
            self.bridge.hold(&request(owner, &ports));
        }
        Ok(outcome)
    }

    fn seen_on_bridge(&self, about: &Description<'_>, owner: &str) -> Result<Outcome, NetworkError> {
        let (networks, ports) = (self.bridge.networks()?, self.ports_of(about.alloc));
        let state = networks.inspect(&request(owner, &ports))?;
        let is_complete = matches!(state, NetworkState::Complete(_));
        let about = about.with_name_server(is_complete.then(|| self.bridge.name_server(&networks)).flatten());
        Ok(about.observed(state, |made| (addresses_of(&made), bridged_facts(&made))))
    }

    /// The ports that lead to an allocation.
    fn ports_of(&self, alloc: &Allocation) -> Vec<RequestedPort> {
        self.requested_ports(alloc).map(|(_, _, requested)| requested).collect()
    }

    /// The same, each with its label and the port that it comes from. Ports of single tasks are the machine's.
    fn requested_ports<'a>(
        &'a self,
        alloc: &'a Allocation,
    ) -> impl Iterator<Item = (&'a String, &'a AssignedPort, RequestedPort)> {
        let network = alloc.group().and_then(|group| group.network.as_ref());
        alloc.ports.iter().flat_map(move |(label, port)| {
            let on = network.map_or(Network::DEFAULT_HOST_NETWORK, |network| network.host_network(label));
            let is_usual = on == Network::DEFAULT_HOST_NETWORK;
            let usual: &[IpAddr] = if is_usual { &self.machine.usual_addresses } else { &[] };
            requested(port, usual).into_iter().map(move |requested| (label, port, requested))
        })
    }
}

fn mode_of(alloc: &Allocation) -> NetworkMode {
    let network = alloc.group().and_then(|group| group.network.as_ref());
    network.map(|network| network.mode.clone()).unwrap_or_default()
}

fn request<'r>(owner: &'r str, ports: &'r [RequestedPort]) -> NetworkRequest<'r> {
    NetworkRequest { owner, ports }
}

/// A port at its address; at a usual one, for clients on the machine, also at 127.0.0.1.
fn requested(port: &AssignedPort, usual: &[IpAddr]) -> Vec<RequestedPort> {
    let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
    let own = port.host_ip.parse::<IpAddr>().ok();
    let also = own.filter(|own| usual.contains(own) && own.is_ipv4()).map(|_| loopback);
    let also = also.filter(|_| own.is_some_and(|own| !own.is_loopback() && !own.is_unspecified()));
    let inside = if port.to > 0 { port.to } else { port.value };
    let at = |host_ip| RequestedPort { host_ip, host: port.value, inside };
    std::iter::once(at(own)).chain(also.map(|ip| at(Some(ip)))).collect()
}

/// The addresses of an allocation on the bridge, IPv4 first.
fn addresses_of(made: &Made) -> Vec<IpAddr> {
    std::iter::once(made.address4.into()).chain(made.address6.map(IpAddr::from)).collect()
}

fn bridged_facts(made: &Made) -> Arc<Facts> {
    let network = AllocNetwork {
        interface: INTERFACE.to_owned(),
        address: made.address4.to_string(),
        address6: made.address6.map(|ip| ip.to_string()),
        dns: Dns::default(),
    };
    facts_of(made.namespace, Some((made.address4, network)))
}

/// The revision changes with everything that a running task can't follow: its namespace, its address.
fn facts_of(namespace: NamespaceId, of_bridge: Option<(Ipv4Addr, AllocNetwork)>) -> Arc<Facts> {
    let address = of_bridge.as_ref().map_or(0, |(address, _)| u64::from(address.to_bits()));
    let revision = (address << 32) | (namespace.number() & u64::from(u32::MAX));
    Arc::new(Facts {
        revision: Revision(revision.max(1)),
        network: of_bridge.map(|(_, network)| network),
        ..Facts::default()
    })
}

/// The machine's network is always the same.
fn facts_of_machine() -> Arc<Facts> {
    Arc::new(Facts { revision: Revision(1), ..Facts::default() })
}

#[cfg(test)]
mod tests;
