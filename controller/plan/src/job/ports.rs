//! Which host ports a new allocation gets. Two live allocations never have the same port.

use core::ops::RangeInclusive;
use std_alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};

use herdlet_api_types::{
    AllocId, JobKey,
    alloc::{Allocation, AssignedPort, Ports},
    job::{Group, PortRequest, Task},
    view::{Reason, Unplaced},
};

use crate::backoff::fraction;

/// A network of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostNetwork {
    /// The address of ports on it; `None` if the machine has none.
    pub ip: Option<String>,
    /// Ports of it that no allocation gets.
    pub reserved_ports: BTreeSet<u16>,
}

/// Why ports can't be assigned now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoPorts {
    /// Another allocation holds this port.
    Taken(u16),
    /// The agent's config keeps this port for the machine.
    Reserved(u16),
    /// The agent's config keeps this port of one of the machine's networks for the machine.
    ReservedIn(u16, String),
    /// The agent's config has no network of this name, for the port with this label.
    NoNetwork(String, String),
    /// The machine has no address in the network of this name.
    NoAddress(String),
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
            Self::ReservedIn(port, network) => (
                format!(
                    "needs port {port} of the host network `{network}`, which its `reserved_ports` keep for the machine"
                ),
                format!("network: reserved port collision {port}"),
            ),
            Self::NoNetwork(network, label) => (
                format!(
                    "needs the host network `{network}` for port `{label}`: add it to `network.host_networks` of the agent's config"
                ),
                format!("missing host network \"{network}\" for port \"{label}\""),
            ),
            Self::NoAddress(network) => (
                format!(
                    "needs the host network `{network}`, and the machine had no such address when the agent started: compare \
                     `network.host_networks` of the agent's config with the machine's addresses"
                ),
                format!("network: no addresses available for \"{network}\" network"),
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
    /// Published ports, with the allocations whose services publish them, and their jobs.
    published: BTreeMap<u16, BTreeMap<AllocId, JobKey>>,
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
        for port in alloc.published_ports() {
            self.published.entry(port).or_default().insert(alloc.id, alloc.job_key.clone());
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
        for port in alloc.published_ports() {
            let Some(publishers) = self.published.get_mut(&port) else { continue };
            publishers.remove(&alloc.id);
            if publishers.is_empty() {
                self.published.remove(&port);
            }
        }
    }

    /// The first of the allocations that hold or publish the port.
    pub fn holder(&self, port: u16) -> Option<AllocId> {
        let held = self.by.get(&port).and_then(|holders| holders.first());
        held.or_else(|| self.published.get(&port)?.keys().next()).copied()
    }

    /// Why the port can't be assigned: it is reserved for the machine, or an allocation holds or publishes it.
    pub fn refuses(&self, port: u16) -> Option<NoPorts> {
        let is_published = self.published.contains_key(&port);
        self.refuses_as_held(port).or_else(|| is_published.then_some(NoPorts::Taken(port)))
    }

    /// Why services of the job can't publish the port: it is reserved for the machine, or held, or published by another job.
    fn refuses_publication(&self, port: u16, job: &JobKey) -> Option<NoPorts> {
        let mut publishers = self.published.get(&port).into_iter().flat_map(BTreeMap::values);
        let is_anothers = publishers.any(|publisher| publisher != job);
        self.refuses_as_held(port).or_else(|| is_anothers.then_some(NoPorts::Taken(port)))
    }

    fn refuses_as_held(&self, port: u16) -> Option<NoPorts> {
        if self.reserved.contains(&port) {
            Some(NoPorts::Reserved(port))
        } else {
            self.by.contains_key(&port).then_some(NoPorts::Taken(port))
        }
    }
}

/// The ports of a new allocation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllocPorts {
    /// Of the group, by label.
    pub group: Ports,
    /// Of single tasks, by task.
    pub tasks: BTreeMap<String, Ports>,
}

/// The ports of a machine for new allocations.
#[derive(Debug, Clone, Copy)]
pub struct OfferedPorts<'s> {
    /// The dynamic ports.
    pub dynamic: &'s RangeInclusive<u16>,
    /// The address that they are on.
    pub host_ip: &'s str,
    /// The machine's networks on which they can be instead, by name.
    pub networks: &'s BTreeMap<String, HostNetwork>,
}

/// Where a port is.
#[derive(Clone, Copy)]
struct Place<'s> {
    ip: &'s str,
    /// The network, if it is not the usual one.
    network: Option<(&'s str, &'s HostNetwork)>,
}

impl<'s> OfferedPorts<'s> {
    /// Where a port of the group is; ports of tasks are on the usual network.
    fn place<'p>(&self, group: &'p Group, task: Option<&Task>, label: &str) -> Result<Place<'p>, NoPorts>
    where
        's: 'p,
    {
        let named = group.network.as_ref().filter(|_| task.is_none());
        self.place_on(named.and_then(|network| network.host_networks.get(label)), label)
    }

    fn place_on<'p>(&self, network: Option<&'p String>, label: &str) -> Result<Place<'p>, NoPorts>
    where
        's: 'p,
    {
        let Some(name) = network else { return Ok(Place { ip: self.host_ip, network: None }) };
        let network =
            self.networks.get(name).ok_or_else(|| NoPorts::NoNetwork(name.clone(), String::from(label)))?;
        let ip = network.ip.as_deref().ok_or_else(|| NoPorts::NoAddress(name.clone()))?;
        Ok(Place { ip, network: Some((name, network)) })
    }
}

impl Place<'_> {
    /// Why a port can't be assigned here.
    fn refuses(&self, port: u16, held: &PortClaims) -> Option<NoPorts> {
        held.refuses(port).or_else(|| self.reserves(port))
    }

    fn reserves(&self, port: u16) -> Option<NoPorts> {
        let in_network = self.network.filter(|(_, network)| network.reserved_ports.contains(&port));
        in_network.map(|(name, _)| NoPorts::ReservedIn(port, String::from(name)))
    }
}

/// Checks that the fixed ports of the group and its tasks are free, or held by an allocation that is about to release them (`own`).
///
/// # Errors
/// The first port that can't be assigned.
pub fn check_fixed(group: &Group, held: &PortClaims, own: &BTreeSet<u16>) -> Result<(), NoPorts> {
    let published = group.published_ports().map(|publish| publish.port);
    let mut refused = group.fixed_ports().chain(published).filter_map(|port| held.refuses(port));
    let is_own = |why: &NoPorts| matches!(why, NoPorts::Taken(port) if own.contains(port));
    refused.find(|why| !is_own(why)).map_or(Ok(()), Err)
}

/// Checks that the job's services in this group may publish their ports: another job of this machine may do so already.
///
/// # Errors
/// The first port that can't be published.
pub fn check_published(
    group: &Group,
    job: &JobKey,
    held: &PortClaims,
    offered: &OfferedPorts<'_>,
) -> Result<(), NoPorts> {
    for publish in group.published_ports() {
        let place = offered.place_on(publish.host_network.as_ref(), &format!("{}", publish.port))?;
        let refused = held.refuses_publication(publish.port, job);
        if let Some(why) = refused.or_else(|| place.reserves(publish.port)) {
            return Err(why);
        }
    }
    Ok(())
}

/// Assigns ports to a new allocation, for its group and its tasks. Dynamic ports are chosen by a hash of the
/// allocation's id, so that the choice differs between agents on one machine and needs no state.
///
/// # Errors
/// The first port that can't be assigned.
pub fn assign(
    group: &Group,
    id: AllocId,
    held: &PortClaims,
    offered: &OfferedPorts<'_>,
) -> Result<AllocPorts, NoPorts> {
    let range = offered.dynamic;
    let mut own: BTreeSet<u16> = group.published_ports().map(|publish| publish.port).collect();
    let mut ports = AllocPorts::default();
    let mut give = |(task, label): (Option<&Task>, &String), request: &PortRequest, value: u16, ip: &str| {
        let of_owner = match task {
            Some(task) => ports.tasks.entry(task.name.clone()).or_default(),
            None => &mut ports.group,
        };
        of_owner.insert(label.clone(), port_of(ip, value, request.to));
    };
    for (task, label, request) in group.port_requests() {
        let Some(port) = request.fixed else { continue };
        let place = offered.place(group, task, label)?;
        if let Some(why) = place.refuses(port, held) {
            return Err(why);
        }
        if !own.insert(port) {
            return Err(NoPorts::Taken(port));
        }
        give((task, label), request, port, place.ip);
    }
    for (task, label, request) in group.port_requests().filter(|(_, _, request)| request.fixed.is_none()) {
        let place = offered.place(group, task, label)?;
        let count = i64::from(range.end().saturating_sub(*range.start()).saturating_add(1));
        let first = match task {
            Some(task) => fraction(count, (id, task.name.as_str(), label.as_str())),
            None => fraction(count, (id, label.as_str())),
        };
        let mut free = (0..count)
            .map(|step| *range.start() + ((step + first) % count) as u16)
            .filter(|port| place.refuses(*port, held).is_none() && !own.contains(port));
        // The report may be outdated: a port whose owner has just ended is better than none.
        let unused = free.clone().find(|port| !held.listening.contains(port));
        let free = unused.or_else(|| free.next()).ok_or(NoPorts::Exhausted)?;
        own.insert(free);
        give((task, label), request, free, place.ip);
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
        job::{Lifecycle, Network, PortRequest, Publish, Service},
    };

    use super::*;
    use crate::fixture::{alloc, task};

    fn few_ports() -> OfferedPorts<'static> {
        OfferedPorts { dynamic: &(20_000..=20_003), host_ip: "10.0.0.1", networks: &NO_NETWORKS }
    }

    static NO_NETWORKS: BTreeMap<String, HostNetwork> = BTreeMap::new();

    const DYNAMIC: PortRequest = PortRequest { fixed: None, to: None };

    fn group(ports: &[(&str, PortRequest)]) -> Group {
        let ports = ports.iter().map(|(label, request)| ((*label).to_owned(), *request)).collect();
        Group { network: Some(Network { ports, ..Network::default() }), ..fixture::group("g", 1, Vec::new()) }
    }

    /// The ports that the allocation gets from 20,000 to 20,003, or why it gets none.
    fn assigned(group: &Group, id: u8, held: &PortClaims) -> Result<Vec<u16>, NoPorts> {
        let AllocPorts { group, tasks } = assign(group, AllocId::from_hash([id; 16]), held, &few_ports())?;
        Ok(group.values().chain(tasks.values().flat_map(BTreeMap::values)).map(|port| port.value).collect())
    }

    fn holding(ports: &[u16]) -> Arc<Allocation> {
        let mut alloc = alloc(vec![task("main", Lifecycle::Main)]);
        let ports = ports.iter().map(|port| (String::from("p"), port_of("", *port, None))).collect();
        Arc::make_mut(&mut alloc).ports = ports;
        alloc
    }

    /// The group has these ports, and so has each of its tasks `a` and `b`.
    fn with_tasks(ports: &[(&str, PortRequest)]) -> Group {
        let mut group = group(&[]);
        group.tasks = ["a", "b"].map(|name| task(name, Lifecycle::Main)).into();
        for task in &mut group.tasks {
            task.ports = ports.iter().map(|(label, request)| ((*label).to_owned(), *request)).collect();
        }
        group
    }

    #[test]
    fn ports_of_group_and_tasks_are_assigned_together() {
        let mut group = with_tasks(&[("db", DYNAMIC)]);
        group.network = Some(Network { ports: [("http".to_owned(), DYNAMIC)].into(), ..Network::default() });
        for id in 0..32 {
            let ports = assigned(&group, id, &PortClaims::default()).expect("three of four ports");
            let ports: BTreeSet<u16> = ports.into_iter().collect();
            assert_eq!(ports.len(), 3, "equal labels have different ports");
        }
        group.tasks[1].ports.insert("more".to_owned(), DYNAMIC);
        assert_eq!(assigned(&group, 1, &PortClaims::default()).map(|ports| ports.len()), Ok(4));
        group.tasks[1].ports.insert("one too many".to_owned(), DYNAMIC);
        assert_eq!(assigned(&group, 1, &PortClaims::default()), Err(NoPorts::Exhausted));
    }

    #[test]
    fn static_port_of_a_task_is_held_and_released_like_the_groups() {
        let http = PortRequest { fixed: Some(20_001), to: None };
        let mut group = with_tasks(&[("db", DYNAMIC)]);
        group.tasks[0].ports.insert("http".to_owned(), http);
        let id = AllocId::from_hash([1; 16]);
        let mut held = PortClaims::default();
        let ports = assign(&group, id, &held, &few_ports()).expect("free ports");
        assert_eq!(ports.tasks["a"]["http"].value, 20_001);
        assert!(ports.group.is_empty() && ports.tasks["b"].len() == 1);
        let mut holder = alloc(Vec::new());
        Arc::make_mut(&mut holder).task_ports = ports.tasks;
        held.take(&holder);
        assert_eq!(assigned(&group, 2, &held), Err(NoPorts::Taken(20_001)));
        assert_eq!(check_fixed(&group, &held, &BTreeSet::new()), Err(NoPorts::Taken(20_001)));
        assert_eq!(check_fixed(&group, &held, &[20_001].into()), Ok(()));
        held.release(&holder);
        assert!(assigned(&group, 2, &held).is_ok());
        // The group's and a task's.
        group.network = Some(Network { ports: [("web".to_owned(), http)].into(), ..Network::default() });
        assert_eq!(assigned(&group, 2, &held), Err(NoPorts::Taken(20_001)));
    }

    /// The group's service publishes this port.
    fn publishing(port: u16, host_network: Option<&str>) -> Group {
        let publish = Publish { port, host_network: host_network.map(ToOwned::to_owned) };
        let mut group = group(&[]);
        group.services = vec![Service { publish: Some(publish), ..fixture::service("web") }];
        group
    }

    /// An allocation with this number of a job whose service publishes this port.
    fn publisher(id: u8, job: &str, port: u16) -> Arc<Allocation> {
        let mut alloc = alloc(Vec::new());
        let own = Arc::make_mut(&mut alloc);
        own.id = AllocId::from_hash([id; 16]);
        own.job_key = key(job);
        let name = own.group.clone();
        Arc::make_mut(&mut own.job).groups = vec![Group { name, ..publishing(port, None) }];
        alloc
    }

    fn key(job: &str) -> JobKey {
        JobKey { namespace: "default".into(), id: job.into() }
    }

    #[test]
    fn published_port_belongs_to_one_job_and_to_no_allocation() {
        let mut held = PortClaims::default();
        let (first, second) = (publisher(1, "shop", 20_001), publisher(2, "shop", 20_001));
        held.take(&first);
        held.take(&second);
        let check = |held: &PortClaims, job: &str, port: u16| {
            check_published(&publishing(port, None), &key(job), held, &few_ports())
        };
        assert_eq!(check(&held, "shop", 20_001), Ok(()), "further instances");
        assert_eq!(check(&held, "other", 20_001), Err(NoPorts::Taken(20_001)));
        assert_eq!(check(&held, "other", 20_002), Ok(()));
        assert_eq!(held.holder(20_001), Some(first.id));
        let fixed = PortRequest { fixed: Some(20_001), to: None };
        assert_eq!(assigned(&group(&[("a", fixed)]), 3, &held), Err(NoPorts::Taken(20_001)));
        for id in 0..32 {
            assert!(assigned(&group(&[("a", DYNAMIC)]), id, &held).is_ok_and(|ports| ports != [20_001]));
            let mut own = publishing(20_002, None);
            own.network = group(&[("a", DYNAMIC), ("b", DYNAMIC)]).network;
            assert_eq!(assigned(&own, id, &held).map(|ports| ports.len()), Ok(2));
            assert!(assigned(&own, id, &held).is_ok_and(|ports| !ports.contains(&20_002)));
        }
        assert_eq!(check_fixed(&publishing(20_001, None), &held, &[20_001].into()), Ok(()), "its own");
        held.release(&first);
        assert_eq!(check(&held, "other", 20_001), Err(NoPorts::Taken(20_001)));
        held.release(&second);
        assert_eq!(check(&held, "other", 20_001), Ok(()));
        assert_eq!(held.refuses(20_001), None);
    }

    #[test]
    fn port_that_is_held_or_reserved_is_not_published() {
        let reserved = HostNetwork { ip: Some("192.0.2.7".to_owned()), reserved_ports: [8443].into() };
        let networks = [("lan".to_owned(), reserved)].into();
        let offered = OfferedPorts { networks: &networks, ..few_ports() };
        let mut held = PortClaims::beside([22].into());
        held.take(&holding(&[8080]));
        let check = |port: u16, network: Option<&str>| {
            check_published(&publishing(port, network), &key("web"), &held, &offered)
        };
        assert_eq!(check(8080, None), Err(NoPorts::Taken(8080)));
        assert_eq!(check(22, None), Err(NoPorts::Reserved(22)));
        assert_eq!(check(8443, Some("lan")), Err(NoPorts::ReservedIn(8443, "lan".to_owned())));
        assert_eq!(check(443, Some("lan")), Ok(()));
        let unknown = Err(NoPorts::NoNetwork("wan".to_owned(), "443".to_owned()));
        assert_eq!(check(443, Some("wan")), unknown);
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

    /// 8 % of public job files name one.
    #[test]
    fn ports_are_on_the_network_that_they_name() {
        let network = |ip: Option<&str>, reserved: &[u16]| HostNetwork {
            ip: ip.map(ToOwned::to_owned),
            reserved_ports: reserved.iter().copied().collect(),
        };
        let reserved = [8443, 20_000, 20_001, 20_002];
        let networks = [
            ("lan".to_owned(), network(Some("192.0.2.7"), &reserved)),
            ("away".to_owned(), network(None, &[])),
        ];
        let networks = BTreeMap::from(networks);
        let offered = OfferedPorts { networks: &networks, ..few_ports() };
        let on = |name: &str, request: PortRequest| {
            let admin = PortRequest { fixed: Some(81), to: None };
            let mut group = group(&[("web", request), ("admin", admin)]);
            let own = group.network.as_mut().expect("a network");
            own.host_networks.insert("web".to_owned(), name.to_owned());
            // A label of a task is no label of the group.
            group.tasks = vec![task("a", Lifecycle::Main)];
            group.tasks[0].ports.insert("web".to_owned(), DYNAMIC);
            assign(&group, AllocId::from_hash([1; 16]), &PortClaims::default(), &offered)
        };
        let fixed = |port: u16| PortRequest { fixed: Some(port), to: None };
        let ports = on("lan", DYNAMIC).expect("a free port");
        let ips = |ports: &Ports| ports.values().map(|port| port.host_ip.clone()).collect::<Vec<_>>();
        assert_eq!(ips(&ports.group), ["10.0.0.1", "192.0.2.7"]);
        assert_eq!(ports.group["web"].value, 20_003, "the others are reserved there");
        assert_eq!(ips(&ports.tasks["a"]), ["10.0.0.1"]);
        assert_eq!(on("lan", fixed(80)).map(|ports| ports.group["web"].value), Ok(80));
        assert_eq!(on("lan", fixed(8443)), Err(NoPorts::ReservedIn(8443, "lan".to_owned())));
        assert_eq!(on("away", DYNAMIC), Err(NoPorts::NoAddress("away".to_owned())));
        let why = on("wan", DYNAMIC).expect_err("no such network");
        assert_eq!(why, NoPorts::NoNetwork("wan".to_owned(), "web".to_owned()));
        let unplaced = why.unplaced(|_| None);
        assert!(unplaced.message.contains("add it to `network.host_networks`"), "{}", unplaced.message);
        assert_eq!(unplaced.exhausted, ["missing host network \"wan\" for port \"web\""]);
    }

    #[test]
    fn fixed_port_is_assigned_once() {
        let http = PortRequest { fixed: Some(80), to: Some(8080) };
        let mut held = PortClaims::default();
        let id = AllocId::from_hash([1; 16]);
        let ports = assign(&group(&[("http", http)]), id, &held, &few_ports());
        let expected = AssignedPort { host_ip: "10.0.0.1".to_owned(), value: 80, to: 8080 };
        assert_eq!(
            ports,
            Ok(AllocPorts { group: [("http".to_owned(), expected)].into(), ..Default::default() })
        );
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
