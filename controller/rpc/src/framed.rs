//! Streaming calls: messages both ways on a stream of their own, such as logs that are followed, or a terminal.
//!
//! ```text
//! caller                              called
//! {"Method": …}          ──►
//!                        ◄──          {"Error": ""}
//! arguments              ──►
//! whatever it is about   ◄─►          whatever it is about, mostly `StreamFrame`s
//! end                    ◄─►          end
//! ```
//!
//! Facts: `hashicorp/nomad:nomad/structs/streaming_rpc.go`, `command/agent/fs_endpoint.go`, and recordings.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::io::{AsyncWriteExt as _, ReadHalf, WriteHalf};

use crate::{
    codec::{self, Limits},
    error::{CallError, MessageError, ServerError},
    message::{self, Reader, STREAMING, StreamAck, StreamHeader},
    mux::{Io, Mux},
    stream::Stream,
};

/// What is sent to the caller of most streaming methods: Nomad's `StreamErrWrapper`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct StreamFrame {
    /// What went wrong; nothing follows it.
    pub error: Option<StreamError>,
    /// Bytes of a file, or JSON, as the method says. None at all is a sign of life.
    #[serde(with = "codec::bytes")]
    pub payload: Vec<u8>,
}

/// What went wrong with a streaming call: Nomad's `RpcError`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct StreamError {
    /// In words.
    pub message: String,
    /// As a code of HTTP.
    pub code: Option<i64>,
}

/// The size of the payload: it is somebody's log, or what they type.
impl fmt::Debug for StreamFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frame of {} bytes, {:?}", self.payload.len(), self.error)
    }
}

/// A stream of messages. Dropped before it was finished, it is reset.
#[derive(Debug)]
pub struct Framed<T> {
    reader: Reader<ReadHalf<T>>,
    writer: WriteHalf<T>,
}

/// The reading half of one.
pub type FrameReader<T> = Reader<ReadHalf<T>>;

impl<T: Io> Framed<T> {
    /// Messages from here on.
    pub fn new(io: T) -> Self {
        let (reader, writer) = tokio::io::split(io);
        Self { reader: Reader::new(reader), writer }
    }

    /// The next message, which must come.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub async fn read<M: DeserializeOwned>(&mut self, limits: Limits) -> Result<M, MessageError> {
        self.reader.read(limits).await
    }

    /// The next message; none where the peer has finished.
    ///
    /// # Errors
    /// As [`Reader::next`], and when it is of another type.
    pub async fn receive<M: DeserializeOwned>(&mut self) -> Result<Option<M>, MessageError> {
        let message = self.reader.next(Limits::FRAME).await?;
        message.map(|message| Ok(codec::decode(&message)?)).transpose()
    }

    /// Sends a message.
    ///
    /// # Errors
    /// When it can't be written, or the peer is no more.
    pub async fn send<M: Serialize + ?Sized>(&mut self, message: &M) -> Result<(), MessageError> {
        message::write(&mut self.writer, &codec::encode(message)?).await
    }

    /// Both ways, for who reads and writes at the same time.
    pub fn halves(&mut self) -> (&mut FrameReader<T>, FrameWriter<'_, T>) {
        (&mut self.reader, FrameWriter(&mut self.writer))
    }

    /// Sends no more.
    ///
    /// # Errors
    /// When the peer is no more.
    pub async fn finish(&mut self) -> Result<(), MessageError> {
        Ok(self.writer.shutdown().await?)
    }
}

/// The writing half of a stream of messages.
#[derive(Debug)]
pub struct FrameWriter<'a, T>(&'a mut WriteHalf<T>);

impl<T: Io> FrameWriter<'_, T> {
    /// As [`Framed::send`].
    ///
    /// # Errors
    /// As there.
    pub async fn send<M: Serialize + ?Sized>(&mut self, message: &M) -> Result<(), MessageError> {
        message::write(&mut *self.0, &codec::encode(message)?).await
    }
}

/// Begins a streaming call on a stream of its own, and waits so long until it is accepted.
///
/// # Errors
/// When it isn't.
pub async fn stream<A: Serialize + ?Sized>(
    mux: &Mux,
    method: &str,
    arguments: &A,
    wait: Duration,
) -> Result<Framed<Stream>, CallError> {
    let begun = async {
        let mut stream = mux.open().await?;
        message::write(&mut stream, &[STREAMING]).await?;
        begin(stream, method, arguments).await
    };
    let begun = tokio::time::timeout(wait, begun).await.unwrap_or(Err(CallError::Late(wait)));
    begun.map_err(|error| mux.lost().map_or(error, CallError::Lost))
}

/// Begins a streaming call on a stream, or a connection, whose kind was said.
///
/// # Errors
/// When it isn't accepted.
pub async fn begin<T: Io, A: Serialize + ?Sized>(
    io: T,
    method: &str,
    arguments: &A,
) -> Result<Framed<T>, CallError> {
    let mut framed = Framed::new(io);
    framed.send(&StreamHeader { method: method.to_owned() }).await?;
    let StreamAck { error } = framed.read(Limits::HEADER).await?;
    if !error.is_empty() {
        let _ = framed.finish().await;
        return Err(ServerError::new(error).into());
    }
    framed.send(arguments).await?;
    Ok(framed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{codec::Value, recordings};

    /// What nodes were recorded to send on streams is read as what it is.
    #[test]
    fn recorded_frames_are_frames() {
        let (mut frames, mut errors) = (0, 0);
        for message in recordings::messages().into_iter().filter(|message| message.kind == "frame") {
            let value: Value = codec::decode(&message.bytes).unwrap();
            // Who asked for a terminal sends another kind.
            let Some(payload) = value.get("Payload") else { continue };
            let frame: StreamFrame = codec::decode_within(&message.bytes, Limits::FRAME).unwrap();
            assert_eq!(codec::encode(payload).unwrap().len() > 1, !frame.payload.is_empty(), "{message}");
            let again: StreamFrame = codec::decode(&codec::encode(&frame).unwrap()).unwrap();
            assert_eq!(again, frame, "{message}");
            errors += usize::from(frame.error.is_some_and(|error| !error.message.is_empty()));
            frames += 1;
        }
        assert!(frames > 100 && errors > 5, "{frames} frames, {errors} errors");
    }
}
