//! What is wanted for a network, what an inspection finds, and why a network can't be made: as data.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
};

use crate::{
    address_pool::PoolError,
    link::{Hairpin, InterfaceName, LinkError},
    namespace::{NamespaceError, NamespaceId},
    port_owner::HeldPort,
    socket::NetlinkError,
    subnet::{Subnet, Subnet4, Subnet6},
    sysctl::SettingError,
};

/// A bridge.
#[derive(Debug, Clone)]
pub struct BridgeConfig {
    /// The instance whose bridge it is.
    pub instance: String,
    /// Its name.
    pub name: InterfaceName,
    /// Its network.
    pub subnet4: Subnet4,
    /// Its IPv6 network, if it has one.
    pub subnet6: Option<Subnet6>,
    /// The longest packet.
    pub mtu: u32,
    /// Whether it sends back through a port what arrived through it.
    pub hairpin: Hairpin,
    /// The directory of files that keep namespaces, and of claims of addresses, until the next boot.
    pub runtime: PathBuf,
}

/// What an allocation wants.
#[derive(Debug, Clone, Copy)]
pub struct NetworkRequest<'r> {
    /// The allocation.
    pub owner: &'r str,
    /// The ports that lead to it.
    pub ports: &'r [RequestedPort],
}

impl NetworkRequest<'_> {
    /// What is held for its ports.
    pub fn held_ports(&self) -> Vec<HeldPort> {
        self.ports.iter().flat_map(|port| HeldPort::held_for(port.host_ip, port.host)).collect()
    }
}

/// A port of the machine that leads to the allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestedPort {
    /// The machine's address; `None` for all of them.
    pub host_ip: Option<IpAddr>,
    /// The machine's port.
    pub host: u16,
    /// The allocation's port.
    pub inside: u16,
}

/// A network that is as wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocNetwork {
    /// Its address.
    pub address4: Ipv4Addr,
    /// Its IPv6 address, if the bridge has such a network.
    pub address6: Option<Ipv6Addr>,
    /// Its namespace.
    pub namespace: NamespaceId,
}

/// What exists of an allocation's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remains {
    /// The claim of its address, and perhaps its interface: an agent ended while it made the network, or had removed the rest.
    Claim,
    /// A namespace or mapped ports.
    Network,
}

impl Remains {
    /// Logs that these are removed because their owner does not exist.
    pub fn log_removal(self, owner: &str) {
        match self {
            Self::Claim => tracing::info!(owner, "completing the removal of a network"),
            Self::Network => tracing::warn!(owner, "removing a network whose owner does not exist"),
        }
    }
}

/// What an inspection has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkState<N = AllocNetwork> {
    /// The network is as wanted.
    Complete(N),
    /// Something is missing or wrong.
    Incomplete {
        /// What; completes "its".
        what: &'static str,
    },
    /// There is nothing.
    Absent,
}

/// Why a network can't be made or removed. The text continues "failed to".
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The kernel refused.
    #[error(transparent)]
    Kernel(#[from] NetlinkError),
    /// An interface can't be made.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// There is no address.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The namespace can't be kept.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// A setting of the kernel can't be changed.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// No packet to this address can be translated for the allocation.
    #[error("map port {port} of {ip}: the bridge has no IPv6 network")]
    NoIpv6 {
        /// The machine's address.
        ip: IpAddr,
        /// The machine's port.
        port: u16,
    },
    /// The kernel does not translate this address.
    #[error("map port {port} of ::1: the kernel can't translate this address")]
    Loopback6 {
        /// The machine's port.
        port: u16,
    },
    /// The machine reaches addresses of the bridge's network by another way.
    #[error("use the network {subnet} for a bridge: a route of the machine leads to {ip}/{prefix}")]
    Overlap {
        /// The bridge's network.
        subnet: Subnet,
        /// The first address of the route's destination,
        ip: IpAddr,
        /// and the length of its prefix.
        prefix: u8,
    },
    /// A namespace can't be made or entered.
    #[error("{what}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}
