//! Outgoing calls over a connection.
//!
//! In: a method and its arguments. Out: the reply or an error. A peer answers the requests of one stream in sequence, so each call uses a
//! stream of its own; afterwards up to two streams are kept for later calls, as stock clients do (`hashicorp/nomad:helper/pool/pool.go`).
//! Dropping a call resets its stream.

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

/// Idle streams kept for later calls.
const IDLE: usize = 2;

/// A peer that can be called. Clones share the connection.
#[derive(Debug, Clone)]
pub struct Caller {
    mux: Mux,
    idle: Arc<Mutex<Vec<Reader<Stream>>>>,
    seq: Arc<AtomicU64>,
}

/// The body of a response.
#[derive(Clone, PartialEq, Eq)]
pub struct Reply(Vec<u8>);

/// Prints only the size: a reply may hold secrets.
impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a reply of {} bytes", self.0.len())
    }
}

impl Reply {
    /// Decodes the reply.
    ///
    /// # Errors
    /// If it has another type.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, CallError> {
        codec::decode(&self.0).map_err(|error| MessageError::from(error).into())
    }

    /// The encoded bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Caller {
    /// Makes calls over this connection.
    #[must_use]
    pub fn new(mux: Mux) -> Self {
        Self { mux, idle: Arc::default(), seq: Arc::default() }
    }

    /// The connection.
    #[must_use]
    pub fn mux(&self) -> &Mux {
        &self.mux
    }

    /// Calls `Service.Method` and waits up to `wait` for the reply.
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
        // On a new stream, the kind byte precedes the first request.
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
            // The peer closes the stream after some errors, so close it after each.
            Ok(Err(error)) => {
                let _ = stream.io().shutdown().await;
                Err(error.into())
            }
            Err(error) => Err(self.mux.lost().map_or(error, CallError::Lost)),
        }
    }

    /// An idle stream on which nothing has arrived since its last reply.
    fn kept(&self) -> Option<Reader<Stream>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| idle.pop()).find_map(|mut stream| is_quiet(&mut stream).then_some(stream))
    }

    async fn keep(&self, mut stream: Reader<Stream>) {
        {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            // Keep none while another call waits for a stream.
            if idle.len() < IDLE && !stream.has_more() && self.mux.has_room() {
                idle.push(stream);
                return;
            }
        }
        let _ = stream.io().shutdown().await;
    }
}

/// Opens a stream within `wait`. If this fails, nothing was sent.
pub(crate) async fn open(mux: &Mux, wait: Duration) -> Result<Stream, CallError> {
    match tokio::time::timeout(wait, mux.open()).await {
        Ok(opened) => opened.map_err(CallError::NotSent),
        Err(_) => Err(CallError::NoRoom(wait)),
    }
}

/// Whether nothing has arrived: neither unexpected bytes nor the end.
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
