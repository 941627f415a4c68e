//! Parses streams of newline-delimited JSON.

use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use serde::de::DeserializeOwned;

use super::{ClientError, Effect, Result, broken};

/// The agent sends no longer lines.
const LINE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The lines of a stream, parsed.
pub(super) fn parsed<T, B>(
    pieces: impl Stream<Item = reqwest::Result<B>> + Send + 'static,
) -> impl Stream<Item = Result<T>>
where
    T: DeserializeOwned,
    B: AsRef<[u8]>,
{
    let mut rest = Vec::new();
    let pieces = pieces.map_err(|error| broken(&error, Effect::None));
    let lines = pieces.map(move |piece| {
        rest.extend_from_slice(piece?.as_ref());
        let Some(end) = rest.iter().rposition(|byte| *byte == b'\n') else {
            if rest.len() > LINE_BYTES_MAX {
                return Err(unfit("a line has no end".to_owned()));
            }
            return Ok(Vec::new());
        };
        let complete: Vec<u8> = rest.drain(..=end).collect();
        let lines = complete.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).map_err(|error| unfit(error.to_string()))).collect()
    });
    lines.flat_map(|lines: Result<Vec<T>>| match lines {
        Ok(lines) => stream::iter(lines.into_iter().map(Ok).collect::<Vec<_>>()),
        Err(error) => stream::iter(vec![Err(error)]),
    })
}

fn unfit(why: String) -> ClientError {
    ClientError::Answer { what: "/v1/herdlet/events".to_owned(), why }
}
