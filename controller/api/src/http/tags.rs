//! Names of versions of a job: `PUT` and `DELETE /v1/job/ID/versions/NAME/tag`.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
};
use herdlet_api_types::view::VersionTag;
use herdlet_plan::event::Command;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Shared, body,
    error::{ApiError, ApiResult},
    query::{Params, Read},
};

/// The longest name and the longest description, as in Nomad.
const NAME_BYTES_MAX: usize = 255;
const DESCRIPTION_BYTES_MAX: usize = 1000;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Tagged {
    version: Option<u64>,
    description: String,
}

pub(super) async fn apply(
    State(shared): State<Arc<Shared>>,
    Path((id, name)): Path<(String, String)>,
    Params(read): Params<Read>,
    body::Json(tagged): body::Json<Tagged>,
) -> ApiResult<Json<Value>> {
    for (what, len, most) in [
        ("name", name.len(), NAME_BYTES_MAX),
        ("description", tagged.description.len(), DESCRIPTION_BYTES_MAX),
    ] {
        if len > most {
            return Err(ApiError::bad(format!("the {what} of a tag has {len} bytes, more than {most}")));
        }
    }
    let tagged_at = herdlet_base::clock::wall_now();
    let tag = VersionTag { name: name.clone(), description: tagged.description.clone(), tagged_at };
    let command = Command::TagVersion { job: read.job(id), version: tagged.version, tag };
    let index = shared.accepted(command).await?;
    Ok(Json(json!({
        "Name": name, "Description": tagged.description, "TaggedTime": tagged_at.0, "Index": index,
    })))
}

pub(super) async fn remove(
    State(shared): State<Arc<Shared>>,
    Path((id, name)): Path<(String, String)>,
    Params(read): Params<Read>,
) -> ApiResult<Json<Value>> {
    let index = shared.accepted(Command::UntagVersion { job: read.job(id), name }).await?;
    Ok(Json(json!({ "Index": index })))
}
