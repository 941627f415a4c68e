//! CSI plugins of a node.

use std::collections::BTreeMap;

use herdlet_rpc::codec::Time;
use serde::{Deserialize, Serialize};

/// A plugin.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct CsiInfo {
    /// Its id.
    #[serde(rename = "PluginID")]
    pub plugin_id: String,
    /// The allocation in which it runs.
    #[serde(rename = "AllocID")]
    pub alloc_id: String,
    /// Whether it works.
    pub healthy: bool,
    /// Why not.
    pub health_description: String,
    /// When that was seen.
    pub update_time: Time,
    /// Its name.
    pub provider: String,
    /// Its version.
    pub provider_version: String,
    /// Volumes are published by a controller first.
    pub requires_controller_plugin: bool,
    /// Volumes are not in reach everywhere.
    pub requires_topologies: bool,
    /// What it does as a controller.
    pub controller_info: Option<ControllerInfo>,
    /// What it does on a node.
    pub node_info: Option<NodeInfo>,
}

/// What a controller can do.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ControllerInfo {
    /// Make and delete volumes.
    pub supports_create_delete: bool,
    /// Publish and unpublish them.
    pub supports_attach_detach: bool,
    /// List them.
    pub supports_list_volumes: bool,
    /// Tell how much room is left.
    pub supports_get_capacity: bool,
    /// Make and delete snapshots.
    pub supports_create_delete_snapshot: bool,
    /// List them.
    pub supports_list_snapshots: bool,
    /// Copy volumes.
    pub supports_clone: bool,
    /// Publish read-only.
    pub supports_read_only_attach: bool,
    /// Make volumes larger.
    pub supports_expand: bool,
    /// Tell where volumes are published.
    pub supports_list_volumes_attached_nodes: bool,
    /// Tell how a volume is.
    pub supports_condition: bool,
    /// Tell of one volume.
    pub supports_get: bool,
}

/// What a plugin can do on a node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeInfo {
    /// The node, as the plugin calls it.
    #[serde(rename = "ID")]
    pub id: String,
    /// How many volumes it may have.
    pub max_volumes: i64,
    /// Where it is.
    pub accessible_topology: Option<CsiTopology>,
    /// Volumes are staged first.
    pub requires_node_stage_volume: bool,
    /// Tell how full a volume is.
    pub supports_stats: bool,
    /// Make it larger.
    pub supports_expand: bool,
    /// Tell how it is.
    pub supports_condition: bool,
}

/// Where something is in reach.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct CsiTopology {
    /// Names and values.
    pub segments: BTreeMap<String, String>,
}
