//! The services of the plugin, by the names of their calls. `DATA/calls` lists each call with its code.
//!
//! In: a path and an encoded request. Out: an encoded response, or a status. The plugin insists on the order of calls:
//! attach, stage, publish, unpublish, unstage, detach. A call that is out of order is an error, so a caller that relies on
//! it fails in tests.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use herdlet_csi::{
    error::Code,
    wire::{
        BoolValue, CapabilityType, ControllerGetCapabilitiesRequest, GetPluginCapabilitiesRequest,
        GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
        NodeGetCapabilitiesRequest, NodeGetInfoRequest, PluginCapability, ProbeRequest, ProbeResponse,
        VolumeCapability,
    },
};
use prost::Message;

use crate::storage::{Item, Storage};

mod controller;
mod node;

/// A response, or a status with a message.
pub type Reply<T> = Result<T, (Code, String)>;

/// Whether the plugin stages volumes before it publishes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Staging {
    Present,
    Absent,
}

pub struct Plugin {
    data: PathBuf,
    node_id: String,
    staging: Staging,
    volumes: Storage,
    snapshots: Storage,
}

impl Plugin {
    /// # Errors
    ///
    /// If a folder can't be created.
    pub fn open(data: &Path, node_id: &str, staging: Staging) -> io::Result<Self> {
        fs::create_dir_all(data.join("faults"))?;
        Ok(Self {
            data: data.to_owned(),
            node_id: node_id.to_owned(),
            staging,
            volumes: Storage::open(data.join("volumes"))?,
            snapshots: Storage::open(data.join("snapshots"))?,
        })
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Serves a call: `/csi.v1.SERVICE/METHOD`.
    ///
    /// # Errors
    ///
    /// The status of the response.
    pub fn call(&self, path: &str, request: &[u8]) -> Reply<Vec<u8>> {
        let reply = self.dispatch(path, request);
        let code = reply.as_ref().map_or_else(|(code, _)| *code, |_| Code::OK);
        let name = path.rsplit('/').next().unwrap_or_default();
        let written = OpenOptions::new().create(true).append(true).open(self.data.join("calls"));
        written.and_then(|mut calls| writeln!(calls, "{name} {}", code.0)).map_err(internal)?;
        reply
    }

    fn dispatch(&self, path: &str, request: &[u8]) -> Reply<Vec<u8>> {
        match path.strip_prefix("/csi.v1.").unwrap_or_default() {
            "Identity/GetPluginInfo" => answer(request, |GetPluginInfoRequest {}| Ok(Self::info())),
            "Identity/GetPluginCapabilities" => {
                answer(request, |GetPluginCapabilitiesRequest {}| Ok(Self::capabilities()))
            }
            "Identity/Probe" => answer(request, |ProbeRequest {}| Ok(self.probe())),
            "Controller/ControllerGetCapabilities" => {
                answer(request, |ControllerGetCapabilitiesRequest {}| Ok(Self::controller_capabilities()))
            }
            "Controller/CreateVolume" => answer(request, |request| self.create_volume(request)),
            "Controller/DeleteVolume" => answer(request, |request| self.delete_volume(&request)),
            "Controller/ControllerPublishVolume" => answer(request, |request| self.attach(request)),
            "Controller/ControllerUnpublishVolume" => answer(request, |request| self.detach(&request)),
            "Controller/ValidateVolumeCapabilities" => answer(request, |request| self.validate(request)),
            "Controller/ControllerExpandVolume" => answer(request, |request| self.expand_volume(&request)),
            "Controller/ListVolumes" => answer(request, |request| self.list_volumes(&request)),
            "Controller/CreateSnapshot" => answer(request, |request| self.create_snapshot(&request)),
            "Controller/DeleteSnapshot" => answer(request, |request| self.delete_snapshot(&request)),
            "Controller/ListSnapshots" => answer(request, |request| self.list_snapshots(&request)),
            "Node/NodeGetInfo" => answer(request, |NodeGetInfoRequest {}| Ok(self.node_info())),
            "Node/NodeGetCapabilities" => {
                answer(request, |NodeGetCapabilitiesRequest {}| Ok(self.node_capabilities()))
            }
            "Node/NodeStageVolume" => answer(request, |request| self.stage(&request)),
            "Node/NodeUnstageVolume" => answer(request, |request| self.unstage(&request)),
            "Node/NodePublishVolume" => answer(request, |request| self.publish(&request)),
            "Node/NodeUnpublishVolume" => answer(request, |request| self.unpublish(&request)),
            "Node/NodeGetVolumeStats" => answer(request, |request| self.statistics(&request)),
            "Node/NodeExpandVolume" => answer(request, |request| self.expand_on_node(&request)),
            _ => Err((Code::UNIMPLEMENTED, format!("no call {path}"))),
        }
    }

    fn info() -> GetPluginInfoResponse {
        GetPluginInfoResponse {
            name: "csi.test.herdlet".to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..GetPluginInfoResponse::default()
        }
    }

    fn capabilities() -> GetPluginCapabilitiesResponse {
        let kind = |number| Some(CapabilityType { number });
        let service =
            PluginCapability { service: kind(PluginCapability::CONTROLLER_SERVICE), volume_expansion: None };
        let expansion =
            PluginCapability { service: None, volume_expansion: kind(PluginCapability::EXPANSION_ONLINE) };
        GetPluginCapabilitiesResponse { capabilities: vec![service, expansion] }
    }

    /// The file `starting` makes the plugin report that it is not initialized yet.
    fn probe(&self) -> ProbeResponse {
        ProbeResponse { ready: Some(BoolValue { value: !self.data.join("starting").exists() }) }
    }

    fn volume(&self, id: &str) -> Reply<Item> {
        let required = || (Code::INVALID_ARGUMENT, "the request has no volume id".to_owned());
        let id = Some(id).filter(|id| !id.is_empty()).ok_or_else(required)?;
        self.volumes.find(id).ok_or_else(|| (Code::NOT_FOUND, format!("no volume {id}")))
    }
}

fn answer<Q: Message + Default, R: Message>(
    request: &[u8],
    serve: impl FnOnce(Q) -> Reply<R>,
) -> Reply<Vec<u8>> {
    let request = Q::decode(request).map_err(|error| (Code::INVALID_ARGUMENT, error.to_string()))?;
    serve(request).map(|response| response.encode_to_vec())
}

fn internal(error: io::Error) -> (Code, String) {
    (Code::INTERNAL, error.to_string())
}

fn precondition(why: String) -> (Code, String) {
    (Code::FAILED_PRECONDITION, why)
}

fn required(value: &str, name: &str) -> Reply<()> {
    if value.is_empty() {
        return Err((Code::INVALID_ARGUMENT, format!("the request has no {name}")));
    }
    Ok(())
}

/// What a task sees of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Directory,
    Device,
}

fn supported(capability: Option<&VolumeCapability>) -> Reply<Access> {
    let capability = capability.filter(|capability| capability.access_mode.is_some());
    match capability {
        Some(VolumeCapability { mount: Some(_), block: None, .. }) => Ok(Access::Directory),
        Some(VolumeCapability { mount: None, block: Some(_), .. }) => Ok(Access::Device),
        Some(_) | None => Err((Code::INVALID_ARGUMENT, "the request has no volume capability".to_owned())),
    }
}
