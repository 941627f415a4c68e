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
    reader: FrameReader<T>,
    writer: FrameSender<T>,
}

/// The reading half of one.
pub type FrameReader<T> = Reader<ReadHalf<T>>;

/// The writing half of one.
#[derive(Debug)]
pub struct FrameSender<T> {
    io: WriteHalf<T>,
    /// The last message.
    message: Vec<u8>,
    /// How much of it was sent.
    sent: usize,
}

impl<T: Io> Framed<T> {
    /// Messages from here on.
    pub fn new(io: T) -> Self {
        let (reader, writer) = tokio::io::split(io);
        Self { reader: Reader::new(reader), writer: FrameSender { io: writer, message: Vec::new(), sent: 0 } }
    }

    /// The arguments of a call, which must come: as large as [`Limits::ARGUMENTS`].
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub async fn arguments<M: DeserializeOwned>(&mut self) -> Result<M, MessageError> {
        self.read(Limits::ARGUMENTS).await
    }

    /// The next message, which must come.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub async fn read<M: DeserializeOwned>(&mut self, limits: Limits) -> Result<M, MessageError> {
        self.reader.read(limits).await
    }

    /// The next message within [`Limits::FRAME`]; none where the peer has finished.
    ///
    /// # Errors
    /// As [`Reader::next`], and when it is of another type.
    pub async fn receive<M: DeserializeOwned>(&mut self) -> Result<Option<M>, MessageError> {
        self.receive_within(Limits::FRAME).await
    }

    /// The same within other limits.
    ///
    /// # Errors
    /// As of [`Framed::receive`].
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
    /// As there.
    pub async fn send<M: Serialize + ?Sized>(&mut self, message: &M) -> Result<(), MessageError> {
        self.writer.send(message).await
    }

    /// Both ways, for who reads and writes at the same time.
    pub fn halves(&mut self) -> (&mut FrameReader<T>, FrameWriter<'_, T>) {
        (&mut self.reader, FrameWriter(&mut self.writer))
    }

    /// Both ways, for two tasks. With the second of them the stream is dropped.
    pub fn into_halves(self) -> (FrameReader<T>, FrameSender<T>) {
        (self.reader, self.writer)
    }

    /// Sends no more.
    ///
    /// # Errors
    /// When the peer is no more.
    pub async fn finish(&mut self) -> Result<(), MessageError> {
        self.writer.finish().await
    }
}

impl<T: Io> FrameSender<T> {
    /// Sends a message. Where this is dropped before it is done, the message goes whole, before the next one or the end, or not at all.
    ///
    /// # Errors
    /// When it can't be written, or the peer is no more.
    pub async fn send<M: Serialize + ?Sized>(&mut self, message: &M) -> Result<(), MessageError> {
        let message = codec::encode(message)?;
        self.drain().await?;
        (self.message, self.sent) = (message, 0);
        self.drain().await
    }

    /// Sends no more.
    ///
    /// # Errors
    /// When the peer is no more.
    pub async fn finish(&mut self) -> Result<(), MessageError> {
        self.drain().await?;
        Ok(self.io.shutdown().await?)
    }

    /// Sends what is left of the last message.
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

/// The writing half of a stream of messages, lent.
#[derive(Debug)]
pub struct FrameWriter<'a, T>(&'a mut FrameSender<T>);

impl<T: Io> FrameWriter<'_, T> {
    /// As [`Framed::send`].
    ///
    /// # Errors
    /// As there.
    pub async fn send<M: Serialize + ?Sized>(&mut self, message: &M) -> Result<(), MessageError> {
        self.0.send(message).await
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
    let began = Instant::now();
    let mut stream = call::open(mux, wait).await?;
    let begun = async {
        message::write(&mut stream, &[STREAMING]).await?;
        begin(stream, method, arguments).await
    };
    let begun = tokio::time::timeout(wait.saturating_sub(began.elapsed()), begun).await;
    begun.unwrap_or(Err(CallError::Late(wait))).map_err(|error| mux.lost().map_or(error, CallError::Lost))
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
    use std::collections::BTreeMap;

    use super::*;
    use crate::{codec::Value, recordings};

    /// Somebody else was faster, such as a resize of a terminal than its output. What was begun is not left in the middle.
    #[tokio::test(start_paused = true)]
    async fn a_send_that_is_dropped_leaves_no_half_message() {
        let (ours, theirs) = tokio::io::duplex(8);
        let (mut framed, mut peer) = (Framed::new(ours), Framed::new(theirs));
        let long = "x".repeat(100);
        let second = Duration::from_secs(1);
        assert!(tokio::time::timeout(second, framed.send(&long)).await.is_err());
        // Nor is what waits behind it.
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
        // Nor is it forgotten at the end.
        let (ours, theirs) = tokio::io::duplex(8);
        let (mut framed, mut peer) = (Framed::new(ours), Framed::new(theirs));
        assert!(tokio::time::timeout(second, framed.send(&long)).await.is_err());
        let (finished, heard) = tokio::join!(framed.finish(), peer.receive::<String>());
        finished.unwrap();
        assert_eq!(heard.unwrap().unwrap(), long);
        assert!(peer.receive::<String>().await.unwrap().is_none());
    }

    /// Of a command with many words, as of any other, the arguments are read.
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
