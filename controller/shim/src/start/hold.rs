//! The verb `hold`: a process in a network namespace that is known by its file, for programs that join only the namespaces
//! of processes.
//!
//! In: the path of the namespace's file, and `CAP_SYS_ADMIN`. Out: a process in the namespace without any capability, until
//! SIGTERM; the exit code.

use super::USAGE;
use super::sys::{self, AT_FDCWD, O_CLOEXEC, O_RDONLY, POLLIN, PollFd, SIGTERM};
use crate::EXIT_NO_NAMESPACE;
use crate::isolation::Namespaces;
use core::ffi::CStr;

/// Enters the namespace and stays in it. The list of arguments ends with a null pointer.
pub(super) fn hold(arguments: &[*const u8]) -> u32 {
    let [_, _, path, _, ..] = arguments else { return USAGE };
    // SAFETY: another pointer follows, so that this is not the null pointer at the end of the list; the kernel ends each
    // argument with a NUL byte.
    let path = unsafe { CStr::from_ptr(path.cast()) };
    let entered = sys::openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0).and_then(|fd| {
        sys::enter_namespaces(fd, Namespaces::NETWORK)?;
        // Nobody but the namespace's owner keeps it in the file system.
        sys::close(fd);
        sys::set_capabilities(0, 0, 0)?;
        sys::signalfd(sys::signal_bit(SIGTERM))
    });
    let Ok(signals) = entered else { return EXIT_NO_NAMESPACE };
    let mut entries = [PollFd { fd: signals, events: POLLIN, revents: 0 }];
    // Without an end in sight it is interrupted by nothing else: all signals are blocked.
    while sys::poll(&mut entries, None).is_err() {}
    0
}
