//! A node's description, as the node sends it and as servers store it.

use std::collections::BTreeMap;

use herdlet_rpc::codec::Time;
use serde::{Deserialize, Serialize};

use super::{
    Eligibility, NodeId, NodeStatus, Secret,
    csi::CsiInfo,
    resources::{LegacyResources, NodeResources, ReservedResources},
};

/// A node. A description leaves [`id`](Self::id), [`secret_id`](Self::secret_id), [`status`](Self::status) and
/// [`scheduling_eligibility`](Self::scheduling_eligibility) at their defaults: the session sets them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Node {
    /// A UUID, kept for good.
    #[serde(rename = "ID")]
    pub id: NodeId,
    /// Proves the node's identity.
    #[serde(rename = "SecretID")]
    pub secret_id: Secret,
    /// Required.
    pub datacenter: String,
    /// Required; the host's name.
    pub name: String,
    /// The parent cgroup of all tasks (1.3 and later).
    pub cgroup_parent: String,
    /// Address of its HTTP API.
    #[serde(rename = "HTTPAddr")]
    pub http_addr: String,
    /// Whether the HTTP API uses TLS.
    #[serde(rename = "TLSEnabled")]
    pub tls_enabled: bool,
    /// Attributes for constraints. Must not be empty; servers call a node back only if it has `nomad.version`.
    pub attributes: BTreeMap<String, String>,
    /// Its resources.
    pub node_resources: Option<NodeResources>,
    /// Resources not available to allocations; required.
    pub reserved_resources: Option<ReservedResources>,
    /// The format from before 0.9; optional.
    pub resources: Option<LegacyResources>,
    /// The format from before 0.9; optional.
    pub reserved: Option<LegacyResources>,
    /// Links to other systems, such as `consul`: `dc.name`.
    pub links: BTreeMap<String, String>,
    /// Metadata set by users.
    pub meta: BTreeMap<String, String>,
    /// Its class.
    pub node_class: String,
    /// Its pool; empty for the default pool (1.6 and later).
    pub node_pool: String,
    /// Computed by servers.
    pub computed_class: String,
    /// The drain in progress. Set only by servers.
    pub drain_strategy: Option<DrainStrategy>,
    /// Whether it may get new work.
    pub scheduling_eligibility: Eligibility,
    /// Its status.
    pub status: NodeStatus,
    /// The reason for the status.
    pub status_description: String,
    /// Seconds since 1970. Set only by servers.
    pub status_updated_at: i64,
    /// Set only by servers.
    pub events: Vec<NodeEvent>,
    /// Task drivers by name.
    pub drivers: BTreeMap<String, DriverInfo>,
    /// CSI controllers by plugin id.
    #[serde(rename = "CSIControllerPlugins")]
    pub csi_controller_plugins: BTreeMap<String, CsiInfo>,
    /// CSI node plugins by plugin id.
    #[serde(rename = "CSINodePlugins")]
    pub csi_node_plugins: BTreeMap<String, CsiInfo>,
    /// Host volumes by name.
    pub host_volumes: BTreeMap<String, HostVolume>,
    /// Whether servers delete dynamic host volumes along with the node (1.10 and later).
    #[serde(rename = "GCVolumesOnNodeGC")]
    pub gc_volumes_on_node_gc: bool,
    /// Host networks by name (1.2 and later).
    pub host_networks: BTreeMap<String, HostNetwork>,
    /// The last drain. Set only by servers.
    pub last_drain: Option<DrainMetadata>,
    /// Maximum number of allocations; zero for no limit (1.10 and later).
    pub node_max_allocs: i64,
    /// Set only by servers.
    pub last_missed_heartbeat_index: u64,
    /// Set only by servers.
    pub last_alloc_update_index: u64,
    /// Set only by servers.
    pub create_index: u64,
    /// Set only by servers.
    pub modify_index: u64,
}

/// A task driver.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DriverInfo {
    /// Attributes that start with `driver.NAME`; they are also among the node's.
    pub attributes: BTreeMap<String, String>,
    /// Whether the driver is available.
    pub detected: bool,
    /// Whether it is healthy.
    pub healthy: bool,
    /// The reason; `Healthy` if it is healthy.
    pub health_description: String,
    /// When the health was determined.
    pub update_time: Time,
}

/// A directory of the host that jobs may mount.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct HostVolume {
    /// Its name.
    pub name: String,
    /// Its path on the host.
    pub path: String,
    /// Whether it is read-only.
    pub read_only: bool,
    /// The id of a dynamic volume (1.10 and later).
    #[serde(rename = "ID")]
    pub id: String,
}

/// A named set of the host's addresses.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct HostNetwork {
    /// Its name.
    pub name: String,
    /// Includes the addresses in this network.
    #[serde(rename = "CIDR")]
    pub cidr: String,
    /// Includes the addresses of this interface.
    pub interface: String,
    /// Ports not available to allocations.
    pub reserved_ports: String,
}

/// An event for a node's users.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeEvent {
    /// The text.
    pub message: String,
    /// `Drain`, `Driver`, `Heartbeat`, `Cluster`, `Scheduler` or `Storage`.
    pub subsystem: String,
    /// Further data.
    pub details: BTreeMap<String, String>,
    /// The time.
    pub timestamp: Time,
    /// Set only by servers.
    pub create_index: u64,
}

/// Drain options.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DrainStrategy {
    /// Time limit in nanoseconds; 0 for none, negative to force the drain.
    pub deadline: i64,
    /// Do not stop system jobs.
    pub ignore_system_jobs: bool,
    /// When the drain ends at the latest.
    pub force_deadline: Time,
    /// When the drain began.
    pub started_at: Time,
}

/// A drain in progress or ended.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DrainMetadata {
    /// When the drain began.
    pub started_at: Time,
    /// When it was last updated.
    pub updated_at: Time,
    /// `draining`, `complete` or `canceled`.
    pub status: String,
    /// The ACL token that requested it.
    #[serde(rename = "AccessorID")]
    pub accessor_id: String,
    /// Free text from the requester.
    pub meta: BTreeMap<String, String>,
}
