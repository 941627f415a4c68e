//! The Node service: bind mounts of the directories of volumes.

use std::{fs, path::Path};

use herdlet_csi::{
    error::Code,
    wire::{
        CapabilityType, NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesResponse,
        NodeGetInfoResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
        NodePublishVolumeResponse, NodeStageVolumeRequest, NodeStageVolumeResponse,
        NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest,
        NodeUnstageVolumeResponse, ServiceCapability, VolumeCondition, VolumeUsage, node_rpc,
    },
};

use super::{Access, Plugin, Reply, Staging, internal, precondition, required, supported};
use crate::{
    mounted::{self, MountState},
    storage::Item,
};

impl Plugin {
    pub(super) fn node_info(&self) -> NodeGetInfoResponse {
        NodeGetInfoResponse {
            node_id: self.node_id.clone(),
            max_volumes_per_node: 64,
            accessible_topology: None,
        }
    }

    pub(super) fn node_capabilities(&self) -> NodeGetCapabilitiesResponse {
        let staging = (self.staging == Staging::Present).then_some(node_rpc::STAGE_UNSTAGE_VOLUME);
        let others = [node_rpc::GET_VOLUME_STATS, node_rpc::EXPAND_VOLUME, node_rpc::VOLUME_CONDITION];
        let capability = |number| ServiceCapability { rpc: Some(CapabilityType { number }) };
        let capabilities = staging.into_iter().chain(others).map(capability).collect();
        NodeGetCapabilitiesResponse { capabilities }
    }

    pub(super) fn stage(&self, request: &NodeStageVolumeRequest) -> Reply<NodeStageVolumeResponse> {
        required(&request.staging_target_path, "staging target path")?;
        let access = supported(request.volume_capability.as_ref())?;
        let volume = self.volume(&request.volume_id)?;
        self.attached(&volume)?;
        if request.publish_context.get("attachment") != Some(&volume.id) {
            return Err(precondition("the publish context is not that of the attachment".to_owned()));
        }
        let token = request.secrets.get("token").map(String::as_str).unwrap_or_default();
        if volume.get("token").is_some_and(|known| known != token) {
            // A careless plugin: its message has the secret.
            return Err((Code(16), format!("the token {token} is wrong")));
        }
        let staging = Path::new(&request.staging_target_path);
        if access == Access::Device {
            mounted::device(&volume.image().map_err(internal)?).map_err(internal)?;
        } else if mounted::find(staging).map_err(internal)? == MountState::No {
            mounted::bind(&volume.content(), staging, MountState::ReadWrite).map_err(internal)?;
        }
        Ok(NodeStageVolumeResponse {})
    }

    pub(super) fn unstage(&self, request: &NodeUnstageVolumeRequest) -> Reply<NodeUnstageVolumeResponse> {
        required(&request.staging_target_path, "staging target path")?;
        let volume = self.volume(&request.volume_id)?;
        let user = users(&volume).into_iter().find(|(staging, _)| *staging == request.staging_target_path);
        if let Some((_, target)) = user {
            return Err(precondition(format!("it is still published at {target}")));
        }
        mounted::remove(Path::new(&request.staging_target_path)).map_err(internal)?;
        if users(&volume).is_empty() {
            mounted::remove_devices(&volume.image().map_err(internal)?).map_err(internal)?;
        }
        Ok(NodeUnstageVolumeResponse {})
    }

    pub(super) fn publish(&self, request: &NodePublishVolumeRequest) -> Reply<NodePublishVolumeResponse> {
        required(&request.target_path, "target path")?;
        let access = supported(request.volume_capability.as_ref())?;
        let volume = self.volume(&request.volume_id)?;
        self.attached(&volume)?;
        let source = match (access, self.staging) {
            (Access::Device, _) => {
                mounted::device(&volume.image().map_err(internal)?).map_err(internal)?.into()
            }
            (Access::Directory, Staging::Absent) => volume.content(),
            (Access::Directory, Staging::Present) => {
                let staging = Path::new(&request.staging_target_path);
                if request.staging_target_path.is_empty()
                    || mounted::find(staging).map_err(internal)? == MountState::No
                {
                    return Err(precondition(format!("volume {} is not staged", volume.id)));
                }
                staging.to_owned()
            }
        };
        let mode = if request.readonly { MountState::ReadOnly } else { MountState::ReadWrite };
        let target = Path::new(&request.target_path);
        let found = mounted::find(target).map_err(internal)?;
        if found == mode {
            return Ok(NodePublishVolumeResponse {});
        }
        if found != MountState::No {
            return Err((Code::ALREADY_EXISTS, format!("it is published {found:?} at {}", target.display())));
        }
        // Before the mount: a mount that is not listed would be missed.
        let listed = format!("{}\n{}", request.staging_target_path, request.target_path);
        volume.set(&published(&request.target_path), &listed).map_err(internal)?;
        let prepared = match access {
            Access::Directory => fs::create_dir_all(target),
            Access::Device => fs::write(target, ""),
        };
        prepared.map_err(internal)?;
        mounted::bind(&source, target, mode).map_err(internal)?;
        Ok(NodePublishVolumeResponse {})
    }

    pub(super) fn unpublish(
        &self,
        request: &NodeUnpublishVolumeRequest,
    ) -> Reply<NodeUnpublishVolumeResponse> {
        required(&request.target_path, "target path")?;
        let volume = self.volume(&request.volume_id)?;
        let target = Path::new(&request.target_path);
        mounted::remove(target).map_err(internal)?;
        mounted::remove_target(target).map_err(internal)?;
        volume.clear(&published(&request.target_path)).map_err(internal)?;
        Ok(NodeUnpublishVolumeResponse {})
    }

    /// The file `abnormal` has the reason why all volumes are in a bad condition.
    pub(super) fn statistics(
        &self,
        request: &NodeGetVolumeStatsRequest,
    ) -> Reply<NodeGetVolumeStatsResponse> {
        required(&request.volume_path, "volume path")?;
        let volume = self.volume(&request.volume_id)?;
        let path = Path::new(&request.volume_path);
        if mounted::find(path).map_err(internal)? == MountState::No {
            return Err((Code::NOT_FOUND, format!("volume {} is not at {}", volume.id, path.display())));
        }
        let files = i64::try_from(fs::read_dir(path).map_err(internal)?.count()).unwrap_or(i64::MAX);
        let usage = |unit, total, used| VolumeUsage { unit, total, used, available: total - used };
        let abnormal = fs::read_to_string(self.data.join("abnormal")).ok();
        Ok(NodeGetVolumeStatsResponse {
            usage: vec![
                usage(VolumeUsage::BYTES, volume.capacity(), 0),
                usage(VolumeUsage::INODES, 1000, files),
            ],
            volume_condition: Some(VolumeCondition {
                abnormal: abnormal.is_some(),
                message: abnormal.unwrap_or_default(),
            }),
        })
    }

    pub(super) fn expand_on_node(
        &self,
        request: &NodeExpandVolumeRequest,
    ) -> Reply<NodeExpandVolumeResponse> {
        required(&request.volume_path, "volume path")?;
        let volume = self.volume(&request.volume_id)?;
        Ok(NodeExpandVolumeResponse { capacity_bytes: volume.capacity() })
    }

    fn attached(&self, volume: &Item) -> Reply<()> {
        if volume.names("attached").contains(&self.node_id) {
            return Ok(());
        }
        Err(precondition(format!("volume {} is not attached to node {}", volume.id, self.node_id)))
    }
}

/// Where a volume is staged and published. A record whose target was unmounted by a reboot is of no use.
pub(super) fn users(volume: &Item) -> Vec<(String, String)> {
    let records = volume.names("published").into_iter();
    let records = records.filter_map(|name| volume.get(&format!("published/{name}")));
    let pairs = records.filter_map(|record| {
        let (staging, target) = record.split_once('\n')?;
        Some((staging.to_owned(), target.to_owned()))
    });
    let is_mounted = |path: &str| !matches!(mounted::find(Path::new(path)), Ok(MountState::No));
    pairs.filter(|(_, target)| is_mounted(target)).collect()
}

/// The property of a volume for a target.
fn published(target: &str) -> String {
    format!("published/{}", crate::storage::Storage::id(target))
}
