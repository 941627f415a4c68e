//! System calls on mounts (Linux 5.12). They name mounts by descriptors, so that no link can lead one elsewhere.
//!
//! In: descriptors, names. Out: the result or an errno. See `sys`.

use super::*;

const AT_EMPTY_PATH: u32 = 0x1000;
const ATTR_RDONLY: u32 = 1;

/// Whether something can be written in a mount.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::start) enum Writes {
    Allowed,
    Refused,
}

/// Mounts a new file system of this kind, without devices, programs and set-user-id files, in no place yet.
pub(in crate::start) fn new_mount(kind: &CStr, writes: Writes) -> Result<Fd> {
    const FSOPEN_CLOEXEC: u32 = 1;
    const FSCONFIG_CMD_CREATE: u32 = 6;
    const FSMOUNT_CLOEXEC: u32 = 1;
    const NOSUID_NODEV_NOEXEC: u32 = 2 | 4 | 8;
    let context = kernel!(FSOPEN, kind.as_ptr(), FSOPEN_CLOEXEC)? as Fd;
    let read_only = if writes == Writes::Refused { ATTR_RDONLY } else { 0 };
    let mounted = kernel!(FSCONFIG, context, FSCONFIG_CMD_CREATE)
        .and_then(|_| kernel!(FSMOUNT, context, FSMOUNT_CLOEXEC, NOSUID_NODEV_NOEXEC | read_only));
    close(context);
    mounted.map(|fd| fd as Fd)
}

/// Copies what is mounted at `name` in a directory, or at the open file itself if the name is empty, into no place yet.
/// The copy shows the same files, beginning with that one.
pub(in crate::start) fn copy_mount(at: Fd, name: &CStr) -> Result<Fd> {
    const OPEN_TREE_CLONE: u32 = 1;
    const AT_SYMLINK_NOFOLLOW: u32 = 0x100;
    let flags = OPEN_TREE_CLONE | O_CLOEXEC | AT_SYMLINK_NOFOLLOW;
    let flags = if name.is_empty() { flags | AT_EMPTY_PATH } else { flags };
    kernel!(OPEN_TREE, at, name.as_ptr(), flags).map(|fd| fd as Fd)
}

/// Refuses writes to a mount.
pub(in crate::start) fn make_read_only(mount: Fd) -> Result<()> {
    // struct mount_attr: attributes to set and to clear, propagation, user namespace.
    let attributes = [u64::from(ATTR_RDONLY), 0, 0, 0];
    kernel!(MOUNT_SETATTR, mount, c"".as_ptr(), AT_EMPTY_PATH, attributes.as_ptr(), 32, 0).map(|_| ())
}

/// Puts a mount that has no place yet at `name` in a directory, or at the open file itself if the name is empty. A link is
/// not followed.
pub(in crate::start) fn place_mount(mount: Fd, at: Fd, name: &CStr) -> Result<()> {
    const FROM_EMPTY_PATH: u32 = 4;
    const TO_EMPTY_PATH: u32 = 0x40;
    let flags = if name.is_empty() { FROM_EMPTY_PATH | TO_EMPTY_PATH } else { FROM_EMPTY_PATH };
    kernel!(MOVE_MOUNT, mount, c"".as_ptr(), at, name.as_ptr(), flags, 0).map(|_| ())
}
