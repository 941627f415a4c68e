//! `GET /v1/client/allocation/ALLOC/stats`: the present resource usage of an allocation's tasks.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
};
use serde::Deserialize;
use serde_json::Value;

use super::{Shared, error::ApiResult, query::Params};

#[derive(Debug, Deserialize)]
pub(super) struct StatsQuery {
    #[serde(default)]
    task: String,
}

pub(super) async fn read(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(wanted): Params<StatsQuery>,
) -> ApiResult<Json<Value>> {
    let reach = shared.reach();
    let usage = reach.usage(&*reach.alloc(&id)?, &wanted.task).await?;
    Ok(Json(usage))
}
