//! What a node asks about allocations, and what it reports: `Node.GetClientAllocs`, `Alloc.GetAllocs`, `Alloc.GetAlloc`, `Node.GetNode`,
//! `Node.UpdateAlloc`, `Alloc.SignIdentities`.

use std::collections::BTreeMap;

use herdlet_rpc::codec::Time;
use serde::{Deserialize, Serialize};

use super::{AllocId, AllocReport, Allocation, Node, NodeId, QueryMeta, QueryOptions, Secret, WriteOptions};

/// `Node.GetClientAllocs`: which allocations a node has.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ClientAllocsRequest {
    /// The node.
    #[serde(rename = "NodeID")]
    pub node_id: NodeId,
    /// What proves that it is this node.
    #[serde(rename = "SecretID")]
    pub secret_id: Secret,
    /// Options.
    #[serde(flatten)]
    pub options: QueryOptions,
}

/// All of them, also those that have ended.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ClientAllocsResponse {
    /// When servers have changed each one last. A list that isn't there is no empty one: servers always send one.
    pub allocs: Option<BTreeMap<AllocId, u64>>,
    /// With what the directory of each one's predecessor can be had.
    pub migrate_tokens: BTreeMap<AllocId, Secret>,
    /// With the index.
    #[serde(flatten)]
    pub meta: QueryMeta,
}

/// `Alloc.GetAllocs`: allocations as they are.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocsRequest {
    /// Which.
    #[serde(rename = "AllocIDs")]
    pub alloc_ids: Vec<AllocId>,
    /// Options.
    #[serde(flatten)]
    pub options: QueryOptions,
}

/// None where one is missing; from 2.0.4 on those that there are.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocsResponse {
    /// In any order.
    pub allocs: Vec<Allocation>,
    /// With the index.
    #[serde(flatten)]
    pub meta: QueryMeta,
}

/// `Alloc.GetAlloc`: one allocation, of any node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocRequest {
    /// Which.
    #[serde(rename = "AllocID")]
    pub alloc_id: AllocId,
    /// Options.
    #[serde(flatten)]
    pub options: QueryOptions,
}

/// The allocation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocResponse {
    /// None: it is gone.
    pub alloc: Option<Allocation>,
    /// With the index.
    #[serde(flatten)]
    pub meta: QueryMeta,
}

/// `Node.GetNode`: one node, whichever.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeRequest {
    /// Which.
    #[serde(rename = "NodeID")]
    pub node_id: NodeId,
    /// Options.
    #[serde(flatten)]
    pub options: QueryOptions,
}

/// The node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeResponse {
    /// Without its secret. None: it is gone.
    pub node: Option<Node>,
    /// With the index.
    #[serde(flatten)]
    pub meta: QueryMeta,
}

/// `Node.UpdateAlloc`: how allocations are.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocUpdateRequest {
    /// At least one.
    pub alloc: Vec<AllocReport>,
    /// Options.
    #[serde(flatten)]
    pub options: WriteOptions,
}

/// `Alloc.SignIdentities` (1.7 and later).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct SignRequest {
    /// Which are wanted.
    pub identities: Vec<IdentityRequest>,
    /// Options.
    #[serde(flatten)]
    pub options: QueryOptions,
}

/// An identity that is wanted.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct IdentityRequest {
    /// Of this allocation.
    #[serde(rename = "AllocID")]
    pub alloc_id: AllocId,
    /// Its name in the job.
    pub identity_name: String,
    /// The task, or the service as the job names it.
    pub workload_identifier: String,
    /// 0: a task, 1: a service.
    pub workload_type: i64,
    /// The service as it is called after interpolation.
    pub interpolated_workload_identifier: String,
}

/// Identities.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct SignResponse {
    /// Those that were signed.
    pub signed_identities: Vec<SignedIdentity>,
    /// Those that weren't.
    pub rejections: Vec<Rejection>,
    /// With the index.
    #[serde(flatten)]
    pub meta: QueryMeta,
}

/// An identity.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct SignedIdentity {
    /// Of this allocation.
    #[serde(rename = "AllocID")]
    pub alloc_id: AllocId,
    /// Its name in the job.
    pub identity_name: String,
    /// The task, or the service as the job names it.
    pub workload_identifier: String,
    /// 0: a task, 1: a service.
    pub workload_type: i64,
    /// The token.
    #[serde(rename = "JWT")]
    pub jwt: Secret,
    /// Until when it holds.
    pub expiration: Time,
}

/// An identity that was refused.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Rejection {
    /// Of this allocation.
    #[serde(rename = "AllocID")]
    pub alloc_id: AllocId,
    /// Its name in the job.
    pub identity_name: String,
    /// The task, or the service as the job names it.
    pub workload_identifier: String,
    /// Why.
    pub reason: String,
}
