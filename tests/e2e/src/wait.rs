//! Polls for events outside of this process that send no notification, up to a deadline.
//!
//! In: a probe. Out: its result, or a panic that names the missing event.

use std::time::{Duration, Instant};

/// A bound that only a fault exceeds: the events take milliseconds, or seconds on a machine with ten other
/// loads.
pub const PATIENCE: Duration = Duration::from_secs(180);

const INTERVAL: Duration = Duration::from_millis(20);

/// Polls `probe` until it returns a value.
///
/// # Panics
/// If it returns none within [`PATIENCE`].
pub fn until<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = probe() {
            return answer;
        }
        assert!(Instant::now() < deadline, "timed out after {PATIENCE:?}; expected: {what}");
        pause(INTERVAL);
    }
}

/// Polls `probe` until it returns true.
///
/// # Panics
/// If it doesn't within [`PATIENCE`].
pub fn until_true(what: &str, mut probe: impl FnMut() -> bool) {
    until(what, || probe().then_some(()));
}

/// Sleeps. Only for showing that something does not happen, or for hitting a random moment. Use [`until`] to
/// wait for an event: a busy machine can exceed any fixed pause.
#[expect(clippy::disallowed_methods, reason = "tests of processes have no clock that could be paused")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}
