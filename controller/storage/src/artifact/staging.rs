//! Where an artifact is made ready before its files come to stand in their places.
//!
//! | where it goes | where it is made ready |
//! | --- | --- |
//! | the task's directory, the shared one | `.staging/TASK` in the allocation's directory |
//! | `secrets` | `.staging` in the task's `private`: in memory too |
//!
//! No task may write there or enter it: nobody can exchange what the agent removes or fills. What a crash left goes with the task's next try,
//! with the agent's next start, and with the allocation. Everything here blocks.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    os::fd::AsFd as _,
    path::Path,
};

use herdlet_base::{
    artifact::place::{Base, Dirs, rights},
    safe_fs::{Crossing, Dir, FileOwner, FsError, Rights},
};
use rustix::{
    fs::{FileType, Mode, OFlags},
    io::Errno,
};

use super::marker;

/// What is made ready in an allocation's directory, or in a task's `private`.
pub const NAME: &str = ".staging";

/// Closed to all but the agent.
const CLOSED: Rights = Rights::Exact { mode: 0o700, owner: None };

const BODY: &str = "body";
const TREE: &str = "tree";

/// One artifact that is made ready.
pub struct Staging {
    above: Dir,
    name: OsString,
    dir: Dir,
    owner: Option<FileOwner>,
}

/// Removes all that was made ready for a task, and where it was. To be called while nothing is fetched for it.
///
/// # Errors
/// When it can't be removed.
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

/// Where artifacts that go to `base` are made ready, made where it is missing.
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
    /// Begins one that goes to `base` and is to belong to `owner`; `id` tells it from the task's others.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn make(base: Base, dirs: &Dirs, id: &str, owner: Option<FileOwner>) -> Result<Self, FsError> {
        let (above, name) = (open(base, dirs)?, OsString::from(id));
        above.remove_tree(&name)?;
        let dir = above.make(&name, CLOSED)?;
        Ok(Self { above, name, dir, owner })
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

    /// An empty directory in it, which belongs to the owner.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn tree(&self) -> Result<Dir, FsError> {
        self.dir.make(OsStr::new(TREE), rights(0o755, self.owner.as_ref()))
    }

    /// Lets the file come to stand in `place`.
    ///
    /// # Errors
    /// When a directory stands there.
    pub fn publish_body(&self, file: &File, place: &Dir, name: &OsStr) -> Result<(), FsError> {
        may_be_taken(place, name)?;
        herdlet_base::safe_fs::set_rights(file.as_fd(), place.path(), rights(0o644, self.owner.as_ref()))?;
        self.dir.move_file(OsStr::new(BODY), place, name)
    }

    /// Lets all that is in the folder of the tree come to stand in `place`.
    ///
    /// # Errors
    /// Where a directory is to take the place of something else, or the other way round.
    pub fn publish_tree(&self, tree: &Dir, folder: &Path, place: &Dir) -> Result<(), FsError> {
        let wanted = tree.open_below(folder, Crossing::Nothing)?;
        if kind_of(&wanted, OsStr::new(marker::FILE))?.is_some() {
            may_be_taken(place, OsStr::new(marker::FILE))?;
        }
        self.merge(&wanted, place)
    }

    /// Lets the one file that is in the folder of the tree come to stand in `place`, by this name.
    ///
    /// # Errors
    /// Where there is not exactly one.
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

    /// Makes what was published in `place` durable, and removes what is left.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn finish(self, place: &Dir) -> Result<(), FsError> {
        self.discard()?;
        rustix::fs::syncfs(place).map_err(|errno| FsError::io("sync", place.path(), errno))
    }

    /// Removes it with all that is in it.
    ///
    /// # Errors
    /// When it can't be removed; then the task's next try does.
    pub fn discard(self) -> Result<(), FsError> {
        let Self { above, name, dir, owner: _ } = self;
        drop(dir);
        above.remove_tree(&name)
    }

    /// Moves all that is in `from` into `to`. Directories that both have become one; files take the place of files.
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

/// What tells of artifacts is no artifact.
fn may_be_taken(place: &Dir, name: &OsStr) -> Result<(), FsError> {
    if name == marker::FILE {
        return Err(FsError::io("replace", place.path().join(name), Errno::PERM));
    }
    Ok(())
}

fn kind_of(dir: &Dir, name: &OsStr) -> Result<Option<FileType>, FsError> {
    Ok(dir.stat_name(name)?.map(|stat| FileType::from_raw_mode(stat.st_mode)))
}
