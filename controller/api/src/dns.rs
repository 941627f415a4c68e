//! A small DNS server for the services of the built-in catalogue, off unless it is given an address.
//!
//! In: queries over UDP and TCP, from anybody who can connect. Out: answers, made by [`message`] of what [`zone`] finds. Everything
//! has a bound: what a message may have in bytes, how many connections there are and how long they last. It asks nobody else, and
//! must not know how services come to be listed.

mod message;
#[cfg(test)]
mod tests;
mod zone;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::Semaphore,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{http, listen::when_free, peer::PerPeer};

pub use message::{Over, answer};
pub use zone::Zone;

/// More are of no use: answers that don't fit into a datagram are rare, and read at once. Where few files may be open these are
/// as few as any listener's.
const CONNECTIONS_MAX: usize = 64;

/// Of one address: forwarders ask for many, but one connection after the other.
const PER_PEER_MAX: usize = 16;

/// Bytes of a query. A name has 255 at most; the rest is room for options.
const QUERY_MAX: usize = 4_096;

/// After an error of a socket that may last, so long until it is tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// Bounds of connections.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at the same time; more are closed at once, and resolvers ask again.
    pub connections_max: usize,
    /// Of one address; 0 for no bound.
    pub per_peer_max: usize,
    /// How long a query may take to come whole, also the first; so long a connection is kept open for another.
    pub idle_max: Duration,
    /// How long a connection lasts, whatever is asked over it.
    pub connection_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: CONNECTIONS_MAX.min(http::Limits::default().connections_max),
            per_peer_max: PER_PEER_MAX,
            idle_max: Duration::from_secs(5),
            connection_max: Duration::from_secs(60),
        }
    }
}

/// UDP and TCP on the same address.
#[derive(Debug)]
pub struct Sockets {
    udp: UdpSocket,
    tcp: TcpListener,
}

/// The address can't be had. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
#[error("listen on {address} for DNS")]
pub struct ListenError {
    pub address: String,
    pub source: io::Error,
}

impl Sockets {
    /// Listens on an address such as `127.0.0.1:8600`. Where the port is 0, both get the same free one. An agent that was killed may hold it
    /// until it has ended.
    ///
    /// # Errors
    /// When the address can't be had.
    pub async fn open(address: &str) -> Result<Self, ListenError> {
        let bind = || async {
            let tcp = TcpListener::bind(address).await?;
            let udp = UdpSocket::bind(tcp.local_addr()?).await?;
            Ok(Self { udp, tcp })
        };
        when_free(address, bind).await.map_err(|source| ListenError { address: address.to_owned(), source })
    }

    /// The address of both.
    pub fn address(&self) -> Option<SocketAddr> {
        self.tcp.local_addr().ok()
    }
}

/// Answers from `zone` until `closing` is cancelled.
pub async fn serve(sockets: Sockets, zone: Arc<Zone>, limits: Limits, closing: CancellationToken) {
    let Sockets { udp, tcp } = sockets;
    tokio::select! {
        () = closing.cancelled() => {}
        () = datagrams(&udp, &zone) => {}
        () = connections(&tcp, &zone, limits, &closing) => {}
    }
}

async fn datagrams(socket: &UdpSocket, zone: &Zone) {
    let mut query = vec![0; QUERY_MAX];
    loop {
        let (length, peer) = match socket.recv_from(&mut query).await {
            Ok(received) => received,
            Err(error) => {
                tracing::debug!(%error, "failed to receive a DNS query");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let over = if peer.ip().to_canonical().is_loopback() { Over::Loopback } else { Over::Udp };
        let Some(answer) = query.get(..length).and_then(|query| answer(query, over, zone)) else {
            continue;
        };
        // Whoever gets no answer asks again: one that can't be sent at once holds up nobody else.
        if let Err(error) = socket.try_send_to(&answer, peer) {
            tracing::debug!(%error, %peer, "failed to send a DNS answer");
        }
    }
}

async fn connections(listener: &TcpListener, zone: &Arc<Zone>, limits: Limits, closing: &CancellationToken) {
    let places = Arc::new(Semaphore::new(limits.connections_max));
    let per_peer = PerPeer::new(limits.per_peer_max, limits.connections_max);
    let tasks = TaskTracker::new();
    loop {
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "failed to accept a DNS connection");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Some(of_peer) = per_peer.take(address.ip().into()) else { continue };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let (zone, closing) = (Arc::clone(zone), closing.clone());
        tasks.spawn(async move {
            let _places = (place, of_peer);
            tokio::select! {
                () = closing.cancelled() => {}
                _ = tokio::time::timeout(limits.connection_max, converse(stream, &zone, limits.idle_max)) => {}
            }
        });
    }
}

/// Queries and answers until either side has enough. Each has its length before it (RFC 1035, 4.2.2).
async fn converse(mut stream: TcpStream, zone: &Zone, idle_max: Duration) -> io::Result<()> {
    while let Ok(query) = tokio::time::timeout(idle_max, read(&mut stream)).await {
        // What is no query has no answer, and nothing after it is worth waiting for.
        let Some(answer) = answer(&query?, Over::Tcp, zone) else { break };
        let Ok(length) = u16::try_from(answer.len()) else { break };
        let framed = [&length.to_be_bytes()[..], &answer].concat();
        tokio::time::timeout(idle_max, stream.write_all(&framed)).await??;
    }
    Ok(())
}

async fn read(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = usize::from(stream.read_u16().await?);
    if length > QUERY_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut query = vec![0; length];
    stream.read_exact(&mut query).await?;
    Ok(query)
}
