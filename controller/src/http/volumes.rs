//! Host volumes.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    response::Response,
};
use herdlet_plan::event::{Command, VolumeData};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Shared,
    error::ApiResult,
    query::{Params, Read, flag},
};

/// All volumes as they are shown.
pub(super) async fn views(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    shared.answer(&read, |shared| Ok(shared.model.volumes())).await
}

/// What becomes of a removed volume's data.
#[derive(Debug, Deserialize)]
pub(super) struct Removal {
    #[serde(default, deserialize_with = "flag")]
    purge: bool,
}

/// Forgets a volume; its data stays unless `purge` is set.
pub(super) async fn remove(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    Params(removal): Params<Removal>,
) -> ApiResult<Json<Value>> {
    let data = if removal.purge { VolumeData::Purge } else { VolumeData::Keep };
    let index = shared.accepted(Command::DeleteVolume { name, data }).await?;
    Ok(Json(json!({ "Index": index })))
}
