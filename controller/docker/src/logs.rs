//! Copies the engine's log file of a container into the task's log files, each line once, also over a kill of the agent.
//!
//! In: the engine's file (Docker's `json-file` or Podman's `k8s-file`). Out: `NAME.stdout.N` and `NAME.stderr.N`, rotated as for other
//! drivers. The engine's files are a buffer: whoever is slow reads them later. A position is recorded after each batch, with the
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
    time::Duration,
};

use herdlet_base::directory::{DirectoryWatch, Interests};
use herdlet_runtime::off_thread;
use tokio::{
    sync::{mpsc, oneshot},
    time,
};

use crate::records::LogTarget;
use copy::Copy;

/// How long after a failure, such as a full disk, the copy is continued.
const AGAIN: Duration = Duration::from_secs(5);

/// The copy of one container's output. It ends when this is dropped.
pub(crate) struct LogCopy {
    orders: mpsc::Sender<Order>,
    task: tokio::task::AbortHandle,
}

enum Order {
    /// Report once all that the engine has stored so far is copied.
    Drain(oneshot::Sender<()>),
    /// Mark that output may be missing here.
    Mark,
}

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
        let (orders, received) = mpsc::channel(4);
        let task = tokio::spawn(run(job, received, complain)).abort_handle();
        Self { orders, task }
    }

    /// Waits until all that the engine has stored so far is copied.
    pub(crate) async fn drained(&self) {
        let (done, waiting) = oneshot::channel();
        if self.orders.send(Order::Drain(done)).await.is_ok() {
            let _ = waiting.await;
        }
    }

    /// Marks that output may be missing here: the engine was restarted, and what a container wrote meanwhile was not stored.
    pub(crate) fn mark_gap(&self) {
        // A full queue means that a mark is already waiting, or the end of the container.
        let _ = self.orders.try_send(Order::Mark);
    }
}

impl Drop for LogCopy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(job: LogJob, mut orders: mpsc::Receiver<Order>, complain: Complain) {
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
    let mut waiting: Vec<oneshot::Sender<()>> = Vec::new();
    loop {
        // Reading and writing files may block; a batch is bounded, so an abort waits for one batch.
        let Ok((returned, result)) = off_thread(move || {
            let result = copy.advance();
            (copy, result)
        })
        .await
        else {
            return;
        };
        copy = returned;
        match result {
            Ok(copy::Advance::More) => continue,
            Ok(copy::Advance::Done) => waiting.drain(..).for_each(|done| {
                let _ = done.send(());
            }),
            Err(error) => {
                waiting.clear();
                if !complained {
                    complained = true;
                    complain(format!("its output is not copied at the moment: {error}"));
                }
                match time::timeout(AGAIN, orders.recv()).await {
                    Ok(Some(Order::Drain(done))) => waiting.push(done),
                    Ok(Some(Order::Mark)) | Err(_) => {}
                    Ok(None) => return,
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
            order = orders.recv() => match order {
                Some(Order::Drain(done)) => waiting.push(done),
                Some(Order::Mark) => {
                    let Ok((returned, marked)) = off_thread(move || {
                        let marked = copy.mark_gap();
                        (copy, marked)
                    })
                    .await
                    else {
                        return;
                    };
                    copy = returned;
                    if let Err(error) = marked {
                        tracing::debug!(%error, "failed to mark a gap in the output of a container");
                    }
                }
                None => return,
            },
        }
    }
}

#[cfg(test)]
mod tests;
