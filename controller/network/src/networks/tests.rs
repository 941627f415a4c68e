//! Tests of whole networks: packets that arrive, drift that is completed, on a machine of their own.

mod hostile;
mod name_server;
mod published;
mod repairs;
mod settings;

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::Path,
    time::{Duration, Instant},
};

use herdlet_base::test_env::leave_out;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::*;
use crate::{
    address, conntrack,
    link::{Bridge, Hairpin},
    nft::{
        Batch, ChainKind, Family, Hook, HookPoint, Rule, Table,
        expression::{Verdict, decide},
    },
    ports::PortHolder,
    route,
    sysctl::Setting,
    test_machine::{Machine, on_machine},
    watch::{Change, LinkWatch},
};

/// The machine's own address, on an interface of its own.
const HOST: &str = "192.0.2.7";
const HOST6: &str = "2001:db8::7";

/// Nothing is sent to these addresses within the test's namespaces that could get lost.
const ANSWER_MAX: Duration = Duration::from_secs(5);

fn config(runtime: &Path) -> BridgeConfig {
    BridgeConfig {
        instance: "test".to_owned(),
        name: InterfaceName::new("hltest").unwrap(),
        subnet4: "172.26.64.0/20".parse().unwrap(),
        subnet6: Some("fd00:37::/64".parse().unwrap()),
        mtu: 1500,
        hairpin: Hairpin::Off,
        runtime: runtime.to_owned(),
    }
}

/// A machine with an address, an uplink, and networks.
fn on_host(test: impl FnOnce(&Machine, &Networks) + Send) {
    on_host_with(Hairpin::Off, test);
}

fn on_host_with(hairpin: Hairpin, test: impl FnOnce(&Machine, &Networks) + Send) {
    on_machine(|machine| {
        let mut socket = Socket::open(Protocol::Route).unwrap();
        link::set_up(&mut socket, LOOPBACK).unwrap();
        let name = InterfaceName::new("uplink").unwrap();
        let uplink = Bridge { name: &name, mtu: 1500, mac: Mac([2, 0, 0, 0, 0, 7]), alias: "" };
        let uplink = link::make_bridge(&mut socket, &uplink).unwrap().index;
        for (ip, prefix) in [(HOST, 24), (HOST6, 64)] {
            let wanted = InterfaceAddress { ip: ip.parse().unwrap(), prefix };
            address::add(&mut socket, uplink, &wanted).unwrap();
        }
        let networks = Networks::open(BridgeConfig { hairpin, ..config(&machine.dir()) }).unwrap();
        test(machine, &networks);
        for owner in networks.owners().unwrap().into_keys() {
            networks.down(&owner).unwrap();
        }
        networks.remove().unwrap();
    });
}

fn request<'r>(owner: &'r str, ports: &'r [RequestedPort]) -> NetworkRequest<'r> {
    NetworkRequest { owner, ports }
}

fn port(host_ip: Option<&str>, host: u16, inside: u16) -> RequestedPort {
    RequestedPort { host_ip: host_ip.map(|ip| ip.parse().unwrap()), host, inside }
}

fn namespace(networks: &Networks, owner: &str) -> Namespace {
    let Pin::Kept(namespace) = networks.pins.find(owner).unwrap() else { panic!("{owner} has none") };
    namespace
}

/// A server that answers each connection and each datagram with the address of its client.
struct Server {
    tcp: TcpListener,
    udp: UdpSocket,
}

impl Server {
    fn open(address: &str) -> Self {
        let tcp = TcpListener::bind(address).unwrap();
        // This bounds `accept` too.
        set_socket_timeout(&tcp, Timeout::Recv, Some(ANSWER_MAX)).unwrap();
        let udp = UdpSocket::bind(address).unwrap();
        udp.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        Self { tcp, udp }
    }

    /// Answers one client of this thread's; returns its address.
    fn serve<T: Send>(&self, client: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, from) = self.tcp.accept().unwrap();
                stream.write_all(from.ip().to_string().as_bytes()).unwrap();
            });
            client()
        })
    }

    fn serve_datagram<T: Send>(&self, client: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (_, from) = self.udp.recv_from(&mut [0; 8]).unwrap();
                self.udp.send_to(from.ip().to_string().as_bytes(), from).unwrap();
            });
            client()
        })
    }
}

/// The client's address as the server sees it.
fn ask(address: &str) -> io::Result<String> {
    let address: SocketAddr = address.parse().unwrap();
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_MAX)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn ask_datagram(address: &str) -> io::Result<String> {
    let any = if address.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(any)?;
    socket.set_read_timeout(Some(ANSWER_MAX))?;
    socket.connect(address)?;
    socket.send(b"?")?;
    let mut answer = [0; 64];
    let len = socket.recv(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..len]).into_owned())
}

#[test]
fn network_is_made_inspected_and_removed() {
    on_host(|machine, networks| {
        let ports = [port(Some(HOST), 8080, 80)];
        let wanted = request("a", &ports);
        assert_eq!(networks.inspect(&wanted).unwrap(), NetworkState::Absent);
        let made = networks.up(&wanted).unwrap();
        assert_eq!(made.address4, Ipv4Addr::new(172, 26, 64, 2));
        assert_eq!(made.address6, Some("fd00:37::2".parse().unwrap()));
        assert_eq!(networks.inspect(&wanted).unwrap(), NetworkState::Complete(made.clone()));
        assert_eq!(networks.up(&wanted).unwrap(), made, "once more");
        assert_eq!(networks.owners().unwrap(), BTreeMap::from([("a".to_owned(), Remains::Network)]));
        let next_agent = Networks::open(config(&machine.dir())).unwrap();
        assert_eq!(next_agent.inspect(&wanted).unwrap(), NetworkState::Complete(made.clone()));
        assert_eq!(next_agent.up(&wanted).unwrap(), made);
        let other = networks.up(&request("b", &[])).unwrap();
        assert_ne!((other.address4, other.namespace), (made.address4, made.namespace));
        for owner in ["a", "a", "b"] {
            networks.down(owner).unwrap();
        }
        networks.finish_removals().unwrap();
        assert_eq!(networks.owners().unwrap(), BTreeMap::new());
        networks.pool.claim("a", None).unwrap();
        assert_eq!(networks.owners().unwrap(), BTreeMap::from([("a".to_owned(), Remains::Claim)]));
        networks.down("a").unwrap();
        assert_eq!(networks.owners().unwrap(), BTreeMap::new());
        assert_eq!(networks.inspect(&wanted).unwrap(), NetworkState::Absent);
    });
}

#[test]
fn mapped_ports_lead_to_the_allocation() {
    on_host(|_, networks| mapped_ports("0", networks));
}

/// The kernel then translates packets within the bridge, and sends one back to its sender only with `hairpin`.
#[test]
fn mapped_ports_lead_to_the_allocation_if_bridges_call_rules() {
    on_host_with(Hairpin::On, |_, networks| mapped_ports("1", networks));
}

/// Whether bridges do so now. A machine without the module of the kernel never does.
fn bridge_calls_rules(value: &str) -> bool {
    let can_be_set = Setting::BridgeCallsRules.get().unwrap().is_some();
    if can_be_set {
        Setting::BridgeCallsRules.set(value).unwrap();
        std::fs::write("/proc/sys/net/bridge/bridge-nf-call-ip6tables", value).unwrap();
    } else if value == "1" {
        leave_out("the module br_netfilter");
    }
    can_be_set || value == "0"
}

fn mapped_ports(calls: &str, networks: &Networks) {
    if !bridge_calls_rules(calls) {
        return;
    }
    let ports = [
        port(Some(HOST), 8080, 80),
        port(Some("127.0.0.1"), 8081, 80),
        port(None, 8082, 80),
        port(Some(HOST6), 8083, 80),
    ];
    let holder = PortHolder::default();
    holder.hold("server", &request("server", &ports).held_ports()).unwrap();
    networks.up(&request("server", &ports)).unwrap();
    networks.up(&request("client", &[])).unwrap();
    let (inside, client) = (namespace(networks, "server"), namespace(networks, "client"));
    let server = inside.run(|| Server::open("0.0.0.0:80")).unwrap();
    let (bridge, bridge6) = ("172.26.64.1", "fd00:37::1");
    // Each address, and the client's address as the server sees it.
    for (address, seen) in [
        ("192.0.2.7:8080", HOST),
        ("127.0.0.1:8081", bridge),
        ("192.0.2.7:8082", HOST),
        ("127.0.0.1:8082", bridge),
        ("172.26.64.2:80", bridge),
    ] {
        assert_eq!(server.serve(|| ask(address)).unwrap(), seen, "{address} from the machine");
        assert_eq!(server.serve_datagram(|| ask_datagram(address)).unwrap(), seen, "{address}, UDP");
    }
    let within = |server: &Server, from: &Namespace, (address, seen): (&str, &str)| {
        let asked = server.serve(|| from.run(|| ask(address)).unwrap());
        assert_eq!(asked.unwrap(), seen, "{address} from an allocation");
        let asked = server.serve_datagram(|| from.run(|| ask_datagram(address)).unwrap());
        assert_eq!(asked.unwrap(), seen, "{address} from an allocation, UDP");
    };
    within(&server, &client, ("172.26.64.2:80", "172.26.64.3"));
    within(&server, &client, ("192.0.2.7:8080", bridge));
    within(&server, &client, ("172.26.64.1:8082", bridge));
    within(&server, &inside, ("192.0.2.7:8080", bridge));
    drop(server);
    let server = inside.run(|| Server::open("[::]:80")).unwrap();
    assert_eq!(server.serve(|| client.run(|| ask("[2001:db8::7]:8083")).unwrap()).unwrap(), bridge6);
    assert_eq!(server.serve(|| ask("[2001:db8::7]:8083")).unwrap(), HOST6);
    assert_eq!(server.serve(|| ask("[fd00:37::1]:8082")).unwrap(), bridge6);
    assert_eq!(server.serve_datagram(|| ask_datagram("[2001:db8::7]:8083")).unwrap(), HOST6);
    within(&server, &client, ("[fd00:37::2]:80", "fd00:37::3"));
    within(&server, &inside, ("[2001:db8::7]:8083", bridge6));
    drop(server);
    assert!(TcpListener::bind("192.0.2.7:8080").is_err(), "the port is held");
    networks.down("server").unwrap();
    holder.release("server");
    assert!(ask("192.0.2.7:8080").is_err(), "nobody listens any more");
    TcpListener::bind("192.0.2.7:8080").unwrap();
}

/// A neighbour on the machine's network, 192.0.2.8.
fn neighbour() -> Namespace {
    let neighbour = Namespace::new().unwrap();
    let mut outside = neighbour.socket(Protocol::Route).unwrap();
    let mut socket = Socket::open(Protocol::Route).unwrap();
    let uplink = link::find(&mut socket, &InterfaceName::new("uplink").unwrap()).unwrap().unwrap();
    let pair = Pair {
        name: &InterfaceName::new("neighbour").unwrap(),
        alias: "",
        bridge: uplink.index,
        mtu: 1500,
        hairpin: Hairpin::Off,
        inner_name: &inner_name().unwrap(),
        inner_mac: Mac([2, 0, 0, 0, 0, 8]),
    };
    link::make_pair(&mut socket, &mut outside, &neighbour, &pair).unwrap();
    let inner = link::find(&mut outside, &inner_name().unwrap()).unwrap().unwrap();
    link::set_up(&mut outside, inner.index).unwrap();
    for (ip, prefix) in [("192.0.2.8", 24), ("2001:db8::8", 64)] {
        let wanted = InterfaceAddress { ip: ip.parse().unwrap(), prefix };
        address::add(&mut outside, inner.index, &wanted).unwrap();
    }
    neighbour
}

/// A neighbour on the machine's network sees the machine's address.
#[test]
fn packets_to_others_are_masqueraded() {
    on_host(|_, networks| {
        networks.up(&request("a", &[])).unwrap();
        let neighbour = neighbour();
        let inside = namespace(networks, "a");
        for (server, address, seen) in
            [("192.0.2.8:80", "192.0.2.8:80", HOST), ("[2001:db8::8]:80", "[2001:db8::8]:80", HOST6)]
        {
            let server = neighbour.run(|| Server::open(server)).unwrap();
            assert_eq!(server.serve(|| inside.run(|| ask(address)).unwrap()).unwrap(), seen);
            let asked = server.serve_datagram(|| inside.run(|| ask_datagram(address)).unwrap());
            assert_eq!(asked.unwrap(), seen);
        }
    });
}

/// Docker sets the policy of iptables' chain so.
#[test]
fn packets_pass_a_chain_of_others_that_drops() {
    on_host(|_, networks| {
        networks.up(&request("a", &[port(Some(HOST), 8080, 80)])).unwrap();
        networks.up(&request("b", &[])).unwrap();
        assert!(bridge_calls_rules("0"), "the packets are routed");
        let mut netfilter = Socket::open(Protocol::Netfilter).unwrap();
        let mut batch = Batch::new(Table { family: Family::Ip, name: "filter" });
        let hook = Hook { point: HookPoint::Forward, priority: 0, kind: ChainKind::Filter };
        batch.make_table();
        batch.make_chain("FORWARD", Some(hook));
        batch.drop_by_default("FORWARD");
        netfilter.commit("drop", &batch.into_messages()).unwrap();
        let (inside, client) = (namespace(networks, "a"), namespace(networks, "b"));
        let server = inside.run(|| Server::open("0.0.0.0:80")).unwrap();
        let address: SocketAddr = "192.0.2.7:8080".parse().unwrap();
        let refused =
            client.run(|| TcpStream::connect_timeout(&address, Duration::from_millis(300))).unwrap();
        assert!(refused.is_err(), "the chain drops");
        // With any network made or corrected.
        networks.up(&request("b", &[])).unwrap();
        let asked = server.serve(|| client.run(|| ask("192.0.2.7:8080")).unwrap());
        assert_eq!(asked.unwrap(), "172.26.64.1");
    });
}

/// The kernel translates what a socket sends by UDP as it did before, as long as the socket sends on.
#[test]
fn a_client_that_sends_on_reaches_the_next_allocation() {
    on_host(|_, networks| {
        let client = UdpSocket::bind("0.0.0.0:0").unwrap();
        client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        client.connect((HOST, 8080)).unwrap();
        let other = UdpSocket::bind("0.0.0.0:0").unwrap();
        let holder = PortHolder::default();
        for owner in ["a", "b"] {
            let ports = [port(Some(HOST), 8080, 80)];
            let wanted = request(owner, &ports);
            holder.hold("any", &wanted.held_ports()).unwrap();
            client.send(b"nothing is mapped yet").unwrap();
            networks.up(&wanted).unwrap();
            let server = namespace(networks, owner).run(|| Server::open("0.0.0.0:80")).unwrap();
            // Another connection of the machine, which must not be forgotten.
            other.send_to(b"?", "192.0.2.8:9").unwrap();
            let until = Instant::now() + ANSWER_MAX;
            let answered = server.serve_datagram(|| {
                let is_answered = || client.send(b"?").is_ok() && client.recv(&mut [0; 64]).is_ok();
                std::iter::repeat_with(is_answered).find(|done| *done || Instant::now() >= until)
            });
            let answered = answered == Some(true);
            assert!(answered, "{owner}");
            networks.down(owner).unwrap();
        }
    });
}

/// Its client may use its port again meanwhile: the new connection was forgotten in its place.
#[test]
fn connection_that_has_ended_is_not_forgotten() {
    const TIME_WAIT: u8 = 7;
    on_host(|_, networks| {
        let made = networks.up(&request("a", &[port(Some(HOST), 8080, 80)])).unwrap();
        let server = namespace(networks, "a").run(|| Server::open("0.0.0.0:80")).unwrap();
        server.serve(|| ask("192.0.2.7:8080")).unwrap();
        let _open = TcpStream::connect((HOST, 8080)).unwrap();
        let mut socket = open_netfilter().unwrap();
        let until = Instant::now() + ANSWER_MAX;
        while !conntrack::tcp_states(&mut socket, made.address4).contains(&TIME_WAIT) {
            assert!(Instant::now() < until, "the first connection has not ended");
        }
        assert_eq!(conntrack::tcp_states(&mut socket, made.address4).len(), 2);
        conntrack::forget(&mut socket, &BTreeSet::from([made.address4.into()])).unwrap();
        assert_eq!(conntrack::tcp_states(&mut socket, made.address4), [TIME_WAIT]);
    });
}

#[test]
fn many_networks_are_made_at_once() {
    on_host(|_, networks| {
        let up = |index: u16| {
            let ports = [port(None, 9_000 + index, 80)];
            networks.up(&request(&format!("owner-{index}"), &ports)).unwrap().address4
        };
        let addresses: Vec<Ipv4Addr> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..16).map(|index| scope.spawn(move || up(index))).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let distinct: BTreeSet<_> = addresses.iter().collect();
        assert_eq!(distinct.len(), 16);
        assert_eq!(networks.owners().unwrap().len(), 16);
    });
}

#[test]
fn port_that_nothing_can_reach_is_refused() {
    on_host(|machine, networks| {
        networks.up(&request("a", &[])).unwrap();
        let only4 = Networks::open(BridgeConfig { subnet6: None, ..config(&machine.dir()) }).unwrap();
        for (ip, expected) in [
            (HOST6, "map port 8080 of 2001:db8::7: the bridge has no IPv6 network"),
            ("::", "map port 8080 of ::: the bridge has no IPv6 network"),
        ] {
            let ports = [port(Some(ip), 8080, 80)];
            assert_eq!(only4.up(&request("b", &ports)).unwrap_err().to_string(), expected);
            assert_eq!(
                only4.inspect(&request("b", &ports)).unwrap(),
                NetworkState::Absent,
                "nothing was made"
            );
            let found = only4.inspect(&request("a", &ports)).unwrap();
            assert!(matches!(found, NetworkState::Incomplete { .. }), "{found:?}");
        }
    });
}

/// Connections to it would hang: the kernel does not translate them.
#[test]
fn port_of_the_loopback_address_of_ipv6_is_refused() {
    on_host(|_, networks| {
        let refused = networks.up(&request("a", &[port(Some("::1"), 8080, 80)])).unwrap_err();
        assert_eq!(refused.to_string(), "map port 8080 of ::1: the kernel can't translate this address");
    });
}

/// An agent without an IPv6 network disables it on the bridge and inside.
#[test]
fn network_of_ipv6_is_added_and_removed_with_the_config() {
    on_host(|machine, networks| {
        let only4 = || Networks::open(BridgeConfig { subnet6: None, ..config(&machine.dir()) }).unwrap();
        let wanted = request("a", &[]);
        let plain = only4().up(&wanted).unwrap();
        assert_eq!(plain.address6, None);
        let made = networks.up(&wanted).unwrap();
        assert_eq!((made.address4, made.namespace), (plain.address4, plain.namespace));
        assert_eq!(networks.inspect(&wanted).unwrap(), NetworkState::Complete(made));
        let server = namespace(networks, "a").run(|| Server::open("[fd00:37::2]:80")).unwrap();
        assert_eq!(server.serve(|| ask("[fd00:37::2]:80")).unwrap(), "fd00:37::1");
        // Another program has removed the address.
        let inside = namespace(networks, "a");
        let mut socket = inside.socket(Protocol::Route).unwrap();
        let eth0 = link::find(&mut socket, &inner_name().unwrap()).unwrap().unwrap();
        address::remove(
            &mut socket,
            eth0.index,
            &InterfaceAddress { ip: "fd00:37::2".parse().unwrap(), prefix: 64 },
        )
        .unwrap();
        assert!(matches!(networks.inspect(&wanted).unwrap(), NetworkState::Incomplete { .. }));
        networks.up(&wanted).unwrap();
        assert_eq!(server.serve(|| ask("[fd00:37::2]:80")).unwrap(), "fd00:37::1");
        assert_eq!(only4().up(&wanted).unwrap(), plain);
        assert_eq!(only4().inspect(&wanted).unwrap(), NetworkState::Complete(plain));
        let refused =
            BridgeConfig { subnet6: Some("2001:db8::/64".parse().unwrap()), ..config(&machine.dir()) };
        let refused = Networks::open(refused).unwrap().up(&wanted);
        assert!(matches!(refused, Err(NetworkError::Overlap { .. })), "{refused:?}");
    });
}

/// The claims are files, which a user can remove.
#[test]
fn address_in_the_namespace_outlives_its_claim() {
    on_host(|machine, networks| {
        networks.up(&request("a", &[])).unwrap();
        let made = networks.up(&request("b", &[])).unwrap();
        std::fs::remove_dir_all(machine.dir().join("addresses")).unwrap();
        let next_agent = Networks::open(config(&machine.dir())).unwrap();
        assert_eq!(next_agent.up(&request("b", &[])).unwrap(), made);
        assert_ne!(next_agent.up(&request("c", &[])).unwrap().address4, made.address4);
    });
}

#[test]
fn mapped_ports_are_known_before_they_are_held_again() {
    on_host(|machine, networks| {
        let ports = [port(Some(HOST), 8080, 80)];
        assert!(!networks.maps_ports(&request("a", &ports)).unwrap());
        networks.up(&request("a", &ports)).unwrap();
        let next_agent = Networks::open(config(&machine.dir())).unwrap();
        assert!(next_agent.maps_ports(&request("a", &ports)).unwrap());
        assert!(!next_agent.maps_ports(&request("a", &[port(Some(HOST), 8081, 80)])).unwrap());
    });
}

/// A process that is left over, or the container whose namespace it is, keeps the namespace.
#[test]
fn address_is_released_without_the_connection_of_its_owner() {
    on_host(|_, networks| {
        networks.up(&request("a", &[])).unwrap();
        let left_over = namespace(networks, "a");
        networks.down("a").unwrap();
        networks.finish_removals().unwrap();
        let mut socket = open_socket().unwrap();
        assert_eq!(link::find(&mut socket, &networks.link_name("a").unwrap()).unwrap(), None);
        let mut inside = left_over.socket(Protocol::Route).unwrap();
        assert_eq!(link::find(&mut inside, &inner_name().unwrap()).unwrap(), None);
        assert_eq!(networks.pool.owners().unwrap(), BTreeMap::new());
    });
}
