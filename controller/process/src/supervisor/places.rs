//! Low descriptor numbers that are reserved for starting processes.
//!
//! In: the descriptors for a new process. Out: copies of them under reserved numbers, below [`Reserved::end`], until
//! they are dropped. A child can then copy the low part of the agent's descriptor table instead of all of it, which has
//! several entries for each running task. It does not know what is started.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustix::{
    fs::{Mode, OFlags},
    io::{DupFlags, fcntl_dupfd_cloexec},
};

/// Descriptors that one start needs: the program and those passed to it.
pub(super) const LEN: usize = 11;
/// Number of starts that can use reserved numbers at a time; more are rare.
const SETS: usize = 5;
/// The child's own descriptors are placed below this number.
const FIRST: RawFd = 16;

/// The reserved numbers.
#[derive(Debug)]
pub(super) struct Places {
    free: Mutex<Vec<[OwnedFd; LEN]>>,
    end: RawFd,
    /// Occupies a number while it is unused.
    null: OwnedFd,
}

/// Numbers that are in use.
pub(super) struct Reserved<'p> {
    places: &'p Places,
    /// `None` only in `drop`.
    set: Option<[OwnedFd; LEN]>,
    numbers: [RawFd; LEN],
}

impl Places {
    /// Reserves the lowest free numbers. Call it early.
    ///
    /// # Errors
    /// When there are not enough descriptors.
    pub(super) fn reserve() -> io::Result<Self> {
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let mut free = Vec::new();
        for _ in 0..SETS {
            let set: Result<Vec<_>, _> = (0..LEN).map(|_| fcntl_dupfd_cloexec(&null, FIRST)).collect();
            free.extend(<[OwnedFd; LEN]>::try_from(set?).ok());
        }
        let end = free.iter().flatten().map(AsRawFd::as_raw_fd).max().map_or(FIRST, |last| last + 1);
        Ok(Self { free: Mutex::new(free), end, null })
    }

    /// Copies `fds` to reserved numbers; `None` if all are in use.
    pub(super) fn take<'f>(&self, fds: impl Iterator<Item = BorrowedFd<'f>>) -> Option<Reserved<'_>> {
        let set = self.free().pop()?;
        let numbers = set.each_ref().map(AsRawFd::as_raw_fd);
        let mut reserved = Reserved { places: self, set: Some(set), numbers };
        for (place, fd) in reserved.set.iter_mut().flatten().zip(fds) {
            rustix::io::dup3(fd, place, DupFlags::CLOEXEC).ok()?;
        }
        Some(reserved)
    }

    fn free(&self) -> MutexGuard<'_, Vec<[OwnedFd; LEN]>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reserved<'_> {
    /// The numbers, in the order of the descriptors passed to `take`.
    pub(super) fn numbers(&self) -> &[RawFd] {
        &self.numbers
    }

    /// Upper bound (exclusive) of all reserved numbers.
    pub(super) fn end(&self) -> RawFd {
        self.places.end
    }
}

impl Drop for Reserved<'_> {
    /// Closes the copies: an open directory could not be unmounted.
    fn drop(&mut self) {
        let Some(mut set) = self.set.take() else { return };
        let emptied = set
            .iter_mut()
            .try_for_each(|place| rustix::io::dup3(self.places.null.as_fd(), place, DupFlags::CLOEXEC));
        // On failure these numbers are given up.
        if emptied.is_ok() {
            self.places.free().push(set);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::fstat;

    use super::*;

    #[test]
    fn numbers_are_used_in_turn() {
        let places = Places::reserve().unwrap();
        let file = tempfile::tempfile().unwrap();
        let inode = |fd: BorrowedFd<'_>| fstat(fd).unwrap().st_ino;
        for _ in 0..3 {
            let all: Vec<_> = (0..SETS).map(|_| places.take([file.as_fd()].into_iter()).unwrap()).collect();
            assert!(places.take([file.as_fd()].into_iter()).is_none(), "all places are in use");
            for reserved in &all {
                let set = reserved.set.as_ref().unwrap();
                assert_eq!(inode(set[0].as_fd()), inode(file.as_fd()));
                assert!(reserved.numbers().iter().all(|number| *number < reserved.end()));
            }
            drop(all);
            let free = places.free();
            assert!(free.iter().flatten().all(|fd| inode(fd.as_fd()) == inode(places.null.as_fd())));
        }
    }
}
