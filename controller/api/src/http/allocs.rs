//! Allocations: ours under `/v1/herdlet/…`, and Nomad's paths.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json,
    extract::{Path, State},
    response::Response,
};
use herdlet_api_types::{
    nomad,
    view::{AllocView, Explanation},
};
use herdlet_plan::{
    event::{Command, Ending, Reply},
    job::feasibility,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Shared, body,
    error::{ApiError, ApiResult, unexpected},
    query::{Params, Read, Source, flag},
    target::Skips,
    trigger::Trigger,
};
use crate::alloc_ops::lifecycle;

impl Shared {
    pub(super) fn node(&self) -> nomad::Node {
        nomad::Node { id: self.facts.node.id.clone(), name: self.facts.node.name.clone() }
    }
}

/// All allocations of every namespace, in our own form.
pub(super) async fn views(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    shared.filtered(Source::Model, &read, |shared| Ok(shared.model.allocs())).await
}

pub(super) async fn explain(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
) -> ApiResult<Json<Explanation>> {
    let alloc = shared.alloc(&id)?.spec.id;
    let reply = shared.request(Command::Explain { alloc }).await?;
    let Reply::Explanation(explanation) = reply else { return Err(unexpected(reply)) };
    Ok(Json(*explanation))
}

/// Optional fields of the allocations in a list.
#[derive(Debug, Deserialize)]
pub(super) struct Extent {
    #[serde(default, deserialize_with = "flag")]
    resources: bool,
    #[serde(default = "shown", deserialize_with = "flag")]
    task_states: bool,
}

fn shown() -> bool {
    true
}

pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
    Params(extent): Params<Extent>,
) -> ApiResult<Response> {
    let show = |shared: &Shared, view: &Arc<AllocView>| {
        let mut shown = stub(shared, view);
        if extent.resources {
            shown["AllocatedResources"] = json!(nomad::allocation(view, &shared.node()).allocated_resources);
        }
        if !extent.task_states {
            shown["TaskStates"] = Value::Null;
        }
        shown
    };
    shared.list(&read, |shared| Ok(shared.model.allocs()), show).await
}

pub(super) fn stub(shared: &Shared, view: &Arc<AllocView>) -> Value {
    let mut shown = nomad::allocation_stub(view, &shared.node());
    shown["EvalID"] = shared.eval_id_of(view).into();
    shown
}

pub(super) async fn read(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    shared.answer(&read, |shared| Ok(whole(shared, &*shared.known_alloc(&id)?))).await
}

pub(super) fn whole(shared: &Shared, view: &AllocView) -> nomad::Allocation {
    let node = &shared.facts.node;
    let mut shown = nomad::allocation(view, &shared.node());
    shown.eval_id = shared.eval_id_of(view);
    let score = view.spec.group().and_then(|group| feasibility::affinity_score(&view.spec.job, group, node));
    if let Some(score) = score {
        shown.metrics.set_affinity_score(&node.id, score);
    }
    shown
}

/// Parameters of a stop, as Nomad names them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Stop {
    #[serde(deserialize_with = "flag")]
    no_shutdown_delay: bool,
    /// Ours: poststop tasks are ended with their `kill_timeout`, and none begins.
    #[serde(deserialize_with = "flag")]
    force: bool,
    #[serde(deserialize_with = "flag")]
    reschedule: bool,
}

/// Stops an allocation; its job creates a replacement.
pub(super) async fn stop(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(stop): Params<Stop>,
) -> ApiResult<Json<Value>> {
    if stop.reschedule {
        return Err(ApiError::NotBuilt("reschedule is not built".to_owned()));
    }
    let alloc = shared.known_alloc(&id)?;
    let id = alloc.spec.id;
    let skips = Skips { no_shutdown_delay: stop.no_shutdown_delay, force: stop.force };
    let index = shared.accepted(skips.with(Command::StopAlloc { alloc: id }, Ending::Alloc(id))).await?;
    let eval = shared.evaluations.note(
        &alloc.spec.job_key,
        Trigger::AllocStop,
        (index, Some(alloc.spec.job_version)),
    );
    Ok(Json(json!({ "EvalID": eval, "Index": index })))
}

/// Parameters of a restart, as Nomad names them.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Restart {
    task_name: String,
    all_tasks: bool,
}

pub(super) async fn restart(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    body::Json(restart): body::Json<Restart>,
) -> ApiResult<Json<Value>> {
    let reach = shared.reach();
    let index = reach.restart(&*reach.alloc(&id)?, &restart.task_name, restart.all_tasks).await?;
    Ok(Json(json!({ "Index": index })))
}

/// Parameters of a signal, as Nomad names them.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Signal {
    task: String,
    signal: String,
}

pub(super) async fn signal(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    body::Json(signal): body::Json<Signal>,
) -> ApiResult<Json<Value>> {
    let reach = shared.reach();
    let index = reach.signal(&*reach.alloc(&id)?, &signal.task, &signal.signal).await?;
    Ok(Json(json!({ "Index": index })))
}

/// Latest results of the checks in the built-in catalogue, by check id.
pub(super) async fn checks(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
) -> ApiResult<Json<BTreeMap<String, Value>>> {
    Ok(Json(lifecycle::checks(&*shared.alloc(&id)?)))
}
