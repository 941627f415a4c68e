//! The tasks' output while they run: lines of all tasks, each with the name of its task.

use std::{collections::BTreeSet, io::Write, sync::Arc};

use herdlet_api_types::{AllocId, job::Job};
use tokio::{sync::watch, task::JoinSet};

use crate::{
    logs::{Follower, LogFiles, Stream},
    paths::Paths,
    publish::ReadModel,
};

/// A line longer than this is printed in pieces.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// Follows the logs of everything that runs.
pub struct Output {
    over: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

impl Output {
    /// Follows every task that appears in the read model.
    pub fn start(model: Arc<ReadModel>, paths: Paths, jobs: &[Job]) -> Self {
        let names = Names::of(jobs);
        let over = watch::Sender::new(false);
        let task = tokio::spawn(follow_all(model, paths, names, over.subscribe()));
        Self { over, task }
    }

    /// Prints what is left of the logs, then ends. To be called when nothing writes any more.
    pub async fn finish(self) {
        let _ = self.over.send(true);
        let _ = self.task.await;
    }
}

/// How tasks are called in front of their lines.
struct Names {
    /// No two tasks of the run have the same name, so that it says enough.
    unique: bool,
    width: usize,
}

impl Names {
    fn of(jobs: &[Job]) -> Self {
        let tasks = || jobs.iter().flat_map(|job| job.groups.iter().map(move |group| (job, group)));
        let mut seen = BTreeSet::new();
        let unique = tasks().all(|(_, group)| {
            group.count <= 1 && group.tasks.iter().all(|task| seen.insert(task.name.clone()))
        });
        let mut names = Self { unique, width: 0 };
        for (job, group) in tasks() {
            for task in &group.tasks {
                let last = group.count.saturating_sub(1);
                let alloc = format!("{}.{}[{last}]", job.id, group.name);
                names.width = names.width.max(names.of_task(&alloc, &task.name).len());
            }
        }
        names
    }

    fn of_task(&self, alloc: &str, task: &str) -> String {
        if self.unique { task.to_owned() } else { format!("{alloc}/{task}") }
    }

    fn prefix(&self, alloc: &str, task: &str) -> String {
        format!("{:width$} | ", self.of_task(alloc, task), width = self.width)
    }
}

async fn follow_all(model: Arc<ReadModel>, paths: Paths, names: Names, over: watch::Receiver<bool>) {
    let mut changes = model.changes();
    let mut ending = over.clone();
    let mut followed: BTreeSet<(AllocId, String)> = BTreeSet::new();
    let mut followers = JoinSet::new();
    loop {
        for view in model.allocs() {
            for task in view.tasks.iter().filter(|task| task.attempt > 0) {
                if !followed.insert((view.spec.id, task.name.clone())) {
                    continue;
                }
                let prefix = names.prefix(&view.spec.name(), &task.name);
                for stream in [Stream::Stdout, Stream::Stderr] {
                    let files = LogFiles::new(paths.logs(&view.spec.id), &task.name, stream);
                    followers.spawn(follow(files, stream, prefix.clone(), over.clone()));
                }
            }
        }
        if *ending.borrow() {
            break;
        }
        tokio::select! {
            _ = changes.recv() => {}
            _ = ending.changed() => {}
        }
    }
    while followers.join_next().await.is_some() {}
}

/// Prints one stream of one task until it is over and read to its end.
async fn follow(files: LogFiles, stream: Stream, prefix: String, mut over: watch::Receiver<bool>) {
    let mut follower = Follower::new(files, (0, 0));
    let mut lines = Lines { prefix, stream, rest: Vec::new() };
    loop {
        // Read before the question whether it is over is answered, or the last bytes could be missed.
        let is_over = *over.borrow_and_update();
        loop {
            match follower.read() {
                Ok(Some(chunk)) => lines.push(&chunk.bytes),
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "failed to read a log file");
                    break;
                }
            }
        }
        if is_over {
            break lines.flush();
        }
        tokio::select! {
            changed = follower.changed() => if changed.is_err() {
                // The directory is not there yet, or no longer.
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            },
            _ = over.changed() => {}
        }
    }
}

/// Cuts bytes into lines and prints each at once, so that lines of different tasks never mix.
struct Lines {
    prefix: String,
    stream: Stream,
    rest: Vec<u8>,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let mut printed = Vec::new();
        let mut from = 0;
        while let Some(at) = self.rest[from..].iter().position(|byte| *byte == b'\n') {
            printed.extend_from_slice(self.prefix.as_bytes());
            printed.extend_from_slice(&self.rest[from..=from + at]);
            from += at + 1;
        }
        self.rest.drain(..from);
        self.print(&printed);
        if self.rest.len() >= LINE_BYTES_MAX {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.rest.is_empty() {
            return;
        }
        let mut line = self.prefix.clone().into_bytes();
        line.append(&mut self.rest);
        line.push(b'\n');
        self.print(&line);
    }

    fn print(&self, bytes: &[u8]) {
        // Whoever reads our output may have gone; the tasks run on.
        let _ = match self.stream {
            Stream::Stdout => std::io::stdout().lock().write_all(bytes),
            Stream::Stderr => std::io::stderr().lock().write_all(bytes),
        };
    }
}
