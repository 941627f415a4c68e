//! The files of an allocation, relative to its directory.
//!
//! In: an allocation and a path in Nomad's layout (`alloc/…`, `TASK/local/…`). Out: file infos, bytes, or Nomad's frames.
//!
//! The agent may be root, and tasks can write to nearly all of these directories. So each step of a path is opened relative to
//! a held directory, no link is followed, only plain files are read, and secrets are never returned.

mod info;
mod path;
mod reading;

use std::io;

use herdlet_api_types::view::AllocView;
use herdlet_base::safe_fs::{Crossing, Dir, FsError};

pub use self::{info::Info, reading::Reading};
use self::{
    path::Below,
    reading::{Origin, Part},
};
use super::{
    AllocOps,
    error::{ApiError, ApiResult},
    stream::{Form, Gone, Pieces, blocking},
    target::has_files,
};

/// A larger directory is not listed: the answer would be useless and cost memory.
const ENTRIES_LEN_MAX: usize = 10_000;

/// Which file to read, from where, and whether to follow it.
#[derive(Debug, Default)]
pub struct FileRequest {
    pub path: String,
    pub offset: u64,
    /// Number of bytes; 0 means all.
    pub limit: u64,
    /// `start` (also if empty) or `end`.
    pub origin: String,
    pub follow: bool,
}

/// A file to be sent, perhaps as it grows.
pub struct Telling {
    reading: Reading,
    /// The slot of a reader that follows.
    place: Option<tokio::sync::OwnedSemaphorePermit>,
}

impl Telling {
    /// Sends the file to its end, or if it is followed, until it is deleted.
    ///
    /// # Errors
    /// When the reader disconnects.
    pub async fn run(self, form: Form, pieces: Pieces) -> Result<(), Gone> {
        match self.place {
            Some(_place) => self.reading.followed(form, pieces).await,
            None => self.reading.once(form, pieces).await,
        }
    }
}

impl AllocOps {
    /// The entries of a directory, by name.
    pub async fn list(&self, alloc: &AllocView, path: &str) -> ApiResult<Vec<Info>> {
        has_files(alloc)?;
        let place = AllocPath::of(self, alloc, path)?;
        work(move || place.list()).await
    }

    /// Information about one file or directory.
    pub async fn stat(&self, alloc: &AllocView, path: &str) -> ApiResult<Info> {
        has_files(alloc)?;
        let place = AllocPath::of(self, alloc, path)?;
        work(move || place.info()).await
    }

    /// Opens a part of a file.
    pub async fn open_file(&self, alloc: &AllocView, wanted: FileRequest) -> ApiResult<Telling> {
        has_files(alloc)?;
        if wanted.path.is_empty() {
            return Err(ApiError::bad("must provide a file path"));
        }
        let place = AllocPath::of(self, alloc, &wanted.path)?;
        let origin = match wanted.origin.as_str() {
            "" | "start" => Origin::Start,
            "end" => Origin::End,
            _ => return Err(ApiError::bad("origin must be start or end")),
        };
        let follows = if wanted.follow { Some(self.bounds.follower()?) } else { None };
        let part = Part { offset: wanted.offset, origin, limit: wanted.limit };
        let reading = work(move || place.open(part)).await?;
        Ok(Telling { reading, place: follows })
    }
}

struct AllocPath {
    alloc_dir: std::path::PathBuf,
    below: Below,
}

impl AllocPath {
    fn of(reach: &AllocOps, alloc: &AllocView, path: &str) -> ApiResult<Self> {
        let id = alloc.spec.id;
        let tasks = alloc.tasks.iter().map(|task| (&*task.name, reach.paths.task_name(&id, &task.name)));
        Ok(Self { alloc_dir: reach.paths.alloc(&id), below: Below::read(path, tasks)? })
    }

    /// The directory itself, if the path is a directory.
    fn dir(&self) -> Result<Dir, FsError> {
        Dir::open(&self.alloc_dir)?.open_below(&self.below.path, Crossing::Mounts)
    }

    /// The parent directory, and the name in it; none for the allocation's directory itself.
    fn parent(&self) -> Result<Option<(Dir, &std::ffi::OsStr)>, FsError> {
        let (Some(parent), Some(name)) = (self.below.path.parent(), self.below.path.file_name()) else {
            return Ok(None);
        };
        Ok(Some((Dir::open(&self.alloc_dir)?.open_below(parent, Crossing::Mounts)?, name)))
    }

    fn list(&self) -> ApiResult<Vec<Info>> {
        let failed = |error| self.failed(&error);
        let dir = self.dir().map_err(failed)?;
        let names = dir.names_up_to(ENTRIES_LEN_MAX).map_err(failed)?.ok_or_else(|| {
            ApiError::bad(format!("{:?} has more than {ENTRIES_LEN_MAX} entries", self.below.shown))
        })?;
        let mut infos = Vec::with_capacity(names.len());
        for name in names {
            let Some(shown) = self.below.display_name(&name) else { continue };
            // Skips an entry that was removed meanwhile.
            if let Some(stat) = dir.stat_name(&name).map_err(failed)? {
                infos.push(info::of(shown, &stat));
            }
        }
        infos.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(infos)
    }

    fn info(&self) -> ApiResult<Info> {
        let failed = |error| self.failed(&error);
        let Some((dir, name)) = self.parent().map_err(failed)? else {
            let stat = self.dir().and_then(|dir| dir.stat()).map_err(failed)?;
            return Ok(info::of("/".to_owned(), &stat));
        };
        let stat = dir.stat_name(name).map_err(failed)?.ok_or_else(|| self.missing())?;
        let info = info::of(self.below.display_last(), &stat);
        if info.is_dir || !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
            return Ok(info);
        }
        let file = dir.open_file(name).map_err(failed)?.ok_or_else(|| self.missing())?;
        let content = info::content_type(&file);
        let content =
            content.map_err(|error| ApiError::Failed(format!("read {:?}: {error}", self.below.shown)))?;
        Ok(Info { content_type: Some(content), ..info })
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

    /// Converts the error, without the place of the allocation's directory on this machine.
    fn failed(&self, error: &FsError) -> ApiError {
        let shown = &self.below.shown;
        match error {
            error if error.is_missing() => self.missing(),
            FsError::Link { .. } => ApiError::Forbidden(format!(
                "{shown:?}: the path contains a symbolic link, and links are not followed"
            )),
            FsError::NotADirectory { .. } => {
                ApiError::bad(format!("{shown:?}: a part of the path is not a directory"))
            }
            FsError::NotAFile { .. } => {
                ApiError::bad(format!("{shown:?} is neither a plain file nor a directory"))
            }
            FsError::Io { operation, source, .. } => {
                ApiError::Failed(format!("{operation} {shown:?}: {source}"))
            }
            FsError::Mounted { .. }
            | FsError::Busy { .. }
            | FsError::Untrusted { .. }
            | FsError::TooLarge { .. }
            | FsError::Escapes { .. } => ApiError::Failed(format!("open {shown:?}")),
        }
    }
}

/// Runs file operations on a blocking thread, because a disk may be slow.
async fn work<T: Send + 'static>(work: impl FnOnce() -> ApiResult<T> + Send + 'static) -> ApiResult<T> {
    let worked = blocking(move || Ok::<_, io::Error>(work()));
    worked.await.map_err(|error| ApiError::Failed(format!("read the files: {error}")))?
}
