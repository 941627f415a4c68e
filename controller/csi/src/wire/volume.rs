//! Messages that several services share.

use std::collections::BTreeMap;

use prost::Message;

/// `block` or `mount` is set.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct VolumeCapability {
    #[prost(message, optional, tag = "1")]
    pub block: Option<BlockVolume>,
    #[prost(message, optional, tag = "2")]
    pub mount: Option<MountVolume>,
    #[prost(message, optional, tag = "3")]
    pub access_mode: Option<VolumeAccessMode>,
}

#[derive(Clone, PartialEq, Message)]
pub struct BlockVolume {}

/// The specification allows secrets in `mount_flags`.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct MountVolume {
    #[prost(string, tag = "1")]
    pub fs_type: String,
    #[prost(string, repeated, tag = "2")]
    pub mount_flags: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct VolumeAccessMode {
    #[prost(int32, tag = "1")]
    pub mode: i32,
}

impl VolumeAccessMode {
    pub const SINGLE_NODE_WRITER: i32 = 1;
    pub const SINGLE_NODE_READER_ONLY: i32 = 2;
    pub const MULTI_NODE_READER_ONLY: i32 = 3;
    pub const MULTI_NODE_SINGLE_WRITER: i32 = 4;
    pub const MULTI_NODE_MULTI_WRITER: i32 = 5;
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct CapacityRange {
    #[prost(int64, tag = "1")]
    pub required_bytes: i64,
    #[prost(int64, tag = "2")]
    pub limit_bytes: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Volume {
    #[prost(int64, tag = "1")]
    pub capacity_bytes: i64,
    #[prost(string, tag = "2")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub volume_context: BTreeMap<String, String>,
    #[prost(message, optional, tag = "4")]
    pub content_source: Option<VolumeContentSource>,
    #[prost(message, repeated, tag = "5")]
    pub accessible_topology: Vec<Topology>,
}

/// One of the fields is set.
#[derive(Clone, PartialEq, Message)]
pub struct VolumeContentSource {
    #[prost(message, optional, tag = "1")]
    pub snapshot: Option<SourceId>,
    #[prost(message, optional, tag = "2")]
    pub volume: Option<SourceId>,
}

/// `SnapshotSource` and `VolumeSource`.
#[derive(Clone, PartialEq, Message)]
pub struct SourceId {
    #[prost(string, tag = "1")]
    pub id: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Topology {
    #[prost(btree_map = "string, string", tag = "1")]
    pub segments: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TopologyRequirement {
    #[prost(message, repeated, tag = "1")]
    pub requisite: Vec<Topology>,
    #[prost(message, repeated, tag = "2")]
    pub preferred: Vec<Topology>,
}

#[derive(Clone, PartialEq, Message)]
pub struct VolumeCondition {
    #[prost(bool, tag = "1")]
    pub abnormal: bool,
    #[prost(string, tag = "2")]
    pub message: String,
}

/// `ControllerServiceCapability` and `NodeServiceCapability`.
#[derive(Clone, PartialEq, Message)]
pub struct ServiceCapability {
    #[prost(message, optional, tag = "1")]
    pub rpc: Option<super::CapabilityType>,
}
