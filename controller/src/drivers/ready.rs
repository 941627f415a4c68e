//! Waiting for descriptors on tokio's event loop.
#![expect(
    unsafe_code,
    reason = "tokio can't know that a descriptor stays the same for as long as it is registered"
)]

use std::{io, os::fd::OwnedFd};

use tokio::io::{Interest, unix::AsyncFd};

/// Registers a descriptor with the event loop. Must be called within a tokio runtime.
///
/// # Errors
/// When the kernel refuses: the descriptor can't be polled, or there are too many.
pub(crate) fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` gives the same open descriptor from every `as_raw_fd` until it is dropped, and `AsyncFd`, which
    // owns it from here on and hands out no `&mut` to it here, deregisters it before that.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(io::Error::from)
}
