//! Tests of the table: installed, changed, compared, on a machine of their own.

use super::*;
use crate::{
    nft::{ChainKind, Hook, HookPoint, MapType, Rule},
    test_machine::on_machine,
};

fn bridge() -> BridgeRules {
    BridgeRules {
        name: InterfaceName::new("br").unwrap(),
        subnet4: "172.26.64.0/20".parse().unwrap(),
        subnet6: Some("fd00::/64".parse().unwrap()),
    }
}

fn firewall() -> Firewall {
    Firewall::open("x", vec![bridge()]).unwrap()
}

fn port(host_port: u16, last: u8, owner: &str) -> PortMap {
    PortMap {
        host_ip: Some(IpAddr::from([10, 0, 0, 5])),
        host_port,
        target_ip: IpAddr::from([172, 26, 64, last]),
        target_port: 80,
        owner: owner.to_owned(),
    }
}

fn changed(change: impl FnOnce(&mut Batch<'_>)) {
    let mut batch = Batch::new(Table { family: Family::Inet, name: "herdlet-x" });
    change(&mut batch);
    Socket::open(Protocol::Netfilter).unwrap().commit("change", &batch.into_messages()).unwrap();
}

#[test]
fn ports_become_elements_of_the_fitting_map() {
    let maps = |host_ip: Option<&str>, target: &str| {
        let port = PortMap {
            host_ip: host_ip.map(|ip| ip.parse().unwrap()),
            target_ip: target.parse().unwrap(),
            ..port(8080, 9, "a")
        };
        elements_of(&[port]).into_iter().map(|(map, all)| (map, all.len())).collect::<Vec<_>>()
    };
    assert_eq!(maps(Some("10.0.0.5"), "172.26.64.9"), [("ports4", 2)]);
    assert_eq!(maps(None, "172.26.64.9"), [("any4", 2)]);
    assert_eq!(maps(Some("0.0.0.0"), "172.26.64.9"), [("any4", 2)]);
    assert_eq!(maps(Some("2001:db8::5"), "fd00::9"), [("ports6", 2)]);
    assert_eq!(maps(Some("::"), "fd00::9"), [("any6", 2)]);
    assert_eq!(maps(Some("10.0.0.5"), "fd00::9"), []);
    assert_eq!(maps(Some("2001:db8::5"), "172.26.64.9"), []);
}

#[test]
fn rules_are_installed_once_and_ports_stay() {
    on_machine(|_| {
        let firewall = firewall();
        assert_eq!(firewall.compare(&[]).unwrap(), Some(Difference::Structure));
        assert_eq!(firewall.install().unwrap(), Installation::PortsKept);
        assert_eq!(firewall.compare(&[]).unwrap(), None);
        let ports = [port(8080, 9, "a"), port(8081, 9, "a"), port(8082, 10, "b")];
        firewall.map_ports(&ports).unwrap();
        firewall.map_ports(&ports).unwrap();
        firewall.map_ports(&[]).unwrap();
        assert!(firewall.has_ports(&ports).unwrap());
        assert_eq!(firewall.compare(&[]).unwrap(), Some(Difference::Ports));
        assert_eq!(firewall.install().unwrap(), Installation::PortsKept);
        assert_eq!(firewall.compare(&ports).unwrap(), None);
        assert_eq!(firewall.owners().unwrap(), ["a", "b"].map(str::to_owned).into());
        firewall.unmap_ports("a", Some(&ports[..1])).unwrap();
        assert_eq!(firewall.compare(&ports[1..]).unwrap(), None);
        firewall.unmap_ports("a", None).unwrap();
        firewall.unmap_ports("a", None).unwrap();
        assert_eq!(firewall.compare(&ports[2..]).unwrap(), None);
        for _ in 0..2 {
            firewall.remove().unwrap();
            firewall.unmap_ports("b", Some(&ports)).unwrap();
            assert_eq!(firewall.owners().unwrap(), BTreeSet::new());
        }
    });
}

/// Two labels of a job may have the same port.
#[test]
fn port_that_is_named_twice_is_mapped_and_unmapped() {
    on_machine(|_| {
        let firewall = firewall();
        firewall.install().unwrap();
        let twice = [port(8080, 9, "a"), port(8080, 9, "a"), port(8081, 9, "a")];
        firewall.map_ports(&twice).unwrap();
        assert!(firewall.has_ports(&twice).unwrap());
        firewall.unmap_ports("a", Some(&twice)).unwrap();
        assert_eq!(firewall.owners().unwrap(), BTreeSet::new());
    });
}

/// Larger than what the kernel lets every socket send at once.
#[test]
fn thousands_of_ports_are_mapped_together() {
    on_machine(|_| {
        let firewall = firewall();
        firewall.install().unwrap();
        let many: Vec<PortMap> = (0..4_000).map(|at| port(20_000 + at, 9, "a")).collect();
        firewall.map_ports(&many).unwrap();
        assert!(firewall.has_ports(&many).unwrap());
        firewall.unmap_ports("a", None).unwrap();
        assert_eq!(firewall.owners().unwrap(), BTreeSet::new());
    });
}

/// An allocation has got the port of one that has ended, before that one's port was removed.
#[test]
fn port_of_another_allocation_is_taken_over() {
    on_machine(|_| {
        let firewall = firewall();
        firewall.install().unwrap();
        let earlier = [port(8080, 9, "a"), port(8081, 9, "a")];
        firewall.map_ports(&earlier).unwrap();
        firewall.map_ports(&[port(8080, 10, "b"), port(8090, 10, "b")]).unwrap();
        firewall.unmap_ports("a", Some(&earlier)).unwrap();
        let wanted = [port(8080, 10, "b"), port(8090, 10, "b")];
        assert_eq!(firewall.compare(&wanted).unwrap(), None);
    });
}

#[test]
fn drift_is_found_and_repaired() {
    on_machine(|_| {
        let firewall = firewall();
        firewall.install().unwrap();
        let ports = [port(8080, 9, "a")];
        firewall.map_ports(&ports).unwrap();
        changed(|batch| batch.clear_chain("leave"));
        assert_eq!(firewall.compare(&ports).unwrap(), Some(Difference::Rules));
        firewall.install().unwrap();
        changed(|batch| {
            batch.append_rule("map_in", &Rule { expressions: Vec::new(), comment: "foreign".to_owned() });
        });
        assert_eq!(firewall.compare(&ports).unwrap(), Some(Difference::Rules));
        firewall.install().unwrap();
        assert_eq!(firewall.compare(&ports).unwrap(), None);
        changed(|batch| batch.clear_map("ports4"));
        assert_eq!(firewall.compare(&ports).unwrap(), Some(Difference::Ports));
        assert!(!firewall.has_ports(&ports).unwrap());
        changed(|batch| batch.delete_table());
        assert_eq!(firewall.compare(&ports).unwrap(), Some(Difference::Structure));
        assert_eq!(firewall.map_ports(&ports).unwrap_err().errno(), Some(Errno::NOENT));
    });
}

#[test]
fn rules_of_the_administrator_stay() {
    on_machine(|_| {
        let firewall = firewall();
        firewall.install().unwrap();
        let own = Rule { expressions: Vec::new(), comment: "own".to_owned() };
        changed(|batch| batch.append_rule("admin", &own));
        assert_eq!(firewall.compare(&[]).unwrap(), None);
        firewall.install().unwrap();
        let mut socket = Socket::open(Protocol::Netfilter).unwrap();
        let rules = read::rules(&mut socket, firewall.table()).unwrap();
        assert!(rules.iter().any(|rule| (&*rule.chain, &*rule.comment) == ("admin", "own")), "{rules:?}");
    });
}

/// The table of an older release, or another program's of the same name.
#[test]
fn table_of_another_form_is_replaced() {
    on_machine(|_| {
        let hook = Hook { point: HookPoint::Forward, priority: 7, kind: ChainKind::Filter };
        changed(|batch| {
            batch.make_table();
            batch.make_chain("leave", Some(hook));
            let text = MapType { key: &[crate::nft::DataType::Port], value: &[crate::nft::DataType::Ipv6] };
            batch.make_map("ports4", text, 1);
        });
        let firewall = firewall();
        assert_eq!(firewall.compare(&[]).unwrap(), Some(Difference::Structure));
        assert_eq!(firewall.install().unwrap(), Installation::WithoutPorts);
        assert_eq!(firewall.compare(&[]).unwrap(), None);
        firewall.map_ports(&[port(8080, 9, "a")]).unwrap();
    });
}

#[test]
fn tables_of_instances_are_apart() {
    on_machine(|_| {
        let (one, other) = (firewall(), Firewall::open("y", vec![bridge()]).unwrap());
        one.install().unwrap();
        other.install().unwrap();
        one.map_ports(&[port(8080, 9, "a")]).unwrap();
        other.remove().unwrap();
        assert_eq!(one.compare(&[port(8080, 9, "a")]).unwrap(), None);
    });
}
