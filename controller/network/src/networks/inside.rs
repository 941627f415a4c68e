//! The inside of an allocation's network: its interface, with addresses and routes.

use std::net::{IpAddr, Ipv4Addr};

use super::{LOOPBACK, NetworkError, Networks, entering, inner_name, mac_of, machine::gateways};
use crate::{
    address::{self, InterfaceAddress},
    link::{self, InterfaceName, LinkError},
    namespace::Pin,
    route,
    socket::{Protocol, Socket},
};

impl Networks {
    /// The address of the interface in an allocation's namespace.
    pub(super) fn address_inside(&self, owner: &str) -> Result<Option<Ipv4Addr>, NetworkError> {
        let Pin::Kept(namespace) = self.pins.find(owner)? else { return Ok(None) };
        let mut inside = namespace.socket(Protocol::Route).map_err(entering)?;
        let Some(inner) = link::find(&mut inside, &inner_name()?)? else { return Ok(None) };
        let found = address::list(&mut inside)?.into_iter().filter(|(index, _)| *index == inner.index);
        let mut ours = found.filter_map(|(_, found)| match found.ip {
            IpAddr::V4(ip) => self.config.subnet4.position(ip).map(|_| ip),
            IpAddr::V6(_) => None,
        });
        Ok(ours.next())
    }

    /// Sets the interfaces inside up, with their addresses and routes. Other addresses are removed.
    pub(super) fn configure(
        &self,
        inside: &mut Socket,
        inner_name: &InterfaceName,
        addresses: &[InterfaceAddress],
    ) -> Result<(), NetworkError> {
        let inner = link::find(inside, inner_name)?.ok_or_else(|| LinkError::Vanished(inner_name.clone()))?;
        for (index, found) in address::list(inside)? {
            let is_link_local = matches!(found.ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
            if index == inner.index && !is_link_local && !addresses.contains(&found) {
                address::remove(inside, index, &found)?;
            }
        }
        let mut messages = vec![link::up(LOOPBACK), link::up(inner.index)];
        messages.extend(addresses.iter().map(|wanted| address::added(inner.index, wanted)));
        let gateways = gateways(&self.config);
        messages.extend(gateways.iter().map(|gateway| route::default_by(gateway.ip, inner.index)));
        Ok(inside.request("configure the network of the allocation", messages)?)
    }

    /// How the inside differs from what is wanted.
    pub(super) fn inner_difference(
        &self,
        inside: &mut Socket,
        address4: Ipv4Addr,
    ) -> Result<Option<&'static str>, NetworkError> {
        let Some(inner) = link::find(inside, &inner_name()?)? else { return Ok(Some("interface is gone")) };
        if inner.mtu != self.config.mtu {
            return Ok(Some("interface has another mtu"));
        }
        if !inner.is_up || inner.mac != Some(mac_of(address4)) {
            return Ok(Some("interface is down, or is another one"));
        }
        let found = address::list(inside)?;
        if !self.addresses(address4).iter().all(|wanted| found.contains(&(inner.index, *wanted))) {
            return Ok(Some("address is gone"));
        }
        let routes = route::list(inside)?;
        let leads_to = |gateway: &InterfaceAddress| {
            routes.iter().any(|route| route.destination.1 == 0 && route.gateway == Some(gateway.ip))
        };
        let has_routes = gateways(&self.config).iter().all(leads_to);
        Ok(if has_routes { None } else { Some("route is gone") })
    }
}
