//! Mounts and unmounts through open directories, so that renames and links can't redirect a mount.
//!
//! In: open directories and names in them. Out: mounts made or removed. This module does not know their purpose.

use std::{
    ffi::{OsStr, OsString},
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags, statx},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
        fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
    },
};

use super::table::{Mount, OWNER_MARK, mounts_below_now, will_mount};
use crate::safe_fs::{Crossing, Dir, FsError};

/// Mounts a new tmpfs on `target` with `noexec`, `nosuid` and `nodev`.
///
/// # Errors
///
/// If the system call fails.
pub fn mount_tmpfs(target: &Dir, size_bytes: u64, mode: u32) -> Result<(), FsError> {
    let refused = |errno: Errno| FsError::io("mount a tmpfs on", target.path(), errno);
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(refused)?;
    fsconfig_set_string(&context, "source", OWNER_MARK).map_err(refused)?;
    fsconfig_set_string(&context, "size", size_bytes.to_string()).map_err(refused)?;
    fsconfig_set_string(&context, "mode", format!("{mode:o}")).map_err(refused)?;
    // Keeps secrets out of swap; kernels before 6.4 don't know the option.
    let _ = fsconfig_set_flag(&context, "noswap");
    fsconfig_create(&context).map_err(refused)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOEXEC
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV;
    let tree = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(refused)?;
    will_mount(target.path());
    attach(&tree, target.as_fd()).map_err(refused)
}

/// Makes the tree at `source` appear on `target` too, including mounts below it. Later mounts on one side do not appear
/// on the other.
///
/// # Errors
///
/// If the source is not a directory or a system call fails.
pub fn bind(source: &Path, target: &Dir, access: Access) -> Result<(), FsError> {
    let opened = open_source(source)?;
    will_mount(target.path());
    bind_open(opened.as_fd(), Target { fd: target.as_fd(), path: target.path() }, access)
}

/// Where a file or directory is mounted.
#[derive(Debug, Clone, Copy)]
pub struct Target<'t> {
    /// An open file or directory, of the same kind as what is mounted on it.
    pub fd: BorrowedFd<'t>,
    /// Its path, for messages.
    pub path: &'t Path,
}

/// As [`bind`], for a file or directory that is open: whatever its path leads to by now, exactly that one is mounted. No watch of
/// mounts is notified in advance.
///
/// # Errors
///
/// If a system call fails.
pub fn bind_open(source: BorrowedFd<'_>, target: Target<'_>, access: Access) -> Result<(), FsError> {
    let refused = |errno: Errno| FsError::io("mount a volume on", target.path, errno);
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(source, "", flags).map_err(refused)?;
    // Set before the mount is visible.
    set_attributes(tree.as_fd(), access).map_err(refused)?;
    attach(&tree, target.fd).map_err(refused)
}

/// Opens a volume's directory and follows links: the author of its path meant their target.
///
/// # Errors
///
/// If it does not exist or is not a directory.
pub fn open_source(source: &Path) -> Result<OwnedFd, FsError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, source, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::NOTDIR => FsError::NotADirectory { path: source.to_owned() },
        errno => FsError::io("open", source, errno),
    })
}

/// Unmounts everything at or below `name` in `parent`, deepest first. A mount in use is detached: it disappears from
/// every path, and the kernel frees it with its last user.
///
/// # Errors
///
/// If a mount can't be unmounted.
pub fn unmount_below(parent: &Dir, name: &OsStr) -> Result<(), FsError> {
    let top = parent.real_path()?.join(name);
    repeat(parent, &top, || {
        let mut mounts = mounts_below_now(&top)?;
        mounts.sort_by_key(|mount| std::cmp::Reverse((mount.point.components().count(), mount.id)));
        Ok(mounts)
    })
}

/// Unmounts the topmost mount at exactly `name` in `parent`. Succeeds if there is none.
///
/// # Errors
///
/// If it can't be unmounted.
pub fn unmount_top(parent: &Dir, name: &OsStr) -> Result<(), FsError> {
    unmount_one(parent, name).map(drop)
}

/// Unmounts everything mounted at exactly `name` in `parent`, including mounts within. It avoids the mount table, which
/// may be long on a busy machine.
///
/// # Errors
///
/// If a mount can't be unmounted.
pub fn unmount_at_name(parent: &Dir, name: &OsStr) -> Result<(), FsError> {
    for _ in 0..ROUNDS_MAX {
        // Checked first: without the right to unmount, the kernel refuses even if there is no mount.
        if !may_be_mounted(parent, name)? {
            return Ok(());
        }
        match unmount_one(parent, name)? {
            Unmounted::Yes => {}
            Unmounted::Nothing => return Ok(()),
        }
    }
    Err(FsError::Mounted { path: parent.path().join(name) })
}

/// Removes `name` in `parent` with all its contents, unmounting as necessary.
///
/// # Errors
///
/// If something can't be unmounted or removed.
pub fn remove_with_mounts(parent: &Dir, name: &OsStr) -> Result<(), FsError> {
    match parent.remove_tree(name) {
        // Removal entered no mount.
        Err(FsError::Mounted { .. }) => {
            unmount_below(parent, name)?;
            parent.remove_tree(name)
        }
        removed => removed,
    }
}

/// Whether something may be mounted at exactly `name` in `parent`, and reading the mount table is worth it. Always true
/// before Linux 5.8, which doesn't report it.
///
/// # Errors
///
/// If the system call fails.
pub fn may_be_mounted(parent: &Dir, name: &OsStr) -> Result<bool, FsError> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    match statx(parent, name, flags, StatxFlags::empty()) {
        Ok(seen) if seen.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) => {
            Ok(seen.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
        }
        Ok(_) | Err(Errno::NOSYS) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(FsError::io("examine", parent.path().join(name), errno)),
    }
}

/// Limit for rereading the table because mounts moved, were stacked or appeared during the work.
const ROUNDS_MAX: u32 = 256;

fn repeat(parent: &Dir, top: &Path, list: impl Fn() -> std::io::Result<Vec<Mount>>) -> Result<(), FsError> {
    let base = parent.real_path()?;
    let mut stuck = None;
    for _ in 0..ROUNDS_MAX {
        let mounts = list().map_err(|error| FsError::io("list the mounts below", top, error))?;
        if mounts.is_empty() {
            return Ok(());
        }
        let mut progress = false;
        for mount in mounts {
            match unmount_at(parent, &base, &mount.point) {
                Ok(Unmounted::Yes) => progress = true,
                Ok(Unmounted::Nothing) => {}
                Err(error) => stuck = Some(error),
            }
        }
        if !progress {
            break;
        }
    }
    Err(stuck.unwrap_or_else(|| FsError::Mounted { path: top.to_owned() }))
}

enum Unmounted {
    Yes,
    Nothing,
}

fn unmount_at(parent: &Dir, base: &Path, point: &Path) -> Result<Unmounted, FsError> {
    let (Some(above), Some(name)) = (point.parent(), point.file_name()) else {
        return Ok(Unmounted::Nothing);
    };
    let Ok(relative) = above.strip_prefix(base) else { return Ok(Unmounted::Nothing) };
    match parent.open_below(relative, Crossing::Mounts) {
        Ok(dir) => unmount_one(&dir, name),
        // Moved, or hidden under another mount: the next round finds its new place.
        Err(error) if error.is_missing() => Ok(Unmounted::Nothing),
        Err(error) => Err(error),
    }
}

fn unmount_one(parent: &Dir, name: &OsStr) -> Result<Unmounted, FsError> {
    let path: PathBuf = parent.proc_path(name);
    let unmounted = match rustix::mount::unmount(&path, UnmountFlags::NOFOLLOW) {
        Err(Errno::BUSY) => rustix::mount::unmount(&path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH),
        unmounted => unmounted,
    };
    match unmounted {
        Ok(()) => Ok(Unmounted::Yes),
        Err(Errno::INVAL | Errno::NOENT) => Ok(Unmounted::Nothing),
        Err(errno) => Err(FsError::io("unmount", parent.path().join(OsString::from(name)), errno)),
    }
}

fn attach(tree: &OwnedFd, target: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, "", target, "", flags)?;
    // A mount below a shared mount (systemd shares `/`) becomes shared too; ours are private.
    set_attributes(tree.as_fd(), Access::ReadWrite)
}

/// Makes a tree of mounts private and, if requested, read-only.
#[expect(unsafe_code, reason = "rustix has no mount_setattr(2)")]
fn set_attributes(tree: BorrowedFd<'_>, access: Access) -> Result<(), Errno> {
    let attributes = libc::mount_attr {
        attr_set: match access {
            Access::ReadOnly => libc::MOUNT_ATTR_RDONLY,
            Access::ReadWrite => 0,
        },
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    // SAFETY: the descriptor is open for the call, the path is a NUL-terminated constant, and the kernel reads exactly the
    // given number of bytes from a struct that lives until the call returns; it keeps no pointer.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::c_long::from(tree.as_raw_fd()),
            c"".as_ptr(),
            libc::c_long::from(libc::AT_EMPTY_PATH | libc::AT_RECURSIVE),
            std::ptr::from_ref(&attributes),
            std::mem::size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
    }
}

/// Whether a task may write to a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    ReadWrite,
    ReadOnly,
}
