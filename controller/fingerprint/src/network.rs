//! The node's addresses, from which Nomad's servers assign ports: by the names of host networks, most commonly
//! `default`.
//!
//! In: the machine's interfaces and the network config. Out: networks as reported to servers. No IO.

use std::{fmt, net::IpAddr, str::FromStr};

use herdlet_nomad::wire::resources::{NetworkResource, NodeAddress, NodeNetwork};

use super::Interface;
use crate::{Family, NetworkRules};

/// Default interface speed in Mbit/s, as in Nomad.
pub const SPEED: u32 = 1_000;

/// The host network for ports that name no other.
const DEFAULT: &str = "default";

/// A network: an address and a prefix length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

/// An invalid network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a network such as 10.0.0.0/8, found \"{0}\"")]
pub struct NetworkError(String);

impl Network {
    pub fn contains(&self, ip: IpAddr) -> bool {
        let bits = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => (u128::from(ip.to_bits()) << 96, 32),
            IpAddr::V6(ip) => (ip.to_bits(), 128),
        };
        let ((ours, length), (theirs, other)) = (bits(self.address), bits(ip));
        let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
        length == other && (ours ^ theirs) & mask == 0
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let error = || NetworkError(text.to_owned());
        let (address, prefix) = text.trim().split_once('/').ok_or_else(error)?;
        let address: IpAddr = address.parse().map_err(|_| error())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.parse().ok().filter(|prefix| *prefix <= most).ok_or_else(error)?;
        Ok(Self { address, prefix })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// Whether an address is link-local.
pub fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// The node's networks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Networks {
    /// Interfaces that have a named address.
    pub nodes: Vec<NodeNetwork>,
    /// The default interface, once for each address.
    pub resources: Vec<NetworkResource>,
    /// The node's own address.
    pub ip: Option<IpAddr>,
}

/// Computes the networks to report. `speed_of`: an interface's speed in Mbit/s, if known.
pub fn networks(
    interfaces: &[Interface],
    rules: &NetworkRules,
    speed_of: impl Fn(&str) -> Option<u32>,
) -> Networks {
    let mut found = Networks::default();
    for interface in interfaces {
        let is_default = match &rules.interface {
            Some(name) => *name == interface.name,
            None => interface.is_default,
        };
        let speed = rules.speed.or_else(|| speed_of(&interface.name)).unwrap_or(SPEED);
        let mut named: Vec<(IpAddr, NodeAddress)> = Vec::new();
        for (ip, _) in &interface.addresses {
            let aliases = rules.host_networks.iter().filter(|network| network.has(&interface.name, *ip));
            let aliases = aliases.map(|network| (network.name.as_str(), network.reserved_ports.clone()));
            let own = is_default.then(|| (DEFAULT, String::new()));
            named.extend(
                aliases.chain(own).map(|(alias, reserved_ports)| (*ip, address(*ip, alias, reserved_ports))),
            );
        }
        // Link-local addresses count only if there are no others, as in Nomad.
        if named.iter().any(|(ip, _)| !is_link_local(*ip)) || rules.disallow_link_local {
            named.retain(|(ip, _)| !is_link_local(*ip));
        }
        named.sort_by_key(|(ip, _)| rules.family.is_some_and(|family| family != Family::of(*ip)));
        if named.is_empty() {
            continue;
        }
        if is_default {
            let own = named.iter().filter(|(_, address)| address.alias == DEFAULT);
            let own: Vec<IpAddr> = own.map(|(ip, _)| *ip).collect();
            found.ip = own.first().copied();
            found.resources = own.into_iter().map(|ip| resource(ip, &interface.name, speed)).collect();
        }
        found.nodes.push(NodeNetwork {
            mode: "host".to_owned(),
            device: interface.name.clone(),
            mac_address: interface.mac.clone(),
            speed: i64::from(speed),
            addresses: named.into_iter().map(|(_, address)| address).collect(),
        });
    }
    found
}

fn address(ip: IpAddr, alias: &str, reserved_ports: String) -> NodeAddress {
    NodeAddress {
        family: if ip.is_ipv4() { "ipv4" } else { "ipv6" }.to_owned(),
        alias: alias.to_owned(),
        address: ip.to_string(),
        reserved_ports,
        gateway: String::new(),
    }
}

fn resource(ip: IpAddr, device: &str, speed: u32) -> NetworkResource {
    NetworkResource {
        mode: "host".to_owned(),
        device: device.to_owned(),
        cidr: format!("{ip}/{}", if ip.is_ipv4() { 32 } else { 128 }),
        ip: ip.to_string(),
        mbits: i64::from(speed),
        ..NetworkResource::default()
    }
}

/// The link speed in Mbit/s, from the kernel. Unknown for virtual links.
pub fn speed_of(interface: &str) -> Option<u32> {
    let is_plain = !interface.contains('/') && interface != "..";
    let text =
        std::fs::read_to_string(format!("/sys/class/net/{interface}/speed")).ok().filter(|_| is_plain)?;
    text.trim().parse().ok().filter(|speed| *speed > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostNetwork;

    fn machine() -> Vec<Interface> {
        let interface = |name: &str, addresses: &[&str]| Interface {
            name: name.to_owned(),
            mac: if name == "lo" { String::new() } else { "02:00:00:00:00:01".to_owned() },
            is_up: true,
            is_default: name == "eth0",
            addresses: addresses.iter().map(|ip| (ip.parse().unwrap(), 24)).collect(),
            ..Interface::default()
        };
        vec![
            interface("lo", &["127.0.0.1", "::1"]),
            interface("eth0", &["fe80::1", "10.0.0.7", "2001:db8::7"]),
            interface("eth1", &["192.168.1.7"]),
        ]
    }

    fn addresses(found: &Networks) -> Vec<String> {
        let text_of = |network: &NodeNetwork| {
            let addresses = network.addresses.iter();
            let addresses: Vec<_> =
                addresses.map(|one| format!("{}={}{}", one.alias, one.address, one.reserved_ports)).collect();
            format!("{} {}", network.device, addresses.join(" "))
        };
        found.nodes.iter().map(text_of).collect()
    }

    #[test]
    fn the_default_interface_is_the_one_of_the_default_route() {
        let found = networks(&machine(), &NetworkRules::default(), |_| Some(10_000));
        assert_eq!(addresses(&found), ["eth0 default=10.0.0.7 default=2001:db8::7"]);
        assert_eq!(found.ip, Some(IpAddr::from([10, 0, 0, 7])));
        let [first, second] = &found.resources[..] else { panic!("{found:?}") };
        assert_eq!((first.cidr.as_str(), second.cidr.as_str()), ("10.0.0.7/32", "2001:db8::7/128"));
        assert_eq!((first.mbits, found.nodes[0].speed), (10_000, 10_000));
        assert_eq!(found.nodes[0].mac_address, "02:00:00:00:00:01");
    }

    #[test]
    fn the_config_names_interfaces_networks_and_the_family() {
        let network = |name: &str, cidr: &[&str], interface: Option<&str>| HostNetwork {
            name: name.to_owned(),
            cidr: cidr.iter().map(|cidr| cidr.parse().unwrap()).collect(),
            interface: interface.map(str::to_owned),
            reserved_ports: if name == "all" { ":22".to_owned() } else { String::new() },
        };
        let rules = NetworkRules {
            interface: Some("lo".to_owned()),
            speed: Some(100),
            family: Some(Family::Ipv6),
            host_networks: vec![
                network("private", &["10.0.0.0/8", "192.168.0.0/16"], None),
                network("all", &[], Some("eth1")),
                network("none", &["10.0.0.0/8"], Some("eth1")),
            ],
            disallow_link_local: false,
        };
        let found = networks(&machine(), &rules, |_| None);
        let expected = [
            "lo default=::1 default=127.0.0.1",
            "eth0 private=10.0.0.7",
            "eth1 private=192.168.1.7 all=192.168.1.7:22",
        ];
        assert_eq!(addresses(&found), expected);
        assert_eq!(found.ip, Some("::1".parse().unwrap()));
    }

    #[test]
    fn a_link_local_address_is_better_than_none() {
        let mut machine = machine();
        machine[1].addresses.retain(|(ip, _)| is_link_local(*ip));
        assert_eq!(
            addresses(&networks(&machine, &NetworkRules::default(), |_| None)),
            ["eth0 default=fe80::1"]
        );
        let rules = NetworkRules { disallow_link_local: true, ..NetworkRules::default() };
        assert_eq!(networks(&machine, &rules, |_| None), Networks::default());
    }

    #[test]
    fn networks_are_read() {
        let holds =
            |network: &str, ip: &str| network.parse::<Network>().unwrap().contains(ip.parse().unwrap());
        assert!(holds("10.0.0.0/8", "10.255.0.1") && !holds("10.0.0.0/8", "11.0.0.1"));
        assert!(holds("0.0.0.0/0", "11.0.0.1") && !holds("0.0.0.0/0", "::1") && holds("::/0", "::1"));
        assert!(holds("10.0.0.1/32", "10.0.0.1") && !holds("10.0.0.1/32", "10.0.0.2"));
        assert!(holds("2001:db8::/32", "2001:db8:1::1"));
        for text in ["10.0.0.0", "10.0.0.0/33", "x/8", "::/129", ""] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
