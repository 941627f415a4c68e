//! Calls that mount a volume at directories of this machine.
//!
//! All are idempotent by the specification. Paths are those of the plugin's own mount namespace.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    capability::{MountOptions, Usage, Writing},
    client::{Client, Method, clean},
    error::CallError,
    secrets::Secrets,
    wire::{
        CapacityRange, NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
        NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest,
        NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodePublishVolumeResponse,
        NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnpublishVolumeRequest,
        NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, Topology,
        VolumeUsage, node_rpc,
    },
};

const GET_INFO: Method = Method::query("Node/NodeGetInfo");
const GET_CAPABILITIES: Method = Method::query("Node/NodeGetCapabilities");
const GET_STATISTICS: Method = Method::query("Node/NodeGetVolumeStats");
const STAGE: Method = Method::volume("Node/NodeStageVolume");
const UNSTAGE: Method = Method::volume("Node/NodeUnstageVolume");
const PUBLISH: Method = Method::volume("Node/NodePublishVolume");
const UNPUBLISH: Method = Method::volume("Node/NodeUnpublishVolume");
const EXPAND: Method = Method::volume("Node/NodeExpandVolume");

/// The specification limits the id of a node to 256 bytes.
const NODE_ID_BYTES_MAX: usize = 256;

/// Opaque properties of a volume that a call returns and others take.
pub type Context = BTreeMap<String, String>;

/// This machine, as a plugin knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeInfo {
    pub id: String,
    /// `None`: the plugin does not limit it.
    pub volumes_max: Option<u64>,
    pub topology: Option<Topology>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeFeature {
    Stage,
    Statistics,
    Expand,
    Condition,
}

impl NodeFeature {
    /// Its name in the specification.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stage => "STAGE_UNSTAGE_VOLUME",
            Self::Statistics => "GET_VOLUME_STATS",
            Self::Expand => "EXPAND_VOLUME",
            Self::Condition => "VOLUME_CONDITION",
        }
    }
}

/// A volume that calls attach or mount. Not `Debug`: it has secrets.
#[derive(Clone, Copy)]
pub struct VolumeUse<'a> {
    pub volume_id: &'a str,
    pub usage: Usage,
    pub options: &'a MountOptions,
    /// The result of attaching it to this node.
    pub publish_context: &'a Context,
    /// The volume's own.
    pub volume_context: &'a Context,
    pub secrets: &'a Secrets,
}

/// Where a volume is published.
#[derive(Debug, Clone, Copy)]
pub struct PublishPaths<'a> {
    /// `None`: the plugin does not stage volumes.
    pub staging: Option<&'a str>,
    /// Its parent directory exists; the plugin creates it.
    pub target: &'a str,
}

/// How full a volume is, and whether it is in order. `None` is unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeStatistics {
    pub bytes: Option<Amounts>,
    pub inodes: Option<Amounts>,
    /// What is wrong.
    pub abnormal: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amounts {
    pub total: u64,
    pub used: u64,
    pub available: u64,
}

impl Client {
    pub async fn node_info(&self) -> Result<NodeInfo, CallError> {
        let response: NodeGetInfoResponse = self.call(&GET_INFO, NodeGetInfoRequest {}).await?;
        let id = &response.node_id;
        if !(1..=NODE_ID_BYTES_MAX).contains(&id.len()) || id.contains(char::is_control) {
            return Err(
                self.invalid(&GET_INFO, "the node's id must have 1 to 256 bytes, and no control characters")
            );
        }
        let volumes_max = u64::try_from(response.max_volumes_per_node)
            .map_err(|_| self.invalid(&GET_INFO, "the maximum of volumes is negative"))?;
        Ok(NodeInfo {
            id: response.node_id,
            volumes_max: Some(volumes_max).filter(|max| *max != 0),
            topology: response.accessible_topology,
        })
    }

    pub async fn node_features(&self) -> Result<BTreeSet<NodeFeature>, CallError> {
        let response: NodeGetCapabilitiesResponse =
            self.call(&GET_CAPABILITIES, NodeGetCapabilitiesRequest {}).await?;
        let feature = |number| match number {
            node_rpc::STAGE_UNSTAGE_VOLUME => Some(NodeFeature::Stage),
            node_rpc::GET_VOLUME_STATS => Some(NodeFeature::Statistics),
            node_rpc::EXPAND_VOLUME => Some(NodeFeature::Expand),
            node_rpc::VOLUME_CONDITION => Some(NodeFeature::Condition),
            // Later versions of CSI may add numbers.
            _ => None,
        };
        let numbers = response.capabilities.into_iter().filter_map(|capability| capability.rpc);
        Ok(numbers.filter_map(|rpc| feature(rpc.number)).collect())
    }

    /// Mounts a volume at a staging directory, which exists.
    pub async fn stage(&self, volume: &VolumeUse<'_>, staging: &str) -> Result<(), CallError> {
        let request = NodeStageVolumeRequest {
            volume_id: volume.volume_id.to_owned(),
            publish_context: volume.publish_context.clone(),
            staging_target_path: staging.to_owned(),
            volume_capability: Some(volume.usage.capability(volume.options)),
            secrets: volume.secrets.reveal(),
            volume_context: volume.volume_context.clone(),
        };
        let NodeStageVolumeResponse {} = self.call_with(&STAGE, volume.secrets, request).await?;
        Ok(())
    }

    pub async fn unstage(&self, volume_id: &str, staging: &str) -> Result<(), CallError> {
        let request = NodeUnstageVolumeRequest {
            volume_id: volume_id.to_owned(),
            staging_target_path: staging.to_owned(),
        };
        let NodeUnstageVolumeResponse {} = self.call(&UNSTAGE, request).await?;
        Ok(())
    }

    /// Mounts a volume at the directory or file of a consumer.
    pub async fn publish(&self, volume: &VolumeUse<'_>, paths: PublishPaths<'_>) -> Result<(), CallError> {
        let request = NodePublishVolumeRequest {
            volume_id: volume.volume_id.to_owned(),
            publish_context: volume.publish_context.clone(),
            staging_target_path: paths.staging.unwrap_or_default().to_owned(),
            target_path: paths.target.to_owned(),
            volume_capability: Some(volume.usage.capability(volume.options)),
            readonly: volume.usage.writing == Writing::ReadOnly,
            secrets: volume.secrets.reveal(),
            volume_context: volume.volume_context.clone(),
        };
        let NodePublishVolumeResponse {} = self.call_with(&PUBLISH, volume.secrets, request).await?;
        Ok(())
    }

    /// Unmounts a volume from a consumer's directory. The plugin removes the directory.
    pub async fn unpublish(&self, volume_id: &str, target: &str) -> Result<(), CallError> {
        let request =
            NodeUnpublishVolumeRequest { volume_id: volume_id.to_owned(), target_path: target.to_owned() };
        let NodeUnpublishVolumeResponse {} = self.call(&UNPUBLISH, request).await?;
        Ok(())
    }

    pub async fn volume_statistics(
        &self,
        volume_id: &str,
        paths: PublishPaths<'_>,
    ) -> Result<VolumeStatistics, CallError> {
        let request = NodeGetVolumeStatsRequest {
            volume_id: volume_id.to_owned(),
            volume_path: paths.target.to_owned(),
            staging_target_path: paths.staging.unwrap_or_default().to_owned(),
        };
        let response: NodeGetVolumeStatsResponse = self.call(&GET_STATISTICS, request).await?;
        let amounts = |unit| {
            let usage = response.usage.iter().find(|usage| usage.unit == unit)?;
            amounts(usage)
        };
        let condition = response.volume_condition.as_ref().filter(|condition| condition.abnormal);
        Ok(VolumeStatistics {
            bytes: amounts(VolumeUsage::BYTES),
            inodes: amounts(VolumeUsage::INODES),
            abnormal: condition.map(|condition| clean(&condition.message, &Secrets::default())),
        })
    }

    /// Grows the file system of a published volume. Returns its capacity.
    pub async fn expand_on_node(
        &self,
        volume: &VolumeUse<'_>,
        paths: PublishPaths<'_>,
        capacity: CapacityRange,
    ) -> Result<i64, CallError> {
        let request = NodeExpandVolumeRequest {
            volume_id: volume.volume_id.to_owned(),
            volume_path: paths.target.to_owned(),
            capacity_range: Some(capacity),
            staging_target_path: paths.staging.unwrap_or_default().to_owned(),
            volume_capability: Some(volume.usage.capability(volume.options)),
            secrets: volume.secrets.reveal(),
        };
        let response: NodeExpandVolumeResponse = self.call_with(&EXPAND, volume.secrets, request).await?;
        Ok(response.capacity_bytes)
    }
}

/// `None` if a number is negative.
fn amounts(usage: &VolumeUsage) -> Option<Amounts> {
    Some(Amounts {
        total: usage.total.try_into().ok()?,
        used: usage.used.try_into().ok()?,
        available: usage.available.try_into().ok()?,
    })
}
