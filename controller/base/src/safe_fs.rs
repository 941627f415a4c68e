//! File access in places where tasks may write: every step goes through an open directory, no link is followed below
//! the first one, and nothing is removed across a mount.
//!
//! In: a directory that only the agent can replace ([`Dir::open`]), then names relative to it. Out: directories, file
//! contents, and errors with the path. All calls block: call them where blocking is allowed. This module does not know
//! the purpose of the directories.

use std::{
    ffi::{OsStr, OsString},
    io::{Read as _, Write as _},
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStringExt as _,
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid},
    io::Errno,
};

pub use crate::durable::Outlives;

mod carry;
mod entrust;
mod error;
mod list;
mod remove;

pub use entrust::FileOwner;
pub use error::FsError;

/// An open directory. Its path is for messages only; renaming it does not affect this value.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

/// Mode and owner of a new file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// Exactly this mode, regardless of the umask; owned by `owner` if given.
    Exact { mode: u32, owner: Option<(u32, u32)> },
    /// This mode minus the umask, owned by us. Existing files and directories are left unchanged.
    Masked { mode: u32 },
}

impl Rights {
    /// Whether these rights revoke access of others and grant none.
    fn close(self) -> bool {
        match self {
            Self::Exact { mode, owner } => mode & 0o077 == 0 && owner.is_none(),
            Self::Masked { .. } => false,
        }
    }
}

/// Which mounts a path below a [`Dir`] may cross.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crossing {
    /// May enter mounts below.
    Mounts,
    /// Stays within the directory's own mount.
    Nothing,
}

impl Dir {
    /// Opens a directory that only the agent and root can replace. Follows links: an operator may have moved the state
    /// directory.
    ///
    /// # Errors
    ///
    /// If it does not exist, is not a directory, or may not be entered.
    pub fn open(path: &Path) -> Result<Self, FsError> {
        let fd = rustix::fs::open(path, DIRECTORY, Mode::empty()).map_err(|errno| open_error(path, errno))?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// As [`Dir::open`]; `None` if there is none.
    ///
    /// # Errors
    ///
    /// If it is not a directory or may not be entered.
    pub fn open_if_present(path: &Path) -> Result<Option<Self>, FsError> {
        match Self::open(path) {
            Ok(dir) => Ok(Some(dir)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens such a directory; creates it and missing parents with `mode`.
    ///
    /// # Errors
    ///
    /// If it can't be created or opened.
    pub fn open_or_make(path: &Path, mode: u32) -> Result<Self, FsError> {
        use std::os::unix::fs::DirBuilderExt as _;
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(path)
            .map_err(|error| FsError::io("create", path, error))?;
        Self::open(path)
    }

    /// A directory that is open already; `path` is for messages.
    pub fn from_fd(fd: OwnedFd, path: PathBuf) -> Self {
        Self { fd, path }
    }

    /// The path it was opened by; for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its current path without links, as in the kernel's mount table.
    ///
    /// # Errors
    ///
    /// If `/proc` can't be read.
    pub fn real_path(&self) -> Result<PathBuf, FsError> {
        std::fs::read_link(proc_path(self.fd.as_fd(), None))
            .map_err(|error| FsError::io("locate", &self.path, error))
    }

    /// Opens the directory `name` in it; `None` if there is none. Never follows a link; enters mounts.
    ///
    /// # Errors
    ///
    /// If `name` is not a directory or may not be entered.
    pub fn find(&self, name: &OsStr) -> Result<Option<Self>, FsError> {
        match self.open_below(Path::new(name), Crossing::Mounts) {
            Ok(dir) => Ok(Some(dir)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens a directory below it by a relative path without links.
    ///
    /// # Errors
    ///
    /// [`FsError::Link`] and [`FsError::Mounted`] name the component at fault; otherwise as [`Dir::find`].
    pub fn open_below(&self, path: &Path, crossing: Crossing) -> Result<Self, FsError> {
        let full_path = self.path.join(path);
        if path.as_os_str().is_empty() {
            let fd = self.fd.try_clone().map_err(|error| FsError::io("open", &full_path, error))?;
            return Ok(Self { fd, path: full_path });
        }
        check_relative(path)?;
        match openat2(self.fd.as_fd(), path, DIRECTORY, crossing) {
            Ok(fd) => Ok(Self { fd, path: full_path }),
            Err(Errno::LOOP | Errno::XDEV | Errno::NOTDIR) => Err(self.blame(path, crossing)),
            Err(errno) => Err(open_error(&full_path, errno)),
        }
    }

    /// Opens the directory `name`; creates it with `rights` if it is missing. An existing one keeps its rights, unless
    /// the new ones leave it to the agent alone: a user who may write to this directory can put another user's there at
    /// any moment.
    ///
    /// # Errors
    ///
    /// If `name` exists and is not a directory, or it can't be created.
    pub fn make(&self, name: &OsStr, rights: Rights) -> Result<Self, FsError> {
        check_name(name)?;
        let full_path = self.path.join(name);
        let mode = match rights {
            // Closed until mode and owner are right.
            Rights::Exact { mode, .. } => mode & 0o700,
            Rights::Masked { mode } => mode,
        };
        match rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(FsError::io("create", full_path, errno)),
        }
        let dir = self.open_below(Path::new(name), Crossing::Mounts)?;
        match rights {
            Rights::Exact { .. } if rights.close() || dir.is_as_made(mode)? => dir.set_rights(rights)?,
            Rights::Exact { .. } | Rights::Masked { .. } => {}
        }
        Ok(dir)
    }

    /// Whether it could have just been created with `mode`: it is the agent's, and empty.
    fn is_as_made(&self, mode: u32) -> Result<bool, FsError> {
        let stat = self.stat()?;
        let is_ours =
            stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o777 == mode & 0o777;
        if !is_ours {
            return Ok(false);
        }
        let mut is_empty = true;
        self.each_name(|_| {
            is_empty = false;
            false
        })?;
        Ok(is_empty)
    }

    /// Opens the directory at `path` and creates missing components. Existing ones keep their rights.
    ///
    /// # Errors
    ///
    /// As [`Dir::make`]; a link or a mount on the way is an error that names it.
    pub fn make_all(&self, path: &Path, rights: Rights) -> Result<Self, FsError> {
        self.make_each(path, rights, |_, _| Ok(()))
    }

    /// Calls `check` with each directory and the next one in it, before entering that.
    fn make_each(
        &self,
        path: &Path,
        rights: Rights,
        check: impl Fn(&Self, &Self) -> Result<(), FsError>,
    ) -> Result<Self, FsError> {
        let mut dir = self.open_below(Path::new(""), Crossing::Nothing)?;
        for part in path.components() {
            let Component::Normal(name) = part else {
                return Err(FsError::Escapes { path: path.to_owned() });
            };
            let inner = match dir.open_below(Path::new(name), Crossing::Nothing) {
                Err(error) if error.is_missing() => dir.make(name, rights)?,
                found => found?,
            };
            check(&dir, &inner)?;
            dir = inner;
        }
        Ok(dir)
    }

    /// Sets the rights of the directory itself, if they differ.
    ///
    /// # Errors
    ///
    /// If a system call fails.
    pub fn set_rights(&self, rights: Rights) -> Result<(), FsError> {
        set_rights(self.fd.as_fd(), &self.path, rights)
    }

    /// Sets the user and group of the directory itself.
    ///
    /// # Errors
    ///
    /// If the system call fails.
    pub fn set_owner(&self, (uid, gid): (u32, u32)) -> Result<(), FsError> {
        rustix::fs::fchown(&self.fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
            .map_err(|errno| FsError::io("change the owner of", &self.path, errno))
    }

    /// Device, inode, mode and owner of the directory itself.
    ///
    /// # Errors
    ///
    /// If the system call fails.
    pub fn stat(&self) -> Result<Stat, FsError> {
        rustix::fs::fstat(&self.fd).map_err(|errno| FsError::io("examine", &self.path, errno))
    }

    /// Kind, mode and owner of `name` itself, not following links; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// If the system call fails.
    pub fn stat_name(&self, name: &OsStr) -> Result<Option<Stat>, FsError> {
        check_name(name)?;
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(FsError::io("examine", self.path.join(name), errno)),
        }
    }

    /// Replaces the file `name` by `bytes` in one step: readers see the old content or the new, also after the events
    /// in `outlives`. A link with this name is replaced, not followed.
    ///
    /// # Errors
    ///
    /// If there is a directory with this name or the file can't be written; the old content stays.
    pub fn write_file(
        &self,
        name: &OsStr,
        bytes: &[u8],
        rights: Rights,
        outlives: Outlives,
    ) -> Result<(), FsError> {
        check_name(name)?;
        let full_path = self.path.join(name);
        let draft = draft_of(name);
        // A file left by a crash, or a user's link. A directory would belong to a user: it stays, and this fails.
        self.unlink(&draft)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, &draft, flags, Mode::from_raw_mode(0o600))
            .map_err(|errno| FsError::io("create", &full_path, errno))?;
        let written = set_rights(fd.as_fd(), &full_path, rights).and_then(|()| {
            let mut file = std::fs::File::from(fd);
            file.write_all(bytes)
                .and_then(|()| match outlives {
                    Outlives::Processes => Ok(()),
                    Outlives::PowerCuts => file.sync_all(),
                })
                .map_err(|error| FsError::io("write", &full_path, error))?;
            rustix::fs::renameat(&self.fd, &draft, &self.fd, name)
                .map_err(|errno| FsError::io("write", &full_path, errno))
        });
        if written.is_err() {
            self.unlink(&draft)?;
        }
        written?;
        match outlives {
            Outlives::Processes => Ok(()),
            Outlives::PowerCuts => self.sync(),
        }
    }

    /// Removes a file that [`Self::write_file`] wrote, and what is left of an interrupted writing. Succeeds if neither
    /// exists.
    ///
    /// # Errors
    ///
    /// If it is a directory or the system call fails.
    pub fn remove_file(&self, name: &OsStr) -> Result<(), FsError> {
        self.unlink(&draft_of(name))?;
        self.unlink(name)
    }

    /// Reads the plain file `name`; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// If it is a link or not a plain file, or is larger than `bytes_max`.
    pub fn read_file(&self, name: &OsStr, bytes_max: u64) -> Result<Option<Vec<u8>>, FsError> {
        let Some(file) = self.open_file(name)? else { return Ok(None) };
        let full_path = self.path.join(name);
        let mut bytes = Vec::new();
        file.take(bytes_max.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(|error| FsError::io("read", &full_path, error))?;
        if u64::try_from(bytes.len()).is_ok_and(|len| len > bytes_max) {
            return Err(FsError::TooLarge { path: full_path, bytes_max });
        }
        Ok(Some(bytes))
    }

    /// Opens the plain file `name` for reading; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// If it is a link or not a plain file.
    pub fn open_file(&self, name: &OsStr) -> Result<Option<std::fs::File>, FsError> {
        check_name(name)?;
        let full_path = self.path.join(name);
        // NONBLOCK: a fifo put here must not block us.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => std::fs::File::from(fd),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(FsError::Link { path: full_path }),
            Err(errno) => return Err(FsError::io("open", full_path, errno)),
        };
        let about = file.metadata().map_err(|error| FsError::io("examine", &full_path, error))?;
        if !about.is_file() {
            return Err(FsError::NotAFile { path: full_path });
        }
        Ok(Some(file))
    }

    /// Creates the symbolic link `name` to `target`.
    ///
    /// # Errors
    ///
    /// If `name` exists or the system call fails.
    pub fn link(&self, name: &OsStr, target: &Path) -> Result<(), FsError> {
        check_name(name)?;
        rustix::fs::symlinkat(target, &self.fd, name)
            .map_err(|errno| FsError::io("create", self.path.join(name), errno))
    }

    /// The target of the link `name`; `None` if it does not exist or is not a link.
    ///
    /// # Errors
    ///
    /// If the system call fails.
    pub fn read_link(&self, name: &OsStr) -> Result<Option<PathBuf>, FsError> {
        check_name(name)?;
        match rustix::fs::readlinkat(&self.fd, name, Vec::new()) {
            Ok(target) => Ok(Some(PathBuf::from(OsString::from_vec(target.into_bytes())))),
            Err(Errno::NOENT | Errno::INVAL) => Ok(None),
            Err(errno) => Err(FsError::io("read", self.path.join(name), errno)),
        }
    }

    /// Removes the file or link `name`. Succeeds if it does not exist.
    ///
    /// # Errors
    ///
    /// If it is a directory or the system call fails.
    pub fn unlink(&self, name: &OsStr) -> Result<(), FsError> {
        self.unlink_with(name, AtFlags::empty())
    }

    /// Removes the empty directory `name`. Succeeds if it does not exist.
    ///
    /// # Errors
    ///
    /// If it is not empty or the system call fails.
    pub fn remove_empty(&self, name: &OsStr) -> Result<(), FsError> {
        self.unlink_with(name, AtFlags::REMOVEDIR)
    }

    /// Renames `from` to `to` in this directory; `to` must not be a directory that has entries.
    ///
    /// # Errors
    ///
    /// If `from` does not exist or the system call fails.
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> Result<(), FsError> {
        check_name(from)?;
        check_name(to)?;
        rustix::fs::renameat(&self.fd, from, &self.fd, to)
            .map_err(|errno| FsError::io("rename", self.path.join(from), errno))
    }

    /// Renames `from` in it to `to` in another directory of the same file system. Replaces an existing `to`, unless it
    /// is a directory that has entries or only one of both is a directory.
    ///
    /// # Errors
    ///
    /// If `from` does not exist or the system call fails.
    pub fn rename_into(&self, from: &OsStr, other: &Self, to: &OsStr) -> Result<(), FsError> {
        check_name(from)?;
        check_name(to)?;
        rustix::fs::renameat(&self.fd, from, &other.fd, to)
            .map_err(|errno| FsError::io("replace", other.path.join(to), errno))
    }

    /// Removes `name` recursively, following no link and entering no mount. Succeeds if it does not exist. Can be
    /// interrupted at any time and repeated.
    ///
    /// # Errors
    ///
    /// [`FsError::Mounted`] if something is still mounted below; otherwise if a system call fails.
    pub fn remove_tree(&self, name: &OsStr) -> Result<(), FsError> {
        check_name(name)?;
        remove::tree(self, name)
    }

    /// Makes the names in it durable.
    ///
    /// # Errors
    ///
    /// If the disk fails.
    pub fn sync(&self) -> Result<(), FsError> {
        rustix::fs::fsync(&self.fd).map_err(|errno| FsError::io("sync", &self.path, errno))
    }

    /// `/proc/self/fd/N/name`: a path to `name` in exactly this directory, for calls that accept only paths.
    pub fn proc_path(&self, name: &OsStr) -> PathBuf {
        proc_path(self.fd.as_fd(), Some(name))
    }

    fn unlink_with(&self, name: &OsStr, flags: AtFlags) -> Result<(), FsError> {
        check_name(name)?;
        match rustix::fs::unlinkat(&self.fd, name, flags) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(FsError::io("remove", self.path.join(name), errno)),
        }
    }

    /// Finds the component of `path` that made the kernel refuse.
    fn blame(&self, path: &Path, crossing: Crossing) -> FsError {
        let mut reached = PathBuf::new();
        for part in path.components() {
            reached.push(part);
            let full_path = self.path.join(&reached);
            match openat2(
                self.fd.as_fd(),
                &reached,
                OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                crossing,
            ) {
                Err(Errno::XDEV) => return FsError::Mounted { path: full_path },
                Err(errno) => return open_error(&full_path, errno),
                Ok(fd) => match rustix::fs::fstat(&fd).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
                    Ok(FileType::Symlink) => return FsError::Link { path: full_path },
                    Ok(FileType::Directory) => {}
                    Ok(_) => return FsError::NotADirectory { path: full_path },
                    Err(errno) => return FsError::io("examine", full_path, errno),
                },
            }
        }
        // A directory has replaced it in the meantime.
        FsError::io("open", self.path.join(path), Errno::AGAIN)
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn openat2(dir: BorrowedFd<'_>, path: &Path, flags: OFlags, crossing: Crossing) -> Result<OwnedFd, Errno> {
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    if !flags.contains(OFlags::PATH) {
        resolve |= ResolveFlags::NO_SYMLINKS;
    }
    match crossing {
        Crossing::Mounts => {}
        Crossing::Nothing => resolve |= ResolveFlags::NO_XDEV,
    }
    rustix::fs::openat2(dir, path, flags, Mode::empty(), resolve)
}

fn open_error(path: &Path, errno: Errno) -> FsError {
    match errno {
        Errno::LOOP => FsError::Link { path: path.to_owned() },
        Errno::NOTDIR => FsError::NotADirectory { path: path.to_owned() },
        _ => FsError::io("open", path, errno),
    }
}

/// Sets the rights of an open file or directory, if they differ; `path` is for messages.
pub fn set_rights(fd: BorrowedFd<'_>, path: &Path, rights: Rights) -> Result<(), FsError> {
    let Rights::Exact { mode, owner } = rights else { return Ok(()) };
    let stat = rustix::fs::fstat(fd).map_err(|errno| FsError::io("examine", path, errno))?;
    if let Some((uid, gid)) = owner
        && (stat.st_uid, stat.st_gid) != (uid, gid)
    {
        rustix::fs::fchown(fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
            .map_err(|errno| FsError::io("change the owner of", path, errno))?;
    }
    if Mode::from_raw_mode(stat.st_mode) != Mode::from_raw_mode(mode) {
        rustix::fs::fchmod(fd, Mode::from_raw_mode(mode))
            .map_err(|errno| FsError::io("change the mode of", path, errno))?;
    }
    Ok(())
}

/// As [`Dir::proc_path`] for any descriptor; without a name, the path of the descriptor itself.
pub fn proc_path(fd: BorrowedFd<'_>, name: Option<&OsStr>) -> PathBuf {
    let mut path = PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    if let Some(name) = name {
        path.push(name);
    }
    path
}

/// The name under which a file is written before it is renamed.
fn draft_of(name: &OsStr) -> OsString {
    let mut draft = OsString::from(".");
    draft.push(name);
    draft.push(".new");
    draft
}

/// A name must be a single plain component.
fn check_name(name: &OsStr) -> Result<(), FsError> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(part)), None) if part == name => Ok(()),
        _ => Err(FsError::Escapes { path: name.into() }),
    }
}

fn check_relative(path: &Path) -> Result<(), FsError> {
    if path.components().all(|part| matches!(part, Component::Normal(_))) {
        Ok(())
    } else {
        Err(FsError::Escapes { path: path.to_owned() })
    }
}

/// Opens an allocation's logs directory. Follows no link: tasks may replace it and its parent by links.
///
/// # Errors
///
/// If it does not exist, or a link is on the way.
pub fn open_logs(logs: &Path) -> Result<Dir, FsError> {
    // Only we can write to the allocation's own directory.
    let top = logs.ancestors().nth(2).unwrap_or(Path::new("/"));
    Dir::open(top)?.open_below(logs.strip_prefix(top).unwrap_or(logs), Crossing::Mounts)
}

#[cfg(test)]
mod tests;
