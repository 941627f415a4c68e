//! Log-ins that run at once, and how they are spread after an outage.
//!
//! In: log-ins at Vault or Consul. Out: their results. When a server comes back, the log-ins of all tasks of all machines are due at the same
//! moment; a server that is still slow would go down again.

use std::{
    future::Future,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use tokio::sync::Semaphore;

use crate::{
    error::{FailureClass, VaultError},
    spread::Spread,
};

/// The error of a log-in.
pub trait Outage {
    /// Whether the server was not ready.
    fn is_outage(&self) -> bool;
}

impl Outage for VaultError {
    fn is_outage(&self) -> bool {
        match self.class() {
            FailureClass::Later { .. } => true,
            FailureClass::Token | FailureClass::Absent | FailureClass::Request => false,
        }
    }
}

/// Log-ins to one server at once.
pub const CONCURRENT_MAX: usize = 20;
/// After an outage, log-ins start within this time.
pub const OUTAGE_SPREAD: Duration = Duration::from_secs(10);

/// The log-ins of one agent to one server.
pub struct LoginQueue {
    permits: Semaphore,
    /// Whether the last log-in failed because the server was not ready.
    is_outage: AtomicBool,
}

impl Default for LoginQueue {
    fn default() -> Self {
        Self { permits: Semaphore::new(CONCURRENT_MAX), is_outage: AtomicBool::new(false) }
    }
}

impl LoginQueue {
    /// Runs a log-in when there is room. `spread` chooses the moment after an outage. Dropping the future before the log-in
    /// has begun only gives up its place.
    ///
    /// # Errors
    /// Those of the log-in.
    pub async fn run<T, E: Outage>(
        &self,
        spread: Spread,
        login: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        // Before the permit is taken: those who only wait must not keep others away.
        if self.is_outage.load(Ordering::Relaxed) {
            tokio::time::sleep(spread.share_of(OUTAGE_SPREAD)).await;
        }
        // The semaphore is never closed.
        let _permit = self.permits.acquire().await;
        let result = login.await;
        let is_outage = result.as_ref().is_err_and(Outage::is_outage);
        self.is_outage.store(is_outage, Ordering::Relaxed);
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    };

    use tokio::{task::JoinSet, time::Instant};

    use super::*;

    fn outage() -> VaultError {
        let (doing, why) = ("log in".to_owned(), "sealed".to_owned());
        VaultError::Unready { doing, status: 503, why, retry_after: None }
    }

    /// Runs `count` log-ins that take a while. Returns the greatest number at once, and when each began.
    async fn run_many(queue: &Arc<LoginQueue>, count: u32) -> (usize, Vec<Duration>) {
        let running = Arc::new(AtomicUsize::new(0));
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for number in 0..count {
            let (queue, running) = (queue.clone(), running.clone());
            let spread = Spread::of_parts(u32::MAX / count * number);
            tasks.spawn(async move {
                let login = async {
                    let at_once = running.fetch_add(1, SeqCst) + 1;
                    let began = start.elapsed();
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    running.fetch_sub(1, SeqCst);
                    Ok::<_, VaultError>((at_once, began))
                };
                queue.run(spread, login).await
            });
        }
        let results: Vec<_> = tasks.join_all().await.into_iter().map(Result::unwrap).collect();
        let at_once = results.iter().map(|(at_once, _)| *at_once).max().unwrap();
        (at_once, results.into_iter().map(|(_, began)| began).collect())
    }

    #[tokio::test(start_paused = true)]
    async fn twenty_log_ins_run_at_once() {
        let queue = Arc::new(LoginQueue::default());
        let (at_once, began) = run_many(&queue, 200).await;
        assert_eq!(at_once, CONCURRENT_MAX);
        assert!(began.contains(&Duration::ZERO), "without an outage the first ones begin at once");
    }

    #[tokio::test(start_paused = true)]
    async fn after_an_outage_log_ins_are_spread() {
        let queue = Arc::new(LoginQueue::default());
        let failed = queue.run(Spread::of_parts(0), async { Err::<(), _>(outage()) }).await;
        assert_eq!(failed, Err(outage()));
        let (at_once, began) = run_many(&queue, 200).await;
        // 200 in ten seconds: one each 50 ms, and each takes 100 ms.
        assert!(at_once <= 4, "{at_once}");
        assert!(began.iter().max().unwrap() > &(OUTAGE_SPREAD * 9 / 10));
        let (at_once, _) = run_many(&queue, 200).await;
        assert_eq!(at_once, CONCURRENT_MAX, "a success ends the outage");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_log_in_is_no_outage() {
        let queue = Arc::new(LoginQueue::default());
        let refused =
            VaultError::Refused { doing: "log in".to_owned(), status: 400, why: "no role".to_owned() };
        let failed = queue.run(Spread::of_parts(0), async { Err::<(), _>(refused) }).await;
        assert!(failed.is_err());
        let (_, began) = run_many(&queue, 20).await;
        assert!(began.iter().all(Duration::is_zero));
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_log_in_gives_its_place_back() {
        let queue = LoginQueue::default();
        for _ in 0..3 * CONCURRENT_MAX {
            let never = queue.run(Spread::of_parts(0), std::future::pending::<Result<(), VaultError>>());
            assert!(tokio::time::timeout(Duration::from_secs(1), never).await.is_err());
        }
        assert!(queue.run(Spread::of_parts(0), async { Ok::<_, VaultError>(()) }).await.is_ok());
    }
}
