//! Answers that go on: a producer writes pieces as they come, whoever asked takes them at its own pace.
//!
//! A slow reader slows its producer down and nobody else: between them are a few pieces, each of [`CHUNK_BYTES_MAX`] and what its writing
//! costs. Nomad's frames are JSON objects with `Data` (base64), `Offset` (where the data ends), `File` and `FileEvent`, in which what is
//! empty is left out.
//!
//! [`CHUNK_BYTES_MAX`]: herdlet_agent::logs::CHUNK_BYTES_MAX

use std::{io, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::json;
use tokio::sync::mpsc;

/// Pieces between producer and connection: a few, so that a stalled reader holds little memory.
pub const PIECES_LEN: usize = 8;

/// Between two signs of life of a stream without news, as Nomad's clients expect them.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(1);

/// Works on files where a slow disk holds up nobody else.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    herdlet_runtime::off_thread(work).await.map_err(io::Error::other)?
}

/// Where a producer writes.
pub type Pieces = mpsc::Sender<Vec<u8>>;

/// The reader has gone away.
#[derive(Debug)]
pub struct Gone;

impl<T> From<mpsc::error::SendError<T>> for Gone {
    fn from(_: mpsc::error::SendError<T>) -> Self {
        Self
    }
}

/// How pieces are written.
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

    /// Bytes of a file, which end there in it.
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

    /// Something has happened to a file; without frames that can't be told.
    pub(crate) fn event(self, event: &str, file: &str, offset: u64) -> Vec<u8> {
        match self {
            Self::Plain => Vec::new(),
            Self::Frames => json!({ "FileEvent": event, "File": file, "Offset": offset }).to_string().into(),
        }
    }

    /// A sign of life: without frames a piece without bytes.
    pub(crate) fn heartbeat(self) -> Vec<u8> {
        match self {
            Self::Plain => Vec::new(),
            Self::Frames => b"{}".to_vec(),
        }
    }
}
