//! Limits and delays of a runtime.

use std::time::Duration;

use crate::backoff::Backoff;

/// Limits and delays of a runtime; the defaults are for the agent.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// The most events that share a turn; a burst must not delay decisions until its end.
    pub chunk_max: usize,
    /// How long a stop waits for its commit before it is released without one.
    pub stop_grace: Duration,
    /// A commit that takes longer than this is reported as degraded while it hangs.
    pub commit_slow: Duration,
    /// The delays between attempts of a failing commit.
    pub commit_retry: Backoff,
    /// How long a shutdown waits for the last commits.
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
