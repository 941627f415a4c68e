//! Networks as shown to people.
//!
//! In: allocations as published. Out: the bridge, and the network of each allocation, as found now. Nothing is changed, and
//! no port is taken.

use std::{net::IpAddr, sync::Arc};

use herdlet_api_types::{
    alloc::{Allocation, AssignedPort},
    job::NetworkMode,
    network::{AllocNetworkView, BridgeView, ChainLock, DroppingChain, NetworkView, PortView},
    view::AllocView,
};
use herdlet_base::error::in_full;
use herdlet_cni::networks::Depth;
use herdlet_network::{
    address::InterfaceAddress,
    foreign::{self, Passage, Traffic},
    networks::{BridgeStatus, NetworkError, RequestedPort},
    port_owner::{HeldPort, PortOwner, Transport, owner_of},
    socket::{Protocol, Socket},
};
use herdlet_plan::action::Outcome;

use super::{AllocNetworks, Permission, failed, mode_of, retry};

impl AllocNetworks {
    /// The bridge, if there is one, and the networks of these allocations.
    pub fn views(&self, allocs: &[Arc<AllocView>]) -> Vec<NetworkView> {
        let held = self.held();
        let has_own = |view: &&Arc<AllocView>| view.spec.group().is_some_and(|group| group.has_own_network());
        let of_allocs = allocs.iter().filter(has_own).filter_map(|view| self.view(view, &held));
        self.bridge_view().into_iter().chain(of_allocs.map(NetworkView::Alloc)).collect()
    }

    fn bridge_view(&self) -> Option<NetworkView> {
        if self.machine.permission == Permission::Missing || !self.bridge.exists().ok()? {
            return None;
        }
        match self.bridge.networks().and_then(|networks| networks.status()) {
            Ok(status) => status.map(|status| NetworkView::Bridge(bridge_view(status))),
            Err(error) => {
                tracing::warn!(error = in_full(&error), "failed to inspect the bridge");
                None
            }
        }
    }

    /// None if the allocation has ended, and nothing of its network is left.
    fn view(&self, view: &AllocView, held: &[HeldPort]) -> Option<AllocNetworkView> {
        let alloc = &view.spec;
        let seen = self.seen(alloc);
        if view.status.is_terminal() && matches!(seen, Outcome::Absent) {
            return None;
        }
        let network = view.network.clone().unwrap_or_default();
        Some(AllocNetworkView {
            alloc: alloc.id,
            name: alloc.name(),
            job: alloc.job_key.clone(),
            mode: mode_of(alloc).to_string(),
            interface: network.interface,
            address: network.address,
            address6: network.address6,
            namespace: self.paths.runtime.join("netns").join(alloc.id.to_string()).display().to_string(),
            ports: self.port_views(alloc, held),
            problem: problem(&seen),
        })
    }

    /// Inspects the network of an allocation. Unlike [`AllocNetworks::inspect`], it holds no ports.
    fn seen(&self, alloc: &Allocation) -> Outcome {
        let about = match self.describe(alloc) {
            Ok(about) => about,
            Err(why) => return retry(why),
        };
        match mode_of(alloc) {
            NetworkMode::Bridge if self.machine.permission == Permission::Granted => {
                let seen = self.seen_on_bridge(&about, &alloc.id.to_string());
                seen.unwrap_or_else(|error: NetworkError| failed(&error))
            }
            NetworkMode::Cni(_) if self.machine.permission == Permission::Granted => {
                self.cni_inspect(&about, Depth::Kernel)
            }
            NetworkMode::Host | NetworkMode::None | NetworkMode::Bridge | NetworkMode::Cni(_) => {
                self.inspect(alloc)
            }
        }
    }

    pub(super) fn port_views(&self, alloc: &Allocation, held: &[HeldPort]) -> Vec<PortView> {
        if mode_of(alloc) == NetworkMode::None {
            return Vec::new();
        }
        let view = |(label, port, requested): (&String, &AssignedPort, RequestedPort)| PortView {
            label: label.clone(),
            host_ip: requested.host_ip.map_or_else(|| port.host_ip.clone(), |ip| ip.to_string()),
            host_port: requested.host,
            port: requested.inside,
            held_by: holder(requested.host_ip, requested.host, held),
        };
        self.requested_ports(alloc).map(view).collect()
    }
}

/// The process that has a port by TCP, else by UDP.
fn holder(ip: Option<IpAddr>, port: u16, held: &[HeldPort]) -> Option<String> {
    let ip = ip.filter(|ip| !ip.is_unspecified());
    let holder = |protocol| {
        let port = HeldPort { protocol, ip, port };
        match held.contains(&port) {
            true => Some(format!("herdlet (process {})", std::process::id())),
            false => owner_of(&port).map(|PortOwner { pid, program }| format!("{program} (process {pid})")),
        }
    };
    holder(Transport::Tcp).or_else(|| holder(Transport::Udp))
}

fn problem(seen: &Outcome) -> Option<String> {
    match seen {
        Outcome::Present(_) => None,
        Outcome::Foreign { why } => Some(why.clone()),
        Outcome::Failed { why, .. } => Some(format!("the agent failed to {why}")),
        Outcome::Pending { on, .. } => Some(format!("it waits for {on}")),
        Outcome::Absent
        | Outcome::Done(_)
        | Outcome::Started(_)
        | Outcome::Lost { .. }
        | Outcome::Recovered(_)
        | Outcome::Outdated { .. }
        | Outcome::Overdue
        | Outcome::Checking(_) => Some("it is not set up".to_owned()),
    }
}

/// The chains of other programs that drop forwarded packets. None of them is passed: there is no bridge.
///
/// # Errors
/// Why the rules of this machine can't be read.
pub fn dropping_chains() -> Result<Vec<DroppingChain>, String> {
    let mut socket = Socket::open(Protocol::Netfilter).map_err(|error| error.to_string())?;
    let found = foreign::obstacles(&mut socket, Traffic::Forwarded).map_err(|error| in_full(&error))?;
    Ok(found.into_iter().map(dropping_chain).collect())
}

fn bridge_view(status: BridgeStatus) -> BridgeView {
    let BridgeStatus {
        name,
        gateway,
        gateway6,
        mtu,
        table,
        addresses_used,
        addresses_max,
        difference,
        forwarded,
    } = status;
    let shown = |address: InterfaceAddress| format!("{}/{}", address.ip, address.prefix);
    BridgeView {
        name,
        address: shown(gateway),
        address6: gateway6.map(shown),
        mtu,
        addresses_used,
        addresses_max,
        table: format!("inet {table}"),
        problem: difference.map(|what| format!("its {what}")),
        dropping_chains: forwarded.into_iter().map(dropping_chain).collect(),
    }
}

fn dropping_chain(Passage { chain, place, has_rules, lock }: Passage) -> DroppingChain {
    DroppingChain {
        family: chain.family.as_str().to_owned(),
        table: chain.table,
        chain: chain.name,
        rules_in: place,
        is_passed: has_rules,
        lock: lock.map(chain_lock),
    }
}

fn chain_lock(lock: foreign::ChainLock) -> ChainLock {
    match lock {
        foreign::ChainLock::Owned { port } => {
            let program = std::fs::read_to_string(format!("/proc/{port}/comm")).ok();
            ChainLock::Owned { by: program.map(|name| format!("{} (process {port})", name.trim())) }
        }
        foreign::ChainLock::Legacy => ChainLock::Legacy,
    }
}
