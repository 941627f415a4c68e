//! The ports of this machine on which something listens.
//!
//! In: `/proc/net` of this process's network namespace (proc_net(5)). Out: port numbers. A table that can't be read has no
//! ports: callers use the result only to prefer other ports.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{BufRead as _, BufReader},
};

/// The tables, with the state of a socket that listens or is bound, and whether the table lists these sockets first.
const TABLES: [(&str, &str, Order); 4] = [
    ("/proc/net/tcp", "0A", Order::ListenersFirst),
    ("/proc/net/tcp6", "0A", Order::ListenersFirst),
    ("/proc/net/udp", "07", Order::Any),
    ("/proc/net/udp6", "07", Order::Any),
];

/// The order of a table's sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// The kernel lists sockets that listen before connections, of which there may be very many.
    ListenersFirst,
    Any,
}

/// The ports now, of TCP and UDP. Blocking.
pub fn ports() -> BTreeSet<u16> {
    let mut ports = BTreeSet::new();
    for (path, state, order) in TABLES {
        let Ok(table) = File::open(path) else { continue };
        for line in BufReader::new(table).lines().skip(1).map_while(Result::ok) {
            match port_in(&line, state) {
                Some(port) => drop(ports.insert(port)),
                None if order == Order::ListenersFirst => break,
                None => {}
            }
        }
    }
    ports
}

/// The local port of a socket in this state.
fn port_in(line: &str, state: &str) -> Option<u16> {
    let mut columns = line.split_ascii_whitespace().skip(1);
    let (local, _, found) = (columns.next()?, columns.next()?, columns.next()?);
    let (_, port) = local.rsplit_once(':').filter(|_| found == state)?;
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
        let found = ports();
        for address in [tcp.local_addr().unwrap(), udp.local_addr().unwrap()] {
            assert!(found.contains(&address.port()), "{address}");
        }
        assert!(!found.contains(&client.local_addr().unwrap().port()));
    }

    #[test]
    fn port_is_read_only_in_the_wanted_state() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0";
        assert_eq!(port_in(line, "0A"), Some(8080));
        assert_eq!(port_in(line, "01"), None);
        assert_eq!(port_in("", "0A"), None);
    }
}
