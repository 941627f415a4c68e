//! Scaling in Nomad's form: `GET` and `POST /v1/job/ID/scale`.
//!
//! In: a group and its count, with a note. Out: the number of allocations of each group, and its scaling events.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    response::Response,
};
use herdlet_api_types::{nomad, scaling::ScalingNote};
use herdlet_plan::event::Command;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    Shared, body,
    error::{ApiError, ApiResult},
    jobs::reversioned,
    query::{Params, Read},
    trigger::Trigger,
};

/// The longest stored message.
const MESSAGE_BYTES_MAX: usize = 1024;
/// The largest stored metadata, as JSON.
const META_BYTES_MAX: usize = 4096;

pub(super) async fn read(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let key = read.job(id);
    let status = |shared: &Shared| {
        let view = shared.known_job(&key)?;
        Ok(nomad::scale_status(&view, &shared.model.allocs_of(&key)))
    };
    shared.answer(&read, status).await
}

/// The body of a scale request, as Nomad names its fields. Without a count, only the note is stored.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Scale {
    count: Option<i64>,
    target: Option<Map<String, Value>>,
    message: Option<String>,
    error: bool,
    meta: Option<Map<String, Value>>,
}

impl Scale {
    /// The group, the count, and the note.
    fn read(self) -> ApiResult<(String, Option<u32>, ScalingNote)> {
        let group = self.target.as_ref().and_then(|target| target.get("Group")).and_then(Value::as_str);
        let group = group.ok_or_else(|| ApiError::bad("name the group as \"Target\": {\"Group\": NAME}"))?;
        if self.error && self.count.is_some() {
            return Err(ApiError::bad("\"Error\": true reports a failed scaling and must have no \"Count\""));
        }
        let count = self.count.map(u32::try_from).transpose();
        let count = count.map_err(|_| ApiError::bad("\"Count\" must be from 0 to 10000"))?;
        let (message, meta) = (self.message.unwrap_or_default(), self.meta.unwrap_or_default());
        let meta_len = serde_json::to_string(&meta).map_or(usize::MAX, |text| text.len());
        for (field, len, most) in
            [("Message", message.len(), MESSAGE_BYTES_MAX), ("Meta", meta_len, META_BYTES_MAX)]
        {
            if len > most {
                return Err(ApiError::bad(format!("\"{field}\" has {len} bytes, more than {most}")));
            }
        }
        Ok((group.to_owned(), count, ScalingNote { message, error: self.error, meta }))
    }
}

pub(super) async fn scale(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
    body::Json(scale): body::Json<Scale>,
) -> ApiResult<Json<Value>> {
    let job = read.job(id);
    let (group, count, note) = scale.read()?;
    let changed = shared.job_changed(Command::Scale { job: job.clone(), group, count, note }).await?;
    let eval = count.map(|_| shared.evaluations.note(&job, Trigger::JobScaling, changed.at()));
    Ok(Json(reversioned(&eval.unwrap_or_default(), changed, "")))
}
