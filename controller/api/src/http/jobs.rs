//! Jobs: ours under `/v1/herdlet/jobs`, Nomad's form under `/v1/jobs` and `/v1/job/ID`.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    response::Response,
};
use herdlet_agent::overview::placed;
use herdlet_api_types::{
    nomad,
    view::{AllocView, JobView},
};
use herdlet_plan::event::{Command, Ending};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Shared, allocs, body,
    error::{ApiError, ApiResult},
    payload,
    query::{Params, Read, Source, flag},
    target::{JobChange, Skips},
    trigger::Trigger,
};

/// All jobs of every namespace, in our own form.
pub(super) async fn views(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    shared.filtered(Source::Model, &read, |shared| Ok(placed::all_jobs(&shared.model))).await
}

pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    shared.list(&read, |shared| Ok(placed::all_jobs(&shared.model)), stub).await
}

pub(super) fn stub(shared: &Shared, view: &Arc<JobView>) -> Value {
    nomad::job_stub(view, &allocs_of(shared, view), &shared.children(view))
}

fn allocs_of(shared: &Shared, view: &JobView) -> Vec<Arc<AllocView>> {
    view.allocs.iter().filter_map(|id| shared.model.alloc(id)).collect()
}

/// A job with its status and, if it was dispatched, its payload.
pub(super) fn to_json(view: &JobView) -> Value {
    let mut whole = nomad::whole_job(view);
    whole["Payload"] = payload::to_json(&view.job);
    whole
}

pub(super) async fn read(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let key = read.job(id);
    shared.answer(&read, |shared| Ok(to_json(&*shared.known_job(&key)?))).await
}

pub(super) async fn allocations(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let key = read.job(id);
    shared.list(&read, |shared| Ok(shared.model.allocs_of(&key)), allocs::stub).await
}

pub(super) async fn summary(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let key = read.job(id);
    let summary = |shared: &Shared| {
        let view = shared.known_job(&key)?;
        Ok(nomad::job_summary(&view, &allocs_of(shared, &view), &shared.children(&view)))
    };
    shared.answer(&read, summary).await
}

/// Needs no work: a job is planned whenever something that it depends on changes.
pub(super) async fn evaluate(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
    body::Json(Evaluate { eval_options }): body::Json<Evaluate>,
) -> ApiResult<Json<Value>> {
    if eval_options.force_reschedule {
        return Err(ApiError::NotBuilt(
            "ForceReschedule is not built; restart the allocation, or stop it".to_owned(),
        ));
    }
    let view = shared.known_job(&read.job(id))?;
    let index = shared.model.index();
    let eval = shared.evaluations.note(&view.key, Trigger::JobRegister, (index, Some(view.version)));
    Ok(Json(registered(&eval, index, view.modify_index, "")))
}

/// The response to a change of a job, in Nomad's form.
pub(super) fn registered(eval: &str, index: u64, modify_index: u64, warnings: &str) -> Value {
    json!({
        "EvalID": eval, "EvalCreateIndex": index, "JobModifyIndex": modify_index, "Warnings": warnings,
        "Index": index, "LastContact": 0, "KnownLeader": true,
    })
}

/// The body of an evaluation, as Nomad names its fields.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Evaluate {
    eval_options: EvalOptions,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct EvalOptions {
    force_reschedule: bool,
}

/// `POST /v1/herdlet/job/ID/start`: starts a stopped job.
pub(super) async fn start(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Json<Value>> {
    let job = read.job(id);
    let changed = shared.job_changed(Command::Start { job: job.clone() }).await?;
    let eval = shared.evaluations.note(&job, Trigger::JobRegister, changed.at());
    Ok(Json(reversioned(&eval, changed, "")))
}

/// The response to a change that may have created a version. Adds its number to Nomad's fields.
pub(super) fn reversioned(eval: &str, JobChange { index, version }: JobChange, warnings: &str) -> Value {
    let mut answer = registered(eval, index, index, warnings);
    answer["JobVersion"] = version.into();
    answer
}

/// Parameters of a deregistration.
#[derive(Debug, Deserialize)]
pub(super) struct Deregistration {
    /// Delete the job instead of only stopping it.
    #[serde(default, deserialize_with = "flag")]
    purge: bool,
    /// Don't wait for any `shutdown_delay`, including those that have begun.
    #[serde(default, deserialize_with = "flag")]
    no_shutdown_delay: bool,
    /// End poststop tasks with their `kill_timeout`, and start none.
    #[serde(default, deserialize_with = "flag")]
    force: bool,
    /// Delete only if this is still the job's version. Valid only with `purge`.
    enforce_prior_version: Option<u64>,
}

pub(super) async fn remove(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
    Params(ending): Params<Deregistration>,
) -> ApiResult<Json<Value>> {
    let Deregistration { purge, no_shutdown_delay, force, enforce_prior_version } = ending;
    let job = read.job(id);
    let skips = Skips { no_shutdown_delay, force };
    let target = Ending::Job(job.clone());
    let (index, version) = match (purge, enforce_prior_version) {
        (true, None) => {
            (shared.accepted(skips.with(Command::Delete { job: job.clone() }, target)).await?, None)
        }
        (true, Some(version)) => {
            let delete = Command::DeleteVersion { job: job.clone(), version };
            (shared.accepted(skips.with(delete, target)).await?, None)
        }
        (false, None) => {
            let stop = Command::Stop { job: job.clone() };
            shared.job_changed(skips.with(stop, target)).await?.at()
        }
        (false, Some(_)) => return Err(ApiError::bad("enforce_prior_version requires purge=true")),
    };
    let eval = shared.evaluations.note(&job, Trigger::JobDeregister, (index, version));
    Ok(Json(json!({
        "EvalID": eval, "EvalCreateIndex": index, "JobModifyIndex": index, "VolumeEvalID": "", "VolumeEvalIndex": 0,
        "JobVersion": version, "Index": index, "LastContact": 0, "KnownLeader": true,
    })))
}
