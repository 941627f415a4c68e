//! Resolves a path, one name at a time, with open directories. Inspects every object it passes in an allocation's directory, and
//! every object that links there lead to.
//!
//! In: the directory of an allocation, a path. Out: the file and its directory, both open, or why it is not trusted. The walk
//! holds a bounded number of descriptors and names, however deeply a task nests or links. Directories above the allocation's
//! belong to the agent and root, and are not inspected on the way down.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::OsStringExt as _,
    },
    path::{Component, Path, PathBuf},
};

use herdlet_base::paths;
use rustix::{
    fs::{FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2, readlinkat},
    io::Errno,
};

use super::{
    CommandError, Trust,
    trust::{Distrust, Exposure, LEVELS_MAX, Object, PENDING_MAX, Region},
};

/// Limit of links followed in one path, as in the kernel (path_resolution(7)).
const LINKS_MAX: u32 = 40;

/// The directory of an allocation, and the task for which a program is searched.
pub(super) struct AllocScope<'a> {
    dir: OwnedFd,
    stat: Stat,
    path: &'a Path,
    task: &'a OsStr,
    trust: &'a Trust<'a>,
}

/// The file at the end of a path.
pub(super) struct Target {
    /// The path as the task sees it.
    pub(super) path: PathBuf,
    pub(super) dir: OwnedFd,
    pub(super) name: OsString,
    /// The file itself, opened with O_PATH.
    pub(super) file: OwnedFd,
    /// The result of fstat on the file.
    pub(super) stat: Stat,
    /// Its path relative to the allocation's directory; none if a link or a mount leads to it.
    pub(super) own: Option<PathBuf>,
}

/// The target of an absolute path.
pub(super) enum Reached {
    /// Not in the allocation's directory.
    Outside,
    /// In the allocation's directory, but no file.
    Nothing,
    /// This file, in the allocation's directory or linked from there.
    File(Box<Target>),
    /// An untrusted file.
    Untrusted(Distrust),
}

impl<'a> AllocScope<'a> {
    /// Opens the search root of the task with this directory.
    pub(super) fn open(task_dir: &'a Path, trust: &'a Trust<'a>) -> Result<Self, CommandError> {
        let path = task_dir.parent().unwrap_or(Path::new("/"));
        let failed = |errno: Errno| io("open", path, errno);
        let dir = rustix::fs::open(path, DIRECTORY, Mode::empty()).map_err(failed)?;
        let stat = fstat(&dir).map_err(failed)?;
        Ok(Self { dir, stat, path, task: task_dir.file_name().unwrap_or_default(), trust })
    }

    /// The users whose programs are run.
    pub(super) fn trust(&self) -> &'a Trust<'a> {
        self.trust
    }

    /// The file at a path relative to the task's directory, if any.
    pub(super) fn below(&self, path: &Path) -> Result<Option<Result<Target, Distrust>>, CommandError> {
        let mut walk = Walk::new(self);
        let Self { dir, path: here, stat, .. } = self;
        let dir = rustix::io::fcntl_dupfd_cloexec(dir, 0).map_err(|errno| io("open", here, errno))?;
        walk.enter(OsString::new(), Opened { fd: dir, stat: *stat, path: here.to_path_buf() })?;
        walk.pending.extend(parts(&Path::new(self.task).join(path)));
        walk.run(self.path.join(self.task).join(path))
    }

    /// Resolves an absolute path.
    pub(super) fn absolute(&self, path: &Path) -> Result<Reached, CommandError> {
        let mut walk = Walk::new(self);
        walk.enter_root()?;
        walk.pending.extend(parts(path));
        Ok(match walk.run(path.to_owned())? {
            Some(Ok(target)) => Reached::File(Box::new(target)),
            Some(Err(distrust)) => Reached::Untrusted(distrust),
            None if walk.stage == Stage::Before => Reached::Outside,
            None => Reached::Nothing,
        })
    }
}

/// An object that was just opened.
struct Opened {
    fd: OwnedFd,
    stat: Stat,
    path: PathBuf,
}

/// A directory that the walk entered.
struct Level {
    name: OsString,
    dir: Opened,
    exposure: Exposure,
}

struct Walk<'g> {
    scope: &'g AllocScope<'g>,
    /// The first level is the allocation's directory, or a directory outside.
    levels: Vec<Level>,
    pending: VecDeque<OsString>,
    links: u32,
    stage: Stage,
    /// Whether the walk passed no link and no mount since the allocation's directory.
    is_direct: bool,
    distrust: Option<Distrust>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The walk has not entered the allocation's directory yet.
    Before,
    Inside,
    /// A link led out of it.
    Outside,
}

impl<'g> Walk<'g> {
    fn new(scope: &'g AllocScope<'g>) -> Self {
        Self {
            scope,
            levels: Vec::new(),
            pending: VecDeque::new(),
            links: 0,
            stage: Stage::Before,
            is_direct: true,
            distrust: None,
        }
    }

    /// Returns none if the path leads to no file, or is not related to the allocation.
    fn run(&mut self, asked: PathBuf) -> Result<Option<Result<Target, Distrust>>, CommandError> {
        while let Some(name) = self.pending.pop_front() {
            if name == ".." {
                self.go_up()?;
                continue;
            }
            let opened = match self.open(&name)? {
                Some(opened) => opened,
                None => return Ok(None),
            };
            match FileType::from_raw_mode(opened.stat.st_mode) {
                FileType::Directory => self.enter(name, opened)?,
                FileType::Symlink if self.links < LINKS_MAX => {
                    self.follow(&name, &opened)?;
                    // Report it wherever the link leads: it may have been placed to form an endless chain.
                    if let Some(distrust) = self.distrust.take() {
                        return Ok(Some(Err(distrust)));
                    }
                }
                FileType::RegularFile if self.pending.is_empty() && self.stage != Stage::Before => {
                    return self.finish(asked, name, opened);
                }
                // Not executable.
                FileType::RegularFile
                | FileType::Symlink
                | FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Unknown => return Ok(None),
            }
            if self.levels.len() > LEVELS_MAX || self.pending.len() > PENDING_MAX {
                let here = self.levels.last().map_or(&*asked, |level| &level.dir.path);
                return Ok(Some(Err(self.scope.trust.refuse_length(here))));
            }
        }
        Ok(None)
    }

    /// Opens the object with this name in the current directory; none if it can't be reached.
    fn open(&mut self, name: &OsStr) -> Result<Option<Opened>, CommandError> {
        let (here, above) = match self.levels.last() {
            Some(level) => (level.dir.fd.as_fd(), level.dir.path.as_path()),
            None => (rustix::fs::CWD, Path::new("")),
        };
        let path = above.join(name);
        let open = |resolve| openat2(here, name, PATH, Mode::empty(), resolve | ResolveFlags::NO_MAGICLINKS);
        let mut is_mounted = false;
        let opened = open(ResolveFlags::NO_XDEV).or_else(|errno| {
            is_mounted = errno == Errno::XDEV;
            if is_mounted { open(ResolveFlags::empty()) } else { Err(errno) }
        });
        let stat = opened.and_then(|fd| Ok((fstat(&fd)?, fd)));
        self.is_direct &= !is_mounted;
        match stat {
            Ok((stat, fd)) => Ok(Some(Opened { fd, stat, path })),
            Err(
                Errno::NOENT
                | Errno::NOTDIR
                | Errno::ACCESS
                | Errno::PERM
                | Errno::LOOP
                | Errno::NAMETOOLONG
                | Errno::INVAL,
            ) => Ok(None),
            Err(errno) => Err(io("open", &path, errno)),
        }
    }

    /// Enters a directory.
    fn enter(&mut self, name: OsString, dir: Opened) -> Result<(), CommandError> {
        let is_alloc_dir =
            |stat: &Stat| (stat.st_dev, stat.st_ino) == (self.scope.stat.st_dev, self.scope.stat.st_ino);
        if is_alloc_dir(&dir.stat) {
            if self.stage == Stage::Before {
                self.is_direct = true;
            }
            self.levels.clear();
            self.stage = Stage::Inside;
        }
        let exposure = self.inspect(&name, &dir)?;
        self.levels.push(Level { name, dir, exposure });
        Ok(())
    }

    fn enter_root(&mut self) -> Result<(), CommandError> {
        let path = PathBuf::from("/");
        let failed = |errno: Errno| io("open", Path::new("/"), errno);
        let fd = rustix::fs::open(&path, DIRECTORY, Mode::empty()).map_err(failed)?;
        let stat = fstat(&fd).map_err(failed)?;
        self.leave();
        self.enter(OsString::new(), Opened { fd, stat, path })
    }

    /// Leaves the current directory, to continue elsewhere.
    fn leave(&mut self) {
        self.levels.clear();
        if self.stage == Stage::Inside {
            self.stage = Stage::Outside;
        }
    }

    fn go_up(&mut self) -> Result<(), CommandError> {
        let Some(last) = self.levels.pop() else { return Ok(()) };
        if !self.levels.is_empty() {
            return Ok(());
        }
        let path = last.dir.path.parent().unwrap_or(Path::new("/")).to_owned();
        let failed = |errno: Errno| io("open", &path, errno);
        let fd = openat(&last.dir.fd, "..", DIRECTORY, Mode::empty()).map_err(failed)?;
        let stat = fstat(&fd).map_err(failed)?;
        self.leave();
        self.is_direct &= self.stage == Stage::Before;
        self.enter(OsString::new(), Opened { fd, stat, path })
    }

    /// Puts the target of a link in front of the pending names.
    fn follow(&mut self, name: &OsStr, link: &Opened) -> Result<(), CommandError> {
        self.inspect(name, link)?;
        self.links += 1;
        self.is_direct = false;
        let text = readlinkat(&link.fd, "", Vec::new()).map_err(|errno| io("read", &link.path, errno))?;
        let text = PathBuf::from(OsString::from_vec(text.into_bytes()));
        if text.is_absolute() {
            self.enter_root()?;
        }
        let mut pending: VecDeque<OsString> = parts(&text).collect();
        pending.append(&mut self.pending);
        self.pending = pending;
        Ok(())
    }

    fn finish(
        &mut self,
        asked: PathBuf,
        name: OsString,
        file: Opened,
    ) -> Result<Option<Result<Target, Distrust>>, CommandError> {
        self.inspect(&name, &file)?;
        if let Some(distrust) = self.distrust.take() {
            return Ok(Some(Err(distrust)));
        }
        let is_own = self.is_direct && self.stage == Stage::Inside;
        let names = self.levels.iter().skip(1).map(|level| &level.name);
        let own = is_own.then(|| names.chain([&name]).collect());
        let Some(Level { dir, .. }) = self.levels.pop() else { return Ok(None) };
        let Opened { fd, stat, .. } = file;
        Ok(Some(Ok(Target { path: asked, dir: dir.fd, name, file: fd, stat, own })))
    }

    /// Inspects an object and keeps the first reason for distrust. Whether the program exists is known only at the end of the
    /// path or at the next link.
    fn inspect(&mut self, name: &OsStr, opened: &Opened) -> Result<Exposure, CommandError> {
        if self.stage == Stage::Before {
            return Ok(Exposure::Closed);
        }
        let object = Object {
            fd: opened.fd.as_fd(),
            stat: &opened.stat,
            path: &opened.path,
            region: self.region(name),
            exposure: self.levels.last().map_or(Exposure::Closed, |level| level.exposure),
        };
        let exposure = self.scope.trust.inspect(&object)?;
        Ok(exposure.unwrap_or_else(|distrust| {
            self.distrust.get_or_insert(distrust);
            Exposure::Closed
        }))
    }

    /// The region of the object with this name in the current directory.
    fn region(&self, name: &OsStr) -> Region {
        let first = self.levels.get(1).map_or(name, |level| level.name.as_os_str());
        if self.stage == Stage::Inside && first == paths::SHARED { Region::Shared } else { Region::Own }
    }
}

const PATH: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The names in a path, including `..`.
fn parts(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

fn io(operation: &'static str, path: &Path, errno: Errno) -> CommandError {
    CommandError::Io { operation, path: path.to_owned(), source: errno.into() }
}
