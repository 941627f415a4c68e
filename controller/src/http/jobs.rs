//! Jobs: ours under `/v1/herdlet/jobs`, Nomad's form under `/v1/jobs` and `/v1/job/ID`.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    response::Response,
};
use herdlet_api_types::nomad;
use herdlet_plan::event::Command;
use serde_json::{Value, json};

use super::{
    Shared,
    error::{ApiError, ApiResult},
    query::{Params, Read},
};

/// All jobs as they are shown, of every namespace.
pub(super) async fn views(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    shared.answer(&read, |shared| Ok(shared.model.jobs())).await
}

pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let wanted = |shared: &Shared| {
        let jobs = shared.model.jobs().into_iter();
        let jobs =
            jobs.filter(|view| read.covers(&view.key.namespace) && view.key.id.starts_with(&read.prefix));
        Ok(jobs.map(|view| nomad::job_stub(&view)).collect::<Vec<_>>())
    };
    shared.answer(&read, wanted).await
}

pub(super) async fn read(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let key = read.job(id);
    let job = |shared: &Shared| {
        let view = shared.model.job(&key).ok_or_else(|| ApiError::NotFound("job not found".to_owned()))?;
        Ok(nomad::whole_job(&view))
    };
    shared.answer(&read, job).await
}

pub(super) async fn allocations(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let key = read.job(id);
    let allocs = |shared: &Shared| {
        let node = shared.node();
        let views = shared.model.allocs_of(&key);
        Ok(views.iter().map(|view| nomad::allocation_stub(view, &node)).collect::<Vec<_>>())
    };
    shared.answer(&read, allocs).await
}

/// Nomad's JSON jobs come with a later release.
pub(super) async fn register() -> ApiError {
    let message =
        "jobs in Nomad's JSON are not accepted by this release; send manifests: herdlet apply -f FILE";
    ApiError::NotBuilt(message.to_owned())
}

pub(super) async fn remove(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Json<Value>> {
    let index = shared.accepted(Command::Delete { job: read.job(id) }).await?;
    Ok(Json(json!({
        "EvalID": "", "EvalCreateIndex": 0, "JobModifyIndex": index, "VolumeEvalID": "", "VolumeEvalIndex": 0,
        "Index": index, "LastContact": 0, "KnownLeader": true,
    })))
}
