//! Network interfaces, read from the kernel through rtnetlink (`man 7 rtnetlink`).
//!
//! In: none. Out: [`Interface`]s with their addresses, and [`InterfaceChanges`] on every change. This module does not
//! know their purpose.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::OwnedFd,
};

use herdlet_base::ready;
use herdlet_network::{
    message::{Attributes, Message, attributes_after, read_text, read_u32},
    socket::{Object, Protocol, Socket},
};
use rustix::{
    io::Errno,
    net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, netlink, recv, socket_with},
};
use tokio::io::{Interest, unix::AsyncFd};

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Interface {
    /// Such as `eth0`.
    pub name: String,
    /// Its hardware address in hexadecimal with colons; empty if it has none.
    pub mac: String,
    pub is_up: bool,
    /// Whether it is a loopback interface.
    pub is_loopback: bool,
    /// Whether it is the interface of the default route.
    pub is_default: bool,
    /// Its addresses with the prefix lengths of their networks.
    pub addresses: Vec<(IpAddr, u8)>,
}

// From linux/rtnetlink.h, linux/if_link.h and linux/if_addr.h.
const GET_LINK: u16 = 18;
const GET_ADDRESS: u16 = 22;
const GET_ROUTE: u16 = 26;
const LINK_ADDRESS: u16 = 1;
const LINK_NAME: u16 = 3;
const ADDRESS: u16 = 1;
const ADDRESS_LOCAL: u16 = 2;
const ROUTE_INTERFACE: u16 = 4;
const ROUTE_PRIORITY: u16 = 6;
const TABLE_MAIN: u8 = 254;
const TYPE_UNICAST: u8 = 1;
const FLAG_UP: u32 = 1;
const FLAG_LOOPBACK: u32 = 8;
/// Multicast groups: links, and addresses and routes of IPv4 and IPv6.
const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x100 | 0x400;

/// The maximum number of messages combined into one change, so that a flood can't block other work.
const TAKEN_MAX: usize = 256;

/// Reports changes of interfaces, addresses and routes.
pub struct InterfaceChanges(AsyncFd<OwnedFd>);

impl InterfaceChanges {
    /// Starts listening.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &netlink::SocketAddrNetlink::new(0, GROUPS))?;
        Ok(Self(ready::register(socket, Interest::READABLE)?))
    }

    /// Waits for the next change; all changes up to then count as one.
    ///
    /// # Errors
    /// If no further changes will be received.
    pub async fn next(&self) -> io::Result<()> {
        let mut ready = self.0.readable().await?;
        // The content is not needed: it may already be outdated.
        let mut buffer = [0_u8; 4 << 10];
        for _ in 0..TAKEN_MAX {
            match recv(&self.0, &mut buffer[..], RecvFlags::empty()) {
                // The kernel has dropped messages: a change in any case.
                Ok(_) | Err(Errno::NOBUFS | Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    ready.clear_ready();
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// All interfaces, in the kernel's order.
///
/// # Errors
/// If the kernel does not answer.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut socket = Socket::open(Protocol::Route)?;
    let mut found = BTreeMap::new();
    for link in list(&mut socket, GET_LINK, 16)? {
        read_link(&link.body, &mut found);
    }
    for address in list(&mut socket, GET_ADDRESS, 8)? {
        read_address(&address.body, &mut found);
    }
    let routes = list(&mut socket, GET_ROUTE, 12)?;
    let best = routes.iter().filter_map(|route| default_route(&route.body)).min();
    if let Some(interface) = best.and_then(|(_, _, index)| found.get_mut(&index)) {
        interface.is_default = true;
    }
    Ok(found.into_values().collect())
}

/// Lists objects; the request has an empty header of this length.
fn list(socket: &mut Socket, kind: u16, header_len: usize) -> io::Result<Vec<Object>> {
    let request = Message { kind, flags: 0, fixed: vec![0; header_len], attributes: Attributes::new() };
    socket.list("list interfaces", request).map_err(io::Error::other)
}

fn read_link(body: &[u8], found: &mut BTreeMap<u32, Interface>) {
    let (Some(index), Some(flags)) = (read_u32(body, 4), read_u32(body, 8)) else { return };
    let mut interface = Interface {
        is_up: flags & FLAG_UP != 0,
        is_loopback: flags & FLAG_LOOPBACK != 0,
        ..Interface::default()
    };
    for (kind, value) in attributes_after(body, 16) {
        match kind {
            LINK_NAME => interface.name = read_text(value),
            LINK_ADDRESS if value.iter().any(|byte| *byte != 0) => {
                let bytes: Vec<_> = value.iter().map(|byte| format!("{byte:02x}")).collect();
                interface.mac = bytes.join(":");
            }
            _ => {}
        }
    }
    found.insert(index, interface);
}

fn read_address(body: &[u8], found: &mut BTreeMap<u32, Interface>) {
    let (Some(index), Some(prefix)) = (read_u32(body, 4), body.get(1)) else { return };
    let Some(interface) = found.get_mut(&index) else { return };
    let address = |wanted: u16| {
        attributes_after(body, 8).find(|(kind, _)| *kind == wanted).and_then(|(_, ip)| ip_of(ip))
    };
    // On a tunnel, `ADDRESS` is the peer's.
    if let Some(ip) = address(ADDRESS_LOCAL).or_else(|| address(ADDRESS)) {
        interface.addresses.push((ip, *prefix));
    }
}

/// Whether a default route is for IPv6 only, its metric and its interface. The smallest value wins.
fn default_route(body: &[u8]) -> Option<(bool, u32, u32)> {
    let [family, destination, _, _, table, _, _, kind] = *body.first_chunk()?;
    if destination != 0 || table != TABLE_MAIN || kind != TYPE_UNICAST {
        return None;
    }
    let attribute = |wanted: u16| {
        attributes_after(body, 12).find(|(kind, _)| *kind == wanted).and_then(|(_, value)| read_u32(value, 0))
    };
    let is_ip6 = u16::from(family) == AddressFamily::INET6.as_raw();
    Some((is_ip6, attribute(ROUTE_PRIORITY).unwrap_or_default(), attribute(ROUTE_INTERFACE)?))
}

fn ip_of(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(Ipv4Addr::from(*bytes.first_chunk::<4>()?).into()),
        16 => Some(Ipv6Addr::from(*bytes.first_chunk::<16>()?).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_loopback() {
        let found = interfaces().unwrap();
        let loopback = found.iter().find(|interface| interface.name == "lo").unwrap();
        assert!(loopback.is_loopback && loopback.mac.is_empty() && !loopback.is_default, "{found:?}");
        let is_home = |(ip, prefix): &(IpAddr, u8)| *ip == IpAddr::from([127, 0, 0, 1]) && *prefix == 8;
        assert!(!loopback.is_up || loopback.addresses.iter().any(is_home), "{loopback:?}");
        assert!(found.iter().filter(|interface| interface.is_default).count() <= 1);
    }

    #[test]
    fn torn_bodies_are_no_interfaces() {
        let mut found = BTreeMap::new();
        for body in [&[][..], &[0; 3], &[0; 15], &[0xff; 20], &[0xff; 64]] {
            read_link(body, &mut found);
            read_address(body, &mut found);
            assert_eq!(default_route(body), None);
        }
    }
}
