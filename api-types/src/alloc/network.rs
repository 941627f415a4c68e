//! The network of an allocation once it exists.

use std_alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::job::Dns;

/// The network namespace that the tasks of one allocation share (Nomad's alloc network status).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocNetwork {
    /// Interface within the namespace, for instance `eth0`.
    pub interface: String,
    /// Its address: the first IPv4 address, else the first IPv6 address.
    pub address: String,
    /// Its first IPv6 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address6: Option<String>,
    /// The name servers that the plugins of a CNI network have named.
    #[serde(default, skip_serializing_if = "Dns::is_empty")]
    pub dns: Dns,
}
