//! Places for mounts in a root. A task may have put anything into its directory.
//!
//! In: an open directory, a path in it. Out: an open directory or file on which something can be mounted. Links never lead
//! out of the directory.

use std::{
    ffi::OsStr,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Component, Path},
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2, unlinkat},
    io::{Errno, Result},
};

const DIR: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens a directory below `base`, and makes what is missing. No link is followed: what is in the place of a directory is
/// removed. For directories that only the task and the agent use.
pub(crate) fn own_directory(base: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd> {
    let mut dir = openat(base, ".", DIR, Mode::empty())?;
    for name in names(path)? {
        dir = match openat(&dir, name, DIR | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(found) => found,
            Err(Errno::NOENT) => make(dir.as_fd(), name)?,
            // A link, or a file.
            Err(Errno::NOTDIR | Errno::LOOP) => {
                unlinkat(&dir, name, AtFlags::empty())?;
                make(dir.as_fd(), name)?
            }
            Err(errno) => return Err(errno),
        };
    }
    Ok(dir)
}

/// Opens a directory in a root, and makes what is missing. Links lead to where they would lead the task.
pub(crate) fn directory(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd> {
    match resolve(root, path, DIR) {
        Err(Errno::NOENT) => {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(Errno::NOENT);
            };
            make(directory(root, parent)?.as_fd(), name)
        }
        done => done,
    }
}

/// Opens a file in a root, and makes an empty one if it is missing.
pub(crate) fn file(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd> {
    match resolve(root, path, OFlags::PATH | OFlags::CLOEXEC) {
        Err(Errno::NOENT) => {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(Errno::NOENT);
            };
            let parent = directory(root, parent)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            match openat(&parent, name, flags, Mode::from(0o644)) {
                Ok(_) => {}
                // A link that leads nowhere.
                Err(Errno::EXIST) => {
                    unlinkat(&parent, name, AtFlags::empty())?;
                    openat(&parent, name, flags, Mode::from(0o644))?;
                }
                Err(errno) => return Err(errno),
            }
            openat(&parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
        }
        done => done,
    }
}

/// Opens what is at a path in a root, if no link is on the way.
pub(crate) fn find(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

fn resolve(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)
}

/// Makes a directory where none was found.
fn make(dir: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd> {
    match mkdirat(dir, name, Mode::from(0o755)) {
        Ok(()) => {}
        // A link that leads nowhere.
        Err(Errno::EXIST) => {
            unlinkat(dir, name, AtFlags::empty())?;
            mkdirat(dir, name, Mode::from(0o755))?;
        }
        Err(errno) => return Err(errno),
    }
    openat(dir, name, DIR | OFlags::NOFOLLOW, Mode::empty())
}

/// The names in a relative path.
fn names(path: &Path) -> Result<Vec<&OsStr>> {
    let name = |part| match part {
        Component::Normal(name) => Some(Ok(name)),
        Component::CurDir => None,
        Component::RootDir | Component::ParentDir | Component::Prefix(_) => Some(Err(Errno::INVAL)),
    };
    path.components().filter_map(name).collect()
}
