//! Streaming calls: messages in both directions on one stream, such as followed logs or a terminal.
//!
//! ```text
//! caller                              called
//! {"Method": …}          ──►
//!                        ◄──          {"Error": ""}
//! arguments              ──►
//! method-specific        ◄─►          method-specific, mostly `StreamFrame`s
//! end                    ◄─►          end
//! ```
//!
//! Facts: `hashicorp/nomad:nomad/structs/streaming_rpc.go`, `command/agent/fs_endpoint.go`, and recordings.

use std::{fmt, io, time::Duration};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncWriteExt as _, ReadHalf, WriteHalf},
    time::Instant,
};

use crate::{
    call,
    codec::{self, Limits},
    error::{CallError, MessageError, ServerError},
    message::{self, Reader, STREAMING, StreamAck, StreamHeader},
    mux::{Io, Mux},
    stream::Stream,
};

/// A message to the caller of most streaming methods: Nomad's `StreamErrWrapper`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct StreamFrame {
    /// The error, if any; it is the last message.
    pub error: Option<StreamError>,
    /// Bytes of a file, or JSON, depending on the method. An empty payload is a keepalive.
    #[serde(with = "codec::bytes")]
    pub payload: Vec<u8>,
}

/// The error of a streaming call: Nomad's `RpcError`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct StreamError {
    /// The error text.
    pub message: String,
    /// The HTTP status code.
    pub code: Option<i64>,
}

/// Prints only the size of the payload: it holds a user's logs or keystrokes.
impl fmt::Debug for StreamFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frame of {} bytes, {:?}", self.payload.len(), self.error)
    }
}

/// A stream of messages. Dropping it before [`Framed::finish`] resets it.
#[derive(Debug)]
pub struct Framed<T> {
    reader: FrameReader<T>,
    writer: FrameSender<T>,
}

/// The reading half of a [`Framed`].
pub type FrameReader<T> = Reader<ReadHalf<T>>;

/// The writing half of a [`Framed`].
#[derive(Debug)]
pub struct FrameSender<T> {
    io: WriteHalf<T>,
    /// The last message, encoded.
    message: Vec<u8>,
    /// Bytes of it already sent.
    sent: usize,
}

impl<T: Io> Framed<T> {
    /// Frames an open stream.
    pub fn new(io: T) -> Self {
        let (reader, writer) = tokio::io::split(io);
        Self { reader: Reader::new(reader), writer: FrameSender { io: writer, message: Vec::new(), sent: 0 } }
    }

    /// Reads the arguments of a call, up to [`Limits::ARGUMENTS`].
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub async fn arguments<M: DeserializeOwned>(&mut self) -> Result<M, MessageError> {
        self.read(Limits::ARGUMENTS).await
    }

    /// Reads the next message; the end of the stream is an error.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub async fn read<M: DeserializeOwned>(&mut self, limits: Limits) -> Result<M, MessageError> {
        self.reader.read(limits).await
    }

    /// Reads the next message within [`Limits::FRAME`], or `None` if the peer has finished.
    ///
    /// # Errors
    /// As [`Reader::next`]; also if the message has another type.
    pub async fn receive<M: DeserializeOwned>(&mut self) -> Result<Option<M>, MessageError> {
        self.receive_within(Limits::FRAME).await
    }

    /// As [`Framed::receive`], with other limits.
    ///
    /// # Errors
    /// As [`Framed::receive`].
    pub async fn receive_within<M: DeserializeOwned>(
        &mut self,
        limits: Limits,
    ) -> Result<Option<M>, MessageError> {
        let message = self.reader.next(limits).await?;
        message.map(|message| Ok(codec::decode_within(&message, limits)?)).transpose()
    }

    /// As [`FrameSender::send`].
    ///
    /// # Errors
    /// As [`FrameSender::send`].
    pub async fn send<M: Serialize + ?Sized>(&mut self, message: &M) -> Result<(), MessageError> {
        self.writer.send(message).await
    }

    /// Borrows both halves, to read and write at the same time.
    pub fn halves(&mut self) -> (&mut FrameReader<T>, FrameWriter<'_, T>) {
        (&mut self.reader, FrameWriter(&mut self.writer))
    }

    /// Splits into halves for two tasks. The stream is dropped with the second half.
    pub fn into_halves(self) -> (FrameReader<T>, FrameSender<T>) {
        (self.reader, self.writer)
    }

    /// Ends our direction.
    ///
    /// # Errors
    /// If the connection is lost.
    pub async fn finish(&mut self) -> Result<(), MessageError> {
        self.writer.finish().await
    }
}

impl<T: Io> FrameSender<T> {
    /// Sends a message. If this future is dropped early, the message is later sent whole (before the next one or the end) or not at all.
    ///
    /// # Errors
    /// If the message cannot be encoded, or the connection is lost.
    pub async fn send<M: Serialize + ?Sized>(&mut self, message: &M) -> Result<(), MessageError> {
        let message = codec::encode(message)?;
        self.drain().await?;
        (self.message, self.sent) = (message, 0);
        self.drain().await
    }

    /// Ends our direction.
    ///
    /// # Errors
    /// If the connection is lost.
    pub async fn finish(&mut self) -> Result<(), MessageError> {
        self.drain().await?;
        Ok(self.io.shutdown().await?)
    }

    /// Sends the rest of the last message.
    async fn drain(&mut self) -> Result<(), MessageError> {
        while let Some(rest @ [_, ..]) = self.message.get(self.sent..) {
            match self.io.write(rest).await? {
                0 => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                sent => self.sent += sent,
            }
        }
        self.message = Vec::new();
        Ok(self.io.flush().await?)
    }
}

/// A borrowed writing half.
#[derive(Debug)]
pub struct FrameWriter<'a, T>(&'a mut FrameSender<T>);

impl<T: Io> FrameWriter<'_, T> {
    /// As [`Framed::send`].
    ///
    /// # Errors
    /// As [`Framed::send`].
    pub async fn send<M: Serialize + ?Sized>(&mut self, message: &M) -> Result<(), MessageError> {
        self.0.send(message).await
    }
}

/// Starts a streaming call on a new stream and waits up to `wait` for the peer to accept it.
///
/// # Errors
/// If the call is not accepted in time.
pub async fn stream<A: Serialize + ?Sized>(
    mux: &Mux,
    method: &str,
    arguments: &A,
    wait: Duration,
) -> Result<Framed<Stream>, CallError> {
    let began = Instant::now();
    let mut stream = call::open(mux, wait).await?;
    let begun = async {
        message::write(&mut stream, &[STREAMING]).await?;
        begin(stream, method, arguments).await
    };
    let begun = tokio::time::timeout(wait.saturating_sub(began.elapsed()), begun).await;
    begun.unwrap_or(Err(CallError::Late(wait))).map_err(|error| mux.lost().map_or(error, CallError::Lost))
}

/// Starts a streaming call on a stream or connection whose kind byte was already sent.
///
/// # Errors
/// If the call is not accepted.
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
    use std::collections::BTreeMap;

    use super::*;
    use crate::{codec::Value, recordings};

    /// A `select!` drops a send that lost, such as terminal output to a resize. The started message must not stay incomplete.
    #[tokio::test(start_paused = true)]
    async fn a_send_that_is_dropped_leaves_no_half_message() {
        let (ours, theirs) = tokio::io::duplex(8);
        let (mut framed, mut peer) = (Framed::new(ours), Framed::new(theirs));
        let long = "x".repeat(100);
        let second = Duration::from_secs(1);
        assert!(tokio::time::timeout(second, framed.send(&long)).await.is_err());
        // A message waiting behind it is dropped whole.
        assert!(tokio::time::timeout(second, framed.send("lost")).await.is_err());
        let sends = async {
            framed.send("next").await.unwrap();
            framed.finish().await.unwrap();
        };
        let hears = async {
            let mut heard = Vec::new();
            while let Some(message) = peer.receive::<String>().await.unwrap() {
                heard.push(message);
            }
            heard
        };
        assert_eq!(tokio::join!(sends, hears).1, [&long[..], "next"]);
        // The message is also completed by `finish`.
        let (ours, theirs) = tokio::io::duplex(8);
        let (mut framed, mut peer) = (Framed::new(ours), Framed::new(theirs));
        assert!(tokio::time::timeout(second, framed.send(&long)).await.is_err());
        let (finished, heard) = tokio::join!(framed.finish(), peer.receive::<String>());
        finished.unwrap();
        assert_eq!(heard.unwrap().unwrap(), long);
        assert!(peer.receive::<String>().await.unwrap().is_none());
    }

    /// A long command exceeds the limit for frames, but not the one for arguments.
    #[tokio::test]
    async fn arguments_may_be_larger_than_frames() {
        let (ours, theirs) = tokio::io::duplex(4096);
        let (mut framed, mut peer) = (Framed::new(ours), Framed::new(theirs));
        let command: Vec<_> = (0..100).map(|word| word.to_string()).collect();
        for _ in 0..2 {
            framed.send(&BTreeMap::from([("Cmd", &command)])).await.unwrap();
        }
        let read: BTreeMap<String, Vec<String>> = peer.arguments().await.unwrap();
        assert_eq!(read["Cmd"], command);
        assert!(matches!(peer.receive::<Value>().await, Err(MessageError::Limit(_))));
    }

    #[tokio::test]
    async fn two_tasks_read_and_write() {
        let (ours, theirs) = tokio::io::duplex(16);
        let (mut reader, mut sender) = Framed::new(ours).into_halves();
        let mut peer = Framed::new(theirs);
        tokio::spawn(async move {
            for at in 0..100 {
                sender.send(&at).await.unwrap();
            }
            sender.finish().await.unwrap();
        });
        let reads = tokio::spawn(async move { reader.read::<String>(Limits::FRAME).await.unwrap() });
        peer.send("hello").await.unwrap();
        for at in 0..100 {
            assert_eq!(peer.receive::<i32>().await.unwrap(), Some(at));
        }
        assert!(peer.receive::<i32>().await.unwrap().is_none());
        assert_eq!(reads.await.unwrap(), "hello");
    }

    /// Decodes the frames that recorded nodes sent.
    #[test]
    fn recorded_frames_are_frames() {
        let (mut frames, mut errors) = (0, 0);
        for message in recordings::messages().into_iter().filter(|message| message.kind == "frame") {
            let value: Value = codec::decode(&message.bytes).unwrap();
            // Terminal sessions use another type of message.
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
