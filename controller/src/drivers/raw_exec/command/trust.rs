//! Who may have written a program that is run.
//!
//! In: an open file or directory, what the system says of it, where it lies. Out: whether anybody could have written it who is neither root,
//! nor the agent, nor the user that the task starts as; in what an allocation's tasks share, nor any user of those, unless the task starts
//! as root. It must not know how the file was found.

use std::{
    fmt,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
};

use rustix::fs::{FileType, Stat};

use crate::drivers::{acl::Acl, user};

/// Whose programs are run.
#[derive(Debug, Clone, Copy)]
pub(in crate::drivers::raw_exec) struct Trust<'a> {
    /// The user that the task starts as.
    pub(in crate::drivers::raw_exec) starter: u32,
    /// Names of the users of all tasks of the allocation.
    pub(in crate::drivers::raw_exec) users: &'a [String],
}

/// Whose a place is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Region {
    /// The task's, or the machine's.
    Own,
    /// What the tasks of the allocation share.
    Shared,
}

/// Whether others than those who are trusted can add names to a directory. They can't replace what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exposure {
    /// They can't.
    Closed,
    /// They can.
    Open,
}

/// Why a program is not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::drivers::raw_exec) struct Distrust {
    path: PathBuf,
    starter: u32,
    why: Why,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// It belongs to somebody else.
    Owner(u32),
    /// Others may write to it.
    Writable,
    /// It has further names, and lies where anybody may give it one.
    Names(u64),
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

impl Trust<'_> {
    /// Inspects an object; for a directory whether names can be added to it.
    pub(super) fn inspect(&self, object: &Object<'_>) -> Result<Exposure, Distrust> {
        let because = |why| Distrust { path: object.path.to_owned(), starter: self.starter, why };
        let stat = object.stat;
        if !self.trusts(stat.st_uid, object.region) {
            return Err(because(Why::Owner(stat.st_uid)));
        }
        let kind = FileType::from_raw_mode(stat.st_mode);
        // A second name lets others choose under which one somebody's file is run.
        if kind != FileType::Directory && object.exposure == Exposure::Open && stat.st_nlink != 1 {
            return Err(because(Why::Names(stat.st_nlink)));
        }
        if kind == FileType::Symlink || !self.lets_others_write(object) {
            return Ok(Exposure::Closed);
        }
        // The sticky bit leaves each name to the owner of what it names, who is inspected next.
        if kind == FileType::Directory && stat.st_mode & STICKY != 0 {
            return Ok(Exposure::Open);
        }
        Err(because(Why::Writable))
    }

    fn trusts(&self, uid: u32, region: Region) -> bool {
        let agent = rustix::process::geteuid().as_raw();
        if uid == 0 || uid == agent || uid == self.starter {
            return true;
        }
        let is_user = |name: &String| user::find(name).is_ok_and(|user| user.uid == uid);
        match region {
            Region::Own => false,
            Region::Shared => self.starter != 0 && self.users.iter().any(is_user),
        }
    }

    fn lets_others_write(&self, object: &Object<'_>) -> bool {
        let mode = object.stat.st_mode;
        // Where there is a list, the group's bits are the most that any of its entries gives.
        if mode & GROUP_WRITES == 0 {
            return mode & OTHERS_WRITE != 0;
        }
        let Ok(acl) = Acl::read(object.fd) else { return true };
        let writers = acl.writers();
        let is_stranger = |uid: &u32| !self.trusts(*uid, object.region);
        writers.other || writers.group || !writers.groups.is_empty() || writers.users.iter().any(is_stranger)
    }
}

const STICKY: u32 = 0o1000;
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, starter, why } = self;
        let path = path.display();
        match why {
            Why::Owner(uid) => write!(f, "{path} belongs to user {uid}")?,
            Why::Writable => write!(f, "{path} can be written to by other users or a group")?,
            Why::Names(links) => {
                write!(f, "{path} has {links} names (hard links) and lies where other users can add some")?;
            }
        }
        write!(
            f,
            "; a program in the allocation's directory is run as user {starter} only where nobody but root, the agent's user and the \
             task's own can have written it or a directory on the way: change its owner (chown), or its mode (chmod go-w)"
        )
    }
}
