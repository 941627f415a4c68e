//! Waiting for descriptors on tokio's event loop.
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

/// A descriptor that others hold too. While they do, it stays open and the same.
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

/// Like [`register`], if possible without a second descriptor: each costs every later start of a process a little.
///
/// # Errors
/// When the kernel refuses.
pub fn register_shared(fd: &SharedFd, interest: Interest) -> io::Result<AsyncFd<SharedFd>> {
    // SAFETY: as in `register`: the descriptor is open and the same while anybody holds it, and `AsyncFd` holds it.
    let register = |fd| unsafe { AsyncFd::register_with_interest(fd, interest) };
    match register(fd.clone()).map_err(io::Error::from) {
        // Somebody waits for it already; the event loop takes each descriptor once.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Ok(register(SharedFd::new(fd.0.try_clone()?))?)
        }
        registered => registered,
    }
}

/// Registers a descriptor with the event loop. Must be called within a tokio runtime.
///
/// # Errors
/// When the kernel refuses: the descriptor can't be polled, or there are too many.
pub fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` gives the same open descriptor from every `as_raw_fd` until it is dropped, and `AsyncFd`, which
    // owns it from here on and hands out no `&mut` to it here, deregisters it before that.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(io::Error::from)
}
