//! Addresses of interfaces (rtnetlink(7)).

use std::net::IpAddr;

use crate::{
    message::{self, Attributes, CREATE, Message, REPLACE},
    socket::{NetlinkError, Object, Socket},
};

pub(crate) const NEW_ADDRESS: u16 = 20;
pub(crate) const DELETE_ADDRESS: u16 = 21;
const GET_ADDRESS: u16 = 22;

/// Length of `struct ifaddrmsg`.
const HEADER_LEN: usize = 8;

const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
const BROADCAST: u16 = 4;
const FLAGS: u16 = 8;

/// Usable at once: no other interface on a bridge of ours has the address.
const NO_DETECTION: u32 = 0x2;

/// An address with the length of its network's prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceAddress {
    /// The address.
    pub ip: IpAddr,
    /// How many leading bits are those of the network.
    pub prefix: u8,
}

impl InterfaceAddress {
    /// The last address of its network, which reaches all of them; only IPv4 has one.
    fn broadcast(&self) -> Option<[u8; 4]> {
        let IpAddr::V4(ip) = self.ip else { return None };
        let hosts = u32::MAX.checked_shr(u32::from(self.prefix)).filter(|_| self.prefix < 31)?;
        Some((ip.to_bits() | hosts).to_be_bytes())
    }
}

/// The bytes of an address.
pub(crate) fn bytes_of(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// The family of an address, as rtnetlink has it.
pub(crate) fn family_of(ip: IpAddr) -> u8 {
    let family = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    u8::try_from(family).unwrap_or_default()
}

/// An address from its bytes.
pub(crate) fn ip_of(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::from(*bytes.first_chunk::<4>()?)),
        16 => Some(IpAddr::from(*bytes.first_chunk::<16>()?)),
        _ => None,
    }
}

/// The request that adds an address; without effect if the interface has it.
pub(crate) fn added(index: u32, address: &InterfaceAddress) -> Message {
    let bytes = bytes_of(address.ip);
    let mut attributes = Attributes::new().with(LOCAL, &bytes).with(ADDRESS, &bytes);
    if let Some(broadcast) = address.broadcast() {
        attributes = attributes.with(BROADCAST, &broadcast);
    }
    attributes = attributes.with_u32(FLAGS, NO_DETECTION);
    Message { kind: NEW_ADDRESS, flags: CREATE | REPLACE, fixed: header(index, address), attributes }
}

/// Adds an address; without effect if the interface has it.
///
/// # Errors
/// If the kernel refuses.
pub fn add(socket: &mut Socket, index: u32, address: &InterfaceAddress) -> Result<(), NetlinkError> {
    socket.request(&format!("add the address {}", address.ip), vec![added(index, address)])
}

/// Removes an address.
///
/// # Errors
/// If the kernel refuses, for instance because the interface does not have it.
pub fn remove(socket: &mut Socket, index: u32, address: &InterfaceAddress) -> Result<(), NetlinkError> {
    let attributes = Attributes::new().with(LOCAL, &bytes_of(address.ip));
    let message = Message { kind: DELETE_ADDRESS, flags: 0, fixed: header(index, address), attributes };
    socket.request(&format!("remove the address {}", address.ip), vec![message])
}

/// All addresses of the namespace, each with the number of its interface.
///
/// # Errors
/// If the kernel does not answer.
pub fn list(socket: &mut Socket) -> Result<Vec<(u32, InterfaceAddress)>, NetlinkError> {
    let fixed = vec![0; HEADER_LEN];
    let message = Message { kind: GET_ADDRESS, flags: 0, fixed, attributes: Attributes::new() };
    Ok(socket.list("list addresses", message)?.iter().filter_map(read).collect())
}

/// A `struct ifaddrmsg`.
fn header(index: u32, address: &InterfaceAddress) -> Vec<u8> {
    let mut bytes = vec![family_of(address.ip), address.prefix, 0, 0];
    bytes.extend(index.to_ne_bytes());
    bytes
}

fn read(object: &Object) -> Option<(u32, InterfaceAddress)> {
    if object.kind == NEW_ADDRESS { read_body(&object.body) } else { None }
}

/// The address that a message of the kernel is about, with the number of its interface.
pub(crate) fn read_body(body: &[u8]) -> Option<(u32, InterfaceAddress)> {
    let (prefix, index) = (*body.get(1)?, message::read_u32(body, 4)?);
    let of_kind = |wanted: u16| {
        message::attributes_after(body, HEADER_LEN)
            .find_map(|(kind, value)| (kind == wanted).then(|| ip_of(value))?)
    };
    // On a tunnel, the other one is the peer's.
    let ip = of_kind(LOCAL).or_else(|| of_kind(ADDRESS))?;
    Some((index, InterfaceAddress { ip, prefix }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{socket::Protocol, test_machine::on_machine};

    fn address(ip: &str, prefix: u8) -> InterfaceAddress {
        InterfaceAddress { ip: ip.parse().unwrap(), prefix }
    }

    #[test]
    fn broadcast_is_the_last_address() {
        assert_eq!(address("172.26.64.9", 20).broadcast(), Some([172, 26, 79, 255]));
        assert_eq!(address("10.0.0.1", 0).broadcast(), Some([255; 4]));
        assert_eq!(address("10.0.0.1", 31).broadcast(), None);
        assert_eq!(address("10.0.0.1", 32).broadcast(), None);
        assert_eq!(address("10.0.0.1", 255).broadcast(), None);
        assert_eq!(address("fd00::1", 64).broadcast(), None);
    }

    #[test]
    fn addresses_are_added_once_and_removed() {
        on_machine(|_| {
            let mut socket = Socket::open(Protocol::Route).unwrap();
            let loopback = 1;
            assert_eq!(list(&mut socket).unwrap(), []);
            let all = [address("192.0.2.7", 24), address("fd00::7", 64)];
            for each in all.iter().chain(&all) {
                add(&mut socket, loopback, each).unwrap();
            }
            let mut found = list(&mut socket).unwrap();
            found.sort();
            assert_eq!(found, all.map(|each| (loopback, each)));
            for each in all {
                remove(&mut socket, loopback, &each).unwrap();
            }
            assert_eq!(list(&mut socket).unwrap(), []);
            let gone = remove(&mut socket, loopback, &all[0]).unwrap_err();
            assert_eq!(gone.errno(), Some(rustix::io::Errno::ADDRNOTAVAIL));
            let nowhere = add(&mut socket, 4_000, &all[0]).unwrap_err();
            assert_eq!(nowhere.errno(), Some(rustix::io::Errno::NODEV), "{nowhere}");
        });
    }

    #[test]
    fn torn_objects_are_no_addresses() {
        for len in 0..24 {
            let object = Object { kind: NEW_ADDRESS, body: vec![0xff; len] };
            assert_eq!(read(&object), None, "{len}");
        }
    }
}
