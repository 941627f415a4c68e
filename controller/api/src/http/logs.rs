//! `GET /v1/client/fs/logs/ALLOC`: a task's log, from any position, followed across rotations.
//!
//! Nomad's parameters: `task`, `type` (stdout, stderr), `follow`, `offset`, `origin` (start, end), `plain`; and ours: `tail`
//! (lines), `since` (seconds since 1970) and `timestamps` (a time before each line, as far as it is known). With tail and since, the later start applies. Without `plain` the answer is Nomad's frames, as
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
    #[serde(default, deserialize_with = "flag")]
    timestamps: bool,
}

pub(super) async fn read(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(wanted): Params<LogQuery>,
) -> ApiResult<Response> {
    let LogQuery { task, kind, follow, offset, origin, plain, tail, since, timestamps } = wanted;
    let wanted = logs::LogRequest { task, kind, follow, offset, origin, tail, since, timestamps };
    let (reach, form) = (shared.reach(), Form::of(plain));
    let reading = reach.open_log(&*reach.alloc(&id)?, wanted).await?;
    let model = Arc::clone(&shared.model);
    Ok(streamed(&shared, form.content_type(), |pieces| reading.run(model, form, pieces)))
}
