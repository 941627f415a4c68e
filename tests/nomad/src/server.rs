//! One server: its methods, their permissions, and blocking queries.

mod allocs;
mod catalogue;
mod nodes;
mod others;

use std::{sync::Arc, time::Duration};

use herdlet_nomad::wire::{
    Node, NodeId, QueryMeta, QueryOptions, Secret, queries::ClientAllocsResponse,
    registration::GenericResponse,
};
use herdlet_rpc::{
    Service,
    codec::{self, Limits, Value},
    error::Refusal,
    framed::Framed,
    mux::Io,
    pool::{Chance, jitter},
    serve::{Call, Peer, answer},
};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::{
    faults::Fault,
    inner::{Inner, lock},
    state::State,
};

/// The maximum duration of a blocking query.
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
                answer.map(|answer| self.cluster.settings.fields.apply_to(answer))
            }
        }
    }

    fn limits(&self) -> Limits {
        // A node reports all its allocations in one call.
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
            None => self.answer(peer, call, None).await,
            Some(Fault::Error(text)) => Err(Refusal::Error(text)),
            Some(Fault::Late(text)) => {
                let _ = self.answer(peer, call, None).await;
                Err(Refusal::Error(text))
            }
            Some(Fault::Slow(wait)) => {
                let answer = self.answer(peer, call, None).await;
                sleep(wait).await;
                answer
            }
            Some(Fault::Drop) => {
                let _ = self.answer(peer, call, None).await;
                hang_up(peer).await
            }
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::EmptyList(index)) => {
                let meta = QueryMeta { index, ..QueryMeta::default() };
                let allocs = Some(std::collections::BTreeMap::new());
                answer(&ClientAllocsResponse { allocs, meta, ..ClientAllocsResponse::default() })
            }
            Some(Fault::Raw(bytes)) => Ok(bytes),
            Some(Fault::WrongTypes) => {
                let answer = self.answer(peer, call, None).await?;
                Ok(wrong_types(&answer))
            }
            Some(fault @ Fault::Missing(_)) => self.answer(peer, call, Some(fault)).await,
        }
    }

    async fn answer(&self, peer: &Peer, call: &Call, fault: Option<Fault>) -> Answer {
        if let Some(scripted) = self.scripted_answer(call) {
            return scripted;
        }
        match &call.method[..] {
            "Status.Ping" => answer(&GenericResponse::default()),
            "Status.Leader" => {
                let options: QueryOptions = call.arguments()?;
                self.led(&options.region).await?;
                answer("127.0.0.1:4647")
            }
            "Node.Register" => self.register(peer, call.arguments()?).await,
            "Node.UpdateStatus" => self.update_status(peer, call.arguments()?).await,
            "Node.GetClientAllocs" => self.client_allocs(peer, call.arguments()?).await,
            "Alloc.GetAllocs" => self.allocs(call.arguments()?, fault).await,
            "Alloc.GetAlloc" => self.alloc(call.arguments()?).await,
            "Node.GetNode" => self.node(call.arguments()?).await,
            "Node.UpdateAlloc" => self.update_alloc(call.arguments()?).await,
            "Node.EmitEvents" => self.emit_events(call.arguments()?).await,
            "Node.UpdateDrain" => self.update_drain(call.arguments()?).await,
            "Node.UpdateEligibility" => self.update_eligibility(call.arguments()?).await,
            "Node.Deregister" => self.deregister(call.arguments()?).await,
            "Alloc.SignIdentities" => self.sign(call.arguments()?).await,
            "ServiceRegistration.Upsert" | "ServiceRegistration.DeleteByID" => self.service(call).await,
            "ServiceRegistration.GetService" => self.instances(call).await,
            "ServiceRegistration.List" => self.services(call).await,
            "Variables.Read" => self.variable(call).await,
            "Variables.List" => self.variables(call).await,
            method if method.starts_with("ACL.") => Err(Refusal::Error("ACL support disabled".to_owned())),
            method if ["Node.", "Alloc.", "Status."].iter().any(|service| method.starts_with(service)) => {
                Err(Refusal::UnknownMethod)
            }
            _ => Err(Refusal::UnknownService),
        }
    }

    /// Waits for a leader, as long as servers do.
    async fn led(&self, region: &str) -> Result<(), Refusal> {
        if region.is_empty() {
            return Err(Refusal::Error("missing region for target RPC".to_owned()));
        }
        if region != "global" {
            return Err(Refusal::Error("No path to region".to_owned()));
        }
        let mut leader = self.cluster.leader.subscribe();
        match timeout(self.cluster.settings.hold, leader.wait_for(Option::is_some)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Refusal::Error("No cluster leader".to_owned())),
        }
    }

    /// Waits until the result has a greater index than requested, or until the time is over.
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
            let found = self.read(options.allow_stale, |state| {
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

    fn read<T>(&self, allow_stale: bool, look: impl Fn(&State) -> T) -> T {
        if allow_stale && let Some(frozen) = lock(&self.cluster.frozen).get(&self.number) {
            return look(frozen);
        }
        look(&lock(&self.cluster.state))
    }

    fn ttl(&self) -> Duration {
        jitter(self.cluster.settings.ttl_min, &mut Chance::new())
    }

    /// Whether a token belongs to this node, or to any: its secret, or the identity that it was given.
    fn is_token(&self, token: &Secret, of: Option<&NodeId>) -> bool {
        let state = lock(&self.cluster.state);
        let is_signed = |id: &NodeId| state.signed.get(id) == Some(token);
        let is_of = |id: &NodeId, stored: &Node| stored.secret_id == *token || is_signed(id);
        match of {
            Some(id) => state.nodes.get(id).is_some_and(|stored| is_of(id, &stored.node)),
            None => {
                state.nodes.iter().any(|(id, stored)| is_of(id, &stored.node))
                    || state.signed.values().any(|it| it == token)
            }
        }
    }

    fn is_secret(&self, token: &Secret, of: &NodeId) -> bool {
        lock(&self.cluster.state).nodes.get(of).is_some_and(|stored| stored.node.secret_id == *token)
    }

    fn allow(&self, is_allowed: bool) -> Result<(), Refusal> {
        if is_allowed || !self.cluster.settings.tokens {
            return Ok(());
        }
        Err(Refusal::Error("Permission denied".to_owned()))
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

/// Replaces each field with a list.
fn wrong_types(answer: &[u8]) -> Vec<u8> {
    let Ok(Value::Map(entries)) = codec::decode(answer) else { return vec![0xc3] };
    let as_list = |(key, _)| (key, Value::List(vec![Value::Bool(true)]));
    codec::encode(&Value::Map(entries.into_iter().map(as_list).collect())).unwrap_or_default()
}
