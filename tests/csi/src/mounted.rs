//! Bind mounts of directories and devices, and loop devices.

use std::{fs, io, path::Path, process::Command};

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

/// Removes an empty directory or a file; one that is missing is removed.
///
/// # Errors
///
/// If it is not empty, or a system call fails.
pub fn remove_target(path: &Path) -> io::Result<()> {
    let removed = if path.is_file() { fs::remove_file(path) } else { fs::remove_dir(path) };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The loop device of an image; one is set up if there is none.
///
/// # Errors
///
/// If `losetup` fails.
pub fn device(image: &Path) -> io::Result<String> {
    let known = losetup(["--list", "--noheadings", "--output", "NAME", "--associated"], image)?;
    match known.lines().next() {
        Some(device) => Ok(device.trim().to_owned()),
        None => Ok(losetup(["--find", "--show"], image)?.trim().to_owned()),
    }
}

/// Removes all loop devices of an image.
///
/// # Errors
///
/// If `losetup` fails.
pub fn remove_devices(image: &Path) -> io::Result<()> {
    let known = losetup(["--list", "--noheadings", "--output", "NAME", "--associated"], image)?;
    known.lines().try_for_each(|device| losetup(["--detach"], Path::new(device.trim())).map(drop))
}

fn losetup<const N: usize>(options: [&str; N], path: &Path) -> io::Result<String> {
    let ended = Command::new("losetup").args(options).arg(path).output()?;
    if !ended.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&ended.stderr).into_owned()));
    }
    Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
}
