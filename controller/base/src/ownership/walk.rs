//! The steps of a path, one name at a time, on held descriptors.
//!
//! In: a path. Out: every name on the way for a judge, and what the path names in the end. Links are read and followed here, never
//! by the kernel, so that each of them is a step too.

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

/// As many links as the kernel follows in one path (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// What a name leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mode: u32,
    /// Who may write to it besides its owner.
    pub(super) writers: Writers,
}

/// Who judges each name.
pub(super) trait Judge {
    /// A name in a directory, with what it leads to, if there is anything.
    fn name(&self, dir: (&Path, &Node), entry: Option<(&Path, &Node)>) -> Result<(), Box<Exposed>>;
}

/// Walks `path`, and returns where it leads.
pub(super) fn walk(path: &Path, judge: &impl Judge) -> Result<End, OwnershipError> {
    let failed = |source| OwnershipError::Unknown { path: path.to_owned(), source };
    let absolute = std::path::absolute(path).map_err(failed)?;
    let root = Rc::new(Held::root().map_err(failed)?);
    let mut way = Way { dirs: vec![root], rest: VecDeque::new(), links: 0 };
    way.prepend(&absolute);
    way.go(path, judge)
}

/// Where a path leads.
pub(super) struct End {
    /// From the root to the directory; never empty.
    dirs: Vec<Rc<Held>>,
    /// In that directory, where the path leads to no directory.
    file: Option<Rc<Held>>,
}

impl End {
    /// What is there, and its path without links.
    pub(super) fn named(&self) -> (&Path, &Node) {
        let end = self.file.as_ref().unwrap_or(&self.dirs[self.dirs.len() - 1]);
        (&end.at, &end.node)
    }

    /// Whether the path leads to a directory.
    pub(super) fn is_directory(&self) -> bool {
        self.file.is_none()
    }

    /// Walks on to the file of `path`, which is in this directory.
    pub(super) fn walk(&self, path: &Path, judge: &impl Judge) -> Result<Self, OwnershipError> {
        let rest = path.file_name().map(OsStr::to_owned).into_iter().collect();
        Way { dirs: self.dirs.clone(), rest, links: 0 }.go(path, judge)
    }

    /// What has the name of `path` in this directory: a link itself.
    pub(super) fn entry(&self, path: &Path) -> io::Result<Node> {
        let name = path.file_name().unwrap_or_default();
        Ok(Held::open(&self.dirs[self.dirs.len() - 1], name)?.node)
    }
}

/// How far a walk has come.
struct Way {
    /// From the root to where it is; never empty.
    dirs: Vec<Rc<Held>>,
    rest: VecDeque<OsString>,
    links: usize,
}

impl Way {
    /// Walks to the end; `path` is what messages name.
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
            let held = match Held::open(dir, &name) {
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

    fn here(&self) -> &Held {
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

    fn follow(&mut self, link: &Held) -> io::Result<()> {
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

/// Something on the way, held open.
struct Held {
    fd: OwnedFd,
    at: PathBuf,
    node: Node,
    kind: FileType,
}

impl Held {
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
        // The mode of a link says nothing.
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
