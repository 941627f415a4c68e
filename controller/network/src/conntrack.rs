//! Connections that the kernel tracks and translates.
//!
//! In: the address of an allocation that is gone. Out: the connections whose translated destination it was are forgotten, so that
//! the next packet of a client goes where its port leads now. A client that sends by UDP would else keep its connection alive.

use std::net::{IpAddr, SocketAddrV4};

use rustix::io::Errno;

use crate::{
    message::{self, Attributes, Message, REQUEST},
    socket::{NetlinkError, Object, Socket},
};

const SUBSYSTEM: u16 = 1;
const GET: u16 = 1;
const DELETE: u16 = 2;

/// Attributes of a connection (linux/netfilter/nfnetlink_conntrack.h).
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const ZONE: u16 = 18;
const FILTER: u16 = 25;

/// Attributes of a tuple.
const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const PROTOCOL_NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;

/// Attributes of addresses.
const SOURCE4: u16 = 1;
const SOURCE6: u16 = 3;

/// Attributes of a filter (Linux 5.8). Older kernels list all connections.
const FILTER_REPLY: u16 = 2;
const BY_SOURCE: u32 = 1;

/// Length of `struct nfgenmsg`.
const HEADER_LEN: usize = 4;

/// Marks an attribute that contains others.
const NESTED: u16 = 0x8000;

/// Forgets the connections that lead to this address by a translation.
///
/// # Errors
/// If the kernel does not answer, or has more connections than are listed.
pub(crate) fn forget(socket: &mut Socket, target: IpAddr) -> Result<(), NetlinkError> {
    forget_if(socket, target, |_| true)
}

/// Forgets the connections by UDP that lead to this address and port: they have no end, as long as clients send.
///
/// # Errors
/// As [`forget`].
pub(crate) fn forget_datagrams(socket: &mut Socket, target: SocketAddrV4) -> Result<(), NetlinkError> {
    const UDP: u8 = 17;
    forget_if(socket, (*target.ip()).into(), |reply| {
        let Some(protocol) = message::find(reply, TUPLE_PROTOCOL) else { return false };
        message::find(protocol, PROTOCOL_NUMBER) == Some(&[UDP])
            && message::find(protocol, SOURCE_PORT) == Some(&target.port().to_be_bytes())
    })
}

/// `is_meant` decides by the tuple of the connection's answers.
fn forget_if(
    socket: &mut Socket,
    target: IpAddr,
    is_meant: impl Fn(&[u8]) -> bool,
) -> Result<(), NetlinkError> {
    let (family, kind, bytes) = match target {
        IpAddr::V4(ip) => (2, SOURCE4, ip.octets().to_vec()),
        IpAddr::V6(ip) => (10, SOURCE6, ip.octets().to_vec()),
    };
    let source = Attributes::new().with_nested(TUPLE_IP, &Attributes::new().with(kind, &bytes));
    let filter = Attributes::new().with_u32(FILTER_REPLY, BY_SOURCE);
    let wanted = Attributes::new().with_nested(TUPLE_REPLY, &source).with_nested(FILTER, &filter);
    let found = socket.list("list connections", request(GET, family, wanted))?;
    let leads_there = |found: &&Object| {
        let reply = value(found, TUPLE_REPLY)?;
        let addresses = message::find(reply, TUPLE_IP)?;
        Some(message::find(addresses, kind)? == bytes && is_meant(reply))
    };
    for connection in found.iter().filter(|found| leads_there(found) == Some(true)) {
        // Without it all connections of the machine would be forgotten.
        let Some(original) = value(connection, TUPLE_ORIGINAL).filter(|tuple| !tuple.is_empty()) else {
            continue;
        };
        let mut named = Attributes::new().with(TUPLE_ORIGINAL | NESTED, original);
        if let Some(zone) = value(connection, ZONE) {
            named = named.with(ZONE, zone);
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
    message::attributes_after(&object.body, HEADER_LEN)
        .find_map(|(kind, value)| (kind == wanted).then_some(value))
}
