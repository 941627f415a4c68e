//! Downloads contents into files, and resumes where a connection ended.
//!
//! In: a file, empty or with the first part of a content. Out: the file with the content, with the right digest and size. After a
//! lost connection the download resumes where it ended, or from the start if the host cannot resume; a wrong content is
//! fetched again from the start, once.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    os::unix::fs::FileExt as _,
};

use reqwest::{
    StatusCode,
    header::{CONTENT_RANGE, HeaderMap},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    error::RegistryError,
    host::{Host, Query},
};
use crate::{digest::Hasher, document::Descriptor, progress::Progress};

/// How much is written at once.
const BLOCK_LEN: usize = 256 * 1024;
/// A try that fetches less than this has failed, so that the number of tries is bounded by the size.
const PROGRESS_BYTES_MIN: u64 = 1024 * 1024;

/// The begin of a content.
pub(super) struct Partial {
    content: Descriptor,
    file: File,
    hasher: Hasher,
    /// What the file has, in bytes.
    len: u64,
    /// What is to be written next.
    block: Vec<u8>,
    progress: watch::Sender<Progress>,
    /// Ends the waits for hosts.
    stop: CancellationToken,
}

/// What is left after a host, and what became of the content there.
type HostResult = (Partial, Result<(), RegistryError>);

impl Partial {
    /// Continues a file. One that is longer than the content begins again.
    ///
    /// # Errors
    /// If the file can't be used.
    pub(super) async fn open(
        file: File,
        content: Descriptor,
        progress: watch::Sender<Progress>,
        stop: CancellationToken,
    ) -> Result<Self, RegistryError> {
        if stop.is_cancelled() {
            return Err(RegistryError::Cancelled);
        }
        let hasher = content.digest.hasher();
        let partial = Self { content, file, hasher, len: 0, block: Vec::new(), progress, stop };
        off_thread(partial, |partial| {
            if partial.file.metadata()?.len() > partial.content.size {
                return partial.clear();
            }
            partial.file.seek(SeekFrom::Start(0))?;
            let mut block = vec![0; BLOCK_LEN];
            loop {
                let len = partial.file.read(&mut block)?;
                let Some(read) = block.get(..len).filter(|read| !read.is_empty()) else { return Ok(()) };
                partial.hasher.update(read);
                partial.add(len);
            }
        })
        .await
    }

    fn add(&mut self, len: usize) {
        let len = u64::try_from(len).unwrap_or(u64::MAX);
        self.len = self.len.saturating_add(len);
        self.progress.send_modify(|progress| progress.done_bytes = progress.done_bytes.saturating_add(len));
    }

    /// Empties the file.
    fn clear(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        let len = std::mem::take(&mut self.len);
        self.progress.send_modify(|progress| progress.done_bytes = progress.done_bytes.saturating_sub(len));
        self.hasher = self.content.digest.hasher();
        self.block.clear();
        Ok(())
    }

    async fn restart(self) -> Result<Self, RegistryError> {
        off_thread(self, Self::clear).await
    }

    /// Writes what has arrived. If that fails, for instance because the disk is full, the file becomes empty.
    async fn flush(self) -> Result<Self, RegistryError> {
        if self.block.is_empty() {
            return Ok(self);
        }
        off_thread(self, |partial| {
            if let Err(error) = partial.file.write_all_at(&partial.block, partial.len) {
                // The first error is the reason.
                let _ = partial.clear();
                return Err(error);
            }
            partial.hasher.update(&partial.block);
            let len = partial.block.len();
            partial.block.clear();
            partial.add(len);
            Ok(())
        })
        .await
    }

    /// What is missing, in bytes.
    fn missing(&self) -> u64 {
        let waiting = u64::try_from(self.block.len()).unwrap_or(u64::MAX);
        self.content.size.saturating_sub(self.len).saturating_sub(waiting)
    }

    /// Whether a complete file has the content. The hash is used up.
    fn is_right(&mut self) -> bool {
        let hasher = std::mem::replace(&mut self.hasher, self.content.digest.hasher());
        hasher.finish() == self.content.digest
    }
}

async fn off_thread(
    mut partial: Partial,
    work: impl FnOnce(&mut Partial) -> io::Result<()> + Send + 'static,
) -> Result<Partial, RegistryError> {
    let done = herdlet_runtime::off_thread(move || work(&mut partial).map(|()| partial));
    done.await.map_err(io::Error::other).flatten().map_err(RegistryError::Write)
}

/// Fetches the rest of a content from a host.
///
/// # Errors
/// If the file can't be written.
pub(super) async fn from_host(host: &Host, mut partial: Partial) -> Result<HostResult, RegistryError> {
    // What was there before this host may be wrong, and not by its fault.
    let mut is_own = partial.len == 0;
    let (mut failures, mut most) = (0, partial.len);
    loop {
        if partial.missing() == 0 {
            if partial.is_right() {
                return Ok((partial, Ok(())));
            }
            let error = host.corrupt(&partial.content.digest);
            partial = partial.restart().await?;
            if is_own {
                return Ok((partial, Err(error)));
            }
            is_own = true;
        }
        let (kept, received) = receive(host, partial).await?;
        partial = kept;
        is_own |= partial.len == 0;
        let Err(error) = received else { continue };
        if partial.len >= most.saturating_add(PROGRESS_BYTES_MIN) {
            (failures, most) = (0, partial.len);
        }
        let stop = partial.stop.clone();
        let pause = async { Ok(host.pause(&error, &mut failures).await) };
        match unless_stopped(&stop, pause).await {
            Ok(true) => {}
            Ok(false) => return Ok((partial, Err(error))),
            Err(cancelled) => return Ok((partial, Err(cancelled))),
        }
        if matches!(error, RegistryError::Range { .. }) {
            // The next try asks for everything.
            partial = partial.restart().await?;
        }
    }
}

/// Waits for a host. What is being written is never dropped: it could reach the file after the next pull's writes.
async fn unless_stopped<T>(
    stop: &CancellationToken,
    waiting: impl Future<Output = Result<T, RegistryError>>,
) -> Result<T, RegistryError> {
    stop.run_until_cancelled(waiting).await.unwrap_or(Err(RegistryError::Cancelled))
}

/// Sends one request, and writes what arrives.
async fn receive(host: &Host, mut partial: Partial) -> Result<HostResult, RegistryError> {
    let digest = partial.content.digest.clone();
    let asked_from = partial.len;
    let stop = partial.stop.clone();
    let query = Query::Blob { digest: &digest, from: asked_from };
    let mut response = match unless_stopped(&stop, host.open(&query)).await {
        Ok(response) => response,
        Err(error) => return Ok((partial, Err(error))),
    };
    if response.status() == StatusCode::PARTIAL_CONTENT {
        if asked_from == 0 {
            return Ok((partial, Err(host.protocol("it sends a part, not the content"))));
        }
        if begin_of_range(response.headers(), partial.content.size) != Some(asked_from) {
            return Ok((partial, Err(host.no_range())));
        }
    } else if asked_from > 0 {
        partial = partial.restart().await?;
    }
    if response.content_length().is_some_and(|len| len > partial.missing()) {
        let error = host.too_large(partial.content.size);
        return Ok((partial, Err(error)));
    }
    while partial.missing() > 0 {
        let chunk = match unless_stopped(&stop, host.within(response.chunk())).await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return Ok((partial.flush().await?, Err(host.connection("it ended early")))),
            Err(error) => return Ok((partial.flush().await?, Err(error))),
        };
        if u64::try_from(chunk.len()).unwrap_or(u64::MAX) > partial.missing() {
            let error = host.too_large(partial.content.size);
            return Ok((partial.restart().await?, Err(error)));
        }
        partial.block.extend_from_slice(&chunk);
        if partial.block.len() >= BLOCK_LEN {
            partial = partial.flush().await?;
        }
    }
    Ok((partial.flush().await?, Ok(())))
}

/// Where a part begins in the content; none if that is not known, or it is a part of another content.
fn begin_of_range(headers: &HeaderMap, size: u64) -> Option<u64> {
    let text = headers.get(CONTENT_RANGE)?.to_str().ok()?;
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    if total != "*" && total.parse() != Ok(size) {
        return None;
    }
    range.split_once('-')?.0.trim().parse().ok()
}
