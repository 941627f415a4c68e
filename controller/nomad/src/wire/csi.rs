//! CSI plugins of a node.

use std::collections::BTreeMap;

use herdlet_rpc::codec::Time;
use serde::{Deserialize, Serialize};

/// A CSI plugin.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct CsiInfo {
    /// Its id.
    #[serde(rename = "PluginID")]
    pub plugin_id: String,
    /// The allocation that runs it.
    #[serde(rename = "AllocID")]
    pub alloc_id: String,
    /// Whether it is healthy.
    pub healthy: bool,
    /// The reason for its health.
    pub health_description: String,
    /// When the health was determined.
    pub update_time: Time,
    /// Its name.
    pub provider: String,
    /// Its version.
    pub provider_version: String,
    /// A controller must publish volumes first.
    pub requires_controller_plugin: bool,
    /// Volumes are accessible only from parts of the cluster.
    pub requires_topologies: bool,
    /// Its capabilities as a controller.
    pub controller_info: Option<ControllerInfo>,
    /// Its capabilities on a node.
    pub node_info: Option<NodeInfo>,
}

/// The capabilities of a controller.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ControllerInfo {
    /// Creates and deletes volumes.
    pub supports_create_delete: bool,
    /// Publishes and unpublishes volumes.
    pub supports_attach_detach: bool,
    /// Lists volumes.
    pub supports_list_volumes: bool,
    /// Reports the free capacity.
    pub supports_get_capacity: bool,
    /// Creates and deletes snapshots.
    pub supports_create_delete_snapshot: bool,
    /// Lists snapshots.
    pub supports_list_snapshots: bool,
    /// Clones volumes.
    pub supports_clone: bool,
    /// Publishes volumes read-only.
    pub supports_read_only_attach: bool,
    /// Expands volumes.
    pub supports_expand: bool,
    /// Reports the nodes on which volumes are published.
    pub supports_list_volumes_attached_nodes: bool,
    /// Reports the condition of a volume.
    pub supports_condition: bool,
    /// Returns a single volume.
    pub supports_get: bool,
}

/// The capabilities of a plugin on a node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeInfo {
    /// The plugin's id for the node.
    #[serde(rename = "ID")]
    pub id: String,
    /// Maximum number of volumes.
    pub max_volumes: i64,
    /// The node's topology segments.
    pub accessible_topology: Option<CsiTopology>,
    /// Volumes must be staged first.
    pub requires_node_stage_volume: bool,
    /// Reports the usage of a volume.
    pub supports_stats: bool,
    /// Expands volumes.
    pub supports_expand: bool,
    /// Reports the condition of a volume.
    pub supports_condition: bool,
}

/// Where a volume is accessible.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct CsiTopology {
    /// Names and values.
    pub segments: BTreeMap<String, String>,
}
