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
};

use rustix::{
    fs::{FileType, Mode, OFlags},
    io::Errno,
};

use super::{Exposed, OwnershipError};
use crate::drivers::acl::{Acl, AclError, Writers};

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
    fn name(&self, dir: (&Path, &Node), entry: Option<(&Path, &Node)>) -> Result<(), Exposed>;
}

/// Walks `path`, and returns what it names and where that is.
pub(super) fn walk(path: &Path, judge: &impl Judge) -> Result<(PathBuf, Node), OwnershipError> {
    let failed = |source| OwnershipError::Unknown { path: path.to_owned(), source };
    let exposed = |exposed| OwnershipError::Exposed { path: path.to_owned(), exposed };
    let absolute = std::path::absolute(path).map_err(failed)?;
    let mut way = Way { dirs: vec![Held::root().map_err(failed)?], rest: VecDeque::new(), links: 0 };
    way.prepend(&absolute);
    while let Some(name) = way.rest.pop_front() {
        if name == ".." {
            way.leave();
            continue;
        }
        let dir = way.here();
        let at = dir.at.join(&name);
        let unknown = |errno: Errno| OwnershipError::Unknown { path: at.clone(), source: errno.into() };
        let held = match Held::open(dir, &name) {
            Err(Errno::NOENT) => {
                judge.name((&dir.at, &dir.node), None).map_err(exposed)?;
                return Err(unknown(Errno::NOENT));
            }
            held => held.map_err(unknown)?,
        };
        judge.name((&dir.at, &dir.node), Some((&held.at, &held.node))).map_err(exposed)?;
        if held.kind == FileType::Symlink {
            way.follow(&held).map_err(unknown)?;
        } else if held.kind == FileType::Directory {
            way.dirs.push(held);
        } else if way.rest.is_empty() {
            return Ok((held.at, held.node));
        } else {
            return Err(unknown(Errno::NOTDIR));
        }
    }
    let here = way.here();
    Ok((here.at.clone(), here.node.clone()))
}

/// What is there under exactly this name: a link itself.
pub(super) fn entry(path: &Path) -> io::Result<Node> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty())?;
    Ok(Held::of(fd, path.to_owned())?.node)
}

/// How far a walk has come.
struct Way {
    /// From the root to where it is; never empty.
    dirs: Vec<Held>,
    rest: VecDeque<OsString>,
    links: usize,
}

impl Way {
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

    fn follow(&mut self, link: &Held) -> Result<(), Errno> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Errno::LOOP);
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
        Ok(Self::of(rustix::fs::open("/", flags, Mode::empty())?, PathBuf::from("/"))?)
    }

    fn open(dir: &Self, name: &OsStr) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Self::of(rustix::fs::openat(&dir.fd, name, flags, Mode::empty())?, dir.at.join(name))
    }

    fn of(fd: OwnedFd, at: PathBuf) -> Result<Self, Errno> {
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
                Err(AclError::Io { .. } | AclError::Malformed) => return Err(Errno::IO),
            }
        };
        let node = Node { uid: stat.st_uid, gid: stat.st_gid, mode: stat.st_mode, writers: acl.writers() };
        Ok(Self { fd, at, node, kind })
    }
}
