//! Streaming answers: a producer writes pieces as they come, and the reader takes them at its own pace.
//!
//! A slow reader slows down only its own producer: the queue between them has a few pieces, each of at most [`CHUNK_BYTES_MAX`]
//! plus encoding. Nomad's frames are JSON objects with `Data` (base64), `Offset` (of the end of the data), `File` and
//! `FileEvent`; empty members are omitted.
//!
//! [`CHUNK_BYTES_MAX`]: herdlet_agent::logs::CHUNK_BYTES_MAX

use std::{io, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::json;
use tokio::sync::mpsc;

/// Pieces between producer and connection: a few, so that a stalled reader occupies little memory.
pub const PIECES_LEN: usize = 8;

/// Interval of heartbeats on a stream without news, as Nomad's clients expect.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(1);

/// Runs file operations on a blocking thread, because a disk may be slow.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    herdlet_runtime::off_thread(work).await.map_err(io::Error::other)?
}

/// The producer's end of the queue.
pub type Pieces = mpsc::Sender<Vec<u8>>;

/// The reader has disconnected.
#[derive(Debug)]
pub struct Gone;

impl<T> From<mpsc::error::SendError<T>> for Gone {
    fn from(_: mpsc::error::SendError<T>) -> Self {
        Self
    }
}

/// The encoding of pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The bytes themselves.
    Plain,
    Frames,
}

impl Form {
    /// `PlainText` of Nomad's requests.
    pub fn of(plain: bool) -> Self {
        if plain { Self::Plain } else { Self::Frames }
    }

    /// Bytes of a file. `offset` is where they end.
    pub(crate) fn data(self, bytes: Vec<u8>, file: &str, offset: u64) -> Vec<u8> {
        match self {
            Self::Plain => bytes,
            Self::Frames => {
                json!({ "Data": STANDARD.encode(bytes), "Offset": offset, "File": file }).to_string().into()
            }
        }
    }

    /// A line of the agent's log.
    pub(crate) fn line(self, text: String) -> Vec<u8> {
        match self {
            Self::Plain => text.into(),
            Self::Frames => json!({ "Data": STANDARD.encode(text), "FileEvent": "log" }).to_string().into(),
        }
    }

    /// An event of a file; nothing without frames.
    pub(crate) fn event(self, event: &str, file: &str, offset: u64) -> Vec<u8> {
        match self {
            Self::Plain => Vec::new(),
            Self::Frames => json!({ "FileEvent": event, "File": file, "Offset": offset }).to_string().into(),
        }
    }

    /// A heartbeat; an empty piece without frames.
    pub(crate) fn heartbeat(self) -> Vec<u8> {
        match self {
            Self::Plain => Vec::new(),
            Self::Frames => b"{}".to_vec(),
        }
    }
}
