//! Versions of a job: ours under `/v1/herdlet/job/ID/versions`, Nomad's under `/v1/job/ID/versions`, and reverting to a
//! version.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    response::Response,
};
use herdlet_api_types::{
    nomad,
    view::{JobVersion, JobView},
};
use herdlet_plan::event::Command;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Shared, body,
    error::ApiResult,
    filter::Filter,
    jobs::reversioned,
    list::fitting,
    payload,
    query::{Params, Read, Source},
    trigger::Trigger,
};

/// All stored versions, newest first.
pub(super) async fn views(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let key = read.job(id);
    shared.filtered(Source::Model, &read, |shared| Ok(newest_first(&*shared.known_job(&key)?))).await
}

pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let key = read.job(id);
    let filter = Filter::parse(&read.filter)?;
    let versions = |shared: &Shared| {
        let view = shared.known_job(&key)?;
        let shown = |version: &JobVersion| {
            let mut whole = nomad::job_version(&view, version);
            whole["Payload"] = payload::to_json(&version.job);
            whole
        };
        let versions: Vec<Value> = newest_first(&view).iter().map(shown).collect();
        Ok(json!({ "Versions": fitting(versions, &filter)?, "Diffs": null }))
    };
    shared.answer(&read, versions).await
}

/// The body of a revert.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Revert {
    job_version: u64,
    /// Revert only if this is the current version.
    #[serde(default)]
    enforce_prior_version: Option<u64>,
}

/// Makes the job of an old version the newest version.
pub(super) async fn revert(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
    body::Json(revert): body::Json<Revert>,
) -> ApiResult<Json<Value>> {
    let Revert { job_version: to, enforce_prior_version: prior } = revert;
    let job = read.job(id);
    let changed = shared.job_changed(Command::Revert { job: job.clone(), to, prior }).await?;
    let eval = shared.evaluations.note(&job, Trigger::JobRegister, changed.index);
    Ok(Json(reversioned(&eval, changed, "")))
}

fn newest_first(view: &JobView) -> Vec<JobVersion> {
    let current = JobVersion {
        version: view.version,
        index: view.modify_index,
        submit_time: view.submit_time,
        job: Arc::clone(&view.job),
    };
    let past = view.past.iter().rev().map(|past| JobVersion::clone(past));
    std::iter::once(current).chain(past).collect()
}
