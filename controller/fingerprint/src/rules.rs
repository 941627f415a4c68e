//! Rules for choosing the addresses that ports are assigned from.
//!
//! In: the config. Out: typed rules. No interface is read.

use std::{fmt, net::IpAddr};

use schemars::JsonSchema;
use serde::Deserialize;

use super::Network;

/// Rules for the addresses that ports are assigned from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NetworkRules {
    /// The interface of the addresses named `default`; else that of the default route.
    pub interface: Option<String>,
    /// Speed in Mbit/s, which overrides an interface's own value.
    pub speed: Option<u32>,
    pub host_networks: Vec<HostNetwork>,
    /// The preferred address family.
    pub family: Option<Family>,
    /// Whether link-local addresses never count.
    pub disallow_link_local: bool,
}

/// A named set of addresses.
#[derive(Debug, Clone, PartialEq)]
pub struct HostNetwork {
    pub name: String,
    /// Networks that contain the addresses; empty for all.
    pub cidr: Vec<Network>,
    /// The interface of the addresses; `None` for any.
    pub interface: Option<String>,
    /// Ports that are not assigned, such as `22,80,8500-8600`.
    pub reserved_ports: String,
}

impl HostNetwork {
    /// Whether an interface's address belongs to the set.
    pub fn has(&self, interface: &str, ip: IpAddr) -> bool {
        let by_network = self.cidr.is_empty() || self.cidr.iter().any(|network| network.contains(ip));
        by_network && self.interface.as_deref().is_none_or(|name| name == interface)
    }
}

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    /// The family of an address.
    pub fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::Ipv4 } else { Self::Ipv6 }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
        })
    }
}
