//! The process that has a port, for people who wonder why theirs can't have it.
//!
//! In: a port. Out: a process, if one can be found: its sockets are compared with the kernel's tables of sockets. A socket of
//! another process that is bound and does not listen is in no table of TCP.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{BufRead as _, BufReader},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// A port of one protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HeldPort {
    /// The protocol.
    pub protocol: Transport,
    /// The machine's address; `None` for all of them.
    pub ip: Option<IpAddr>,
    /// The port.
    pub port: u16,
}

impl HeldPort {
    /// What is held for a port that leads to an allocation. Nothing leads there from `[::1]`, which clients try for the name
    /// `localhost`: no other program must listen there under the same number.
    pub fn held_for(host_ip: Option<IpAddr>, port: u16) -> Vec<Self> {
        let ip = host_ip.filter(|ip| !ip.is_unspecified());
        let localhost = (ip == Some(Ipv4Addr::LOCALHOST.into())).then_some(Some(Ipv6Addr::LOCALHOST.into()));
        let both = |ip| [Transport::Tcp, Transport::Udp].map(|protocol| Self { protocol, ip, port });
        std::iter::once(ip).chain(localhost).flat_map(both).collect()
    }
}

/// A protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortOwner {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub program: String,
}

/// The process that has the port, in the network namespace of this thread. Blocking: it goes through all processes.
pub fn owner_of(port: &HeldPort) -> Option<PortOwner> {
    let (tables, state) = match port.protocol {
        Transport::Tcp => (["tcp", "tcp6"], "0A"),
        Transport::Udp => (["udp", "udp6"], "07"),
    };
    let mut sockets = BTreeSet::new();
    for table in tables {
        let Ok(file) = File::open(format!("/proc/thread-self/net/{table}")) else { continue };
        let lines = BufReader::new(file).lines().skip(1).map_while(Result::ok);
        let found = lines.filter_map(|line| SocketLine::read(&line, state));
        let of_port = found.filter(|found| found.port == port.port && collides(found.ip, port.ip));
        sockets.extend(of_port.map(|found| format!("socket:[{}]", found.inode)));
    }
    process_with(&sockets)
}

/// Whether sockets of these addresses can't have the same port.
fn collides(found: IpAddr, wanted: Option<IpAddr>) -> bool {
    found.is_unspecified() || wanted.is_none_or(|wanted| wanted == found)
}

/// A line of a table of sockets (proc_net(5)).
#[derive(Debug, PartialEq, Eq)]
struct SocketLine {
    ip: IpAddr,
    port: u16,
    inode: u64,
}

impl SocketLine {
    /// Reads a line whose socket has this state.
    fn read(line: &str, state: &str) -> Option<Self> {
        let mut columns = line.split_ascii_whitespace().skip(1);
        let (local, _, found) = (columns.next()?, columns.next()?, columns.next()?);
        let (ip, port) = local.split_once(':').filter(|_| found == state)?;
        // Of the columns in between, each has a constant number.
        let inode = columns.nth(5)?.parse().ok()?;
        Some(Self { ip: read_ip(ip)?, port: u16::from_str_radix(port, 16).ok()?, inode })
    }
}

/// An address as words in the machine's byte order.
fn read_ip(digits: &str) -> Option<IpAddr> {
    let words: Vec<u32> = (0..digits.len() / 8)
        .map(|word| u32::from_str_radix(digits.get(word * 8..word * 8 + 8)?, 16).ok())
        .collect::<Option<_>>()?;
    match words.as_slice() {
        [word] => Some(Ipv4Addr::from(word.to_ne_bytes()).into()),
        [_, _, _, _] => {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let ip = Ipv6Addr::from(*bytes.first_chunk::<16>()?);
            Some(ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4))
        }
        _ => None,
    }
}

/// The process that has one of these sockets open.
fn process_with(sockets: &BTreeSet<String>) -> Option<PortOwner> {
    if sockets.is_empty() {
        return None;
    }
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let pid = pids.find(|pid| {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        let mut targets = descriptors.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
        targets.any(|target| target.to_str().is_some_and(|target| sockets.contains(target)))
    })?;
    let program = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(PortOwner { pid, program: program.trim().to_owned() })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;
    use crate::{
        link,
        socket::{Protocol, Socket},
        test_machine::on_machine,
    };

    #[test]
    fn process_is_found_by_its_socket() {
        on_machine(|_| {
            link::set_up(&mut Socket::open(Protocol::Route).unwrap(), 1).unwrap();
            let tcp = TcpListener::bind("127.0.0.1:9000").unwrap();
            let udp = UdpSocket::bind("[::]:9000").unwrap();
            let owner = |protocol, ip: Option<&str>, port| {
                let ip = ip.map(|ip| ip.parse().unwrap());
                owner_of(&HeldPort { protocol, ip, port }).map(|owner| owner.pid)
            };
            let own = Some(std::process::id());
            for ip in [None, Some("127.0.0.1")] {
                assert_eq!(owner(Transport::Tcp, ip, 9000), own, "{ip:?}");
                assert_eq!(owner(Transport::Udp, ip, 9000), own, "{ip:?}, UDP");
            }
            assert_eq!(owner(Transport::Tcp, Some("127.0.0.2"), 9000), None);
            assert_eq!(owner(Transport::Tcp, None, 9001), None);
            drop((tcp, udp));
            assert_eq!(owner(Transport::Udp, None, 9000), None);
        });
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn lines_of_tables_are_read() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0";
        let read = SocketLine::read(line, "0A").unwrap();
        assert_eq!((read.ip, read.port, read.inode), (IpAddr::from([127, 0, 0, 1]), 8080, 4711));
        assert_eq!(SocketLine::read(line, "07"), None);
        let mapped = line.replace("0100007F:1F90", "0000000000000000FFFF00000100007F:1F90");
        assert_eq!(SocketLine::read(&mapped, "0A").unwrap().ip, read.ip);
        for torn in [
            "",
            "0:",
            "0: x y 0A",
            "0: 0100007F 0 0A 0 0 0 0 0 1",
            "0: ä100007F:1F90 0 0A 0 0 0 0 0 1",
            &line[..60],
        ] {
            assert_eq!(SocketLine::read(torn, "0A"), None, "{torn}");
        }
    }
}
