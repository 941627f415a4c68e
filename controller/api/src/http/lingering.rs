//! A stream that closes without losing its last answer.
//!
//! In: a stream. Out: a stream that, after the end of our side, reads and discards what the peer still sends for a moment. A
//! socket closed with unread data is reset, and the peer would get an error instead of an answer that it had not read yet.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};

/// How long a peer has to read its answer and close the connection.
pub(crate) const LINGER_MAX: Duration = Duration::from_secs(2);

/// How many bytes are discarded at most: twice the largest body.
const LINGER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Bytes per read.
const PIECE_LEN: usize = 4 * 1024;

/// See the module's documentation.
pub(crate) struct Lingering<S> {
    stream: S,
    /// Whether the peer will send nothing more.
    is_ended: bool,
    /// Set once our side has ended.
    end: Option<End>,
}

struct End {
    until: Pin<Box<Sleep>>,
    bytes_left: usize,
}

impl<S> Lingering<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, is_ended: false, end: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lingering<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (before, room) = (buffer.filled().len(), buffer.remaining());
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        self.is_ended |= read.is_err() || room > 0 && buffer.filled().len() == before;
        Poll::Ready(read)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Lingering<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut end = match self.end.take() {
            Some(end) => end,
            None => {
                ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
                let until = Box::pin(tokio::time::sleep_until(Instant::now() + LINGER_MAX));
                End { until, bytes_left: LINGER_BYTES_MAX }
            }
        };
        let mut piece = [0; PIECE_LEN];
        while !self.is_ended && end.bytes_left > 0 && end.until.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::new(&mut piece);
            match self.as_mut().poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) => end.bytes_left = end.bytes_left.saturating_sub(buffer.filled().len()),
                // The peer can receive nothing more.
                Poll::Ready(Err(_)) => break,
                Poll::Pending => {
                    self.end = Some(end);
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
