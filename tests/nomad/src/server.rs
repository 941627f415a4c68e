//! One server: its methods, whom they are for, and how long a question waits.

use std::{sync::Arc, time::Duration};

use herdlet_nomad::wire::{
    Allocation, NodeId, NodeStatus, QueryMeta, QueryOptions, Secret,
    queries::{
        AllocRequest, AllocResponse, AllocUpdateRequest, AllocsRequest, AllocsResponse, ClientAllocsRequest,
        ClientAllocsResponse, NodeRequest, NodeResponse,
    },
    registration::{
        EmitEventsRequest, GenericResponse, NodeRegisterRequest, NodeUpdateResponse, NodeUpdateStatusRequest,
        ServerInfo,
    },
};
use herdlet_rpc::{
    Service,
    codec::{Limits, Value},
    error::Refusal,
    framed::Framed,
    mux::Io,
    pool::{Chance, jitter},
    serve::{Call, Peer, answer},
};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::{
    cluster::{Inner, lock},
    faults::Fault,
    state::{State, deadline},
};

/// For how long a question waits at most.
const BLOCK_MAX: Duration = Duration::from_secs(300);

/// A server of a cluster.
#[derive(Debug)]
pub struct Server {
    pub(crate) number: usize,
    pub(crate) cluster: Arc<Inner>,
}

type Answer = Result<Vec<u8>, Refusal>;

impl Service for Server {
    async fn call(&self, peer: &Peer, call: Call) -> Answer {
        let fault = self.cluster.see(self.number, &call.method);
        let mut down = self.cluster.down.subscribe();
        tokio::select! {
            biased;
            () = async { drop(down.wait_for(|down| down[self.number]).await) } => hang_up(peer).await,
            answer = self.with_fault(peer, &call, fault) => {
                let mut hung = self.cluster.hung.subscribe();
                let _ = hung.wait_for(|hung| !hung[self.number]).await;
                answer
            }
        }
    }

    fn limits(&self) -> Limits {
        // Nodes report on all their allocations at a time.
        Limits::BODY
    }

    fn streams(&self, _: &str) -> bool {
        false
    }

    async fn stream(&self, _: &Peer, _: String, _: &mut Framed<Box<dyn Io>>) {}
}

impl Server {
    async fn with_fault(&self, peer: &Peer, call: &Call, fault: Option<Fault>) -> Answer {
        match fault {
            None => self.answer(call, None).await,
            Some(Fault::Error(text)) => Err(Refusal::Error(text)),
            Some(Fault::Late(text)) => {
                let _ = self.answer(call, None).await;
                Err(Refusal::Error(text))
            }
            Some(Fault::Slow(wait)) => {
                let answer = self.answer(call, None).await;
                sleep(wait).await;
                answer
            }
            Some(Fault::Drop) => {
                let _ = self.answer(call, None).await;
                hang_up(peer).await
            }
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::EmptyList(index)) => {
                let meta = QueryMeta { index, ..QueryMeta::default() };
                let allocs = Some(std::collections::BTreeMap::new());
                answer(&ClientAllocsResponse { allocs, meta, ..ClientAllocsResponse::default() })
            }
            Some(fault @ Fault::Missing(_)) => self.answer(call, Some(fault)).await,
        }
    }

    async fn answer(&self, call: &Call, fault: Option<Fault>) -> Answer {
        match &call.method[..] {
            "Status.Ping" => answer(&GenericResponse::default()),
            "Node.Register" => self.register(call.arguments()?).await,
            "Node.UpdateStatus" => self.update_status(call.arguments()?).await,
            "Node.GetClientAllocs" => self.client_allocs(call.arguments()?).await,
            "Alloc.GetAllocs" => self.allocs(call.arguments()?, fault).await,
            "Alloc.GetAlloc" => self.alloc(call.arguments()?).await,
            "Node.GetNode" => self.node(call.arguments()?).await,
            "Node.UpdateAlloc" => self.update_alloc(call.arguments()?).await,
            "Node.EmitEvents" => self.emit_events(call.arguments()?).await,
            method if ["Node.", "Alloc.", "Status."].iter().any(|service| method.starts_with(service)) => {
                Err(Refusal::UnknownMethod)
            }
            _ => Err(Refusal::UnknownService),
        }
    }

    async fn register(&self, request: NodeRegisterRequest) -> Answer {
        self.led(&request.options.region).await?;
        let token = &request.options.auth_token;
        let is_known = token.is_empty() || self.is_secret(token, None);
        self.allow(is_known)?;
        let (id, ttl) = (request.node.id.clone(), self.ttl());
        let until = deadline(Instant::now(), ttl, self.cluster.settings.grace);
        let index =
            self.cluster.write(|state| state.register(request.node, until)).map_err(Refusal::Error)?;
        answer(&self.update_response(&id, ttl, index))
    }

    async fn update_status(&self, request: NodeUpdateStatusRequest) -> Answer {
        self.led(&request.options.region).await?;
        self.allow(self.is_secret(&request.options.auth_token, Some(&request.node_id)))?;
        if request.status != NodeStatus::Ready {
            return refuse("invalid status for node");
        }
        let ttl = self.ttl();
        let until = deadline(Instant::now(), ttl, self.cluster.settings.grace);
        let index =
            self.cluster.write(|state| state.heartbeat(&request.node_id, until)).map_err(Refusal::Error)?;
        answer(&self.update_response(&request.node_id, ttl, index))
    }

    async fn client_allocs(&self, request: ClientAllocsRequest) -> Answer {
        if request.node_id.as_str().is_empty() {
            return refuse("missing node ID");
        }
        if request.secret_id.is_empty() {
            return refuse("missing node secret ID for client status update");
        }
        self.allow(self.is_secret(&request.options.auth_token, Some(&request.node_id)))?;
        let index = |state: &State| match state.nodes.get(&request.node_id) {
            Some(_) => state.index_of(&request.node_id),
            None => state.alloc_index,
        };
        let reply = self.blocking(&request.options, index, |state| {
            let Some(stored) = state.nodes.get(&request.node_id) else {
                // No error: a node that isn't known has no allocations.
                let allocs = Some(std::collections::BTreeMap::new());
                return Some(ClientAllocsResponse { allocs, ..Default::default() });
            };
            let is_other = stored.node.secret_id != request.secret_id;
            let allocs = state.of(&request.node_id).map(|alloc| (alloc.id.clone(), alloc.alloc_modify_index));
            (!is_other).then(|| ClientAllocsResponse { allocs: Some(allocs.collect()), ..Default::default() })
        });
        let (meta, reply) = reply.await?;
        let Some(reply) = reply else { return refuse("node secret ID does not match") };
        answer(&ClientAllocsResponse { meta, ..reply })
    }

    async fn allocs(&self, request: AllocsRequest, fault: Option<Fault>) -> Answer {
        self.allow(self.is_secret(&request.options.auth_token, None))?;
        let missing = if let Some(Fault::Missing(ids)) = fault { ids } else { Vec::new() };
        let min = request.options.min_query_index;
        let found = |state: &State| -> Option<Vec<Allocation>> {
            let found = |id| state.allocs.get(id).filter(|alloc| !missing.contains(&alloc.id));
            let allocs: Vec<_> = request.alloc_ids.iter().filter_map(found).collect();
            let is_new = allocs.iter().any(|alloc| alloc.modify_index > min);
            // Only all of them are an answer.
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
            // A list of so many that nobody reads on.
            return Ok(vec![0xdd, 0xff, 0xff, 0xff, 0xff]);
        }
        if allocs.iter().any(|alloc| unreadable.contains(&alloc.id)) {
            // A list where there should be an index.
            let text = |text: &str| Value::Text(text.to_owned());
            let alloc = Value::Map(vec![(text("CreateIndex"), Value::List(vec![Value::Bool(true)]))]);
            return answer(&Value::Map(vec![(text("Allocs"), Value::List(vec![alloc]))]));
        }
        answer(&AllocsResponse { allocs, meta })
    }

    async fn alloc(&self, request: AllocRequest) -> Answer {
        let found = |state: &State| state.allocs.get(&request.alloc_id).cloned();
        let index = |state: &State| {
            state.allocs.get(&request.alloc_id).map_or(state.alloc_index, |alloc| alloc.modify_index)
        };
        let (meta, alloc) = self.blocking(&request.options, index, found).await?;
        answer(&AllocResponse { alloc, meta })
    }

    async fn node(&self, request: NodeRequest) -> Answer {
        let stored = |state: &State| state.nodes.get(&request.node_id).map(|stored| stored.node.clone());
        let index = |state: &State| stored(state).map_or(state.index, |node| node.modify_index);
        let (meta, mut node) = self.blocking(&request.options, index, stored).await?;
        if let Some(node) = &mut node {
            node.secret_id = Secret::default();
        }
        answer(&NodeResponse { node, meta })
    }

    async fn update_alloc(&self, request: AllocUpdateRequest) -> Answer {
        self.led(&request.options.region).await?;
        let Some(first) = request.alloc.first() else {
            return refuse("must update at least one allocation");
        };
        let id = first.node_id.clone();
        self.allow(self.is_secret(&request.options.auth_token, Some(&id)))?;
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
        let index = self.cluster.write(|state| state.update(&id, request.alloc));
        answer(&GenericResponse { index })
    }

    async fn emit_events(&self, request: EmitEventsRequest) -> Answer {
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

    /// Waits for a leader, as long as servers do.
    async fn led(&self, region: &str) -> Result<(), Refusal> {
        if region.is_empty() {
            return Err(Refusal::Error("missing region for target RPC".to_owned()));
        }
        let mut leader = self.cluster.leader.subscribe();
        match timeout(self.cluster.settings.hold, leader.wait_for(Option::is_some)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Refusal::Error("No cluster leader".to_owned())),
        }
    }

    /// Looks until what is found has a greater index than was asked for, or the time is over.
    async fn blocking<T>(
        &self,
        options: &QueryOptions,
        index_of: impl Fn(&State) -> u64,
        find: impl Fn(&State) -> T,
    ) -> Result<(QueryMeta, T), Refusal> {
        if !options.allow_stale {
            self.led(&options.region).await?;
        }
        let asked = options.max_query_time;
        let block = if asked.is_zero() { BLOCK_MAX } else { asked.min(BLOCK_MAX) };
        let until = Instant::now() + block + Chance::new().below(block / 16);
        let mut index = self.cluster.index.subscribe();
        loop {
            index.borrow_and_update();
            let is_over = Instant::now() >= until || options.min_query_index == 0;
            let found = self.look(options.allow_stale, |state| {
                let index = index_of(state);
                (is_over || index > options.min_query_index).then(|| (index, find(state)))
            });
            if let Some((index, found)) = found {
                let known_leader = self.cluster.leader.borrow().is_some();
                return Ok((QueryMeta { index, known_leader, ..QueryMeta::default() }, found));
            }
            tokio::select! {
                () = sleep_until(until) => {}
                _ = index.changed() => {}
            }
        }
    }

    fn look<T>(&self, allow_stale: bool, look: impl Fn(&State) -> T) -> T {
        if allow_stale && let Some(frozen) = lock(&self.cluster.frozen).get(&self.number) {
            return look(frozen);
        }
        look(&lock(&self.cluster.state))
    }

    fn ttl(&self) -> Duration {
        jitter(self.cluster.settings.ttl_min, &mut Chance::new())
    }

    fn is_secret(&self, token: &Secret, of: Option<&NodeId>) -> bool {
        let state = lock(&self.cluster.state);
        match of {
            Some(id) => state.nodes.get(id).is_some_and(|stored| stored.node.secret_id == *token),
            None => state.nodes.values().any(|stored| stored.node.secret_id == *token),
        }
    }

    fn allow(&self, is_allowed: bool) -> Result<(), Refusal> {
        if is_allowed || !self.cluster.settings.tokens {
            return Ok(());
        }
        Err(Refusal::Error("Permission denied".to_owned()))
    }

    fn update_response(&self, id: &NodeId, heartbeat_ttl: Duration, index: u64) -> NodeUpdateResponse {
        let addresses = lock(&self.cluster.addresses).clone();
        let leader = *self.cluster.leader.borrow();
        let (nodes, scheduling_eligibility) = {
            let state = lock(&self.cluster.state);
            let stored = state.nodes.get(id);
            (state.nodes.len(), stored.map(|stored| stored.node.scheduling_eligibility.clone()))
        };
        NodeUpdateResponse {
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
}

fn refuse(text: &str) -> Answer {
    Err(Refusal::Error(text.to_owned()))
}

async fn hang_up(peer: &Peer) -> Answer {
    if let Some(mux) = &peer.mux {
        mux.close();
    }
    std::future::pending().await
}
