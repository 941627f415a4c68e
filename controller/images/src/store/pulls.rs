//! The pulls that run: all who wait for the same name share one.
//!
//! In: a name, and what pulls it. Out: its result, for each of them. A pull runs in a task of its own: it stops once nobody
//! waits for it any more, and ends by itself.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    Image,
    error::{PullError, StoreError},
    pull::Control,
};
use crate::progress::Progress;

type PullResult = Result<Image, PullError>;

/// The pulls that run, by name.
#[derive(Debug, Clone, Default)]
pub(super) struct Pulls {
    running: Arc<Mutex<BTreeMap<String, RunningPull>>>,
}

#[derive(Debug, Clone)]
struct RunningPull {
    waiting: usize,
    control: Control,
    result: watch::Receiver<Option<PullResult>>,
}

/// One who waits.
struct Waiter {
    pulls: Pulls,
    name: String,
    pull: RunningPull,
}

impl Pulls {
    /// Waits for the pull of a name, which `pull` starts if none runs.
    pub(super) async fn join<F: Future<Output = PullResult> + Send + 'static>(
        &self,
        name: String,
        waiting: &Control,
        pull: impl FnOnce(Control) -> F,
    ) -> PullResult {
        let mut waiter = self.enter(name, pull);
        waiter.wait(waiting).await
    }

    fn enter<F: Future<Output = PullResult> + Send + 'static>(
        &self,
        name: String,
        pull: impl FnOnce(Control) -> F,
    ) -> Waiter {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let known = running.get_mut(&name).filter(|known| known.is_open());
        let joined = match known {
            Some(known) => {
                known.waiting += 1;
                known.clone()
            }
            None => {
                let begun = begin(pull);
                running.insert(name.clone(), begun.clone());
                begun
            }
        };
        drop(running);
        Waiter { pulls: self.clone(), name, pull: joined }
    }
}

fn begin<F: Future<Output = PullResult> + Send + 'static>(pull: impl FnOnce(Control) -> F) -> RunningPull {
    let (ended, result) = watch::channel(None);
    let control = Control { progress: watch::Sender::default(), stop: CancellationToken::new() };
    let pull = pull(control.clone());
    tokio::spawn(async move {
        ended.send_replace(Some(pull.await));
    });
    RunningPull { waiting: 1, control, result }
}

impl RunningPull {
    /// Whether another one can wait for it.
    fn is_open(&self) -> bool {
        !self.control.stop.is_cancelled()
            && self.result.borrow().is_none()
            && self.result.has_changed().is_ok()
    }
}

impl Waiter {
    async fn wait(&mut self, waiting: &Control) -> PullResult {
        let mut progress = self.pull.control.progress.subscribe();
        loop {
            let reached: Progress = *progress.borrow_and_update();
            waiting.progress.send_if_modified(|known| std::mem::replace(known, reached) != reached);
            if let Some(result) = self.pull.result.borrow_and_update().clone() {
                return result;
            }
            tokio::select! {
                biased;
                () = waiting.stop.cancelled() => return Err(PullError::Cancelled),
                changed = self.pull.result.changed() => {
                    // Its task has ended without a result: it has panicked, or the runtime ends.
                    changed.map_err(|_| StoreError::Thread)?;
                }
                // The sender lives as long as the pull is known here.
                _ = progress.changed() => {}
            }
        }
    }
}

/// The last one who leaves stops the pull.
impl Drop for Waiter {
    fn drop(&mut self) {
        let mut running = self.pulls.running.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = running.get_mut(&self.name) else { return };
        // Another pull of this name may have taken its place.
        if !known.result.same_channel(&self.pull.result) {
            return;
        }
        known.waiting = known.waiting.saturating_sub(1);
        if known.waiting == 0 {
            known.control.stop.cancel();
            running.remove(&self.name);
        }
    }
}
