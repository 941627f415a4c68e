//! Methods for nodes: registration, heartbeats, and their lists of allocations.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

use herdlet_nomad::wire::{
    NodeId, NodeStatus, QueryMeta, Secret,
    queries::{ClientAllocsRequest, ClientAllocsResponse, NodeRequest, NodeResponse},
    registration::{
        DrainRequest, EmitEventsRequest, GenericResponse, NodeRegisterRequest, NodeUpdateResponse,
        NodeUpdateStatusRequest, ServerInfo,
    },
};
use herdlet_rpc::{
    error::Refusal,
    serve::{Peer, answer},
};
use serde::Deserialize;
use tokio::time::{Duration, Instant};

use super::{Answer, Server, refuse};
use crate::{
    inner::lock,
    state::{State, deadline},
};

impl Server {
    pub(super) async fn register(&self, peer: &Peer, request: NodeRegisterRequest) -> Answer {
        self.led(&request.options.region).await?;
        let token = &request.options.auth_token;
        let settings = &self.cluster.settings;
        let is_introduced = !settings.introduction.is_empty() && *token == settings.introduction;
        let is_new = !lock(&self.cluster.state).nodes.contains_key(&request.node.id);
        let is_signed = !token.is_empty() && *token != request.node.secret_id && !is_introduced;
        let is_known = token.is_empty() || is_introduced || self.is_token(token, None);
        self.allow(is_known && (is_introduced || is_signed || !is_new || settings.introduction.is_empty()))?;
        let (id, ttl) = (request.node.id.clone(), self.ttl());
        let until = deadline(Instant::now(), ttl, self.cluster.settings.grace);
        let index =
            self.cluster.write(|state| state.register(request.node, until)).map_err(Refusal::Error)?;
        self.bind(peer, &id);
        answer(&self.update_response(&id, ttl, index, !is_signed))
    }

    pub(super) async fn update_status(&self, peer: &Peer, request: NodeUpdateStatusRequest) -> Answer {
        self.led(&request.options.region).await?;
        self.allow(self.is_token(&request.options.auth_token, Some(&request.node_id)))?;
        if request.status != NodeStatus::Ready {
            return refuse("invalid status for node");
        }
        let ttl = self.ttl();
        let until = deadline(Instant::now(), ttl, self.cluster.settings.grace);
        let index =
            self.cluster.write(|state| state.heartbeat(&request.node_id, until)).map_err(Refusal::Error)?;
        self.bind(peer, &request.node_id);
        let signs =
            self.is_secret(&request.options.auth_token, &request.node_id) || request.force_identity_renewal;
        answer(&self.update_response(&request.node_id, ttl, index, signs))
    }

    pub(super) async fn client_allocs(&self, peer: &Peer, request: ClientAllocsRequest) -> Answer {
        if request.node_id.as_str().is_empty() {
            return refuse("missing node ID");
        }
        if request.secret_id.is_empty() {
            return refuse("missing node secret ID for client status update");
        }
        self.allow(self.is_token(&request.options.auth_token, Some(&request.node_id)))?;
        // From 2.0.5 on, the first check uses the index of all allocations, so that no earlier removal is missed.
        let looked = AtomicBool::new(!self.cluster.settings.tokens);
        let index = |state: &State| {
            let is_first = !looked.swap(true, Ordering::Relaxed);
            let is_known = state.nodes.contains_key(&request.node_id);
            if is_first || !is_known { state.alloc_index } else { state.index_of(&request.node_id) }
        };
        let reply = self.blocking(&request.options, index, |state| {
            let Some(stored) = state.nodes.get(&request.node_id) else {
                // Not an error: an unknown node has no allocations.
                let allocs = Some(BTreeMap::new());
                return Some(ClientAllocsResponse { allocs, ..Default::default() });
            };
            let is_other = stored.node.secret_id != request.secret_id;
            let tokens = state
                .of(&request.node_id)
                .filter_map(|alloc| Some((alloc.id.clone(), state.migrate_tokens.get(&alloc.id)?.clone())));
            let migrate_tokens = tokens.collect();
            let allocs = state.of(&request.node_id).map(|alloc| (alloc.id.clone(), alloc.alloc_modify_index));
            (!is_other).then(|| ClientAllocsResponse {
                allocs: Some(allocs.collect()),
                migrate_tokens,
                ..Default::default()
            })
        });
        let (meta, reply) = reply.await?;
        let Some(reply) = reply else { return refuse("node secret ID does not match") };
        self.bind(peer, &request.node_id);
        answer(&ClientAllocsResponse { meta, ..reply })
    }

    pub(super) async fn node(&self, request: NodeRequest) -> Answer {
        let stored = |state: &State| state.nodes.get(&request.node_id).map(|stored| stored.node.clone());
        let index = |state: &State| stored(state).map_or(state.index, |node| node.modify_index);
        let (meta, mut node) = self.blocking(&request.options, index, stored).await?;
        if let Some(node) = &mut node {
            node.secret_id = Secret::default();
        }
        answer(&NodeResponse { node, meta })
    }

    pub(super) async fn emit_events(&self, request: EmitEventsRequest) -> Answer {
        self.led(&request.options.region).await?;
        if request.node_events.values().any(Vec::is_empty) || request.node_events.is_empty() {
            return refuse("no node events to process");
        }
        let index = self.cluster.write(|state| {
            state.index += 1;
            for (id, events) in request.node_events {
                if let Some(stored) = state.nodes.get_mut(&id) {
                    stored.events.extend(events);
                }
            }
            state.index
        });
        answer(&GenericResponse { index })
    }

    fn update_response(
        &self,
        id: &NodeId,
        heartbeat_ttl: Duration,
        index: u64,
        signs: bool,
    ) -> NodeUpdateResponse {
        let addresses = lock(&self.cluster.addresses).clone();
        let leader = *self.cluster.leader.borrow();
        let (nodes, scheduling_eligibility) = {
            let state = lock(&self.cluster.state);
            let stored = state.nodes.get(id);
            (state.nodes.len(), stored.map(|stored| stored.node.scheduling_eligibility.clone()))
        };
        let signs = signs && self.cluster.settings.signs;
        let signed_identity = signs.then(|| {
            let identity = Secret::from(format!("header.{id}-{index}-{}.signature", nodes));
            lock(&self.cluster.state).signed.insert(id.clone(), identity.clone());
            identity
        });
        NodeUpdateResponse {
            signed_identity,
            heartbeat_ttl,
            scheduling_eligibility: scheduling_eligibility.unwrap_or_default(),
            node_modify_index: index,
            leader_rpc_addr: leader
                .and_then(|leader| addresses.get(leader).or(addresses.first()).cloned())
                .unwrap_or_default(),
            num_nodes: i32::try_from(nodes).unwrap_or(i32::MAX),
            servers: addresses
                .into_iter()
                .map(|rpc_advertise_addr| ServerInfo { rpc_advertise_addr, ..ServerInfo::default() })
                .collect(),
            meta: QueryMeta { index, ..QueryMeta::default() },
            ..NodeUpdateResponse::default()
        }
    }

    /// From now on, the node can be called over this connection.
    fn bind(&self, peer: &Peer, node: &NodeId) {
        if let Some(mux) = &peer.mux {
            lock(&self.cluster.connections).insert(node.clone(), mux.clone());
        }
    }

    pub(super) async fn update_drain(&self, request: DrainRequest) -> Answer {
        self.led(&request.options.region).await?;
        self.allow(self.is_token(&request.options.auth_token, Some(&request.node_id)))?;
        let index = self.cluster.write(|state| {
            state.drain(&request.node_id, request.drain_strategy);
            state.index
        });
        answer(&NodeUpdateResponse { node_modify_index: index, ..NodeUpdateResponse::default() })
    }

    pub(super) async fn update_eligibility(&self, request: EligibilityRequest) -> Answer {
        self.led(&request.region).await?;
        let index = self.cluster.write(|state| {
            state.set_eligible(&request.node_id, request.eligibility == "eligible");
            state.index
        });
        answer(&NodeUpdateResponse { node_modify_index: index, ..NodeUpdateResponse::default() })
    }

    pub(super) async fn deregister(&self, request: DeregisterRequest) -> Answer {
        self.led(&request.region).await?;
        let index = self.cluster.write(|state| {
            state.purge(&request.node_id);
            state.index
        });
        answer(&GenericResponse { index })
    }
}

/// `Node.UpdateEligibility`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct EligibilityRequest {
    #[serde(rename = "NodeID")]
    node_id: NodeId,
    eligibility: String,
    region: String,
}

/// `Node.Deregister`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct DeregisterRequest {
    #[serde(rename = "NodeID")]
    node_id: NodeId,
    region: String,
}
