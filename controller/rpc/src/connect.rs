//! Outgoing and incoming connections.
//!
//! In: an address, or an accepted connection. Out: a byte stream, with TLS or without, whose kind the first byte has announced.
//!
//! ```text
//! 06 …                  streams by yamux             04 <TLS: 06 …>     the same over TLS
//! 05 …                  one streaming call           01 …               unary calls in sequence
//! ```
//!
//! Facts: `hashicorp/nomad:helper/pool/conn.go`, `nomad/rpc.go` (`handleConn`).

use std::{
    future::Future,
    io,
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use rustix::net::sockopt;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    address::Address,
    error::{DialError, MessageError},
    message::{PLAIN, STREAMING},
    mux::{Io, Mux, Side},
    serve::{self, Peer, Service},
    tls::{ClientTls, ServerTls},
};

const TLS: u8 = 4;
const STREAMS: u8 = 6;

/// Time limit for dialling, including name resolution, TCP and TLS; the same as in stock clients.
pub const DIAL: Duration = Duration::from_secs(10);

/// Time limit for each address of a name except the last, so that time remains for the next one even if the server is dialled with the
/// shorter limit that applies while there are other servers.
const DIAL_ONE: Duration = Duration::from_secs(2);

/// How long a client may take to announce the kind of its connection; stock servers' default (`limits.rpc_handshake_timeout`).
const HANDSHAKE: Duration = Duration::from_secs(5);

/// How long sent data may remain unacknowledged before the connection counts as lost. This detects a dead link, not a slow server: its
/// kernel still acknowledges. Shorter than the 40 s after which a Go peer gives up (it pings every 30 s and waits 10 s for the answer). A
/// server that reads nothing for this long, so that its receive buffer is full, counts as lost too.
const SILENCE: Duration = Duration::from_secs(30);

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Streams in both directions.
    Streams,
    /// One streaming call.
    OneStream,
}

/// Connects to servers: over the network, or by a substitute in tests.
pub trait Dial: Send + Sync + 'static {
    /// Connects to a server and announces the purpose.
    fn dial(
        &self,
        address: &Address,
        purpose: Purpose,
    ) -> impl Future<Output = Result<Box<dyn Io>, DialError>> + Send;
}

/// TCP, with TLS if there are certificates.
#[derive(Debug, Clone, Default)]
pub struct Network(Arc<RwLock<Option<ClientTls>>>);

impl Network {
    /// Uses TLS if `tls` is given.
    #[must_use]
    pub fn new(tls: Option<ClientTls>) -> Self {
        Self(Arc::new(RwLock::new(tls)))
    }

    /// Uses other certificates for further connections, of all clones.
    pub fn set_tls(&self, tls: Option<ClientTls>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = tls;
    }
}

impl Dial for Network {
    async fn dial(&self, address: &Address, purpose: Purpose) -> Result<Box<dyn Io>, DialError> {
        let tls = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        dial(address, tls.as_ref(), purpose).await
    }
}

/// Connects to a server and announces the purpose.
///
/// # Errors
/// See [`DialError`].
pub async fn dial(
    address: &Address,
    tls: Option<&ClientTls>,
    purpose: Purpose,
) -> Result<Box<dyn Io>, DialError> {
    let dialled = tokio::time::timeout(DIAL, dial_in_time(address, tls, purpose)).await;
    dialled.unwrap_or_else(|_| Err(DialError::Late { address: address.clone(), within: DIAL }))
}

async fn dial_in_time(
    address: &Address,
    tls: Option<&ClientTls>,
    purpose: Purpose,
) -> Result<Box<dyn Io>, DialError> {
    let failed = |source| DialError::Connect { address: address.clone(), source };
    let found = tokio::net::lookup_host(address.parts()).await;
    let found = found.map_err(|source| DialError::Resolve { address: address.clone(), source })?;
    let mut tcp = first_that(found, TcpStream::connect).await.map_err(failed)?;
    tune(&tcp).map_err(failed)?;
    let first = match purpose {
        Purpose::Streams => STREAMS,
        Purpose::OneStream => STREAMING,
    };
    let Some(tls) = tls else {
        tcp.write_all(&[first]).await.map_err(failed)?;
        return Ok(Box::new(tcp));
    };
    let refused = |source| DialError::Tls { address: address.clone(), source };
    tcp.write_all(&[TLS]).await.map_err(failed)?;
    let mut io = tls.connect(tcp).await.map_err(refused)?;
    io.write_all(&[first]).await.map_err(refused)?;
    Ok(Box::new(io))
}

/// Connects to the first address that answers. One of a name's addresses may belong to an unreachable network.
async fn first_that<T, F: Future<Output = io::Result<T>>>(
    found: impl Iterator<Item = SocketAddr>,
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<T> {
    let found: Vec<_> = found.collect();
    let last = found.len().saturating_sub(1);
    let mut why = io::ErrorKind::AddrNotAvailable.into();
    for (at, one) in found.into_iter().enumerate() {
        let most = if at < last { DIAL_ONE } else { DIAL };
        match tokio::time::timeout(most, connect(one)).await {
            Ok(Ok(connected)) => return Ok(connected),
            Ok(Err(error)) => why = error,
            Err(_) => why = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(why)
}

/// Disables Nagle's algorithm, and makes the kernel detect a dead peer.
///
/// # Errors
/// If the kernel refuses an option.
pub fn tune(tcp: &TcpStream) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    sockopt::set_socket_keepalive(tcp, true)?;
    sockopt::set_tcp_keepidle(tcp, SILENCE / 2)?;
    sockopt::set_tcp_keepintvl(tcp, SILENCE / 6)?;
    sockopt::set_tcp_keepcnt(tcp, 3)?;
    let millis = u32::try_from(SILENCE.as_millis()).unwrap_or(u32::MAX);
    Ok(sockopt::set_tcp_user_timeout(tcp, millis)?)
}

/// Why a client's connection was given up. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The client sent nothing in time, or disconnected.
    #[error("read the kind of a connection: {0}")]
    Silent(io::Error),
    /// The client uses TLS and we do not, or vice versa.
    #[error("accept a connection: the client uses {0}")]
    Tls(&'static str),
    /// The kind of connection is not supported.
    #[error("accept a connection of the unknown kind {0:#04x}")]
    Kind(u8),
    /// The connection broke while being served.
    #[error(transparent)]
    Message(#[from] MessageError),
}

/// Serves an accepted connection until it ends. If `tls` is given, only TLS is accepted.
///
/// # Errors
/// See [`AcceptError`]. The end of a connection with streams is never an error.
pub async fn accept<S: Service>(
    io: impl Io,
    tls: Option<&ServerTls>,
    service: Arc<S>,
    address: String,
) -> Result<(), AcceptError> {
    let greeting = tokio::time::timeout(HANDSHAKE, greet(io, tls)).await;
    let (first, io) =
        greeting.unwrap_or_else(|_| Err(AcceptError::Silent(io::ErrorKind::TimedOut.into())))?;
    let peer = Peer { address, mux: None };
    match first {
        PLAIN => Ok(serve::plain(io, &*service, &peer).await?),
        STREAMING => Ok(serve::streaming(io, &*service, &peer).await?),
        STREAMS => {
            let (mux, incoming) = Mux::start(io, Side::Server);
            serve::serve(incoming, service, Peer { mux: Some(mux), ..peer }).await;
            Ok(())
        }
        0 | 2..=4 | 7.. => Err(AcceptError::Kind(first)),
    }
}

/// The kind byte (after TLS, if any), and the stream after it.
async fn greet(mut io: impl Io, tls: Option<&ServerTls>) -> Result<(u8, Box<dyn Io>), AcceptError> {
    let first = io.read_u8().await.map_err(AcceptError::Silent)?;
    let Some(tls) = tls else {
        return if first == TLS { Err(AcceptError::Tls("TLS")) } else { Ok((first, Box::new(io))) };
    };
    if first != TLS {
        return Err(AcceptError::Tls("no TLS"));
    }
    let mut io = tls.accept(io).await.map_err(AcceptError::Silent)?;
    let first = io.read_u8().await.map_err(AcceptError::Silent)?;
    Ok((first, Box::new(io)))
}

#[cfg(test)]
mod tests;
