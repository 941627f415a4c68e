//! `GET /v1/client/fs/logs/ALLOC`: a task's log, from any place, followed over rotations.
//!
//! Nomad's parameters: `task`, `type` (stdout, stderr), `follow`, `offset`, `origin` (start, end), `plain`; and ours, `tail`
//! (lines) and `since` (seconds since 1970), of which the later counts. Without `plain` the answer is Nomad's frames, JSON objects back to back. A followed log ends when its task has
//! ended for good and all was told.

use std::{io, sync::Arc, time::Instant};

use axum::{
    body::Bytes,
    extract::{Path, State},
    response::Response,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use herdlet_api_types::{AllocId, task::TaskStatus, view::AllocView};
use serde::Deserialize;
use serde_json::json;

use super::{
    Shared,
    error::{ApiError, ApiResult},
    query::{Params, flag, from_text},
    stream::{Gone, HEARTBEAT, Pieces, blocking, follow, streamed},
};
use crate::logs::{Chunk, Follower, LogFiles, Stream};

/// More lines are the whole log.
const TAIL_LINES_MAX: u64 = 1_000_000;

/// What to read.
#[derive(Debug, Deserialize)]
pub(super) struct Wanted {
    #[serde(default)]
    task: String,
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default, deserialize_with = "flag")]
    follow: bool,
    #[serde(default, deserialize_with = "from_text")]
    offset: u64,
    #[serde(default)]
    origin: String,
    #[serde(default, deserialize_with = "flag")]
    plain: bool,
    tail: Option<u64>,
    since: Option<u64>,
}

pub(super) async fn read(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(wanted): Params<Wanted>,
) -> ApiResult<Response> {
    let alloc = shared.alloc_with_files(&id)?;
    let stream = check(&alloc, &wanted)?;
    let files = LogFiles::new(shared.paths.logs(&alloc.spec.id), &wanted.task, stream);
    let place = if wanted.follow { Some(follow()?) } else { None };
    let awaits = wanted.follow && !has_ended(&shared, alloc.spec.id, &wanted.task);
    let reading = Reading::begin(files, wanted, alloc.spec.id, awaits).await?;
    let content_type = if reading.wanted.plain { "text/plain; charset=utf-8" } else { "application/json" };
    let model = Arc::clone(&shared);
    Ok(streamed(&shared, content_type, |pieces| async move {
        let _place = place;
        reading.run(model, pieces).await
    }))
}

fn check(alloc: &AllocView, wanted: &Wanted) -> ApiResult<Stream> {
    if wanted.task.is_empty() {
        return Err(ApiError::bad("must provide task name"));
    }
    let stream = match wanted.kind.as_str() {
        "stdout" => Stream::Stdout,
        "stderr" => Stream::Stderr,
        _ => return Err(ApiError::bad("must provide log type (stdout/stderr)")),
    };
    if !matches!(wanted.origin.as_str(), "" | "start" | "end") {
        return Err(ApiError::bad("origin must be start or end"));
    }
    let task = alloc.tasks.iter().find(|task| *task.name == *wanted.task);
    let task = task.ok_or_else(|| ApiError::bad(format!("unknown task name {:?}", wanted.task)))?;
    if task.attempt == 0 {
        let message = format!("task {:?} not started yet. No logs available", task.name);
        return Err(ApiError::NotFound(message));
    }
    Ok(stream)
}

/// A log being read.
struct Reading {
    follower: Follower,
    wanted: Wanted,
    alloc: AllocId,
    /// Without `follow`: file and offset at which reading ends, so that a chatty task can't keep us for ever.
    end: (u64, u64),
}

impl Reading {
    /// Where nothing is there yet, that is waited for if somebody `awaits` it.
    async fn begin(files: LogFiles, wanted: Wanted, alloc: AllocId, awaits: bool) -> ApiResult<Self> {
        let missing =
            format!("log entry for task {:?} and log type {:?} not found", wanted.task, wanted.kind);
        let reading = blocking(move || {
            let sizes = sizes(&files)?;
            let first = awaits.then_some((0, 0));
            let Some(end) = sizes.last().copied().or(first) else { return Ok(None) };
            let tail = wanted.tail.map(|lines| files.tail(lines.min(TAIL_LINES_MAX))).transpose()?;
            let since = wanted.since.map(|at_s| files.since(at_s)).transpose()?;
            // As long as there are no files, all that comes is wanted.
            let chosen = [tail, since].into_iter().flatten().map(|place| place.unwrap_or(end)).max();
            let start = chosen.unwrap_or_else(|| match wanted.origin.as_str() {
                "end" => from_end(&sizes, wanted.offset),
                _ => from_start(&sizes, wanted.offset),
            });
            Ok(Some(Self { follower: Follower::new(files, start), wanted, alloc, end }))
        });
        reading.await.map_err(failed)?.ok_or(ApiError::NotFound(missing))
    }

    async fn run(mut self, shared: Arc<Shared>, pieces: Pieces) -> Result<(), Gone> {
        let mut changes = shared.model.changes();
        let mut beat = Instant::now();
        loop {
            // Asked before reading: what a task wrote before it ended is read after its end was seen.
            let over = has_ended(&shared, self.alloc, &self.wanted.task);
            match self.tell(&pieces).await? {
                Told::Some => continue,
                Told::All if over || !self.wanted.follow => return Ok(()),
                Told::All => {}
                Told::Failed(error) => {
                    tracing::debug!(alloc = %self.alloc, %error, "failed to read a log");
                    return Ok(());
                }
            }
            tokio::select! {
                changed = self.follower.changed() => if let Err(error) = changed {
                    tracing::warn!(alloc = %self.alloc, %error, "failed to watch a log");
                    return Ok(());
                },
                _ = changes.recv() => {}
                () = tokio::time::sleep(HEARTBEAT.saturating_sub(beat.elapsed())), if !self.wanted.plain => {
                    beat = Instant::now();
                    pieces.send(Bytes::from_static(b"{}")).await?;
                }
            }
        }
    }

    /// Sends the next piece, if there is one.
    async fn tell(&mut self, pieces: &Pieces) -> Result<Told, Gone> {
        let files = LogFiles::new(std::path::PathBuf::new(), "", Stream::Stdout);
        let mut follower = std::mem::replace(&mut self.follower, Follower::new(files, (0, 0)));
        let read = blocking(move || {
            let read = follower.read();
            Ok((follower, read))
        });
        let read = match read.await {
            Ok((follower, read)) => {
                self.follower = follower;
                read
            }
            Err(error) => Err(error),
        };
        let mut chunk = match read {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return Ok(Told::All),
            Err(error) => return Ok(Told::Failed(error)),
        };
        let last = !self.wanted.follow && self.cut(&mut chunk);
        if !chunk.bytes.is_empty() {
            pieces.send(self.frame(chunk)).await?;
        }
        Ok(if last { Told::All } else { Told::Some })
    }

    /// Takes off what was written after the request began; whether that was the end.
    fn cut(&self, chunk: &mut Chunk) -> bool {
        let (index, offset) = self.end;
        if chunk.index < index || chunk.index == index && chunk.end_offset < offset {
            return false;
        }
        let beyond = if chunk.index > index { u64::MAX } else { chunk.end_offset - offset };
        let beyond = usize::try_from(beyond).unwrap_or(usize::MAX);
        chunk.bytes.truncate(chunk.bytes.len().saturating_sub(beyond));
        chunk.end_offset = offset;
        true
    }

    fn frame(&self, chunk: Chunk) -> Bytes {
        if self.wanted.plain {
            return Bytes::from(chunk.bytes);
        }
        let file = format!("alloc/logs/{}.{}.{}", self.wanted.task, self.wanted.kind, chunk.index);
        let frame =
            json!({ "Data": STANDARD.encode(&chunk.bytes), "Offset": chunk.end_offset, "File": file });
        Bytes::from(frame.to_string())
    }
}

/// What became of one piece.
enum Told {
    /// It was sent; there may be more.
    Some,
    /// There is no more for now.
    All,
    /// It could not be read.
    Failed(io::Error),
}

/// Whether nothing will be written to the task's log any more.
fn has_ended(shared: &Shared, alloc: AllocId, task: &str) -> bool {
    let Some(view) = shared.model.alloc(&alloc) else { return true };
    let task = view.tasks.iter().find(|known| *known.name == *task);
    task.is_none_or(|task| task.state == TaskStatus::Dead)
}

/// Numbers and lengths of the files, oldest first.
fn sizes(files: &LogFiles) -> io::Result<Vec<(u64, u64)>> {
    let mut sizes = Vec::new();
    for index in files.indexes()? {
        match files.open(index) {
            Ok(file) => sizes.push((index, file.metadata()?.len())),
            // Rotated away just now, or no log at all.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::debug!(index, %error, "passing over what is no log file"),
        }
    }
    Ok(sizes)
}

/// `offset` bytes after the beginning of the oldest file.
fn from_start(sizes: &[(u64, u64)], offset: u64) -> (u64, u64) {
    let mut left = offset;
    for (index, length) in sizes {
        if left <= *length {
            return (*index, left);
        }
        left -= length;
    }
    sizes.last().copied().unwrap_or_default()
}

/// `offset` bytes before the end of the newest file.
fn from_end(sizes: &[(u64, u64)], offset: u64) -> (u64, u64) {
    let mut left = offset;
    for (index, length) in sizes.iter().rev() {
        if left <= *length {
            return (*index, length - left);
        }
        left -= length;
    }
    sizes.first().map(|(index, _)| (*index, 0)).unwrap_or_default()
}

fn failed(error: io::Error) -> ApiError {
    ApiError::Failed(format!("read the log: {error}"))
}
