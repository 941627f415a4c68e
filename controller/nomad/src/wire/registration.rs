//! Registration, heartbeats, events and drains: `Node.Register`, `Node.UpdateStatus`, `Node.EmitEvents`, `Node.UpdateDrain`.

use std::{collections::BTreeMap, time::Duration};

use herdlet_rpc::codec;
use serde::{Deserialize, Serialize};

use super::{
    Eligibility, Node, NodeEvent, NodeId, NodeStatus, QueryMeta, Secret, WriteOptions, node::DrainStrategy,
};

/// `Node.Register`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeRegisterRequest {
    /// The node.
    pub node: Node,
    /// Options.
    #[serde(flatten)]
    pub options: WriteOptions,
}

/// `Node.UpdateStatus`: a heartbeat.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeUpdateStatusRequest {
    /// The node.
    #[serde(rename = "NodeID")]
    pub node_id: NodeId,
    /// [`Ready`](NodeStatus::Ready).
    pub status: NodeStatus,
    /// Requests a new identity now (1.11 and later).
    pub force_identity_renewal: bool,
    /// Options.
    #[serde(flatten)]
    pub options: WriteOptions,
}

/// The response to [`NodeRegisterRequest`] and [`NodeUpdateStatusRequest`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeUpdateResponse {
    /// The next heartbeat is due after this.
    #[serde(with = "codec::duration", rename = "HeartbeatTTL")]
    pub heartbeat_ttl: Duration,
    /// Evaluations that the call created.
    #[serde(rename = "EvalIDs")]
    pub eval_ids: Vec<String>,
    /// Their index.
    pub eval_create_index: u64,
    /// Zero if nothing has changed.
    pub node_modify_index: u64,
    /// For the enterprise edition.
    pub features: u64,
    /// Empty if this server sees no leader.
    #[serde(rename = "LeaderRPCAddr")]
    pub leader_rpc_addr: String,
    /// Number of nodes in the cluster.
    pub num_nodes: i32,
    /// The servers; they replace the known ones.
    pub servers: Vec<ServerInfo>,
    /// 1.2 and later.
    pub scheduling_eligibility: Eligibility,
    /// A new identity of the node (1.11 and later).
    pub signed_identity: Option<Secret>,
    /// The index is not zero if the node's status has changed.
    #[serde(flatten)]
    pub meta: QueryMeta,
}

impl NodeUpdateResponse {
    /// The new identity, if any. Servers that cannot sign one send an empty text.
    #[must_use]
    pub fn signed(&self) -> Option<&Secret> {
        self.signed_identity.as_ref().filter(|signed| !signed.is_empty())
    }
}

/// A server.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ServerInfo {
    /// Address of its RPC.
    #[serde(rename = "RPCAdvertiseAddr")]
    pub rpc_advertise_addr: String,
    /// Unused.
    #[serde(rename = "RPCMajorVersion")]
    pub rpc_major_version: i32,
    /// Unused.
    #[serde(rename = "RPCMinorVersion")]
    pub rpc_minor_version: i32,
    /// Its datacenter.
    pub datacenter: String,
}

/// `Node.EmitEvents`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct EmitEventsRequest {
    /// By node. Neither the map nor a list may be empty.
    pub node_events: BTreeMap<NodeId, Vec<NodeEvent>>,
    /// Options.
    #[serde(flatten)]
    pub options: WriteOptions,
}

/// `Node.UpdateDrain`: drains a node (with the node's own token: 1.6 and later).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DrainRequest {
    /// The node.
    #[serde(rename = "NodeID")]
    pub node_id: NodeId,
    /// Drain options; `None` ends the drain.
    pub drain_strategy: Option<DrainStrategy>,
    /// Makes the node eligible if there is no strategy.
    pub mark_eligible: bool,
    /// Free text for users.
    pub meta: BTreeMap<String, String>,
    /// Options.
    #[serde(flatten)]
    pub options: WriteOptions,
}

/// The response to a change that returns nothing else.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct GenericResponse {
    /// The index of the change.
    pub index: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_identity_is_none() {
        let signed = |identity: Option<&str>| {
            let signed_identity = identity.map(Secret::from);
            NodeUpdateResponse { signed_identity, ..NodeUpdateResponse::default() }.signed().cloned()
        };
        assert_eq!((signed(None), signed(Some("")), signed(Some("a"))), (None, None, Some("a".into())));
    }
}
