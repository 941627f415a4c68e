//! Copies the engine's log file of a container into the task's log files, each line once, also over a kill of the agent.
//!
//! In: the engine's file (Docker's `json-file` or Podman's `k8s-file`). Out: `NAME.stdout.N` and `NAME.stderr.N`, rotated as for other
//! drivers. The engine's files are a buffer: a slow reader reads them later. A position is recorded after each batch, with the
//! lengths that the task's files then have: an agent that comes later cuts them back to it, and continues there.
//!
//! ```text
//! container ──► engine's file ──inotify──► batch of lines ──► task's files ──► position
//! ```

mod copy;
mod lines;
mod output;
mod position;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use herdlet_base::directory::{DirectoryWatch, Interests};
use herdlet_runtime::off_thread;
use tokio::{
    sync::{Notify, mpsc, oneshot},
    time,
};

use crate::records::LogTarget;
use copy::{Advance, Copy};

/// How long after a failure, such as a full disk, the copy is continued.
const AGAIN: Duration = Duration::from_secs(5);

/// The copy of one container's output. It ends when this is dropped.
pub(crate) struct LogCopy {
    drains: mpsc::Sender<Drain>,
    /// Output may be missing here, which is not marked yet.
    gap: Arc<Notify>,
    task: tokio::task::AbortHandle,
}

/// Is sent to once all that the engine has stored so far is copied.
type Drain = oneshot::Sender<()>;

/// A copy to start.
#[derive(Debug, Clone)]
pub(crate) struct LogJob {
    /// The engine's file.
    pub(crate) source: PathBuf,
    pub(crate) target: LogTarget,
    /// The file with the position.
    pub(crate) position: PathBuf,
}

/// Reports why a task has no logs.
pub(crate) type Complain = Box<dyn Fn(String) + Send + Sync>;

impl LogCopy {
    /// Starts a copy, or continues it where an earlier agent stopped.
    pub(crate) fn start(job: LogJob, complain: Complain) -> Self {
        let (drains, received) = mpsc::channel(4);
        let gap = Arc::new(Notify::new());
        let task = tokio::spawn(run(job, (received, Arc::clone(&gap)), complain)).abort_handle();
        Self { drains, gap, task }
    }

    /// Waits until all that the engine has stored so far is copied.
    pub(crate) async fn drained(&self) {
        let (done, waiting) = oneshot::channel();
        if self.drains.send(done).await.is_ok() {
            let _ = waiting.await;
        }
    }

    /// Marks that output may be missing here: the engine was restarted, and what a container wrote meanwhile was not stored. The mark
    /// is written once there is room for it.
    pub(crate) fn mark_gap(&self) {
        self.gap.notify_one();
    }
}

impl Drop for LogCopy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(job: LogJob, (mut drains, gap): (mpsc::Receiver<Drain>, Arc<Notify>), complain: Complain) {
    let dir = job.source.parent().unwrap_or(Path::new("/")).to_owned();
    let watch = match DirectoryWatch::open(&dir, Interests::Writes) {
        Ok(watch) => Some(watch),
        Err(error) => {
            complain(format!("its output can't be read: the agent cannot watch {}: {error}", dir.display()));
            None
        }
    };
    let mut copy = Copy::of(job);
    let mut complained = false;
    let mut is_gap_unmarked = false;
    let mut waiting: Vec<Drain> = Vec::new();
    loop {
        // Reading and writing files may block; a batch is bounded, so an abort waits for one batch.
        let Ok((returned, result)) = off_thread(move || {
            let result = match copy.advance() {
                // After what was stored before the gap.
                Ok(Advance::Done) if is_gap_unmarked => copy.mark_gap().map(|()| Advance::Done),
                result => result,
            };
            (copy, result)
        })
        .await
        else {
            return;
        };
        copy = returned;
        match result {
            Ok(Advance::More) => continue,
            Ok(Advance::Done) => {
                is_gap_unmarked = false;
                waiting.drain(..).for_each(|done| {
                    let _ = done.send(());
                });
            }
            Err(error) => {
                waiting.clear();
                if !complained {
                    complained = true;
                    complain(format!("its output is not copied at the moment: {error}"));
                }
                tokio::select! {
                    drain = drains.recv() => match drain {
                        Some(done) => waiting.push(done),
                        None => return,
                    },
                    () = gap.notified() => is_gap_unmarked = true,
                    () = time::sleep(AGAIN) => {}
                }
                continue;
            }
        }
        let changed = async {
            match &watch {
                Some(watch) => {
                    if watch.changed().await.is_err() {
                        // The container was removed: nothing follows.
                        std::future::pending::<()>().await;
                    }
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = changed => {}
            () = gap.notified() => is_gap_unmarked = true,
            drain = drains.recv() => match drain {
                Some(done) => waiting.push(done),
                None => return,
            },
        }
    }
}

#[cfg(test)]
mod tests;
