//! A node, as it describes itself and as servers keep it.

use std::collections::BTreeMap;

use herdlet_rpc::codec::Time;
use serde::{Deserialize, Serialize};

use super::{
    Eligibility, NodeId, NodeStatus, Secret,
    csi::CsiInfo,
    resources::{LegacyResources, NodeResources, ReservedResources},
};

/// A node. Whoever describes one leaves [`id`](Self::id), [`secret_id`](Self::secret_id), [`status`](Self::status) and
/// [`scheduling_eligibility`](Self::scheduling_eligibility) alone: a session sets them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Node {
    /// A UUID, kept for good.
    #[serde(rename = "ID")]
    pub id: NodeId,
    /// What proves that it is this node.
    #[serde(rename = "SecretID")]
    pub secret_id: Secret,
    /// Must be set.
    pub datacenter: String,
    /// Must be set; the host's name.
    pub name: String,
    /// The cgroup of all tasks (1.3 and later).
    pub cgroup_parent: String,
    /// Where its HTTP API is.
    #[serde(rename = "HTTPAddr")]
    pub http_addr: String,
    /// Whether that speaks TLS.
    #[serde(rename = "TLSEnabled")]
    pub tls_enabled: bool,
    /// What constraints ask about. Must not be empty; servers call a node back only if there is `nomad.version`.
    pub attributes: BTreeMap<String, String>,
    /// What it has.
    pub node_resources: Option<NodeResources>,
    /// What of it is kept back; must be there.
    pub reserved_resources: Option<ReservedResources>,
    /// As before 0.9; need not be there.
    pub resources: Option<LegacyResources>,
    /// Likewise.
    pub reserved: Option<LegacyResources>,
    /// Such as `consul`: `dc.name`.
    pub links: BTreeMap<String, String>,
    /// What users say of it.
    pub meta: BTreeMap<String, String>,
    /// Its class.
    pub node_class: String,
    /// Its pool; empty: the default one (1.6 and later).
    pub node_pool: String,
    /// Servers compute it.
    pub computed_class: String,
    /// Servers only: it is being drained.
    pub drain_strategy: Option<DrainStrategy>,
    /// Whether it may get new work.
    pub scheduling_eligibility: Eligibility,
    /// What it is to the servers.
    pub status: NodeStatus,
    /// Why.
    pub status_description: String,
    /// Servers only, in seconds since 1970.
    pub status_updated_at: i64,
    /// Servers only.
    pub events: Vec<NodeEvent>,
    /// Task drivers by name.
    pub drivers: BTreeMap<String, DriverInfo>,
    /// Controllers by plugin.
    #[serde(rename = "CSIControllerPlugins")]
    pub csi_controller_plugins: BTreeMap<String, CsiInfo>,
    /// Node plugins by plugin.
    #[serde(rename = "CSINodePlugins")]
    pub csi_node_plugins: BTreeMap<String, CsiInfo>,
    /// Host volumes by name.
    pub host_volumes: BTreeMap<String, HostVolume>,
    /// Dynamic host volumes go with the node (1.10 and later).
    #[serde(rename = "GCVolumesOnNodeGC")]
    pub gc_volumes_on_node_gc: bool,
    /// Host networks by name (1.2 and later).
    pub host_networks: BTreeMap<String, HostNetwork>,
    /// Servers only: how the last drain went.
    pub last_drain: Option<DrainMetadata>,
    /// How many allocations it takes; zero: any (1.10 and later).
    pub node_max_allocs: i64,
    /// Servers only.
    pub last_missed_heartbeat_index: u64,
    /// Servers only.
    pub last_alloc_update_index: u64,
    /// Servers only.
    pub create_index: u64,
    /// Servers only.
    pub modify_index: u64,
}

/// A task driver.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DriverInfo {
    /// Beginning with `driver.NAME`; also the node's.
    pub attributes: BTreeMap<String, String>,
    /// It is there.
    pub detected: bool,
    /// It works.
    pub healthy: bool,
    /// Why not; `Healthy` where it does.
    pub health_description: String,
    /// When that was seen.
    pub update_time: Time,
}

/// A directory of the host that jobs may mount.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct HostVolume {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub path: String,
    /// Nobody may write to it.
    pub read_only: bool,
    /// Of a dynamic one (1.10 and later).
    #[serde(rename = "ID")]
    pub id: String,
}

/// Addresses under a name.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct HostNetwork {
    /// Its name.
    pub name: String,
    /// All within this network.
    #[serde(rename = "CIDR")]
    pub cidr: String,
    /// All of this interface.
    pub interface: String,
    /// Ports that are kept back.
    pub reserved_ports: String,
}

/// Something that users should know of a node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeEvent {
    /// The text.
    pub message: String,
    /// `Drain`, `Driver`, `Heartbeat`, `Cluster`, `Scheduler` or `Storage`.
    pub subsystem: String,
    /// More of it.
    pub details: BTreeMap<String, String>,
    /// When.
    pub timestamp: Time,
    /// Servers only.
    pub create_index: u64,
}

/// How a node is drained.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DrainStrategy {
    /// How long it may take, in nanoseconds; 0: for ever, less than that: no time at all.
    pub deadline: i64,
    /// System jobs stay.
    pub ignore_system_jobs: bool,
    /// When it has to be over.
    pub force_deadline: Time,
    /// When it began.
    pub started_at: Time,
}

/// How a drain went.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DrainMetadata {
    /// When it began.
    pub started_at: Time,
    /// When something happened last.
    pub updated_at: Time,
    /// `draining`, `complete` or `canceled`.
    pub status: String,
    /// Who asked for it.
    #[serde(rename = "AccessorID")]
    pub accessor_id: String,
    /// What they said.
    pub meta: BTreeMap<String, String>,
}
