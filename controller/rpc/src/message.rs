//! Consecutive messages on a stream: RPC headers, and reading and writing whole messages.
//!
//! In: any byte stream. Out: whole messages within limits. Dropping a pending read loses nothing: the reader keeps the bytes that have
//! arrived.
//!
//! Facts: Go's `net/rpc/server.go` (`Request`, `Response`), `hashicorp/nomad:nomad/structs/streaming_rpc.go`.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::{
    codec::{self, Extent, Limits},
    error::MessageError,
};

/// First byte of a stream, or of a connection without streams: requests and responses follow.
pub(crate) const PLAIN: u8 = 1;
/// First byte likewise: one streaming RPC follows.
pub(crate) const STREAMING: u8 = 5;

/// The header before a call's arguments. Fields are in the order in which stock peers write them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Request {
    /// Chosen by the caller; the response repeats it.
    pub seq: u64,
    /// `Service.Method`.
    pub service_method: String,
}

/// The header before a call's reply.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Response {
    /// Empty if the call succeeded. Otherwise the body is an empty map.
    pub error: String,
    /// The request's `seq`.
    pub seq: u64,
    /// The request's method.
    pub service_method: String,
}

/// The first message of a streaming RPC.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct StreamHeader {
    /// `Service.Method`.
    pub method: String,
}

/// The response to a [`StreamHeader`]. The caller sends its arguments only after it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct StreamAck {
    /// Empty if the call is accepted.
    pub error: String,
}

/// Reads whole messages from a byte stream.
#[derive(Debug)]
pub struct Reader<R> {
    io: R,
    /// Bytes that have arrived but are not yet returned.
    buffer: Vec<u8>,
}

/// Bytes to reserve per read within a message.
const CHUNK: usize = 16 * 1024;

/// Bytes to reserve before a message begins: calls wait long, and most replies are short.
const WAITING: usize = 1024;

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Reads from the current position of `io`.
    pub fn new(io: R) -> Self {
        Self { io, buffer: Vec::new() }
    }

    /// The bytes of the next message, or `None` if the stream ends between two messages.
    ///
    /// # Errors
    /// If the stream ends within a message or is reset, or the message exceeds a limit. Nothing more can be read after an error.
    pub async fn next(&mut self, limits: Limits) -> Result<Option<Vec<u8>>, MessageError> {
        let mut extent = Extent::new(limits);
        loop {
            if let Some(length) = extent.of(&self.buffer)? {
                // Hand out the buffer itself, so that no large allocation remains after a large message.
                let rest = self.buffer.split_off(length);
                let mut message = std::mem::replace(&mut self.buffer, rest);
                if message.capacity() > 2 * length {
                    message.shrink_to_fit();
                }
                return Ok(Some(message));
            }
            self.buffer.reserve(if self.buffer.is_empty() { WAITING } else { CHUNK });
            if self.io.read_buf(&mut self.buffer).await? == 0 {
                return if self.buffer.is_empty() { Ok(None) } else { Err(MessageError::Ended) };
            }
        }
    }

    /// Reads the next message; the end of the stream is an error.
    ///
    /// # Errors
    /// As [`Reader::next`]; also if the stream ends before the message, or the message has another type.
    pub async fn read<T: DeserializeOwned>(&mut self, limits: Limits) -> Result<T, MessageError> {
        let message = self.next(limits).await?.ok_or(MessageError::Ended)?;
        Ok(codec::decode_within(&message, limits)?)
    }

    /// Whether bytes beyond the last returned message have arrived.
    pub(crate) fn has_more(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// The underlying stream.
    pub(crate) fn io(&mut self) -> &mut R {
        &mut self.io
    }
}

/// Writes all bytes and flushes.
///
/// # Errors
/// If the stream is closed or cannot be written to.
pub(crate) async fn write(io: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Result<(), MessageError> {
    io.write_all(bytes).await?;
    Ok(io.flush().await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recordings;

    /// Encoding the headers of all recorded calls gives the bytes that stock peers sent.
    #[test]
    fn recorded_headers_round_trip() {
        let mut calls = 0;
        for message in recordings::messages() {
            let length = Extent::new(Limits::HEADER).of(&message.bytes);
            let header = || &message.bytes[..length.unwrap().unwrap()];
            let same = match &message.kind[..] {
                "request" => {
                    let read: Request = codec::decode(header()).unwrap();
                    assert_eq!((read.seq, &read.service_method), (message.seq, &message.method), "{message}");
                    codec::encode(&read).unwrap()
                }
                "response" => {
                    let read: Response = codec::decode(header()).unwrap();
                    assert_eq!((read.seq, &read.service_method), (message.seq, &message.method), "{message}");
                    codec::encode(&read).unwrap()
                }
                "header" => codec::encode(&codec::decode::<StreamHeader>(header()).unwrap()).unwrap(),
                "ack" => codec::encode(&codec::decode::<StreamAck>(header()).unwrap()).unwrap(),
                _ => continue,
            };
            assert!(same == header(), "{message} is written differently");
            calls += 1;
        }
        assert!(calls > 400, "{calls}");
    }

    /// A process with hundreds of nodes waits for hundreds of replies at once.
    #[tokio::test(start_paused = true)]
    async fn waiting_reader_holds_little_memory() {
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let mut reader = Reader::new(ours);
        let wait = tokio::time::timeout(std::time::Duration::from_secs(1), reader.next(Limits::BODY));
        assert!(wait.await.is_err());
        assert!(reader.buffer.capacity() <= WAITING);
        for length in [0, 10, 2_000, 20_000, 200_000] {
            theirs.write_all(&codec::encode(&"x".repeat(length)).unwrap()).await.unwrap();
            let message = reader.next(Limits::BODY).await.unwrap().unwrap();
            assert!(message.capacity() <= 2 * message.len(), "{length}: {}", message.capacity());
            assert_eq!(reader.buffer.capacity(), 0);
        }
    }

    #[tokio::test]
    async fn messages_are_read_whole_from_any_pieces() {
        let bytes: Vec<u8> =
            recordings::messages().into_iter().take(15).flat_map(|message| message.bytes).collect();
        let pieces = bytes.chunks(3).map(Ok::<_, std::io::Error>);
        let mut reader = Reader::new(tokio_util::io::StreamReader::new(futures_util::stream::iter(pieces)));
        let mut read = Vec::new();
        while let Some(message) = reader.next(Limits::BODY).await.unwrap() {
            read.extend(message);
        }
        assert!(read == bytes);
        let mut cut = Reader::new(&bytes[..5]);
        assert!(matches!(cut.next(Limits::BODY).await, Err(MessageError::Ended)));
    }
}
