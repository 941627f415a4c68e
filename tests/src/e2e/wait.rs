//! Waiting for something outside of this process, where nothing tells us: asked again and again, up to a deadline.
//!
//! In: a question. Out: its answer, or a panic that names what did not come.

use std::time::{Duration, Instant};

/// A bound that only a fault exceeds: what tests wait for takes milliseconds, and seconds on a machine with ten other things to do.
pub const PATIENCE: Duration = Duration::from_secs(180);

const INTERVAL: Duration = Duration::from_millis(20);

/// The first answer of `probe`.
///
/// # Panics
/// When there is none within [`PATIENCE`].
pub fn until<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = probe() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain: {what}");
        pause(INTERVAL);
    }
}

/// Waits until `probe` holds.
///
/// # Panics
/// When it doesn't within [`PATIENCE`].
pub fn until_true(what: &str, mut probe: impl FnMut() -> bool) {
    until(what, || probe().then_some(()));
}

/// Lets time pass: only for showing that something does not happen, or for hitting a random moment. What does happen is waited for
/// with [`until`]: however long the pause, a busy machine needs longer.
#[expect(clippy::disallowed_methods, reason = "tests of processes have no clock that could be paused")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}
