//! Connections: dialled, or accepted.
//!
//! In: an address, or a connection that was accepted. Out: bytes behind the first byte, which says what they are, in TLS or not.
//!
//! ```text
//! 06 …                  streams by yamux             04 <TLS: 06 …>     the same in TLS
//! 05 …                  one streaming call           01 …               calls one after another
//! ```
//!
//! Facts: `hashicorp/nomad:helper/pool/conn.go`, `nomad/rpc.go` (`handleConn`).

use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

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

/// How long dialling may take, with names, TCP and TLS, as that of stock clients.
pub const DIAL: Duration = Duration::from_secs(10);

/// How long each of the addresses of a name but the last is tried: so that there is time for the next, also where a server is dialled in
/// haste because there are others.
const DIAL_ONE: Duration = Duration::from_secs(2);

/// How long a client may take to say what its connection is, as stock servers have it (`limits.rpc_handshake_timeout`).
const HANDSHAKE: Duration = Duration::from_secs(5);

/// How long the network may be silent to what we have sent until the connection counts as lost: that of a hung link, not of a slow
/// server, whose kernel answers. Below the 40 s after which a Go peer gives up one whose answer to its ping does not arrive: it sends one
/// every 30 s and waits for 10. A server that takes in nothing for as long, so that its kernel has no room for more, is lost as well.
const SILENCE: Duration = Duration::from_secs(30);

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Streams, both ways.
    Streams,
    /// One streaming call.
    OneStream,
}

/// How servers are reached: by the network, or by whatever a test has in its place.
pub trait Dial: Send + Sync + 'static {
    /// Connects to a server and says what for.
    fn dial(
        &self,
        address: &Address,
        purpose: Purpose,
    ) -> impl Future<Output = Result<Box<dyn Io>, DialError>> + Send;
}

/// TCP, in TLS where there are certificates.
#[derive(Debug, Default)]
pub struct Network(Option<ClientTls>);

impl Network {
    /// With these certificates, or without TLS.
    #[must_use]
    pub fn new(tls: Option<ClientTls>) -> Self {
        Self(tls)
    }
}

impl Dial for Network {
    async fn dial(&self, address: &Address, purpose: Purpose) -> Result<Box<dyn Io>, DialError> {
        dial(address, self.0.as_ref(), purpose).await
    }
}

/// Connects to a server and says what for.
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

/// The first of the addresses of a name at which somebody answers. Of two, one may be of a network that is not there.
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

/// Sends at once, and notices when the other machine is gone.
///
/// # Errors
/// When the kernel does not do it.
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
    /// It said nothing, or went.
    #[error("hear what a connection is for: {0}")]
    Silent(io::Error),
    /// It speaks TLS and we don't, or the other way round.
    #[error("accept a connection: it is {0}")]
    Tls(&'static str),
    /// It is of a kind that is not spoken here.
    #[error("accept a connection of kind {0:#04x}")]
    Kind(u8),
    /// It was served, and broke off.
    #[error(transparent)]
    Message(#[from] MessageError),
}

/// Serves a connection that was accepted, to its end. With `tls` nothing else is accepted.
///
/// # Errors
/// See [`AcceptError`]. How a connection with streams ends is no error.
pub async fn accept<S: Service>(
    io: impl Io,
    tls: Option<&ServerTls>,
    service: Arc<S>,
    address: String,
) -> Result<(), AcceptError> {
    let said = tokio::time::timeout(HANDSHAKE, greet(io, tls)).await;
    let (first, io) = said.unwrap_or_else(|_| Err(AcceptError::Silent(io::ErrorKind::TimedOut.into())))?;
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

/// The first byte that is not about TLS, and what is behind it.
async fn greet(mut io: impl Io, tls: Option<&ServerTls>) -> Result<(u8, Box<dyn Io>), AcceptError> {
    let first = io.read_u8().await.map_err(AcceptError::Silent)?;
    let Some(tls) = tls else {
        return if first == TLS { Err(AcceptError::Tls("TLS")) } else { Ok((first, Box::new(io))) };
    };
    if first != TLS {
        return Err(AcceptError::Tls("not TLS"));
    }
    let mut io = tls.accept(io).await.map_err(AcceptError::Silent)?;
    let first = io.read_u8().await.map_err(AcceptError::Silent)?;
    Ok((first, Box::new(io)))
}

#[cfg(test)]
mod tests;
