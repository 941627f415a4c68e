//! Where an artifact goes.
//!
//! In: the task's directories, a destination with its variables replaced. Out: a held directory below one of them. No link on the way is
//! followed, whoever put it there, and no directory is entered that somebody may have put in the place of another. Everything here blocks.

use std::{
    ffi::{OsStr, OsString},
    path::{Component, Path, PathBuf},
};

use rustix::io::Errno;

use crate::safe_fs::{Dir, FileOwner, FsError, Rights};

/// The directories of a task, as its variables name them.
#[derive(Debug, Clone)]
pub struct Dirs {
    pub task: PathBuf,
    /// What all tasks of the allocation share.
    pub shared: PathBuf,
}

/// A place below one of these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    base: Base,
    path: PathBuf,
}

/// On which file system a place is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// With the task's directory.
    Task,
    /// With its `secrets`, which are in memory where that can be.
    Secrets,
    /// With what its allocation shares, which is where the task's directory is.
    Shared,
}

/// It lies neither in the task's directory nor in the shared one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "put it at {destination}: that is neither in the task's directory nor in the allocation's shared one"
)]
pub struct Outside {
    destination: String,
}

impl Place {
    /// The place that a destination names.
    ///
    /// # Errors
    /// [`Outside`].
    pub fn of(destination: &str, dirs: &Dirs) -> Result<Self, Outside> {
        let outside = || Outside { destination: destination.to_owned() };
        let path = clean(&dirs.task.join(destination)).ok_or_else(outside)?;
        let clean_base = |base: &Path| clean(base).ok_or_else(outside);
        if destination.contains('\0') {
            return Err(outside());
        }
        if let Ok(below) = path.strip_prefix(clean_base(&dirs.shared)?) {
            return Ok(Self { base: Base::Shared, path: below.to_owned() });
        }
        let below = path.strip_prefix(clean_base(&dirs.task)?).map_err(|_| outside())?;
        if below.starts_with("private") {
            return Err(outside());
        }
        Ok(match below.strip_prefix("secrets") {
            Ok(below) => Self { base: Base::Secrets, path: below.to_owned() },
            Err(_) => Self { base: Base::Task, path: below.to_owned() },
        })
    }

    /// On which file system it is.
    pub fn base(&self) -> Base {
        self.base
    }

    /// The directory that it is, made where it is missing.
    ///
    /// # Errors
    /// When something else stands there, or on the way.
    pub fn directory(&self, dirs: &Dirs, owner: Option<&FileOwner>) -> Result<Dir, FsError> {
        self.base.open(dirs)?.make_all_for(&self.path, rights(0o755, owner), owner)
    }

    /// The directory of the file that it is, made where it is missing, and the file's name in it.
    ///
    /// # Errors
    /// When it is no place for a file, or something else stands on the way.
    pub fn file(&self, dirs: &Dirs, owner: Option<&FileOwner>) -> Result<(Dir, OsString), FsError> {
        let escapes = || FsError::Escapes { path: self.path.clone() };
        let name = self.path.file_name().ok_or_else(escapes)?;
        let parents = self.path.parent().unwrap_or(Path::new(""));
        Ok((self.base.open(dirs)?.make_all_for(parents, rights(0o755, owner), owner)?, name.to_owned()))
    }
}

impl Base {
    /// Opens it.
    ///
    /// # Errors
    /// When it is not there.
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

/// The path without `.` and `..`; none that begins above the root.
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

/// These permissions, for this owner where files can be given away.
pub fn rights(mode: u32, owner: Option<&FileOwner>) -> Rights {
    Rights::Exact { mode, owner: owner.map(FileOwner::pair) }
}
