//! Files and directories in places where tasks may write: every step goes through a held directory, no link is followed
//! below the first one, and nothing is removed across a mount.
//!
//! In: a directory that only the agent can replace ([`Dir::open`]), then names relative to it. Out: directories, file
//! contents, and errors that name the path. Everything here blocks: call it where blocking is allowed.
//! It must not know what the directories are for.

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

/// An open directory. Its path is for messages only; whoever renames it changes nothing for us.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

/// Mode and owner that a new file or directory gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// Exactly this mode, whatever the umask; owned by `owner` where given.
    Exact { mode: u32, owner: Option<(u32, u32)> },
    /// This mode less the umask, owned by us. Something that exists already stays as it is.
    Masked { mode: u32 },
}

impl Rights {
    /// Whether they take rights from others and give none to anybody.
    fn close(self) -> bool {
        match self {
            Self::Exact { mode, owner } => mode & 0o077 == 0 && owner.is_none(),
            Self::Masked { .. } => false,
        }
    }
}

/// How far a path below a [`Dir`] may lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crossing {
    /// Also into what is mounted below.
    Mounts,
    /// Only within the directory's own mount.
    Nothing,
}

impl Dir {
    /// Opens a directory that only the agent and root can replace. Links on the way are followed: an operator may have
    /// put the state directory elsewhere.
    ///
    /// # Errors
    ///
    /// When it is not there, not a directory, or may not be entered.
    pub fn open(path: &Path) -> Result<Self, FsError> {
        let fd = rustix::fs::open(path, DIRECTORY, Mode::empty()).map_err(|errno| open_error(path, errno))?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Opens such a directory, making it and what is above it with `mode` where it is missing.
    ///
    /// # Errors
    ///
    /// When it can't be made or opened.
    pub fn open_or_make(path: &Path, mode: u32) -> Result<Self, FsError> {
        use std::os::unix::fs::DirBuilderExt as _;
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(path)
            .map_err(|error| FsError::io("create", path, error))?;
        Self::open(path)
    }

    /// Where it was opened; for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where it is now, without links, as the kernel's mount table writes it.
    ///
    /// # Errors
    ///
    /// When `/proc` can't be read.
    pub fn real_path(&self) -> Result<PathBuf, FsError> {
        std::fs::read_link(proc_path(self.fd.as_fd(), None))
            .map_err(|error| FsError::io("locate", &self.path, error))
    }

    /// Opens the directory `name` in it; `None` where nothing is there. Never follows a link; enters mounts.
    ///
    /// # Errors
    ///
    /// When something else stands there or it may not be entered.
    pub fn find(&self, name: &OsStr) -> Result<Option<Self>, FsError> {
        match self.open_below(Path::new(name), Crossing::Mounts) {
            Ok(dir) => Ok(Some(dir)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens a directory below it by a relative path, of which no part may be a link.
    ///
    /// # Errors
    ///
    /// [`FsError::Link`] and [`FsError::Mounted`] name the part at fault; otherwise as [`Dir::find`].
    pub fn open_below(&self, path: &Path, crossing: Crossing) -> Result<Self, FsError> {
        let here = self.path.join(path);
        if path.as_os_str().is_empty() {
            let fd = self.fd.try_clone().map_err(|error| FsError::io("open", &here, error))?;
            return Ok(Self { fd, path: here });
        }
        check_relative(path)?;
        match openat2(self.fd.as_fd(), path, DIRECTORY, crossing) {
            Ok(fd) => Ok(Self { fd, path: here }),
            Err(Errno::LOOP | Errno::XDEV | Errno::NOTDIR) => Err(self.blame(path, crossing)),
            Err(errno) => Err(open_error(&here, errno)),
        }
    }

    /// Makes the directory `name` where it is missing, gives it its rights, opens it. One that exists already keeps its rights, unless the
    /// new ones leave it to the agent alone: a user who may write to this directory can put another user's there at any moment.
    ///
    /// # Errors
    ///
    /// When something else stands there, or it can't be made.
    pub fn make(&self, name: &OsStr, rights: Rights) -> Result<Self, FsError> {
        check_name(name)?;
        let here = self.path.join(name);
        let mode = match rights {
            // Closed until mode and owner are right.
            Rights::Exact { mode, .. } => mode & 0o700,
            Rights::Masked { mode } => mode,
        };
        match rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(FsError::io("create", here, errno)),
        }
        let dir = self.open_below(Path::new(name), Crossing::Mounts)?;
        match rights {
            Rights::Exact { .. } if rights.close() || dir.is_as_made(mode)? => dir.set_rights(rights)?,
            Rights::Exact { .. } | Rights::Masked { .. } => {}
        }
        Ok(dir)
    }

    /// Whether it looks like a directory that was made with `mode` just now: the agent's, with nothing in it.
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

    /// Makes every part of `path` that is missing and opens the last. Parts that exist keep their rights.
    ///
    /// # Errors
    ///
    /// As [`Dir::make`]; a link or a mount on the way is an error that names it.
    pub fn make_all(&self, path: &Path, rights: Rights) -> Result<Self, FsError> {
        self.make_each(path, rights, |_, _| Ok(()))
    }

    /// `check` is called with each directory and the next one in it, before that is entered.
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

    /// Gives the directory itself these rights, where it hasn't them already.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub fn set_rights(&self, rights: Rights) -> Result<(), FsError> {
        set_rights(self.fd.as_fd(), &self.path, rights)
    }

    /// Gives the directory itself to a user and its group.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub fn set_owner(&self, (uid, gid): (u32, u32)) -> Result<(), FsError> {
        rustix::fs::fchown(&self.fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
            .map_err(|errno| FsError::io("change the owner of", &self.path, errno))
    }

    /// Device, inode, mode and owner of the directory itself.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub fn stat(&self) -> Result<Stat, FsError> {
        rustix::fs::fstat(&self.fd).map_err(|errno| FsError::io("examine", &self.path, errno))
    }

    /// Kind, mode and owner of `name` itself, link or not; `None` where nothing is there.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub fn stat_name(&self, name: &OsStr) -> Result<Option<Stat>, FsError> {
        check_name(name)?;
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(FsError::io("examine", self.path.join(name), errno)),
        }
    }

    /// Replaces the file `name` by `bytes` in one step: readers see the old content or the new, after whatever it outlives
    /// too. A link that stands there is replaced, not followed.
    ///
    /// # Errors
    ///
    /// When a directory stands there or the file can't be written; the old content stays then.
    pub fn write_file(
        &self,
        name: &OsStr,
        bytes: &[u8],
        rights: Rights,
        outlives: Outlives,
    ) -> Result<(), FsError> {
        check_name(name)?;
        let here = self.path.join(name);
        let mut draft = OsString::from(".");
        draft.push(name);
        draft.push(".new");
        // A file that a crash left, or a link that a user put there. A directory would be a user's: it stays, and this fails.
        self.unlink(&draft)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, &draft, flags, Mode::from_raw_mode(0o600))
            .map_err(|errno| FsError::io("create", &here, errno))?;
        let written = set_rights(fd.as_fd(), &here, rights).and_then(|()| {
            let mut file = std::fs::File::from(fd);
            file.write_all(bytes)
                .and_then(|()| match outlives {
                    Outlives::Processes => Ok(()),
                    Outlives::PowerCuts => file.sync_all(),
                })
                .map_err(|error| FsError::io("write", &here, error))?;
            rustix::fs::renameat(&self.fd, &draft, &self.fd, name)
                .map_err(|errno| FsError::io("write", &here, errno))
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

    /// Reads the plain file `name`; `None` where nothing is there.
    ///
    /// # Errors
    ///
    /// When it is a link, something else than a file, or larger than `bytes_max`.
    pub fn read_file(&self, name: &OsStr, bytes_max: u64) -> Result<Option<Vec<u8>>, FsError> {
        let Some(file) = self.open_file(name)? else { return Ok(None) };
        let here = self.path.join(name);
        let mut bytes = Vec::new();
        file.take(bytes_max.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(|error| FsError::io("read", &here, error))?;
        if u64::try_from(bytes.len()).is_ok_and(|len| len > bytes_max) {
            return Err(FsError::TooLarge { path: here, bytes_max });
        }
        Ok(Some(bytes))
    }

    /// Opens the plain file `name` for reading; `None` where nothing is there.
    ///
    /// # Errors
    ///
    /// When it is a link or something else than a file.
    pub fn open_file(&self, name: &OsStr) -> Result<Option<std::fs::File>, FsError> {
        check_name(name)?;
        let here = self.path.join(name);
        // NONBLOCK: a fifo put here must not hold us up.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => std::fs::File::from(fd),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(FsError::Link { path: here }),
            Err(errno) => return Err(FsError::io("open", here, errno)),
        };
        let about = file.metadata().map_err(|error| FsError::io("examine", &here, error))?;
        if !about.is_file() {
            return Err(FsError::NotAFile { path: here });
        }
        Ok(Some(file))
    }

    /// Makes the link `name` that says `target`.
    ///
    /// # Errors
    ///
    /// When something stands there or the system refuses.
    pub fn link(&self, name: &OsStr, target: &Path) -> Result<(), FsError> {
        check_name(name)?;
        rustix::fs::symlinkat(target, &self.fd, name)
            .map_err(|errno| FsError::io("create", self.path.join(name), errno))
    }

    /// What the link `name` says; `None` where nothing is there or it is no link.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub fn read_link(&self, name: &OsStr) -> Result<Option<PathBuf>, FsError> {
        check_name(name)?;
        match rustix::fs::readlinkat(&self.fd, name, Vec::new()) {
            Ok(target) => Ok(Some(PathBuf::from(OsString::from_vec(target.into_bytes())))),
            Err(Errno::NOENT | Errno::INVAL) => Ok(None),
            Err(errno) => Err(FsError::io("read", self.path.join(name), errno)),
        }
    }

    /// Removes the file or link `name`; nothing there is fine.
    ///
    /// # Errors
    ///
    /// When it is a directory or the system refuses.
    pub fn unlink(&self, name: &OsStr) -> Result<(), FsError> {
        self.unlink_with(name, AtFlags::empty())
    }

    /// Removes the empty directory `name`; nothing there is fine.
    ///
    /// # Errors
    ///
    /// When it is not empty or the system refuses.
    pub fn remove_empty(&self, name: &OsStr) -> Result<(), FsError> {
        self.unlink_with(name, AtFlags::REMOVEDIR)
    }

    /// Renames `from` to `to` within it; `to` must not be a directory with content.
    ///
    /// # Errors
    ///
    /// When `from` is not there or the system refuses.
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> Result<(), FsError> {
        check_name(from)?;
        check_name(to)?;
        rustix::fs::renameat(&self.fd, from, &self.fd, to)
            .map_err(|errno| FsError::io("rename", self.path.join(from), errno))
    }

    /// Renames `from` in it to `to` in another one of the same file system; what stands there gives way, unless it is a directory with
    /// content or only one of both is a directory.
    ///
    /// # Errors
    ///
    /// When `from` is not there or the system refuses.
    pub fn rename_into(&self, from: &OsStr, other: &Self, to: &OsStr) -> Result<(), FsError> {
        check_name(from)?;
        check_name(to)?;
        rustix::fs::renameat(&self.fd, from, &other.fd, to)
            .map_err(|errno| FsError::io("replace", other.path.join(to), errno))
    }

    /// Removes `name` with all that is in it, following no link and entering no mount. Nothing there is fine. Can be
    /// interrupted at any time and done again.
    ///
    /// # Errors
    ///
    /// [`FsError::Mounted`] where something is still mounted below.
    pub fn remove_tree(&self, name: &OsStr) -> Result<(), FsError> {
        check_name(name)?;
        remove::tree(self, name)
    }

    /// Makes names in it durable.
    ///
    /// # Errors
    ///
    /// When the disk fails.
    pub fn sync(&self) -> Result<(), FsError> {
        rustix::fs::fsync(&self.fd).map_err(|errno| FsError::io("sync", &self.path, errno))
    }

    /// `/proc/self/fd/N/name`: a path to `name` in this very directory for calls that take only paths.
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

    /// Which part of `path` stopped the kernel.
    fn blame(&self, path: &Path, crossing: Crossing) -> FsError {
        let mut reached = PathBuf::new();
        for part in path.components() {
            reached.push(part);
            let here = self.path.join(&reached);
            match openat2(
                self.fd.as_fd(),
                &reached,
                OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                crossing,
            ) {
                Err(Errno::XDEV) => return FsError::Mounted { path: here },
                Err(errno) => return open_error(&here, errno),
                Ok(fd) => match rustix::fs::fstat(&fd).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
                    Ok(FileType::Symlink) => return FsError::Link { path: here },
                    Ok(FileType::Directory) => {}
                    Ok(_) => return FsError::NotADirectory { path: here },
                    Err(errno) => return FsError::io("examine", here, errno),
                },
            }
        }
        // It was replaced by a directory in the meantime.
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

/// Gives an open file or directory these rights, where it hasn't them already; `path` is for messages.
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

/// The same of any descriptor; without a name it is what that holds.
pub fn proc_path(fd: BorrowedFd<'_>, name: Option<&OsStr>) -> PathBuf {
    let mut path = PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    if let Some(name) = name {
        path.push(name);
    }
    path
}

/// A name is one plain part.
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

/// Opens an allocation's logs directory. Tasks may replace it, and what it lies in, by links: none is followed.
///
/// # Errors
///
/// When it is not there, or a link is in its way.
pub fn open_logs(logs: &Path) -> Result<Dir, FsError> {
    // The allocation's own directory is nobody's but ours.
    let top = logs.ancestors().nth(2).unwrap_or(Path::new("/"));
    Dir::open(top)?.open_below(logs.strip_prefix(top).unwrap_or(logs), Crossing::Mounts)
}

#[cfg(test)]
mod tests;
