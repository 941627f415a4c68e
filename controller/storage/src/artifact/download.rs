//! Downloads the body of a response into a file.
//!
//! In: a URL, header fields, an empty file, limits. Out: the file with the complete body, and its checksum. A truncated
//! response is an error wherever it ends. Errors show no more of the address than
//! [`Source::redacted`](herdlet_base::artifact::source::Source::redacted).

use std::{fs::File, io::Write as _, time::Duration};

use futures_util::StreamExt as _;
use herdlet_base::artifact::checksum::Hasher;
use reqwest::{
    Client, Response, StatusCode, Url,
    header::{HeaderMap, HeaderName, HeaderValue},
};

/// Errors of downloads.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// A header field is invalid. Its value may be secret.
    #[error("send header field {name:?}: it is not valid")]
    Header { name: String },
    /// The server did not return the file.
    #[error("the server answers {status}")]
    Status { status: StatusCode },
    /// Connecting failed, or the connection was lost.
    #[error("{why}")]
    Connection { why: String },
    /// No data has arrived for this long.
    #[error("the server has sent nothing for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("it is larger than {max} bytes")]
    TooLarge { max: u64 },
    /// The file can't be written.
    #[error("write it: {0}")]
    Write(#[source] std::io::Error),
}

/// A request, and the size limit of its response.
pub struct DownloadRequest<'a> {
    pub client: &'a Client,
    pub url: &'a Url,
    pub headers: &'a HeaderMap,
    pub bytes_max: u64,
}

/// Limit for a silent server; the caller limits the total time.
const SILENCE_MAX: Duration = Duration::from_secs(300);

/// Block size for writing.
const BLOCK_LEN: usize = 256 * 1024;

/// Converts header fields.
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

/// Downloads into `file` and returns it with the checksum, if one was requested.
///
/// # Errors
/// [`DownloadError`]; the content of the file must then be ignored.
pub async fn into_file(
    wanted: &DownloadRequest<'_>,
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

/// Downloads a text of at most `bytes_max` bytes.
///
/// # Errors
/// [`DownloadError`].
pub async fn text(wanted: &DownloadRequest<'_>) -> Result<String, DownloadError> {
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

async fn ask(wanted: &DownloadRequest<'_>) -> Result<Response, DownloadError> {
    let request = wanted.client.get(wanted.url.clone()).headers(wanted.headers.clone());
    let response = within(request.send()).await?.map_err(connection)?;
    // Partial content was not requested, and is not the whole file.
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
    // The URL in the error may be secret.
    DownloadError::Connection { why: herdlet_base::error::in_full(&error.without_url()) }
}

/// A file being written.
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
