//! Calls over a connection, as the caller.
//!
//! In: a method and its arguments. Out: the reply, or what went wrong. Each call has a stream to itself while it lasts, since a peer
//! answers the requests of one stream one by one; afterwards the stream is kept for the next call, two of them at most, as stock clients do
//! (`hashicorp/nomad:helper/pool/pool.go`). A call that is dropped resets its stream.

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncRead as _, AsyncWriteExt as _, ReadBuf},
    time::Instant,
};

use crate::{
    codec::{self, Limits},
    error::{CallError, MessageError, ServerError},
    message::{self, PLAIN, Reader, Request, Response},
    mux::Mux,
    stream::Stream,
};

/// Streams that are kept for the next calls.
const IDLE: usize = 2;

/// A peer that can be called. Clones share everything.
#[derive(Debug, Clone)]
pub struct Caller {
    mux: Mux,
    idle: Arc<Mutex<Vec<Reader<Stream>>>>,
    seq: Arc<AtomicU64>,
}

/// The body of an answer.
#[derive(Clone, PartialEq, Eq)]
pub struct Reply(Vec<u8>);

/// Its size: a reply may hold secrets.
impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a reply of {} bytes", self.0.len())
    }
}

impl Reply {
    /// What it says.
    ///
    /// # Errors
    /// When it has other types.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, CallError> {
        codec::decode(&self.0).map_err(|error| MessageError::from(error).into())
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Caller {
    /// Calls go over this connection.
    #[must_use]
    pub fn new(mux: Mux) -> Self {
        Self { mux, idle: Arc::default(), seq: Arc::default() }
    }

    /// The connection.
    #[must_use]
    pub fn mux(&self) -> &Mux {
        &self.mux
    }

    /// Calls `Service.Method` and waits so long for the answer.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call<T: Serialize + ?Sized>(
        &self,
        method: &str,
        arguments: &T,
        wait: Duration,
    ) -> Result<Reply, CallError> {
        let seq = self.seq.fetch_add(1, Ordering::Relaxed) + 1;
        let mut request = Vec::with_capacity(512);
        // A stream that is new has its kind before the first request.
        request.push(PLAIN);
        let header = Request { seq, service_method: method.to_owned() };
        codec::encode_onto(&mut request, &header).map_err(MessageError::from)?;
        codec::encode_onto(&mut request, arguments).map_err(MessageError::from)?;
        let began = Instant::now();
        let (stream, request) = match self.kept() {
            Some(stream) => (stream, &request[1..]),
            None => (Reader::new(open(&self.mux, wait).await?), &request[..]),
        };
        let answer =
            tokio::time::timeout(wait.saturating_sub(began.elapsed()), self.exchange(stream, seq, request));
        answer.await.unwrap_or(Err(CallError::Late(wait)))
    }

    async fn exchange(
        &self,
        mut stream: Reader<Stream>,
        seq: u64,
        request: &[u8],
    ) -> Result<Reply, CallError> {
        let answered = answer(&mut stream, seq, request).await;
        match answered {
            Ok(Ok(reply)) => {
                self.keep(stream).await;
                Ok(reply)
            }
            // After some errors the peer closes the stream, so it is closed after all of them.
            Ok(Err(error)) => {
                let _ = stream.io().shutdown().await;
                Err(error.into())
            }
            Err(error) => Err(self.mux.lost().map_or(error, CallError::Lost)),
        }
    }

    /// A stream on which nothing has happened since its last answer.
    fn kept(&self) -> Option<Reader<Stream>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| idle.pop()).find_map(|mut stream| is_quiet(&mut stream).then_some(stream))
    }

    async fn keep(&self, mut stream: Reader<Stream>) {
        {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            // Where others wait for a stream, none is kept.
            if idle.len() < IDLE && !stream.has_more() && self.mux.has_room() {
                idle.push(stream);
                return;
            }
        }
        let _ = stream.io().shutdown().await;
    }
}

/// Opens a stream within this time. If that fails, nothing was sent.
pub(crate) async fn open(mux: &Mux, wait: Duration) -> Result<Stream, CallError> {
    match tokio::time::timeout(wait, mux.open()).await {
        Ok(opened) => opened.map_err(CallError::NotSent),
        Err(_) => Err(CallError::NoRoom(wait)),
    }
}

/// Nothing has come: neither bytes that nobody asked for nor an end.
fn is_quiet(stream: &mut Reader<Stream>) -> bool {
    let mut byte = [0];
    let read = Pin::new(stream.io())
        .poll_read(&mut Context::from_waker(Waker::noop()), &mut ReadBuf::new(&mut byte));
    matches!(read, Poll::Pending)
}

async fn answer(
    stream: &mut Reader<Stream>,
    seq: u64,
    request: &[u8],
) -> Result<Result<Reply, ServerError>, CallError> {
    message::write(stream.io(), request).await?;
    let header: Response = stream.read(Limits::HEADER).await?;
    if header.seq != seq {
        return Err(CallError::Sequence { expected: seq, found: header.seq });
    }
    let body = stream.next(Limits::BODY).await?.ok_or(MessageError::Ended)?;
    Ok(if header.error.is_empty() { Ok(Reply(body)) } else { Err(ServerError::new(header.error)) })
}

#[cfg(test)]
mod tests;
