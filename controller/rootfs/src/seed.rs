//! The small mount namespace that is copied for each root.
//!
//! In: nothing. Out: a namespace with an empty root, places for mounts, and /proc. A copy of it costs a fraction of a copy
//! of the machine's namespace, which may have hundreds of mounts, and never sees the machine's directories.

use std::{
    fs::File,
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
};

use herdlet_base::own_thread::on_own_thread;
use rustix::{
    fs::{CWD, Mode, OFlags, mkdirat, openat},
    mount::{MountAttrFlags, MountPropagationFlags, UnmountFlags, mount_change, unmount},
    process::{chdir, fchdir, pivot_root, umask},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe},
};

use crate::kernel::{self, Depth};

/// The place of the next root.
pub(crate) const ROOT: &str = "/root";
/// The place of the allocation's directory.
pub(crate) const ALLOC: &str = "/alloc";
/// The place of the part of the machine that is being mounted.
pub(crate) const PART: &str = "/part";
/// The place of memory for changes that can't be in the task's directory.
pub(crate) const MEMORY: &str = "/memory";

/// The namespace.
#[derive(Debug)]
pub struct Seed {
    namespace: OwnedFd,
}

impl Seed {
    /// Makes the namespace.
    ///
    /// # Errors
    /// Without root, or if the kernel is older than Linux 5.12.
    pub fn new() -> io::Result<Self> {
        on_own_thread("root", || {
            leave_mounts()?;
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
            let namespace = OwnedFd::from(File::open("/proc/thread-self/ns/mnt")?);
            let proc = kernel::copy(Path::new("/proc"), Depth::Alone)?;
            let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
            let root = kernel::create("tmpfs", &[("mode", "0755"), ("size", "64k")], attributes)?;
            for dir in ["/proc", ROOT, ALLOC, PART, MEMORY] {
                mkdirat(root.as_fd(), dir.trim_start_matches('/'), Mode::from(0o755))?;
            }
            // Any directory will do: the mount becomes the root at once.
            let any = open_dir("/proc")?;
            kernel::place(root.as_fd(), any.as_fd())?;
            replace_root(&root)?;
            kernel::place(proc.as_fd(), open_dir("/proc")?.as_fd())?;
            kernel::make_read_only(root.as_fd(), Depth::Alone)?;
            Ok(Self { namespace })
        })
    }

    /// Moves the calling thread into a new copy. Nothing else may run on the thread afterwards.
    pub(crate) fn enter_copy(&self) -> io::Result<()> {
        // A thread that shares its root with others can't change its mounts.
        unshare(UnshareFlags::FS)?;
        move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Mount))?;
        leave_mounts()
    }
}

/// Makes a mount the root of the calling thread's namespace, and removes all others.
pub(crate) fn replace_root(mount: &OwnedFd) -> io::Result<()> {
    fchdir(mount)?;
    // The old root is then on top of the new one, at the same place.
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    Ok(chdir("/")?)
}

pub(crate) fn open_dir(path: &str) -> rustix::io::Result<OwnedFd> {
    openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Copies the mounts for the calling thread, and its root, working directory and file mode creation mask.
fn leave_mounts() -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)?;
    // Directories in a root are for any user.
    umask(Mode::from(0o022));
    Ok(())
}

fn unshare(flags: UnshareFlags) -> io::Result<()> {
    #[expect(unsafe_code, reason = "the other threads keep their mounts")]
    // SAFETY: descriptors stay shared, and only this thread changes.
    unsafe {
        unshare_unsafe(flags)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each start of a task copies the seed; a copy costs more the more mounts there are.
    #[test]
    fn seed_has_two_mounts() {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("HERDLET_TEST_REQUIRE").is_none(), "this test needs root");
            return;
        }
        let seed = Seed::new().unwrap();
        let mounts = on_own_thread("root", || {
            seed.enter_copy()?;
            std::fs::read_to_string("/proc/thread-self/mountinfo")
        });
        let mounts: String = mounts.unwrap();
        let points: Vec<_> = mounts.lines().filter_map(|line| line.split(' ').nth(4)).collect();
        assert_eq!(points, ["/", "/proc"]);
        assert!(Path::new("/proc/self/exe").exists(), "this process is where it was");
    }
}
