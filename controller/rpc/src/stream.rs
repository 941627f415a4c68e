//! One stream of a connection; each direction ends independently.
//!
//! In: bytes to send. Out: bytes received. The stream only ends where the peer finished it: a reset, or a lost connection, is an error.
//! Dropping a stream before finishing it resets it, so the peer learns at once that nobody waits. Dropping it afterwards sends nothing: the
//! peer can still send until the window is full.

use std::{
    fmt, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_util::io::{AsyncRead as _, AsyncWrite as _};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::OwnedSemaphorePermit,
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::frame::ConnectionState;

/// Bytes to read at a time. The buffer has to be zeroed first.
const CHUNK: usize = 16 * 1024;

/// A stream. Dropping it releases its permit.
pub struct Stream {
    inner: yamux::Stream,
    finished: bool,
    id: u32,
    seen: Arc<ConnectionState>,
    reading: Gone,
    writing: Gone,
    _room: OwnedSemaphorePermit,
}

/// Resolves when we close the connection: the crate does not wake streams then. Each direction has its own, since each may belong to a
/// different task, and a shared future would wake only the last one.
type Gone = Pin<Box<WaitForCancellationFutureOwned>>;

impl Stream {
    pub(crate) fn new(
        inner: yamux::Stream,
        room: OwnedSemaphorePermit,
        seen: Arc<ConnectionState>,
        gone: &CancellationToken,
    ) -> Self {
        // The crate exposes the number only through `Display`.
        let id = inner.id().to_string().parse().unwrap_or_default();
        seen.heed(id);
        let gone = || Box::pin(gone.clone().cancelled_owned());
        Self { inner, finished: false, id, seen, reading: gone(), writing: gone(), _room: room }
    }

    /// Acknowledges a stream that the peer has opened, without waiting for the first data: Go closes the *whole* connection if a stream
    /// is not acknowledged within 75 s (`hashicorp/yamux:session.go`, `StreamOpenTimeout`). An empty write sends a frame with only the
    /// ACK flag.
    pub(crate) fn acknowledge(&mut self) {
        let nobody = std::task::Waker::noop();
        // A new stream has room for ten frames.
        let _ = Pin::new(&mut self.inner).poll_write(&mut Context::from_waker(nobody), &[]);
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.inner.id())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.seen.remove_stream(self.id);
    }
}

/// The stream's own result, or an error if the connection is closed.
fn or_gone<T>(done: Poll<io::Result<T>>, gone: &mut Gone, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
    if done.is_pending() && gone.as_mut().poll(cx).is_ready() {
        return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
    }
    done
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = buf.remaining().min(CHUNK);
        let unfilled = buf.initialize_unfilled_to(room);
        let read = Pin::new(&mut self.inner).poll_read(cx, unfilled);
        let read = ready!(or_gone(read, &mut self.reading, cx))?;
        if read == 0 && room > 0 && !self.seen.is_finished(self.id) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        buf.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        or_gone(written, &mut self.writing, cx)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        or_gone(flushed, &mut self.writing, cx)
    }

    /// Ends our direction, once: the crate would send a second FIN, and Go then closes the whole connection.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.finished {
            let closed = Pin::new(&mut self.inner).poll_close(cx);
            ready!(or_gone(closed, &mut self.writing, cx))?;
            self.finished = true;
        }
        Poll::Ready(Ok(()))
    }
}
