//! What all allocations share on the machine: the bridge, its addresses, and settings of the kernel.

use std::net::IpAddr;

use rustix::io::Errno;

use super::{BridgeConfig, INTERFACE, NetworkError, Networks, gateway_mac, naming};
use crate::{
    address::{self, InterfaceAddress},
    host,
    link::{self, Bridge, InterfaceName, Link},
    route,
    socket::Socket,
    subnet::Subnet,
    sysctl::{Setting, SettingError},
};

impl Networks {
    /// Makes the bridge with its addresses, or corrects it. Other addresses, such as those of an earlier config, are removed: their
    /// routes would lead nowhere.
    ///
    /// # Errors
    /// If the network that it lacks overlaps with a route of the machine, or if the kernel refuses.
    pub(super) fn ensure_bridge(&self, socket: &mut Socket) -> Result<Link, NetworkError> {
        let config = &self.config;
        let wanted = gateways(config);
        let present = match link::find(socket, &config.name)? {
            Some(found) => addresses_of(socket, &found)?,
            None => Vec::new(),
        };
        if !present.contains(&config.subnet4.gateway()) {
            self.remove_earlier_bridges(socket)?;
        }
        self.refuse_overlap(socket, &present)?;
        let bridge = Bridge {
            name: &config.name,
            mtu: config.mtu,
            mac: gateway_mac(config.subnet4),
            alias: &self.alias(None),
        };
        let bridge = link::make_bridge(socket, &bridge)?;
        if config.subnet6.is_some() {
            // An agent without an IPv6 network has disabled it.
            set_all(vec![(Setting::DisableV6(config.name.as_str().to_owned()), "0")])?;
        }
        for other in addresses_of(socket, &bridge)?.iter().filter(|found| !wanted.contains(found)) {
            match address::remove(socket, bridge.index, other) {
                // Another thread removes it too.
                Err(error) if error.errno() == Some(Errno::ADDRNOTAVAIL) => {}
                removed => removed?,
            }
        }
        let added = wanted.iter().map(|gateway| address::added(bridge.index, gateway));
        socket.request("give the bridge its addresses", added.collect())?;
        Ok(bridge)
    }

    /// Refuses networks whose addresses the bridge does not have yet, and to which another route leads.
    fn refuse_overlap(&self, socket: &mut Socket, present: &[InterfaceAddress]) -> Result<(), NetworkError> {
        let BridgeConfig { name, subnet4, subnet6, .. } = &self.config;
        let of_v6 = subnet6.map(|subnet| (Subnet::from(subnet), subnet.gateway()));
        for (subnet, gateway) in std::iter::once((Subnet::from(*subnet4), subnet4.gateway())).chain(of_v6) {
            if !present.contains(&gateway)
                && let Some(route) = host::overlap(socket, subnet, name)?
            {
                let (ip, prefix) = route.destination;
                return Err(NetworkError::Overlap { subnet, ip, prefix });
            }
        }
        Ok(())
    }

    /// Removes bridges of this instance with other names: their networks move to the present one.
    fn remove_earlier_bridges(&self, socket: &mut Socket) -> Result<(), NetworkError> {
        let (alias, name) = (self.alias(None), self.config.name.as_str());
        let is_earlier = |found: &Link| found.kind == "bridge" && found.alias == alias && found.name != name;
        for earlier in link::list(socket)?.into_iter().filter(is_earlier) {
            link::delete(socket, &InterfaceName::new(&earlier.name).map_err(naming)?)?;
        }
        Ok(())
    }

    pub(super) fn ensure_settings(&self, socket: &mut Socket) -> Result<(), NetworkError> {
        set_all(self.settings())?;
        self.changed_settings.change(&Setting::ForwardV4, "1")?;
        if self.config.subnet6.is_some() {
            self.forward_v6(socket)?;
        }
        Ok(())
    }

    /// Restores the settings of the machine that were changed. Forwarding stays if another program has a virtual interface that is up,
    /// which may need it by now: a program that finds it turned on leaves no sign that it relies on it.
    pub(super) fn restore_settings(&self, socket: &mut Socket) -> Result<(), NetworkError> {
        let forwards = [Setting::ForwardV4, Setting::ForwardV6].map(|setting| setting.path());
        let others = link::list(socket)?.iter().any(|link| link.is_up && !link.kind.is_empty());
        Ok(self
            .changed_settings
            .restore(|path| !others || !forwards.iter().any(|forward| forward == path))?)
    }

    /// Forwards IPv6 packets. A machine that forwards ignores advertisements of routers, and so loses its own default route, unless
    /// the interface of that route is set to accept them nevertheless. A device of the machine may get its route later. Bridges
    /// without such a route, above all the own one, must not accept those of allocations.
    fn forward_v6(&self, socket: &mut Socket) -> Result<(), NetworkError> {
        if Setting::ForwardV6.get()?.as_deref() != Some("0") {
            return Ok(());
        }
        let defaults = route::list(socket)?.into_iter().filter(|route| route.destination.1 == 0);
        let of_v6: Vec<u32> =
            defaults.filter(|route| route.destination.0.is_ipv6()).map(|route| route.interface).collect();
        let is_uplink = |link: &Link| link.kind.is_empty() || of_v6.contains(&link.index);
        for uplink in link::list(socket)?.into_iter().filter(is_uplink) {
            let accept = Setting::AcceptRouters(uplink.name);
            if accept.get()?.as_deref() == Some("1") {
                self.changed_settings.change(&accept, "2")?;
            }
        }
        Ok(self.changed_settings.change(&Setting::ForwardV6, "1")?)
    }

    /// How what all allocations share differs from what is wanted.
    pub(super) fn machine_difference(
        &self,
        socket: &mut Socket,
        bridge: &Link,
    ) -> Result<Option<&'static str>, NetworkError> {
        let (wanted, found) = (gateways(&self.config), addresses_of(socket, bridge)?);
        if !wanted.iter().all(|gateway| found.contains(gateway)) {
            return Ok(Some("bridge lacks its address"));
        }
        if found.len() > wanted.len() {
            return Ok(Some("bridge has another address"));
        }
        if bridge.mtu != self.config.mtu {
            return Ok(Some("bridge has another mtu"));
        }
        let of_machine = (Setting::ForwardV4, "1");
        if !are_set(self.settings().into_iter().chain([of_machine]))? {
            return Ok(Some("setting of the kernel was changed"));
        }
        if self.config.subnet6.is_some() && Setting::ForwardV6.get()?.as_deref() == Some("0") {
            return Ok(Some("setting of the kernel was changed"));
        }
        Ok(if self.firewall.has_rules()? { None } else { Some("rules were changed") })
    }

    /// The settings of the bridge.
    fn settings(&self) -> Vec<(Setting, &'static str)> {
        let bridge = self.config.name.as_str();
        let mut settings = self.settings_of(bridge);
        settings.push((Setting::RouteLoopback(bridge.to_owned()), "1"));
        if self.config.subnet6.is_some() {
            settings.push((Setting::DetectDuplicates(bridge.to_owned()), "0"));
        }
        settings
    }

    /// The settings in the namespace of an allocation. There the kernel takes redirects if either value allows them.
    pub(super) fn inner_settings(&self) -> Vec<(Setting, &'static str)> {
        let mut settings = self.settings_of(INTERFACE);
        settings.push((Setting::AcceptRedirectsV4("all".to_owned()), "0"));
        settings
    }

    /// The settings of an interface on the bridge: an allocation must not become a router of the machine, or of others, by its messages.
    fn settings_of(&self, interface: &str) -> Vec<(Setting, &'static str)> {
        let interface = || interface.to_owned();
        let mut settings = vec![(Setting::AcceptRedirectsV4(interface()), "0")];
        if self.config.subnet6.is_some() {
            settings.push((Setting::DisableV6(interface()), "0"));
            settings.push((Setting::AcceptRouters(interface()), "0"));
            settings.push((Setting::AcceptRedirectsV6(interface()), "0"));
        } else {
            settings.push((Setting::DisableV6(interface()), "1"));
        }
        settings
    }
}

/// Changes settings, except those that this kernel does not have.
pub(super) fn set_all(settings: Vec<(Setting, &'static str)>) -> Result<(), SettingError> {
    for (setting, value) in settings {
        if setting.get()?.is_some() {
            setting.set(value)?;
        }
    }
    Ok(())
}

/// Whether settings have these values, except those that this kernel does not have.
pub(super) fn are_set(
    settings: impl IntoIterator<Item = (Setting, &'static str)>,
) -> Result<bool, SettingError> {
    for (setting, value) in settings {
        if setting.get()?.is_some_and(|found| found != value) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The addresses of the bridge.
pub(super) fn gateways(config: &BridgeConfig) -> Vec<InterfaceAddress> {
    let of_v6 = config.subnet6.map(|subnet| subnet.gateway());
    std::iter::once(config.subnet4.gateway()).chain(of_v6).collect()
}

/// The addresses of an interface, without those that it gives itself.
fn addresses_of(socket: &mut Socket, interface: &Link) -> Result<Vec<InterfaceAddress>, NetworkError> {
    let is_own = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let all = address::list(socket)?.into_iter();
    let of_interface = all.filter(|(index, found)| *index == interface.index && !is_own(found.ip));
    Ok(of_interface.map(|(_, found)| found).collect())
}
