//! The section `network`: the bridge of networks in mode `bridge`, and the directories of CNI.
//!
//! In: the section of a config file. Out: [`Network`], with all defaults filled in, or problems.

use std::path::{Path, PathBuf};

use herdlet_cni::config::Directories;
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
    /// Directories of CNI plugins, separated by `:`; default /opt/cni/bin:/usr/libexec/cni:/usr/lib/cni.
    pub cni_path: Option<String>,
    /// Directory of config files of CNI networks; default /opt/cni/config.
    pub cni_config_dir: Option<String>,
}

/// The networks of allocations.
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
    /// Where CNI networks and their plugins are.
    pub cni: Directories,
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
            ("cni_path", self.cni_path.as_deref().and_then(|path| path.split(':').find_map(relative))),
            ("cni_config_dir", self.cni_config_dir.as_deref().and_then(relative)),
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
            cni: directories(self.cni_path.as_deref(), self.cni_config_dir),
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

/// That of an agent without a config.
impl Default for Network {
    fn default() -> Self {
        Self { bridge: None, subnet: None, mtu: None, hairpin: Hairpin::Off, cni: Directories::default() }
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
            ("mtu", "must be 576 to 65535, found 60"),
            ("cni_path", "must be absolute paths of directories, found \"cni\""),
            ("cni_config_dir", "must be absolute paths of directories, found \"\""),
        ];
        assert_eq!(section.problems(), expected.map(|(at, message)| (at, message.to_owned())));
        assert_eq!(Section::default().problems(), []);
    }
}
