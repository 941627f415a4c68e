//! Garbage collection on request: of everything that has ended, of allocation directories, or of one allocation's directory.
//!
//! In: Nomad's requests, and our own, which return what was collected. Out: what has ended, and when its collection is due.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
};
use herdlet_agent::gc::Scope;
use herdlet_api_types::gc::Collectable;
use serde_json::Value;

use super::{
    Shared,
    error::{ApiError, ApiResult},
    filter::Filter,
    list::fitting,
    query::{Params, Read},
};

/// All jobs and allocations that have ended, those due first at the top.
pub(super) async fn ended(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
) -> ApiResult<Json<Vec<Value>>> {
    let filter = Filter::parse(&read.filter)?;
    fitting(shared.gc.ended().await, &filter).map(Json)
}

/// Collects everything that has ended, and returns the list.
pub(super) async fn collect(State(shared): State<Arc<Shared>>) -> ApiResult<Json<Vec<Collectable>>> {
    Ok(Json(shared.gc.collect_now(Scope::All).await?))
}

/// Collects what nobody needs any more, as Nomad does: the logs of a failure that a job still shows stay.
pub(super) async fn system(State(shared): State<Arc<Shared>>) -> ApiResult<Json<Value>> {
    shared.gc.collect_now(Scope::Unneeded).await?;
    Ok(Json(Value::Null))
}

pub(super) async fn client(State(shared): State<Arc<Shared>>) -> ApiResult<Json<Value>> {
    shared.reach().collect_all().await?;
    Ok(Json(Value::Null))
}

pub(super) async fn alloc(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
) -> ApiResult<Json<Value>> {
    let alloc = shared.known_alloc(&id)?;
    if shared.reach().collect(&alloc).await? {
        return Ok(Json(Value::Null));
    }
    Err(ApiError::Conflict(format!(
        "allocation {} has not ended; only ended allocations can be collected",
        alloc.spec.name()
    )))
}
