//! Overlays of parts of the machine: what the task writes is in its own directory.
//!
//! In: a part that is mounted at [`PART`], the allocation's directory at [`ALLOC`](crate::seed::ALLOC). Out: an overlay in no place, or
//! why there is none. The upper and the work directory must be reached through one mount, so both are opened below the
//! allocation's directory.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid, chmod, chownat, fremovexattr, fstat, getxattr, openat},
    io::Errno,
    mount::MountAttrFlags,
};

use crate::{
    kernel,
    place::{find, own_directory},
    root::Root,
    seed::PART,
};

/// Below the work directory of a root: no other name is used there but those of entries.
const WORK: &str = "@work";
/// What the kernel notes at an upper directory.
const ORIGIN: &str = "trusted.overlay.origin";

/// Why there is no overlay.
pub(crate) enum Refusal {
    /// The directories are part of another overlay that is still mounted.
    Busy,
    /// They can't be used in an overlay.
    Unsupported(io::Error),
}

impl<E: Into<io::Error>> From<E> for Refusal {
    fn from(error: E) -> Self {
        let error = error.into();
        match error.raw_os_error() {
            Some(libc::EBUSY) => Self::Busy,
            _ => Self::Unsupported(error),
        }
    }
}

/// Mounts an overlay of the part at [`PART`], for this place in the root.
///
/// The kernel refuses an upper directory below one that is in use: of two, one below the other, the lower one comes first.
pub(crate) fn mount(
    root: &Root,
    alloc: BorrowedFd<'_>,
    target: &Path,
    upper: &OwnedFd,
) -> Result<OwnedFd, Refusal> {
    let work = own_directory(alloc, &root.work.join(target).join(WORK))?;
    match mount_with(upper, &work) {
        // The upper directory is of an overlay of another part, for instance from before the machine's file system was
        // replaced. What is in it stays valid.
        Err(Errno::STALE) => {
            forget_origin(upper)?;
            remove_index(&work)?;
            Ok(mount_with(upper, &work)?)
        }
        done => Ok(done?),
    }
}

fn mount_with(upper: &OwnedFd, work: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let options = [
        ("lowerdir", PART),
        ("upperdir", &path_of(upper)),
        ("workdir", &path_of(work)),
        // Makes the second use of an upper directory an error; the kernel would only log it.
        ("index", "on"),
        // What the task may have written to its directory must not lead to other files.
        ("redirect_dir", "off"),
        ("metacopy", "off"),
        ("xino", "off"),
    ];
    kernel::create("overlay", &options, MountAttrFlags::MOUNT_ATTR_NODEV)
}

/// Opens the task's own directory for a part. One that is used for the first time gets mode and owner of the part, because the overlay shows those of
/// its upper directory.
pub(crate) fn upper_directory(
    alloc: BorrowedFd<'_>,
    path: &Path,
    part: &OwnedFd,
) -> rustix::io::Result<OwnedFd> {
    let is_directory = |found: &OwnedFd| {
        fstat(found).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    };
    let made = match find(alloc, path).ok().filter(is_directory) {
        Some(found) if was_upper(&found)? => return Ok(found),
        // Made for an artifact or a template.
        Some(found) => found,
        None => own_directory(alloc, path)?,
    };
    let shown = fstat(part)?;
    let (uid, gid) = (Uid::from_raw(shown.st_uid), Gid::from_raw(shown.st_gid));
    chownat(&made, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    chmod(&*path_of(&made), Mode::from_raw_mode(shown.st_mode))?;
    Ok(made)
}

/// Whether a directory has been the upper one of an overlay with the option `index`.
fn was_upper(dir: &OwnedFd) -> rustix::io::Result<bool> {
    match getxattr(&*path_of(dir), ORIGIN, &mut [0_u8; 0][..]) {
        Ok(_) => Ok(true),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn forget_origin(upper: &OwnedFd) -> rustix::io::Result<()> {
    let dir = openat(upper, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    match fremovexattr(&dir, ORIGIN) {
        Ok(()) | Err(Errno::NODATA) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Removes the kernel's list of files that are in the upper directory under several names.
fn remove_index(work: &OwnedFd) -> io::Result<()> {
    match std::fs::remove_dir_all(format!("{}/index", path_of(work))) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

pub(crate) fn path_of(fd: &OwnedFd) -> String {
    format!("/proc/thread-self/fd/{}", fd.as_raw_fd())
}
