//! `GET /v1/agent/monitor`: streams the agent's log lines of at least `log_level` (default `info`).
//!
//! With `plain`, the lines themselves; otherwise Nomad's frames: concatenated JSON objects with `Data`, and an empty one every
//! second. `log_json` formats each line as an object.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use serde::Deserialize;

use super::{
    Shared,
    error::{ApiError, ApiResult},
    query::{Params, flag},
    stream::{Form, streamed},
};
use crate::alloc_ops::monitor;

/// Query parameters.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct MonitorQuery {
    log_level: String,
    #[serde(deserialize_with = "flag")]
    log_json: bool,
    #[serde(deserialize_with = "flag")]
    plain: bool,
    node_id: String,
    server_id: String,
}

pub(super) async fn follow(
    State(shared): State<Arc<Shared>>,
    Params(wanted): Params<MonitorQuery>,
) -> ApiResult<Response> {
    if !matches!(wanted.server_id.as_str(), "" | "leader") {
        return Err(ApiError::bad(format!("unknown server {:?}", wanted.server_id)));
    }
    if !wanted.node_id.is_empty() && wanted.node_id != shared.facts.node.id {
        return Err(ApiError::NotFound(format!("unknown node {:?}", wanted.node_id)));
    }
    // Before the response begins, so that a client that has received its head misses no line after that.
    let listener = monitor::listen(&shared.bounds, &wanted.log_level, wanted.log_json)?;
    let form = Form::of(wanted.plain);
    Ok(streamed(&shared, form.content_type(), |pieces| listener.run(form, pieces)))
}
