//! Destinations of artifacts.
//!
//! In: the task's directories, a destination with variables replaced. Out: an open directory below one of them. No link
//! on the way is followed, no matter who created it, and no directory is entered that another process may have swapped
//! in. All calls block.

use std::{
    ffi::{OsStr, OsString},
    path::{Component, Path, PathBuf},
};

use rustix::io::Errno;

use crate::safe_fs::{Dir, FileOwner, FsError, Rights};

/// The directories of a task, as its environment variables name them.
#[derive(Debug, Clone)]
pub struct Dirs {
    pub task: PathBuf,
    /// The directory shared by all tasks of the allocation.
    pub shared: PathBuf,
}

/// A location below one of [`Dirs`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    base: Base,
    path: PathBuf,
}

/// The file system of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// The task directory's.
    Task,
    /// That of `secrets`, in memory where possible.
    Secrets,
    /// That of the shared directory, which the task's directory is on too.
    Shared,
}

/// The destination is in neither the task's directory nor the shared one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "write to {destination}: it is neither in the task's directory nor in the allocation's shared directory"
)]
pub struct Outside {
    destination: String,
}

impl Destination {
    /// Resolves a destination. As in Nomad, an absolute path that is in neither directory (`/local/data`) means the
    /// same path in the task's directory.
    ///
    /// # Errors
    /// [`Outside`].
    pub fn of(destination: &str, dirs: &Dirs) -> Result<Self, Outside> {
        let outside = || Outside { destination: destination.to_owned() };
        let clean_base = |base: &Path| clean(base).ok_or_else(outside);
        let (task, shared) = (clean_base(&dirs.task)?, clean_base(&dirs.shared)?);
        if destination.contains('\0') {
            return Err(outside());
        }
        let mut path = clean(&task.join(destination)).ok_or_else(outside)?;
        if destination.starts_with('/') && !path.starts_with(&task) && !path.starts_with(&shared) {
            path = clean(&task.join(destination.trim_start_matches('/'))).ok_or_else(outside)?;
        }
        if let Ok(below) = path.strip_prefix(&shared) {
            return Ok(Self { base: Base::Shared, path: below.to_owned() });
        }
        let below = path.strip_prefix(&task).map_err(|_| outside())?;
        if below.starts_with("private") {
            return Err(outside());
        }
        Ok(match below.strip_prefix("secrets") {
            Ok(below) => Self { base: Base::Secrets, path: below.to_owned() },
            Err(_) => Self { base: Base::Task, path: below.to_owned() },
        })
    }

    pub fn base(&self) -> Base {
        self.base
    }

    /// The path below the base.
    pub fn below(&self) -> &Path {
        &self.path
    }

    /// Opens the place as a directory and creates it if it is missing.
    ///
    /// # Errors
    /// If something else is there or on the way.
    pub fn directory(&self, dirs: &Dirs, owner: Option<&FileOwner>) -> Result<Dir, FsError> {
        self.base.open(dirs)?.make_all_for(&self.path, rights(0o755, owner), owner)
    }

    /// Opens the directory that contains the file, creating it if it is missing, and returns the file's name too.
    ///
    /// # Errors
    /// If the place can't be a file, or something else is on the way.
    pub fn file(&self, dirs: &Dirs, owner: Option<&FileOwner>) -> Result<(Dir, OsString), FsError> {
        let escapes = || FsError::Escapes { path: self.path.clone() };
        let name = self.path.file_name().ok_or_else(escapes)?;
        let parents = self.path.parent().unwrap_or(Path::new(""));
        Ok((self.base.open(dirs)?.make_all_for(parents, rights(0o755, owner), owner)?, name.to_owned()))
    }
}

impl Base {
    /// Opens the base directory.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn open(self, dirs: &Dirs) -> Result<Dir, FsError> {
        match self {
            Self::Shared => Dir::open(&dirs.shared),
            Self::Task => Dir::open(&dirs.task),
            Self::Secrets => {
                let missing = || FsError::io("open", dirs.task.join("secrets"), Errno::NOENT);
                Dir::open(&dirs.task)?.find(OsStr::new("secrets"))?.ok_or_else(missing)
            }
        }
    }
}

/// Removes `.` and `..`; `None` if the path goes above the root.
fn clean(path: &Path) -> Option<PathBuf> {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir if !clean.pop() => return None,
            Component::ParentDir | Component::CurDir => {}
            Component::Normal(_) | Component::RootDir | Component::Prefix(_) => clean.push(part),
        }
    }
    Some(clean)
}

/// Rights with this mode, and this owner where files can be given away.
pub fn rights(mode: u32, owner: Option<&FileOwner>) -> Rights {
    Rights::Exact { mode, owner: owner.map(FileOwner::pair) }
}
