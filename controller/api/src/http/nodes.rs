//! This machine as the only node: `/v1/nodes`, `/v1/node/ID`, and the stand-ins for cluster
//! members.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use axum::{
    Json,
    extract::{Path, State},
    response::Response,
};
use herdlet_api_types::{
    api::VERSION,
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
    list::Listed,
    query::{Params, Read, flag},
};

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

fn check(shared: &Shared, id: &str) -> ApiResult<()> {
    let known = id == shared.facts.node.id;
    known.then_some(()).ok_or_else(|| ApiError::NotFound("node not found".to_owned()))
}

/// The present state of this machine.
pub(super) fn machine(shared: &Shared) -> Machine {
    let facts = &shared.facts;
    let node = &facts.node;
    let vitals = (shared.vitals)();
    let entries = shared.drivers.entries();
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
        eligibility: vitals.seen.map_or("eligible", |seen| seen.eligibility),
        wrong: vitals.not_ready.or(vitals.degraded),
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

fn capacity(shared: &Shared) -> Option<Capacity> {
    let (total, reserved) = shared.facts.room;
    Some(Capacity {
        cores: u64::try_from(std::thread::available_parallelism().ok()?.get()).ok()?,
        cpu_mhz: total.cpu_mhz,
        memory_mib: total.memory_mib,
        disk_mib: total.disk_mib,
        reserved: [reserved.cpu_mhz, reserved.memory_mib, reserved.disk_mib],
    })
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
