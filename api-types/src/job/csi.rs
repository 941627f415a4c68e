//! `csi_plugin` of a task: the task is a plugin for storage (Container Storage Interface).

use std_alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::Duration;

/// A `csi_plugin` block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CsiPlugin {
    /// The name under which volumes refer to it. Several tasks may have the same one: instances of one plugin.
    pub id: String,
    /// The services that the agent uses.
    pub kind: CsiPluginType,
    /// The directory of the plugin's socket, in the root of the task.
    pub mount_dir: String,
    /// The directory below which volumes are staged and published, in the root of the task.
    pub stage_publish_base_dir: String,
    /// How long it may take to become ready after its start, or that of the agent.
    pub health_timeout: Duration,
}

/// `csi_plugin.type`: the services of a plugin that the agent uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum CsiPluginType {
    /// Mounts volumes on its machine.
    #[default]
    Node,
    /// Makes and attaches volumes.
    Controller,
    /// Both.
    Monolith,
}

impl CsiPluginType {
    /// Nomad's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Controller => "controller",
            Self::Monolith => "monolith",
        }
    }
}
