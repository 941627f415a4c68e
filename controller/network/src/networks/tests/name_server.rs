//! Tests of the name server that allocations reach at the address of their bridge.

use super::*;

/// Answers one query with its client's address.
fn serve(sockets: &NameSockets) -> String {
    let udp = sockets.udp.try_clone().unwrap();
    udp.set_nonblocking(false).unwrap();
    udp.set_read_timeout(Some(ANSWER_MAX)).unwrap();
    let (_, from) = udp.recv_from(&mut [0; 8]).unwrap();
    let client = from.ip().to_string();
    udp.send_to(client.as_bytes(), from).unwrap();
    udp.set_nonblocking(true).unwrap();
    client
}

/// The client's address, by IPv4. By IPv6 it is another one of the same allocation.
fn ask_from(inside: &Namespace, server: &NameServer) -> String {
    let answers = server.sockets().iter().map(|sockets| {
        std::thread::scope(|scope| {
            let served = scope.spawn(|| serve(sockets));
            let at = SocketAddr::new(sockets.ip, 53).to_string();
            let answer = inside.run(|| ask_datagram(&at)).unwrap().unwrap();
            assert_eq!(served.join().unwrap(), answer);
            answer
        })
    });
    let answers: Vec<String> = answers.collect();
    assert!(answers[1].starts_with("fd00:37::"), "{answers:?}");
    answers[0].clone()
}

#[test]
fn allocations_reach_the_name_server_beside_one_of_the_machine() {
    on_host(|machine, networks| {
        assert!(networks.name_server().unwrap().is_none(), "there is no bridge");
        // As dnsmasq has it.
        let _dnsmasq = UdpSocket::bind("0.0.0.0:53").unwrap();
        let made = networks.up(&request("a", &[])).unwrap();
        let inside = namespace(networks, "a");
        let server = networks.name_server().unwrap().unwrap();
        let ips: Vec<String> = server.sockets().iter().map(|sockets| sockets.ip.to_string()).collect();
        assert_eq!(ips, ["172.26.64.1", "fd00:37::1"]);
        assert_eq!(ask_from(&inside, &server), made.address4.to_string());
        assert!(std::sync::Arc::ptr_eq(&server, &networks.name_server().unwrap().unwrap()), "it stays");

        // Another program has flushed the rules.
        networks.firewall.remove().unwrap();
        networks.up(&request("a", &[])).unwrap();
        networks.repair_rules().unwrap();
        assert_eq!(ask_from(&inside, &server), made.address4.to_string());

        // The next agent has sockets of its own.
        drop(server);
        *networks.name_server.lock().unwrap() = None;
        assert!(inside.run(|| ask_datagram("172.26.64.1:53")).unwrap().is_err(), "while no agent runs");
        let next_agent = Networks::open(config(&machine.dir())).unwrap();
        let server = next_agent.name_server().unwrap().unwrap();
        assert_eq!(ask_from(&inside, &server), made.address4.to_string());
        // Another bridge of the same name.
        link::delete(&mut open_socket().unwrap(), &next_agent.config.name).unwrap();
        next_agent.up(&request("a", &[])).unwrap();
        let other = next_agent.name_server().unwrap().unwrap();
        assert!(!std::sync::Arc::ptr_eq(&server, &other));
        assert_eq!(ask_from(&inside, &other), made.address4.to_string());
    });
}

#[test]
fn only_the_bridge_leads_to_the_name_server() {
    on_host(|_, networks| {
        networks.up(&request("a", &[])).unwrap();
        let server = networks.name_server().unwrap().unwrap();
        let first = &server.sockets()[0];
        let number = first.udp.local_addr().unwrap().port();
        let neighbour = neighbour();
        let mut outside = neighbour.socket(Protocol::Route).unwrap();
        let inner = link::find(&mut outside, &inner_name().unwrap()).unwrap().unwrap();
        route::set_default(&mut outside, HOST.parse().unwrap(), inner.index).unwrap();
        for port in [53, number] {
            let address: SocketAddr = format!("172.26.64.1:{port}").parse().unwrap();
            let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(300)).is_ok();
            assert!(!neighbour.run(connect).unwrap(), "{port}");
        }
        assert!(first.udp.recv_from(&mut [0; 8]).is_err(), "nothing has arrived");
    });
}

/// As ufw has it: the resolver must not wait for a name server whose queries are dropped.
#[test]
fn queries_pass_a_firewall_of_the_machine() {
    on_host(|_, networks| {
        let filter = Table { family: Family::Ip, name: "filter" };
        let mut batch = Batch::new(filter);
        batch.make_table();
        batch.make_chain(
            "INPUT",
            Some(Hook { point: HookPoint::Input, priority: 0, kind: ChainKind::Filter }),
        );
        batch.drop_by_default("INPUT");
        Socket::open(Protocol::Netfilter).unwrap().commit("drop", &batch.into_messages()).unwrap();
        let made = networks.up(&request("a", &[])).unwrap();
        let server = networks.name_server().unwrap().unwrap();
        assert_eq!(ask_from(&namespace(networks, "a"), &server), made.address4.to_string());
    });
}
