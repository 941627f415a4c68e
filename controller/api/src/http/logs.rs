//! `GET /v1/client/fs/logs/ALLOC`: a task's log, from any position, followed across rotations.
//!
//! Nomad's parameters: `task`, `type` (stdout, stderr), `follow`, `offset`, `origin` (start, end), `plain`; and ours: `tail`
//! (lines) and `since` (seconds since 1970). With both, the later start applies. Without `plain` the answer is Nomad's frames, as
//! concatenated JSON objects. A followed log ends when the task is dead and its log was sent completely.

use std::sync::Arc;

use axum::{
    extract::{Path, State},
    response::Response,
};
use serde::Deserialize;

use super::{
    Shared,
    error::ApiResult,
    query::{Params, flag, from_text},
    stream::{Form, streamed},
};
use crate::alloc_ops::logs;

/// Query parameters.
#[derive(Debug, Deserialize)]
pub(super) struct LogQuery {
    #[serde(default)]
    task: String,
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default, deserialize_with = "flag")]
    follow: bool,
    #[serde(default, deserialize_with = "from_text")]
    offset: u64,
    #[serde(default)]
    origin: String,
    #[serde(default, deserialize_with = "flag")]
    plain: bool,
    tail: Option<u64>,
    since: Option<u64>,
}

pub(super) async fn read(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(wanted): Params<LogQuery>,
) -> ApiResult<Response> {
    let LogQuery { task, kind, follow, offset, origin, plain, tail, since } = wanted;
    let wanted = logs::LogRequest { task, kind, follow, offset, origin, tail, since };
    let (reach, form) = (shared.reach(), Form::of(plain));
    let reading = reach.open_log(&*reach.alloc(&id)?, wanted).await?;
    let model = Arc::clone(&shared.model);
    Ok(streamed(&shared, form.content_type(), |pieces| reading.run(model, form, pieces)))
}
