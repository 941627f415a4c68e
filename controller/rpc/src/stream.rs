//! One of the streams of a connection: bytes both ways, with an end of its own for each way.
//!
//! In: bytes to send. Out: bytes that came. Dropped before it was finished, it is reset: the peer learns at once that nobody waits.

use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_util::io::{AsyncRead as _, AsyncWrite as _};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::OwnedSemaphorePermit,
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Bytes that are read at a time. What is read into has to be zeroed before.
const CHUNK: usize = 16 * 1024;

/// A stream. Its room in the connection is given back when it is dropped.
pub struct Stream {
    inner: yamux::Stream,
    finished: bool,
    /// Resolves when we close the connection: the crate wakes nobody then.
    gone: Pin<Box<WaitForCancellationFutureOwned>>,
    _room: OwnedSemaphorePermit,
}

impl Stream {
    pub(crate) fn new(inner: yamux::Stream, room: OwnedSemaphorePermit, gone: CancellationToken) -> Self {
        Self { inner, finished: false, gone: Box::pin(gone.cancelled_owned()), _room: room }
    }

    /// What the stream itself says, or that its connection is no more.
    fn or_gone<T>(&mut self, done: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if done.is_pending() && self.gone.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        done
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

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = buf.remaining().min(CHUNK);
        let unfilled = buf.initialize_unfilled_to(room);
        let read = Pin::new(&mut self.inner).poll_read(cx, unfilled);
        let read = ready!(self.or_gone(read, cx))?;
        // What ends both ways without us having finished was reset, or lost with its connection.
        if read == 0 && room > 0 && self.inner.is_closed() && !self.finished {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        buf.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.or_gone(written, cx)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    /// Ends our way. Once: to a second FIN, which the crate would send, Go answers by closing the whole connection.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.finished {
            ready!(Pin::new(&mut self.inner).poll_close(cx))?;
            self.finished = true;
        }
        Poll::Ready(Ok(()))
    }
}
