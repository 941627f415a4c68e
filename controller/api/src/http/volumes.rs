//! Host volumes.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    response::Response,
};
use herdlet_api_types::names;
use herdlet_plan::event::{Command, VolumeData};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Shared,
    error::{ApiError, ApiResult},
    query::{Params, Read, Source, flag},
};

pub(super) async fn views(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    shared.filtered(Source::Model, &read, |shared| Ok(shared.model.volumes())).await
}

/// Parameters of a removal.
#[derive(Debug, Deserialize)]
pub(super) struct Removal {
    #[serde(default, deserialize_with = "flag")]
    purge: bool,
}

/// Deletes a volume. Its data stays unless `purge` is set. `purge` also removes the data of a volume that was deleted
/// earlier.
pub(super) async fn remove(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    Params(removal): Params<Removal>,
) -> ApiResult<Json<Value>> {
    let data = if removal.purge { VolumeData::Purge } else { VolumeData::Keep };
    if !shared.model.volumes().iter().any(|view| view.spec.name == name) {
        let path = shared.paths.volume(&name);
        match (tokio::fs::try_exists(&path).await.unwrap_or_default(), data) {
            (true, VolumeData::Purge) => {}
            (true, VolumeData::Keep) => {
                let message = format!(
                    "volume {name:?} is already deleted, and its data is in {}; to remove it: herdlet delete volume {} --purge",
                    path.display(),
                    names::shell_word(name.clone())
                );
                return Err(ApiError::NotFound(message));
            }
            (false, _) => return Err(ApiError::NotFound(format!("there is no volume {name:?}"))),
        }
    }
    let index = shared.accepted(Command::DeleteVolume { name, data }).await?;
    Ok(Json(json!({ "Index": index })))
}
