//! CSI plugins, as the agent lists them.

use std_alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::{AllocId, job::CsiPluginType};

/// A task that is a CSI plugin and has been ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CsiPluginView {
    /// The id of its `csi_plugin` block.
    pub id: String,
    /// Its allocation.
    pub alloc: AllocId,
    /// The name of its task.
    pub task: String,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: CsiPluginType,
    /// The name that the plugin reports.
    pub provider: String,
    /// The version that it reports.
    pub version: String,
    /// Its name of this machine, if its type has the Node service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_id: Option<String>,
    /// Whether it has a Controller service, which attaches volumes.
    pub has_controller: bool,
    /// Why it does not respond; absent if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unhealthy: Option<String>,
}

impl CsiPluginView {
    /// Whether volumes are attached by it.
    pub fn serves_controller(&self) -> bool {
        self.has_controller && self.kind != CsiPluginType::Node
    }

    /// Whether volumes are mounted by it.
    pub fn serves_node(&self) -> bool {
        self.kind != CsiPluginType::Controller
    }
}
