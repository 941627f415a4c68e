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
    error::{ApiError, ApiResult},
    filter::Filter,
    jobs::reversioned,
    list::fitting,
    payload,
    query::{Params, Read, Source, flag},
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

/// Parameters of a list of versions, as Nomad names them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Compared {
    #[serde(deserialize_with = "flag")]
    diffs: bool,
    /// Compare each version with this one instead of its predecessor.
    diff_version: Option<u64>,
    diff_tag: String,
}

pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
    Params(wanted): Params<Compared>,
) -> ApiResult<Response> {
    let key = read.job(id);
    let filter = Filter::parse(&read.filter)?;
    let versions = |shared: &Shared| {
        let view = shared.known_job(&key)?;
        let diffs = wanted.diffs.then(|| diffs(&newest_first(&view), &wanted)).transpose()?;
        let shown = |version: &JobVersion| {
            let mut whole = nomad::job_version(&view, version);
            whole["Payload"] = payload::to_json(&version.job);
            whole
        };
        let versions: Vec<Value> = newest_first(&view).iter().map(shown).collect();
        Ok(json!({ "Versions": fitting(versions, &filter)?, "Diffs": diffs }))
    };
    shared.answer(&read, versions).await
}

/// The differences of each version, newest first: to its predecessor, or to the selected version.
fn diffs(versions: &[JobVersion], compared: &Compared) -> ApiResult<Vec<Value>> {
    let shown = |version: &JobVersion| nomad::job(&version.job, 0);
    let diff = |old: &JobVersion, new: &JobVersion| nomad::job_diff(Some(&shown(old)), &shown(new));
    let has_tag =
        |version: &&JobVersion| version.tag.as_ref().is_some_and(|tag| tag.name == compared.diff_tag);
    let other = match (compared.diff_version, compared.diff_tag.as_str()) {
        (None, "") => return Ok(versions.windows(2).map(|pair| diff(&pair[1], &pair[0])).collect()),
        (Some(_), tag) if !tag.is_empty() => {
            return Err(ApiError::bad("diff_version and diff_tag exclude each other"));
        }
        (Some(number), _) => versions
            .iter()
            .find(|version| version.version == number)
            .ok_or_else(|| ApiError::NotFound(format!("version {number} not found")))?,
        (None, tag) => versions
            .iter()
            .find(has_tag)
            .ok_or_else(|| ApiError::NotFound(format!("tag {tag:?} not found")))?,
    };
    Ok(versions.iter().map(|version| diff(other, version)).collect())
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
    let eval = shared.evaluations.note(&job, Trigger::JobRegister, changed.at());
    Ok(Json(reversioned(&eval, changed, "")))
}

pub(super) fn newest_first(view: &JobView) -> Vec<JobVersion> {
    let current = JobVersion {
        version: view.version,
        index: view.modify_index,
        submit_time: view.submit_time,
        tag: view.tag.clone(),
        job: Arc::clone(&view.job),
    };
    let past = view.past.iter().rev().map(|past| JobVersion::clone(past));
    std::iter::once(current).chain(past).collect()
}
