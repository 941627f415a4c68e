//! One of the streams of a connection: bytes both ways, with an end of its own for each way.
//!
//! In: bytes to send. Out: bytes that came. An end is one that the peer has said: a stream that was reset, or cut with its connection, is
//! an error. Dropped before it was finished, it is reset: the peer learns at once that nobody waits. Dropped afterwards it tells the peer
//! nothing more, which may send what fits the window, and then waits.

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

use crate::frame::Seen;

/// Bytes that are read at a time. What is read into has to be zeroed before.
const CHUNK: usize = 16 * 1024;

/// A stream. Its room in the connection is given back when it is dropped.
pub struct Stream {
    inner: yamux::Stream,
    finished: bool,
    id: u32,
    seen: Arc<Seen>,
    reading: Gone,
    writing: Gone,
    _room: OwnedSemaphorePermit,
}

/// Resolves when we close the connection: the crate wakes nobody then. One for each way, since each may have a task of its own, and only
/// the last that has asked is woken.
type Gone = Pin<Box<WaitForCancellationFutureOwned>>;

impl Stream {
    pub(crate) fn new(
        inner: yamux::Stream,
        room: OwnedSemaphorePermit,
        seen: Arc<Seen>,
        gone: &CancellationToken,
    ) -> Self {
        // The crate tells its number to nobody but readers of logs.
        let id = inner.id().to_string().parse().unwrap_or_default();
        seen.heed(id);
        let gone = || Box::pin(gone.clone().cancelled_owned());
        Self { inner, finished: false, id, seen, reading: gone(), writing: gone(), _room: room }
    }

    /// Acknowledges a stream that the peer has opened, now and not with the first answer: Go closes the *whole* connection if one isn't
    /// within 75 s (`hashicorp/yamux:session.go`, `StreamOpenTimeout`). An empty write is a frame with nothing but the ACK in it.
    pub(crate) fn acknowledge(&mut self) {
        let nobody = std::task::Waker::noop();
        // There is room for ten frames in a stream that is new.
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
        self.seen.forget(self.id);
    }
}

/// What the stream itself says, or that its connection is no more.
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

    /// Ends our way. Once: to a second FIN, which the crate would send, Go answers by closing the whole connection.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.finished {
            let closed = Pin::new(&mut self.inner).poll_close(cx);
            ready!(or_gone(closed, &mut self.writing, cx))?;
            self.finished = true;
        }
        Poll::Ready(Ok(()))
    }
}
