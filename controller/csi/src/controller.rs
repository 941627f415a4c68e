//! Calls to the storage system: create and delete volumes and snapshots, attach volumes to nodes.
//!
//! Every call that changes something is idempotent by the specification.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    capability::{MountOptions, Usage, Writing},
    client::{Client, Method, clean},
    error::CallError,
    node::{Context, VolumeUse},
    secrets::Secrets,
    wire::{
        CapacityRange, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
        ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse, ControllerPublishVolumeRequest,
        ControllerPublishVolumeResponse, ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse,
        CreateSnapshotRequest, CreateSnapshotResponse, CreateVolumeRequest, CreateVolumeResponse,
        DeleteSnapshotRequest, DeleteSnapshotResponse, DeleteVolumeRequest, DeleteVolumeResponse,
        ListSnapshotsRequest, ListSnapshotsResponse, ListVolumesRequest, ListVolumesResponse, Snapshot,
        TopologyRequirement, ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, Volume,
        VolumeContentSource, controller_rpc,
    },
};

const GET_CAPABILITIES: Method = Method::query("Controller/ControllerGetCapabilities");
const CREATE: Method = Method::volume("Controller/CreateVolume");
const DELETE: Method = Method::volume("Controller/DeleteVolume");
const ATTACH: Method = Method::volume("Controller/ControllerPublishVolume");
const DETACH: Method = Method::volume("Controller/ControllerUnpublishVolume");
const VALIDATE: Method = Method::volume("Controller/ValidateVolumeCapabilities");
const EXPAND: Method = Method::volume("Controller/ControllerExpandVolume");
const LIST: Method = Method::list("Controller/ListVolumes");
const CREATE_SNAPSHOT: Method = Method::volume("Controller/CreateSnapshot");
const DELETE_SNAPSHOT: Method = Method::volume("Controller/DeleteSnapshot");
const LIST_SNAPSHOTS: Method = Method::list("Controller/ListSnapshots");

/// The specification limits ids to 128 bytes; plugins exist that exceed it.
const ID_BYTES_MAX: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ControllerFeature {
    CreateDelete,
    AttachDetach,
    ListVolumes,
    GetCapacity,
    CreateDeleteSnapshot,
    ListSnapshots,
    Clone,
    AttachReadOnly,
    Expand,
    ListAttachedNodes,
    Condition,
    GetVolume,
}

impl ControllerFeature {
    /// Its name in the specification.
    pub fn name(self) -> &'static str {
        match self {
            Self::CreateDelete => "CREATE_DELETE_VOLUME",
            Self::AttachDetach => "PUBLISH_UNPUBLISH_VOLUME",
            Self::ListVolumes => "LIST_VOLUMES",
            Self::GetCapacity => "GET_CAPACITY",
            Self::CreateDeleteSnapshot => "CREATE_DELETE_SNAPSHOT",
            Self::ListSnapshots => "LIST_SNAPSHOTS",
            Self::Clone => "CLONE_VOLUME",
            Self::AttachReadOnly => "PUBLISH_READONLY",
            Self::Expand => "EXPAND_VOLUME",
            Self::ListAttachedNodes => "LIST_VOLUMES_PUBLISHED_NODES",
            Self::Condition => "VOLUME_CONDITION",
            Self::GetVolume => "GET_VOLUME",
        }
    }
}

/// A volume to create. Not `Debug`: it has secrets.
pub struct NewVolume<'a> {
    /// A second call with the same name returns the same volume.
    pub name: &'a str,
    pub capacity: Option<CapacityRange>,
    /// Every use that must be possible.
    pub usages: &'a [Usage],
    pub options: &'a MountOptions,
    pub parameters: &'a BTreeMap<String, String>,
    pub source: Option<VolumeContentSource>,
    pub topology: Option<TopologyRequirement>,
    pub secrets: &'a Secrets,
}

/// A snapshot to create. Not `Debug`: it has secrets.
pub struct NewSnapshot<'a> {
    /// A second call with the same name returns the same snapshot.
    pub name: &'a str,
    pub volume_id: &'a str,
    pub parameters: &'a BTreeMap<String, String>,
    pub secrets: &'a Secrets,
}

/// Whether the storage system permits the use of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Validation {
    Confirmed,
    /// The plugin's reason.
    Rejected(String),
}

/// A part of a list.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// 0: the plugin chooses.
    pub entries_max: i32,
    /// `next_token` of the page before; empty for the first page.
    pub token: String,
}

impl Client {
    pub async fn controller_features(&self) -> Result<BTreeSet<ControllerFeature>, CallError> {
        let response: ControllerGetCapabilitiesResponse =
            self.call(&GET_CAPABILITIES, ControllerGetCapabilitiesRequest {}).await?;
        let numbers = response.capabilities.into_iter().filter_map(|capability| capability.rpc);
        Ok(numbers.filter_map(|rpc| feature(rpc.number)).collect())
    }

    pub async fn create_volume(&self, new: &NewVolume<'_>) -> Result<Volume, CallError> {
        let request = CreateVolumeRequest {
            name: new.name.to_owned(),
            capacity_range: new.capacity,
            volume_capabilities: new.usages.iter().map(|usage| usage.capability(new.options)).collect(),
            parameters: new.parameters.clone(),
            secrets: new.secrets.reveal(),
            volume_content_source: new.source.clone(),
            accessibility_requirements: new.topology.clone(),
        };
        let response: CreateVolumeResponse = self.call_with(&CREATE, new.secrets, request).await?;
        let volume = response.volume.ok_or_else(|| self.invalid(&CREATE, "it has no volume"))?;
        check_id(self, &CREATE, &volume.volume_id)?;
        Ok(volume)
    }

    /// A volume that does not exist is deleted.
    pub async fn delete_volume(&self, volume_id: &str, secrets: &Secrets) -> Result<(), CallError> {
        let request = DeleteVolumeRequest { volume_id: volume_id.to_owned(), secrets: secrets.reveal() };
        let DeleteVolumeResponse {} = self.call_with(&DELETE, secrets, request).await?;
        Ok(())
    }

    /// Attaches a volume to a node. Returns the context for the calls on the node.
    pub async fn attach(&self, volume: &VolumeUse<'_>, node_id: &str) -> Result<Context, CallError> {
        let request = ControllerPublishVolumeRequest {
            volume_id: volume.volume_id.to_owned(),
            node_id: node_id.to_owned(),
            volume_capability: Some(volume.usage.capability(volume.options)),
            readonly: volume.usage.writing == Writing::ReadOnly,
            secrets: volume.secrets.reveal(),
            volume_context: volume.volume_context.clone(),
        };
        let response: ControllerPublishVolumeResponse =
            self.call_with(&ATTACH, volume.secrets, request).await?;
        Ok(response.publish_context)
    }

    pub async fn detach(&self, volume_id: &str, node_id: &str, secrets: &Secrets) -> Result<(), CallError> {
        let request = ControllerUnpublishVolumeRequest {
            volume_id: volume_id.to_owned(),
            node_id: node_id.to_owned(),
            secrets: secrets.reveal(),
        };
        let ControllerUnpublishVolumeResponse {} = self.call_with(&DETACH, secrets, request).await?;
        Ok(())
    }

    pub async fn validate(
        &self,
        volume: &VolumeUse<'_>,
        parameters: &BTreeMap<String, String>,
    ) -> Result<Validation, CallError> {
        let capability = volume.usage.capability(volume.options);
        let request = ValidateVolumeCapabilitiesRequest {
            volume_id: volume.volume_id.to_owned(),
            volume_context: volume.volume_context.clone(),
            volume_capabilities: vec![capability.clone()],
            parameters: parameters.clone(),
            secrets: volume.secrets.reveal(),
        };
        let response: ValidateVolumeCapabilitiesResponse =
            self.call_with(&VALIDATE, volume.secrets, request).await?;
        // A plugin confirms only the capabilities that it has checked.
        Ok(match response.confirmed {
            Some(confirmed) if confirmed.volume_capabilities.contains(&capability) => Validation::Confirmed,
            Some(_) | None => Validation::Rejected(clean(&response.message, volume.secrets)),
        })
    }

    pub async fn expand_volume(
        &self,
        volume: &VolumeUse<'_>,
        capacity: CapacityRange,
    ) -> Result<ControllerExpandVolumeResponse, CallError> {
        let request = ControllerExpandVolumeRequest {
            volume_id: volume.volume_id.to_owned(),
            capacity_range: Some(capacity),
            secrets: volume.secrets.reveal(),
            volume_capability: Some(volume.usage.capability(volume.options)),
        };
        self.call_with(&EXPAND, volume.secrets, request).await
    }

    pub async fn list_volumes(&self, page: Page) -> Result<ListVolumesResponse, CallError> {
        let request =
            ListVolumesRequest { max_entries: page.entries_max, starting_token: page.token.clone() };
        let response: ListVolumesResponse = self.call(&LIST, request).await?;
        check_progress(self, &LIST, &page, &response.next_token)?;
        Ok(response)
    }

    pub async fn create_snapshot(&self, new: &NewSnapshot<'_>) -> Result<Snapshot, CallError> {
        let request = CreateSnapshotRequest {
            source_volume_id: new.volume_id.to_owned(),
            name: new.name.to_owned(),
            secrets: new.secrets.reveal(),
            parameters: new.parameters.clone(),
        };
        let response: CreateSnapshotResponse = self.call_with(&CREATE_SNAPSHOT, new.secrets, request).await?;
        let snapshot =
            response.snapshot.ok_or_else(|| self.invalid(&CREATE_SNAPSHOT, "it has no snapshot"))?;
        check_id(self, &CREATE_SNAPSHOT, &snapshot.snapshot_id)?;
        Ok(snapshot)
    }

    /// A snapshot that does not exist is deleted.
    pub async fn delete_snapshot(&self, snapshot_id: &str, secrets: &Secrets) -> Result<(), CallError> {
        let request =
            DeleteSnapshotRequest { snapshot_id: snapshot_id.to_owned(), secrets: secrets.reveal() };
        let DeleteSnapshotResponse {} = self.call_with(&DELETE_SNAPSHOT, secrets, request).await?;
        Ok(())
    }

    pub async fn list_snapshots(
        &self,
        page: Page,
        secrets: &Secrets,
    ) -> Result<ListSnapshotsResponse, CallError> {
        let request = ListSnapshotsRequest {
            max_entries: page.entries_max,
            starting_token: page.token.clone(),
            secrets: secrets.reveal(),
            ..ListSnapshotsRequest::default()
        };
        let response: ListSnapshotsResponse = self.call_with(&LIST_SNAPSHOTS, secrets, request).await?;
        check_progress(self, &LIST_SNAPSHOTS, &page, &response.next_token)?;
        Ok(response)
    }
}

fn feature(number: i32) -> Option<ControllerFeature> {
    match number {
        controller_rpc::CREATE_DELETE_VOLUME => Some(ControllerFeature::CreateDelete),
        controller_rpc::PUBLISH_UNPUBLISH_VOLUME => Some(ControllerFeature::AttachDetach),
        controller_rpc::LIST_VOLUMES => Some(ControllerFeature::ListVolumes),
        controller_rpc::GET_CAPACITY => Some(ControllerFeature::GetCapacity),
        controller_rpc::CREATE_DELETE_SNAPSHOT => Some(ControllerFeature::CreateDeleteSnapshot),
        controller_rpc::LIST_SNAPSHOTS => Some(ControllerFeature::ListSnapshots),
        controller_rpc::CLONE_VOLUME => Some(ControllerFeature::Clone),
        controller_rpc::PUBLISH_READONLY => Some(ControllerFeature::AttachReadOnly),
        controller_rpc::EXPAND_VOLUME => Some(ControllerFeature::Expand),
        controller_rpc::LIST_VOLUMES_PUBLISHED_NODES => Some(ControllerFeature::ListAttachedNodes),
        controller_rpc::VOLUME_CONDITION => Some(ControllerFeature::Condition),
        controller_rpc::GET_VOLUME => Some(ControllerFeature::GetVolume),
        // Later versions of CSI may add numbers.
        _ => None,
    }
}

fn check_id(client: &Client, method: &Method, id: &str) -> Result<(), CallError> {
    if (1..=ID_BYTES_MAX).contains(&id.len()) && !id.contains(char::is_control) {
        return Ok(());
    }
    Err(client
        .invalid(method, format!("an id must have 1 to {ID_BYTES_MAX} bytes, and no control characters")))
}

/// A plugin that returns the token of the present page would be read without end.
fn check_progress(client: &Client, method: &Method, page: &Page, next: &str) -> Result<(), CallError> {
    if !next.is_empty() && next == page.token {
        return Err(client.invalid(method, "the token of its next page is the token of this page"));
    }
    Ok(())
}
