//! Tests of networks that are incomplete or damaged.

use super::*;

#[test]
fn half_made_networks_are_completed() {
    on_host(|machine, networks| {
        let ports = [port(Some(HOST), 8080, 80)];
        let wanted = request("a", &ports);
        let made = networks.up(&wanted).unwrap();
        let name = networks.link_name("a").unwrap();
        let inner = inner_name().unwrap();
        let table = || Table { family: Family::Inet, name: "herdlet-test" };
        type Break<'b> = (&'b str, Box<dyn Fn(&mut Socket, &mut Socket) + 'b>);
        let address = networks.config.subnet4.of_interface(made.address4);
        let breaks: [Break<'_>; 14] = [
            ("the pair is deleted", Box::new(|socket, _| link::delete(socket, &name).unwrap())),
            (
                "the bridge is deleted",
                Box::new(|socket, _| link::delete(socket, &networks.config.name).unwrap()),
            ),
            ("the inner end is deleted", Box::new(|_, inside| link::delete(inside, &inner).unwrap())),
            (
                "the address is gone",
                Box::new(|_, inside| {
                    let index = link::find(inside, &inner).unwrap().unwrap().index;
                    address::remove(inside, index, &address).unwrap();
                }),
            ),
            ("the ports are unmapped", Box::new(|_, _| networks.firewall.unmap_ports("a", None).unwrap())),
            (
                "the table is deleted",
                Box::new(|_, _| {
                    let mut batch = Batch::new(table());
                    batch.delete_table();
                    Socket::open(Protocol::Netfilter)
                        .unwrap()
                        .commit("delete", &batch.into_messages())
                        .unwrap();
                }),
            ),
            (
                "rules are flushed",
                Box::new(|_, _| {
                    let mut batch = Batch::new(table());
                    batch.clear_chain("arrive");
                    Socket::open(Protocol::Netfilter)
                        .unwrap()
                        .commit("flush", &batch.into_messages())
                        .unwrap();
                }),
            ),
            (
                "the bridge has lost its address",
                Box::new(|socket, _| {
                    let index = link::find(socket, &networks.config.name).unwrap().unwrap().index;
                    address::remove(socket, index, &networks.config.subnet4.gateway()).unwrap();
                }),
            ),
            (
                "the bridge has another address",
                Box::new(|socket, _| {
                    let index = link::find(socket, &networks.config.name).unwrap().unwrap().index;
                    let other = InterfaceAddress { ip: "198.51.100.1".parse().unwrap(), prefix: 24 };
                    address::add(socket, index, &other).unwrap();
                }),
            ),
            (
                "a setting of the bridge is changed",
                Box::new(|_, _| {
                    let bridge = networks.config.name.as_str().to_owned();
                    Setting::RouteLoopback(bridge).set("0").unwrap();
                }),
            ),
            ("a setting of all is changed", Box::new(|_, _| drop(Setting::ForwardV4.set("0").unwrap()))),
            ("the namespace is removed", Box::new(|_, _| networks.pins.remove("a").unwrap())),
            (
                "the claim is removed",
                Box::new(|_, _| {
                    std::fs::remove_file(machine.dir().join("addresses/hltest/172.26.64.2")).unwrap();
                }),
            ),
            (
                "all of it is removed",
                Box::new(|_, _| {
                    networks.pins.remove("a").unwrap();
                    networks.firewall.unmap_ports("a", None).unwrap();
                }),
            ),
        ];
        for (what, breaking) in breaks {
            let mut socket = Socket::open(Protocol::Route).unwrap();
            let mut inside = namespace(networks, "a").socket(Protocol::Route).unwrap();
            breaking(&mut socket, &mut inside);
            drop(inside);
            let found = networks.inspect(&wanted).unwrap();
            assert!(matches!(found, NetworkState::Incomplete { .. }), "{what}: {found:?}");
            let again = networks.up(&wanted).unwrap();
            assert_eq!(again.address4, made.address4, "{what}");
            assert_eq!(networks.inspect(&wanted).unwrap(), NetworkState::Complete(again), "{what}");
        }
    });
}

#[test]
fn rules_are_repaired_with_all_ports() {
    on_host(|machine, networks| {
        let (a, b) = ([port(Some(HOST), 8080, 80)], [port(None, 8090, 90)]);
        networks.up(&request("a", &a)).unwrap();
        networks.up(&request("b", &b)).unwrap();
        let repaired = || networks.repair_rules().unwrap().to_string();
        assert_eq!(repaired(), "");
        networks.firewall.remove().unwrap();
        assert_eq!(repaired(), "its table of rules was removed or changed");
        assert_eq!(repaired(), "");
        networks.firewall.unmap_ports("b", None).unwrap();
        assert_eq!(repaired(), "its ports were not mapped");
        let next_agent = Networks::open(config(&machine.dir())).unwrap();
        assert!(next_agent.repair_rules().unwrap().is_empty(), "ports that it has not inspected yet");
        // As Docker does when it starts after the agent.
        let mut socket = Socket::open(Protocol::Netfilter).unwrap();
        let table = Table { family: Family::Ip, name: "wall" };
        let drops = || {
            let mut batch = Batch::new(table);
            batch.make_table();
            batch.delete_table();
            batch.make_table();
            let hook = Hook { point: HookPoint::Forward, priority: 0, kind: ChainKind::Filter };
            batch.make_chain("walk", Some(hook));
            batch.append_rule(
                "walk",
                &Rule { expressions: vec![decide(Verdict::Drop)], comment: String::new() },
            );
            batch.into_messages()
        };
        for _ in 0..2 {
            socket.commit("drop", &drops()).unwrap();
            assert_eq!(repaired(), "the chain walk of the table wall dropped its packets");
            assert_eq!(repaired(), "");
        }
        for wanted in [request("a", &a), request("b", &b)] {
            assert!(matches!(networks.inspect(&wanted).unwrap(), NetworkState::Complete(_)));
        }
    });
}

/// Own changes, and those of other programs' interfaces, concern no network.
#[test]
fn damage_concerns_the_networks_that_it_has_hit() {
    on_host(|_, networks| {
        let watch = LinkWatch::open().unwrap();
        let mut socket = open_socket().unwrap();
        let concerns = || -> BTreeSet<String> {
            let concern = |change: &Change| match networks.concern(change) {
                Concern::Nothing => None,
                Concern::Owner(owner) => Some(owner),
                Concern::All => Some("all".to_owned()),
            };
            watch.read().unwrap().iter().filter_map(concern).collect()
        };
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        networks.up(&request("a", &[])).unwrap();
        networks.up(&request("b", &[])).unwrap();
        networks.up(&request("a", &[])).unwrap();
        let name = InterfaceName::new("docker0").unwrap();
        let other = Bridge { name: &name, mtu: 1500, mac: Mac([2, 0, 0, 0, 0, 8]), alias: "" };
        link::make_bridge(&mut socket, &other).unwrap();
        link::delete(&mut socket, &name).unwrap();
        assert_eq!(concerns(), set(&[]));
        link::delete(&mut socket, &networks.link_name("a").unwrap()).unwrap();
        assert_eq!(concerns(), set(&["a"]));
        let bridge = link::find(&mut socket, &networks.config.name).unwrap().unwrap();
        address::remove(&mut socket, bridge.index, &networks.config.subnet4.gateway()).unwrap();
        assert_eq!(concerns(), set(&["all"]));
        link::delete(&mut socket, &networks.config.name).unwrap();
        assert!(concerns().contains("all"));
    });
}

#[test]
fn rules_that_were_removed_come_back_with_the_next_network() {
    on_host(|_, networks| {
        let ports = [port(Some(HOST), 8080, 80)];
        networks.up(&request("a", &ports)).unwrap();
        networks.firewall.remove().unwrap();
        networks.up(&request("b", &[])).unwrap();
        assert!(networks.firewall.has_rules().unwrap());
        assert!(matches!(networks.inspect(&request("a", &ports)).unwrap(), NetworkState::Complete(_)));
    });
}

/// The ports are copied before they are mapped again. What is unmapped meanwhile must not come back.
#[test]
fn ports_are_unmapped_only_between_repairs() {
    on_host(|_, networks| {
        networks.up(&request("a", &[port(Some(HOST), 8080, 80)])).unwrap();
        std::thread::scope(|scope| {
            let repairing = scope.spawn(|| {
                for _ in 0..200 {
                    networks.repair_rules().unwrap();
                }
            });
            for _ in 0..50 {
                networks.up(&request("a", &[port(Some(HOST), 8080, 80)])).unwrap();
                networks.unmap_ports("a").unwrap();
                assert_eq!(networks.firewall.owners().unwrap().len(), 0, "they came back");
            }
            repairing.join().unwrap();
        });
    });
}
