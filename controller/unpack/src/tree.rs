//! The directory that an archive is unpacked into, with limits.
//!
//! In: names, modes and contents from an archive. Out: files in the directory and nowhere else. Every name is walked
//! through open directories, following no link. A link's target may begin with at most as many `../` as the link's
//! directory is deep, and have none later: so no path over any number of links leads out, whatever else is unpacked
//! beside it. An error rejects the whole archive: the caller discards everything.

use std::{
    ffi::OsString,
    io::Read,
    os::fd::AsFd as _,
    path::{Component, Path, PathBuf},
};

use herdlet_base::safe_fs::{Crossing, Dir, FsError, Rights, set_rights};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid},
    io::Errno,
};

/// The directory and its remaining limits.
pub(super) struct Tree {
    root: Dir,
    /// Links within this folder may not lead out of it.
    folder: PathBuf,
    bytes_left: u64,
    entries_left: u64,
    /// Modes and owners are set at the end: a directory's final mode may not let its owner write.
    directories: Vec<(PathBuf, About)>,
    /// Files get the owners in the archive.
    keeps_owners: bool,
    /// Upper bound for the permissions of files and directories.
    permissions: u32,
}

/// Mode and owner of an entry in an archive.
#[derive(Debug, Clone, Copy)]
pub(super) struct About {
    /// All mode bits.
    pub(super) mode: u32,
    pub(super) owner: Option<(u32, u32)>,
}

impl About {
    /// Without an owner.
    pub(super) fn of(mode: u32) -> Self {
        Self { mode, owner: None }
    }
}

/// Why an archive is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum TreeError {
    /// An entry would be outside.
    #[error("{path:?} leads out of the archive")]
    Outside { path: PathBuf },
    /// A link leads outside, or may do so.
    #[error("the link {path:?} leads out of the archive, to {target:?}")]
    LinkOutside { path: PathBuf, target: PathBuf },
    /// An entry is not a file, directory or link.
    #[error("{path:?} is {kind}, which is not unpacked")]
    Kind { path: PathBuf, kind: &'static str },
    #[error("it has more than the {max} entries that are allowed")]
    Entries {
        /// The limit.
        max: u64,
    },
    #[error("it unpacks to more than the {max} bytes that are allowed")]
    Bytes {
        /// The limit.
        max: u64,
    },
    #[error("{path:?} is nested too deep")]
    Depth { path: PathBuf },
    /// The agent has stopped waiting.
    #[error("the agent no longer waits for it")]
    Abandoned,
    /// The archive can't be read.
    #[error("read it: {0}")]
    Read(#[from] std::io::Error),
    /// A file or directory can't be created.
    #[error(transparent)]
    Fs(#[from] FsError),
}

/// The limits of a tree.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// The total size of all files.
    pub(super) bytes_max: u64,
    /// The number of files, directories and links.
    pub(super) entries_max: u64,
}

/// Limits the nesting of directories to what fits in a path.
const DEPTH_MAX: usize = 128;

/// Buffer size for reading.
const CHUNK_LEN: usize = 64 * 1024;

impl Tree {
    /// A tree in the directory `root`. Only `folder` will be used of the unpacked files.
    pub(super) fn new(root: Dir, folder: PathBuf, bounds: Bounds, keeps_owners: bool) -> Self {
        Self {
            root,
            folder,
            bytes_left: bounds.bytes_max,
            entries_left: bounds.entries_max,
            directories: Vec::new(),
            keeps_owners: keeps_owners && rustix::process::geteuid().is_root(),
            // Programs that others could have written are never run, so an archive, whose modes depend on the packer's
            // umask, gives no write permission to others.
            permissions: if keeps_owners { 0o777 } else { 0o755 },
        }
    }

    /// Adds a directory. An existing one gets this mode and owner.
    ///
    /// # Errors
    /// [`TreeError`].
    pub(super) fn directory(&mut self, path: &Path, about: About, bounds: Bounds) -> Result<(), TreeError> {
        self.count(bounds)?;
        let path = inside(path)?;
        self.root.make_all(&path, DIRECTORY)?;
        if path.as_os_str().is_empty() {
            return Ok(());
        }
        // Its owner must always be able to remove its entries.
        let kept = if self.keeps_owners { 0o3000 } else { 0 } | self.permissions;
        let mode = about.mode & kept | 0o700;
        self.directories.push((path, About { mode, owner: self.owner(about.owner) }));
        Ok(())
    }

    /// Adds a file, replacing an existing file or link.
    ///
    /// # Errors
    /// [`TreeError`].
    pub(super) fn file(
        &mut self,
        path: &Path,
        about: About,
        content: &mut impl Read,
        bounds: Bounds,
    ) -> Result<(), TreeError> {
        self.count(bounds)?;
        let (dir, name) = self.place(path)?;
        let here = dir.path().join(&name);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&dir, &name, flags, Mode::from_raw_mode(0o600))
            .map_err(|errno| FsError::io("create", &here, errno))?;
        let mut chunk = vec![0; CHUNK_LEN];
        loop {
            let len = match content.read(&mut chunk) {
                Ok(0) => break,
                Ok(len) => len,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            check_cancelled()?;
            let taken = u64::try_from(len).unwrap_or(u64::MAX);
            self.bytes_left =
                self.bytes_left.checked_sub(taken).ok_or(TreeError::Bytes { max: bounds.bytes_max })?;
            let mut rest = chunk.get(..len).unwrap_or_default();
            while !rest.is_empty() {
                match rustix::io::write(&file, rest) {
                    Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(FsError::io("write", &here, errno).into()),
                }
            }
        }
        // Without set-id bits.
        let rights = Rights::Exact { mode: about.mode & self.permissions, owner: self.owner(about.owner) };
        Ok(set_rights(file.as_fd(), &here, rights)?)
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    /// [`TreeError`].
    pub(super) fn symlink(
        &mut self,
        path: &Path,
        target: &Path,
        owner: Option<(u32, u32)>,
        bounds: Bounds,
    ) -> Result<(), TreeError> {
        self.count(bounds)?;
        let (dir, name) = self.place(path)?;
        let inside_path = inside(path)?;
        let below = inside_path.strip_prefix(&self.folder).unwrap_or(&inside_path);
        let depth = below.components().count().saturating_sub(1);
        if !stays_inside(target, depth) {
            return Err(TreeError::LinkOutside { path: path.to_owned(), target: target.to_owned() });
        }
        dir.link(&name, target)?;
        let Some((uid, gid)) = self.owner(owner) else { return Ok(()) };
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        rustix::fs::chownat(&dir, &name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| FsError::io("change the owner of", dir.path().join(&name), errno))?;
        Ok(())
    }

    /// Adds a hard link to an unpacked file.
    ///
    /// # Errors
    /// [`TreeError`].
    pub(super) fn hard_link(&mut self, path: &Path, target: &Path, bounds: Bounds) -> Result<(), TreeError> {
        self.count(bounds)?;
        let outside = |_| TreeError::LinkOutside { path: path.to_owned(), target: target.to_owned() };
        let inside_target = inside(target).map_err(outside)?;
        if inside(path)? == inside_target {
            return Ok(());
        }
        let (from, old) = self.parent_of(&inside_target)?;
        let is_file = |stat: rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !from.stat_name(&old)?.is_some_and(is_file) {
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

    /// Sets modes and owners of directories.
    ///
    /// # Errors
    /// If a system call fails.
    pub(super) fn finish(self) -> Result<(), TreeError> {
        // Inner ones first, because setting an outer one may close it.
        let mut directories = self.directories;
        directories.sort_by_key(|(path, _)| std::cmp::Reverse(path.components().count()));
        for (path, About { mode, owner }) in directories {
            let dir = self.root.open_below(&path, Crossing::Nothing)?;
            dir.set_rights(Rights::Exact { mode, owner })?;
        }
        Ok(())
    }

    fn owner(&self, owner: Option<(u32, u32)>) -> Option<(u32, u32)> {
        owner.filter(|_| self.keeps_owners)
    }

    /// The directory of an entry, and its name there, with an existing entry removed.
    fn place(&self, path: &Path) -> Result<(Dir, OsString), TreeError> {
        let (dir, name) = self.parent_of(&inside(path)?)?;
        dir.unlink(&name)?;
        Ok((dir, name))
    }

    fn parent_of(&self, path: &Path) -> Result<(Dir, OsString), TreeError> {
        let name = path.file_name().ok_or_else(|| TreeError::Outside { path: path.to_owned() })?;
        let parents = path.parent().unwrap_or(Path::new(""));
        Ok((self.root.make_all(parents, DIRECTORY)?, name.to_owned()))
    }

    fn count(&mut self, bounds: Bounds) -> Result<(), TreeError> {
        check_cancelled()?;
        self.entries_left =
            self.entries_left.checked_sub(1).ok_or(TreeError::Entries { max: bounds.entries_max })?;
        Ok(())
    }
}

const DIRECTORY: Rights = Rights::Masked { mode: 0o755 };

/// Removes `.`; absolute paths and paths with `..` are refused.
fn inside(path: &Path) -> Result<PathBuf, TreeError> {
    let mut clean = PathBuf::new();
    for (depth, part) in path.components().enumerate() {
        match part {
            Component::Normal(_) if depth >= DEPTH_MAX => {
                return Err(TreeError::Depth { path: shortened(path) });
            }
            Component::Normal(name) if !name.as_encoded_bytes().contains(&0) => clean.push(name),
            Component::CurDir => {}
            Component::Normal(_) | Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(TreeError::Outside { path: shortened(path) });
            }
        }
    }
    Ok(clean)
}

/// Whether a link in a directory at this depth leads only into the tree.
fn stays_inside(target: &Path, depth: usize) -> bool {
    let mut parts = target.components().filter(|part| *part != Component::CurDir).peekable();
    let mut up = 0;
    while parts.next_if_eq(&Component::ParentDir).is_some() {
        up += 1;
    }
    up <= depth && parts.all(|part| matches!(part, Component::Normal(_))) && target != Path::new("")
}

/// Shortens a path for messages.
fn shortened(path: &Path) -> PathBuf {
    let text = path.to_string_lossy();
    match text.chars().count() {
        0..=200 => path.to_owned(),
        _ => PathBuf::from(text.chars().take(200).chain("…".chars()).collect::<String>()),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_may_go_up_only_within_the_tree() {
        for (target, depth, stays) in [
            ("a", 0, true),
            ("./a/b", 0, true),
            ("..", 0, false),
            ("..", 1, true),
            ("../a", 1, true),
            ("../../a", 1, false),
            ("../../a", 2, true),
            ("a/..", 3, false),
            ("a/../b", 3, false),
            ("/etc/passwd", 9, false),
            ("", 0, false),
        ] {
            assert_eq!(stays_inside(Path::new(target), depth), stays, "{target:?} at {depth}");
        }
    }

    #[test]
    fn escaping_name_is_refused() {
        for (path, expected) in [
            ("a/./b", Some("a/b")),
            ("./", Some("")),
            ("..", None),
            ("a/../b", None),
            ("/a", None),
            ("a\0b", None),
        ] {
            assert_eq!(inside(Path::new(path)).ok(), expected.map(PathBuf::from), "{path:?}");
        }
        let deep = "d/".repeat(200);
        assert!(matches!(inside(Path::new(&deep)), Err(TreeError::Depth { .. })));
    }
}
