//! `GET /v1/agent/monitor`: the agent's log lines as they come, from `log_level` (`info` unless said) up.
//!
//! With `plain` the lines themselves, else Nomad's frames: JSON objects with `Data`, one after the other, and an empty one each
//! second. `log_json` makes each line an object.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use serde::Deserialize;

use super::{
    Shared,
    error::{ApiError, ApiResult},
    query::{Params, flag},
    stream::{Form, streamed},
};
use crate::reach::monitor;

/// What to tell, and how.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Wanted {
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
    Params(wanted): Params<Wanted>,
) -> ApiResult<Response> {
    if !matches!(wanted.server_id.as_str(), "" | "leader") {
        return Err(ApiError::bad(format!("unknown server {:?}", wanted.server_id)));
    }
    if !wanted.node_id.is_empty() && wanted.node_id != shared.facts.node.id {
        return Err(ApiError::NotFound(format!("unknown node {:?}", wanted.node_id)));
    }
    // Before the answer: whoever has it hears everything from then on.
    let listener = monitor::listen(&shared.bounds, &wanted.log_level, wanted.log_json)?;
    let form = Form::of(wanted.plain);
    Ok(streamed(&shared, form.content_type(), |pieces| listener.run(form, pieces)))
}
