//! Messages on a stream, one after another: what is before the body of an RPC, and how whole messages are read and written.
//!
//! In: any stream of bytes. Out: whole messages within bounds. A reader that is dropped while it waits, and one that goes on later,
//! lose nothing: what has arrived is kept.
//!
//! Facts: Go's `net/rpc/server.go` (`Request`, `Response`), `hashicorp/nomad:nomad/structs/streaming_rpc.go`.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::{
    codec::{self, Extent, Limits},
    error::MessageError,
};

/// The first byte of a stream, or of a connection without streams: requests and responses.
pub(crate) const PLAIN: u8 = 1;
/// Likewise: one streaming RPC.
pub(crate) const STREAMING: u8 = 5;

/// What is before the arguments of a call. Fields in the order in which stock peers write them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Request {
    /// Chosen by the caller, repeated by the answer.
    pub seq: u64,
    /// `Service.Method`.
    pub service_method: String,
}

/// What is before the reply to a call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Response {
    /// Empty where the call succeeded. Else the body is an empty map.
    pub error: String,
    /// That of the request.
    pub seq: u64,
    /// That of the request.
    pub service_method: String,
}

/// What a streaming RPC begins with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct StreamHeader {
    /// `Service.Method`.
    pub method: String,
}

/// The answer to it; the arguments follow only then.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct StreamAck {
    /// Empty where the call is accepted.
    pub error: String,
}

/// Reads messages.
#[derive(Debug)]
pub struct Reader<R> {
    io: R,
    /// What has arrived and was not given out.
    buffer: Vec<u8>,
}

/// Bytes that are read at a time within a message.
const CHUNK: usize = 16 * 1024;

/// Bytes that are held for what hasn't begun to come: calls wait long, and most answers are short.
const WAITING: usize = 1024;

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Reads from here on.
    pub fn new(io: R) -> Self {
        Self { io, buffer: Vec::new() }
    }

    /// The bytes of the next message. None: the stream ended, and not within one.
    ///
    /// # Errors
    /// When the stream ended within a message or was reset, and when the message breaks a bound: then nothing more can be read.
    pub async fn next(&mut self, limits: Limits) -> Result<Option<Vec<u8>>, MessageError> {
        let mut extent = Extent::new(limits);
        loop {
            if let Some(length) = extent.of(&self.buffer)? {
                // The buffer goes with the message: after a large one nothing large is kept.
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

    /// The next message, which must come.
    ///
    /// # Errors
    /// As [`Reader::next`]; when the stream ends before it, and when it is of another type.
    pub async fn read<T: DeserializeOwned>(&mut self, limits: Limits) -> Result<T, MessageError> {
        let message = self.next(limits).await?.ok_or(MessageError::Ended)?;
        Ok(codec::decode_within(&message, limits)?)
    }

    /// Whether something has arrived that nobody has asked for.
    pub(crate) fn has_more(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// What is read from.
    pub(crate) fn io(&mut self) -> &mut R {
        &mut self.io
    }
}

/// Writes whole messages at once.
///
/// # Errors
/// When the stream is no more, or can't be written to.
pub(crate) async fn write(io: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Result<(), MessageError> {
    io.write_all(bytes).await?;
    Ok(io.flush().await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recordings;

    /// The headers of all recorded calls are written as stock peers have written them.
    #[test]
    fn recorded_headers_are_written_as_they_were_read() {
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

    /// Hundreds of nodes in one process wait for hundreds of answers.
    #[tokio::test(start_paused = true)]
    async fn who_waits_holds_little_and_so_does_what_came() {
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
    async fn messages_come_whole_whatever_the_pieces() {
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
