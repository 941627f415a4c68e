//! Forwarding: queries of allocations for names that the agent does not know go to the name servers of the machine.
//!
//! In: a query, the machine's `resolv.conf`. Out: the answer of the first server that has one, or SERVFAIL. Answers are not stored.
//! Servers on the machine's loopback addresses, such as systemd-resolved, are reached because the agent is on the machine. The
//! number of queries at the same time is bounded, for each allocation too, and so is the time of each.

use std::{
    hash::{BuildHasher as _, RandomState},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use herdlet_base::resolver;
use herdlet_runtime::off_thread;
use tokio::{
    net::{TcpStream, UdpSocket},
    sync::Semaphore,
    time::{Instant, timeout},
};

use super::{message, read, write};
use crate::{dns::Over, peer::PerPeer};

/// The port of name servers.
const PORT: u16 = 53;

/// How long one server may take. Resolvers wait 5 s for all of them.
const SERVER_TIME_MAX: Duration = Duration::from_millis(1_500);

/// Queries at the same time. Each has a socket.
const QUERIES_MAX: usize = 256;
/// Queries of one allocation at the same time.
const PER_PEER_MAX: usize = 64;

/// How long the servers are used before the file is read again.
const SERVERS_AGE_MAX: Duration = Duration::from_secs(5);

/// The longest datagram, and the longest message over TCP.
const MESSAGE_MAX: usize = u16::MAX as usize;

/// The codes of answers that are no reason to ask another server: NOERROR and NXDOMAIN.
const FINAL: [u8; 2] = [0, 3];

/// Forwards queries.
#[derive(Debug)]
pub(super) struct Forwarder {
    upstreams: Arc<Upstreams>,
    places: Arc<Semaphore>,
    per_peer: Arc<PerPeer>,
}

/// The servers of the machine.
#[derive(Debug)]
struct Upstreams {
    path: PathBuf,
    port: u16,
    /// The addresses of the forwarder: it must not ask itself.
    own: Vec<IpAddr>,
    known: Mutex<Option<(Instant, Vec<SocketAddr>)>>,
}

impl Forwarder {
    /// At these addresses.
    pub(super) fn new(own: Vec<IpAddr>) -> Self {
        Self::with_servers_of(Path::new(resolver::CONFIG), (own, PORT))
    }

    pub(super) fn with_servers_of(path: &Path, (own, port): (Vec<IpAddr>, u16)) -> Self {
        Self {
            upstreams: Arc::new(Upstreams { path: path.to_owned(), port, own, known: Mutex::default() }),
            places: Arc::new(Semaphore::new(QUERIES_MAX)),
            per_peer: PerPeer::new(PER_PEER_MAX, QUERIES_MAX),
        }
    }

    /// Whether this is one of its own addresses.
    pub(super) fn is_at(&self, ip: IpAddr) -> bool {
        self.upstreams.own.contains(&ip)
    }

    /// Answers a datagram in a task of its own. Without room there is no answer, and the client asks again.
    pub(super) fn answer_datagram(&self, query: &[u8], peer: SocketAddr, socket: &Arc<UdpSocket>) {
        let Some(of_peer) = self.per_peer.take(peer.ip().into()) else { return };
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else { return };
        let (query, socket, upstreams) = (query.to_vec(), Arc::clone(socket), Arc::clone(&self.upstreams));
        tokio::spawn(async move {
            let _places = (place, of_peer);
            if let Some(answer) = upstreams.answer(&query, Over::Udp).await
                && let Err(error) = socket.try_send_to(&answer, peer)
            {
                tracing::debug!(%error, %peer, "failed to send a DNS answer");
            }
        });
    }

    /// Answers a query over a connection, whose number is bounded already.
    pub(super) async fn answer(&self, query: &[u8], over: Over) -> Option<Vec<u8>> {
        let _place = self.places.acquire().await.ok()?;
        self.upstreams.answer(query, over).await
    }
}

impl Upstreams {
    /// The answer of the first server that has one; else the last other answer; else SERVFAIL.
    async fn answer(&self, query: &[u8], over: Over) -> Option<Vec<u8>> {
        let mut other = None;
        for server in self.servers().await {
            let asked = async {
                match over {
                    Over::Tcp => ask_over_tcp(server, query).await,
                    Over::Udp | Over::Loopback => ask_over_udp(server, query).await,
                }
            };
            match timeout(SERVER_TIME_MAX, asked).await {
                Ok(Ok(answer)) if code(&answer).is_some_and(|code| FINAL.contains(&code)) => {
                    return Some(answer);
                }
                Ok(Ok(answer)) => other = Some(answer),
                Ok(Err(error)) => tracing::debug!(%server, %error, "a name server did not answer"),
                Err(_) => tracing::debug!(%server, "a name server did not answer in time"),
            }
        }
        other.or_else(|| message::server_failure(query))
    }

    async fn servers(&self) -> Vec<SocketAddr> {
        let now = Instant::now();
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((at, servers)) = known
            && now.duration_since(at) < SERVERS_AGE_MAX
        {
            return servers;
        }
        let path = self.path.clone();
        let text = off_thread(move || resolver::read(&path)).await.ok().flatten().unwrap_or_default();
        let servers = self.servers_in(&text);
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, servers.clone()));
        servers
    }

    /// Addresses that name an interface are left out. The resolver of a machine without a server asks the machine itself.
    fn servers_in(&self, text: &str) -> Vec<SocketAddr> {
        let servers = resolver::name_servers(text).filter(|ip| !self.own.contains(ip));
        servers.take(resolver::SERVERS_MAX).map(|ip| SocketAddr::new(ip, self.port)).collect()
    }
}

/// Asks with a port and a number of its own, so that no other machine can guess both and answer instead.
async fn ask_over_udp(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let any =
        if server.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await?;
    socket.connect(server).await?;
    let (number, own) = renumbered(query)?;
    socket.send(&own).await?;
    let mut answer = vec![0; MESSAGE_MAX];
    loop {
        let length = socket.recv(&mut answer).await?;
        if let Some(answer) = answer.get(..length).filter(|answer| is_answer(answer, &own)) {
            return Ok([&number[..], answer.get(2..).unwrap_or_default()].concat());
        }
    }
}

async fn ask_over_tcp(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    write(&mut stream, query).await?;
    let answer = read(&mut stream, MESSAGE_MAX).await?;
    if is_answer(&answer, query) { Ok(answer) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// The query with another number, and its own number.
fn renumbered(query: &[u8]) -> io::Result<([u8; 2], Vec<u8>)> {
    let (number, rest) = query.split_first_chunk::<2>().ok_or(io::ErrorKind::InvalidData)?;
    let chance = RandomState::new().hash_one(Instant::now());
    let [first, second, ..] = chance.to_ne_bytes();
    Ok((*number, [&[first, second], rest].concat()))
}

/// Whether it has the query's number and question, and is an answer.
fn is_answer(answer: &[u8], query: &[u8]) -> bool {
    const ANSWER: u8 = 0x80;
    answer.get(..2) == query.get(..2)
        && answer.get(2).is_some_and(|flags| flags & ANSWER != 0)
        && message::has_same_question(answer, query)
}

fn code(answer: &[u8]) -> Option<u8> {
    answer.get(3).map(|flags| flags & 0x0f)
}

#[cfg(test)]
mod tests;
