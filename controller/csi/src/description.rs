//! What a plugin reports about itself: its name, its services, this machine as its node knows it.
//!
//! In: a client, the type of the plugin in its job. Out: a description, or the reason why the plugin can't be used yet.

use std::collections::BTreeSet;

use crate::{
    client::Client,
    controller::ControllerFeature,
    error::CallError,
    identity::{PluginFeature, PluginInfo, Readiness},
    node::{NodeFeature, NodeInfo},
};

/// `csi_plugin.type` of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PluginType {
    Node,
    Controller,
    Monolith,
}

impl PluginType {
    pub(crate) const ALL: [Self; 3] = [Self::Node, Self::Controller, Self::Monolith];

    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Controller => "controller",
            Self::Monolith => "monolith",
        }
    }

    pub fn has(self, service: Service) -> bool {
        match self {
            Self::Node => service == Service::Node,
            Self::Controller => service == Service::Controller,
            Self::Monolith => true,
        }
    }
}

/// A service of a plugin that volumes need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    Node,
    Controller,
}

impl Service {
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "Node",
            Self::Controller => "Controller",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct PluginDescription {
    pub info: PluginInfo,
    pub features: BTreeSet<PluginFeature>,
    /// `None`: its type has no Node service.
    pub node: Option<NodeDescription>,
    /// `None`: it has no Controller service.
    pub controller: Option<BTreeSet<ControllerFeature>>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct NodeDescription {
    pub info: NodeInfo,
    pub features: BTreeSet<NodeFeature>,
}

/// Why a plugin can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnusableError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("use the CSI plugin `{plugin}`: it reports that it is not initialized yet")]
    Starting { plugin: String },
    #[error(
        "use the CSI plugin `{plugin}`: it has no Controller service; set `type = \"node\"` in its `csi_plugin` block"
    )]
    NoController { plugin: String },
}

impl Client {
    /// Probes a plugin, and describes it if it is ready.
    ///
    /// # Errors
    ///
    /// If it is not ready, or lacks the service of its type.
    pub async fn describe(&self, kind: PluginType) -> Result<PluginDescription, UnusableError> {
        match self.probe().await? {
            Readiness::Ready => {}
            Readiness::Starting => return Err(UnusableError::Starting { plugin: self.plugin().to_owned() }),
        }
        let info = self.plugin_info().await?;
        let features = self.plugin_features().await?;
        let node = match kind.has(Service::Node) {
            true => {
                Some(NodeDescription { info: self.node_info().await?, features: self.node_features().await? })
            }
            false => None,
        };
        let controller = match (kind, features.contains(&PluginFeature::Controller)) {
            (PluginType::Controller | PluginType::Monolith, true) => Some(self.controller_features().await?),
            (PluginType::Controller, false) => {
                return Err(UnusableError::NoController { plugin: self.plugin().to_owned() });
            }
            // Volumes of such a plugin are not attached: its Node service does everything.
            (PluginType::Monolith, false) | (PluginType::Node, _) => None,
        };
        Ok(PluginDescription { info, features, node, controller })
    }
}
