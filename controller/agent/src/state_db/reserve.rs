//! A reserve of disk space that is released once the disk is full, so that the end of tasks can be stored and ended
//! objects can be collected. The first commit that fails for lack of space gets it. It helps on a disk that has
//! become full, not on one that somebody keeps full.
//!
//! In: failed and successful commits. Out: a file that only occupies space, removed while the space is needed.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
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
    in_use: ReserveUse,
}

/// Whether the reserve is released, for readers on other threads; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct ReserveUse(Arc<AtomicBool>);

impl ReserveUse {
    /// Whether the disk is so full that the reserve is released, or could not be taken.
    pub fn is_released(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Reserve {
    /// Opens the reserve of a state directory. On a nearly full disk it stays as it is.
    pub(crate) fn open(state: &Path) -> Self {
        let path = state.join("reserve");
        // A copy of the file may be sparse: the same length without the space.
        let is_there = fs::metadata(&path).is_ok_and(|file| file.blocks().saturating_mul(512) >= LEN);
        let mut reserve = Self { path, is_there, in_use: ReserveUse::default() };
        reserve.renew();
        reserve
    }

    pub(crate) fn in_use(&self) -> ReserveUse {
        self.in_use.clone()
    }

    /// Releases the reserve after a failed commit, if the disk lacks space. Returns whether the commit should be
    /// retried.
    pub(crate) fn give_up(&mut self) -> bool {
        if !self.is_there || self.free() >= LEN {
            return false;
        }
        self.is_there = false;
        self.in_use.0.store(true, Ordering::Relaxed);
        let removed = fs::remove_file(&self.path);
        tracing::warn!(
            state = %self.path.parent().unwrap_or(&self.path).display(),
            "the disk is full: the reserve of {} KiB is released for the state; free space on this disk", LEN >> 10
        );
        removed.is_ok()
    }

    /// Takes the reserve again if it was released and there is enough free space.
    pub(crate) fn renew(&mut self) {
        if !self.is_there && self.free() >= FREE_MIN {
            match self.take() {
                Ok(()) => self.is_there = true,
                Err(error) => {
                    let _ = fs::remove_file(&self.path);
                    tracing::debug!(%error, "failed to reserve space for the state");
                }
            }
        }
        self.in_use.0.store(!self.is_there, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;

    // Nothing in the status showed that the disk was full, once the reserve had been released.
    #[test]
    fn released_reserve_is_reported_until_restored() {
        let dir = tempfile::tempdir().unwrap();
        let mut reserve = Reserve::open(dir.path());
        let in_use = reserve.in_use();
        assert!(!in_use.is_released());
        reserve.is_there = false;
        reserve.path = dir.path().join("absent/reserve");
        reserve.renew();
        assert!(in_use.is_released(), "there is no space to take");
        reserve.path = dir.path().join("reserve");
        reserve.renew();
        assert!(!in_use.is_released());
    }
}
