//! The directories of a run.
//!
//! Each benchmark gets a directory in a separate part of the disk: ext4 searches long for an inode if many were deleted in
//! the last minutes, so an earlier benchmark would slow down the next one. Records of attempts are in memory, as in `/run`.
//! Mounts are in a private namespace, because an agent reads the mount table whenever any process mounts something.

use std::path::{Path, PathBuf};

use rustix::{
    fs::{IFlags, Mode, OFlags},
    mount::MountPropagationFlags,
    thread::UnshareFlags,
};
use tempfile::TempDir;

/// The directories of one run.
pub(super) struct BenchDirs {
    disk: TempDir,
    memory: TempDir,
}

impl BenchDirs {
    pub(super) fn new() -> Self {
        if let Err(error) = own_mounts() {
            eprintln!(
                "cannot create a mount namespace, so mounts of other processes slow the agent down: {error}"
            );
        }
        let disk = tempfile::Builder::new().prefix("hb").tempdir_in("/tmp").expect("a temporary directory");
        let memory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        if let Err(error) = scatter(disk.path()) {
            eprintln!(
                "cannot scatter directories on the disk, so deletions may slow later benchmarks down: {error}"
            );
        }
        Self { disk, memory }
    }

    /// The parent of directories that are far apart on the disk.
    pub(super) fn disk(&self) -> &Path {
        self.disk.path()
    }

    /// A new directory on the disk.
    pub(super) fn dir(&self) -> TempDir {
        tempfile::tempdir_in(self.disk()).expect("a temporary directory")
    }

    /// The runtime directory of agents.
    pub(super) fn runtime(&self) -> PathBuf {
        self.memory.path().to_owned()
    }
}

#[expect(unsafe_code, reason = "only other kinds of unsharing are dangerous")]
fn own_mounts() -> rustix::io::Result<()> {
    // SAFETY: descriptors stay shared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS)? };
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
}

/// Makes ext4 scatter the directories below (`chattr +T`).
fn scatter(dir: &Path) -> rustix::io::Result<()> {
    let dir = rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    let flags = rustix::fs::ioctl_getflags(&dir)?;
    rustix::fs::ioctl_setflags(&dir, flags | IFlags::TOPDIR)
}
