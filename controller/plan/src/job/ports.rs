//! Which host ports a new allocation gets. Two live allocations never have the same port.

use std_alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};

use herdlet_api_types::{
    AllocId,
    alloc::{Allocation, AssignedPort},
    job::Group,
    view::{Reason, Unplaced},
};

use crate::backoff::fraction;

/// Why ports can't be assigned now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoPorts {
    /// Another allocation holds this port.
    Taken(u16),
    /// The agent's config keeps this port for the machine.
    Reserved(u16),
    /// No dynamic port is free.
    Exhausted,
}

impl NoPorts {
    /// The reason as a user sees it. `holder_of` names the allocation that holds a port.
    pub fn unplaced(&self, holder_of: impl FnOnce(u16) -> Option<String>) -> Unplaced {
        let (message, dimension) = match self {
            Self::Taken(port) => (
                match holder_of(*port) {
                    Some(holder) => format!("needs port {port}, which {holder} holds"),
                    None => format!("needs port {port} more than once"),
                },
                format!("network: reserved port collision {port}"),
            ),
            Self::Reserved(port) => (
                format!("needs port {port}, which `reserved` of the agent's config keeps for the machine"),
                format!("network: reserved port collision {port}"),
            ),
            Self::Exhausted => (
                String::from("needs a dynamic port, and none is free"),
                String::from("network: dynamic port selection failed"),
            ),
        };
        Unplaced { reason: Reason::Port, message, filtered_by: Vec::new(), exhausted: Vec::from([dimension]) }
    }
}

/// Host ports held by allocations, with their holders: a fixed port of an operator may be held twice for a while.
#[derive(Debug, Default)]
pub struct PortClaims {
    by: BTreeMap<u16, Vec<AllocId>>,
    /// Never assigned.
    reserved: BTreeSet<u16>,
    /// Something listens there, as last reported: not assigned while there are others.
    listening: BTreeSet<u16>,
}

impl PortClaims {
    /// No port is held; the machine keeps `reserved` for itself.
    pub fn beside(reserved: BTreeSet<u16>) -> Self {
        Self { reserved, ..Self::default() }
    }

    /// Sets the ports on which something listens.
    pub fn set_listening(&mut self, ports: BTreeSet<u16>) {
        self.listening = ports;
    }

    /// Whether something listens on the port, as last reported.
    pub fn is_listening(&self, port: u16) -> bool {
        self.listening.contains(&port)
    }

    /// Adds the allocation's ports.
    pub fn take(&mut self, alloc: &Allocation) {
        for port in alloc.host_ports() {
            self.by.entry(port.value).or_default().push(alloc.id);
        }
    }

    /// Removes the allocation's ports.
    pub fn release(&mut self, alloc: &Allocation) {
        for port in alloc.host_ports() {
            let Some(holders) = self.by.get_mut(&port.value) else { continue };
            if let Some(at) = holders.iter().position(|holder| *holder == alloc.id) {
                holders.remove(at);
            }
            if holders.is_empty() {
                self.by.remove(&port.value);
            }
        }
    }

    /// The first of the allocations that hold the port.
    pub fn holder(&self, port: u16) -> Option<AllocId> {
        self.by.get(&port)?.first().copied()
    }

    /// Why the port can't be assigned: it is reserved for the machine, or an allocation holds it.
    pub fn refuses(&self, port: u16) -> Option<NoPorts> {
        if self.reserved.contains(&port) {
            Some(NoPorts::Reserved(port))
        } else {
            self.by.contains_key(&port).then_some(NoPorts::Taken(port))
        }
    }
}

/// Checks that the group's fixed ports are free, or held by an allocation that is about to release them (`own`).
///
/// # Errors
/// The first port that can't be assigned.
pub fn check_fixed(group: &Group, held: &PortClaims, own: &BTreeSet<u16>) -> Result<(), NoPorts> {
    let mut refused = group.fixed_ports().filter_map(|port| held.refuses(port));
    let is_own = |why: &NoPorts| matches!(why, NoPorts::Taken(port) if own.contains(port));
    refused.find(|why| !is_own(why)).map_or(Ok(()), Err)
}

/// Assigns ports to a new allocation. Dynamic ports are chosen by a hash of the allocation's id, so that the choice
/// differs between agents on one machine and needs no state.
pub fn assign(
    group: &Group,
    id: AllocId,
    held: &PortClaims,
    range: &core::ops::RangeInclusive<u16>,
    host_ip: &str,
) -> Result<BTreeMap<String, AssignedPort>, NoPorts> {
    let mut own = BTreeSet::new();
    let mut ports = BTreeMap::new();
    let Some(network) = &group.network else { return Ok(ports) };
    let fixed =
        network.ports.iter().filter_map(|(label, request)| request.fixed.map(|port| (label, request, port)));
    for (label, request, port) in fixed {
        if let Some(why) = held.refuses(port) {
            return Err(why);
        }
        if !own.insert(port) {
            return Err(NoPorts::Taken(port));
        }
        ports.insert(label.clone(), port_of(host_ip, port, request.to));
    }
    for (label, request) in network.ports.iter().filter(|(_, request)| request.fixed.is_none()) {
        let count = range.end().saturating_sub(*range.start()).saturating_add(1);
        let first = fraction(i64::from(count), (id, label.as_str()));
        let mut free = (0..count)
            .map(|step| *range.start() + ((i64::from(step) + first) % i64::from(count)) as u16)
            .filter(|port| held.refuses(*port).is_none() && !own.contains(port));
        // The report may be outdated: a port whose owner has just ended is better than none.
        let unused = free.clone().find(|port| !held.listening.contains(port));
        let free = unused.or_else(|| free.next()).ok_or(NoPorts::Exhausted)?;
        own.insert(free);
        ports.insert(label.clone(), port_of(host_ip, free, request.to));
    }
    Ok(ports)
}

fn port_of(host_ip: &str, value: u16, to: Option<u16>) -> AssignedPort {
    AssignedPort { host_ip: String::from(host_ip), value, to: to.unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use std_alloc::{borrow::ToOwned, sync::Arc, vec, vec::Vec};

    use herdlet_api_types::{
        fixture,
        job::{Lifecycle, Network, PortRequest},
    };

    use super::*;
    use crate::fixture::{alloc, task};

    const DYNAMIC: PortRequest = PortRequest { fixed: None, to: None };

    fn group(ports: &[(&str, PortRequest)]) -> Group {
        let ports = ports.iter().map(|(label, request)| ((*label).to_owned(), *request)).collect();
        Group { network: Some(Network { ports }), ..fixture::group("g", 1, Vec::new()) }
    }

    /// The ports that the allocation gets from 20,000 to 20,003, or why it gets none.
    fn assigned(group: &Group, id: u8, held: &PortClaims) -> Result<Vec<u16>, NoPorts> {
        let ports = assign(group, AllocId::from_hash([id; 16]), held, &(20_000..=20_003), "10.0.0.1")?;
        Ok(ports.values().map(|port| port.value).collect())
    }

    fn holding(ports: &[u16]) -> Arc<Allocation> {
        let mut alloc = alloc(vec![task("main", Lifecycle::Main)]);
        let ports = ports.iter().map(|port| (String::from("p"), port_of("", *port, None))).collect();
        Arc::make_mut(&mut alloc).ports = ports;
        alloc
    }

    #[test]
    fn port_is_held_until_its_last_release() {
        let (mut held, alloc) = (PortClaims::default(), holding(&[8080]));
        held.take(&alloc);
        held.take(&alloc);
        held.take(&alloc);
        for left in [true, true, false] {
            held.release(&alloc);
            assert_eq!(held.refuses(8080).is_some(), left);
        }
    }

    #[test]
    fn dynamic_ports_are_unique_for_any_search_start() {
        let group = group(&[("a", DYNAMIC), ("b", DYNAMIC), ("c", DYNAMIC), ("d", DYNAMIC)]);
        let mut first = BTreeSet::new();
        for id in 0..32 {
            let mut ports = assigned(&group, id, &PortClaims::default()).expect("four free ports");
            first.insert(ports[0]);
            ports.sort_unstable();
            assert_eq!(ports, [20_000, 20_001, 20_002, 20_003]);
        }
        assert_eq!(first.len(), 4, "allocations start with different ports");
        let mut held = PortClaims::default();
        held.take(&holding(&[20_002]));
        assert_eq!(assigned(&group, 1, &held), Err(NoPorts::Exhausted));
    }

    /// A task whose port another process held failed at each start.
    #[test]
    fn listening_port_is_assigned_last() {
        let mut held = PortClaims::default();
        held.set_listening([20_000, 20_001, 20_003].into());
        let group = group(&[("a", DYNAMIC)]);
        for id in 0..32 {
            assert_eq!(assigned(&group, id, &held), Ok(vec![20_002]));
        }
        held.take(&holding(&[20_002]));
        assert!(assigned(&group, 1, &held).is_ok_and(|ports| ports != [20_002]));
        held.set_listening(BTreeSet::new());
        assert!(assigned(&group, 1, &held).is_ok());
    }

    #[test]
    fn fixed_port_is_assigned_once() {
        let http = PortRequest { fixed: Some(80), to: Some(8080) };
        let mut held = PortClaims::default();
        let id = AllocId::from_hash([1; 16]);
        let ports = assign(&group(&[("http", http)]), id, &held, &(20_000..=20_003), "10.0.0.1");
        let expected = AssignedPort { host_ip: "10.0.0.1".to_owned(), value: 80, to: 8080 };
        assert_eq!(ports, Ok([("http".to_owned(), expected)].into()));
        assert_eq!(assigned(&group(&[("a", http), ("b", http)]), 1, &held), Err(NoPorts::Taken(80)));
        held.take(&holding(&[80]));
        assert_eq!(assigned(&group(&[("http", http)]), 1, &held), Err(NoPorts::Taken(80)));
        let mut held = PortClaims::beside([80, 20_000, 20_001, 20_003].into());
        assert_eq!(assigned(&group(&[("http", http)]), 1, &held), Err(NoPorts::Reserved(80)));
        assert_eq!(assigned(&group(&[("a", DYNAMIC)]), 1, &held), Ok(vec![20_002]));
        held.take(&holding(&[20_002]));
        assert_eq!(assigned(&group(&[("a", DYNAMIC)]), 1, &held), Err(NoPorts::Exhausted));
    }
}
