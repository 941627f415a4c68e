//! Resources of a node, their reservation, and networks, which allocations have too.

use std::collections::BTreeMap;

use herdlet_rpc::codec;
use serde::{Deserialize, Serialize};

use super::device::NodeDevices;

/// All resources of a node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeResources {
    /// Understood by every version; later ones derive a flat topology of one NUMA node from it if there is no topology. The two must not
    /// both be empty: servers from 1.7 on may crash.
    pub cpu: NodeCpu,
    /// 1.7 and later.
    pub processors: NodeProcessors,
    /// Memory.
    pub memory: NodeMemory,
    /// Disk.
    pub disk: NodeDisk,
    /// GPUs and other devices.
    pub devices: Vec<NodeDevices>,
    /// Addresses for ports.
    pub node_networks: Vec<NodeNetwork>,
    /// The supported network modes.
    pub networks: Vec<NetworkResource>,
    /// Zero: 20000.
    pub min_dynamic_port: i64,
    /// Zero: 32000.
    pub max_dynamic_port: i64,
}

/// Processors.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeCpu {
    /// Total MHz.
    pub cpu_shares: i64,
    /// Number of processors.
    pub total_cpu_cores: u16,
    /// Processors that can be reserved for one task.
    pub reservable_cpu_cores: Vec<u16>,
}

/// Processor topology.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeProcessors {
    /// `None` to use [`NodeCpu`].
    pub topology: Option<Topology>,
}

/// NUMA nodes and their cores.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Topology {
    /// Ids of NUMA nodes, one a byte (1.8 and later).
    #[serde(with = "codec::bytes")]
    pub nodes: Vec<u8>,
    /// The cost of access between NUMA nodes; 10 is local access.
    pub distances: Vec<Vec<u64>>,
    /// Cores.
    pub cores: Vec<Core>,
    /// PCI addresses and their NUMA nodes (1.9 and later).
    pub bus_associativity: BTreeMap<String, u64>,
    /// MHz to use in place of the detected value; zero for none.
    pub override_total_compute: u64,
    /// Reserved MHz, in Nomad's spelling.
    pub override_withold_compute: u64,
}

/// One core.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Core {
    /// Its socket.
    #[serde(rename = "SocketID")]
    pub socket_id: u8,
    /// Its NUMA node.
    #[serde(rename = "NodeID")]
    pub node_id: u8,
    /// Its number.
    #[serde(rename = "ID")]
    pub id: u16,
    /// Whether this is an efficiency core rather than a performance core.
    pub grade: bool,
    /// Whether the core must not be used.
    pub disable: bool,
    /// MHz.
    pub base_speed: u64,
    /// MHz.
    pub max_speed: u64,
    /// MHz.
    pub guess_speed: u64,
}

/// Memory.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeMemory {
    /// MiB.
    #[serde(rename = "MemoryMB")]
    pub memory_mb: i64,
}

/// Disk.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeDisk {
    /// MiB.
    #[serde(rename = "DiskMB")]
    pub disk_mb: i64,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeNetwork {
    /// `host`, `bridge` or `cni/NAME`.
    pub mode: String,
    /// The interface.
    pub device: String,
    /// Its hardware address.
    pub mac_address: String,
    /// Mbit/s.
    pub speed: i64,
    /// Addresses.
    pub addresses: Vec<NodeAddress>,
}

/// An address of a network interface.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeAddress {
    /// `ipv4` or `ipv6`.
    pub family: String,
    /// The host network; `default` for the one that dynamic ports use.
    pub alias: String,
    /// The address.
    pub address: String,
    /// As in [`ReservedNetworks`].
    pub reserved_ports: String,
    /// Its gateway.
    pub gateway: String,
}

/// Resources not available to allocations.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ReservedResources {
    /// Processors.
    pub cpu: ReservedCpu,
    /// Memory.
    pub memory: NodeMemory,
    /// Disk.
    pub disk: NodeDisk,
    /// Ports.
    pub networks: ReservedNetworks,
}

/// Processors not available to allocations.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ReservedCpu {
    /// MHz.
    pub cpu_shares: i64,
    /// Whole processors.
    pub reserved_cpu_cores: Vec<u16>,
}

/// Ports not available to allocations.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ReservedNetworks {
    /// For example `22,80,8500-8600`.
    pub reserved_host_ports: String,
}

/// The format from before 0.9. Servers up to 1.10 still accept it from a node, beside the new one.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct LegacyResources {
    /// MHz.
    #[serde(rename = "CPU")]
    pub cpu: i64,
    /// Whole processors.
    pub cores: i64,
    /// MiB.
    #[serde(rename = "MemoryMB")]
    pub memory_mb: i64,
    /// MiB.
    #[serde(rename = "MemoryMaxMB")]
    pub memory_max_mb: i64,
    /// MiB.
    #[serde(rename = "DiskMB")]
    pub disk_mb: i64,
    /// Networks.
    pub networks: Vec<NetworkResource>,
}

/// A network of a node, or of an allocation with its ports.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NetworkResource {
    /// `host`, `bridge`, `none` or `cni/NAME`; empty means `host`.
    pub mode: String,
    /// The interface.
    pub device: String,
    /// Its network.
    #[serde(rename = "CIDR")]
    pub cidr: String,
    /// The address.
    #[serde(rename = "IP")]
    pub ip: String,
    /// A host name to set.
    pub hostname: String,
    /// Mbit/s.
    #[serde(rename = "MBits")]
    pub mbits: i64,
    /// Name servers.
    #[serde(rename = "DNS")]
    pub dns: Option<Dns>,
    /// Ports that the job specifies.
    pub reserved_ports: Vec<Port>,
    /// Ports that servers have chosen.
    pub dynamic_ports: Vec<Port>,
    /// Arguments for CNI plugins (1.8 and later).
    #[serde(rename = "CNI")]
    pub cni: Option<Cni>,
}

/// A port.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Port {
    /// Its name.
    pub label: String,
    /// The port on the host.
    pub value: i64,
    /// The port within the network namespace; zero for the same one.
    pub to: i64,
    /// The host network.
    pub host_network: String,
    /// Whether several allocations may have it (1.9 and later).
    pub ignore_collision: bool,
}

/// The content of `resolv.conf`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Dns {
    /// Name servers.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Options.
    pub options: Vec<String>,
}

/// CNI configuration.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Cni {
    /// Names and values.
    pub args: BTreeMap<String, String>,
}
