//! Decides who may have written a program.
//!
//! In: an open file or directory, its metadata and its region. Out: whether any user other than root, the agent's user and the
//! user the task starts as could have written it. In the region that an allocation's tasks share, the users of those tasks are
//! trusted too, unless the task starts as root. This module does not know how the file was found.

use std::{
    cell::OnceCell,
    fmt,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
};

use herdlet_base::{
    acl::{Acl, AclError, Writers},
    ownership::names,
    user::{self, UserError},
};
use rustix::fs::{FileType, Stat};

use super::CommandError;

/// The users whose programs are run.
#[derive(Debug)]
pub(crate) struct Trust<'a> {
    starter: u32,
    users: &'a [String],
    /// The ids of `users`, looked up on first use: a name service may be slow or fail, and most programs belong to root or the
    /// task.
    uids: OnceCell<Vec<u32>>,
}

/// The part of the file system in which an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Region {
    /// The task's own directory, or the machine.
    Own,
    /// The directory shared by the allocation's tasks.
    Shared,
}

/// Whether untrusted users can add names to a directory. They cannot replace existing names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exposure {
    Closed,
    Open,
}

/// The reason why a program is not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Distrust {
    path: PathBuf,
    starter: u32,
    region: Region,
    why: Why,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Why {
    /// It belongs to an untrusted user.
    Owner(u32),
    /// These users may write to it.
    Writable(Vec<Writer>),
    /// It has several names, in a directory where untrusted users can add names.
    Names(u64),
    /// The path has more directories or names than the walk follows.
    Long,
}

/// A user other than the owner who may write to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writer {
    Everybody,
    Group(u32),
    User(u32),
}

/// A file, directory or link on the path to a program.
#[derive(Debug, Clone, Copy)]
pub(super) struct Object<'a> {
    pub(super) fd: BorrowedFd<'a>,
    pub(super) stat: &'a Stat,
    pub(super) path: &'a Path,
    pub(super) region: Region,
    /// The exposure of its directory.
    pub(super) exposure: Exposure,
}

impl<'a> Trust<'a> {
    /// The trust of a task that starts as the user `starter`, in an allocation that `users` (by name) may write to.
    pub(crate) fn new(starter: u32, users: &'a [String]) -> Self {
        Self { starter, users, uids: OnceCell::new() }
    }

    /// The user the task starts as.
    pub(super) fn starter(&self) -> u32 {
        self.starter
    }

    /// Inspects an object. For a directory, returns whether untrusted users can add names to it.
    ///
    /// # Errors
    /// If a user or an ACL can't be looked up, so that the possible writers are unknown.
    pub(super) fn inspect(&self, object: &Object<'_>) -> Result<Result<Exposure, Distrust>, CommandError> {
        let because = |why| {
            let (path, region) = (object.path.to_owned(), object.region);
            Ok(Err(Distrust { path, starter: self.starter, region, why }))
        };
        let stat = object.stat;
        if !self.trusts(stat.st_uid, object.region)? {
            return because(Why::Owner(stat.st_uid));
        }
        let kind = FileType::from_raw_mode(stat.st_mode);
        // A second name lets another user choose the name under which a file is run.
        if kind != FileType::Directory && object.exposure == Exposure::Open && stat.st_nlink != 1 {
            return because(Why::Names(stat.st_nlink));
        }
        let writers = if kind == FileType::Symlink { Vec::new() } else { self.other_writers(object)? };
        if writers.is_empty() {
            return Ok(Ok(Exposure::Closed));
        }
        // With the sticky bit, only the owner of an entry can replace it. The entry's owner is inspected next.
        if kind == FileType::Directory && stat.st_mode & STICKY != 0 {
            return Ok(Ok(Exposure::Open));
        }
        because(Why::Writable(writers))
    }

    /// Refuses a file because its path is too long.
    pub(super) fn refuse_length(&self, path: &Path) -> Distrust {
        Distrust { path: path.to_owned(), starter: self.starter, region: Region::Own, why: Why::Long }
    }

    fn trusts(&self, uid: u32, region: Region) -> Result<bool, CommandError> {
        let agent = rustix::process::geteuid().as_raw();
        if uid == 0 || uid == agent || uid == self.starter {
            return Ok(true);
        }
        match region {
            Region::Own => Ok(false),
            Region::Shared => Ok(self.starter != 0 && self.uids()?.contains(&uid)),
        }
    }

    fn uids(&self) -> Result<&[u32], CommandError> {
        if let Some(uids) = self.uids.get() {
            return Ok(uids);
        }
        let ids = self.users.iter().map(|name| user::ids(name));
        // A nonexistent user owns nothing.
        let known = ids.filter(|ids| !matches!(ids, Err(UserError::Unknown { .. })));
        let uids =
            known.map(|ids| ids.map(|ids| ids.uid)).collect::<Result<_, _>>().map_err(CommandError::Users)?;
        Ok(self.uids.get_or_init(|| uids))
    }

    fn other_writers(&self, object: &Object<'_>) -> Result<Vec<Writer>, CommandError> {
        let mode = object.stat.st_mode;
        let everybody = (mode & OTHERS_WRITE != 0).then_some(Writer::Everybody);
        // With an ACL, the group bits are the mask: the maximum that any entry grants.
        if mode & GROUP_WRITES == 0 {
            return Ok(everybody.into_iter().collect());
        }
        let acl = match Acl::read(object.fd) {
            Ok(acl) => acl,
            // Without an ACL, the bits are the group's.
            Err(AclError::Unsupported | AclError::Malformed) => Acl::from_mode(mode),
            Err(AclError::Io { operation, source }) => {
                let path = object.path.to_owned();
                return Err(CommandError::Io { operation, path, source });
            }
        };
        let Writers { users, group, groups, other } = acl.writers();
        let mut writers: Vec<Writer> = other.then_some(Writer::Everybody).into_iter().collect();
        writers.extend(group.then_some(Writer::Group(object.stat.st_gid)));
        writers.extend(groups.into_iter().map(Writer::Group));
        for uid in users {
            if !self.trusts(uid, object.region)? {
                writers.push(Writer::User(uid));
            }
        }
        Ok(writers)
    }
}

/// Limit of directories held open on the path to a file, each with a descriptor. Real trees are far less deep.
pub(super) const LEVELS_MAX: usize = 128;
/// Limit of names left to follow: twice as many as the longest path has (`PATH_MAX` is 4,096 bytes).
pub(super) const PENDING_MAX: usize = 4096;

const STICKY: u32 = 0o1000;
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everybody => f.write_str("everybody"),
            Self::Group(gid) => write!(f, "group {}", names::group(*gid)),
            Self::User(uid) => f.write_str(&names::user(*uid)),
        }
    }
}

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, starter, region, why } = self;
        let path = path.display();
        match why {
            Why::Owner(uid) => {
                write!(f, "{path} belongs to {}, who could have written or replaced it", names::user(*uid))?;
            }
            Why::Writable(writers) => {
                let writers: Vec<String> = writers.iter().map(Writer::to_string).collect();
                write!(f, "{path} can be written to by {}", writers.join(", "))?;
            }
            Why::Names(links) => write!(
                f,
                "{path} has {links} names (hard links), and other users can add names to its directory, so one of them could have \
                 chosen this file"
            )?,
            Why::Long => {
                return write!(
                    f,
                    "at {path}, the path to it exceeds {LEVELS_MAX} directories or {PENDING_MAX} names, links included: use a \
                     shorter path"
                );
            }
        }
        let starter = names::user(*starter);
        let others = match region {
            Region::Shared if self.starter != 0 => " and the users of the allocation's tasks",
            Region::Shared | Region::Own => "",
        };
        write!(
            f,
            "; {starter} would run a program that another user may have placed there: only root, the agent's user, {starter}{others} may have \
             write access to a program and the directories on its path. Put the program in the task's `local` directory, owned by {starter} \
             and not writable for others, or use the absolute path of a program of the machine"
        )
    }
}
