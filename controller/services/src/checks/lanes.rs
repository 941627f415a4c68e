//! How many runs of checks are under way at a time: bounds open files, whatever the number of checks.
//!
//! In: runs. Out: the same, each once there is a place for it. Targets that hang take all the time that they are given, so they have
//! a lane of their own: a run that is not done soon moves over to it, and the next of that check begins there. What hangs only
//! keeps what hangs waiting.

use std::time::Duration;

use tokio::sync::Semaphore;

/// Runs under way of checks that answer.
const FAST_MAX: usize = 256;

/// Runs under way of checks that take their time.
const SLOW_MAX: usize = 1024;

/// A target of this machine that answers has done so by then.
const SLOW_AFTER: Duration = Duration::from_millis(200);

/// The two lanes.
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
    /// Runs it to its end. It begins (its timeouts, too) when it has a place.
    pub(super) async fn run<F: Future>(&self, was_slow: bool, run: F) -> F::Output {
        // Neither lane is ever closed, so a place is always given in the end.
        if was_slow {
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
            // Both are full of what hangs.
            Err(_) => run.await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, sync::Arc};

    use super::*;

    /// A thousand that hang, and one that answers.
    #[tokio::test(start_paused = true)]
    async fn what_hangs_keeps_nobody_waiting_that_answers() {
        let lanes = Arc::new(Lanes::default());
        for _ in 0..1000 {
            let lanes = Arc::clone(&lanes);
            tokio::spawn(async move { lanes.run(false, pending::<()>()).await });
        }
        let begun = tokio::time::Instant::now();
        tokio::task::yield_now().await;
        lanes.run(false, async {}).await;
        assert!(begun.elapsed() <= 4 * SLOW_AFTER, "{:?}", begun.elapsed());
        // From then on it finds a place at once.
        let begun = tokio::time::Instant::now();
        lanes.run(false, async {}).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
