//! Tests of ports: which a new allocation gets, and which it does not.

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
    let networks =
        [("lan".to_owned(), network(Some("192.0.2.7"), &reserved)), ("away".to_owned(), network(None, &[]))];
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
    assert_eq!(ports, Ok(AllocPorts { group: [("http".to_owned(), expected)].into(), ..Default::default() }));
    assert_eq!(assigned(&group(&[("a", http), ("b", http)]), 1, &held), Err(NoPorts::Taken(80)));
    held.take(&holding(&[80]));
    assert_eq!(assigned(&group(&[("http", http)]), 1, &held), Err(NoPorts::Taken(80)));
    let mut held = PortClaims::beside([80, 20_000, 20_001, 20_003].into());
    assert_eq!(assigned(&group(&[("http", http)]), 1, &held), Err(NoPorts::Reserved(80)));
    assert_eq!(assigned(&group(&[("a", DYNAMIC)]), 1, &held), Ok(vec![20_002]));
    held.take(&holding(&[20_002]));
    assert_eq!(assigned(&group(&[("a", DYNAMIC)]), 1, &held), Err(NoPorts::Exhausted));
}
