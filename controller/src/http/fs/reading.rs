//! One file, told in pieces: as it is, or as frames that go on as it grows.
//!
//! A frame is a JSON object with `Data`, `Offset` (where the data ends) and `File`; an empty one says that nothing is new, one
//! with `FileEvent` that the file was cut short or is gone. Frames follow each other without anything between them.

use std::{
    ffi::OsStr,
    fs::File,
    io,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    sync::Arc,
};

use axum::body::Bytes;
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::super::stream::{Gone, HEARTBEAT, Pieces, blocking};
use crate::{
    drivers::safe_fs::Dir,
    logs::CHUNK_BYTES_MAX,
    watch::directory::{DirectoryWatch, Interests},
};

/// A part of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    /// Where it begins.
    pub(super) offset: u64,
    /// Whence that is counted.
    pub(super) origin: Origin,
    /// So many bytes; 0 for all.
    pub(super) limit: u64,
}

/// An end of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// Its beginning.
    Start,
    /// Its end.
    End,
}

/// A file being told.
pub(super) struct Reading {
    file: Arc<File>,
    /// Where it lies.
    dir: Dir,
    /// As clients know it.
    name: String,
    offset: u64,
    /// Where to end: what was written after the request began is not told, unless it is followed.
    end: u64,
}

impl Reading {
    /// Begins with that part of `file`, which lies in `dir` and is called `name`.
    pub(super) fn new(file: File, dir: Dir, name: String, part: Part) -> io::Result<Self> {
        let size = file.metadata()?.len();
        let offset = match part.origin {
            Origin::Start => part.offset,
            Origin::End => size.saturating_sub(part.offset),
        };
        let end = if part.limit == 0 { size } else { size.min(offset.saturating_add(part.limit)) };
        Ok(Self { file: Arc::new(file), dir, name, offset, end })
    }

    /// Tells the bytes.
    pub(super) async fn plain(mut self, pieces: Pieces) -> Result<(), Gone> {
        while let Some(bytes) = self.next().await {
            pieces.send(Bytes::from(bytes)).await?;
        }
        Ok(())
    }

    /// Tells frames up to where the file ended when it was asked for.
    pub(super) async fn frames(mut self, pieces: Pieces) -> Result<(), Gone> {
        while let Some(bytes) = self.next().await {
            pieces.send(self.frame(&bytes)).await?;
        }
        Ok(())
    }

    /// Tells frames until the file is deleted.
    pub(super) async fn followed(mut self, pieces: Pieces) -> Result<(), Gone> {
        self.end = u64::MAX;
        // Of the very directory that is held, wherever its name leads by now.
        let watch = match DirectoryWatch::open(&self.dir.proc_path(OsStr::new(".")), Interests::Writes) {
            Ok(watch) => watch,
            Err(error) => {
                tracing::warn!(file = self.name, %error, "failed to watch a file");
                return Ok(());
            }
        };
        loop {
            while let Some(bytes) = self.next().await {
                pieces.send(self.frame(&bytes)).await?;
            }
            match self.file.metadata() {
                Ok(about) if about.nlink() == 0 => return self.event(&pieces, "file deleted").await,
                Ok(about) if about.len() < self.offset => {
                    self.offset = 0;
                    self.event(&pieces, "file truncated").await?;
                    continue;
                }
                Ok(_) => {}
                Err(_) => return Ok(()),
            }
            tokio::select! {
                changed = watch.changed() => if changed.is_err() {
                    return self.event(&pieces, "file deleted").await;
                },
                () = tokio::time::sleep(HEARTBEAT) => pieces.send(Bytes::from_static(b"{}")).await?,
            }
        }
    }

    /// The next piece; none at the end, or where it can't be read.
    async fn next(&mut self) -> Option<Vec<u8>> {
        let left = usize::try_from(self.end.saturating_sub(self.offset)).unwrap_or(usize::MAX);
        let (file, offset, length) = (Arc::clone(&self.file), self.offset, left.min(CHUNK_BYTES_MAX));
        let reading = blocking(move || {
            let mut bytes = vec![0; length];
            let count = file.read_at(&mut bytes, offset)?;
            bytes.truncate(count);
            Ok(bytes)
        });
        let bytes = match reading.await {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::debug!(file = self.name, %error, "failed to read a file");
                return None;
            }
        };
        self.offset += bytes.len() as u64;
        (!bytes.is_empty()).then_some(bytes)
    }

    fn frame(&self, bytes: &[u8]) -> Bytes {
        told(&json!({ "Data": STANDARD.encode(bytes), "Offset": self.offset, "File": self.name }))
    }

    async fn event(&self, pieces: &Pieces, event: &str) -> Result<(), Gone> {
        Ok(pieces
            .send(told(&json!({ "FileEvent": event, "File": self.name, "Offset": self.offset })))
            .await?)
    }
}

fn told(frame: &Value) -> Bytes {
    Bytes::from(frame.to_string())
}
