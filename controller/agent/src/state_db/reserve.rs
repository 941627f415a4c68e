//! A reserve of disk space that is released once the disk is full, so that the end of tasks can be stored and ended
//! objects can be collected. The first commit that fails for lack of space gets it. It helps on a disk that has
//! become full, not on one that somebody keeps full.
//!
//! In: failed and successful commits. Out: a file that only occupies space, removed while the space is needed.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use herdlet_base::durable;
use rustix::fs::{FallocateFlags, fallocate, statvfs};

/// Enough for some hundred commits.
const LEN: u64 = 512 << 10;

/// The free space at which the reserve is taken again.
const FREE_MIN: u64 = 16 * LEN;

/// The file `<state>/reserve`.
#[derive(Debug)]
pub(crate) struct Reserve {
    path: PathBuf,
    is_there: bool,
}

impl Reserve {
    /// Opens the reserve of a state directory. On a nearly full disk it stays as it is.
    pub(crate) fn open(state: &Path) -> Self {
        let path = state.join("reserve");
        // A copy of the file may be sparse: the same length without the space.
        let is_there = fs::metadata(&path).is_ok_and(|file| file.blocks().saturating_mul(512) >= LEN);
        let mut reserve = Self { path, is_there };
        reserve.renew();
        reserve
    }

    /// Releases the reserve after a failed commit, if the disk lacks space. Returns whether the commit should be
    /// retried.
    pub(crate) fn give_up(&mut self) -> bool {
        if !self.is_there || self.free() >= LEN {
            return false;
        }
        self.is_there = false;
        let removed = fs::remove_file(&self.path);
        tracing::warn!(state = ?self.path.parent(), "the disk is full; releasing the space reserved for the state");
        removed.is_ok()
    }

    /// Takes the reserve again if it was released and there is enough free space.
    pub(crate) fn renew(&mut self) {
        if self.is_there || self.free() < FREE_MIN {
            return;
        }
        match self.take() {
            Ok(()) => self.is_there = true,
            Err(error) => {
                let _ = fs::remove_file(&self.path);
                tracing::debug!(%error, "failed to reserve space for the state");
            }
        }
    }

    fn take(&self) -> io::Result<()> {
        Ok(fallocate(&durable::make_file(&self.path)?, FallocateFlags::empty(), 0, LEN)?)
    }

    /// The free space that is available to us; 0 if it cannot be determined.
    fn free(&self) -> u64 {
        let disk = self.path.parent().and_then(|state| statvfs(state).ok());
        disk.map_or(0, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
    }
}
