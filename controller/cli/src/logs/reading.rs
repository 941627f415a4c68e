//! Reads the logs of tasks: existing ones one after another, followed ones concurrently.
//!
//! In: tasks whose logs exist, and the agent's stream of changes. Out: lines through a channel, each with its task, or why
//! a log was not read to its end.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    time::Duration,
};

use futures_util::{Stream, StreamExt};
use herdlet_api_types::{AllocId, nomad::FileInfo};
use tokio::{sync::mpsc, task::JoinSet, time::timeout};

use super::scope::{self, Scopes, Source};
use crate::{
    client::{Client, ClientError, LogRequest},
    watch::{ChangeStep, Shown},
};

/// A longer line is printed in pieces.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// The directory of an allocation's log files.
const LOGS: &str = "alloc/logs";

pub(super) struct Line {
    pub(super) alloc: AllocId,
    pub(super) name: String,
    pub(super) stream: &'static str,
    pub(super) bytes: Vec<u8>,
    pub(super) end: End,
}

/// What follows the bytes of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The line ends; the last one of a log may have no line end.
    Line,
    /// More of the line may come.
    Open,
}

/// Why a log was not read to its end.
pub(super) enum Unread {
    Request(ClientError),
    /// The stream of changes ended, which happens only when the agent ends.
    AgentEnded,
    /// A reader task failed.
    Reader(tokio::task::JoinError),
}

impl From<ClientError> for Unread {
    fn from(error: ClientError) -> Self {
        Self::Request(error)
    }
}

#[derive(Clone)]
pub(super) struct Merge {
    pub(super) client: Client,
    pub(super) streams: &'static [&'static str],
    pub(super) follow: bool,
    pub(super) tail: Option<u64>,
    pub(super) since: Option<u64>,
    pub(super) timestamps: bool,
    /// Delay before an unfinished line is printed; none to print whole lines only.
    pub(super) patience: Option<Duration>,
    pub(super) sender: mpsc::Sender<Line>,
}

impl Merge {
    /// Reads the logs of these tasks.
    pub(super) async fn these(self, sources: Vec<Source>) -> Result<(), Unread> {
        if !self.follow {
            return self.one_after_another(sources).await;
        }
        let mut readers = JoinSet::new();
        for source in sources {
            self.read(&mut readers, &source);
        }
        drop(self.sender);
        while let Some(read) = readers.join_next().await {
            read.map_err(Unread::Reader)??;
        }
        Ok(())
    }

    /// Prints existing logs in the order of the streams' last writes, the only time that their files have.
    async fn one_after_another(self, sources: Vec<Source>) -> Result<(), Unread> {
        let mut files: BTreeMap<AllocId, Vec<FileInfo>> = BTreeMap::new();
        let mut found = Vec::new();
        for source in sources {
            let files = match files.entry(source.alloc) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => {
                    place.insert(match self.client.list_files(source.alloc, LOGS).await {
                        // Just removed; the request below reports the same.
                        Err(ClientError::Status { status: 404, .. }) => Vec::new(),
                        // A task can fill the directory with names of its own, which must not hide the logs of others.
                        Err(error @ ClientError::Status { .. }) => {
                            herdlet_base::stderr_line!(
                                "the streams of allocation {} are not in the order of their last writes: {error}",
                                source.alloc.short()
                            );
                            Vec::new()
                        }
                        listed => listed?,
                    })
                }
            };
            for stream in self.streams {
                found.push((last_written(files, &source.task, stream).to_owned(), source.clone(), *stream));
            }
        }
        found.sort_by(|(a, ..), (b, ..)| a.cmp(b));
        for (_, source, stream) in found {
            self.stream(&source, stream).await?;
        }
        Ok(())
    }

    /// Follows present and future tasks: of new allocations, and those that start later. Ends when nothing more can come.
    pub(super) async fn follow_all(self, scopes: &Scopes, sources: Vec<Source>) -> Result<(), Unread> {
        let mut readers = JoinSet::new();
        let mut known: BTreeSet<(AllocId, String)> = BTreeSet::new();
        for source in sources {
            self.read(&mut readers, &source);
            known.insert((source.alloc, source.task));
        }
        let mut shown = Shown::default();
        let mut events = self.client.events().await?;
        loop {
            tokio::select! {
                change = events.next() => {
                    let change = change.ok_or(Unread::AgentEnded)?;
                    if shown.apply(change?) == ChangeStep::Part { continue }
                    for source in scope::sources(scopes.live(&shown).iter()) {
                        if known.insert((source.alloc, source.task.clone())) {
                            self.read(&mut readers, &source);
                        }
                    }
                }
                Some(read) = readers.join_next() => read.map_err(Unread::Reader)??,
            }
            if readers.is_empty() && shown.index > 0 && scopes.are_over(&shown) {
                return Ok(());
            }
        }
    }

    fn read(&self, readers: &mut JoinSet<Result<(), ClientError>>, source: &Source) {
        for stream in self.streams {
            let (merge, source) = (self.clone(), source.clone());
            readers.spawn(async move { merge.stream(&source, stream).await });
        }
    }

    /// Forwards the lines of one stream.
    async fn stream(&self, source: &Source, stream: &'static str) -> Result<(), ClientError> {
        let Self { follow, tail, since, timestamps, .. } = *self;
        let request = LogRequest { task: source.task.clone(), stream, follow, tail, since, timestamps };
        let pieces = match self.client.logs(source.alloc, &request).await {
            // The task wrote nothing, or its allocation was just removed.
            Err(ClientError::Status { status: 404, .. }) => return Ok(()),
            pieces => pieces?,
        };
        into_lines(pieces, self.patience, |bytes, end| {
            let line = Line { alloc: source.alloc, name: source.name.clone(), stream, bytes, end };
            async move { self.sender.send(line).await.is_ok() }
        })
        .await
    }
}

/// The time of a stream's last write, as text that sorts by time; empty if it has no file.
fn last_written<'f>(files: &'f [FileInfo], task: &str, stream: &str) -> &'f str {
    let is_of_it = |file: &&FileInfo| {
        let number = file.name.strip_prefix(task).and_then(|rest| rest.strip_prefix('.'));
        let number =
            number.and_then(|rest| rest.strip_prefix(stream)).and_then(|rest| rest.strip_prefix('.'));
        number.is_some_and(|number| number.parse::<u64>().is_ok())
    };
    // All times are in UTC; without the Z, fractions of different lengths sort correctly.
    let times = files.iter().filter(is_of_it).filter_map(|file| file.mod_time.as_deref());
    times.map(|time| time.trim_end_matches('Z')).max().unwrap_or_default()
}

/// Splits a log into lines. An unfinished line is passed on after `patience` without more, at [`LINE_BYTES_MAX`], and at the end
/// of the log.
async fn into_lines<F: Future<Output = bool>>(
    mut pieces: impl Stream<Item = Result<Vec<u8>, ClientError>> + Unpin,
    patience: Option<Duration>,
    mut line: impl FnMut(Vec<u8>, End) -> F,
) -> Result<(), ClientError> {
    let mut rest: Vec<u8> = Vec::new();
    let mut last = End::Line;
    loop {
        let piece = match patience.filter(|_| !rest.is_empty()) {
            None => pieces.next().await,
            Some(patience) => match timeout(patience, pieces.next()).await {
                Ok(piece) => piece,
                Err(_) => {
                    last = End::Open;
                    if !line(std::mem::take(&mut rest), End::Open).await {
                        return Ok(());
                    }
                    continue;
                }
            },
        };
        let Some(piece) = piece else { break };
        rest.extend_from_slice(&piece?);
        loop {
            let (length, end) = match rest.iter().position(|byte| *byte == b'\n') {
                Some(at) => (at + 1, End::Line),
                None if rest.len() >= LINE_BYTES_MAX => (LINE_BYTES_MAX, End::Open),
                None => break,
            };
            let bytes: Vec<u8> = rest.drain(..length).collect();
            last = end;
            if !line(bytes, end).await {
                return Ok(());
            }
        }
    }
    // The end of the log also ends an unfinished line that was already passed on.
    if !rest.is_empty() || last == End::Open {
        line(rest, End::Line).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logs::REST;

    #[test]
    fn a_stream_is_as_old_as_its_last_file() {
        let file = |name: &str, time: &str| FileInfo {
            name: name.to_owned(),
            is_dir: false,
            size: 1,
            file_mode: "-rw-r--r--".to_owned(),
            mod_time: Some(time.to_owned()),
            content_type: None,
        };
        let files = [
            file("a.stdout.0", "2026-01-02T03:04:05Z"),
            file("a.stdout.1", "2026-01-02T03:04:06.12Z"),
            file("a.stderr.0", "2026-01-02T03:04:06.1Z"),
            file("a.stdout.fifo", "2027-01-02T03:04:05Z"),
        ];
        assert_eq!(last_written(&files, "a", "stdout"), "2026-01-02T03:04:06.12");
        assert!(last_written(&files, "a", "stderr") < last_written(&files, "a", "stdout"));
        assert_eq!(last_written(&files, "b", "stdout"), "");
    }

    /// The lines of a log whose pieces come after these delays in milliseconds.
    async fn merged(patience: Option<Duration>, pieces: &[(u64, &str)]) -> Vec<(String, End)> {
        let pieces =
            pieces.iter().map(|(after, text)| (*after, text.as_bytes().to_vec())).collect::<Vec<_>>();
        let pieces = futures_util::stream::iter(pieces).then(|(after, bytes)| async move {
            tokio::time::sleep(Duration::from_millis(after)).await;
            Ok(bytes)
        });
        let mut lines = Vec::new();
        into_lines(Box::pin(pieces), patience, |bytes, end| {
            lines.push((String::from_utf8(bytes).unwrap(), end));
            std::future::ready(true)
        })
        .await
        .unwrap();
        lines
    }

    // `logs -f` of a task that prints a prompt did not show it until it was answered.
    #[tokio::test(start_paused = true)]
    async fn a_line_that_is_not_finished_is_shown_after_a_rest() {
        let line = |text: &str| (text.to_owned(), End::Line);
        let open = |text: &str| (text.to_owned(), End::Open);
        let pieces = [(0, "one\nname"), (100, "? "), (5_000, "x\ntwo"), (300, "!")];
        assert_eq!(
            merged(Some(REST), &pieces).await,
            [line("one\n"), open("name? "), line("x\n"), open("two"), line("!")]
        );
        assert_eq!(
            merged(Some(Duration::ZERO), &pieces).await,
            [line("one\n"), open("name"), open("? "), line("x\n"), open("two"), line("!")]
        );
        assert_eq!(merged(None, &pieces).await, [line("one\n"), line("name? x\n"), line("two!")]);
        assert_eq!(merged(Some(REST), &[(0, "a"), (300, "\n")]).await, [open("a"), line("\n")]);
        // The end of the line is passed on, so that the next output begins a new line.
        let ends = [(0, "a"), (300, "")];
        assert_eq!(merged(Some(REST), &ends).await, [open("a"), line("")]);
        assert_eq!(merged(None, &[]).await, []);
    }

    /// A line end came after each 64 KiB of binary output, and before the next label.
    #[tokio::test(start_paused = true)]
    async fn a_long_line_is_passed_on_in_parts() {
        let long = "x".repeat(LINE_BYTES_MAX);
        let pieces = [(0, &*long), (0, "y\nz"), (0, &*long)];
        let (open, line) =
            (|text: &str| (text.to_owned(), End::Open), |text: &str| (text.to_owned(), End::Line));
        let rest = &long[1..];
        assert_eq!(
            merged(None, &pieces).await,
            [open(&long), line("y\n"), open(&format!("z{rest}")), line("x")]
        );
        assert_eq!(merged(None, &[(0, &*long)]).await, [open(&long), line("")]);
    }
}
