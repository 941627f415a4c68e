//! Connections that the kernel tracks and translates.
//!
//! In: the address of an allocation that is gone, or ports that have just been mapped. Out: the connections whose translated
//! destination it was, or that led to the ports without a translation, are forgotten, so that the next packet of a client goes where its
//! port leads now. A client that sends by UDP would else keep its connection alive.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use rustix::io::Errno;

use crate::{
    address::ip_of,
    message::{self, Attributes, Message, REQUEST},
    socket::{NetlinkError, Object, Socket},
};

const SUBSYSTEM: u16 = 1;
const GET: u16 = 1;
const DELETE: u16 = 2;

/// Attributes of a connection (linux/netfilter/nfnetlink_conntrack.h).
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const PROTOCOL_INFO: u16 = 4;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;

/// Attributes of a tuple.
const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;

/// Attributes of addresses.
const SOURCE4: u16 = 1;
const DESTINATION4: u16 = 2;
const SOURCE6: u16 = 3;
const DESTINATION6: u16 = 4;

/// Attributes of a protocol.
const PROTOCOL_NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;
const UDP: u8 = 17;

/// Attributes of a filter (Linux 5.8). Older kernels list all connections.
const FILTER_ORIGINAL: u16 = 1;
const FILTER_REPLY: u16 = 2;
const BY_SOURCE: u32 = 1;
const BY_PROTOCOL: u32 = 1 << 3;

/// The state of a connection by TCP, in an attribute for TCP.
const TCP: u16 = 1;
const TCP_STATE: u16 = 1;

/// States of a connection by TCP that has ended (linux/netfilter/nf_conntrack_tcp.h): TIME_WAIT and CLOSE.
const ENDED: [u8; 2] = [7, 8];

/// Families of addresses.
const INET: u8 = 2;
const INET6: u8 = 10;

/// Length of `struct nfgenmsg`.
const HEADER_LEN: usize = 4;

/// Marks an attribute that contains others.
const NESTED: u16 = 0x8000;

/// Forgets the connections that lead to these addresses by a translation.
///
/// # Errors
/// If the kernel does not answer, or has more such connections than are listed.
pub(crate) fn forget(socket: &mut Socket, targets: &BTreeSet<IpAddr>) -> Result<(), NetlinkError> {
    forget_if(socket, targets, |_| true)
}

/// Forgets the connections by UDP that lead to these addresses and ports: they have no end, as long as clients send.
///
/// # Errors
/// As [`forget`].
pub(crate) fn forget_datagrams(
    socket: &mut Socket,
    targets: &BTreeSet<SocketAddr>,
) -> Result<(), NetlinkError> {
    let addresses = targets.iter().map(SocketAddr::ip).collect();
    forget_if(socket, &addresses, |reply| source_of(reply).is_some_and(|source| targets.contains(&source)))
}

/// `is_meant` decides by the tuple of the connection's answers.
fn forget_if(
    socket: &mut Socket,
    targets: &BTreeSet<IpAddr>,
    is_meant: impl Fn(&[u8]) -> bool,
) -> Result<(), NetlinkError> {
    if targets.is_empty() {
        return Ok(());
    }
    let leads_there = |found: &Object| {
        let reply = value(found, TUPLE_REPLY)?;
        let source = ip_of_tuple(reply, [SOURCE4, SOURCE6])?;
        Some(targets.contains(&source) && is_meant(reply) && !has_ended(found))
    };
    forget_those(socket, from_targets(targets), |found| leads_there(found) == Some(true))
}

/// The kernel lists the connections of one address by itself; by an address of IPv6 it would list all but those.
fn from_targets(targets: &BTreeSet<IpAddr>) -> ListFilter {
    let (1, Some(IpAddr::V4(target))) = (targets.len(), targets.first()) else {
        return ListFilter::default();
    };
    let source = Attributes::new().with_nested(TUPLE_IP, &Attributes::new().with(SOURCE4, &target.octets()));
    let filter = Attributes::new().with_u32(FILTER_REPLY, BY_SOURCE);
    let attributes = Attributes::new().with_nested(TUPLE_REPLY, &source).with_nested(FILTER, &filter);
    ListFilter { family: INET, attributes }
}

/// Forgets the connections by UDP to these ports of the machine that are not translated: they began while nothing was mapped
/// there. Ports without an address are those of each address.
///
/// # Errors
/// As [`forget`].
pub(crate) fn forget_untranslated(
    socket: &mut Socket,
    ports: &BTreeSet<(Option<IpAddr>, u16)>,
) -> Result<(), NetlinkError> {
    let attributes = || {
        let protocol = Attributes::new().with(PROTOCOL_NUMBER, &[UDP]);
        let tuple = Attributes::new().with_nested(TUPLE_PROTOCOL, &protocol);
        let filter = Attributes::new().with_u32(FILTER_ORIGINAL, BY_PROTOCOL);
        Attributes::new().with_nested(TUPLE_ORIGINAL, &tuple).with_nested(FILTER, &filter)
    };
    let is_stale = |found: &Object| {
        let original = destination_of(value(found, TUPLE_ORIGINAL)?)?;
        let reply = source_of(value(found, TUPLE_REPLY)?)?;
        let is_mapped = |ip: Option<IpAddr>| ports.contains(&(ip, original.port()));
        Some(original == reply && (is_mapped(None) || is_mapped(Some(original.ip()))))
    };
    let has_v6 = ports.iter().any(|(ip, _)| ip.is_none_or(|ip| ip.is_ipv6()));
    for family in std::iter::once(INET).chain(has_v6.then_some(INET6)) {
        let wanted = ListFilter { family, attributes: attributes() };
        forget_those(socket, wanted, |found| is_stale(found) == Some(true))?;
    }
    Ok(())
}

/// Where the packets of a tuple come from; none for another protocol than UDP.
fn source_of(tuple: &[u8]) -> Option<SocketAddr> {
    side_of(tuple, ([SOURCE4, SOURCE6], SOURCE_PORT))
}

/// Where the packets of a tuple go; none for another protocol than UDP.
fn destination_of(tuple: &[u8]) -> Option<SocketAddr> {
    side_of(tuple, ([DESTINATION4, DESTINATION6], DESTINATION_PORT))
}

fn side_of(tuple: &[u8], (addresses, port): ([u16; 2], u16)) -> Option<SocketAddr> {
    let protocol = message::find(tuple, TUPLE_PROTOCOL)?;
    let ip = ip_of_tuple(tuple, addresses)?;
    let port: [u8; 2] = message::find(protocol, port)?.try_into().ok()?;
    let is_udp = message::find(protocol, PROTOCOL_NUMBER)? == [UDP];
    is_udp.then(|| SocketAddr::new(ip, u16::from_be_bytes(port)))
}

/// The first of these addresses that the tuple has.
fn ip_of_tuple(tuple: &[u8], addresses: [u16; 2]) -> Option<IpAddr> {
    let found = message::find(tuple, TUPLE_IP)?;
    addresses.into_iter().find_map(|kind| message::find(found, kind).and_then(ip_of))
}

/// Whether it is a connection by TCP that has ended. It leads nowhere: the kernel replaces it when its client uses the port again, and a
/// request to forget it could come after that, and end the new connection.
fn has_ended(found: &Object) -> bool {
    tcp_state(found).is_some_and(|state| ENDED.contains(&state))
}

fn tcp_state(found: &Object) -> Option<u8> {
    let tcp = message::find(value(found, PROTOCOL_INFO)?, TCP)?;
    message::find(tcp, TCP_STATE)?.first().copied()
}

/// What the kernel lists: by default all connections. Older kernels than 5.8 list more than the attributes name.
#[derive(Default)]
struct ListFilter {
    /// 0 for all.
    family: u8,
    attributes: Attributes,
}

/// Forgets those connections of a list that are meant.
fn forget_those(
    socket: &mut Socket,
    ListFilter { family, attributes }: ListFilter,
    is_meant: impl Fn(&Object) -> bool,
) -> Result<(), NetlinkError> {
    let found = socket.list_if("list connections", request(GET, family, attributes), is_meant)?;
    for connection in &found {
        let Some(family) = connection.body.first().copied() else { continue };
        // Without it all connections of the machine would be forgotten.
        let Some(original) = value(connection, TUPLE_ORIGINAL).filter(|tuple| !tuple.is_empty()) else {
            continue;
        };
        let mut named = Attributes::new().with(TUPLE_ORIGINAL | NESTED, original);
        // With its number, no other connection that has taken its place is forgotten.
        for kind in [ID, ZONE] {
            if let Some(value) = value(connection, kind) {
                named = named.with(kind, value);
            }
        }
        match socket.request("forget a connection", vec![request(DELETE, family, named)]) {
            // It has ended.
            Err(error) if error.errno() == Some(Errno::NOENT) => {}
            done => done?,
        }
    }
    Ok(())
}

fn request(kind: u16, family: u8, attributes: Attributes) -> Message {
    Message { kind: (SUBSYSTEM << 8) | kind, flags: REQUEST, fixed: vec![family, 0, 0, 0], attributes }
}

fn value(object: &Object, wanted: u16) -> Option<&[u8]> {
    message::find_after(&object.body, HEADER_LEN, wanted)
}

/// The states of the connections by TCP that lead to this address by a translation.
#[cfg(test)]
pub(crate) fn tcp_states(socket: &mut Socket, target: std::net::Ipv4Addr) -> Vec<u8> {
    let found = socket.list("list connections", request(GET, INET, Attributes::new())).unwrap();
    let leads_there = |found: &&Object| {
        let reply = value(found, TUPLE_REPLY).and_then(|reply| message::find(reply, TUPLE_IP));
        reply.and_then(|addresses| message::find(addresses, SOURCE4)) == Some(&target.octets())
    };
    found.iter().filter(leads_there).filter_map(tcp_state).collect()
}
