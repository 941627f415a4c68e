//! Runs tasks beside the loop that send it events: watchers of the machine and sources of desired state.
//!
//! In: futures that run until the agent ends. Out: the message of the first one that panics. It must not know what
//! they watch.
//!
//! A panicked watcher is not restarted: it is likely to panic again, and without it an agent that looks healthy would
//! miss exits of tasks or changes of manifests. A new process finds everything again by inspection.

use std::time::Duration;

use tokio::task::JoinSet;

/// How long the futures may take to end; each only has to reach its next await.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// The running watchers.
#[derive(Debug, Default)]
pub(super) struct Watchers(JoinSet<()>);

impl Watchers {
    pub(super) fn open(&mut self, watcher: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(watcher);
    }

    /// Resolves with the message when one of them has panicked. Cancel safe.
    pub(super) async fn panicked(&mut self) -> String {
        loop {
            match self.0.join_next().await {
                Some(Err(error)) if error.is_panic() => return error.to_string(),
                // Some end because they have nothing more to send.
                Some(Ok(()) | Err(_)) => {}
                None => return std::future::pending().await,
            }
        }
    }

    /// Ends all of them. One that is stuck, for example on a disk that hangs, is abandoned.
    pub(super) async fn close(mut self) {
        if tokio::time::timeout(CLOSE_MAX, self.0.shutdown()).await.is_err() {
            tracing::error!("a part of the agent did not end in time; a disk may be hanging");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn panicking_watcher_is_reported() {
        let mut watchers = Watchers::default();
        watchers.open(async {});
        watchers.open(std::future::pending());
        let day = Duration::from_secs(86_400);
        assert!(tokio::time::timeout(day, watchers.panicked()).await.is_err());
        watchers.open(async { panic!("blind") });
        assert!(watchers.panicked().await.contains("blind"));
        watchers.close().await;
    }

    #[tokio::test(start_paused = true)]
    async fn stuck_watcher_does_not_block_the_end() {
        let mut watchers = Watchers::default();
        let (stuck, began) = std::sync::mpsc::sync_channel::<()>(1);
        let (started, is_stuck) = tokio::sync::oneshot::channel();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let on_it = runtime.handle().clone();
        // Like a write to a disk that hangs: it never reaches an await.
        watchers.0.spawn_on(
            async move {
                let _ = started.send(());
                let _ = began.recv();
            },
            &on_it,
        );
        is_stuck.await.unwrap();
        watchers.close().await;
        drop(stuck);
        runtime.shutdown_background();
    }
}
