//! Sends one file in pieces: plain, or as frames that continue as the file grows.
//!
//! An empty frame is a heartbeat; a frame with `FileEvent` reports that the file was truncated or deleted.

use std::{
    ffi::OsStr,
    fs::File,
    io,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    sync::Arc,
};

use herdlet_agent::logs::CHUNK_BYTES_MAX;
use herdlet_base::{
    directory::{DirectoryWatch, Interests},
    safe_fs::Dir,
};

use super::super::stream::{Form, Gone, HEARTBEAT, Pieces, blocking};

/// A part of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) offset: u64,
    /// The end of the file that the offset counts from.
    pub(crate) origin: Origin,
    /// Number of bytes; 0 means all.
    pub(crate) limit: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Start,
    End,
}

/// A file being sent.
pub struct Reading {
    file: Arc<File>,
    dir: Dir,
    /// The name in frames.
    name: String,
    offset: u64,
    /// Where to stop: bytes that were written after the request began are not sent, unless the file is
    /// followed.
    end: u64,
}

impl Reading {
    /// Begins with this part of `file`, which is named `name` in `dir`.
    pub(crate) fn new(file: File, dir: Dir, name: String, part: Part) -> io::Result<Self> {
        let size = file.metadata()?.len();
        let offset = match part.origin {
            Origin::Start => part.offset,
            Origin::End => size.saturating_sub(part.offset),
        };
        let end = if part.limit == 0 { size } else { size.min(offset.saturating_add(part.limit)) };
        Ok(Self { file: Arc::new(file), dir, name, offset, end })
    }

    /// Sends the file up to its end at the time of the request.
    pub(crate) async fn once(mut self, form: Form, pieces: Pieces) -> Result<(), Gone> {
        while let Some(bytes) = self.next().await {
            pieces.send(form.data(bytes, &self.name, self.offset)).await?;
        }
        Ok(())
    }

    /// Sends the file until it is deleted.
    pub(crate) async fn followed(mut self, form: Form, pieces: Pieces) -> Result<(), Gone> {
        self.end = u64::MAX;
        // Watches the directory that is held, even if its path now leads elsewhere.
        let watch = match DirectoryWatch::open(&self.dir.proc_path(OsStr::new(".")), Interests::Writes) {
            Ok(watch) => watch,
            Err(error) => {
                tracing::warn!(file = self.name, %error, "failed to watch a file");
                return Ok(());
            }
        };
        loop {
            while let Some(bytes) = self.next().await {
                pieces.send(form.data(bytes, &self.name, self.offset)).await?;
            }
            match self.file.metadata() {
                Ok(about) if about.nlink() == 0 => return self.event(form, &pieces, "file deleted").await,
                Ok(about) if about.len() < self.offset => {
                    self.offset = 0;
                    self.event(form, &pieces, "file truncated").await?;
                    continue;
                }
                Ok(_) => {}
                Err(_) => return Ok(()),
            }
            tokio::select! {
                changed = watch.changed() => if changed.is_err() {
                    return self.event(form, &pieces, "file deleted").await;
                },
                () = tokio::time::sleep(HEARTBEAT) => pieces.send(form.heartbeat()).await?,
            }
        }
    }

    /// The next piece; none at the end, or if the file can't be read.
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

    async fn event(&self, form: Form, pieces: &Pieces, event: &str) -> Result<(), Gone> {
        Ok(pieces.send(form.event(event, &self.name, self.offset)).await?)
    }
}
