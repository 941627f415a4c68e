//! The directory that an archive is unpacked into, with limits.
//!
//! In: names, modes and contents from an archive. Out: files in the directory and nowhere else. Every name is walked
//! through open directories, following no link. A link's target may begin with at most as many `../` as the link's
//! directory is deep, and contain none later. So no chain of links leads out of the directory, whatever else is unpacked
//! beside it. Links of a layer have any target: only a container that has the layer in its root follows them. An error
//! rejects the whole archive: the caller discards everything.

use std::{
    ffi::{OsStr, OsString},
    io::Read,
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

use herdlet_base::safe_fs::{Crossing, Dir, FsError, Rights, set_rights};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{AtFlags, FileType, Gid, Mode, OFlags, Timestamps, Uid, XattrFlags},
    io::Errno,
};

use super::{
    error::TreeError,
    names::{inside, inside_layer, stays_inside},
};

/// The directory and its remaining limits.
pub(super) struct Tree {
    root: Dir,
    /// Links within this folder may not lead out of it.
    folder: PathBuf,
    bounds: Bounds,
    left: Bounds,
    /// Modes and owners are set at the end: a directory's final mode may not let its owner write.
    directories: Vec<(PathBuf, About)>,
    keeping: Keeping,
}

/// What files keep of what an archive records about them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeping {
    /// Permissions. Programs that others could have written are never run, so an archive, whose modes depend on the
    /// packer's umask, gives no write permission to others.
    Contents,
    /// Also owners, because the archive comes from another node.
    Owners,
    /// Everything: it is the layer of an image.
    Everything,
}

/// What an archive records about an entry.
#[derive(Debug, Clone, Default)]
pub(super) struct About {
    /// All mode bits.
    pub(super) mode: u32,
    pub(super) owner: Option<(u32, u32)>,
    /// Seconds and nanoseconds.
    pub(super) modified_at: Option<(i64, u32)>,
    /// Names and values of extended attributes.
    pub(super) attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl About {
    /// Only a mode.
    pub(super) fn of(mode: u32) -> Self {
        Self { mode, ..Self::default() }
    }
}

/// The limits of a tree.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// The total size of all files.
    pub(super) bytes_max: u64,
    /// The number of files, directories and links.
    pub(super) entries_max: u64,
}

/// Buffer size for reading.
const CHUNK_LEN: usize = 64 * 1024;

impl Tree {
    /// A tree in the directory `root`. Only `folder` will be used of the unpacked files.
    pub(super) fn new(root: Dir, folder: PathBuf, bounds: Bounds, keeping: Keeping) -> Self {
        Self { root, folder, bounds, left: bounds, directories: Vec::new(), keeping }
    }

    /// Adds a directory. An existing one gets this mode and owner.
    ///
    /// # Errors
    /// [`TreeError`].
    pub(super) fn directory(&mut self, path: &Path, about: About) -> Result<(), TreeError> {
        self.count()?;
        let path = self.inside(path)?;
        if self.keeping == Keeping::Everything && path.file_name().is_some() {
            // It replaces anything else, as in Docker.
            let (dir, name) = self.parent_of(&path)?;
            let is_other = |stat: rustix::fs::Stat| !is_directory(&stat);
            if dir.stat_name(&name)?.is_some_and(is_other) {
                dir.unlink(&name)?;
            }
        }
        self.root.make_all(&path, DIRECTORY)?;
        if !path.as_os_str().is_empty() || self.keeping == Keeping::Everything {
            self.directories.push((path, about));
        }
        Ok(())
    }

    /// Adds a file, replacing an existing file or link.
    ///
    /// # Errors
    /// [`TreeError`].
    pub(super) fn file(
        &mut self,
        path: &Path,
        about: &About,
        content: &mut impl Read,
    ) -> Result<(), TreeError> {
        self.count()?;
        let (dir, name) = self.place(path)?;
        let here = dir.path().join(&name);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&dir, &name, flags, Mode::from_raw_mode(0o600))
            .map_err(|errno| FsError::io("create", &here, errno))?;
        self.write(file.as_fd(), &here, content)?;
        // Without set-id bits, except in layers.
        let mode = match self.keeping {
            Keeping::Contents => about.mode & 0o755,
            Keeping::Owners => about.mode & 0o777,
            Keeping::Everything => about.mode & 0o7777,
        };
        self.restore(file.as_fd(), &here, mode, about)
    }

    fn write(&mut self, file: BorrowedFd<'_>, here: &Path, content: &mut impl Read) -> Result<(), TreeError> {
        let mut chunk = vec![0; CHUNK_LEN];
        loop {
            let len = match content.read(&mut chunk) {
                Ok(0) => return Ok(()),
                Ok(len) => len,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            check_cancelled()?;
            let taken = u64::try_from(len).unwrap_or(u64::MAX);
            let left = self.left.bytes_max.checked_sub(taken);
            self.left.bytes_max = left.ok_or(TreeError::Bytes { max: self.bounds.bytes_max })?;
            let mut rest = chunk.get(..len).unwrap_or_default();
            while !rest.is_empty() {
                match rustix::io::write(file, rest) {
                    Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(FsError::io("write", here, errno).into()),
                }
            }
        }
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    /// [`TreeError`].
    pub(super) fn symlink(&mut self, path: &Path, target: &Path, about: &About) -> Result<(), TreeError> {
        self.count()?;
        let (dir, name) = self.place(path)?;
        let inside_path = self.inside(path)?;
        let below = inside_path.strip_prefix(&self.folder).unwrap_or(&inside_path);
        let depth = below.components().count().saturating_sub(1);
        if self.keeping != Keeping::Everything && !stays_inside(target, depth) {
            return Err(TreeError::LinkOutside { path: path.to_owned(), target: target.to_owned() });
        }
        dir.link(&name, target)?;
        self.restore_name(&dir, &name, about)
    }

    /// Adds a hard link to an unpacked file.
    ///
    /// # Errors
    /// [`TreeError`].
    pub(super) fn hard_link(&mut self, path: &Path, target: &Path) -> Result<(), TreeError> {
        self.count()?;
        let outside = |_| TreeError::LinkOutside { path: path.to_owned(), target: target.to_owned() };
        let inside_target = self.inside(target).map_err(outside)?;
        if self.inside(path)? == inside_target {
            return Ok(());
        }
        let (from, old) = self.parent_of(&inside_target)?;
        let is_layer = self.keeping == Keeping::Everything;
        let may_be_linked = |stat: rustix::fs::Stat| match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => true,
            FileType::Symlink | FileType::Fifo => is_layer,
            FileType::Directory
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => false,
        };
        if !from.stat_name(&old)?.is_some_and(may_be_linked) {
            return Err(TreeError::Kind {
                path: path.to_owned(),
                kind: "a hard link to something other than a file of the archive",
            });
        }
        let (dir, name) = self.place(path)?;
        rustix::fs::linkat(&from, &old, &dir, &name, AtFlags::empty())
            .map_err(|errno| FsError::io("create", dir.path().join(&name), errno))?;
        Ok(())
    }

    /// Adds a fifo, in layers only.
    ///
    /// # Errors
    /// [`TreeError`].
    pub(super) fn fifo(&mut self, path: &Path, about: &About) -> Result<(), TreeError> {
        self.count()?;
        let (dir, name) = self.place(path)?;
        let failed = |errno| FsError::io("create", dir.path().join(&name), errno);
        rustix::fs::mknodat(&dir, &name, FileType::Fifo, Mode::from_raw_mode(0o600), 0).map_err(failed)?;
        self.restore_name(&dir, &name, about)?;
        let mode = Mode::from_raw_mode(about.mode & 0o7777);
        // It is no link: it has just been made.
        Ok(rustix::fs::chmodat(&dir, &name, mode, AtFlags::empty()).map_err(failed)?)
    }

    /// Makes the directories above a path. Returns the path in the tree.
    ///
    /// # Errors
    /// [`TreeError`].
    pub(super) fn make_parents(&mut self, path: &Path) -> Result<PathBuf, TreeError> {
        self.count()?;
        let path = self.inside(path)?;
        self.parent_of(&path)?;
        Ok(path)
    }

    /// Makes a directory that may have no entry. Returns its path in the tree.
    ///
    /// # Errors
    /// [`TreeError`].
    pub(super) fn make_directory(&mut self, path: &Path) -> Result<PathBuf, TreeError> {
        self.count()?;
        let path = self.inside(path)?;
        self.root.make_all(&path, DIRECTORY)?;
        Ok(path)
    }

    /// The size of the files until now.
    pub(super) fn bytes(&self) -> u64 {
        self.bounds.bytes_max.saturating_sub(self.left.bytes_max)
    }

    /// Sets modes and owners of directories.
    ///
    /// # Errors
    /// If a system call fails.
    pub(super) fn finish(mut self) -> Result<(), TreeError> {
        // Inner ones first, because setting an outer one may close it.
        let mut directories = std::mem::take(&mut self.directories);
        directories.sort_by_key(|(path, _)| std::cmp::Reverse(path.components().count()));
        for (path, about) in directories {
            let dir = self.root.open_below(&path, Crossing::Nothing)?;
            // The owner of a directory must always be able to remove its entries; a layer is root's.
            let mode = match self.keeping {
                Keeping::Contents => about.mode & 0o755 | 0o700,
                Keeping::Owners => about.mode & 0o3777 | 0o700,
                Keeping::Everything => about.mode & 0o7777,
            };
            self.restore(dir.as_fd(), dir.path(), mode, &about)?;
        }
        Ok(())
    }

    /// Sets what is kept of an open file or directory. A new owner takes set-id bits and capabilities away, so it is first.
    fn restore(&self, file: BorrowedFd<'_>, here: &Path, mode: u32, about: &About) -> Result<(), TreeError> {
        set_rights(file, here, Rights::Exact { mode, owner: self.owner(about.owner) })?;
        if self.keeping != Keeping::Everything {
            return Ok(());
        }
        for (name, value) in about.attributes.iter().filter(|(name, _)| is_kept(name)) {
            match rustix::fs::fsetxattr(file, OsStr::from_bytes(name), value, XattrFlags::empty()) {
                // Not every file system has attributes of users, and few programs need them.
                Err(Errno::OPNOTSUPP) if name.starts_with(USER) => {}
                set => set.map_err(|errno| FsError::io("set an attribute of", here, errno))?,
            }
        }
        let Some(times) = timestamps(about) else { return Ok(()) };
        Ok(rustix::fs::futimens(file, &times).map_err(|errno| FsError::io("set the time of", here, errno))?)
    }

    /// As [`Tree::restore`] for what can't be opened.
    fn restore_name(&self, dir: &Dir, name: &OsStr, about: &About) -> Result<(), TreeError> {
        let here = || dir.path().join(name);
        if let Some((uid, gid)) = self.owner(about.owner) {
            let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            rustix::fs::chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|errno| FsError::io("change the owner of", here(), errno))?;
        }
        let times = timestamps(about).filter(|_| self.keeping == Keeping::Everything);
        let Some(times) = times else { return Ok(()) };
        Ok(rustix::fs::utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| FsError::io("set the time of", here(), errno))?)
    }

    fn owner(&self, owner: Option<(u32, u32)>) -> Option<(u32, u32)> {
        owner.filter(|_| self.keeping != Keeping::Contents && rustix::process::geteuid().is_root())
    }

    fn inside(&self, path: &Path) -> Result<PathBuf, TreeError> {
        match self.keeping {
            Keeping::Contents | Keeping::Owners => inside(path),
            Keeping::Everything => inside_layer(path),
        }
    }

    /// The directory of an entry, and its name there, with an existing entry removed.
    fn place(&self, path: &Path) -> Result<(Dir, OsString), TreeError> {
        let (dir, name) = self.parent_of(&self.inside(path)?)?;
        dir.unlink(&name)?;
        Ok((dir, name))
    }

    fn parent_of(&self, path: &Path) -> Result<(Dir, OsString), TreeError> {
        let name = path.file_name().ok_or_else(|| TreeError::Outside { path: path.to_owned() })?;
        let parents = path.parent().unwrap_or(Path::new(""));
        Ok((self.root.make_all(parents, DIRECTORY)?, name.to_owned()))
    }

    fn count(&mut self) -> Result<(), TreeError> {
        check_cancelled()?;
        let left = self.left.entries_max.checked_sub(1);
        self.left.entries_max = left.ok_or(TreeError::Entries { max: self.bounds.entries_max })?;
        Ok(())
    }
}

const DIRECTORY: Rights = Rights::Masked { mode: 0o755 };

/// The begin of names of attributes that every program may set.
const USER: &[u8] = b"user.";

/// Whether a layer may set an attribute: not those by which overlays mark their own files, nor labels of the machine that made it.
fn is_kept(name: &[u8]) -> bool {
    let is_plain = name.starts_with(USER) && !name.starts_with(b"user.overlay.") && !name.contains(&0);
    is_plain || name == b"security.capability"
}

fn is_directory(stat: &rustix::fs::Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn timestamps(about: &About) -> Option<Timestamps> {
    let (seconds, nanoseconds) = about.modified_at?;
    let at = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    Some(Timestamps { last_access: at, last_modification: at })
}

/// Fails once the agent has closed its end of standard error.
fn check_cancelled() -> Result<(), TreeError> {
    let stderr = rustix::stdio::stderr();
    let mut fds = [PollFd::new(&stderr, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let gone = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR;
    match poll(&mut fds, Some(&now)) {
        Ok(_) if fds.iter().any(|fd| fd.revents().intersects(gone)) => Err(TreeError::Abandoned),
        Ok(_) | Err(_) => Ok(()),
    }
}
