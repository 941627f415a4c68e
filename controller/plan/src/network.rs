//! An allocation's networks once they exist: facts that environment and registrations read.
//!
//! In: reports of a network or task driver. Out: nothing; it is data. It does not know how a network is created.

use std_alloc::{format, string::String};

pub use herdlet_api_types::{alloc::AllocNetwork, driver::DriverNetwork};

/// `ip:port`, with brackets around an IPv6 address.
pub fn join_host_port(ip: &str, port: u16) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}
