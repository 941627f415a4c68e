//! The address of a service or a check.
//!
//! In: the mode, the port label and the literal address, interpolated; the networks of the workload. Out: an
//! [`Address`]. One rule for services and checks; it does not know which of them it resolves.
//!
//! | mode | no label | a port of the allocation | otherwise |
//! | --- | --- | --- | --- |
//! | auto with an address | the address, no port | the address, host port | the address and the number |
//! | auto | as `driver` if its network requests that, else as `host` | | |
//! | host | the one host address of the ports, no port | host address and port | no address (the catalogue's own) and the number |
//! | driver | driver address, no port | driver address, the task's port | the driver's port map; the number |
//! | alloc | alloc address, no port | alloc address, the task's port | the number |
//!
//! A label that is neither a port nor a number is an error. Unlike Nomad, mode `driver` uses the host's port if a port
//! has no `to`, not 0.

use std_alloc::{
    collections::BTreeSet,
    string::{String, ToString},
};

use herdlet_api_types::{alloc::AssignedPort, job::AddressMode};

use super::Workload;

/// An address and port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Address {
    /// Address; empty means the catalogue agent's own.
    pub ip: String,
    /// Port, 0 for none.
    pub port: u16,
}

/// Why there is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The label is no port of the allocation and no number. Nomad's text.
    #[error("invalid port {0:?}: port label not found")]
    LabelNotFound(String),
    /// The number is no port.
    #[error("invalid port {0:?}: must be 1 to 65535")]
    OutOfRange(String),
    /// A literal address with a mode that has its own.
    #[error("`address` can't be combined with address_mode {0:?}")]
    LiteralWithMode(&'static str),
    /// The mode needs a network that does not exist.
    #[error("address_mode {0:?} needs a network of the {0}, but there is none")]
    NoNetwork(&'static str),
    /// A check without a port, of a service without one.
    #[error("neither the check nor its service has a port")]
    NoPort,
}

/// Resolves an address. An empty `label` means no port, an empty `literal` no address.
pub fn resolve(
    workload: &Workload<'_>,
    mode: AddressMode,
    label: &str,
    literal: &str,
) -> Result<Address, AddressError> {
    match mode {
        AddressMode::Auto if !literal.is_empty() => {
            let port = match host_port(workload, label) {
                Some(port) => port.value,
                None => number_or_none(label)?,
            };
            Ok(Address { ip: literal.to_string(), port })
        }
        AddressMode::Auto if workload.driver_network.is_some_and(|network| network.auto_advertise) => {
            of_driver(workload, label)
        }
        AddressMode::Auto => of_host(workload, label),
        AddressMode::Host => without_literal("host", literal).and_then(|()| of_host(workload, label)),
        AddressMode::Driver => without_literal("driver", literal).and_then(|()| of_driver(workload, label)),
        AddressMode::Alloc => without_literal("alloc", literal).and_then(|()| of_alloc(workload, label)),
    }
}

fn without_literal(mode: &'static str, literal: &str) -> Result<(), AddressError> {
    if literal.is_empty() { Ok(()) } else { Err(AddressError::LiteralWithMode(mode)) }
}

fn of_host(workload: &Workload<'_>, label: &str) -> Result<Address, AddressError> {
    if let Some(port) = host_port(workload, label) {
        return Ok(Address { ip: port.host_ip.clone(), port: port.value });
    }
    let port = number_or_none(label)?;
    let ip = if label.is_empty() { only_host_ip(workload).unwrap_or_default() } else { "" };
    Ok(Address { ip: ip.to_string(), port })
}

fn of_driver(workload: &Workload<'_>, label: &str) -> Result<Address, AddressError> {
    let network = workload
        .driver_network
        .filter(|network| !network.ip.is_empty())
        .ok_or(AddressError::NoNetwork("driver"))?;
    let mapped = network.port_map.get(label).copied();
    let port = match host_port(workload, label).map(task_port).or(mapped) {
        Some(port) => port,
        None => number_or_none(label)?,
    };
    Ok(Address { ip: network.ip.clone(), port })
}

fn of_alloc(workload: &Workload<'_>, label: &str) -> Result<Address, AddressError> {
    let network = workload
        .alloc_network
        .filter(|network| !network.address.is_empty())
        .ok_or(AddressError::NoNetwork("alloc"))?;
    let port = match host_port(workload, label).map(task_port) {
        Some(port) => port,
        None => number_or_none(label)?,
    };
    Ok(Address { ip: network.address.clone(), port })
}

fn host_port<'a>(workload: &Workload<'a>, label: &str) -> Option<&'a AssignedPort> {
    let own = workload.task.and_then(|task| workload.alloc.task_ports(&task.name));
    workload.alloc.ports.get(label).or_else(|| own?.get(label))
}

fn task_port(port: &AssignedPort) -> u16 {
    if port.to > 0 { port.to } else { port.value }
}

/// The host address, if all ports have the same: of the task's own ports if it has any, else of the group's.
fn only_host_ip<'a>(workload: &Workload<'a>) -> Option<&'a str> {
    let own = workload.task.and_then(|task| workload.alloc.task_ports(&task.name));
    let ips: BTreeSet<&str> =
        own.unwrap_or(&workload.alloc.ports).values().map(|port| port.host_ip.as_str()).collect();
    if ips.len() == 1 { ips.first().copied() } else { None }
}

/// A port written as a number; 0 for an empty label.
fn number_or_none(label: &str) -> Result<u16, AddressError> {
    if label.is_empty() {
        return Ok(0);
    }
    if !label.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(AddressError::LabelNotFound(label.to_string()));
    }
    label.parse().ok().filter(|&port| port > 0).ok_or_else(|| AddressError::OutOfRange(label.to_string()))
}
