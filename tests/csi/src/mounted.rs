//! Bind mounts of directories.

use std::{fs, io, path::Path};

use herdlet_base::mounts::table::mounts_below_now;
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};

/// Whether something is mounted at a path, and whether it can be written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountState {
    No,
    ReadOnly,
    ReadWrite,
}

/// # Errors
///
/// If the mount table can't be read.
pub fn find(path: &Path) -> io::Result<MountState> {
    let Ok(path) = path.canonicalize() else { return Ok(MountState::No) };
    // The last one is the visible one.
    let mounts = mounts_below_now(&path)?;
    let mount = mounts.iter().rfind(|mount| mount.point == path);
    Ok(match mount {
        None => MountState::No,
        Some(mount) if mount.read_only => MountState::ReadOnly,
        Some(_) => MountState::ReadWrite,
    })
}

/// Mounts a directory at another one, which exists.
///
/// # Errors
///
/// If a system call fails.
pub fn bind(source: &Path, target: &Path, mode: MountState) -> io::Result<()> {
    mount_bind(source, target)?;
    if mode == MountState::ReadOnly {
        mount_remount(target, MountFlags::BIND | MountFlags::RDONLY, c"")?;
    }
    Ok(())
}

/// Removes all mounts at a path.
///
/// # Errors
///
/// If a system call fails.
pub fn remove(path: &Path) -> io::Result<()> {
    while find(path)? != MountState::No {
        unmount(path, UnmountFlags::empty())?;
    }
    Ok(())
}

/// Removes an empty directory; one that is missing is removed.
///
/// # Errors
///
/// If it is not empty, or a system call fails.
pub fn remove_directory(path: &Path) -> io::Result<()> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}
