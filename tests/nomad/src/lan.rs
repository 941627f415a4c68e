//! How nodes reach the servers: in memory, for paused time, or over loopback.

use std::{
    collections::VecDeque,
    io,
    net::Ipv4Addr,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
};

use herdlet_rpc::{
    address::Address,
    connect::{Dial, Purpose, accept},
    error::DialError,
    mux::Io,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    net::TcpListener,
    task::AbortHandle,
};

use crate::{Cluster, inner::lock};

/// Capacity of a connection in memory, for each direction.
const BUFFER: usize = 16 * 1024;

/// The network of a cluster, in memory. Servers are named `s0:4647`, `s1:4647`, …; other names are unknown. Clones
/// share the network.
#[derive(Debug, Clone)]
pub struct Lan {
    cluster: Cluster,
    cuts: Arc<Mutex<VecDeque<usize>>>,
}

impl Lan {
    /// The network of these servers.
    #[must_use]
    pub fn new(cluster: &Cluster) -> Self {
        Self { cluster: cluster.clone(), cuts: Arc::default() }
    }

    /// The next connection breaks after this many bytes, counted in both directions.
    pub fn cut_after(&self, bytes: usize) {
        lock(&self.cuts).push_back(bytes);
    }
}

impl Dial for Lan {
    async fn dial(&self, address: &Address, purpose: Purpose) -> Result<Box<dyn Io>, DialError> {
        let refused =
            |kind: io::ErrorKind| DialError::Connect { address: address.clone(), source: kind.into() };
        let number = address.parts().0.strip_prefix('s').and_then(|number| number.parse::<usize>().ok());
        let number = number.filter(|&number| number < self.cluster.0.settings.servers);
        let number = number.ok_or_else(|| refused(io::ErrorKind::HostUnreachable))?;
        if self.cluster.0.down.borrow()[number] {
            return Err(refused(io::ErrorKind::ConnectionRefused));
        }
        let (ours, theirs) = tokio::io::duplex(BUFFER);
        let left = lock(&self.cuts).pop_front().unwrap_or(usize::MAX);
        let mut ours = Cut { io: ours, left };
        let first = match purpose {
            Purpose::Streams => 6,
            Purpose::OneStream => 5,
        };
        ours.write_u8(first).await.map_err(|error| refused(error.kind()))?;
        let server = self.cluster.server(number);
        tokio::spawn(async move { accept(theirs, None, server, "a node".to_owned()).await });
        Ok(Box::new(ours))
    }
}

/// A connection that breaks after some bytes.
struct Cut<T> {
    io: T,
    /// The number of bytes left; `usize::MAX`: unlimited.
    left: usize,
}

impl<T> Cut<T> {
    fn pass(&mut self, bytes: usize) {
        if self.left != usize::MAX {
            self.left -= bytes;
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Cut<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.left == 0 {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let mut part = buf.take(this.left);
        ready!(Pin::new(&mut this.io).poll_read(cx, &mut part))?;
        let read = part.filled().to_vec();
        this.pass(read.len());
        buf.put_slice(&read);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Cut<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let part = &buf[..buf.len().min(this.left)];
        if part.is_empty() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let written = ready!(Pin::new(&mut this.io).poll_write(cx, part))?;
        this.pass(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

/// A listening server, until this is dropped. Its open connections continue.
#[derive(Debug)]
pub struct Listener {
    /// Its address.
    pub address: String,
    task: AbortHandle,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Cluster {
    /// Lets all servers listen on loopback, and report these addresses to nodes.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn listen(&self) -> io::Result<Vec<Listener>> {
        let mut listeners = Vec::new();
        for number in 0..self.0.settings.servers {
            listeners.push(self.open(number, Ipv4Addr::LOCALHOST, 0).await?);
        }
        self.set_addresses(listeners.iter().map(|listener| listener.address.clone()).collect());
        Ok(listeners)
    }

    /// Lets the first server listen on this port of loopback, and report the address to nodes.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn listen_at(&self, port: u16) -> io::Result<Listener> {
        self.listen_on(Ipv4Addr::LOCALHOST, port).await
    }

    /// Lets the first server listen on this address, and report it to nodes.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn listen_on(&self, address: Ipv4Addr, port: u16) -> io::Result<Listener> {
        let listener = self.open(0, address, port).await?;
        self.set_addresses(vec![listener.address.clone()]);
        Ok(listener)
    }

    async fn open(&self, number: usize, address: Ipv4Addr, port: u16) -> io::Result<Listener> {
        let listener = TcpListener::bind((address, port)).await?;
        let address = listener.local_addr()?.to_string();
        let server = self.server(number);
        let task = tokio::spawn(async move {
            while let Ok((tcp, from)) = listener.accept().await {
                let _ = tcp.set_nodelay(true);
                tokio::spawn(accept(tcp, None, Arc::clone(&server), from.to_string()));
            }
        });
        Ok(Listener { address, task: task.abort_handle() })
    }
}
