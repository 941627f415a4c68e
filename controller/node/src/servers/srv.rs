//! Looks up SRV records, which the C library's resolver does not support.
//!
//! In: a name. Out: hosts and ports, in the order in which to try them. The name servers come from `/etc/resolv.conf`.

#[cfg(any(test, fuzzing, feature = "fixture"))]
pub mod fed;

use std::{
    hash::{BuildHasher as _, RandomState},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    str::FromStr as _,
    time::Duration,
};

use domain::{
    base::{Message, MessageBuilder, Name, Rtype, ToName as _, iana::Rcode},
    rdata::Srv,
};
use herdlet_base::resolver;
use herdlet_runtime::off_thread;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
    time::timeout,
};

/// Time limit per name server.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Maximum number of records to use.
const TARGETS_MAX: usize = 64;

/// Hosts and ports of a name, by priority.
///
/// # Errors
/// Why no name server gave an answer.
pub(super) async fn look_up(name: &str) -> Result<Vec<(String, u16)>, String> {
    let config =
        off_thread(|| resolver::read(Path::new(resolver::CONFIG))).await.ok().flatten().unwrap_or_default();
    look_up_at(name, &name_servers(&config)).await
}

/// The name servers of a `resolv.conf`; the local machine if there are none.
fn name_servers(config: &str) -> Vec<SocketAddr> {
    let named = resolver::name_servers(config).take(resolver::SERVERS_MAX);
    let found: Vec<_> = named.map(|ip| SocketAddr::new(ip, 53)).collect();
    if found.is_empty() { vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 53))] } else { found }
}

async fn look_up_at(name: &str, servers: &[SocketAddr]) -> Result<Vec<(String, u16)>, String> {
    let id = u16::try_from(RandomState::new().hash_one(name) & 0xffff).unwrap_or_default();
    let query = query(name, id)?;
    let mut last = "no name server is known".to_owned();
    for server in servers {
        match timeout(ANSWER_MAX, ask(&query, *server)).await {
            Ok(Ok(answer)) => match targets(&answer, id) {
                Ok(targets) => return Ok(targets),
                Err(why) => last = format!("{server}: {why}"),
            },
            Ok(Err(error)) => last = format!("{server}: {error}"),
            Err(_) => last = format!("{server}: no answer in time"),
        }
    }
    Err(last)
}

fn query(name: &str, id: u16) -> Result<Vec<u8>, String> {
    let name = Name::<Vec<u8>>::from_str(name).map_err(|error| error.to_string())?;
    let mut builder = MessageBuilder::new_vec();
    builder.header_mut().set_id(id);
    builder.header_mut().set_rd(true);
    let mut builder = builder.question();
    builder.push((name, Rtype::SRV)).map_err(|error| error.to_string())?;
    Ok(builder.finish())
}

/// Queries by UDP; by TCP if the response was truncated.
async fn ask(query: &[u8], server: SocketAddr) -> std::io::Result<Vec<u8>> {
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    // The connected socket receives only that server's datagrams.
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut answer = vec![0; 4_096];
    loop {
        let length = socket.recv(&mut answer).await?;
        let reply = answer.get(..length).unwrap_or_default();
        // A response with another id belongs to another query.
        if reply.get(..2) != query.get(..2) {
            continue;
        }
        let is_cut = Message::from_octets(reply).is_ok_and(|message| message.header().tc());
        return if is_cut { ask_by_tcp(query, server).await } else { Ok(reply.to_vec()) };
    }
}

async fn ask_by_tcp(query: &[u8], server: SocketAddr) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_u16(u16::try_from(query.len()).unwrap_or(u16::MAX)).await?;
    stream.write_all(query).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

fn targets(answer: &[u8], id: u16) -> Result<Vec<(String, u16)>, String> {
    let message = Message::from_octets(answer).map_err(|error| error.to_string())?;
    let header = message.header();
    if header.id() != id || !header.qr() {
        return Err("the answer belongs to another query".to_owned());
    }
    if header.rcode() != Rcode::NOERROR {
        return Err(header.rcode().to_string());
    }
    let records = message.answer().map_err(|error| error.to_string())?.limit_to::<Srv<_>>();
    let mut found: Vec<_> = records
        .filter_map(Result::ok)
        .take(TARGETS_MAX)
        .map(|record| {
            let srv = record.data();
            let host = srv.target().to_vec().to_string();
            ((srv.priority(), u16::MAX - srv.weight()), (host.trim_end_matches('.').to_owned(), srv.port()))
        })
        .filter(|(_, (host, _))| is_host(host))
        .collect();
    found.sort_by_key(|(rank, _)| *rank);
    match found.is_empty() {
        true => Err("the name has no SRV records".to_owned()),
        false => Ok(found.into_iter().map(|(_, target)| target).collect()),
    }
}

/// Whether it is a valid host name; DNS labels may hold any bytes.
fn is_host(name: &str) -> bool {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !name.is_empty() && name.bytes().all(is_fit)
}

#[cfg(test)]
mod tests {
    use super::{fed::answer, *};

    #[tokio::test]
    async fn srv_records_are_queried_and_sorted() {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let server = socket.local_addr().unwrap();
        let servers = [server];
        let serve = async {
            let mut query = [0; 512];
            let (length, from) = socket.recv_from(&mut query).await.unwrap();
            let records = [(2, 0, 4647, "c.test"), (1, 1, 4647, "b.test"), (1, 9, 4747, "a.test")];
            socket.send_to(b"not an answer", from).await.unwrap();
            socket.send_to(&answer(&query[..length], &records, false), from).await.unwrap();
        };
        let (found, ()) = tokio::join!(look_up_at("_nomad._tcp.test", &servers), serve);
        let target = |host: &str, port: u16| (host.to_owned(), port);
        assert_eq!(found.unwrap(), [target("a.test", 4747), target("b.test", 4647), target("c.test", 4647)]);
    }

    #[tokio::test]
    async fn truncated_answer_is_queried_by_tcp() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap();
        let socket = UdpSocket::bind(server).await.unwrap();
        let servers = [server];
        let serve = async {
            let mut query = [0; 512];
            let (length, from) = socket.recv_from(&mut query).await.unwrap();
            socket.send_to(&answer(&query[..length], &[], true), from).await.unwrap();
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut query = vec![0; usize::from(stream.read_u16().await.unwrap())];
            stream.read_exact(&mut query).await.unwrap();
            let answer = answer(&query, &[(1, 1, 1, "a.test")], false);
            stream.write_u16(u16::try_from(answer.len()).unwrap()).await.unwrap();
            stream.write_all(&answer).await.unwrap();
        };
        let (found, ()) = tokio::join!(look_up_at("_nomad._tcp.test", &servers), serve);
        assert_eq!(found.unwrap(), [("a.test".to_owned(), 1)]);
    }

    #[test]
    fn name_servers_are_those_of_the_machine() {
        let config = "# x\nsearch example.org\nnameserver 10.0.0.1\nnameserver ::1\nnameserver x\n";
        let shown: Vec<String> = name_servers(config).iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["10.0.0.1:53", "[::1]:53"]);
        assert_eq!(name_servers("").len(), 1);
        assert!(targets(b"x", 1).is_err() && query("a..b", 1).is_err());
    }
}
