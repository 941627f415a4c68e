//! Room that is given up once the disk is full, so that the end of what runs is stored and what has ended can be collected. The
//! first commit that fails for want of room gets it; it is for a disk that has become full, not for one that somebody keeps full.
//!
//! In: commits that failed, and that succeeded. Out: a file that is there for nothing but its room, gone while that is needed.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use herdlet_base::durable;
use rustix::fs::{FallocateFlags, fallocate, statvfs};

/// Some hundred commits.
const LEN: u64 = 512 << 10;

/// It is taken again once so much is free.
const FREE_MIN: u64 = 16 * LEN;

/// The file `<state>/reserve`.
#[derive(Debug)]
pub(crate) struct Reserve {
    path: PathBuf,
    is_there: bool,
}

impl Reserve {
    /// That of a state directory. It stays as it is found on a disk that is nearly full.
    pub(crate) fn open(state: &Path) -> Self {
        let path = state.join("reserve");
        // A copy may have the length and none of the room.
        let is_there = fs::metadata(&path).is_ok_and(|file| file.blocks().saturating_mul(512) >= LEN);
        let mut reserve = Self { path, is_there };
        reserve.renew();
        reserve
    }

    /// A commit has failed: gives the room up if that is what it lacks. Whether it is worth another try.
    pub(crate) fn give_up(&mut self) -> bool {
        if !self.is_there || self.free() >= LEN {
            return false;
        }
        self.is_there = false;
        let removed = fs::remove_file(&self.path);
        tracing::warn!(state = ?self.path.parent(), "the disk is full; what was held in reserve for the state is given up");
        removed.is_ok()
    }

    /// Takes the room again where it was given up and there is enough.
    pub(crate) fn renew(&mut self) {
        if self.is_there || self.free() < FREE_MIN {
            return;
        }
        match self.take() {
            Ok(()) => self.is_there = true,
            Err(error) => {
                let _ = fs::remove_file(&self.path);
                tracing::debug!(%error, "no room could be held in reserve for the state");
            }
        }
    }

    fn take(&self) -> io::Result<()> {
        Ok(fallocate(&durable::make_file(&self.path)?, FallocateFlags::empty(), 0, LEN)?)
    }

    /// What is free for us on its disk; nothing where the disk does not tell.
    fn free(&self) -> u64 {
        let disk = self.path.parent().and_then(|state| statvfs(state).ok());
        disk.map_or(0, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
    }
}
