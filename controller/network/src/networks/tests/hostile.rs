//! Tests of what an allocation and a neighbour of the machine must not reach, change or pretend.

use super::*;

/// The bridge routes 127.0.0.0/8, so that the machine reaches mapped ports there. An allocation must not use that.
#[test]
fn loopback_of_the_machine_is_out_of_reach() {
    on_host(|_, networks| {
        networks.up(&request("a", &[])).unwrap();
        let _listener = TcpListener::bind("127.0.0.1:9000").unwrap();
        let inside = namespace(networks, "a");
        inside.run(|| Setting::RouteLoopback(INTERFACE.to_owned()).set("1").unwrap()).unwrap();
        let mut socket = inside.socket(Protocol::Route).unwrap();
        let inner = link::find(&mut socket, &inner_name().unwrap()).unwrap().unwrap();
        // The allocation routes the addresses to the machine instead of its own loopback.
        let own = InterfaceAddress { ip: IpAddr::from([127, 0, 0, 1]), prefix: 8 };
        address::remove(&mut socket, LOOPBACK, &own).unwrap();
        route::set_default(&mut socket, "172.26.64.1".parse().unwrap(), inner.index).unwrap();
        let address: SocketAddr = "127.0.0.1:9000".parse().unwrap();
        let reached =
            inside.run(|| TcpStream::connect_timeout(&address, Duration::from_millis(300))).unwrap();
        assert!(reached.is_err(), "{reached:?}");
    });
}

/// A port of 127.0.0.1 is for the machine alone, and the others of an allocation for those on its bridge. A neighbour can route all
/// of these addresses to the machine.
#[test]
fn a_neighbour_reaches_mapped_ports_only() {
    on_host(|_, networks| {
        let ports = [port(Some("127.0.0.1"), 8070, 80), port(Some(HOST), 8080, 80)];
        let made = networks.up(&request("a", &ports)).unwrap();
        let inside = namespace(networks, "a");
        let server = inside.run(|| Server::open("0.0.0.0:80")).unwrap();
        assert!(server.serve(|| ask("127.0.0.1:8070")).is_ok(), "the machine itself");
        let neighbour = neighbour();
        let mut outside = neighbour.socket(Protocol::Route).unwrap();
        let inner = link::find(&mut outside, &inner_name().unwrap()).unwrap().unwrap();
        neighbour.run(|| Setting::RouteLoopback(INTERFACE.to_owned()).set("1").unwrap()).unwrap();
        route::set_default(&mut outside, HOST.parse().unwrap(), inner.index).unwrap();
        let reaches = |address: &str| {
            let address: SocketAddr = address.parse().unwrap();
            neighbour
                .run(|| TcpStream::connect_timeout(&address, Duration::from_millis(300)).is_ok())
                .unwrap()
        };
        let at_bridge = format!("{}:80", made.address4);
        assert!(!reaches(&at_bridge), "a port that is not mapped");
        assert!(!reaches("127.0.0.1:8070"), "a port of the machine alone");
        let asked = server.serve(|| neighbour.run(|| ask("192.0.2.7:8080")).unwrap());
        assert_eq!(asked.unwrap(), "192.0.2.8");
        // The administrator may open more.
        let mut batch = Batch::new(Table { family: Family::Inet, name: "herdlet-test" });
        batch.append_rule(
            "admin",
            &Rule { expressions: vec![decide(Verdict::Accept)], comment: "all".to_owned() },
        );
        Socket::open(Protocol::Netfilter).unwrap().commit("accept", &batch.into_messages()).unwrap();
        assert!(reaches(&at_bridge));
    });
}

/// A process in the namespace may send from any address. Neither the machine nor a neighbour must take it for another sender.
#[test]
fn a_forged_sender_reaches_nobody() {
    on_host(|_, networks| {
        let made = networks.up(&request("a", &[])).unwrap();
        let inside = namespace(networks, "a");
        let mut socket = inside.socket(Protocol::Route).unwrap();
        let inner = link::find(&mut socket, &inner_name().unwrap()).unwrap().unwrap();
        let forged = InterfaceAddress { ip: "198.51.100.9".parse().unwrap(), prefix: 32 };
        address::add(&mut socket, inner.index, &forged).unwrap();
        let server = UdpSocket::bind((HOST, 9000)).unwrap();
        server.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        for from in [forged.ip, made.address4.into()] {
            inside.run(|| UdpSocket::bind((from, 0)).unwrap().send_to(b"?", (HOST, 9000)).unwrap()).unwrap();
        }
        // The first one would have come first.
        let (_, from) = server.recv_from(&mut [0; 8]).unwrap();
        assert_eq!(from.ip(), made.address4);
    });
}

#[test]
fn messages_of_allocations_change_no_routes() {
    on_machine(|machine| {
        for subnet6 in [None, Some("fd00:37::/64".parse().unwrap())] {
            let networks = Networks::open(BridgeConfig { subnet6, ..config(&machine.dir()) }).unwrap();
            networks.up(&request("a", &[])).unwrap();
            let values = |interface: &str| {
                let interface = || interface.to_owned();
                let all = [
                    Setting::AcceptRedirectsV4(interface()),
                    Setting::AcceptRedirectsV6(interface()),
                    Setting::AcceptRouters(interface()),
                    Setting::DisableV6(interface()),
                ];
                all.map(|setting| setting.get().unwrap().unwrap_or_default())
            };
            let inside = namespace(&networks, "a").run(|| values(INTERFACE)).unwrap();
            let redirects = Setting::AcceptRedirectsV4("all".to_owned());
            let all = namespace(&networks, "a").run(|| redirects.get().unwrap()).unwrap();
            assert_eq!(all.as_deref(), Some("0"), "an interface takes redirects if either value allows them");
            for [v4, v6, routers, disabled] in [values("hltest"), inside] {
                assert_eq!(v4, "0");
                let is_closed = disabled == "1" || (v6, routers) == ("0".to_owned(), "0".to_owned());
                assert!(is_closed, "{subnet6:?}");
            }
            networks.down("a").unwrap();
            networks.remove().unwrap();
        }
    });
}

/// Without the rules, allocations would reach the machine's loopback addresses.
#[test]
fn loopback_is_routed_only_with_the_rules() {
    on_host(|_, networks| {
        let mut socket = open_socket().unwrap();
        networks.ensure_bridge(&mut socket).unwrap();
        let route = Setting::RouteLoopback(networks.config.name.as_str().to_owned());
        assert_eq!(route.get().unwrap().as_deref(), Some("0"));
        networks.up(&request("a", &[])).unwrap();
        assert_eq!(route.get().unwrap().as_deref(), Some("1"));
    });
}
