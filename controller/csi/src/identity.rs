//! Calls about the plugin itself.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    client::{Client, Method, RESPONSE_BYTES_MAX},
    error::CallError,
    wire::{
        GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
        GetPluginInfoResponse, PluginCapability, ProbeRequest, ProbeResponse,
    },
};

const GET_PLUGIN_INFO: Method = Method::query("Identity/GetPluginInfo");
const GET_PLUGIN_CAPABILITIES: Method = Method::query("Identity/GetPluginCapabilities");

/// Nomad waits as long for each probe.
const PROBE: Method = Method {
    name: "Identity/Probe",
    deadline: Duration::from_secs(5),
    response_bytes_max: RESPONSE_BYTES_MAX,
};

/// The specification limits names to 63 bytes; plugins exist that exceed it.
const NAME_BYTES_MAX: usize = 255;

/// Name and version of a plugin, as it reports them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginInfo {
    pub name: String,
    pub version: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PluginFeature {
    /// It has a Controller service.
    Controller,
    /// Not every node reaches every volume.
    Topologies,
    /// Volumes grow while they are published.
    ExpansionOnline,
    /// Volumes grow while they are not published.
    ExpansionOffline,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    /// It is healthy, but not initialized yet.
    Starting,
}

impl Client {
    pub async fn plugin_info(&self) -> Result<PluginInfo, CallError> {
        let response: GetPluginInfoResponse = self.call(&GET_PLUGIN_INFO, GetPluginInfoRequest {}).await?;
        let is_name = (1..=NAME_BYTES_MAX).contains(&response.name.len())
            && response.name.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_name {
            return Err(self.invalid(&GET_PLUGIN_INFO, format!("the plugin's name must have 1 to {NAME_BYTES_MAX} printable ASCII characters without blanks")));
        }
        let mut version = response.vendor_version;
        version.truncate(version.floor_char_boundary(NAME_BYTES_MAX));
        Ok(PluginInfo { name: response.name, version: version.replace(char::is_control, " ") })
    }

    pub async fn plugin_features(&self) -> Result<BTreeSet<PluginFeature>, CallError> {
        let response: GetPluginCapabilitiesResponse =
            self.call(&GET_PLUGIN_CAPABILITIES, GetPluginCapabilitiesRequest {}).await?;
        // Later versions of CSI may add numbers.
        let service = |number| match number {
            PluginCapability::CONTROLLER_SERVICE => Some(PluginFeature::Controller),
            PluginCapability::VOLUME_ACCESSIBILITY_CONSTRAINTS => Some(PluginFeature::Topologies),
            _ => None,
        };
        let expansion = |number| match number {
            PluginCapability::EXPANSION_ONLINE => Some(PluginFeature::ExpansionOnline),
            PluginCapability::EXPANSION_OFFLINE => Some(PluginFeature::ExpansionOffline),
            _ => None,
        };
        let features = response.capabilities.into_iter().filter_map(|capability| {
            let service = capability.service.and_then(|kind| service(kind.number));
            service.or_else(|| capability.volume_expansion.and_then(|kind| expansion(kind.number)))
        });
        Ok(features.collect())
    }

    pub async fn probe(&self) -> Result<Readiness, CallError> {
        let response: ProbeResponse = self.call(&PROBE, ProbeRequest {}).await?;
        // Absent means ready.
        Ok(if response.ready.is_none_or(|ready| ready.value) {
            Readiness::Ready
        } else {
            Readiness::Starting
        })
    }
}
