//! Terminals among those of a task's root, where the task finds them by their names.
//!
//! In: an open root. Out: both sides of a terminal. The task may have put something else at `/dev/pts`, which is not opened.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use herdlet_base::safe_fs;
use rustix::{
    fs::{Mode, OFlags, ResolveFlags, Uid, fchown, fstatfs, open, openat2},
    io::Errno,
    pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt},
};

/// The kind of file system that terminals are files of (statfs(2)).
const DEVPTS: rustix::fs::FsWord = 0x1cd1;

/// The terminal of a task.
#[derive(Debug)]
pub struct TaskTerminal {
    /// What the task has.
    pub(super) inner: OwnedFd,
    /// What the supervisor reads.
    pub(super) outer: OwnedFd,
}

impl TaskTerminal {
    /// A new terminal of this user.
    ///
    /// # Errors
    /// If the root has no terminals, or too many.
    pub fn in_root(root: BorrowedFd<'_>, uid: u32) -> Result<Self, Errno> {
        let outer = open_in_root(root)?;
        let inner = inner_side(&outer, Some(uid))?;
        Ok(Self { inner, outer })
    }
}

/// The outer side of a new terminal.
///
/// # Errors
/// If the root has no terminals, or too many.
pub(crate) fn open_in_root(root: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let found = openat2(root, "dev/pts/ptmx", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?;
    if fstatfs(&found)?.f_type != DEVPTS {
        return Err(Errno::NOTTY);
    }
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    open(safe_fs::proc_path(found.as_fd(), None), flags, Mode::empty())
}

/// The inner side of a terminal. Its user may open it by its name.
///
/// # Errors
/// If it can't be opened.
pub(crate) fn inner_side(outer: &OwnedFd, uid: Option<u32>) -> Result<OwnedFd, Errno> {
    unlockpt(outer)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let inner = ioctl_tiocgptpeer(outer, flags)?;
    if let Some(uid) = uid {
        fchown(&inner, Some(Uid::from_raw(uid)), None)?;
    }
    Ok(inner)
}
