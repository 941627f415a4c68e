//! The present resource usage: of an allocation's tasks (`GET /v1/client/allocation/ALLOC/stats`), and of the machine
//! (`GET /v1/client/stats`).

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
};
use serde::Deserialize;
use serde_json::Value;

use super::{Shared, error::ApiResult, nodes, query::Params};

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

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct OfNode {
    node_id: String,
}

pub(super) async fn host(
    State(shared): State<Arc<Shared>>,
    Params(OfNode { node_id }): Params<OfNode>,
) -> ApiResult<Json<Value>> {
    if !node_id.is_empty() {
        nodes::check(&shared, &node_id)?;
    }
    Ok(Json(shared.host.stats(&shared.reach()).await?))
}
