//! An allocation's networks once they exist: facts that environment and registrations read.
//!
//! In: reports of a network or task driver. Out: nothing; it is data. It does not know how a network is created.

use std_alloc::{collections::BTreeMap, format, string::String};

use serde::{Deserialize, Serialize};

/// The network namespace that the tasks of one allocation share (Nomad's alloc network status).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocNetwork {
    /// Interface within the namespace, for instance `eth0`.
    pub interface: String,
    /// Its address.
    pub address: String,
}

/// The network that a driver created for one task, for instance a container's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverNetwork {
    /// Its address.
    pub ip: String,
    /// Ports as the task sees them, by label.
    pub port_map: BTreeMap<String, u16>,
    /// Whether services in mode `auto` are registered with this address.
    pub auto_advertise: bool,
}

/// `ip:port`, with brackets around an IPv6 address.
pub fn join_host_port(ip: &str, port: u16) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}
