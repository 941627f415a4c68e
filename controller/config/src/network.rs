//! The section `network`: the bridge of networks in mode `bridge`.
//!
//! In: the section of a config file. Out: [`Network`], with all defaults filled in, or problems.

use std::path::Path;

use herdlet_network::{
    link::{Hairpin, InterfaceName},
    subnet::Subnet4,
};
use schemars::JsonSchema;
use serde::Deserialize;

/// The section of a config file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Section {
    /// Name of the bridge; default `herdlet`, for an agent with another state directory than /var/lib/herdlet `hl-` and 8 digits.
    pub bridge: Option<String>,
    /// Network of the bridge, which has the first address; default 172.26.80.0/20, or the next one to which no route leads.
    pub subnet: Option<String>,
    /// Longest packet in bytes; default that of the machine's default route.
    #[schemars(range(min = 576, max = 65535))]
    pub mtu: Option<u32>,
    /// Whether an allocation reaches itself through a port of the machine; default false.
    pub hairpin: bool,
}

/// The bridge of networks in mode `bridge`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// Its name; `None` for one that follows from the instance.
    pub bridge: Option<InterfaceName>,
    /// Its network; `None` for one that is free.
    pub subnet: Option<Subnet4>,
    /// The longest packet; `None` for that of the machine's default route.
    pub mtu: Option<u32>,
    /// Whether it sends back through a port what arrived through it.
    pub hairpin: Hairpin,
}

/// The state directory whose agent has the bridge with the plain name.
const STATE_DIR: &str = "/var/lib/herdlet";
/// The plain name.
const BRIDGE: &str = "herdlet";

/// The shortest and the longest packet that a bridge of IPv4 can be made for.
const MTU: std::ops::RangeInclusive<u32> = 576..=65_535;

impl Section {
    /// Checks what the types can't express. Returns problems by field.
    pub(super) fn problems(&self) -> Vec<(&'static str, String)> {
        let bridge = self.bridge.as_deref().and_then(|name| InterfaceName::new(name).err());
        let subnet = self.subnet.as_deref().and_then(|text| text.parse::<Subnet4>().err());
        let mtu = self.mtu.filter(|mtu| !MTU.contains(mtu));
        let mtu = mtu.map(|mtu| format!("must be {} to {}, found {mtu}", MTU.start(), MTU.end()));
        let problems = [
            ("bridge", bridge.map(|error| error.to_string())),
            ("subnet", subnet.map(|error| error.to_string())),
            ("mtu", mtu),
        ];
        problems.into_iter().filter_map(|(at, message)| Some((at, message?))).collect()
    }

    /// Fills in the defaults. Invalid values are already reported as problems of the file.
    pub(super) fn settled(self, state_dir: &Path) -> Network {
        let plain = || (state_dir == Path::new(STATE_DIR)).then(|| BRIDGE.to_owned());
        Network {
            bridge: self.bridge.or_else(plain).and_then(|name| InterfaceName::new(&name).ok()),
            subnet: self.subnet.and_then(|text| text.parse().ok()),
            mtu: self.mtu,
            hairpin: if self.hairpin { Hairpin::On } else { Hairpin::Off },
        }
    }
}

/// That of an agent without a config.
impl Default for Network {
    fn default() -> Self {
        Self { bridge: None, subnet: None, mtu: None, hairpin: Hairpin::Off }
    }
}

#[cfg(test)]
mod tests {
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
    fn impossible_bridges_are_refused() {
        let section = Section {
            bridge: Some("a/b".to_owned()),
            subnet: Some("172.26.64.0".to_owned()),
            mtu: Some(60),
            ..Section::default()
        };
        let expected = [
            (
                "bridge",
                "expected the name of an interface, 1 to 15 characters without blanks, `/` and `:`, found \"a/b\"",
            ),
            ("subnet", "expected a network such as 172.26.64.0/20, found \"172.26.64.0\""),
            ("mtu", "must be 576 to 65535, found 60"),
        ];
        assert_eq!(section.problems(), expected.map(|(at, message)| (at, message.to_owned())));
        assert_eq!(Section::default().problems(), []);
    }
}
