//! A small DNS server for the services of the built-in catalogue: at an address of the config, and for allocations on a bridge.
//!
//! In: queries over UDP and TCP. Out: answers; [`zone`] resolves the name and [`message`] encodes the result. The size of a message,
//! the number of connections and their lifetime are bounded. Queries of allocations for other names go to the machine's name servers
//! ([`forward`]), no others. It must not know how services come to be listed.

mod bridge;
mod forward;
mod message;
#[cfg(test)]
mod tests;
mod zone;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::Semaphore,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{http, listen::when_free, peer::PerPeer};

use forward::Forwarder;

pub use bridge::serve_bridges;
pub use message::{Over, answer};
pub use zone::Zone;

/// More connections would be useless: answers that don't fit into a datagram are rare, and clients read them at once. With a low
/// limit of open files, the limit is that of the other listeners.
const CONNECTIONS_MAX: usize = 64;

/// Connections of one address. Forwarders send many queries, but over one connection at a time.
const PER_PEER_MAX: usize = 16;

/// Bytes of a query. A name has at most 255; the rest is room for options.
const QUERY_MAX: usize = 4_096;

/// Delay before a retry after a socket error, which may be permanent.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at the same time. The server closes more at once, and resolvers retry.
    pub connections_max: usize,
    /// Connections of one address; 0 means no limit.
    pub per_peer_max: usize,
    /// How long the server waits for a complete query, both for the first and for the next one on the same connection.
    pub idle_max: Duration,
    /// Lifetime of a connection, however much it is used.
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

#[derive(Debug)]
pub struct Sockets {
    udp: UdpSocket,
    tcp: TcpListener,
}

/// Failure to bind the address. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
#[error("listen on {address} for DNS")]
pub struct ListenError {
    pub address: String,
    pub source: io::Error,
}

impl Sockets {
    /// Listens on an address such as `127.0.0.1:8600`. If the port is 0, the kernel picks one, and both sockets use it. Retries
    /// for a while if the address is in use: an agent that was killed may not have ended yet.
    ///
    /// # Errors
    /// When the address can't be bound.
    pub async fn open(address: &str) -> Result<Self, ListenError> {
        let bind = || async {
            let tcp = TcpListener::bind(address).await?;
            let udp = UdpSocket::bind(tcp.local_addr()?).await?;
            Ok(Self { udp, tcp })
        };
        when_free(address, bind).await.map_err(|source| ListenError { address: address.to_owned(), source })
    }

    /// The address of both sockets.
    pub fn address(&self) -> Option<SocketAddr> {
        self.tcp.local_addr().ok()
    }
}

/// What answers queries.
#[derive(Debug)]
struct Names {
    zone: Arc<Zone>,
    /// For other names; without it they are refused.
    forwarder: Option<Forwarder>,
}

impl Names {
    /// Whether a client gets answers. At the address of a bridge, the machine's own processes have that address, and get none: the
    /// names of services are for allocations.
    fn serves(&self, client: IpAddr) -> bool {
        self.forwarder.as_ref().is_none_or(|forwarder| !forwarder.is_at(client))
    }

    /// The forwarder, if it has to answer this query.
    fn forwarder_of(&self, query: &[u8]) -> Option<&Forwarder> {
        self.forwarder.as_ref().filter(|_| message::is_of_others(query))
    }
}

/// Answers from `zone` until `closing` is cancelled.
pub async fn serve(sockets: Sockets, zone: Arc<Zone>, limits: Limits, closing: CancellationToken) {
    let names = Arc::new(Names { zone, forwarder: None });
    answer_all(sockets, &names, limits, &closing).await;
}

async fn answer_all(sockets: Sockets, names: &Arc<Names>, limits: Limits, closing: &CancellationToken) {
    let (udp, tcp) = (Arc::new(sockets.udp), sockets.tcp);
    tokio::select! {
        () = closing.cancelled() => {}
        () = datagrams(&udp, names) => {}
        () = connections(&tcp, names, limits, closing) => {}
    }
}

async fn datagrams(socket: &Arc<UdpSocket>, names: &Arc<Names>) {
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
        let Some(query) = query.get(..length).filter(|_| names.serves(peer.ip())) else { continue };
        if let Some(forwarder) = names.forwarder_of(query) {
            forwarder.answer_datagram(query, peer, socket);
            continue;
        }
        let over = if peer.ip().to_canonical().is_loopback() { Over::Loopback } else { Over::Udp };
        let Some(answer) = answer(query, over, &names.zone) else { continue };
        // The send doesn't block, so one client can't delay the others. A client without an answer retries.
        if let Err(error) = socket.try_send_to(&answer, peer) {
            tracing::debug!(%error, %peer, "failed to send a DNS answer");
        }
    }
}

async fn connections(
    listener: &TcpListener,
    names: &Arc<Names>,
    limits: Limits,
    closing: &CancellationToken,
) {
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
        let Some(of_peer) = per_peer.take(address.ip().into()).filter(|_| names.serves(address.ip())) else {
            continue;
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let (names, closing) = (Arc::clone(names), closing.clone());
        tasks.spawn(async move {
            let _places = (place, of_peer);
            tokio::select! {
                () = closing.cancelled() => {}
                _ = tokio::time::timeout(limits.connection_max, converse(stream, &names, limits.idle_max)) => {}
            }
        });
    }
}

/// Answers queries until the client closes the connection or the time is over. A length precedes each message (RFC 1035, 4.2.2).
async fn converse(mut stream: TcpStream, names: &Names, idle_max: Duration) -> io::Result<()> {
    while let Ok(query) = tokio::time::timeout(idle_max, read(&mut stream, QUERY_MAX)).await {
        let query = query?;
        // A message that is not a query has no answer, and what follows it can't be trusted either.
        let answer = match names.forwarder_of(&query) {
            Some(forwarder) => forwarder.answer(&query, Over::Tcp).await,
            None => answer(&query, Over::Tcp, &names.zone),
        };
        let Some(answer) = answer else { break };
        tokio::time::timeout(idle_max, write(&mut stream, &answer)).await??;
    }
    Ok(())
}

async fn write(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], message].concat()).await
}

async fn read(stream: &mut TcpStream, longest: usize) -> io::Result<Vec<u8>> {
    let length = usize::from(stream.read_u16().await?);
    if length > longest {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await?;
    Ok(message)
}
