//! Tests of settings: the name of the bridge, its network, and those of the kernel.

use super::*;

/// As after a change of the config.
#[test]
fn an_earlier_subnet_leaves_no_address() {
    on_machine(|machine| {
        let mut socket = Socket::open(Protocol::Route).unwrap();
        let uplink = InterfaceName::new("uplink").unwrap();
        let uplink = Bridge { name: &uplink, mtu: 1500, mac: Mac([2, 0, 0, 0, 0, 7]), alias: "" };
        let uplink = link::make_bridge(&mut socket, &uplink).unwrap().index;
        let own = InterfaceAddress { ip: HOST.parse().unwrap(), prefix: 24 };
        address::add(&mut socket, uplink, &own).unwrap();
        let with = |subnet: &str| {
            let subnet4 = subnet.parse().unwrap();
            Networks::open(BridgeConfig { subnet4, ..config(&machine.dir()) }).unwrap()
        };
        with("172.26.64.0/20").up(&request("a", &[])).unwrap();
        let moved = with("172.26.96.0/24");
        assert!(matches!(moved.inspect(&request("a", &[])).unwrap(), NetworkState::Incomplete { .. }));
        let made = moved.up(&request("a", &[])).unwrap();
        assert_eq!(moved.inspect(&request("a", &[])).unwrap(), NetworkState::Complete(made));
        let bridge = link::find(&mut socket, &moved.config.name).unwrap().unwrap().index;
        let routes: Vec<_> =
            route::list(&mut socket).unwrap().into_iter().filter(|route| route.interface == bridge).collect();
        assert!(
            routes.iter().all(|route| !route.destination.0.to_string().starts_with("172.26.6")),
            "{routes:?}"
        );
        let refused = with("192.0.2.0/25").up(&request("a", &[]));
        assert!(matches!(refused, Err(NetworkError::Overlap { .. })), "{refused:?}");
        moved.down("a").unwrap();
        moved.remove().unwrap();
    });
}

#[test]
fn a_renamed_bridge_takes_over_the_networks() {
    on_host(|machine, networks| {
        let ports = [port(Some(HOST), 8080, 80)];
        let wanted = request("a", &ports);
        let made = networks.up(&wanted).unwrap();
        let name = InterfaceName::new("hlother").unwrap();
        let renamed = Networks::open(BridgeConfig { name, ..config(&machine.dir()) }).unwrap();
        assert_eq!(renamed.up(&wanted).unwrap(), made);
        let mut socket = Socket::open(Protocol::Route).unwrap();
        assert!(link::find(&mut socket, &networks.config.name).unwrap().is_none());
        let server = namespace(&renamed, "a").run(|| Server::open("0.0.0.0:80")).unwrap();
        assert!(server.serve(|| ask("192.0.2.7:8080")).is_ok());
        renamed.down("a").unwrap();
        renamed.remove().unwrap();
    });
}

#[test]
fn settings_of_the_machine_are_restored_with_the_last_network() {
    on_machine(|machine| {
        let mut socket = Socket::open(Protocol::Route).unwrap();
        let forwards = || Setting::ForwardV4.get().unwrap().unwrap();
        let name = InterfaceName::new("docker0").unwrap();
        let other = Bridge { name: &name, mtu: 1500, mac: Mac([2, 0, 0, 0, 0, 8]), alias: "" };
        for (has_other, expected) in [(false, "0"), (true, "1")] {
            Setting::ForwardV4.set("0").unwrap();
            let networks = Networks::open(config(&machine.dir())).unwrap();
            assert!(networks.is_unused().unwrap());
            networks.up(&request("a", &[])).unwrap();
            assert_eq!(forwards(), "1");
            assert!(!networks.is_unused().unwrap());
            networks.down("a").unwrap();
            assert!(networks.is_unused().unwrap());
            if has_other {
                link::make_bridge(&mut socket, &other).unwrap();
            }
            // After a crash.
            let next_agent = Networks::open(config(&machine.dir())).unwrap();
            next_agent.remove().unwrap();
            assert_eq!(forwards(), expected);
            assert!(!machine.dir().join(SETTINGS).exists());
        }
    });
}

#[test]
fn network_that_the_machine_reaches_otherwise_is_refused() {
    on_host(|machine, _| {
        let overlapping = BridgeConfig { subnet4: "192.0.0.0/16".parse().unwrap(), ..config(&machine.dir()) };
        let networks = Networks::open(overlapping).unwrap();
        let refused = networks.up(&request("a", &[])).unwrap_err().to_string();
        let expected =
            "use the network 192.0.0.0/16 for a bridge: a route of the machine leads to 192.0.2.0/24";
        assert_eq!(refused, expected);
        assert_eq!(networks.inspect(&request("a", &[])).unwrap(), NetworkState::Absent);
        // A route that comes later does not end what runs.
        let networks = Networks::open(config(&machine.dir())).unwrap();
        networks.up(&request("a", &[])).unwrap();
        let mut socket = Socket::open(Protocol::Route).unwrap();
        let uplink = link::find(&mut socket, &InterfaceName::new("uplink").unwrap()).unwrap().unwrap();
        let address = InterfaceAddress { ip: "172.26.65.1".parse().unwrap(), prefix: 24 };
        address::add(&mut socket, uplink.index, &address).unwrap();
        networks.up(&request("b", &[])).unwrap();
    });
}

#[test]
fn own_route_by_router_advertisements_is_kept() {
    on_host(|_, networks| {
        Setting::ForwardV6.set("0").unwrap();
        let accept = Setting::AcceptRouters("uplink".to_owned());
        let mut socket = Socket::open(Protocol::Route).unwrap();
        let uplink = link::find(&mut socket, &InterfaceName::new("uplink").unwrap()).unwrap().unwrap();
        accept.set("1").unwrap();
        // A device without a route yet, as every device of the machine is at boot.
        let device = Setting::AcceptRouters("lo".to_owned());
        device.set("1").unwrap();
        route::set_default(&mut socket, "2001:db8::1".parse().unwrap(), uplink.index).unwrap();
        networks.up(&request("a", &[])).unwrap();
        assert_eq!(accept.get().unwrap().as_deref(), Some("2"));
        assert_eq!(device.get().unwrap().as_deref(), Some("2"));
        let own = Setting::AcceptRouters(networks.config.name.as_str().to_owned());
        assert_ne!(own.get().unwrap().as_deref(), Some("2"), "allocations are no routers");
        assert_eq!(Setting::ForwardV6.get().unwrap().as_deref(), Some("1"));
        // A user's choice once it forwards.
        accept.set("1").unwrap();
        networks.up(&request("a", &[])).unwrap();
        assert_eq!(accept.get().unwrap().as_deref(), Some("1"));
    });
}
