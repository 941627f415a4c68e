//! The tasks' output while they run: merged lines, each with the name of its task.

use std::{collections::BTreeSet, io::Write, sync::Arc};

use herdlet_agent::{
    logs::{Follower, LogFiles, Stream},
    publish::ReadModel,
};
use herdlet_api_types::{AllocId, job::Job};
use herdlet_base::paths::Paths;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
};

/// A longer line is printed in pieces.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// Limit of the queue to the printer. When it is full, followers wait; logs are files, so nothing is lost and no task is
/// blocked.
const PIECES_LEN: usize = 64;

/// Follows the logs of all running tasks.
pub struct Output {
    over: watch::Sender<bool>,
    /// Resolves when everything was printed.
    printed: oneshot::Receiver<()>,
}

impl Output {
    pub fn start(model: Arc<ReadModel>, paths: Paths, jobs: &[Job]) -> Self {
        let names = Names::of(jobs);
        let over = watch::Sender::new(false);
        let (printer, pieces) = mpsc::channel(PIECES_LEN);
        tokio::spawn(follow_all(model, paths, names, over.subscribe(), printer));
        Self { over, printed: print(pieces) }
    }

    /// Prints the rest of the logs, or gives up on `interrupt`, because the reader of the output may be stuck. Call it
    /// when no task writes any more.
    pub async fn finish(self, interrupt: impl Future<Output = ()>) {
        let _ = self.over.send(true);
        tokio::select! {
            _ = self.printed => {}
            () = interrupt => {}
        }
    }
}

/// The labels of the tasks' lines.
struct Names {
    /// Whether task names are unique in the run, so that they suffice as labels.
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

/// Prints pieces on a separate thread, so that a slow reader of the output does not block the agent.
fn print(mut pieces: mpsc::Receiver<Piece>) -> oneshot::Receiver<()> {
    let (done, printed) = oneshot::channel();
    std::thread::spawn(move || {
        while let Some(Piece { stream, bytes }) = pieces.blocking_recv() {
            // The reader of the output may be gone; the tasks continue.
            let _ = match stream {
                Stream::Stdout => std::io::stdout().lock().write_all(&bytes),
                Stream::Stderr => std::io::stderr().lock().write_all(&bytes),
            };
        }
        let _ = done.send(());
    });
    printed
}

async fn follow_all(
    model: Arc<ReadModel>,
    paths: Paths,
    names: Names,
    over: watch::Receiver<bool>,
    printer: mpsc::Sender<Piece>,
) {
    let mut changes = model.changes();
    let mut ending = over.clone();
    let mut followed: BTreeSet<(AllocId, String)> = BTreeSet::new();
    let mut followers = JoinSet::new();
    loop {
        for view in model.allocs() {
            for task in view.tasks.iter().filter(|task| task.attempt > 0) {
                if !followed.insert((view.spec.id, task.name.to_string())) {
                    continue;
                }
                let id = view.spec.id;
                let prefix = names.prefix(&view.spec.name(), &task.name);
                for stream in [Stream::Stdout, Stream::Stderr] {
                    let files = LogFiles::new(paths.logs(&id), &paths.task_name(&id, &task.name), stream);
                    let lines = Lines { prefix: prefix.clone(), rest: Vec::new() };
                    followers.spawn(follow(files, stream, lines, over.clone(), printer.clone()));
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

/// Forwards one stream of one task to the printer until the run is over and the log was read to its end.
async fn follow(
    files: LogFiles,
    stream: Stream,
    mut lines: Lines,
    mut over: watch::Receiver<bool>,
    printer: mpsc::Sender<Piece>,
) {
    let mut follower = Follower::new(files, (0, 0));
    loop {
        // `over` is read before the log, or the last bytes could be missed.
        let is_over = *over.borrow_and_update();
        loop {
            match follower.read() {
                Ok(Some(chunk)) => {
                    let bytes = lines.cut(&chunk.bytes);
                    if !bytes.is_empty() && printer.send(Piece { stream, bytes }).await.is_err() {
                        return;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "failed to read a log file");
                    break;
                }
            }
        }
        if is_over {
            let bytes = lines.rest();
            if !bytes.is_empty() {
                let _ = printer.send(Piece { stream, bytes }).await;
            }
            return;
        }
        tokio::select! {
            changed = follower.changed() => if changed.is_err() {
                // The directory does not exist yet, or no longer.
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            },
            _ = over.changed() => {}
        }
    }
}

/// Whole lines of one task.
struct Piece {
    stream: Stream,
    bytes: Vec<u8>,
}

/// Splits bytes into lines, so that lines of different tasks don't mix.
struct Lines {
    prefix: String,
    rest: Vec<u8>,
}

impl Lines {
    /// The lines that `bytes` complete, each with its prefix.
    fn cut(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.rest.extend_from_slice(bytes);
        let mut lines = Vec::new();
        let mut from = 0;
        while let Some(at) = self.rest[from..].iter().position(|byte| *byte == b'\n') {
            lines.extend_from_slice(self.prefix.as_bytes());
            lines.extend_from_slice(&self.rest[from..=from + at]);
            from += at + 1;
        }
        self.rest.drain(..from);
        if self.rest.len() >= LINE_BYTES_MAX {
            lines.append(&mut self.rest());
        }
        lines
    }

    /// The unfinished line, as a line.
    fn rest(&mut self) -> Vec<u8> {
        if self.rest.is_empty() {
            return Vec::new();
        }
        let mut line = self.prefix.clone().into_bytes();
        line.append(&mut self.rest);
        line.push(b'\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_printed_whole() {
        let mut lines = Lines { prefix: "t | ".to_owned(), rest: Vec::new() };
        assert_eq!(lines.cut(b"a"), b"");
        assert_eq!(lines.cut(b"b\n\nc"), b"t | ab\nt | \n");
        assert_eq!(lines.rest(), b"t | c\n");
        assert_eq!(lines.rest(), b"");
        assert_eq!(lines.cut(&[b'x'; LINE_BYTES_MAX]).len(), LINE_BYTES_MAX + 5, "a long line in pieces");
    }
}
