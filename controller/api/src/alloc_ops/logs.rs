//! A task's log, from any position, followed across rotations.
//!
//! In: an allocation, one of its tasks, and a start position. Out: pieces of the log. A followed log ends when the
//! task is dead and its log was sent completely.

use std::{io, sync::Arc, time::Instant};

use herdlet_agent::{
    logs::{Chunk, Follower, Interruption, LogFiles, Stream},
    publish::ReadModel,
};
use herdlet_api_types::{AllocId, UnixNanos, task::TaskStatus, view::AllocView};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    AllocOps,
    error::{ApiError, ApiResult},
    stamps::Stamps,
    stream::{Form, Gone, HEARTBEAT, Pieces, blocking},
    target::has_files,
};

/// A larger tail is the whole log.
const TAIL_LINES_MAX: u64 = 1_000_000;

#[derive(Debug, Default)]
pub struct LogRequest {
    pub task: String,
    /// `stdout` or `stderr`.
    pub kind: String,
    pub follow: bool,
    /// Bytes from `origin`.
    pub offset: u64,
    /// `start` (also if empty) or `end`.
    pub origin: String,
    /// Number of last lines.
    pub tail: Option<u64>,
    /// Lines written after this time, in seconds since 1970.
    pub since: Option<u64>,
    /// Put the time before each line.
    pub timestamps: bool,
}

impl AllocOps {
    /// Opens a task's log at the requested position.
    pub async fn open_log(&self, alloc: &AllocView, wanted: LogRequest) -> ApiResult<Reading> {
        has_files(alloc)?;
        let stream = check(alloc, &wanted)?;
        let id = alloc.spec.id;
        let files = LogFiles::new(self.paths.logs(&id), &self.paths.task_name(&id, &wanted.task), stream);
        let place = if wanted.follow { Some(self.bounds.follower()?) } else { None };
        Reading::begin(files, wanted, id, place).await
    }
}

fn check(alloc: &AllocView, wanted: &LogRequest) -> ApiResult<Stream> {
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
    // A task of a server's allocation that could not be started has no log either, as on stock clients.
    let is_unstarted = alloc.spec.server.is_some() && task.started_at == UnixNanos::default();
    if task.attempt == 0 || is_unstarted {
        let message = format!("task {:?} not started yet. No logs available", task.name);
        return Err(ApiError::NotFound(message));
    }
    Ok(stream)
}

/// A log being sent.
pub struct Reading {
    follower: Follower,
    wanted: LogRequest,
    alloc: AllocId,
    /// Without `follow`: the file and offset at which to stop, so that a task that writes a lot can't keep the
    /// request open for ever.
    end: (u64, u64),
    /// Puts times before lines, if they are wanted.
    stamps: Option<Stamps>,
    /// The slot of a reader that follows.
    place: Option<OwnedSemaphorePermit>,
}

impl Reading {
    /// If the task has written nothing yet, the log is empty; if the directory is gone, there is no log.
    async fn begin(
        files: LogFiles,
        wanted: LogRequest,
        alloc: AllocId,
        place: Option<OwnedSemaphorePermit>,
    ) -> ApiResult<Self> {
        let missing =
            format!("log entry for task {:?} and log type {:?} not found", wanted.task, wanted.kind);
        let reading = blocking(move || {
            let sizes = sizes(&files)?;
            if sizes.is_empty() && !files.has_dir()? {
                return Ok(None);
            }
            let end = sizes.last().copied().unwrap_or_default();
            let tail = wanted.tail.map(|lines| files.tail(lines.min(TAIL_LINES_MAX))).transpose()?;
            let since = wanted.since.map(|at_s| files.since(at_s)).transpose()?;
            // Without files yet, the whole log is wanted.
            let chosen = [tail, since].into_iter().flatten().map(|place| place.unwrap_or(end)).max();
            let start = chosen.unwrap_or_else(|| match wanted.origin.as_str() {
                "end" => from_end(&sizes, wanted.offset),
                _ => from_start(&sizes, wanted.offset),
            });
            let stamps = wanted.timestamps.then(Stamps::default);
            Ok(Some(Self { follower: Follower::new(files, start), wanted, alloc, end, stamps, place }))
        });
        reading.await.map_err(failed)?.ok_or(ApiError::NotFound(missing))
    }

    /// Sends the log to its end.
    ///
    /// # Errors
    /// When the reader disconnects.
    pub async fn run(mut self, model: Arc<ReadModel>, form: Form, pieces: Pieces) -> Result<(), Gone> {
        let _place = self.place.take();
        let mut changes = model.changes();
        let mut beat = Instant::now();
        loop {
            // Checked before reading, so that everything that a task wrote before its end is sent.
            let over = has_ended(&model, self.alloc, &self.wanted.task);
            match self.send_next(form, &pieces).await? {
                PieceOutcome::Some => continue,
                PieceOutcome::All if over || !self.wanted.follow => return Ok(()),
                // What comes from now on is read as it is written.
                PieceOutcome::All => self.stamps.iter_mut().for_each(Stamps::go_live),
                PieceOutcome::Failed(error) => {
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
                () = tokio::time::sleep(HEARTBEAT.saturating_sub(beat.elapsed())) => {
                    beat = Instant::now();
                    pieces.send(form.heartbeat()).await?;
                }
            }
        }
    }

    /// Sends the next piece, if there is one.
    async fn send_next(&mut self, form: Form, pieces: &Pieces) -> Result<PieceOutcome, Gone> {
        let files = LogFiles::new(std::path::PathBuf::new(), "", Stream::Stdout);
        let mut follower = std::mem::replace(&mut self.follower, Follower::new(files, (0, 0)));
        let mut stamps = self.stamps.take();
        let read = blocking(move || {
            let mut read = follower.read();
            if let (Some(stamps), Ok(Some(chunk))) = (&mut stamps, &read)
                && let Err(error) = stamps.load(&follower, chunk.index)
            {
                read = Err(error);
            }
            Ok((follower, stamps, read))
        });
        let read = match read.await {
            Ok((follower, stamps, read)) => {
                (self.follower, self.stamps) = (follower, stamps);
                read
            }
            Err(error) => Err(error),
        };
        let mut chunk = match read {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return Ok(PieceOutcome::All),
            Err(error) => return Ok(PieceOutcome::Failed(error)),
        };
        let offset = chunk.end_offset.saturating_sub(chunk.bytes.len() as u64);
        let last = !self.wanted.follow && self.cut(&mut chunk);
        if !chunk.bytes.is_empty() {
            let Chunk { after, index, end_offset, bytes } = chunk;
            let bytes = match &mut self.stamps {
                Some(stamps) => stamps.stamped(&bytes, offset),
                None => bytes,
            };
            let file = format!("alloc/logs/{}.{}.{index}", self.wanted.task, self.wanted.kind);
            if let Some(interruption) = after {
                let event = match interruption {
                    Interruption::Truncated => "file truncated",
                    Interruption::Removed => "file deleted",
                };
                pieces.send(form.event(event, &file, 0)).await?;
            }
            pieces.send(form.data(bytes, &file, end_offset)).await?;
        }
        Ok(if last { PieceOutcome::All } else { PieceOutcome::Some })
    }

    /// Removes bytes that were written after the request began. Returns whether the end was reached.
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
}

/// The result of reading one piece.
enum PieceOutcome {
    /// It was sent; there may be more.
    Some,
    /// There is no more for now.
    All,
    Failed(io::Error),
}

/// Whether the task's log is complete.
fn has_ended(model: &ReadModel, alloc: AllocId, task: &str) -> bool {
    let Some(view) = model.alloc(&alloc) else { return true };
    let task = view.tasks.iter().find(|known| *known.name == *task);
    task.is_none_or(|task| task.state == TaskStatus::Dead)
}

/// Numbers and lengths of the files, oldest first.
fn sizes(files: &LogFiles) -> io::Result<Vec<(u64, u64)>> {
    let mut sizes = Vec::new();
    for index in files.indexes()? {
        match files.open(index) {
            Ok(file) => sizes.push((index, file.metadata()?.len())),
            // Either it was just rotated away, or it is not a log file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::debug!(index, %error, "ignoring a file that is not a log file"),
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

/// `offset` bytes before the end of the newest file. With offset 0 it is the beginning of that file, as on stock
/// clients.
fn from_end(sizes: &[(u64, u64)], offset: u64) -> (u64, u64) {
    if offset == 0 {
        return sizes.last().map(|(index, _)| (*index, 0)).unwrap_or_default();
    }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use herdlet_api_types::fixture::server_side;

    use super::*;
    use herdlet_manifest::fixture::{alloc_view, job};

    #[test]
    fn unstarted_server_allocation_has_no_log() {
        let mut view = alloc_view(&job("web", "g", "web"), 0, 7);
        let wanted = LogRequest {
            task: "web".to_owned(),
            kind: "stdout".to_owned(),
            follow: false,
            offset: 0,
            origin: String::new(),
            tail: None,
            since: None,
            timestamps: false,
        };
        for (is_of_server, has_started, has_log) in
            [(true, true, true), (true, false, false), (false, false, true)]
        {
            let spec = Arc::make_mut(&mut view.spec);
            spec.server = is_of_server.then(|| server_side(&spec.job).into());
            view.tasks[0].started_at = if has_started { UnixNanos(1) } else { UnixNanos::default() };
            let says = check(&view, &wanted).err().map(|error| error.to_string());
            let missing = "task \"web\" not started yet. No logs available".to_owned();
            assert_eq!(says, (!has_log).then_some(missing), "{is_of_server} {has_started}");
        }
    }
}
