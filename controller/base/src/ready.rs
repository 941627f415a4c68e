//! Waits for descriptors on tokio's event loop.
#![expect(
    unsafe_code,
    reason = "tokio can't know that a descriptor stays the same for as long as it is registered"
)]

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::Arc,
};

use tokio::io::{Interest, unix::AsyncFd};

/// A descriptor with several owners. It stays open and unchanged while any of them exists.
#[derive(Debug, Clone)]
pub struct SharedFd(Arc<OwnedFd>);

impl SharedFd {
    pub fn new(fd: OwnedFd) -> Self {
        Self(Arc::new(fd))
    }
}

impl AsFd for SharedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for SharedFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Like [`register`], but without a second descriptor if possible: each one makes later process starts slightly slower.
///
/// # Errors
/// If the kernel refuses.
pub fn register_shared(fd: &SharedFd, interest: Interest) -> io::Result<AsyncFd<SharedFd>> {
    // SAFETY: as in `register`: the descriptor is open and unchanged while any owner exists, and `AsyncFd` is an owner.
    let register = |fd| unsafe { AsyncFd::register_with_interest(fd, interest) };
    match register(fd.clone()).map_err(io::Error::from) {
        // It is registered already; the event loop accepts each descriptor once.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Ok(register(SharedFd::new(fd.0.try_clone()?))?)
        }
        registered => registered,
    }
}

/// Registers a descriptor with the event loop. Must be called within a tokio runtime.
///
/// # Errors
/// If the kernel refuses: the descriptor can't be polled, or there are too many.
pub fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` returns the same open descriptor from every `as_raw_fd` until it is dropped, and `AsyncFd`,
    // which owns it from here on and exposes no `&mut` to it, deregisters it before that.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(io::Error::from)
}
