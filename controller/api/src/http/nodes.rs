//! This machine as the only node: `/v1/nodes`, `/v1/node/ID`, and the stand-ins for cluster
//! members.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use axum::{
    Json,
    extract::{Path, State},
    response::Response,
};
use herdlet_api_types::{
    api::VERSION,
    manifest::defaults::NODE_POOL,
    nomad::{self, Capacity, Inclusion, Machine},
    view::AllocView,
};
use herdlet_driver::Entries;
use herdlet_plan::env::NodeFacts;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Shared, allocs,
    error::{ApiError, ApiResult},
    jobs,
    list::Listed,
    query::{Params, Read, flag},
    trigger::Trigger,
};
use crate::alloc_ops;

impl Listed for Machine {
    fn namespace(&self) -> Option<&str> {
        None
    }

    fn id(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.id)
    }

    fn create_index(&self) -> u64 {
        1
    }
}

/// Optional fields of the nodes in a list.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Extra {
    #[serde(deserialize_with = "flag")]
    os: bool,
    #[serde(deserialize_with = "flag")]
    resources: bool,
}

pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
    Params(extra): Params<Extra>,
) -> ApiResult<Response> {
    let wanted = |asked| if asked { Inclusion::Yes } else { Inclusion::No };
    let show =
        |_: &Shared, machine: &Machine| nomad::node_stub(machine, wanted(extra.os), wanted(extra.resources));
    shared.list(&read, |shared| Ok(vec![machine(shared)]), show).await
}

pub(super) async fn read(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let node = |shared: &Shared| {
        check(shared, &id)?;
        Ok(nomad::node(&machine(shared)))
    };
    shared.answer(&read, node).await
}

/// All allocations are on this node.
pub(super) async fn allocations(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(mut read): Params<Read>,
) -> ApiResult<Response> {
    read.namespace.get_or_insert_with(|| "*".to_owned());
    let allocs = |shared: &Shared| {
        check(shared, &id)?;
        Ok(shared.model.allocs())
    };
    let whole = |shared: &Shared, view: &Arc<AllocView>| json!(allocs::whole(shared, view));
    shared.list(&read, allocs, whole).await
}

/// Evaluates all jobs. This needs no work: a job is planned whenever something that it depends on changes.
pub(super) async fn evaluate(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
) -> ApiResult<Json<Value>> {
    check(&shared, &id)?;
    let index = shared.model.index();
    let noted = shared
        .model
        .jobs()
        .into_iter()
        .map(|view| shared.evaluations.note(&view.key, Trigger::NodeUpdate, (index, Some(view.version))));
    Ok(Json(json!({
        "EvalIDs": noted.collect::<Vec<_>>(), "EvalCreateIndex": index, "NodeModifyIndex": 1, "Index": index,
    })))
}

pub(super) fn check(shared: &Shared, id: &str) -> ApiResult<()> {
    let known = id == shared.facts.node.id;
    known.then_some(()).ok_or_else(|| ApiError::NotFound("node not found".to_owned()))
}

/// The node pools: those of every cluster, and the node's own.
pub(super) fn pools(shared: &Shared) -> Vec<String> {
    let own = Some(shared.facts.node.pool.clone()).filter(|pool| !pool.is_empty());
    let pools: BTreeSet<String> =
        [nomad::ALL_POOLS.to_owned(), NODE_POOL.to_owned()].into_iter().chain(own).collect();
    pools.into_iter().collect()
}

struct Pool(String);

impl Listed for Pool {
    fn namespace(&self) -> Option<&str> {
        None
    }

    fn id(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.0)
    }

    fn create_index(&self) -> u64 {
        1
    }
}

pub(super) async fn list_pools(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let read_all = |shared: &Shared| Ok(pools(shared).into_iter().map(Pool).collect());
    shared.list(&read, read_all, |_, Pool(name)| nomad::node_pool(name)).await
}

pub(super) async fn read_pool(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let one = |shared: &Shared| known_pool(shared, &name).map(|()| nomad::node_pool(&name));
    shared.answer(&read, one).await
}

/// The nodes of a pool: this one, or none.
pub(super) async fn nodes_of_pool(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let nodes = |shared: &Shared| {
        known_pool(shared, &name)?;
        let own = if shared.facts.node.pool.is_empty() { NODE_POOL } else { &shared.facts.node.pool };
        let is_in = name == nomad::ALL_POOLS || name == own;
        Ok(is_in.then(|| machine(shared)).into_iter().collect())
    };
    let show = |_: &Shared, machine: &Machine| nomad::node_stub(machine, Inclusion::No, Inclusion::No);
    shared.list(&read, nodes, show).await
}

pub(super) async fn jobs_of_pool(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let jobs = |shared: &Shared| {
        known_pool(shared, &name)?;
        let mut all = shared.model.jobs();
        all.retain(|view| view.job.node_pool == name);
        Ok(all)
    };
    shared.list(&read, jobs, jobs::stub).await
}

fn known_pool(shared: &Shared, name: &str) -> ApiResult<()> {
    let is_known = pools(shared).iter().any(|known| known == name);
    is_known.then_some(()).ok_or_else(|| ApiError::NotFound("node pool not found".to_owned()))
}

/// The present state of this machine.
pub(super) fn machine(shared: &Shared) -> Machine {
    let facts = &shared.facts;
    let node = &facts.node;
    let vitals = (shared.vitals)();
    let entries = shared.drivers.entries();
    let scheduling = shared.model.node();
    let own = if scheduling.eligible { "eligible" } else { "ineligible" };
    let offered = entries.iter().filter(|(_, entry)| entry.is_ready());
    Machine {
        id: node.id.clone(),
        name: node.name.clone(),
        datacenter: node.datacenter.clone(),
        class: node.class.clone(),
        pool: node.pool.clone(),
        version: VERSION.to_owned(),
        attributes: attributes(node, &entries),
        meta: node.meta.clone(),
        drivers: offered.map(|(name, _)| name.to_owned()).collect(),
        volumes: shared.model.volumes(),
        status: vitals.seen.map_or("ready", |seen| seen.status),
        eligibility: vitals.seen.map_or(own, |seen| seen.eligibility),
        scheduling,
        problem: vitals.not_ready.or(vitals.degraded),
        started_at: facts.started_at,
        dynamic_ports: facts.dynamic_ports,
        reserved_ports: facts.reserved_ports.clone(),
        capacity: capacity(shared),
    }
}

/// What the node was described with at start, and what its drivers add to that now.
fn attributes(node: &NodeFacts, drivers: &Entries) -> BTreeMap<String, String> {
    let of_drivers = |name: &str| drivers.iter().any(|(_, entry)| entry.info.attributes.contains_key(name));
    let others = node.attributes.iter().filter(|(name, _)| !of_drivers(name));
    let others = others.map(|(name, value)| (name.clone(), value.clone()));
    others.chain(drivers.attributes()).collect()
}

fn capacity(shared: &Shared) -> Capacity {
    let (total, reserved) = shared.facts.room;
    Capacity {
        cores: *alloc_ops::CORES,
        cpu_mhz: total.cpu_mhz,
        memory_mib: total.memory_mib,
        disk_mib: total.disk_mib,
        reserved: [reserved.cpu_mhz, reserved.memory_mib, reserved.disk_mib],
    }
}

/// `GET /v1/agent/members`: this agent is the only member.
pub(super) async fn members(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let node = &shared.facts.node;
    let member = json!({
        "Name": node.name, "Addr": "127.0.0.1", "Port": 4648, "Status": "alive",
        "Tags": { "dc": node.datacenter, "region": node.region, "role": "herdlet", "build": VERSION },
        "ProtocolMin": 1, "ProtocolMax": 5, "ProtocolCur": 2, "DelegateMin": 2, "DelegateMax": 5, "DelegateCur": 4,
    });
    Json(json!({
        "ServerName": node.name, "ServerRegion": node.region, "ServerDC": node.datacenter, "Members": [member],
    }))
}

pub(super) async fn regions(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(json!([shared.facts.node.region]))
}

/// The address that a Nomad server would have.
const PEER: &str = "127.0.0.1:4647";

/// `GET /v1/status/leader`: this agent is always the leader.
pub(super) async fn leader() -> Json<&'static str> {
    Json(PEER)
}

pub(super) async fn peers() -> Json<[&'static str; 1]> {
    Json([PEER])
}
