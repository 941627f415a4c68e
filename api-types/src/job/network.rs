//! The network of a group, and its ports.

use core::fmt;
use std_alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

/// `network` of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Ports by label.
    pub ports: BTreeMap<String, PortRequest>,
    /// The network that its tasks use.
    #[serde(default, skip_serializing_if = "NetworkMode::is_host")]
    pub mode: NetworkMode,
    /// Arguments for the plugins of a CNI network.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cni_args: BTreeMap<String, String>,
    /// How its tasks resolve names, where that differs from the machine.
    #[serde(default, skip_serializing_if = "Dns::is_empty")]
    pub dns: Dns,
    /// The host name that its tasks see; the machine's if empty. Only in a network of their own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hostname: String,
    /// The machine's network that a port is on, by its label; the usual one for ports without.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub host_networks: BTreeMap<String, String>,
}

impl Network {
    /// The usual network of ports, under Nomad's name.
    pub const DEFAULT_HOST_NETWORK: &str = "default";

    /// The name of the machine's network that a port is on.
    pub fn host_network(&self, label: &str) -> &str {
        self.host_networks.get(label).map_or(Self::DEFAULT_HOST_NETWORK, String::as_str)
    }
}

/// `dns` of a group's network. An empty list leaves the machine's setting.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dns {
    /// Addresses of name servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<String>,
    /// Domains that are appended to short names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub searches: Vec<String>,
    /// Options of the resolver.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Dns {
    /// Whether all settings are the machine's.
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty() && self.searches.is_empty() && self.options.is_empty()
    }
}

/// The network that the tasks of a group use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkMode {
    /// The machine's.
    #[default]
    Host,
    /// One of their own, with nothing but a loopback interface.
    None,
    /// One of their own, which a bridge connects with the machine.
    Bridge,
    /// One of their own, which the CNI network of this name sets up.
    Cni(String),
}

impl NetworkMode {
    /// Whether the tasks use the machine's network.
    pub fn is_host(&self) -> bool {
        match self {
            Self::Host => true,
            Self::None | Self::Bridge | Self::Cni(_) => false,
        }
    }
}

/// As in a job.
impl fmt::Display for NetworkMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::None => f.write_str("none"),
            Self::Bridge => f.write_str("bridge"),
            Self::Cni(name) => write!(f, "cni/{name}"),
        }
    }
}

/// One port of a group or of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRequest {
    /// The static host port; a dynamic one (20000–32000) if absent.
    pub fixed: Option<u16>,
    /// The port that the task listens on, if it differs from the host port (`NOMAD_PORT_<label>`). `None` for a port of a
    /// task.
    pub to: Option<u16>,
}
