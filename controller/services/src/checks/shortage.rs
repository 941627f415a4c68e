//! Runs of checks that failed for lack of the agent's own resources.
//!
//! In: the error of a run. Out: whether the target failed, or the agent or machine lacks descriptors, ports, memory or
//! processes. The latter tells nothing about the target: it is not counted, and restarts nothing.

use std::{
    error::Error,
    io,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use herdlet_driver::{DriverError, lacks};
use rustix::{io::Errno, pipe::PipeFlags};
use tokio::time::Instant;

/// Why a run of a check has no response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoResult {
    /// The target can't be reached, or refuses.
    #[error("{0}")]
    Failure(String),
    /// The agent or the machine temporarily lacks a resource.
    #[error("{0}")]
    Shortage(String),
}

impl NoResult {
    /// Classifies the error; `why` is the message.
    pub fn of(error: &(dyn Error + 'static), why: String) -> Self {
        let is_shortage = match errno_of(error) {
            // EADDRNOTAVAIL: no local port is left for another connection (ip_local_port_range, ip(7)).
            Some(errno) => lacks(errno) || [libc::ENOBUFS, libc::EADDRNOTAVAIL].contains(&errno),
            // Name resolution and loading certificates fail without a number.
            None => is_out_of_descriptors(),
        };
        if is_shortage { Self::Shortage(why) } else { Self::Failure(why) }
    }
}

/// The error number of the innermost error that has one.
fn errno_of(error: &(dyn Error + 'static)) -> Option<i32> {
    let inner: Option<&(dyn Error + 'static)> = if let Some(error) = error.downcast_ref::<io::Error>() {
        if let Some(errno) = error.raw_os_error() {
            return Some(errno);
        }
        // `source` would skip the error inside, which may itself be the one.
        error.get_ref().map(|inner| inner as _)
    } else if let Some(errno) = error.downcast_ref::<Errno>() {
        return Some(errno.raw_os_error());
    } else if let Some(error) = error.downcast_ref::<DriverError>() {
        match error {
            DriverError::Retry(inner)
            | DriverError::Fatal(inner)
            | DriverError::NoProgram(inner)
            | DriverError::Recoverable(inner) => Some(inner.as_ref() as _),
            DriverError::Gone(_) | DriverError::Unsupported { .. } => None,
        }
    } else {
        error.source()
    };
    errno_of(inner?)
}

fn is_out_of_descriptors() -> bool {
    matches!(rustix::pipe::pipe_with(PipeFlags::CLOEXEC), Err(Errno::MFILE | Errno::NFILE))
}

/// Minimum interval of warnings about failed runs, for all checks together.
const REPORT_INTERVAL_MIN: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Reporter {
    reported: Mutex<Option<Instant>>,
}

impl Reporter {
    pub(super) fn report(&self, check: &str, why: &str) {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.is_some_and(|at| at.elapsed() < REPORT_INTERVAL_MIN) {
            return;
        }
        *reported = Some(Instant::now());
        tracing::warn!(
            check,
            why,
            "a check could not run because the agent or the machine lacks a resource; its last result is kept and it runs again soon; raise the limit in the error"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_shortage(error: &(dyn Error + 'static)) -> bool {
        matches!(NoResult::of(error, String::new()), NoResult::Shortage(_))
    }

    #[test]
    fn machine_shortage_is_no_check_result() {
        for (errno, expected) in [
            (libc::EMFILE, true),
            (libc::ENFILE, true),
            (libc::ENOMEM, true),
            (libc::EAGAIN, true),
            (libc::ENOBUFS, true),
            (libc::EADDRNOTAVAIL, true),
            (libc::ECONNREFUSED, false),
            (libc::ENOENT, false),
        ] {
            let plain = || io::Error::from_raw_os_error(errno);
            assert_eq!(is_shortage(&plain()), expected, "{errno}");
            assert_eq!(is_shortage(&io::Error::other(io::Error::other(plain()))), expected, "{errno}");
            assert_eq!(is_shortage(&DriverError::retry(plain())), expected, "{errno}");
            assert_eq!(
                is_shortage(&DriverError::fatal(Errno::from_raw_os_error(errno))),
                expected,
                "{errno}"
            );
        }
        assert!(!is_shortage(&DriverError::fatal("no such thing")));
    }
}
