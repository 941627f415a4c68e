//! Prepares artifacts before their files are published.
//!
//! | destination | staging directory |
//! | --- | --- |
//! | the task's directory, the shared one | `.staging/TASK` in the allocation's directory |
//! | `secrets` | `.staging` in the task's `private`: in memory too |
//!
//! No task may write to it or enter it, so nobody can swap what the agent removes or fills. The remains of a crash are
//! removed by the task's next try, at the agent's next start, and with the allocation. All calls block.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    os::fd::AsFd as _,
    path::Path,
};

use herdlet_base::{
    artifact::destination::{Base, Dirs, rights},
    safe_fs::{Crossing, Dir, FileOwner, FsError, Rights},
};
use rustix::{
    fs::{FileType, Mode, OFlags},
    io::Errno,
};

use super::marker;

/// The staging directory in an allocation's directory, or in a task's `private`.
pub const NAME: &str = ".staging";

/// Only for the agent.
const CLOSED: Rights = Rights::Exact { mode: 0o700, owner: None };

const BODY: &str = "body";
const TREE: &str = "tree";

/// One artifact in preparation.
pub struct Staging {
    above: Dir,
    name: OsString,
    dir: Dir,
    owner: Option<FileOwner>,
}

/// Removes all staged artifacts of a task. Must not be called during a fetch for it.
///
/// # Errors
/// If they can't be removed.
pub fn clear(dirs: &Dirs) -> Result<(), FsError> {
    let missing_is_fine = |removed| match removed {
        Err(error @ FsError::Io { .. }) if error.is_missing() => Ok(()),
        removed => removed,
    };
    let (alloc, task) = alloc_and_name(dirs);
    missing_is_fine(Dir::open(alloc).and_then(|alloc| match alloc.find(OsStr::new(NAME))? {
        Some(staging) => staging.remove_tree(task),
        None => Ok(()),
    }))?;
    missing_is_fine(private(dirs).and_then(|private| private.remove_tree(OsStr::new(NAME))))
}

/// Opens the staging directory for artifacts that go to `base`; creates it if it is missing.
fn open(base: Base, dirs: &Dirs) -> Result<Dir, FsError> {
    match base {
        Base::Task | Base::Shared => {
            let (alloc, task) = alloc_and_name(dirs);
            Dir::open(alloc)?.make(OsStr::new(NAME), CLOSED)?.make(task, CLOSED)
        }
        Base::Secrets => private(dirs)?.make(OsStr::new(NAME), CLOSED),
    }
}

fn alloc_and_name(dirs: &Dirs) -> (&Path, &OsStr) {
    (dirs.task.parent().unwrap_or(Path::new("/")), dirs.task.file_name().unwrap_or_default())
}

fn private(dirs: &Dirs) -> Result<Dir, FsError> {
    let missing = || FsError::io("open", dirs.task.join("private"), Errno::NOENT);
    Dir::open(&dirs.task)?.find(OsStr::new("private"))?.ok_or_else(missing)
}

impl Staging {
    /// Starts an artifact that goes to `base` and will belong to `owner`; `id` distinguishes it from the task's others.
    ///
    /// # Errors
    /// If it can't be created.
    pub fn make(base: Base, dirs: &Dirs, id: &str, owner: Option<FileOwner>) -> Result<Self, FsError> {
        let (above, name) = (open(base, dirs)?, OsString::from(id));
        above.remove_tree(&name)?;
        let dir = above.make(&name, CLOSED)?;
        Ok(Self { above, name, dir, owner })
    }

    /// Creates a file for the download.
    ///
    /// # Errors
    /// If it can't be created.
    pub fn body(&self) -> Result<File, FsError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.dir, BODY, flags, Mode::from_raw_mode(0o600));
        Ok(File::from(fd.map_err(|errno| FsError::io("create", self.dir.path().join(BODY), errno))?))
    }

    /// Creates an empty directory that belongs to the owner.
    ///
    /// # Errors
    /// If it can't be created.
    pub fn tree(&self) -> Result<Dir, FsError> {
        self.dir.make(OsStr::new(TREE), rights(0o755, self.owner.as_ref()))
    }

    /// Publishes the downloaded file in `place`.
    ///
    /// # Errors
    /// If there is a directory with this name.
    pub fn publish_body(&self, file: &File, place: &Dir, name: &OsStr) -> Result<(), FsError> {
        may_be_taken(place, name)?;
        herdlet_base::safe_fs::set_rights(file.as_fd(), place.path(), rights(0o644, self.owner.as_ref()))?;
        self.dir.move_file(OsStr::new(BODY), place, name)
    }

    /// Publishes the contents of `folder` in the tree to `place`.
    ///
    /// # Errors
    /// If a directory would replace a file, or a file a directory.
    pub fn publish_tree(&self, tree: &Dir, folder: &Path, place: &Dir) -> Result<(), FsError> {
        let wanted = tree.open_below(folder, Crossing::Nothing)?;
        if kind_of(&wanted, OsStr::new(marker::FILE))?.is_some() {
            may_be_taken(place, OsStr::new(marker::FILE))?;
        }
        self.merge(&wanted, place)
    }

    /// Publishes the only file in `folder` of the tree to `place`, under this name.
    ///
    /// # Errors
    /// If there is not exactly one.
    pub fn publish_only(&self, tree: &Dir, folder: &Path, place: (&Dir, &OsStr)) -> Result<(), FsError> {
        let (place, name) = place;
        may_be_taken(place, name)?;
        let not_one = || FsError::NotAFile { path: place.path().join(name) };
        let mut dir = tree.open_below(folder, Crossing::Nothing)?;
        loop {
            let names = dir.names_up_to(1)?.ok_or_else(not_one)?;
            let only = names.first().ok_or_else(not_one)?;
            match kind_of(&dir, only)?.ok_or_else(not_one)? {
                FileType::RegularFile => return dir.move_file(only, place, name),
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

    /// Makes the published files in `place` durable, and removes the rest.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn finish(self, place: &Dir) -> Result<(), FsError> {
        self.discard()?;
        rustix::fs::syncfs(place).map_err(|errno| FsError::io("sync", place.path(), errno))
    }

    /// Removes the staged artifact.
    ///
    /// # Errors
    /// If it can't be removed; the task's next try then removes it.
    pub fn discard(self) -> Result<(), FsError> {
        let Self { above, name, dir, owner: _ } = self;
        drop(dir);
        above.remove_tree(&name)
    }

    /// Moves the entries of `from` into `to`. Directories in both are merged; files replace files.
    fn merge(&self, from: &Dir, to: &Dir) -> Result<(), FsError> {
        for name in from.names()? {
            let inner = |dir: &Dir| dir.open_below(Path::new(&name), Crossing::Nothing);
            let is_dir = kind_of(from, &name)? == Some(FileType::Directory);
            match kind_of(to, &name)? {
                Some(FileType::Directory) if is_dir => {
                    let there = inner(to)?;
                    to.check_entry(&there, self.owner.as_ref())?;
                    self.merge(&inner(from)?, &there)?;
                }
                Some(FileType::Directory) => {
                    return Err(FsError::NotAFile { path: to.path().join(&name) });
                }
                Some(_) if is_dir => return Err(FsError::NotADirectory { path: to.path().join(&name) }),
                None if is_dir => match from.rename_into(&name, to, &name) {
                    Err(error) if error.is_across() => {
                        let (from, mode) = (inner(from)?, inner(from)?.stat()?.st_mode & 0o777);
                        let there = to.make(&name, rights(mode, self.owner.as_ref()))?;
                        to.check_entry(&there, self.owner.as_ref())?;
                        self.merge(&from, &there)?;
                    }
                    renamed => renamed?,
                },
                Some(_) | None => from.move_file(&name, to, &name)?,
            }
        }
        Ok(())
    }
}

/// An artifact may not replace the file with the marks.
fn may_be_taken(place: &Dir, name: &OsStr) -> Result<(), FsError> {
    if name == marker::FILE {
        return Err(FsError::io("replace", place.path().join(name), Errno::PERM));
    }
    Ok(())
}

fn kind_of(dir: &Dir, name: &OsStr) -> Result<Option<FileType>, FsError> {
    Ok(dir.stat_name(name)?.map(|stat| FileType::from_raw_mode(stat.st_mode)))
}
