//! `GET /v1/client/fs/{ls,stat,cat,readat,stream}/ALLOC?path=…`: the files of an allocation, relative to its
//! directory.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    response::Response,
};
use herdlet_api_types::nomad::FileInfo;
use serde::Deserialize;

use super::{
    Shared,
    error::ApiResult,
    query::{Params, flag, from_text},
    stream::{Form, streamed},
};
use crate::alloc_ops::files;

/// Query parameters.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct FileQuery {
    path: String,
    #[serde(deserialize_with = "from_text")]
    offset: u64,
    #[serde(deserialize_with = "from_text")]
    limit: u64,
    origin: String,
    #[serde(default = "yes", deserialize_with = "flag")]
    follow: bool,
}

/// `stream` follows by default, as in Nomad.
fn yes() -> bool {
    true
}

pub(super) async fn ls(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(wanted): Params<FileQuery>,
) -> ApiResult<Json<Vec<FileInfo>>> {
    let reach = shared.reach();
    let list = reach.list(&*reach.alloc(&id)?, &wanted.path).await?;
    Ok(Json(list.into_iter().map(FileInfo::from).collect()))
}

pub(super) async fn stat(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(wanted): Params<FileQuery>,
) -> ApiResult<Json<FileInfo>> {
    let reach = shared.reach();
    Ok(Json(reach.stat(&*reach.alloc(&id)?, &wanted.path).await?.into()))
}

pub(super) async fn cat(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(wanted): Params<FileQuery>,
) -> ApiResult<Response> {
    let wanted = files::FileRequest { path: wanted.path, ..files::FileRequest::default() };
    stream_file(shared, &id, wanted, Form::Plain).await
}

/// `limit` bytes of a file, from `offset`.
pub(super) async fn readat(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(wanted): Params<FileQuery>,
) -> ApiResult<Response> {
    let FileQuery { path, offset, limit, .. } = wanted;
    let wanted = files::FileRequest { path, offset, limit, ..files::FileRequest::default() };
    stream_file(shared, &id, wanted, Form::Plain).await
}

/// A file in Nomad's frames. Follows the file as it grows unless `follow=false`.
pub(super) async fn stream(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(wanted): Params<FileQuery>,
) -> ApiResult<Response> {
    let FileQuery { path, offset, limit, origin, follow } = wanted;
    stream_file(shared, &id, files::FileRequest { path, offset, limit, origin, follow }, Form::Frames).await
}

async fn stream_file(
    shared: Arc<Shared>,
    id: &str,
    wanted: files::FileRequest,
    form: Form,
) -> ApiResult<Response> {
    let reach = shared.reach();
    let transfer = reach.open_file(&*reach.alloc(id)?, wanted).await?;
    Ok(streamed(&shared, form.content_type(), |pieces| transfer.run(form, pieces)))
}
