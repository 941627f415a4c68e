//! Where an artifact goes, and the directory in which it is made ready.
//!
//! In: the task's directories, a destination with its variables replaced. Out: a held directory below one of them, and files that come to
//! stand in it by being renamed: each is whole or not there at all. No link on the way is followed, whoever put it there. Everything here
//! blocks.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    os::fd::AsFd as _,
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{FileType, Mode, OFlags},
    io::Errno,
};

use super::marker;
use crate::drivers::safe_fs::{Crossing, Dir, FsError, Rights};

/// The directories of a task, as its variables name them.
#[derive(Debug, Clone)]
pub struct Dirs {
    /// Its own.
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
    pub fn directory(&self, dirs: &Dirs, owner: Option<(u32, u32)>) -> Result<Dir, FsError> {
        self.base.open(dirs)?.make_all(&self.path, rights(0o755, owner))
    }

    /// The directory of the file that it is, made where it is missing, and the file's name in it.
    ///
    /// # Errors
    /// When it is no place for a file, or something else stands on the way.
    pub fn file(&self, dirs: &Dirs, owner: Option<(u32, u32)>) -> Result<(Dir, OsString), FsError> {
        let escapes = || FsError::Escapes { path: self.path.clone() };
        let name = self.path.file_name().ok_or_else(escapes)?;
        let parents = self.path.parent().unwrap_or(Path::new(""));
        Ok((self.base.open(dirs)?.make_all(parents, rights(0o755, owner))?, name.to_owned()))
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

/// A directory that nobody else may enter, beside what is to stand in its place. One that was left there goes first.
pub struct Staging {
    beside: Dir,
    name: OsString,
    dir: Dir,
}

const BODY: &str = "body";
const TREE: &str = "tree";

impl Staging {
    /// Makes one in `beside`; `id` tells whose it is.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn make(beside: &Dir, id: &str) -> Result<Self, FsError> {
        let name = OsString::from(format!(".artifact-{id}"));
        beside.remove_tree(&name)?;
        let dir = beside.make(&name, Rights::Exact { mode: 0o700, owner: None })?;
        Ok(Self { beside: beside.open_below(Path::new(""), Crossing::Nothing)?, name, dir })
    }

    /// A new file in it.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn body(&self) -> Result<File, FsError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.dir, BODY, flags, Mode::from_raw_mode(0o600));
        Ok(File::from(fd.map_err(|errno| FsError::io("create", self.dir.path().join(BODY), errno))?))
    }

    /// An empty directory in it, which belongs to `owner`.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn tree(&self, owner: Option<(u32, u32)>) -> Result<Dir, FsError> {
        self.dir.make(OsStr::new(TREE), rights(0o755, owner))
    }

    /// Lets the file come to stand beside it.
    ///
    /// # Errors
    /// When a directory stands there.
    pub fn publish_body(&self, file: &File, name: &OsStr, owner: Option<(u32, u32)>) -> Result<(), FsError> {
        self.may_be_taken(name)?;
        crate::drivers::safe_fs::set_rights(file.as_fd(), self.beside.path(), rights(0o644, owner))?;
        self.dir.rename_into(OsStr::new(BODY), &self.beside, name)
    }

    /// Lets all that is in the folder of the tree come to stand beside it.
    ///
    /// # Errors
    /// Where a directory is to take the place of something else, or the other way round.
    pub fn publish_tree(&self, tree: &Dir, folder: &Path) -> Result<(), FsError> {
        let wanted = tree.open_below(folder, Crossing::Nothing)?;
        if kind_of(&wanted, OsStr::new(marker::FILE))?.is_some() {
            self.may_be_taken(OsStr::new(marker::FILE))?;
        }
        merge(&wanted, &self.beside)
    }

    /// Lets the one file that is in the folder of the tree come to stand beside it, by this name.
    ///
    /// # Errors
    /// Where there is not exactly one.
    pub fn publish_only(&self, tree: &Dir, folder: &Path, name: &OsStr) -> Result<(), FsError> {
        self.may_be_taken(name)?;
        let not_one = || FsError::NotAFile { path: self.beside.path().join(name) };
        let mut dir = tree.open_below(folder, Crossing::Nothing)?;
        loop {
            let names = dir.names_up_to(1)?.ok_or_else(not_one)?;
            let only = names.first().ok_or_else(not_one)?;
            match kind_of(&dir, only)?.ok_or_else(not_one)? {
                FileType::RegularFile => return dir.rename_into(only, &self.beside, name),
                FileType::Directory => dir = dir.open_below(Path::new(only), Crossing::Nothing)?,
                FileType::Symlink
                | FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Unknown => return Err(not_one()),
            }
        }
    }

    /// What tells of artifacts is no artifact.
    fn may_be_taken(&self, name: &OsStr) -> Result<(), FsError> {
        if name == marker::FILE {
            return Err(FsError::io("replace", self.beside.path().join(name), Errno::PERM));
        }
        Ok(())
    }

    /// Makes what was published durable, and removes what is left.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn finish(self) -> Result<(), FsError> {
        let Self { beside, name, dir } = self;
        drop(dir);
        beside.remove_tree(&name)?;
        rustix::fs::syncfs(&beside).map_err(|errno| FsError::io("sync", beside.path(), errno))
    }

    /// Removes it with all that is in it.
    ///
    /// # Errors
    /// When it can't be removed; then the next one that is made does.
    pub fn discard(self) -> Result<(), FsError> {
        let Self { beside, name, dir } = self;
        drop(dir);
        beside.remove_tree(&name)
    }
}

/// Moves all that is in `from` into `to`. Directories that both have become one; files take the place of files.
fn merge(from: &Dir, to: &Dir) -> Result<(), FsError> {
    for name in from.names()? {
        let is_dir = kind_of(from, &name)? == Some(FileType::Directory);
        match kind_of(to, &name)? {
            Some(FileType::Directory) if is_dir => {
                let inner = |dir: &Dir| dir.open_below(Path::new(&name), Crossing::Nothing);
                merge(&inner(from)?, &inner(to)?)?;
            }
            Some(FileType::Directory) => return Err(FsError::NotAFile { path: to.path().join(&name) }),
            Some(_) if is_dir => return Err(FsError::NotADirectory { path: to.path().join(&name) }),
            Some(_) | None => from.rename_into(&name, to, &name)?,
        }
    }
    Ok(())
}

fn kind_of(dir: &Dir, name: &OsStr) -> Result<Option<FileType>, FsError> {
    Ok(dir.stat_name(name)?.map(|stat| FileType::from_raw_mode(stat.st_mode)))
}

fn rights(mode: u32, owner: Option<(u32, u32)>) -> Rights {
    Rights::Exact { mode, owner }
}
