//! Mounts by descriptors (Linux 5.12): nothing that a task has put in place of a directory can lead one elsewhere.
//!
//! In: paths of the machine, descriptors. Out: mounts, in no place until they are put there. A mount in no place ends with
//! its descriptor.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::CWD,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
        fsconfig_create, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
    },
};

use crate::root::Propagation;

/// Whether the mounts below a mount are included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    Alone,
    WithMountsBelow,
}

/// Copies what is mounted at a path of the machine, beginning with that directory or file. What is mounted on the copy later
/// does not appear on the machine.
pub(crate) fn copy(path: &Path, depth: Depth) -> io::Result<OwnedFd> {
    copy_with(path, depth, Propagation::Private)
}

/// Copies the same, with this propagation.
pub(crate) fn copy_with(path: &Path, depth: Depth, propagation: Propagation) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let flags = match depth {
        Depth::Alone => flags,
        Depth::WithMountsBelow => flags | OpenTreeFlags::AT_RECURSIVE,
    };
    let copied = open_tree(CWD, path, flags)?;
    let kind = match propagation {
        Propagation::Private => MountPropagationFlags::PRIVATE,
        Propagation::FromMachine => MountPropagationFlags::DOWNSTREAM,
        // A copy of a shared mount is shared.
        Propagation::Shared => return Ok(copied),
    };
    let propagation = u64::from(kind.bits());
    set_attributes(copied.as_fd(), depth, Attributes { propagation, ..Attributes::default() })?;
    Ok(copied)
}

/// Copies what is mounted at an open file of the calling thread's namespace.
pub(crate) fn copy_open(at: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(at, c"", flags | OpenTreeFlags::AT_EMPTY_PATH)
}

/// A directory of the machine through a mount of its own, which refuses all changes: a task that finds a file by this path, such as
/// `/proc/PID/exe`, can change neither its content nor its mode. Ends with its users.
///
/// # Errors
/// Before Linux 5.12, and without `CAP_SYS_ADMIN`.
pub fn read_only(dir: &Path) -> io::Result<OwnedFd> {
    let mount = copy(dir, Depth::Alone)?;
    make_read_only(mount.as_fd(), Depth::Alone)?;
    Ok(mount)
}

/// Mounts a new file system in no place.
pub(crate) fn create(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> rustix::io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        fsconfig_set_string(context.as_fd(), *key, *value)?;
    }
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Puts a mount on an open directory or file.
pub(crate) fn place(mount: BorrowedFd<'_>, at: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, c"", at, c"", flags)
}

/// Refuses writes to a mount.
pub(crate) fn make_read_only(mount: BorrowedFd<'_>, depth: Depth) -> io::Result<()> {
    let read_only = u64::from(MountAttrFlags::MOUNT_ATTR_RDONLY.bits());
    set_attributes(mount, depth, Attributes { set: read_only, ..Attributes::default() })
}

/// Lets nobody use device files of a mount, so that a task that can make some gains nothing.
pub(crate) fn refuse_devices(mount: BorrowedFd<'_>, depth: Depth) -> io::Result<()> {
    let no_devices = u64::from(MountAttrFlags::MOUNT_ATTR_NODEV.bits());
    set_attributes(mount, depth, Attributes { set: no_devices, ..Attributes::default() })
}

/// `struct mount_attr` (mount_setattr(2)).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

#[expect(unsafe_code, reason = "rustix has no mount_setattr")]
fn set_attributes(mount: BorrowedFd<'_>, depth: Depth, attributes: Attributes) -> io::Result<()> {
    let recursive = match depth {
        Depth::Alone => 0,
        Depth::WithMountsBelow => libc::AT_RECURSIVE,
    };
    // SAFETY: numbers, an empty string, and a structure of the given size, which the kernel only reads.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | recursive,
            &raw const attributes,
            size_of::<Attributes>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
