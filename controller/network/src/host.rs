//! What the machine's own network demands of a bridge: the longest packet, and networks that it must not overlap.

use crate::{
    address::{self, InterfaceAddress},
    link::{self, InterfaceName},
    route::{self, Route},
    socket::{NetlinkError, Socket},
    subnet::{Subnet, Subnet4},
};

/// The longest packet if no route leads to others.
const MTU: u32 = 1500;

/// The longest packet that the machine can send to others: that of the interface of its default route. With a longer one,
/// large packets of allocations would be lost where answers that report it are filtered.
///
/// # Errors
/// If the kernel does not answer.
pub fn mtu(socket: &mut Socket) -> Result<u32, NetlinkError> {
    let Some(route) = route::default_route(socket)? else { return Ok(MTU) };
    let links = link::list(socket)?;
    let uplink = links.into_iter().find(|link| link.index == route.interface);
    Ok(uplink.map_or(MTU, |link| link.mtu))
}

/// Routes to networks larger than this are no obstacle: a VPN that takes all connections has routes of its own to each half of all
/// addresses. The bridge's own route is narrower, and is used instead.
const PREFIX_MIN: u8 = 8;

/// A route of the machine that leads to addresses of this network, through another interface than the bridge.
///
/// # Errors
/// If the kernel does not answer.
pub fn overlap(
    socket: &mut Socket,
    subnet: impl Into<Subnet>,
    bridge: &InterfaceName,
) -> Result<Option<Route>, NetlinkError> {
    let subnet = subnet.into();
    let overlaps = |route: &Route| {
        let (ip, prefix) = route.destination;
        prefix >= PREFIX_MIN && subnet.overlaps(ip, prefix)
    };
    let routes = route::list(socket)?;
    // Not earlier: another thread may just have made the bridge.
    let own = link::find(socket, bridge)?.map(|link| link.index);
    Ok(routes.into_iter().find(|route| Some(route.interface) != own && overlaps(route)))
}

/// The network of a bridge for which none is configured: the one that it has, else the first of [`Subnet4::defaults`] to which
/// no route leads. The first of all if there is none: making the bridge then names the route.
///
/// # Errors
/// If the kernel does not answer.
pub fn default_subnet(socket: &mut Socket, bridge: &InterfaceName) -> Result<Subnet4, NetlinkError> {
    if let Some(found) = link::find(socket, bridge)? {
        let addresses = address::list(socket)?.into_iter().filter(|(index, _)| *index == found.index);
        let addresses: Vec<InterfaceAddress> = addresses.map(|(_, address)| address).collect();
        if let Some(own) = Subnet4::defaults().find(|subnet| addresses.contains(&subnet.gateway())) {
            return Ok(own);
        }
    }
    for subnet in Subnet4::defaults() {
        if overlap(socket, subnet, bridge)?.is_none() {
            return Ok(subnet);
        }
    }
    Ok(Subnet4::DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        link::{Bridge, Mac},
        socket::Protocol,
        subnet::Subnet6,
        test_machine::on_machine,
    };

    #[test]
    fn bridge_fits_the_machine() {
        on_machine(|_| {
            let mut socket = Socket::open(Protocol::Route).unwrap();
            assert_eq!(mtu(&mut socket).unwrap(), MTU);
            let name = InterfaceName::new("uplink").unwrap();
            let uplink = Bridge { name: &name, mtu: 1400, mac: Mac([2, 0, 0, 0, 0, 1]), alias: "" };
            let uplink = link::make_bridge(&mut socket, &uplink).unwrap().index;
            let own = InterfaceAddress { ip: "172.26.70.7".parse().unwrap(), prefix: 24 };
            address::add(&mut socket, uplink, &own).unwrap();
            route::set_default(&mut socket, "172.26.70.1".parse().unwrap(), uplink).unwrap();
            assert_eq!(mtu(&mut socket).unwrap(), 1400);
            let subnet: Subnet4 = "172.26.64.0/20".parse().unwrap();
            let other = InterfaceName::new("br").unwrap();
            let found = overlap(&mut socket, subnet, &other).unwrap().unwrap();
            assert_eq!(found.destination, ("172.26.70.0".parse().unwrap(), 24));
            assert_eq!(overlap(&mut socket, subnet, &name).unwrap(), None, "its own route");
            let free: Subnet4 = "10.0.0.0/8".parse().unwrap();
            assert_eq!(overlap(&mut socket, free, &other).unwrap(), None);
            let own6 = InterfaceAddress { ip: "fd00:37::7".parse().unwrap(), prefix: 48 };
            address::add(&mut socket, uplink, &own6).unwrap();
            let taken: Subnet6 = "fd00:37::/64".parse().unwrap();
            let found = overlap(&mut socket, taken, &other).unwrap().unwrap();
            assert_eq!(found.destination, ("fd00:37::".parse().unwrap(), 48));
            let free6: Subnet6 = "fd00:38::/64".parse().unwrap();
            assert_eq!(overlap(&mut socket, free6, &other).unwrap(), None);
            // As a VPN has them that takes all connections.
            for half in ["0.0.0.0", "128.0.0.0"] {
                let router = "172.26.70.1".parse().unwrap();
                route::add(&mut socket, (half.parse().unwrap(), 1), (router, uplink)).unwrap();
            }
            assert_eq!(overlap(&mut socket, free, &other).unwrap(), None);
        });
    }

    #[test]
    fn default_network_is_free_and_stays() {
        on_machine(|_| {
            let mut socket = Socket::open(Protocol::Route).unwrap();
            let names = ["first", "second", "third"].map(|name| InterfaceName::new(name).unwrap());
            let mut chosen = Vec::new();
            for name in &names {
                let subnet = default_subnet(&mut socket, name).unwrap();
                chosen.push(subnet);
                let bridge = Bridge { name, mtu: 1500, mac: Mac([2, 0, 0, 0, 0, 1]), alias: "" };
                let index = link::make_bridge(&mut socket, &bridge).unwrap().index;
                address::add(&mut socket, index, &subnet.gateway()).unwrap();
            }
            assert_eq!(chosen, Subnet4::defaults().take(3).collect::<Vec<_>>());
            let again = names.each_ref().map(|name| default_subnet(&mut socket, name).unwrap());
            assert_eq!(again.to_vec(), chosen);
        });
    }
}
