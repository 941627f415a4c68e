//! Sockets that hold the machine's ports which lead to allocations.
//!
//! In: addresses and ports. Out: sockets that are bound and never listen, so that no other process gets the port: it would
//! start, and never receive anything, because the rules come first. The sockets end with this process; the next one holds the
//! ports again.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::OwnedFd,
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt},
};

use crate::port_owner::{HeldPort, PortOwner, Transport, owner_of};

/// Why ports can't be held. The text continues "failed to".
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// Another process has it.
    #[error("take port {}/{}: {} has it", port.port, port.protocol.as_str(), described(owner.as_ref()))]
    Taken {
        /// The first such port.
        port: HeldPort,
        /// The process, if it can be found.
        owner: Option<PortOwner>,
    },
    /// The kernel refused for another reason.
    #[error("take port {}/{}", port.port, port.protocol.as_str())]
    Io {
        /// The port.
        port: HeldPort,
        /// Why.
        source: io::Error,
    },
}

fn described(owner: Option<&PortOwner>) -> String {
    match owner {
        Some(PortOwner { pid, program }) => format!("{program} (process {pid})"),
        None => "another process".to_owned(),
    }
}

/// The sockets, by owner.
#[derive(Debug, Default)]
pub struct PortHolder {
    held: Mutex<BTreeMap<String, BTreeMap<HeldPort, OwnedFd>>>,
}

impl HeldPort {
    /// Whether it could not be taken because the machine has no such loopback address.
    fn is_missing(&self, error: &io::Error) -> bool {
        let absent = [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL].map(|errno| Some(errno.raw_os_error()));
        self.ip == Some(Ipv6Addr::LOCALHOST.into()) && absent.contains(&error.raw_os_error())
    }
}

impl PortHolder {
    /// Holds these ports for the owner, and no others: all of them, or after a failure those that it has held before.
    ///
    /// # Errors
    /// If another process has one of them, or another owner.
    pub fn hold(&self, owner: &str, ports: &[HeldPort]) -> Result<(), HoldError> {
        let mut all = self.lock();
        let own = all.remove(owner).unwrap_or_default();
        let mut taken = BTreeMap::new();
        for port in ports.iter().filter(|port| !own.contains_key(port)) {
            match take(port) {
                Ok(socket) => drop(taken.insert(*port, socket)),
                // A machine without IPv6 has no such address that another program could take.
                Err(HoldError::Io { port, source }) if port.is_missing(&source) => {}
                Err(error) => {
                    all.insert(owner.to_owned(), own);
                    return Err(error);
                }
            }
        }
        taken.extend(own.into_iter().filter(|(port, _)| ports.contains(port)));
        if !taken.is_empty() {
            all.insert(owner.to_owned(), taken);
        }
        Ok(())
    }

    /// Lets the owner's ports go.
    pub fn release(&self, owner: &str) {
        self.lock().remove(owner);
    }

    /// All ports that are held.
    pub fn held(&self) -> Vec<HeldPort> {
        self.lock().values().flat_map(BTreeMap::keys).copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, BTreeMap<HeldPort, OwnedFd>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Binds a socket. One for all addresses is of IPv6, and of IPv4 too, unless the machine has no IPv6.
fn take(port: &HeldPort) -> Result<OwnedFd, HoldError> {
    let any6 = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let bound = match bound(port, port.ip.unwrap_or(any6)) {
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) if port.ip.is_none() => {
            bound(port, IpAddr::V4(Ipv4Addr::UNSPECIFIED))
        }
        bound => bound,
    };
    bound.map_err(|errno| match errno {
        Errno::ADDRINUSE => HoldError::Taken { port: *port, owner: owner_of(port) },
        errno => HoldError::Io { port: *port, source: errno.into() },
    })
}

fn bound(port: &HeldPort, ip: IpAddr) -> Result<OwnedFd, Errno> {
    let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let kind = match port.protocol {
        Transport::Tcp => SocketType::STREAM,
        Transport::Udp => SocketType::DGRAM,
    };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    if ip.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, port.ip.is_some())?;
    }
    bind(&socket, &SocketAddr::new(ip, port.port))?;
    Ok(socket)
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

    fn port(protocol: Transport, ip: Option<&str>, port: u16) -> HeldPort {
        HeldPort { protocol, ip: ip.map(|ip| ip.parse().unwrap()), port }
    }

    fn on_loopback(test: impl FnOnce() + Send) {
        on_machine(|_| {
            link::set_up(&mut Socket::open(Protocol::Route).unwrap(), 1).unwrap();
            test();
        });
    }

    #[test]
    fn held_port_is_given_to_nobody_else() {
        on_loopback(|| {
            let holder = PortHolder::default();
            let (tcp, udp) =
                (port(Transport::Tcp, Some("127.0.0.1"), 8080), port(Transport::Udp, None, 8081));
            for _ in 0..2 {
                holder.hold("a", &[tcp, udp]).unwrap();
            }
            assert_eq!(holder.held().len(), 2);
            for address in ["127.0.0.1:8080", "0.0.0.0:8080"] {
                assert!(TcpListener::bind(address).is_err(), "{address}");
            }
            for address in ["127.0.0.1:8081", "0.0.0.0:8081", "[::]:8081", "[::1]:8081"] {
                assert!(UdpSocket::bind(address).is_err(), "{address}");
            }
            let _other_protocols =
                (UdpSocket::bind("127.0.0.1:8080").unwrap(), TcpListener::bind("127.0.0.1:8081").unwrap());
            assert!(std::net::TcpStream::connect("127.0.0.1:8080").is_err(), "it does not listen");
            holder.release("a");
            TcpListener::bind("127.0.0.1:8080").unwrap();
            UdpSocket::bind("[::]:8081").unwrap();
        });
    }

    #[test]
    fn port_of_another_process_is_named_and_nothing_is_kept() {
        on_loopback(|| {
            let holder = PortHolder::default();
            let stranger = TcpListener::bind("127.0.0.1:9000").unwrap();
            let wanted = [8080, 9000].map(|number| port(Transport::Tcp, None, number));
            let refused = holder.hold("a", &wanted).unwrap_err();
            let own = std::process::id();
            let program = std::fs::read_to_string("/proc/self/comm").unwrap();
            let expected = format!("take port 9000/tcp: {} (process {own}) has it", program.trim());
            assert_eq!(refused.to_string(), expected);
            assert_eq!(holder.held(), []);
            TcpListener::bind("0.0.0.0:8080").unwrap();
            drop(stranger);
            holder.hold("a", &wanted).unwrap();
            assert!(
                matches!(holder.hold("b", &wanted[..1]), Err(HoldError::Taken { .. })),
                "the owner keeps it"
            );
        });
    }

    /// `localhost` is also `[::1]`.
    #[test]
    fn port_of_the_loopback_address_is_held_at_both_of_its_addresses() {
        on_loopback(|| {
            let holder = PortHolder::default();
            let localhost = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
            holder.hold("a", &HeldPort::held_for(localhost, 8080)).unwrap();
            assert_eq!(holder.held().len(), 4);
            for address in ["127.0.0.1:8080", "[::1]:8080"] {
                assert!(
                    TcpListener::bind(address).is_err() && UdpSocket::bind(address).is_err(),
                    "{address}"
                );
            }
            assert!(std::net::TcpStream::connect("[::1]:8080").is_err(), "it is refused at once");
            let disabled = std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1");
            if disabled.is_ok() {
                holder.hold("b", &HeldPort::held_for(localhost, 8081)).unwrap();
            }
            assert_eq!(HeldPort::held_for("192.0.2.1".parse().ok(), 80).len(), 2);
        });
    }

    #[test]
    fn only_the_ports_last_requested_are_held() {
        on_loopback(|| {
            let holder = PortHolder::default();
            let [first, second, third] = [1, 2, 3].map(|last| port(Transport::Udp, None, 9000 + last));
            holder.hold("a", &[first, second]).unwrap();
            holder.hold("a", &[second, third]).unwrap();
            assert_eq!(holder.held(), [second, third]);
            UdpSocket::bind("0.0.0.0:9001").unwrap();
            holder.hold("a", &[]).unwrap();
            assert_eq!(holder.held(), []);
        });
    }
}
