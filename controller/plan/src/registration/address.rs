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
//! | driver | driver address, no port | driver address; the port in the driver's map, else the task's | the same; the number |
//! | alloc | alloc address, no port | alloc address, the task's port | the number |
//!
//! The ports of a task's services and checks are those of the group, then those of the task alone; of a group's, those
//! of the group, then those of the task that the service names. On a port of a task alone, the task listens as on the
//! host. A label that is neither a port nor a number is an error. Unlike Nomad, mode `driver` uses the host's port if a port
//! has no `to`, not 0.

use std_alloc::{
    collections::BTreeSet,
    string::{String, ToString},
};

use herdlet_api_types::{
    alloc::{AssignedPort, Ports},
    job::AddressMode,
};

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

/// The owner of a service or check, whose networks and ports count.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'a> {
    /// The task or the group.
    pub workload: &'a Workload<'a>,
    /// The task that a service of the group names.
    pub named_task: Option<&'a str>,
}

impl<'a> Scope<'a> {
    /// The ports of its task alone.
    fn task_ports(&self) -> Option<&'a Ports> {
        let task = self.workload.task.map(|task| task.name.as_str()).or(self.named_task)?;
        self.workload.alloc.task_ports.get(task)
    }

    fn host_port(&self, label: &str) -> Option<&'a AssignedPort> {
        self.workload.alloc.ports.get(label).or_else(|| self.task_ports()?.get(label))
    }

    /// The port on which the task listens.
    fn task_port(&self, label: &str) -> Option<u16> {
        let of_group = self.workload.alloc.ports.get(label);
        let of_group = of_group.map(|port| if port.to > 0 { port.to } else { port.value });
        of_group.or_else(|| Some(self.task_ports()?.get(label)?.value))
    }

    /// The host address, if all ports have the same: of the task's own ports if it has any, else of the group's.
    fn only_host_ip(&self) -> Option<&'a str> {
        let ports = self.task_ports().unwrap_or(&self.workload.alloc.ports);
        let ips: BTreeSet<&str> = ports.values().map(|port| port.host_ip.as_str()).collect();
        if ips.len() == 1 { ips.first().copied() } else { None }
    }
}

/// Resolves an address. An empty `label` means no port, an empty `literal` no address.
pub fn resolve(
    scope: &Scope<'_>,
    mode: AddressMode,
    label: &str,
    literal: &str,
) -> Result<Address, AddressError> {
    match mode {
        AddressMode::Auto if !literal.is_empty() => {
            let port = match scope.host_port(label) {
                Some(port) => port.value,
                None => number_or_none(label)?,
            };
            Ok(Address { ip: literal.to_string(), port })
        }
        AddressMode::Auto if scope.workload.driver_network.is_some_and(|network| network.auto_advertise) => {
            of_driver(scope, label)
        }
        AddressMode::Auto => of_host(scope, label),
        AddressMode::Host => without_literal("host", literal).and_then(|()| of_host(scope, label)),
        AddressMode::Driver => without_literal("driver", literal).and_then(|()| of_driver(scope, label)),
        AddressMode::Alloc => without_literal("alloc", literal).and_then(|()| of_alloc(scope, label)),
    }
}

fn without_literal(mode: &'static str, literal: &str) -> Result<(), AddressError> {
    if literal.is_empty() { Ok(()) } else { Err(AddressError::LiteralWithMode(mode)) }
}

fn of_host(scope: &Scope<'_>, label: &str) -> Result<Address, AddressError> {
    if let Some(port) = scope.host_port(label) {
        return Ok(Address { ip: port.host_ip.clone(), port: port.value });
    }
    let port = number_or_none(label)?;
    let ip = if label.is_empty() { scope.only_host_ip().unwrap_or_default() } else { "" };
    Ok(Address { ip: ip.to_string(), port })
}

fn of_driver(scope: &Scope<'_>, label: &str) -> Result<Address, AddressError> {
    let network = scope
        .workload
        .driver_network
        .filter(|network| !network.ip.is_empty())
        .ok_or(AddressError::NoNetwork("driver"))?;
    let mapped = network.port_map.get(label).copied();
    let port = match mapped.or_else(|| scope.task_port(label)) {
        Some(port) => port,
        None => number_or_none(label)?,
    };
    Ok(Address { ip: network.ip.clone(), port })
}

fn of_alloc(scope: &Scope<'_>, label: &str) -> Result<Address, AddressError> {
    let network = scope
        .workload
        .alloc_network
        .filter(|network| !network.address.is_empty())
        .ok_or(AddressError::NoNetwork("alloc"))?;
    let port = match scope.task_port(label) {
        Some(port) => port,
        None => number_or_none(label)?,
    };
    Ok(Address { ip: network.address.clone(), port })
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
