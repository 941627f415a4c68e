//! The ports of this machine on which something listens.
//!
//! In: the kernel's sockets in this process's network namespace, by netlink (`man 7 sock_diag`); where the kernel has no such
//! interface, `/proc/net` (proc_net(5)). Out: port numbers. Sockets that can't be listed have no ports: callers use the result
//! only to prefer other ports.
//!
//! A read of `/proc/net/tcp` goes through the kernel's whole table of connections, which takes milliseconds even if there are
//! none; sock_diag lists only the sockets in the requested states.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, BufRead as _, BufReader},
};

use herdlet_network::{
    message::{Attributes, Message},
    socket::{Protocol, Socket},
};
use rustix::net::{AddressFamily, ipproto};

// From linux/sock_diag.h and net/tcp_states.h. A UDP socket that is bound and has no peer is in the state `CLOSE`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const LISTEN: u8 = 10;
const CLOSE: u8 = 7;

/// A kind of socket: its address family, its protocol, the state in which it accepts connections or datagrams from any peer, and
/// its table in `/proc`.
struct Kind {
    family: AddressFamily,
    protocol: u32,
    state: u8,
    table: &'static str,
}

/// All kinds.
fn kinds() -> [Kind; 4] {
    let (tcp, udp) = (ipproto::TCP.as_raw().get(), ipproto::UDP.as_raw().get());
    [
        Kind { family: AddressFamily::INET, protocol: tcp, state: LISTEN, table: "/proc/net/tcp" },
        Kind { family: AddressFamily::INET6, protocol: tcp, state: LISTEN, table: "/proc/net/tcp6" },
        Kind { family: AddressFamily::INET, protocol: udp, state: CLOSE, table: "/proc/net/udp" },
        Kind { family: AddressFamily::INET6, protocol: udp, state: CLOSE, table: "/proc/net/udp6" },
    ]
}

/// The ports now, of TCP and UDP. Blocking.
pub fn ports() -> BTreeSet<u16> {
    kinds().iter().flat_map(|kind| listed(kind).unwrap_or_else(|_| in_table(kind))).collect()
}

/// The ports of such sockets, as the kernel lists them.
fn listed(kind: &Kind) -> io::Result<Vec<u16>> {
    // `struct inet_diag_req_v2`: family, protocol, extensions and a byte of padding; a bit for each state; an empty address.
    let mut fixed = vec![0; 56];
    let number = |wide: u32| u8::try_from(wide).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    fixed[0] = number(kind.family.as_raw().into())?;
    fixed[1] = number(kind.protocol)?;
    fixed[4..8].copy_from_slice(&(1_u32 << kind.state).to_ne_bytes());
    let request = Message { kind: SOCK_DIAG_BY_FAMILY, flags: 0, fixed, attributes: Attributes::new() };
    let sockets = Socket::open(Protocol::Sockets)?.list("list sockets", request).map_err(io::Error::other)?;
    Ok(sockets.iter().filter_map(|socket| local_port(&socket.body)).collect())
}

/// The local port in a `struct inet_diag_msg`: after family, state, timer and retransmissions, in network order.
fn local_port(body: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(*body.get(4..6)?.first_chunk()?))
}

/// The ports of such sockets in `/proc`.
fn in_table(kind: &Kind) -> Vec<u16> {
    let Ok(table) = File::open(kind.table) else { return Vec::new() };
    let mut ports = Vec::new();
    for line in BufReader::new(table).lines().skip(1).map_while(Result::ok) {
        match port_in(&line, kind.state) {
            Some(port) => ports.push(port),
            // The kernel lists listening sockets before connections, and there can be many connections.
            None if kind.state == LISTEN => break,
            None => {}
        }
    }
    ports
}

/// The local port of a socket in this state.
fn port_in(line: &str, state: u8) -> Option<u16> {
    let mut columns = line.split_ascii_whitespace().skip(1);
    let (local, _, found) = (columns.next()?, columns.next()?, columns.next()?);
    let is_wanted = u8::from_str_radix(found, 16).is_ok_and(|found| found == state);
    let (_, port) = local.rsplit_once(':').filter(|_| is_wanted)?;
    u16::from_str_radix(port, 16).ok()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn listeners_are_found_and_connections_are_not() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
        let by_table: BTreeSet<_> = kinds().iter().flat_map(in_table).collect();
        for found in [ports(), by_table] {
            for address in [tcp.local_addr().unwrap(), udp.local_addr().unwrap()] {
                assert!(found.contains(&address.port()), "{address}");
            }
        }
        let [tcp4, ..] = kinds();
        let connection = client.local_addr().unwrap().port();
        assert!(!listed(&tcp4).unwrap().contains(&connection) && !in_table(&tcp4).contains(&connection));
    }

    #[test]
    fn the_kernel_lists_each_kind_of_socket() {
        let sockets = ["127.0.0.1:0", "[::1]:0"].map(|address| {
            let tcp = TcpListener::bind(address).unwrap();
            let udp = UdpSocket::bind(address).unwrap();
            let ports = [tcp.local_addr().unwrap().port(), udp.local_addr().unwrap().port()];
            (ports, tcp, udp)
        });
        for (at, kind) in kinds().iter().enumerate() {
            let (ports, ..) = &sockets[at % 2];
            assert!(listed(kind).unwrap().contains(&ports[at / 2]), "{}", kind.table);
        }
    }

    #[test]
    fn torn_answers_have_no_port() {
        assert_eq!(local_port(&[2, 10, 0, 0, 0x1f]), None);
        assert_eq!(local_port(&[2, 10, 0, 0, 0x1f, 0x90]), Some(8080));
    }

    #[test]
    fn port_is_read_only_in_the_wanted_state() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0";
        assert_eq!(port_in(line, LISTEN), Some(8080));
        assert_eq!(port_in(line, 1), None);
        assert_eq!(port_in("", LISTEN), None);
    }
}
