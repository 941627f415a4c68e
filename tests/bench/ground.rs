//! Where measures take place.
//!
//! Each gets a directory in a part of the disk of its own: ext4 takes long to find an inode where many were deleted within
//! the last minutes, and what an earlier measure has deleted must not cost the next one. Records of attempts are in memory,
//! as on a machine whose `/run` is. Mounts are in a namespace of their own: an agent reads the mount table whenever anybody
//! mounts something.

use std::path::{Path, PathBuf};

use rustix::{
    fs::{IFlags, Mode, OFlags},
    mount::MountPropagationFlags,
    thread::UnshareFlags,
};
use tempfile::TempDir;

/// The place of one run of the benchmarks.
pub(super) struct BenchDirs {
    disk: TempDir,
    memory: TempDir,
}

impl BenchDirs {
    pub(super) fn new() -> Self {
        if let Err(error) = own_mounts() {
            eprintln!("mounts that others make cost the agent time: {error}");
        }
        let disk = tempfile::Builder::new().prefix("hb").tempdir_in("/tmp").expect("a temporary directory");
        let memory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        if let Err(error) = scatter(disk.path()) {
            eprintln!("what measures delete may slow down later ones: {error}");
        }
        Self { disk, memory }
    }

    /// Below it each directory is far from its siblings.
    pub(super) fn disk(&self) -> &Path {
        self.disk.path()
    }

    /// A new directory on the disk.
    pub(super) fn dir(&self) -> TempDir {
        tempfile::tempdir_in(self.disk()).expect("a temporary directory")
    }

    /// Where agents keep what lives as long as the boot.
    pub(super) fn runtime(&self) -> PathBuf {
        self.memory.path().to_owned()
    }
}

#[expect(unsafe_code, reason = "other kinds of unsharing than this one are dangerous")]
fn own_mounts() -> rustix::io::Result<()> {
    // SAFETY: descriptors stay shared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS)? };
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
}

/// Tells ext4 that directories below have nothing to do with one another (`chattr +T`).
fn scatter(dir: &Path) -> rustix::io::Result<()> {
    let dir = rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    let flags = rustix::fs::ioctl_getflags(&dir)?;
    rustix::fs::ioctl_setflags(&dir, flags | IFlags::TOPDIR)
}
