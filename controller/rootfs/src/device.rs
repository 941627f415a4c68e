//! /dev of a root: the devices that every program may expect, terminals of its own, and shared memory.
//!
//! In: copies of the machine's device nodes. Out: mounts in the root. The directory for message queues is empty: only a
//! process in the task's ipc namespace can mount them.

use std::{
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{Mode, OFlags, mkdirat, openat, symlinkat},
    io::Result,
    mount::MountAttrFlags,
};

use crate::{kernel, place::own_directory, root::Rights};

const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("ptmx", "pts/ptmx"),
    ("stderr", "/proc/self/fd/2"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
];

/// The size of shared memory, unless a task has its own.
const SHM_BYTES: u64 = 64 << 20;

/// Mounts /dev.
pub(crate) fn mount(
    root: BorrowedFd<'_>,
    devices: &[(&'static str, OwnedFd)],
    (shm_bytes, rights): (Option<u64>, Rights),
) -> Result<()> {
    let safe = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let no_devices = safe | MountAttrFlags::MOUNT_ATTR_NODEV;
    // The nodes are mounts of their own; a confined task can't make others.
    let attributes = if rights == Rights::Confined { no_devices } else { safe };
    let dev = kernel::create("tmpfs", &[("mode", "0755"), ("size", "64k")], attributes)?;
    kernel::place(dev.as_fd(), own_directory(root, Path::new("dev"))?.as_fd())?;
    for (name, device) in devices {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let node = openat(&dev, *name, flags, Mode::from(0o666))?;
        kernel::place(device.as_fd(), node.as_fd())?;
    }
    for (name, target) in LINKS {
        symlinkat(target, &dev, name)?;
    }
    // 5 is the group of terminals, in which the kernel makes new ones.
    let terminals = [("ptmxmode", "0666"), ("mode", "0620"), ("gid", "5")];
    let pts = kernel::create("devpts", &terminals, safe)?;
    kernel::place(pts.as_fd(), directory(&dev, "pts")?.as_fd())?;
    let size = shm_bytes.unwrap_or(SHM_BYTES).to_string();
    let shm = kernel::create("tmpfs", &[("mode", "1777"), ("size", &size)], no_devices)?;
    kernel::place(shm.as_fd(), directory(&dev, "shm")?.as_fd())?;
    directory(&dev, "mqueue").map(drop)
}

fn directory(dev: &OwnedFd, name: &str) -> Result<OwnedFd> {
    mkdirat(dev, name, Mode::from(0o755))?;
    openat(dev, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}
