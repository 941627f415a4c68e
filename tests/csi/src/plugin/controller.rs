//! The Controller service: directories as volumes.

use std::collections::BTreeMap;

use herdlet_csi::{
    error::Code,
    wire::{
        CapabilityType, ConfirmedCapabilities, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
        ControllerGetCapabilitiesResponse, ControllerPublishVolumeRequest, ControllerPublishVolumeResponse,
        ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse, CreateSnapshotRequest,
        CreateSnapshotResponse, CreateVolumeRequest, CreateVolumeResponse, DeleteSnapshotRequest,
        DeleteSnapshotResponse, DeleteVolumeRequest, DeleteVolumeResponse, ListSnapshotsRequest,
        ListSnapshotsResponse, ListVolumesRequest, ListVolumesResponse, ServiceCapability, Snapshot,
        SnapshotEntry, SourceId, Timestamp, ValidateVolumeCapabilitiesRequest,
        ValidateVolumeCapabilitiesResponse, Volume, VolumeAccessMode, VolumeContentSource, VolumeEntry,
        VolumeEntryStatus, controller_rpc,
    },
};

use super::{Plugin, Reply, internal, node, precondition, required, supported};
use crate::storage::{Item, copy};

/// Capacity of a volume without a demand.
const CAPACITY: i64 = 1 << 20;

impl Plugin {
    pub(super) fn controller_capabilities() -> ControllerGetCapabilitiesResponse {
        let numbers = [
            controller_rpc::CREATE_DELETE_VOLUME,
            controller_rpc::PUBLISH_UNPUBLISH_VOLUME,
            controller_rpc::LIST_VOLUMES,
            controller_rpc::CREATE_DELETE_SNAPSHOT,
            controller_rpc::LIST_SNAPSHOTS,
            controller_rpc::CLONE_VOLUME,
            controller_rpc::PUBLISH_READONLY,
            controller_rpc::EXPAND_VOLUME,
            controller_rpc::LIST_VOLUMES_PUBLISHED_NODES,
        ];
        let capability = |number| ServiceCapability { rpc: Some(CapabilityType { number }) };
        ControllerGetCapabilitiesResponse { capabilities: numbers.map(capability).into() }
    }

    /// The parameter `token` is a secret that each stage must have.
    pub(super) fn create_volume(&self, request: CreateVolumeRequest) -> Reply<CreateVolumeResponse> {
        required(&request.name, "name")?;
        if request.volume_capabilities.is_empty() {
            return Err((Code::INVALID_ARGUMENT, "the request has no volume capabilities".to_owned()));
        }
        for capability in &request.volume_capabilities {
            supported(Some(capability))?;
        }
        let range = request.capacity_range.unwrap_or_default();
        let capacity = if range.required_bytes == 0 { CAPACITY } else { range.required_bytes };
        let known = self.volumes.find(&crate::storage::Storage::id(&request.name));
        if let Some(known) = &known {
            let fits = known.capacity() >= range.required_bytes
                && (range.limit_bytes == 0 || known.capacity() <= range.limit_bytes);
            if !fits {
                return Err((Code::ALREADY_EXISTS, format!("volume {} has another capacity", request.name)));
            }
            return Ok(CreateVolumeResponse { volume: Some(message(known)) });
        }
        if range.limit_bytes != 0 && capacity > range.limit_bytes {
            return Err((Code(11), "no such capacity".to_owned()));
        }
        let source = match &request.volume_content_source {
            Some(source) => {
                let snapshot =
                    source.snapshot.as_ref().map(|source| ("snapshot", self.snapshots.find(&source.id)));
                let volume = source.volume.as_ref().map(|source| ("volume", self.volumes.find(&source.id)));
                let found = snapshot.or(volume).and_then(|(kind, item)| Some((kind, item?)));
                Some(found.ok_or_else(|| (Code::NOT_FOUND, "no such source".to_owned()))?)
            }
            None => None,
        };
        let fill = |volume: &Item| {
            if let Some(token) = request.parameters.get("token") {
                volume.set("token", token)?;
            }
            let Some((kind, source)) = &source else { return Ok(()) };
            volume.set("source", &format!("{kind} {}", source.id))?;
            copy(&source.content(), &volume.content())
        };
        let volume = self.volumes.create(&request.name, capacity, fill).map_err(internal)?;
        Ok(CreateVolumeResponse { volume: Some(message(&volume)) })
    }

    pub(super) fn delete_volume(&self, request: &DeleteVolumeRequest) -> Reply<DeleteVolumeResponse> {
        required(&request.volume_id, "volume id")?;
        let Some(volume) = self.volumes.find(&request.volume_id) else { return Ok(DeleteVolumeResponse {}) };
        if let [node, ..] = volume.names("attached").as_slice() {
            return Err(precondition(format!("volume {} is attached to node {node}", volume.id)));
        }
        volume.delete().map_err(internal)?;
        Ok(DeleteVolumeResponse {})
    }

    pub(super) fn attach(
        &self,
        request: ControllerPublishVolumeRequest,
    ) -> Reply<ControllerPublishVolumeResponse> {
        required(&request.node_id, "node id")?;
        supported(request.volume_capability.as_ref())?;
        let volume = self.volume(&request.volume_id)?;
        if request.node_id != self.node_id && !self.data.join("nodes").join(&request.node_id).exists() {
            return Err((Code::NOT_FOUND, format!("no node {}", request.node_id)));
        }
        let attached = format!("attached/{}", request.node_id);
        let writing = if request.readonly { "ro" } else { "rw" };
        if volume.get(&attached).is_some_and(|known| known != writing) {
            return Err((Code::ALREADY_EXISTS, format!("volume {} is attached otherwise", volume.id)));
        }
        let mode = request.volume_capability.and_then(|capability| capability.access_mode);
        let is_single = mode.is_some_and(|mode| {
            mode.mode == VolumeAccessMode::SINGLE_NODE_WRITER
                || mode.mode == VolumeAccessMode::SINGLE_NODE_READER_ONLY
        });
        let others = volume.names("attached").into_iter().find(|node| *node != request.node_id);
        if let Some(other) = others.filter(|_| is_single) {
            return Err(precondition(format!("volume {} is attached to node {other}", volume.id)));
        }
        volume.set(&attached, writing).map_err(internal)?;
        let publish_context = BTreeMap::from([("attachment".to_owned(), volume.id)]);
        Ok(ControllerPublishVolumeResponse { publish_context })
    }

    pub(super) fn detach(
        &self,
        request: &ControllerUnpublishVolumeRequest,
    ) -> Reply<ControllerUnpublishVolumeResponse> {
        required(&request.volume_id, "volume id")?;
        let Some(volume) = self.volumes.find(&request.volume_id) else {
            return Ok(ControllerUnpublishVolumeResponse {});
        };
        if request.node_id == self.node_id && !node::users(&volume).is_empty() {
            return Err(precondition(format!("volume {} is published", volume.id)));
        }
        volume.clear(&format!("attached/{}", request.node_id)).map_err(internal)?;
        Ok(ControllerUnpublishVolumeResponse {})
    }

    pub(super) fn validate(
        &self,
        request: ValidateVolumeCapabilitiesRequest,
    ) -> Reply<ValidateVolumeCapabilitiesResponse> {
        self.volume(&request.volume_id)?;
        if request.volume_capabilities.is_empty() {
            return Err((Code::INVALID_ARGUMENT, "the request has no volume capabilities".to_owned()));
        }
        let rejected = request.volume_capabilities.iter().find_map(|one| supported(Some(one)).err());
        if let Some((_, message)) = rejected {
            return Ok(ValidateVolumeCapabilitiesResponse { confirmed: None, message });
        }
        let confirmed = Some(ConfirmedCapabilities {
            volume_context: request.volume_context,
            volume_capabilities: request.volume_capabilities,
            parameters: request.parameters,
        });
        Ok(ValidateVolumeCapabilitiesResponse { confirmed, message: String::new() })
    }

    pub(super) fn expand_volume(
        &self,
        request: &ControllerExpandVolumeRequest,
    ) -> Reply<ControllerExpandVolumeResponse> {
        let volume = self.volume(&request.volume_id)?;
        let range = request.capacity_range.unwrap_or_default();
        let capacity_bytes = volume.capacity().max(range.required_bytes);
        volume.set("capacity", &capacity_bytes.to_string()).map_err(internal)?;
        Ok(ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required: true })
    }

    pub(super) fn list_volumes(&self, request: &ListVolumesRequest) -> Reply<ListVolumesResponse> {
        let volumes = self.volumes.list().map_err(internal)?;
        let (page, next_token) = page(&volumes, &request.starting_token, request.max_entries)?;
        let entry = |volume: &Item| VolumeEntry {
            volume: Some(message(volume)),
            status: Some(VolumeEntryStatus {
                published_node_ids: volume.names("attached"),
                volume_condition: None,
            }),
        };
        Ok(ListVolumesResponse { entries: page.iter().map(entry).collect(), next_token })
    }

    pub(super) fn create_snapshot(&self, request: &CreateSnapshotRequest) -> Reply<CreateSnapshotResponse> {
        required(&request.name, "name")?;
        let volume = self.volume(&request.source_volume_id)?;
        let known = self.snapshots.find(&crate::storage::Storage::id(&request.name));
        if let Some(known) = known {
            if known.get("source").as_ref() != Some(&volume.id) {
                return Err((Code::ALREADY_EXISTS, "it is a snapshot of another volume".to_owned()));
            }
            return Ok(CreateSnapshotResponse { snapshot: Some(snapshot(&known)) });
        }
        let fill = |item: &Item| {
            item.set("source", &volume.id)?;
            copy(&volume.content(), &item.content())
        };
        let created = self.snapshots.create(&request.name, volume.capacity(), fill).map_err(internal)?;
        Ok(CreateSnapshotResponse { snapshot: Some(snapshot(&created)) })
    }

    pub(super) fn delete_snapshot(&self, request: &DeleteSnapshotRequest) -> Reply<DeleteSnapshotResponse> {
        required(&request.snapshot_id, "snapshot id")?;
        if let Some(known) = self.snapshots.find(&request.snapshot_id) {
            known.delete().map_err(internal)?;
        }
        Ok(DeleteSnapshotResponse {})
    }

    pub(super) fn list_snapshots(&self, request: &ListSnapshotsRequest) -> Reply<ListSnapshotsResponse> {
        let mut snapshots = self.snapshots.list().map_err(internal)?;
        snapshots.retain(|snapshot| {
            let source = snapshot.get("source").unwrap_or_default();
            (request.snapshot_id.is_empty() || request.snapshot_id == snapshot.id)
                && (request.source_volume_id.is_empty() || request.source_volume_id == source)
        });
        let (page, next_token) = page(&snapshots, &request.starting_token, request.max_entries)?;
        let entry = |item: &Item| SnapshotEntry { snapshot: Some(snapshot(item)) };
        Ok(ListSnapshotsResponse { entries: page.iter().map(entry).collect(), next_token })
    }
}

/// A part of a list. Its token is the number of entries before it.
fn page<'a>(all: &'a [Item], token: &str, max: i32) -> Reply<(&'a [Item], String)> {
    let begin = if token.is_empty() { Some(0) } else { token.parse().ok() };
    let rest = begin.and_then(|begin: usize| all.get(begin..).map(|rest| (begin, rest)));
    let (begin, rest) = rest.ok_or_else(|| (Code::ABORTED, format!("no such token: {token}")))?;
    let max = usize::try_from(max).ok().filter(|max| *max > 0).unwrap_or(usize::MAX);
    let page = rest.get(..max).unwrap_or(rest);
    let next = if page.len() < rest.len() { (begin + page.len()).to_string() } else { String::new() };
    Ok((page, next))
}

fn message(volume: &Item) -> Volume {
    let context = BTreeMap::from([("name".to_owned(), volume.get("name").unwrap_or_default())]);
    let source = volume.get("source");
    let content_source = source.as_deref().and_then(|source| source.split_once(' ')).map(|(kind, id)| {
        let id = Some(SourceId { id: id.to_owned() });
        match kind {
            "snapshot" => VolumeContentSource { snapshot: id, volume: None },
            _ => VolumeContentSource { snapshot: None, volume: id },
        }
    });
    Volume {
        content_source,
        volume_id: volume.id.clone(),
        capacity_bytes: volume.capacity(),
        volume_context: context,
        ..Volume::default()
    }
}

fn snapshot(item: &Item) -> Snapshot {
    Snapshot {
        snapshot_id: item.id.clone(),
        source_volume_id: item.get("source").unwrap_or_default(),
        size_bytes: item.capacity(),
        creation_time: Some(Timestamp { seconds: 1_700_000_000, nanos: 0 }),
        ready_to_use: true,
    }
}
