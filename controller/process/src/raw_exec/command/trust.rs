//! Who may have written a program that is run.
//!
//! In: an open file or directory, its metadata and its region. Out: whether any user could have written it other than root,
//! nor the agent, nor the user that the task starts as; in what an allocation's tasks share, nor any user of those, unless the task starts
//! as root. It must not know how the file was found.

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

/// Whose programs are run.
#[derive(Debug)]
pub(crate) struct Trust<'a> {
    starter: u32,
    users: &'a [String],
    /// Of `users`, from their first use on: a name service may be slow or fail, and most programs are root's or the task's.
    uids: OnceCell<Vec<u32>>,
}

/// Whose a place is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Region {
    /// The task's, or the machine's.
    Own,
    /// What the tasks of the allocation share.
    Shared,
}

/// Whether untrusted users can add names to a directory. They cannot replace existing names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exposure {
    Closed,
    Open,
}

/// Why a program is not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Distrust {
    path: PathBuf,
    starter: u32,
    region: Region,
    why: Why,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Why {
    /// It belongs to somebody else.
    Owner(u32),
    /// They may write to it.
    Writable(Vec<Writer>),
    /// It has further names, and lies where anybody may give it one.
    Names(u64),
    /// More directories or names lie on the way than are followed.
    Long,
}

/// Who may write to something besides its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writer {
    Everybody,
    Group(u32),
    User(u32),
}

/// A file, directory or link on the way to a program.
#[derive(Debug, Clone, Copy)]
pub(super) struct Object<'a> {
    pub(super) fd: BorrowedFd<'a>,
    pub(super) stat: &'a Stat,
    pub(super) path: &'a Path,
    pub(super) region: Region,
    /// Of the directory that it lies in.
    pub(super) exposure: Exposure,
}

impl<'a> Trust<'a> {
    /// Of a task that starts as the user `starter`, in an allocation that `users` (by name) may write to.
    pub(crate) fn new(starter: u32, users: &'a [String]) -> Self {
        Self { starter, users, uids: OnceCell::new() }
    }

    /// The user that the task starts as.
    pub(super) fn starter(&self) -> u32 {
        self.starter
    }

    /// Inspects an object; for a directory whether names can be added to it.
    ///
    /// # Errors
    /// When a user or a list can't be looked up: who could have written the object is not known then.
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
        // A second name lets others choose under which one somebody's file is run.
        if kind != FileType::Directory && object.exposure == Exposure::Open && stat.st_nlink != 1 {
            return because(Why::Names(stat.st_nlink));
        }
        let writers = if kind == FileType::Symlink { Vec::new() } else { self.other_writers(object)? };
        if writers.is_empty() {
            return Ok(Ok(Exposure::Closed));
        }
        // The sticky bit leaves each name to the owner of what it names, who is inspected next.
        if kind == FileType::Directory && stat.st_mode & STICKY != 0 {
            return Ok(Ok(Exposure::Open));
        }
        because(Why::Writable(writers))
    }

    /// Why a file is not run to which the way is too long.
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
        // A user that does not exist owns nothing.
        let known = ids.filter(|ids| !matches!(ids, Err(UserError::Unknown { .. })));
        let uids =
            known.map(|ids| ids.map(|ids| ids.uid)).collect::<Result<_, _>>().map_err(CommandError::Users)?;
        Ok(self.uids.get_or_init(|| uids))
    }

    fn other_writers(&self, object: &Object<'_>) -> Result<Vec<Writer>, CommandError> {
        let mode = object.stat.st_mode;
        let everybody = (mode & OTHERS_WRITE != 0).then_some(Writer::Everybody);
        // Where there is a list, the group's bits are the most that any of its entries gives.
        if mode & GROUP_WRITES == 0 {
            return Ok(everybody.into_iter().collect());
        }
        let acl = match Acl::read(object.fd) {
            Ok(acl) => acl,
            // The bits are the group's.
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

/// So many directories are held on the way to a file, each by a descriptor of the agent's: many times more than any real tree is deep.
pub(super) const LEVELS_MAX: usize = 128;
/// So many names may be left to follow: as many as the longest path has (`PATH_MAX` is 4,096 bytes), twice.
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
                    "at {path} the way to it, links included, is longer than {LEVELS_MAX} directories or {PENDING_MAX} names: use a \
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
            "; {starter} would run what somebody else has put there: only root, the agent's user, {starter}{others} may be able to write \
             to a program and to the directories on the way. Keep the program in the task's `local` directory, written by {starter} and \
             without a right to write for others, or name one of the machine by its absolute path"
        )
    }
}
