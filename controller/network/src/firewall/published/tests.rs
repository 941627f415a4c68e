//! Tests of the table: shares of targets, changes, drift, on a machine of their own.

use super::*;
use crate::test_machine::on_machine;

fn at(ip: [u8; 4], port: u16) -> SocketAddr {
    SocketAddr::new(ip.into(), port)
}

fn published6(port: u16, targets: &[u16]) -> PublishedPort {
    let at =
        |last: u16, port: u16| SocketAddr::new(Ipv6Addr::new(0xfd00, 0x37, 0, 0, 0, 0, 0, last).into(), port);
    let target = |last: &u16| Target { at: at(*last, 80), owner: last.to_string() };
    PublishedPort { at: at(1, port), targets: targets.iter().map(target).collect() }
}

fn published(port: u16, targets: &[u8]) -> PublishedPort {
    let target = |last: &u8| Target { at: at([172, 26, 64, *last], 80), owner: last.to_string() };
    PublishedPort { at: at([192, 0, 2, 7], port), targets: targets.iter().map(target).collect() }
}

fn ports() -> PublishedPorts {
    PublishedPorts::open("x").unwrap()
}

#[test]
fn targets_share_the_elements_evenly() {
    for count in 1..=6 {
        let targets: Vec<u8> = (2..2 + count).collect();
        let slots = slots_of(&[published(8080, &targets)]);
        let elements = &slots[&at([192, 0, 2, 7], 8080)];
        let keys: BTreeSet<&[u8]> = elements.iter().map(|element| &*element.key).collect();
        assert_eq!(keys.len(), 120);
        for target in &targets {
            let own = elements.iter().filter(|element| element.comment == target.to_string());
            assert_eq!(own.count(), 120 / usize::from(count), "{count}");
        }
    }
    assert!(slots_of(&[published(8080, &[])]).is_empty(), "the machine itself answers");
    let mut of_both = published(8080, &[2]);
    of_both.targets.extend(published6(8080, &[3, 4]).targets);
    assert_eq!(slots_of(&[of_both]), slots_of(&[published(8080, &[2])]), "no packet changes its family");
}

#[test]
fn ports_are_set_changed_and_removed() {
    on_machine(|_| {
        let ports = ports();
        assert_eq!(ports.open_ports().unwrap(), BTreeSet::new());
        ports.set(&[]).unwrap();
        for wanted in [
            vec![published(8080, &[2, 3]), published(8081, &[4])],
            vec![published(8080, &[3]), published(8081, &[4])],
            vec![published(8081, &[4]), published(8082, &[])],
            vec![published(8081, &[4]), published6(8081, &[4, 5])],
            vec![published6(8081, &[5])],
            vec![],
            vec![published(8080, &[2])],
        ] {
            ports.set(&wanted).unwrap();
            ports.set(&wanted).unwrap();
            assert!(!ports.repair(&wanted).unwrap(), "{wanted:?}");
            let open = wanted.iter().filter(|port| !port.targets.is_empty()).map(|port| port.at);
            assert_eq!(ports.open_ports().unwrap(), open.collect());
        }
        for _ in 0..2 {
            ports.remove().unwrap();
        }
        assert!(!ports.has_table(&mut ports.lock().socket).unwrap());
    });
}

/// The agent died at any point; the next one has other targets.
#[test]
fn targets_of_an_earlier_agent_are_corrected() {
    on_machine(|_| {
        ports().set(&[published(8080, &[2, 3]), published(8081, &[4])]).unwrap();
        for wanted in [vec![published(8080, &[3, 5])], vec![]] {
            let next = ports();
            next.set(&wanted).unwrap();
            assert!(!ports().repair(&wanted).unwrap(), "{wanted:?}");
        }
        assert!(!ports().has_table(&mut ports().lock().socket).unwrap());
    });
}

#[test]
fn targets_of_an_allocation_are_withdrawn() {
    on_machine(|_| {
        let first = vec![published(8080, &[2, 3]), published(8081, &[2]), published6(8081, &[2, 3])];
        ports().set(&first).unwrap();
        let ports = ports();
        let without_2 = vec![published(8080, &[3]), published6(8081, &[3])];
        for (owner, left) in [("7", first), ("2", without_2)] {
            ports.withdraw(owner).unwrap();
            assert!(!ports.repair(&left).unwrap(), "{owner}");
        }
        ports.withdraw("3").unwrap();
        assert!(!ports.has_table(&mut ports.lock().socket).unwrap());
    });
}

#[test]
fn drift_is_found_and_repaired() {
    on_machine(|_| {
        let ports = ports();
        let wanted = [published(8080, &[2, 3])];
        ports.set(&wanted).unwrap();
        let damage: [fn(&mut Batch<'_>); 4] = [
            |batch| batch.delete_table(),
            |batch| batch.clear_map(TARGETS4),
            |batch| batch.clear_chain(PUBLISH_IN),
            |batch| {
                let foreign = at([192, 0, 2, 7], 9);
                let key = [&*bytes_at(foreign), &[0; 4]].concat();
                batch.add_elements(
                    TARGETS4,
                    &[Element { key, value: bytes_at(foreign), comment: String::new() }],
                );
            },
        ];
        for damage in damage {
            let mut batch = Batch::new(ports.table());
            damage(&mut batch);
            Socket::open(Protocol::Netfilter).unwrap().commit("damage", &batch.into_messages()).unwrap();
            assert!(ports.repair(&wanted).unwrap());
            assert!(!ports.repair(&wanted).unwrap());
        }
        // Not seen before the next change.
        let mut batch = Batch::new(ports.table());
        batch.delete_table();
        Socket::open(Protocol::Netfilter).unwrap().commit("damage", &batch.into_messages()).unwrap();
        let wanted = [published(8080, &[3])];
        ports.set(&wanted).unwrap();
        assert!(!ports.repair(&wanted).unwrap());
    });
}

#[test]
fn elements_of_another_form_are_read() {
    for bytes in [&[][..], &[1], &[1, 2, 3, 4], &[1, 2, 3, 4, 5]] {
        assert_eq!(read_target(bytes), None);
    }
    assert_eq!(read_target(&[0; 16]), None);
    for port in [published(515, &[]), published6(515, &[])] {
        assert_eq!(read_target(&bytes_at(port.at)), Some(port.at));
        assert_eq!(read_target(&[&*bytes_at(port.at), &[0; 4]].concat()), Some(port.at), "a key");
    }
}
