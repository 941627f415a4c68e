//! Tests of the requests for networks that the agent derives from allocations.

use super::*;
use herdlet_api_types::job::{Dns, Network};
use herdlet_network::{
    port_owner::{PortOwner, Transport},
    ports::HoldError,
};
use herdlet_plan::action::FailureClass;

fn port(host_ip: &str, to: u16) -> AssignedPort {
    AssignedPort { host_ip: host_ip.to_owned(), value: 8080, to }
}

fn networks_of(paths: &Paths, machine: Machine) -> AllocNetworks {
    let settings = Settings::default();
    let bridge = bridge_of(&InstanceId("0123456789abcdef".to_owned()), &settings, paths);
    AllocNetworks::new(bridge, settings, paths, machine)
}

/// Nothing but the machine reaches a port of its loopback interface.
#[test]
fn ports_lead_to_allocations_at_their_address_and_for_the_machine() {
    let usual = ["192.0.2.7", "127.0.0.1", "0.0.0.0"].map(|ip| ip.parse::<IpAddr>().unwrap());
    for (port, ips, inside) in [
        (port("127.0.0.1", 80), vec!["127.0.0.1"], 80),
        (port("192.0.2.7", 0), vec!["192.0.2.7", "127.0.0.1"], 8080),
        // Of a network that a job names: another allocation may have the same port of another one.
        (port("198.51.100.7", 80), vec!["198.51.100.7"], 80),
        (port("0.0.0.0", 80), vec!["0.0.0.0"], 80),
    ] {
        let at = |ip: &str| RequestedPort { host_ip: Some(ip.parse().unwrap()), host: 8080, inside };
        assert_eq!(requested(&port, &usual), ips.into_iter().map(at).collect::<Vec<_>>(), "{port:?}");
    }
}

/// Another allocation may have the same number at 127.0.0.1, by another network of the machine.
#[test]
fn port_of_a_named_network_is_not_at_the_loopback_address() {
    let dir = tempfile::tempdir().unwrap();
    let paths = Paths { state: dir.path().to_owned(), runtime: dir.path().join("run") };
    let machine = Machine {
        permission: Permission::Missing,
        usual_addresses: vec!["192.0.2.7".parse().unwrap()],
        node: CurrentNode::new(NodeFacts::default()),
    };
    let networks = networks_of(&paths, machine);
    for (name, expected) in [("default", vec!["192.0.2.7", "127.0.0.1"]), ("public", vec!["192.0.2.7"])] {
        let mut job = herdlet_manifest::fixture::job("web", "g", "server");
        let host_networks = [("http".to_owned(), name.to_owned())].into();
        Arc::make_mut(&mut job).groups[0].network = Some(Network { host_networks, ..Network::default() });
        let mut spec = Allocation::clone(&herdlet_manifest::fixture::alloc_view(&job, 0, 1).spec);
        spec.ports = [("http".to_owned(), port("192.0.2.7", 80))].into();
        let ips: Vec<String> =
            networks.ports_of(&spec).iter().map(|port| port.host_ip.unwrap().to_string()).collect();
        assert_eq!(ips, expected, "{name}");
        let shown: Vec<String> =
            networks.port_views(&spec, &[]).into_iter().map(|port| port.host_ip).collect();
        assert_eq!(shown, expected, "{name}");
    }
}

#[test]
fn port_of_another_process_is_waited_for_by_name() {
    let port = HeldPort { protocol: Transport::Tcp, ip: None, port: 8080 };
    let owner = PortOwner { pid: 712, program: "nginx".to_owned() };
    for (owner, expected) in [
        (Some(owner), "port 8080/tcp, which nginx (process 712) has"),
        (None, "port 8080/tcp, which another process has"),
    ] {
        let Outcome::Pending { on, .. } = not_held(&HoldError::Taken { port, owner }) else {
            panic!("it is not waited for")
        };
        assert_eq!(on, expected);
    }
}

#[test]
fn agent_without_privileges_makes_and_keeps_nothing() {
    let dir = std::env::temp_dir();
    let paths = Paths { state: dir.join("none"), runtime: dir.join("none/run") };
    let machine = Machine {
        permission: Permission::Missing,
        usual_addresses: Vec::new(),
        node: CurrentNode::new(NodeFacts::default()),
    };
    let networks = networks_of(&paths, machine);
    assert_eq!(networks.sweep(|_| true), SweepCount::default());
    networks.remove_all().unwrap();
    assert_eq!(networks.held_ports(), BTreeSet::new());
    let job = herdlet_manifest::fixture::job("web", "g", "server");
    let mut alloc = (*herdlet_manifest::fixture::alloc_view(&job, 0, 1).spec).clone();
    let mut job = (*alloc.job).clone();
    job.groups[0].network = Some(Network { mode: NetworkMode::Bridge, ..Network::default() });
    alloc.job = job.into();
    let Outcome::Failed { class: FailureClass::Fatal, why } = networks.up(&alloc) else {
        panic!("it is made")
    };
    assert!(why.contains("run it as root"), "{why}");
    assert_eq!(networks.inspect(&alloc), Outcome::Absent);
    assert_eq!(networks.down(&alloc), Outcome::Done(None));
}

/// It is only a file, so an agent without privileges writes it too.
#[test]
fn resolver_of_a_group_on_the_machines_network_is_written_and_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let paths = Paths { state: dir.path().to_owned(), runtime: dir.path().join("run") };
    let facts = NodeFacts {
        attributes: [("unique.network.ip-address".to_owned(), "192.0.2.53".to_owned())].into(),
        ..NodeFacts::default()
    };
    let node = CurrentNode::new(facts);
    let machine =
        Machine { permission: Permission::Missing, usual_addresses: Vec::new(), node: node.clone() };
    let networks = networks_of(&paths, machine);
    let mut job = herdlet_manifest::fixture::job("web", "g", "server");
    let dns = Dns {
        servers: vec!["${attr.unique.network.ip-address}".to_owned()],
        searches: vec!["${node.class}".to_owned(), "example.org".to_owned()],
        options: Vec::new(),
    };
    Arc::make_mut(&mut job).groups[0].network = Some(Network { dns, ..Network::default() });
    let alloc = herdlet_manifest::fixture::alloc_view(&job, 0, 1).spec;
    let made = paths.alloc(&alloc.id);
    std::fs::create_dir_all(&made).unwrap();
    let file = made.join(".network/resolv.conf");
    assert_eq!(networks.inspect(&alloc), Outcome::Absent);
    let up = Outcome::Done(Some(facts_of_machine()));
    assert_eq!(networks.up(&alloc), up);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(
        text.ends_with("nameserver 192.0.2.53\nsearch example.org\n"),
        "an empty value is left out: {text}"
    );
    assert_eq!(networks.inspect(&alloc), Outcome::Present(Some(facts_of_machine())));

    std::fs::write(&file, "").unwrap();
    let damage = Outcome::Foreign { why: "its file resolv.conf differs".to_owned() };
    assert_eq!(networks.inspect(&alloc), damage);
    assert_eq!(networks.up(&alloc), up);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    // The machine's address has changed.
    let facts = NodeFacts {
        attributes: [("unique.network.ip-address".to_owned(), "192.0.2.54".to_owned())].into(),
        ..NodeFacts::default()
    };
    node.set(facts);
    assert_eq!(networks.inspect(&alloc), damage);

    assert_eq!(networks.down(&alloc), Outcome::Done(None));
    assert_eq!(networks.inspect(&alloc), Outcome::Absent);
    let facts = NodeFacts {
        attributes: [("unique.network.ip-address".to_owned(), "192.0.2.54\nsearch x".to_owned())].into(),
        ..NodeFacts::default()
    };
    node.set(facts);
    let Outcome::Failed { class: FailureClass::Fatal, why } = networks.up(&alloc) else {
        panic!("it is written")
    };
    assert!(why.contains("`dns.servers`") && why.contains("control characters"), "{why}");
}

#[test]
fn host_name_has_the_values_of_variables_and_is_checked() {
    let node = CurrentNode::new(NodeFacts::default());
    let mut job = herdlet_manifest::fixture::job("web", "g", "server");
    let mut named = |mode: NetworkMode, name: &str| {
        let network = Network { mode, hostname: name.to_owned(), ..Network::default() };
        Arc::make_mut(&mut job).groups[0].network = Some(network);
        dns::hostname(&herdlet_manifest::fixture::alloc_view(&job, 3, 1).spec, &node)
    };
    let name = "web-${NOMAD_ALLOC_INDEX}.example";
    assert_eq!(named(NetworkMode::None, name), Ok(Some("web-3.example".to_owned())));
    assert_eq!(named(NetworkMode::Host, name), Ok(None));
    assert_eq!(named(NetworkMode::Bridge, "${node.class}"), Ok(None), "an empty value");
    let refused = named(NetworkMode::Bridge, "${NOMAD_JOB_NAME} x").unwrap_err();
    assert!(refused.starts_with("set the host name \"web x\": it must be 1 to 63 letters"), "{refused}");
}
