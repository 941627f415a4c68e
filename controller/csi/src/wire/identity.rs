//! Messages of the Identity service.

use std::collections::BTreeMap;

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub struct GetPluginInfoRequest {}

#[derive(Clone, PartialEq, Message)]
pub struct GetPluginInfoResponse {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub vendor_version: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub manifest: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct GetPluginCapabilitiesRequest {}

#[derive(Clone, PartialEq, Message)]
pub struct GetPluginCapabilitiesResponse {
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<PluginCapability>,
}

/// One of the fields is set.
#[derive(Clone, PartialEq, Message)]
pub struct PluginCapability {
    #[prost(message, optional, tag = "1")]
    pub service: Option<CapabilityType>,
    #[prost(message, optional, tag = "2")]
    pub volume_expansion: Option<CapabilityType>,
}

/// A message with a number that names a capability, in all three services.
#[derive(Clone, PartialEq, Message)]
pub struct CapabilityType {
    #[prost(int32, tag = "1")]
    pub number: i32,
}

impl PluginCapability {
    /// `Service.Type`: the plugin has a Controller service.
    pub const CONTROLLER_SERVICE: i32 = 1;
    /// `Service.Type`: not every node reaches every volume.
    pub const VOLUME_ACCESSIBILITY_CONSTRAINTS: i32 = 2;
    /// `VolumeExpansion.Type`: a volume grows while it is published.
    pub const EXPANSION_ONLINE: i32 = 1;
    /// `VolumeExpansion.Type`: a volume grows only while it is not published.
    pub const EXPANSION_OFFLINE: i32 = 2;
}

#[derive(Clone, PartialEq, Message)]
pub struct ProbeRequest {}

#[derive(Clone, PartialEq, Message)]
pub struct ProbeResponse {
    /// Absent means ready.
    #[prost(message, optional, tag = "1")]
    pub ready: Option<BoolValue>,
}

/// `google.protobuf.BoolValue`.
#[derive(Clone, PartialEq, Message)]
pub struct BoolValue {
    #[prost(bool, tag = "1")]
    pub value: bool,
}
