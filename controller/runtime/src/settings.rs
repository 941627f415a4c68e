//! Numbers of a runtime.

use std::time::Duration;

use crate::backoff::Backoff;

/// Numbers of a runtime; the defaults are meant for the agent.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// So many events share a turn at most: a burst must not keep decisions waiting for its end.
    pub chunk_max: usize,
    /// So long a stop waits for its commit; then it is released without.
    pub stop_grace: Duration,
    /// A commit that takes longer is shown as degraded while it hangs.
    pub commit_slow: Duration,
    /// How long to wait between tries of a commit that fails.
    pub commit_retry: Backoff,
    /// So long a shutdown waits for the last commits.
    pub flush_max: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            chunk_max: 1_024,
            stop_grace: Duration::from_secs(1),
            commit_slow: Duration::from_secs(5),
            commit_retry: Backoff {
                base: Duration::from_millis(100),
                factor: 2,
                max: Duration::from_secs(10),
                jitter_percent: 0,
            },
            flush_max: Duration::from_secs(10),
        }
    }
}
