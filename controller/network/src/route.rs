//! Routes of the main table (rtnetlink(7)).

use std::net::IpAddr;

use crate::{
    address::{bytes_of, family_of, ip_of},
    message::{self, Attributes, CREATE, Message, REPLACE},
    socket::{NetlinkError, Object, Socket},
};

const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;

/// Length of `struct rtmsg`.
const HEADER_LEN: usize = 12;

const DESTINATION: u16 = 1;
const INTERFACE: u16 = 4;
const GATEWAY: u16 = 5;
const PRIORITY: u16 = 6;
const TABLE: u16 = 15;

const TABLE_MAIN: u8 = 254;
/// Made by a program, not by the kernel or a routing daemon.
const BY_ADMINISTRATOR: u8 = 4;
const UNICAST: u8 = 1;

/// A route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// The destinations: an address and the length of its prefix.
    pub destination: (IpAddr, u8),
    /// The router, if it is not a network of the interface itself.
    pub gateway: Option<IpAddr>,
    /// The number of the interface.
    pub interface: u32,
    /// Of several routes, the one with the lowest number is taken.
    pub priority: u32,
}

/// The request that makes this router the one for all destinations that have no route of their own. It replaces an earlier
/// one.
pub(crate) fn default_by(gateway: IpAddr, interface: u32) -> Message {
    let attributes = Attributes::new().with(GATEWAY, &bytes_of(gateway)).with_u32(INTERFACE, interface);
    let mut fixed = vec![family_of(gateway), 0, 0, 0, TABLE_MAIN, BY_ADMINISTRATOR, 0, UNICAST];
    fixed.resize(HEADER_LEN, 0);
    Message { kind: NEW_ROUTE, flags: CREATE | REPLACE, fixed, attributes }
}

/// Makes this router the one for these destinations.
#[cfg(test)]
pub(crate) fn add(
    socket: &mut Socket,
    (ip, prefix): (IpAddr, u8),
    (gateway, interface): (IpAddr, u32),
) -> Result<(), NetlinkError> {
    let mut message = default_by(gateway, interface);
    message.fixed[1] = prefix;
    message.attributes = message.attributes.with(DESTINATION, &bytes_of(ip));
    socket.request("add a route", vec![message])
}

/// Makes this router the one for all destinations that have no route of their own.
///
/// # Errors
/// If the kernel refuses, for instance because no interface reaches it.
pub fn set_default(socket: &mut Socket, gateway: IpAddr, interface: u32) -> Result<(), NetlinkError> {
    socket.request(&format!("route through {gateway}"), vec![default_by(gateway, interface)])
}

/// All routes of the main table.
///
/// # Errors
/// If the kernel does not answer.
pub fn list(socket: &mut Socket) -> Result<Vec<Route>, NetlinkError> {
    let fixed = vec![0; HEADER_LEN];
    let message = Message { kind: GET_ROUTE, flags: 0, fixed, attributes: Attributes::new() };
    Ok(socket.list("list routes", message)?.iter().filter_map(read).collect())
}

/// The route for all destinations that have no route of their own, if any; IPv4's comes first.
///
/// # Errors
/// If the kernel does not answer.
pub fn default_route(socket: &mut Socket) -> Result<Option<Route>, NetlinkError> {
    let routes = list(socket)?.into_iter().filter(|route| route.destination.1 == 0);
    Ok(routes.min_by_key(|route| (route.destination.0.is_ipv6(), route.priority)))
}

fn read(object: &Object) -> Option<Route> {
    if object.kind != NEW_ROUTE {
        return None;
    }
    let body = &object.body;
    let [family, prefix, _, _, table, _, _, kind] = *body.first_chunk()?;
    let value = |wanted: u16| message::find_after(body, HEADER_LEN, wanted);
    let number = |wanted: u16| value(wanted).and_then(|value| message::read_u32(value, 0));
    let table = number(TABLE).unwrap_or(u32::from(table));
    if table != u32::from(TABLE_MAIN) || kind != UNICAST {
        return None;
    }
    let any = if i32::from(family) == libc::AF_INET6 { ip_of(&[0; 16])? } else { ip_of(&[0; 4])? };
    Some(Route {
        destination: (value(DESTINATION).and_then(ip_of).unwrap_or(any), prefix),
        gateway: value(GATEWAY).and_then(ip_of),
        interface: number(INTERFACE)?,
        priority: number(PRIORITY).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        address::{self, InterfaceAddress},
        link::{self, Bridge, InterfaceName, Mac},
        socket::Protocol,
        test_machine::on_machine,
    };

    #[test]
    fn default_route_is_set_and_replaced() {
        on_machine(|_| {
            let mut socket = Socket::open(Protocol::Route).unwrap();
            assert_eq!(default_route(&mut socket).unwrap(), None);
            let name = InterfaceName::new("br").unwrap();
            let bridge = Bridge { name: &name, mtu: 1500, mac: Mac([2, 0, 0, 0, 0, 1]), alias: "" };
            let bridge = link::make_bridge(&mut socket, &bridge).unwrap().index;
            let refused = set_default(&mut socket, "192.0.2.1".parse().unwrap(), bridge).unwrap_err();
            assert!(refused.to_string().starts_with("route through 192.0.2.1: "), "{refused}");
            for (ip, prefix) in [("192.0.2.7", 24), ("fd00::7", 64)] {
                let wanted = InterfaceAddress { ip: ip.parse().unwrap(), prefix };
                address::add(&mut socket, bridge, &wanted).unwrap();
            }
            for gateway in ["192.0.2.1", "192.0.2.2", "192.0.2.2", "fd00::1", "fd00::1"] {
                set_default(&mut socket, gateway.parse().unwrap(), bridge).unwrap();
            }
            let found = default_route(&mut socket).unwrap().unwrap();
            assert_eq!(found.gateway, Some("192.0.2.2".parse().unwrap()));
            let defaults = list(&mut socket).unwrap().into_iter().filter(|route| route.destination.1 == 0);
            let mut gateways: Vec<IpAddr> = defaults.filter_map(|route| route.gateway).collect();
            gateways.sort();
            assert_eq!(gateways, ["192.0.2.2", "fd00::1"].map(|ip| ip.parse::<IpAddr>().unwrap()));
        });
    }

    #[test]
    fn torn_objects_are_no_routes() {
        for len in 0..24 {
            assert_eq!(read(&Object { kind: NEW_ROUTE, body: vec![0xff; len] }), None);
            assert_eq!(read(&Object { kind: NEW_ROUTE, body: vec![1; len] }), None);
        }
    }
}
