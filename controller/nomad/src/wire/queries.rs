//! Queries and reports on allocations: `Node.GetClientAllocs`, `Alloc.GetAllocs`, `Alloc.GetAlloc`, `Node.GetNode`, `Node.UpdateAlloc`,
//! `Alloc.SignIdentities`, `Node.DeriveVaultToken`.

use std::collections::BTreeMap;

use herdlet_rpc::codec::Time;
use serde::{Deserialize, Serialize};

use super::{AllocId, AllocReport, Allocation, Node, NodeId, QueryMeta, QueryOptions, Secret, WriteOptions};

/// `Node.GetClientAllocs`: lists a node's allocations.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ClientAllocsRequest {
    /// The node.
    #[serde(rename = "NodeID")]
    pub node_id: NodeId,
    /// Proves the node's identity.
    #[serde(rename = "SecretID")]
    pub secret_id: Secret,
    /// Options.
    #[serde(flatten)]
    pub options: QueryOptions,
}

/// All allocations of the node, including those that have ended.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ClientAllocsResponse {
    /// The `AllocModifyIndex` of each allocation. `None` is not an empty list: servers always send a list.
    pub allocs: Option<BTreeMap<AllocId, u64>>,
    /// Tokens for access to the directories of previous allocations.
    pub migrate_tokens: BTreeMap<AllocId, Secret>,
    /// Index and leader.
    #[serde(flatten)]
    pub meta: QueryMeta,
}

/// `Alloc.GetAllocs`: fetches allocations.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocsRequest {
    /// The allocations' ids.
    #[serde(rename = "AllocIDs")]
    pub alloc_ids: Vec<AllocId>,
    /// Options.
    #[serde(flatten)]
    pub options: QueryOptions,
}

/// No allocations if one is missing; from 2.0.4 on, those that exist.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocsResponse {
    /// In any order.
    pub allocs: Vec<Allocation>,
    /// Index and leader.
    #[serde(flatten)]
    pub meta: QueryMeta,
}

/// `Alloc.GetAlloc`: fetches one allocation, of any node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocRequest {
    /// The allocation's id.
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
    /// `None` if the allocation does not exist.
    pub alloc: Option<Allocation>,
    /// Index and leader.
    #[serde(flatten)]
    pub meta: QueryMeta,
}

/// `Node.GetNode`: fetches any node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeRequest {
    /// The node's id.
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
    /// The node without its secret; `None` if it does not exist.
    pub node: Option<Node>,
    /// Index and leader.
    #[serde(flatten)]
    pub meta: QueryMeta,
}

/// `Node.UpdateAlloc`: reports the state of allocations.
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
    /// The requested identities.
    pub identities: Vec<IdentityRequest>,
    /// Options.
    #[serde(flatten)]
    pub options: QueryOptions,
}

/// `Node.DeriveVaultToken` (through 1.9).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DeriveRequest {
    /// The node.
    #[serde(rename = "NodeID")]
    pub node_id: NodeId,
    /// Proves the node's identity.
    #[serde(rename = "SecretID")]
    pub secret_id: Secret,
    /// The allocation's id.
    #[serde(rename = "AllocID")]
    pub alloc_id: AllocId,
    /// Names of its tasks.
    pub tasks: Vec<String>,
    /// Options.
    #[serde(flatten)]
    pub options: QueryOptions,
}

/// The response to [`DeriveRequest`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DeriveResponse {
    /// Wrapped tokens by task.
    pub tasks: BTreeMap<String, Secret>,
    /// Why there are none.
    pub error: Option<RecoverableError>,
    /// Index and leader.
    #[serde(flatten)]
    pub meta: QueryMeta,
}

/// An error of what the servers use themselves, such as Vault.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RecoverableError {
    /// Its text.
    pub err: String,
    /// Whether a retry may help.
    pub recoverable: bool,
}

/// A requested identity.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct IdentityRequest {
    /// The allocation's id.
    #[serde(rename = "AllocID")]
    pub alloc_id: AllocId,
    /// The identity's name in the job.
    pub identity_name: String,
    /// The task, or the service as the job names it.
    pub workload_identifier: String,
    /// 0: a task, 1: a service.
    pub workload_type: i64,
    /// The service's name after interpolation.
    pub interpolated_workload_identifier: String,
}

/// The response to [`SignRequest`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct SignResponse {
    /// The signed identities.
    pub signed_identities: Vec<SignedIdentity>,
    /// The refused identities.
    pub rejections: Vec<Rejection>,
    /// Index and leader.
    #[serde(flatten)]
    pub meta: QueryMeta,
}

/// A signed identity.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct SignedIdentity {
    /// The allocation's id.
    #[serde(rename = "AllocID")]
    pub alloc_id: AllocId,
    /// The identity's name in the job.
    pub identity_name: String,
    /// The task, or the service as the job names it.
    pub workload_identifier: String,
    /// 0: a task, 1: a service.
    pub workload_type: i64,
    /// The token.
    #[serde(rename = "JWT")]
    pub jwt: Secret,
    /// When the token expires.
    pub expiration: Time,
}

/// A refused identity.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Rejection {
    /// The allocation's id.
    #[serde(rename = "AllocID")]
    pub alloc_id: AllocId,
    /// The identity's name in the job.
    pub identity_name: String,
    /// The task, or the service as the job names it.
    pub workload_identifier: String,
    /// The reason.
    pub reason: String,
}
