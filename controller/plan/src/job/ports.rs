//! Which host ports a new allocation gets. Two live allocations never have the same port.

use std_alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
};

use herdlet_api_types::{
    AllocId,
    alloc::{Allocation, AssignedPort},
    job::Group,
};

use crate::backoff::fraction;

/// Why ports can't be given now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoPorts {
    /// Another allocation holds this port.
    Taken(u16),
    /// No dynamic port is free.
    Exhausted,
}

/// Host ports that allocations hold, each with how many do: an operator's fixed port may be held twice for a while.
#[derive(Debug, Default)]
pub struct Held(BTreeMap<u16, u32>);

impl Held {
    /// The allocation holds its ports from now on.
    pub fn take(&mut self, alloc: &Allocation) {
        for port in alloc.ports.values() {
            *self.0.entry(port.value).or_default() += 1;
        }
    }

    /// The allocation holds its ports no longer.
    pub fn release(&mut self, alloc: &Allocation) {
        for port in alloc.ports.values() {
            match self.0.get_mut(&port.value) {
                Some(holders) if *holders > 1 => *holders -= 1,
                Some(_) | None => {
                    self.0.remove(&port.value);
                }
            }
        }
    }

    /// Whether anybody holds it.
    pub fn contains(&self, port: u16) -> bool {
        self.0.contains_key(&port)
    }
}

/// Gives a new allocation its ports. The choice of dynamic ports is a hash of the allocation's id, so that it differs
/// between agents on one machine and needs no memory.
pub fn assign(
    group: &Group,
    id: AllocId,
    held: &Held,
    range: &core::ops::RangeInclusive<u16>,
    host_ip: &str,
) -> Result<BTreeMap<String, AssignedPort>, NoPorts> {
    let mut own = BTreeSet::new();
    let mut ports = BTreeMap::new();
    let Some(network) = &group.network else { return Ok(ports) };
    let fixed =
        network.ports.iter().filter_map(|(label, request)| request.fixed.map(|port| (label, request, port)));
    for (label, request, port) in fixed {
        if held.contains(port) || !own.insert(port) {
            return Err(NoPorts::Taken(port));
        }
        ports.insert(label.clone(), port_of(host_ip, port, request.to));
    }
    for (label, request) in network.ports.iter().filter(|(_, request)| request.fixed.is_none()) {
        let count = range.end().saturating_sub(*range.start()).saturating_add(1);
        let first = fraction(i64::from(count), (id, label.as_str()));
        let free = (0..count)
            .map(|step| *range.start() + ((i64::from(step) + first) % i64::from(count)) as u16)
            .find(|port| !held.contains(*port) && !own.contains(port))
            .ok_or(NoPorts::Exhausted)?;
        own.insert(free);
        ports.insert(label.clone(), port_of(host_ip, free, request.to));
    }
    Ok(ports)
}

fn port_of(host_ip: &str, value: u16, to: Option<u16>) -> AssignedPort {
    AssignedPort { host_ip: String::from(host_ip), value, to: to.unwrap_or(0) }
}
