//! Limits the concurrent runs of checks, and so open files, for any number of checks.
//!
//! In: runs. Out: their results, once there is a place for each. Hanging targets use their whole timeout, so they have
//! a separate lane: a run that takes long moves there, and the next run of that check starts there. So hanging targets
//! delay only each other.

use std::time::Duration;

use tokio::sync::Semaphore;

/// Concurrent runs of checks that answer quickly.
const FAST_MAX: usize = 256;

/// Concurrent runs of slow checks.
const SLOW_MAX: usize = 1024;

/// A working target on this machine answers within this time.
const SLOW_AFTER: Duration = Duration::from_millis(200);

/// Where a run starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// The target is expected to answer quickly.
    Fast,
    /// The last run timed out.
    Slow,
}

#[derive(Debug)]
pub(super) struct Lanes {
    fast: Semaphore,
    slow: Semaphore,
}

impl Default for Lanes {
    fn default() -> Self {
        Self { fast: Semaphore::new(FAST_MAX), slow: Semaphore::new(SLOW_MAX) }
    }
}

impl Lanes {
    /// Runs `run` to completion. It starts (including its timeouts) when it has a place.
    pub(super) async fn run<F: Future>(&self, lane: Lane, run: F) -> F::Output {
        // The lanes are never closed, so a place is always available eventually.
        if lane == Lane::Slow {
            let _place = self.slow.acquire().await;
            return run.await;
        }
        let fast = self.fast.acquire().await;
        let mut run = std::pin::pin!(run);
        if let Ok(output) = tokio::time::timeout(SLOW_AFTER, run.as_mut()).await {
            return output;
        }
        match self.slow.try_acquire() {
            Ok(_place) => {
                drop(fast);
                run.await
            }
            // Both are full of hanging targets.
            Err(_) => run.await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, sync::Arc};

    use super::*;

    /// A thousand hanging targets, and one that answers.
    #[tokio::test(start_paused = true)]
    async fn hanging_check_does_not_delay_others() {
        let lanes = Arc::new(Lanes::default());
        for _ in 0..1000 {
            let lanes = Arc::clone(&lanes);
            tokio::spawn(async move { lanes.run(Lane::Fast, pending::<()>()).await });
        }
        let begun = tokio::time::Instant::now();
        tokio::task::yield_now().await;
        lanes.run(Lane::Fast, async {}).await;
        assert!(begun.elapsed() <= 4 * SLOW_AFTER, "{:?}", begun.elapsed());
        // From then on it finds a place at once.
        let begun = tokio::time::Instant::now();
        lanes.run(Lane::Fast, async {}).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
