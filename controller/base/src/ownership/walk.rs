//! Walks a path one name at a time, holding each directory open.
//!
//! In: a path. Out: every name on the way, passed to a judge, and the final target. Links are read and followed here,
//! never by the kernel, so each of them is a step too.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    io,
    os::{fd::OwnedFd, unix::ffi::OsStringExt as _},
    path::{Component, Path, PathBuf},
    rc::Rc,
};

use rustix::{
    fs::{FileType, Mode, OFlags},
    io::Errno,
};

use super::{Exposed, OwnershipError};
use crate::acl::{Acl, AclError, Writers};

/// The kernel's limit for links in one path (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// The target of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mode: u32,
    /// Users and groups that may write to it besides its owner.
    pub(super) writers: Writers,
}

/// Decides about each name.
pub(super) trait Judge {
    /// Called for a name in a directory, with its target if it exists.
    fn name(&self, dir: (&Path, &Node), entry: Option<(&Path, &Node)>) -> Result<(), Box<Exposed>>;
}

/// Walks `path` and returns its target.
pub(super) fn walk(path: &Path, judge: &impl Judge) -> Result<End, OwnershipError> {
    let failed = |source| OwnershipError::Unknown { path: path.to_owned(), source };
    let absolute = std::path::absolute(path).map_err(failed)?;
    let root = Rc::new(OpenStep::root().map_err(failed)?);
    let mut way = Way { dirs: vec![root], rest: VecDeque::new(), links: 0 };
    way.prepend(&absolute);
    way.go(path, judge)
}

/// The target of a path.
pub(super) struct End {
    /// From the root to the last directory; never empty.
    dirs: Vec<Rc<OpenStep>>,
    /// The file in that directory, unless the target is a directory.
    file: Option<Rc<OpenStep>>,
}

impl End {
    /// The path of the target without links, and its metadata.
    pub(super) fn named(&self) -> (&Path, &Node) {
        let end = self.file.as_ref().unwrap_or(&self.dirs[self.dirs.len() - 1]);
        (&end.at, &end.node)
    }

    pub(super) fn is_directory(&self) -> bool {
        self.file.is_none()
    }

    /// Continues the walk to the file of `path`, which is in this directory.
    pub(super) fn walk(&self, path: &Path, judge: &impl Judge) -> Result<Self, OwnershipError> {
        let rest = path.file_name().map(OsStr::to_owned).into_iter().collect();
        Way { dirs: self.dirs.clone(), rest, links: 0 }.go(path, judge)
    }

    /// The entry of this directory with the name of `path`; links are not followed.
    pub(super) fn entry(&self, path: &Path) -> io::Result<Node> {
        let name = path.file_name().unwrap_or_default();
        Ok(OpenStep::open(&self.dirs[self.dirs.len() - 1], name)?.node)
    }
}

/// The state of a walk.
struct Way {
    /// From the root to the current directory; never empty.
    dirs: Vec<Rc<OpenStep>>,
    rest: VecDeque<OsString>,
    links: usize,
}

impl Way {
    /// Walks to the end; `path` is for messages.
    fn go(mut self, path: &Path, judge: &impl Judge) -> Result<End, OwnershipError> {
        let exposed = |exposed: Box<Exposed>| exposed.of(path);
        while let Some(name) = self.rest.pop_front() {
            if name == ".." {
                self.leave();
                continue;
            }
            let dir = self.here();
            let at = dir.at.join(&name);
            let unknown = |source| OwnershipError::Unknown { path: at.clone(), source };
            let held = match OpenStep::open(dir, &name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    judge.name((&dir.at, &dir.node), None).map_err(exposed)?;
                    return Err(unknown(error));
                }
                held => Rc::new(held.map_err(unknown)?),
            };
            judge.name((&dir.at, &dir.node), Some((&held.at, &held.node))).map_err(exposed)?;
            if held.kind == FileType::Symlink {
                self.follow(&held).map_err(unknown)?;
            } else if held.kind == FileType::Directory {
                self.dirs.push(held);
            } else if self.rest.is_empty() {
                return Ok(End { dirs: self.dirs, file: Some(held) });
            } else {
                return Err(unknown(Errno::NOTDIR.into()));
            }
        }
        Ok(End { dirs: self.dirs, file: None })
    }

    fn here(&self) -> &OpenStep {
        &self.dirs[self.dirs.len() - 1]
    }

    fn leave(&mut self) {
        if self.dirs.len() > 1 {
            self.dirs.pop();
        }
    }

    fn prepend(&mut self, path: &Path) {
        let names = path.components().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some(OsString::from("..")),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        });
        for name in names.collect::<Vec<_>>().into_iter().rev() {
            self.rest.push_front(name);
        }
    }

    fn follow(&mut self, link: &OpenStep) -> io::Result<()> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Errno::LOOP.into());
        }
        let target = rustix::fs::readlinkat(&link.fd, c"", Vec::new())?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        if target.is_absolute() {
            self.dirs.truncate(1);
        }
        self.prepend(&target);
        Ok(())
    }
}

/// A file or directory on the way, held open.
struct OpenStep {
    fd: OwnedFd,
    at: PathBuf,
    node: Node,
    kind: FileType,
}

impl OpenStep {
    fn root() -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self::of(rustix::fs::open("/", flags, Mode::empty())?, PathBuf::from("/"))
    }

    fn open(dir: &Self, name: &OsStr) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Self::of(rustix::fs::openat(&dir.fd, name, flags, Mode::empty())?, dir.at.join(name))
    }

    fn of(fd: OwnedFd, at: PathBuf) -> io::Result<Self> {
        let stat = rustix::fs::fstat(&fd)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let by_mode = Acl::from_mode(stat.st_mode);
        // The mode of a link has no meaning.
        let acl = if kind == FileType::Symlink || !by_mode.group.writes() {
            by_mode
        } else {
            match Acl::read(&fd) {
                Ok(acl) => acl,
                Err(AclError::Unsupported) => by_mode,
                Err(error @ (AclError::Io { .. } | AclError::Malformed)) => return Err(error.into_io()),
            }
        };
        let node = Node { uid: stat.st_uid, gid: stat.st_gid, mode: stat.st_mode, writers: acl.writers() };
        Ok(Self { fd, at, node, kind })
    }
}
