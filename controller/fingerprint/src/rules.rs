//! Which addresses of this machine ports are given out of.
//!
//! In: what the config says. Out: the same, in types. It reads no interface.

use std::{fmt, net::IpAddr};

use schemars::JsonSchema;
use serde::Deserialize;

use super::Network;

/// Which addresses ports are given out of.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NetworkRules {
    /// The interface of the addresses named `default`; else that of the default route.
    pub interface: Option<String>,
    /// Mbit/s, where an interface's own word is not right.
    pub speed: Option<u32>,
    pub host_networks: Vec<HostNetwork>,
    /// Which addresses come first.
    pub family: Option<Family>,
    /// Whether addresses of use on one link only never count.
    pub disallow_link_local: bool,
}

/// Addresses under a name.
#[derive(Debug, Clone, PartialEq)]
pub struct HostNetwork {
    pub name: String,
    /// Addresses in one of these; empty: all.
    pub cidr: Vec<Network>,
    /// Addresses of this interface; none: of any.
    pub interface: Option<String>,
    /// Ports that are not given out, such as `22,80,8500-8600`.
    pub reserved_ports: String,
}

impl HostNetwork {
    /// Whether an address of an interface is one of these.
    pub fn has(&self, interface: &str, ip: IpAddr) -> bool {
        let by_network = self.cidr.is_empty() || self.cidr.iter().any(|network| network.contains(ip));
        by_network && self.interface.as_deref().is_none_or(|name| name == interface)
    }
}

/// A family of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// Of 32 bits.
    Ipv4,
    /// Of 128 bits.
    Ipv6,
}

impl Family {
    /// An address's.
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
