//! Whole networks of allocations on one bridge: namespace, pair of interfaces, addresses, routes, mapped ports.
//!
//! In: what is wanted for an allocation. Out: a network that is as wanted; its address. Everything is found by the allocation's
//! name, so after any interruption the same call completes or removes what is there.
//!
//! ```text
//! up     bridge, rules, settings ─► claim an address ─► namespace with a file ─► pair ─► addresses, routes ─► mapped ports
//! down   mapped ports ─► file of the namespace ─► (cleanup) connections ─► pair ─► claim
//! ```

mod bridge;
mod cleanup;
mod drift;
mod inside;
mod lone;
mod machine;
mod name_server;
mod request;
mod status;

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use herdlet_base::paths::hashed;
use rustix::io::Errno;

use crate::{
    address::InterfaceAddress,
    address_pool::{AddressPool, PoolError},
    changed_settings::ChangedSettings,
    firewall::{BridgeRules, Firewall, Installation, PortMap},
    foreign,
    link::{self, Hairpin, InterfaceName, Link, Mac, Pair},
    namespace::{Namespace, Pin, Pins},
    socket::{Protocol, Socket},
    subnet::Subnet4,
};

use cleanup::{Cleanup, RemovedNetwork};
pub use drift::{Concern, RuleRepair};
use name_server::ServedNames;

pub use bridge::{Bridge, BridgeSettings, ConnectError, NameServing};
pub use lone::LoneNetworks;
pub use name_server::{NameServer, NameSockets};
pub use request::{
    AllocNetwork, BridgeConfig, NetworkError, NetworkRequest, NetworkState, Remains, RequestedPort,
};
pub use status::BridgeStatus;

/// The directory of files about changed settings of the machine, in that of files that last until the next boot.
pub const SETTINGS: &str = "settings";

/// The interface in an allocation's namespace.
pub const INTERFACE: &str = "eth0";

/// The number of the loopback interface, in every namespace.
const LOOPBACK: u32 = 1;

/// The first bytes of hardware addresses: of ours, assigned locally.
const MAC_PREFIX: [u8; 2] = [0x02, 0x68];

/// Number of hexadecimal digits of an allocation's digest in the name of its interface on the machine.
const DIGEST_LEN: usize = 12;

/// The networks on one bridge.
#[derive(Debug)]
pub struct Networks {
    config: BridgeConfig,
    pins: Pins,
    pool: Arc<AddressPool>,
    cleanup: Cleanup,
    firewall: Firewall,
    changed_settings: ChangedSettings,
    /// Mapped ports by allocation, as far as this agent has seen them: to map them again if another program removes the table.
    /// Locked until the kernel has them or has them no more: what is mapped again must not be what another thread just unmaps.
    ports: Mutex<Ports>,
    /// Whether this agent has installed the rules.
    rules: Mutex<Rules>,
    /// Why packets of the bridge could not be let through chains of others.
    passage_failures: Mutex<Vec<String>>,
    /// The name server of the bridge, if it has been asked for.
    name_server: Mutex<Option<ServedNames>>,
}

type Ports = BTreeMap<String, Vec<PortMap>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rules {
    Unknown,
    Installed,
}

impl Networks {
    /// The networks on this bridge, in the network namespace of this thread. Changes nothing.
    ///
    /// # Errors
    /// If the kernel has no netfilter.
    pub fn open(config: BridgeConfig) -> io::Result<Self> {
        let bridge =
            BridgeRules { name: config.name.clone(), subnet4: config.subnet4, subnet6: config.subnet6 };
        let claims = config.runtime.join("addresses").join(config.name.as_str());
        let pool = Arc::new(AddressPool::new(claims, config.subnet4));
        Ok(Self {
            pins: Pins::in_dir(config.runtime.join("netns")),
            cleanup: Cleanup::new(Arc::clone(&pool)),
            pool,
            firewall: Firewall::open(&config.instance, vec![bridge])?,
            changed_settings: ChangedSettings::in_dir(config.runtime.join(SETTINGS)),
            ports: Mutex::default(),
            rules: Mutex::new(Rules::Unknown),
            passage_failures: Mutex::default(),
            name_server: Mutex::default(),
            config,
        })
    }

    /// The path that keeps an allocation's namespace.
    pub fn namespace_path(&self, owner: &str) -> PathBuf {
        self.pins.path(owner)
    }

    /// Makes an allocation's network, or corrects what differs.
    ///
    /// # Errors
    /// If something can't be made. What is there stays, for the next try.
    pub fn up(&self, request: &NetworkRequest<'_>) -> Result<AllocNetwork, NetworkError> {
        self.unreachable_port(request).map_or(Ok(()), Err)?;
        self.cleanup.wait_for(request.owner)?;
        let mut socket = open_socket()?;
        let bridge = self.ensure_bridge(&mut socket)?;
        // The settings expose the machine's loopback addresses to the bridge, unless the rules are there.
        self.ensure_rules()?;
        self.ensure_settings(&mut socket)?;
        self.pass_others();
        let address4 = self.claim(request)?;
        let namespace = lone::ensure(&self.pins, request.owner)?;
        let mut inside = namespace.socket(Protocol::Route).map_err(entering)?;
        let addresses = self.addresses(address4);
        let (name, inner_name) = (self.link_name(request.owner)?, inner_name()?);
        let pair = Pair {
            name: &name,
            alias: &self.alias(Some(request.owner)),
            bridge: bridge.index,
            mtu: self.config.mtu,
            hairpin: self.config.hairpin,
            inner_name: &inner_name,
            inner_mac: mac_of(address4),
        };
        link::make_pair(&mut socket, &mut inside, &namespace, &pair)?;
        namespace.run(|| machine::set_all(self.inner_settings())).map_err(entering)??;
        self.configure(&mut inside, &inner_name, &addresses)?;
        let ports = self.port_maps(request, address4);
        self.map_ports(request.owner, ports.clone())?;
        self.forget_untranslated(&ports);
        self.network(address4, &namespace)
    }

    /// The address of the bridge, which is that of the machine for its networks.
    pub fn gateway(&self) -> IpAddr {
        self.config.subnet4.gateway().ip
    }

    /// Keeps the namespace of a process as that of an allocation, whose file is gone.
    ///
    /// # Errors
    /// If the process has ended, or the file can't be made.
    pub fn keep_of_process(&self, owner: &str, pid: u32) -> Result<(), NetworkError> {
        let namespace = Namespace::of_process(pid).map_err(inspecting)?;
        Ok(self.pins.keep(owner, &namespace)?)
    }

    /// Whether the ports that lead to an allocation are mapped already.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn maps_ports(&self, request: &NetworkRequest<'_>) -> Result<bool, NetworkError> {
        match self.pool.find(request.owner)? {
            Some(address4) => Ok(self.firewall.has_ports(&self.port_maps(request, address4))?),
            None => Ok(false),
        }
    }

    /// Inspects an allocation's network.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn inspect(&self, request: &NetworkRequest<'_>) -> Result<NetworkState, NetworkError> {
        if self.cleanup.has(request.owner) {
            return Ok(NetworkState::Absent);
        }
        let claimed = self.pool.find(request.owner)?;
        let (address4, namespace) = match (claimed, self.pins.find(request.owner)?) {
            (None, Pin::Absent) => return Ok(NetworkState::Absent),
            (None, Pin::Kept(_) | Pin::Empty) => {
                return Ok(NetworkState::Incomplete { what: "address is not claimed" });
            }
            (Some(_), Pin::Absent | Pin::Empty) => {
                return Ok(NetworkState::Incomplete { what: "namespace is gone" });
            }
            (Some(address4), Pin::Kept(namespace)) => (address4, namespace),
        };
        let mut socket = open_socket()?;
        let incomplete = |what: &'static str| Ok(NetworkState::Incomplete { what });
        let Some(bridge) = link::find(&mut socket, &self.config.name)? else {
            return incomplete("bridge is gone");
        };
        if let Some(what) = self.machine_difference(&mut socket, &bridge)? {
            return incomplete(what);
        }
        let outer = link::find(&mut socket, &self.link_name(request.owner)?)?;
        let is_connected = |outer: &Link| outer.is_up && outer.master == bridge.index;
        let is_set = |outer: &Link| {
            outer.mtu == self.config.mtu && outer.hairpin == (self.config.hairpin == Hairpin::On)
        };
        if !outer.as_ref().is_some_and(is_connected) || !bridge.is_up {
            return incomplete("interface on the machine is gone, down, or not on the bridge");
        }
        if !outer.as_ref().is_some_and(is_set) {
            return incomplete("interface on the machine has another mtu or hairpin");
        }
        let mut inside = namespace.socket(Protocol::Route).map_err(entering)?;
        if let Some(what) = self.inner_difference(&mut inside, address4)? {
            return incomplete(what);
        }
        if !namespace.run(|| machine::are_set(self.inner_settings())).map_err(entering)?? {
            return incomplete("setting of the kernel for the namespace was changed");
        }
        let ports = self.port_maps(request, address4);
        let mut known = self.lock_ports();
        if self.unreachable_port(request).is_some() || !self.firewall.has_ports(&ports)? {
            return incomplete("ports are not mapped");
        }
        let is_first = known.insert(request.owner.to_owned(), ports.clone()).is_none();
        drop(known);
        // An earlier agent may have ended just before it did so.
        if is_first {
            self.forget_untranslated(&ports);
        }
        Ok(NetworkState::Complete(self.network(address4, &namespace)?))
    }

    /// Removes an allocation's network; without effect if there is none. Each step is tried even if another one fails. Its address is free
    /// some milliseconds later.
    ///
    /// # Errors
    /// That of the first step that failed. The claim of the address then stays.
    pub fn down(&self, owner: &str) -> Result<(), NetworkError> {
        if self.cleanup.has(owner) {
            return Ok(());
        }
        let unmapped = self.unmap_ports(owner);
        let removed = self.pins.remove(owner).map_err(NetworkError::from);
        unmapped.and(removed)?;
        let address4 = self.pool.find(owner)?;
        if address4.is_none() && link::find(&mut open_socket()?, &self.link_name(owner)?)?.is_none() {
            return Ok(self.pool.release(owner)?);
        }
        let addresses = address4.map(|address4| self.addresses(address4)).unwrap_or_default();
        let removed = RemovedNetwork {
            addresses: addresses.into_iter().map(|address| address.ip).collect(),
            link: self.link_name(owner)?,
            alias: self.alias(Some(owner)),
        };
        self.cleanup.complete(owner, removed);
        Ok(())
    }

    /// Waits until all removals are complete: their addresses are free.
    ///
    /// # Errors
    /// If that takes too long.
    pub fn finish_removals(&self) -> Result<(), NetworkError> {
        self.cleanup.finish()
    }

    /// The allocations that have a claim, a namespace file or a mapped port, and are not being removed.
    ///
    /// # Errors
    /// If something can't be listed.
    pub fn owners(&self) -> Result<BTreeMap<String, Remains>, NetworkError> {
        let mut owners: BTreeMap<String, Remains> =
            self.pool.owners()?.into_keys().map(|owner| (owner, Remains::Claim)).collect();
        let pinned = self.pins.names()?.into_iter().filter_map(|name| name.into_string().ok());
        owners
            .extend(self.firewall.owners()?.into_iter().chain(pinned).map(|owner| (owner, Remains::Network)));
        owners.retain(|owner, _| !self.cleanup.has(owner));
        Ok(owners)
    }

    /// Whether no allocation has a network, and no interface of another program is on the bridge.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn is_unused(&self) -> Result<bool, NetworkError> {
        self.finish_removals()?;
        if self.owners()?.keys().any(|owner| owner != name_server::OWNER) {
            return Ok(false);
        }
        let mut socket = open_socket()?;
        let Some(bridge) = link::find(&mut socket, &self.config.name)? else { return Ok(true) };
        Ok(link::list(&mut socket)?.iter().all(|link| link.master != bridge.index))
    }

    /// Removes the rules and the bridge, and restores the settings of the machine. Networks that are still there lose their connection.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn remove(&self) -> Result<(), NetworkError> {
        self.finish_removals()?;
        *self.rules.lock().unwrap_or_else(PoisonError::into_inner) = Rules::Unknown;
        self.firewall.remove()?;
        foreign::withdraw(&mut open_netfilter()?, &self.config.instance)?;
        let mut socket = open_socket()?;
        let is_ours =
            link::find(&mut socket, &self.config.name)?.is_some_and(|found| found.alias == self.alias(None));
        if is_ours {
            link::delete(&mut socket, &self.config.name)?;
        }
        self.restore_settings(&mut socket)
    }

    /// Installs the rules, which an earlier release may have made otherwise, and again whenever another program has removed them.
    fn ensure_rules(&self) -> Result<(), NetworkError> {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        if *rules == Rules::Unknown || !self.firewall.has_rules()? {
            self.install(&self.lock_ports())?;
            *rules = Rules::Installed;
        }
        Ok(())
    }

    /// Installs the rules, with the ports if the table has none.
    fn install(&self, ports: &Ports) -> Result<(), NetworkError> {
        let had_table = self.firewall.has_table()?;
        match self.firewall.install()? {
            Installation::PortsKept if had_table => Ok(()),
            Installation::PortsKept | Installation::WithoutPorts => {
                Ok(self.firewall.map_ports(&all_of(ports))?)
            }
        }
    }

    /// The address of an allocation. It keeps the one in its namespace if only the claim is gone.
    fn claim(&self, request: &NetworkRequest<'_>) -> Result<Ipv4Addr, NetworkError> {
        let preferred = match self.pool.find(request.owner)? {
            Some(own) => Some(own),
            None => self.address_inside(request.owner)?,
        };
        match self.pool.claim(request.owner, preferred) {
            Err(PoolError::Full(_)) => {
                self.finish_removals()?;
                Ok(self.pool.claim(request.owner, preferred)?)
            }
            claimed => Ok(claimed?),
        }
    }

    fn map_ports(&self, owner: &str, ports: Vec<PortMap>) -> Result<(), NetworkError> {
        let mut known = self.lock_ports();
        known.insert(owner.to_owned(), ports.clone());
        match self.firewall.map_ports(&ports) {
            // A user has removed the table.
            Err(error) if error.errno() == Some(Errno::NOENT) => {
                self.install(&known)?;
                Ok(self.firewall.map_ports(&ports)?)
            }
            result => Ok(result?),
        }
    }

    fn unmap_ports(&self, owner: &str) -> Result<(), NetworkError> {
        let mut known = self.lock_ports();
        self.firewall.unmap_ports(owner, known.get(owner).map(Vec::as_slice))?;
        known.remove(owner);
        Ok(())
    }

    fn forget_untranslated(&self, ports: &[PortMap]) {
        self.cleanup.forget_untranslated(ports.iter().map(|port| (port.host_ip, port.host_port)).collect());
    }

    fn port_maps(&self, request: &NetworkRequest<'_>, address4: Ipv4Addr) -> Vec<PortMap> {
        let map = |port: &RequestedPort, target_ip: IpAddr| PortMap {
            host_ip: port.host_ip,
            host_port: port.host,
            target_ip,
            target_port: port.inside,
            owner: request.owner.to_owned(),
        };
        let targets: Vec<IpAddr> = self.addresses(address4).into_iter().map(|address| address.ip).collect();
        request.ports.iter().flat_map(|port| targets.iter().map(move |ip| map(port, *ip))).collect()
    }

    /// Why a port at an IPv6 address of the machine can't lead to the allocation.
    fn unreachable_port(&self, request: &NetworkRequest<'_>) -> Option<NetworkError> {
        let why = |port: &RequestedPort| {
            let (ip, port) = (port.host_ip.filter(IpAddr::is_ipv6)?, port.host);
            match self.config.subnet6 {
                None => Some(NetworkError::NoIpv6 { ip, port }),
                Some(_) => ip.is_loopback().then_some(NetworkError::Loopback6 { port }),
            }
        };
        request.ports.iter().find_map(why)
    }

    fn addresses(&self, address4: Ipv4Addr) -> Vec<InterfaceAddress> {
        let of_v4 = self.config.subnet4.of_interface(address4);
        let of_v6 = self.config.subnet6.zip(self.address6(address4));
        std::iter::once(of_v4).chain(of_v6.map(|(subnet, ip)| subnet.of_interface(ip))).collect()
    }

    fn address6(&self, address4: Ipv4Addr) -> Option<Ipv6Addr> {
        let position = self.config.subnet4.position(address4)?;
        self.config.subnet6.map(|subnet| subnet.at(position))
    }

    fn network(&self, address4: Ipv4Addr, namespace: &Namespace) -> Result<AllocNetwork, NetworkError> {
        let namespace = namespace.id().map_err(inspecting)?;
        Ok(AllocNetwork { address4, address6: self.address6(address4), namespace })
    }

    fn lock_ports(&self) -> MutexGuard<'_, Ports> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The text by which an interface of this instance is recognized.
    fn alias(&self, owner: Option<&str>) -> String {
        let instance = &self.config.instance;
        owner.map_or_else(|| format!("herdlet {instance}"), |owner| format!("herdlet {instance} {owner}"))
    }

    /// The name of an allocation's interface on the machine.
    fn link_name(&self, owner: &str) -> Result<InterfaceName, NetworkError> {
        let digest = hashed(&format!("{}/{owner}", self.config.instance));
        let digits: String = digest.chars().filter(char::is_ascii_hexdigit).take(DIGEST_LEN).collect();
        InterfaceName::new(&format!("hl{digits}")).map_err(naming)
    }
}

fn all_of(ports: &Ports) -> Vec<PortMap> {
    ports.values().flatten().cloned().collect()
}

fn inner_name() -> Result<InterfaceName, NetworkError> {
    InterfaceName::new(INTERFACE).map_err(naming)
}

fn naming(error: link::NotAnInterfaceName) -> NetworkError {
    NetworkError::Io { what: "name an interface", source: io::Error::other(error) }
}

fn entering(source: io::Error) -> NetworkError {
    NetworkError::Io { what: "enter the network namespace", source }
}

fn inspecting(source: io::Error) -> NetworkError {
    NetworkError::Io { what: "inspect the network namespace", source }
}

fn open_socket() -> Result<Socket, NetworkError> {
    opened(Protocol::Route)
}

fn open_netfilter() -> Result<Socket, NetworkError> {
    opened(Protocol::Netfilter)
}

fn opened(protocol: Protocol) -> Result<Socket, NetworkError> {
    Socket::open(protocol).map_err(|source| NetworkError::Io { what: "open a netlink socket", source })
}

/// The hardware address of an interface follows from its address: neighbours that remember it are right.
fn mac_of(address: Ipv4Addr) -> Mac {
    let [a, b] = MAC_PREFIX;
    let [c, d, e, f] = address.octets();
    Mac([a, b, c, d, e, f])
}

fn gateway_mac(subnet: Subnet4) -> Mac {
    match subnet.gateway().ip {
        IpAddr::V4(ip) => mac_of(ip),
        IpAddr::V6(_) => mac_of(Ipv4Addr::UNSPECIFIED),
    }
}

#[cfg(test)]
mod tests;
