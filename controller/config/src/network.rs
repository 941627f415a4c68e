//! The section `network`: the bridge of networks in mode `bridge`, the directories of CNI, and networks of the machine that ports can be on.
//!
//! In: the section of a config file. Out: [`Network`], with all defaults filled in, or problems.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use herdlet_cni::config::Directories;
use herdlet_fingerprint::{HostNetwork, Interface, is_link_local};
use herdlet_network::{
    link::{Hairpin, InterfaceName},
    subnet::{Subnet4, Subnet6},
};
use herdlet_plan::job::ports as plan;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    check,
    cluster::{self, HostNetworkSection},
};

/// The section of a config file.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Section {
    /// Name of the bridge; default `herdlet`, for an agent with another state directory than /var/lib/herdlet `hl-` and 8 digits.
    pub bridge: Option<String>,
    /// Network of the bridge, which has the first address; default 172.26.80.0/20, or the next one to which no route leads.
    pub subnet: Option<String>,
    /// IPv6 network of the bridge, such as fd00:37::/64; default none.
    pub subnet6: Option<String>,
    /// Longest packet in bytes; default that of the machine's default route.
    #[schemars(range(min = 576, max = 65535))]
    pub mtu: Option<u32>,
    /// Whether an allocation reaches itself through a port of the machine; default false.
    pub hairpin: bool,
    /// Whether allocations in mode `bridge` resolve names with the agent: services of the zone `herdlet`, and all others as the machine does; default true.
    pub dns: Option<bool>,
    /// Directories of CNI plugins, separated by `:`; default /opt/cni/bin:/usr/libexec/cni:/usr/lib/cni.
    pub cni_path: Option<String>,
    /// Directory of config files of CNI networks; default /opt/cni/config.
    pub cni_config_dir: Option<String>,
    /// Networks of the machine that `host_network` of a port can name, also outside a cluster.
    pub host_networks: Vec<HostNetworkSection>,
}

/// The networks of allocations.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    /// Its name; `None` for one that follows from the instance.
    pub bridge: Option<InterfaceName>,
    /// Its network; `None` for one that is free.
    pub subnet: Option<Subnet4>,
    /// Its IPv6 network, if it has one.
    pub subnet6: Option<Subnet6>,
    /// The longest packet; `None` for that of the machine's default route.
    pub mtu: Option<u32>,
    /// Whether it sends back through a port what arrived through it.
    pub hairpin: Hairpin,
    /// Whether allocations on the bridge resolve names with the agent.
    pub dns: NameServing,
    /// Where CNI networks and their plugins are.
    pub cni: Directories,
    /// The machine's networks that ports can name: those of this section, and those of the section `cluster`.
    pub host_networks: Vec<HostNetwork>,
}

pub use herdlet_network::networks::NameServing;

/// The state directory whose agent has the bridge with the plain name.
const STATE_DIR: &str = "/var/lib/herdlet";
/// The plain name.
const BRIDGE: &str = "herdlet";

/// The shortest and the longest packet that a bridge of IPv4 can be made for.
const MTU: std::ops::RangeInclusive<u32> = 576..=65_535;

/// The shortest packet that a bridge of IPv6 can be made for (RFC 8200).
const MTU6_MIN: u32 = 1280;

impl Section {
    /// Checks what the types can't express. Returns problems by field.
    pub(super) fn problems(&self) -> Vec<(String, String)> {
        let bridge = self.bridge.as_deref().and_then(|name| InterfaceName::new(name).err());
        let subnet = self.subnet.as_deref().and_then(|text| text.parse::<Subnet4>().err());
        // In Nomad's files an empty text is none.
        let subnet6 = self.subnet6.as_deref().filter(|text| !text.is_empty());
        let invalid6 = subnet6.and_then(|text| text.parse::<Subnet6>().err());
        let min = if subnet6.is_some() { MTU6_MIN } else { *MTU.start() };
        let mtu = self.mtu.filter(|mtu| !(min..=*MTU.end()).contains(mtu));
        let with = if subnet6.is_some() { " with an IPv6 network" } else { "" };
        let mtu = mtu.map(|mtu| format!("must be {min} to {}{with}, found {mtu}", MTU.end()));
        let problems = [
            ("bridge", bridge.map(|error| error.to_string())),
            ("subnet", subnet.map(|error| error.to_string())),
            ("subnet6", invalid6.map(|error| error.to_string())),
            ("mtu", mtu),
            ("cni_path", self.cni_path.as_deref().and_then(|path| path.split(':').find_map(relative))),
            ("cni_config_dir", self.cni_config_dir.as_deref().and_then(relative)),
        ];
        let own = problems.into_iter().filter_map(|(at, message)| Some((at.to_owned(), message?)));
        own.chain(cluster::host_network_problems(&self.host_networks)).collect()
    }

    /// Fills in the defaults. Invalid values are already reported as problems of the file.
    pub(super) fn settled(self, state_dir: &Path) -> Network {
        let plain = || (state_dir == Path::new(STATE_DIR)).then(|| BRIDGE.to_owned());
        Network {
            bridge: self.bridge.or_else(plain).and_then(|name| InterfaceName::new(&name).ok()),
            subnet: self.subnet.and_then(|text| text.parse().ok()),
            subnet6: self.subnet6.and_then(|text| text.parse().ok()),
            mtu: self.mtu,
            hairpin: if self.hairpin { Hairpin::On } else { Hairpin::Off },
            dns: if self.dns.unwrap_or(true) { NameServing::On } else { NameServing::Off },
            cni: directories(self.cni_path.as_deref(), self.cni_config_dir),
            host_networks: self.host_networks.into_iter().map(HostNetworkSection::settled).collect(),
        }
    }
}

fn relative(dir: &str) -> Option<String> {
    let is_absolute = Path::new(dir).is_absolute();
    (!is_absolute).then(|| format!("must be absolute paths of directories, found {dir:?}"))
}

fn directories(plugins: Option<&str>, configs: Option<String>) -> Directories {
    let default = Directories::default();
    Directories {
        configs: configs.map_or(default.configs, PathBuf::from),
        plugins: plugins.map_or(default.plugins, |path| path.split(':').map(PathBuf::from).collect()),
    }
}

impl Network {
    /// The networks that ports can name, with the addresses that the machine has now.
    ///
    /// # Errors
    /// If the kernel does not list its addresses.
    pub fn host_networks_on_machine(&self) -> io::Result<BTreeMap<String, plan::HostNetwork>> {
        if self.host_networks.is_empty() {
            return Ok(BTreeMap::new());
        }
        Ok(self.host_networks_on(&herdlet_fingerprint::interfaces()?))
    }

    /// The same on a machine with these interfaces. IPv4 comes first, because a port of an IPv6 address leads only to bridges with an IPv6
    /// network; link-local addresses come late, because clients would have to name an interface, and loopback ones last.
    fn host_networks_on(&self, interfaces: &[Interface]) -> BTreeMap<String, plan::HostNetwork> {
        let mut found = BTreeMap::<String, plan::HostNetwork>::new();
        for network in &self.host_networks {
            let of_interface = |interface: &Interface| {
                let own = interface.addresses.iter().map(|(ip, _)| *ip);
                own.filter(|ip| network.has(&interface.name, *ip)).collect::<Vec<_>>()
            };
            let ip = interfaces
                .iter()
                .flat_map(of_interface)
                .min_by_key(|ip| (ip.is_loopback(), is_link_local(*ip), ip.is_ipv6()));
            let named = found.entry(network.name.clone()).or_default();
            named.ip = named.ip.take().or(ip.map(|ip| ip.to_string()));
            // Invalid ports are already reported as problems of the file.
            named.reserved_ports.extend(check::ports(&network.reserved_ports).unwrap_or_default());
        }
        found
    }
}

/// That of an agent without a config.
impl Default for Network {
    fn default() -> Self {
        Self {
            bridge: None,
            subnet: None,
            subnet6: None,
            mtu: None,
            hairpin: Hairpin::Off,
            dns: NameServing::On,
            cni: Directories::default(),
            host_networks: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::manifest::Text;

    use super::*;

    fn settled(section: Section, state_dir: &str) -> Network {
        section.settled(Path::new(state_dir))
    }

    #[test]
    fn only_the_agent_of_the_machine_has_the_plain_name() {
        let name = |state_dir: &str| settled(Section::default(), state_dir).bridge;
        assert_eq!(name(STATE_DIR).unwrap().as_str(), "herdlet");
        assert_eq!(name("/srv/other"), None);
        let section = Section { bridge: Some("br0".to_owned()), ..Section::default() };
        assert_eq!(settled(section, "/srv/other").bridge.unwrap().as_str(), "br0");
        let default = Network { bridge: name(STATE_DIR), ..Network::default() };
        assert_eq!(settled(Section::default(), STATE_DIR), default);
    }

    #[test]
    fn directories_of_cni_are_those_of_nomad_unless_they_are_set() {
        let default = settled(Section::default(), STATE_DIR).cni;
        assert_eq!((default.configs.to_str(), default.plugins.len()), (Some("/opt/cni/config"), 3));
        let section = Section {
            cni_path: Some("/a:/b".to_owned()),
            cni_config_dir: Some("/etc/cni/net.d".to_owned()),
            ..Section::default()
        };
        let set = settled(section, STATE_DIR).cni;
        assert_eq!((set.configs, set.plugins), ("/etc/cni/net.d".into(), vec!["/a".into(), "/b".into()]));
    }

    #[test]
    fn impossible_bridges_are_refused() {
        let section = Section {
            bridge: Some("a/b".to_owned()),
            subnet: Some("172.26.64.0".to_owned()),
            subnet6: Some("172.26.64.0/20".to_owned()),
            mtu: Some(60),
            cni_path: Some("/opt/cni/bin:cni".to_owned()),
            cni_config_dir: Some(String::new()),
            ..Section::default()
        };
        let expected = [
            (
                "bridge",
                "expected the name of an interface, 1 to 15 characters without blanks, `/` and `:`, found \"a/b\"",
            ),
            ("subnet", "expected a network such as 172.26.64.0/20, found \"172.26.64.0\""),
            ("subnet6", "expected a network such as fd00:37::/64, found \"172.26.64.0/20\""),
            ("mtu", "must be 1280 to 65535 with an IPv6 network, found 60"),
            ("cni_path", "must be absolute paths of directories, found \"cni\""),
            ("cni_config_dir", "must be absolute paths of directories, found \"\""),
        ];
        assert_eq!(section.problems(), expected.map(|(at, message)| (at.to_owned(), message.to_owned())));
        assert_eq!(Section::default().problems(), []);
        let mtu = Section { mtu: Some(60), ..Section::default() }.problems();
        assert_eq!(mtu, [("mtu".to_owned(), "must be 576 to 65535, found 60".to_owned())]);
        // Nomad's default.
        let none = Section { subnet6: Some(String::new()), ..Section::default() };
        assert_eq!((none.problems(), settled(none, STATE_DIR).subnet6), (Vec::new(), None));
        let some = Section { subnet6: Some("fd00:37::/64".to_owned()), ..Section::default() };
        assert_eq!(some.problems(), []);
        assert!(settled(some, STATE_DIR).subnet6.is_some());
    }

    #[test]
    fn ports_on_networks_of_the_machine_have_an_address_of_it() {
        let interface = |name: &str, addresses: &[&str]| Interface {
            name: name.to_owned(),
            mac: String::new(),
            is_up: true,
            is_loopback: false,
            is_default: false,
            addresses: addresses.iter().map(|ip| (ip.parse().unwrap(), 24)).collect(),
        };
        let interfaces = [
            interface("lo", &["127.0.0.1", "::1"]),
            interface("eth0", &["2001:db8::7", "192.0.2.7"]),
            interface("eth1", &["fe80::1", "198.51.100.7", "198.51.100.8"]),
            interface("eth2", &["fe80::2", "2001:db8:1::7"]),
        ];
        let network = |name: &str, cidr: &str, interface: &str, reserved_ports: &str| HostNetworkSection {
            name: Text(name.to_owned()),
            cidr: cidr.to_owned(),
            interface: interface.to_owned(),
            reserved_ports: reserved_ports.to_owned(),
        };
        let host_networks = vec![
            network("public", "192.0.2.0/24, 2001:db8::/32", "", "22,8000-8001"),
            network("lan", "", "eth1", ""),
            network("six", "", "eth2", ""),
            network("away", "203.0.113.0/24", "", ""),
            network("any", "", "", ""),
            network("machine", "127.0.0.0/8", "", ""),
        ];
        let settled = settled(Section { host_networks, ..Section::default() }, STATE_DIR);
        let found = settled.host_networks_on(&interfaces);
        let ip = |name: &str| found[name].ip.clone();
        assert_eq!(ip("public").as_deref(), Some("192.0.2.7"));
        assert_eq!(ip("lan").as_deref(), Some("198.51.100.7"));
        assert_eq!(ip("six").as_deref(), Some("2001:db8:1::7"));
        assert_eq!(ip("away"), None);
        assert_eq!(ip("any").as_deref(), Some("192.0.2.7"));
        assert_eq!(ip("machine").as_deref(), Some("127.0.0.1"));
        assert_eq!(found["public"].reserved_ports, [22, 8000, 8001].into());
    }
}
