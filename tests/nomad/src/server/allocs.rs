//! Methods for allocations: lists, reports, blocking queries, and identities.

use std::time::SystemTime;

use herdlet_nomad::wire::{
    Allocation, NodeStatus,
    queries::{
        AllocRequest, AllocResponse, AllocUpdateRequest, AllocsRequest, AllocsResponse, SignRequest,
        SignResponse, SignedIdentity,
    },
    registration::GenericResponse,
};
use herdlet_rpc::{
    codec::{Time, Value},
    error::Refusal,
    serve::answer,
};
use tokio::time::{Instant, sleep};

use super::{Answer, Server, refuse};
use crate::{faults::Fault, inner::lock, state::State};

impl Server {
    pub(super) async fn allocs(&self, request: AllocsRequest, fault: Option<Fault>) -> Answer {
        self.allow(self.is_token(&request.options.auth_token, None))?;
        let missing = if let Some(Fault::Missing(ids)) = fault { ids } else { Vec::new() };
        let min = request.options.min_query_index;
        let found = |state: &State| -> Option<Vec<Allocation>> {
            let found = |id| state.allocs.get(id).filter(|alloc| !missing.contains(&alloc.id));
            let allocs: Vec<_> = request.alloc_ids.iter().filter_map(found).collect();
            let is_new = allocs.iter().any(|alloc| alloc.modify_index > min);
            // An incomplete list is not an answer.
            let is_whole = allocs.len() == request.alloc_ids.len() && is_new;
            is_whole.then(|| allocs.into_iter().cloned().collect())
        };
        let newest = |allocs: Vec<Allocation>| allocs.iter().map(|alloc| alloc.modify_index).max();
        let reply = self.blocking(
            &request.options,
            |state| found(state).and_then(newest).unwrap_or(0),
            |state| (state.alloc_index, found(state).unwrap_or_default()),
        );
        let (mut meta, (table, allocs)) = reply.await?;
        if allocs.is_empty() {
            meta.index = table;
        }
        let (unreadable, is_huge) = {
            let state = lock(&self.cluster.state);
            let is_huge =
                allocs.len() > state.most || allocs.iter().any(|alloc| state.huge.contains(&alloc.id));
            (state.unreadable.clone(), is_huge)
        };
        if is_huge {
            // The header of a list too long to be read.
            return Ok(vec![0xdd, 0xff, 0xff, 0xff, 0xff]);
        }
        if allocs.iter().any(|alloc| unreadable.contains(&alloc.id)) {
            // A list in place of an index.
            let text = |text: &str| Value::Text(text.to_owned());
            let alloc = Value::Map(vec![(text("CreateIndex"), Value::List(vec![Value::Bool(true)]))]);
            return answer(&Value::Map(vec![(text("Allocs"), Value::List(vec![alloc]))]));
        }
        answer(&AllocsResponse { allocs, meta })
    }

    pub(super) async fn alloc(&self, request: AllocRequest) -> Answer {
        self.allow(self.is_token(&request.options.auth_token, None))?;
        let found = |state: &State| state.allocs.get(&request.alloc_id).cloned();
        let index = |state: &State| {
            state.allocs.get(&request.alloc_id).map_or(state.alloc_index, |alloc| alloc.modify_index)
        };
        let (meta, alloc) = self.blocking(&request.options, index, found).await?;
        answer(&AllocResponse { alloc, meta })
    }

    pub(super) async fn update_alloc(&self, request: AllocUpdateRequest) -> Answer {
        self.led(&request.options.region).await?;
        let Some(first) = request.alloc.first() else {
            return refuse("must update at least one allocation");
        };
        let id = first.node_id.clone();
        self.allow(self.is_token(&request.options.auth_token, Some(&id)))?;
        let status = lock(&self.cluster.state).nodes.get(&id).map(|stored| stored.node.status.clone());
        match status {
            None => return refuse(&format!("node {id} not found")),
            Some(status @ (NodeStatus::Down | NodeStatus::Disconnected)) => {
                return refuse(&format!(
                    "node {id} is not allowed to update allocs while in status {status}"
                ));
            }
            Some(
                NodeStatus::Unsaid | NodeStatus::Initializing | NodeStatus::Ready | NodeStatus::Other(_),
            ) => {}
        }
        sleep(self.cluster.settings.gather).await;
        let index = self.cluster.write(|state| state.update(&id, request.alloc, Instant::now()));
        answer(&GenericResponse { index })
    }

    pub(super) async fn sign(&self, request: SignRequest) -> Answer {
        if !self.cluster.settings.signs {
            return Err(Refusal::UnknownMethod);
        }
        if request.identities.is_empty() {
            return refuse("no identities requested");
        }
        self.allow(self.is_token(&request.options.auth_token, None))?;
        let known = |state: &State| {
            request.identities.iter().all(|wanted| state.allocs.contains_key(&wanted.alloc_id))
        };
        let index = |state: &State| if known(state) { state.index } else { 0 };
        let (meta, ()) = self.blocking(&request.options, index, |_| ()).await?;
        let ttl = self.cluster.settings.identity_ttl;
        let expiration = if ttl.is_zero() { Time::ZERO } else { Time::from(SystemTime::now() + ttl) };
        // Each call gets another number, so that identities differ.
        let number = self.cluster.write(State::next);
        let sign = |wanted: &herdlet_nomad::wire::queries::IdentityRequest| SignedIdentity {
            alloc_id: wanted.alloc_id.clone(),
            identity_name: wanted.identity_name.clone(),
            workload_identifier: wanted.workload_identifier.clone(),
            workload_type: wanted.workload_type,
            jwt: format!("header.{}-{}-{number}.signature", wanted.alloc_id, wanted.identity_name).into(),
            expiration,
        };
        let signed_identities = request.identities.iter().map(sign).collect();
        answer(&SignResponse { signed_identities, rejections: Vec::new(), meta })
    }
}
