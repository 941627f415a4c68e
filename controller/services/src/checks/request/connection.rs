//! A connection to the target of a check, and the limit of what it sends.
//!
//! In: addresses. Out: a stream, with or without TLS. The target is a task, so whatever it sends counts: handshakes,
//! heads that are skipped (`100 Continue`), frames without content (pings). Without a limit a task could occupy the
//! agent until the check's timeout, with no pause in which the timeout is noticed.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// Limit for the bytes that a target sends. The head of a response has a few KiB, a chain of certificates about ten,
/// and at most 4 KiB of the body are read.
const RECEIVED_BYTES_MAX: usize = 128 * 1024;

pub(super) enum Connection {
    Plain(LimitedStream<TcpStream>),
    Encrypted(Box<TlsStream<LimitedStream<TcpStream>>>),
}

/// A stream that fails once it has received too much.
pub(super) struct LimitedStream<S> {
    stream: S,
    bytes_left: usize,
}

impl Connection {
    pub(super) async fn open(addresses: &[SocketAddr]) -> io::Result<Self> {
        let stream = TcpStream::connect(addresses).await?;
        // The request follows a handshake at once.
        stream.set_nodelay(true)?;
        Ok(Self::Plain(LimitedStream { stream, bytes_left: RECEIVED_BYTES_MAX }))
    }

    /// Has no effect on an encrypted connection.
    pub(super) async fn encrypt(
        self,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> io::Result<Self> {
        match self {
            Self::Plain(stream) => {
                let stream = TlsConnector::from(config).connect(name, stream).await?;
                Ok(Self::Encrypted(Box::new(stream)))
            }
            Self::Encrypted(_) => Ok(self),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LimitedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let received = buffer.filled().len().saturating_sub(before);
        match self.bytes_left.checked_sub(received) {
            Some(left) => {
                self.bytes_left = left;
                Poll::Ready(Ok(()))
            }
            None => {
                Poll::Ready(Err(io::Error::other(format!("it sent more than {RECEIVED_BYTES_MAX} bytes"))))
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LimitedStream<S> {
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
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Encrypted(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Encrypted(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Encrypted(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Encrypted(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
