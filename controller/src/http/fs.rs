//! `GET /v1/client/fs/{ls,stat,cat,readat,stream}/ALLOC?path=…`: the files of an allocation, from its directory on.
//!
//! In: an allocation and a path in Nomad's layout (`alloc/…`, `TASK/local/…`). Out: file infos, bytes, or Nomad's frames.
//!
//! The agent may be root, and tasks write to nearly all of these directories: each step goes through a held directory, no link
//! is followed, only plain files are read, and what is secret is told to nobody.

mod info;
mod path;
mod reading;

use std::{io, sync::Arc};

use axum::{
    Json,
    extract::{Path, State},
    response::Response,
};
use herdlet_api_types::{nomad::FileInfo, view::AllocView};
use serde::Deserialize;

use self::{
    path::Below,
    reading::{Origin, Part, Reading},
};
use super::{
    Shared,
    error::{ApiError, ApiResult},
    query::{Params, flag, from_text},
    stream::{blocking, follow, streamed},
};
use crate::drivers::safe_fs::{Crossing, Dir, FsError};

/// A directory with more entries is not listed: the answer would be of no use, and cost memory.
const ENTRIES_LEN_MAX: usize = 10_000;

/// Which file, and which part of it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Wanted {
    path: String,
    #[serde(deserialize_with = "from_text")]
    offset: u64,
    #[serde(deserialize_with = "from_text")]
    limit: u64,
    origin: String,
    #[serde(default = "yes", deserialize_with = "flag")]
    follow: bool,
}

/// `stream` follows unless it is told not to, as in Nomad.
fn yes() -> bool {
    true
}

pub(super) async fn ls(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(wanted): Params<Wanted>,
) -> ApiResult<Json<Vec<FileInfo>>> {
    let alloc = shared.alloc_with_files(&id)?;
    let place = Place::of(&shared, &alloc, &wanted)?;
    work(move || place.list()).await.map(Json)
}

pub(super) async fn stat(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(wanted): Params<Wanted>,
) -> ApiResult<Json<FileInfo>> {
    let alloc = shared.alloc_with_files(&id)?;
    let place = Place::of(&shared, &alloc, &wanted)?;
    work(move || place.info()).await.map(Json)
}

/// A whole file.
pub(super) async fn cat(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(wanted): Params<Wanted>,
) -> ApiResult<Response> {
    plain(shared, &id, Wanted { path: wanted.path, ..Wanted::default() }).await
}

/// `limit` bytes of a file from `offset` on.
pub(super) async fn readat(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(wanted): Params<Wanted>,
) -> ApiResult<Response> {
    plain(shared, &id, Wanted { origin: String::new(), ..wanted }).await
}

async fn plain(shared: Arc<Shared>, id: &str, wanted: Wanted) -> ApiResult<Response> {
    let reading = open(&shared, id, &wanted).await?;
    Ok(streamed(&shared, "text/plain; charset=utf-8", |pieces| reading.plain(pieces)))
}

/// A file in Nomad's frames, followed as it grows unless `follow=false`.
pub(super) async fn stream(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(wanted): Params<Wanted>,
) -> ApiResult<Response> {
    let place = if wanted.follow { Some(follow()?) } else { None };
    let reading = open(&shared, &id, &wanted).await?;
    Ok(streamed(&shared, "application/json", |pieces| async move {
        match place {
            Some(_place) => reading.followed(pieces).await,
            None => reading.frames(pieces).await,
        }
    }))
}

async fn open(shared: &Shared, id: &str, wanted: &Wanted) -> ApiResult<Reading> {
    let alloc = shared.alloc_with_files(id)?;
    if wanted.path.is_empty() {
        return Err(ApiError::bad("must provide a file path"));
    }
    let place = Place::of(shared, &alloc, wanted)?;
    let origin = match wanted.origin.as_str() {
        "" | "start" => Origin::Start,
        "end" => Origin::End,
        _ => return Err(ApiError::bad("origin must be start or end")),
    };
    let part = Part { offset: wanted.offset, origin, limit: wanted.limit };
    work(move || place.open(part)).await
}

/// A path below an allocation's directory.
struct Place {
    alloc_dir: std::path::PathBuf,
    below: Below,
}

impl Place {
    fn of(shared: &Shared, alloc: &AllocView, wanted: &Wanted) -> ApiResult<Self> {
        let tasks = alloc.tasks.iter().map(|task| &*task.name);
        Ok(Self { alloc_dir: shared.paths.alloc(&alloc.spec.id), below: Below::read(&wanted.path, tasks)? })
    }

    /// The directory itself, where the path leads to one.
    fn dir(&self) -> Result<Dir, FsError> {
        Dir::open(&self.alloc_dir)?.open_below(&self.below.path, Crossing::Mounts)
    }

    /// The directory in which it lies, and its name there; none for the allocation's directory itself.
    fn parent(&self) -> Result<Option<(Dir, &std::ffi::OsStr)>, FsError> {
        let (Some(parent), Some(name)) = (self.below.path.parent(), self.below.path.file_name()) else {
            return Ok(None);
        };
        Ok(Some((Dir::open(&self.alloc_dir)?.open_below(parent, Crossing::Mounts)?, name)))
    }

    fn list(&self) -> ApiResult<Vec<FileInfo>> {
        let failed = |error| self.failed(&error);
        let dir = self.dir().map_err(failed)?;
        let names = dir.names_up_to(ENTRIES_LEN_MAX).map_err(failed)?.ok_or_else(|| {
            ApiError::bad(format!("{:?} has more than {ENTRIES_LEN_MAX} entries", self.below.shown))
        })?;
        let mut infos = Vec::with_capacity(names.len());
        for name in names {
            // One that has gone meanwhile is passed over.
            if let Some(stat) = dir.stat_name(&name).map_err(failed)? {
                infos.push(info::of(self.below.name_shown(&name), &stat));
            }
        }
        infos.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(infos)
    }

    fn info(&self) -> ApiResult<FileInfo> {
        let failed = |error| self.failed(&error);
        let Some((dir, name)) = self.parent().map_err(failed)? else {
            let stat = self.dir().and_then(|dir| dir.stat()).map_err(failed)?;
            return Ok(info::of("/".to_owned(), &stat));
        };
        let stat = dir.stat_name(name).map_err(failed)?.ok_or_else(|| self.missing())?;
        let info = info::of(self.below.last_shown(), &stat);
        if info.is_dir || !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
            return Ok(info);
        }
        let file = dir.open_file(name).map_err(failed)?.ok_or_else(|| self.missing())?;
        let content = info::content_type(&file);
        let content =
            content.map_err(|error| ApiError::Failed(format!("read {:?}: {error}", self.below.shown)))?;
        Ok(FileInfo { content_type: Some(content.to_owned()), ..info })
    }

    fn open(&self, part: Part) -> ApiResult<Reading> {
        let failed = |error| self.failed(&error);
        let is_directory = || ApiError::bad(format!("file {:?} is a directory", self.below.shown));
        let Some((dir, name)) = self.parent().map_err(failed)? else { return Err(is_directory()) };
        match dir.open_file(name) {
            Ok(Some(file)) => {
                let name = self.below.shown.clone();
                Reading::new(file, dir, name, part)
                    .map_err(|error| ApiError::Failed(format!("read {:?}: {error}", self.below.shown)))
            }
            Ok(None) => Err(self.missing()),
            Err(FsError::NotAFile { .. }) if self.dir().is_ok() => Err(is_directory()),
            Err(error) => Err(self.failed(&error)),
        }
    }

    fn missing(&self) -> ApiError {
        ApiError::NotFound(format!("no such file or directory: {:?}", self.below.shown))
    }

    /// What stopped us, without where on this machine the allocation lies.
    fn failed(&self, error: &FsError) -> ApiError {
        let shown = &self.below.shown;
        match error {
            error if error.is_missing() => self.missing(),
            FsError::Link { .. } => ApiError::Forbidden(format!(
                "{shown:?}: a symbolic link is on the way, and links are not followed"
            )),
            FsError::NotADirectory { .. } => {
                ApiError::bad(format!("{shown:?}: a part of it is no directory"))
            }
            FsError::NotAFile { .. } => {
                ApiError::bad(format!("{shown:?} is neither a plain file nor a directory"))
            }
            FsError::Io { operation, source, .. } => {
                ApiError::Failed(format!("{operation} {shown:?}: {source}"))
            }
            FsError::Mounted { .. }
            | FsError::Busy { .. }
            | FsError::TooLarge { .. }
            | FsError::Escapes { .. } => ApiError::Failed(format!("open {shown:?}")),
        }
    }
}

/// Works on files where a slow disk holds up nobody else.
async fn work<T: Send + 'static>(work: impl FnOnce() -> ApiResult<T> + Send + 'static) -> ApiResult<T> {
    let worked = blocking(move || Ok::<_, io::Error>(work()));
    worked.await.map_err(|error| ApiError::Failed(format!("look at the files: {error}")))?
}
