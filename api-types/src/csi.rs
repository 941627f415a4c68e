//! CSI plugins, as the agent lists them.

use std_alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
};

use serde::{Deserialize, Serialize};

use crate::{AllocId, job::CsiPluginType};

/// A task that is a CSI plugin and runs.
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
    /// What it reported about itself last; absent if it was not ready since the agent's start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<CsiPluginDescription>,
    /// Why it can't be called; absent if it is healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unhealthy: Option<String>,
}

/// What a CSI plugin reports about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CsiPluginDescription {
    /// Its name.
    pub provider: String,
    /// Its version.
    pub version: String,
    /// Whether volumes must be attached by a Controller service.
    pub requires_controller: bool,
    /// Its Node service; absent if its type has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<CsiNode>,
    /// The features of its Controller service, by their names in the specification; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<BTreeSet<String>>,
}

/// This machine, as the Node service of a CSI plugin knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CsiNode {
    /// The id that the plugin gives this machine.
    pub id: String,
    /// How many volumes can be on this machine; absent if the plugin does not limit it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes_max: Option<u64>,
    /// Where this machine is, in the plugin's terms; absent if the plugin does not distinguish places.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<BTreeMap<String, String>>,
    /// The features of the service, by their names in the specification.
    pub features: BTreeSet<String>,
}

impl CsiPluginView {
    /// Whether volumes are mounted by it.
    pub fn serves_node(&self) -> bool {
        self.kind != CsiPluginType::Controller
    }

    /// Whether volumes are attached by it, as far as it is known.
    pub fn serves_controller(&self) -> bool {
        match &self.description {
            Some(description) => description.controller.is_some(),
            None => self.kind == CsiPluginType::Controller,
        }
    }
}
