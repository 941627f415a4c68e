//! One download: the body of an answer, into a file.
//!
//! In: an address, header fields, an empty file, bounds. Out: the file with all of the body in it, and its checksum. An answer that is cut
//! is an error wherever it is cut. Errors name no more of the address than [`told`](herdlet_base::artifact::source::told) does.

use std::{fs::File, io::Write as _, time::Duration};

use futures_util::StreamExt as _;
use herdlet_base::artifact::checksum::Hasher;
use reqwest::{
    Client, Response, StatusCode, Url,
    header::{HeaderMap, HeaderName, HeaderValue},
};

/// Why something can't be downloaded.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// A header field makes no sense. Its value may be secret.
    #[error("send header field {name:?}: it is not valid")]
    Header { name: String },
    /// The server did not give it.
    #[error("the server answers {status}")]
    Status { status: StatusCode },
    /// It was not reached, or hung up.
    #[error("{why}")]
    Connection { why: String },
    /// No byte has come for so long.
    #[error("nothing has come for {} s", .0.as_secs())]
    Silent(Duration),
    /// It is too large.
    #[error("it is larger than {max} bytes")]
    TooLarge { max: u64 },
    /// It can't be kept.
    #[error("write it: {0}")]
    Write(#[source] std::io::Error),
}

/// What is asked for, and how much of it.
pub struct Wanted<'a> {
    pub client: &'a Client,
    pub url: &'a Url,
    pub headers: &'a HeaderMap,
    /// So many bytes at most.
    pub bytes_max: u64,
}

/// So long a server may say nothing; how long all may take is for the caller to say.
const SILENCE_MAX: Duration = Duration::from_secs(300);

/// So much is written at once.
const BLOCK_LEN: usize = 256 * 1024;

/// Header fields as they are sent.
///
/// # Errors
/// [`DownloadError::Header`].
pub fn header_fields<'h>(
    written: impl Iterator<Item = (&'h String, String)>,
) -> Result<HeaderMap, DownloadError> {
    let mut fields = HeaderMap::new();
    for (name, value) in written {
        let invalid = || DownloadError::Header { name: name.clone() };
        let field = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
        let mut value = HeaderValue::from_str(&value).map_err(|_| invalid())?;
        value.set_sensitive(true);
        fields.insert(field, value);
    }
    Ok(fields)
}

/// Downloads into `file`. What was computed of it comes back with it.
///
/// # Errors
/// [`DownloadError`]; what the file holds then is nothing.
pub async fn into_file(
    wanted: &Wanted<'_>,
    file: File,
    hasher: Option<Hasher>,
) -> Result<(File, Option<String>), DownloadError> {
    let response = ask(wanted).await?;
    let mut writing = Writing { file, hasher, block: Vec::new() };
    let mut left = wanted.bytes_max;
    let mut body = response.bytes_stream();
    while let Some(chunk) = within(body.next()).await? {
        let chunk = chunk.map_err(connection)?;
        let len = u64::try_from(chunk.len()).unwrap_or(u64::MAX);
        left = left.checked_sub(len).ok_or(DownloadError::TooLarge { max: wanted.bytes_max })?;
        writing.block.extend_from_slice(&chunk);
        if writing.block.len() >= BLOCK_LEN {
            writing = writing.flush().await?;
        }
    }
    let Writing { file, hasher, .. } = writing.flush().await?;
    Ok((file, hasher.map(Hasher::finish)))
}

/// Downloads a text of so many bytes at most.
///
/// # Errors
/// [`DownloadError`].
pub async fn text(wanted: &Wanted<'_>) -> Result<String, DownloadError> {
    let response = ask(wanted).await?;
    let mut bytes = Vec::new();
    let mut body = response.bytes_stream();
    while let Some(chunk) = within(body.next()).await? {
        bytes.extend_from_slice(&chunk.map_err(connection)?);
        if u64::try_from(bytes.len()).is_ok_and(|len| len > wanted.bytes_max) {
            return Err(DownloadError::TooLarge { max: wanted.bytes_max });
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

async fn ask(wanted: &Wanted<'_>) -> Result<Response, DownloadError> {
    let request = wanted.client.get(wanted.url.clone()).headers(wanted.headers.clone());
    let response = within(request.send()).await?.map_err(connection)?;
    // A part of it, which nobody has asked for, is not it.
    if !response.status().is_success() || response.status() == StatusCode::PARTIAL_CONTENT {
        return Err(DownloadError::Status { status: response.status() });
    }
    if response.content_length().is_some_and(|len| len > wanted.bytes_max) {
        return Err(DownloadError::TooLarge { max: wanted.bytes_max });
    }
    Ok(response)
}

async fn within<T>(next: impl Future<Output = T>) -> Result<T, DownloadError> {
    tokio::time::timeout(SILENCE_MAX, next).await.map_err(|_| DownloadError::Silent(SILENCE_MAX))
}

fn connection(error: reqwest::Error) -> DownloadError {
    // The address that it tells may be secret.
    DownloadError::Connection { why: herdlet_base::error::in_full(&error.without_url()) }
}

/// A file in the making.
struct Writing {
    file: File,
    hasher: Option<Hasher>,
    block: Vec<u8>,
}

impl Writing {
    async fn flush(mut self) -> Result<Self, DownloadError> {
        let written = herdlet_runtime::off_thread(move || {
            if let Some(hasher) = &mut self.hasher {
                hasher.update(&self.block);
            }
            self.file.write_all(&self.block)?;
            self.block.clear();
            Ok(self)
        });
        written.await.map_err(std::io::Error::other).flatten().map_err(DownloadError::Write)
    }
}
