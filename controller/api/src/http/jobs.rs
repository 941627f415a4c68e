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
    target::Changed,
    trigger::Trigger,
};

/// All jobs as they are shown, of every namespace.
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

fn stub(shared: &Shared, view: &Arc<JobView>) -> Value {
    nomad::job_stub(view, &allocs_of(shared, view), &shared.children(view))
}

fn allocs_of(shared: &Shared, view: &JobView) -> Vec<Arc<AllocView>> {
    view.allocs.iter().filter_map(|id| shared.model.alloc(id)).collect()
}

/// A job with what became of it and, of one that was dispatched, its payload.
pub(super) fn shown(view: &JobView) -> Value {
    let mut whole = nomad::whole_job(view);
    whole["Payload"] = payload::shown(&view.job);
    whole
}

pub(super) async fn read(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let key = read.job(id);
    shared.answer(&read, |shared| Ok(shown(&*shared.known_job(&key)?))).await
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

/// Nothing is left to evaluate: a job is planned whenever anything that it depends on changes.
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
    let eval = shared.evaluations.note(&view.key, Trigger::JobRegister, index);
    Ok(Json(registered(&eval, index, view.modify_index, "")))
}

/// What follows a change of a job, in Nomad's words.
pub(super) fn registered(eval: &str, index: u64, modify_index: u64, warnings: &str) -> Value {
    json!({
        "EvalID": eval, "EvalCreateIndex": index, "JobModifyIndex": modify_index, "Warnings": warnings,
        "Index": index, "LastContact": 0, "KnownLeader": true,
    })
}

/// What to evaluate, in Nomad's words.
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

/// `POST /v1/herdlet/job/ID/start`: of a job that was stopped.
pub(super) async fn start(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Json<Value>> {
    let job = read.job(id);
    let changed = shared.job_changed(Command::Start { job: job.clone() }).await?;
    let eval = shared.evaluations.note(&job, Trigger::JobRegister, changed.index);
    Ok(Json(reversioned(&eval, changed, "")))
}

/// What follows a change that may have given a job another version: beyond Nomad, which one that is.
pub(super) fn reversioned(eval: &str, Changed { index, version }: Changed, warnings: &str) -> Value {
    let mut answer = registered(eval, index, index, warnings);
    answer["JobVersion"] = version.into();
    answer
}

/// What becomes of a job that is deregistered.
#[derive(Debug, Deserialize)]
pub(super) struct Deregistration {
    /// It is forgotten, not only stopped.
    #[serde(default, deserialize_with = "flag")]
    purge: bool,
    /// Nothing of it waits for its `shutdown_delay`, nor for the rest of one that runs.
    #[serde(default, deserialize_with = "flag")]
    no_shutdown_delay: bool,
    /// Poststop tasks are ended with their `kill_timeout`, and none begins.
    #[serde(default, deserialize_with = "flag")]
    force: bool,
    /// Only if this is its version still; with `purge`.
    enforce_prior_version: Option<u64>,
}

/// `DELETE /v1/job/ID`.
pub(super) async fn remove(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
    Params(ending): Params<Deregistration>,
) -> ApiResult<Json<Value>> {
    let Deregistration { purge, no_shutdown_delay, force, enforce_prior_version } = ending;
    let job = read.job(id);
    let (mut index, version) = match (purge, enforce_prior_version) {
        (true, None) => (shared.accepted(Command::Delete { job: job.clone() }).await?, None),
        (true, Some(version)) => {
            (shared.accepted(Command::DeleteVersion { job: job.clone(), version }).await?, None)
        }
        (false, None) => {
            let Changed { index, version } = shared.job_changed(Command::Stop { job: job.clone() }).await?;
            (index, Some(version))
        }
        (false, Some(_)) => return Err(ApiError::bad("enforce_prior_version stands only with purge=true")),
    };
    if no_shutdown_delay {
        let of = Ending::Job(job.clone());
        index = shared.accepted(Command::SkipShutdownDelay { of }).await?;
    }
    if force {
        let of = Ending::Job(job.clone());
        index = shared.accepted(Command::EndPoststop { of }).await?;
    }
    let eval = shared.evaluations.note(&job, Trigger::JobDeregister, index);
    Ok(Json(json!({
        "EvalID": eval, "EvalCreateIndex": index, "JobModifyIndex": index, "VolumeEvalID": "", "VolumeEvalIndex": 0,
        "JobVersion": version, "Index": index, "LastContact": 0, "KnownLeader": true,
    })))
}
