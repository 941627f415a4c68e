//! Tests of packets to published ports: which target they reach, from where.

use std::collections::BTreeSet;

use super::*;
use crate::firewall::published::{PublishedPort, PublishedPorts, Target};

fn published(at: &str, targets: &[&str]) -> PublishedPort {
    let target = |at: &&str| Target { at: at.parse().unwrap(), owner: (*at).to_owned() };
    PublishedPort { at: at.parse().unwrap(), targets: targets.iter().map(target).collect() }
}

/// A server that answers each connection with its own address.
struct Echo {
    tcp: TcpListener,
    at: String,
}

impl Echo {
    fn open(at: &str) -> Self {
        let tcp = TcpListener::bind(at).unwrap();
        // This bounds `accept`, so that the end of a test is seen.
        set_socket_timeout(&tcp, Timeout::Recv, Some(Duration::from_millis(20))).unwrap();
        Self { tcp, at: at.to_owned() }
    }

    fn accept(&self) -> TcpStream {
        std::iter::repeat_with(|| self.tcp.accept()).find_map(Result::ok).unwrap().0
    }
}

/// The addresses of the servers that answer `count` connections.
fn reached(servers: &[Echo], count: usize, connect: impl Fn() -> io::Result<String> + Sync) -> Vec<String> {
    let done = std::sync::atomic::AtomicBool::new(false);
    let is_done = || done.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        for server in servers {
            scope.spawn(|| {
                while !is_done() {
                    if let Ok((mut stream, _)) = server.tcp.accept() {
                        stream.write_all(server.at.as_bytes()).unwrap();
                    }
                }
            });
        }
        let answers: io::Result<Vec<String>> = (0..count).map(|_| connect()).collect();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        answers.unwrap()
    })
}

#[test]
fn connections_are_spread_over_targets_in_networks_of_their_own() {
    on_host(|_, networks| spread_over_networks("0", networks));
}

/// The kernel then sends a packet back to the allocation that has sent it only with `hairpin`.
#[test]
fn connections_are_spread_over_targets_if_bridges_call_rules() {
    on_host_with(Hairpin::On, |_, networks| spread_over_networks("1", networks));
}

fn spread_over_networks(calls: &str, networks: &Networks) {
    if bridge_calls_rules(calls) {
        let ports = PublishedPorts::open("test").unwrap();
        let mut servers = Vec::new();
        let mut targets = Vec::new();
        for owner in ["a", "b", "c"] {
            let made = networks.up(&request(owner, &[])).unwrap();
            let at = format!("{}:80", made.address4);
            servers.push(namespace(networks, owner).run(|| Echo::open(&at)).unwrap());
            targets.push(at);
        }
        let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
        let all =
            |targets: &[&str]| [published("192.0.2.7:8080", targets), published("127.0.0.1:8080", targets)];
        ports.set(&all(&targets)).unwrap();
        let (neighbour, client) = (neighbour(), namespace(networks, "a"));
        let of_all: BTreeSet<String> = targets.iter().map(|&at| at.to_owned()).collect();
        let spread = |answers: Vec<String>| answers.into_iter().collect::<BTreeSet<_>>();
        // All but two of 100 random choices miss one target once in 10¹⁷ runs.
        assert_eq!(spread(reached(&servers, 100, || ask("127.0.0.1:8080"))), of_all);
        assert_eq!(spread(reached(&servers, 100, || ask("192.0.2.7:8080"))), of_all);
        let outside = || neighbour.run(|| ask("192.0.2.7:8080")).unwrap();
        assert_eq!(spread(reached(&servers, 100, outside)), of_all);
        // One of the targets itself, too.
        let inside = || client.run(|| ask("192.0.2.7:8080")).unwrap();
        assert_eq!(spread(reached(&servers, 100, inside)), of_all);
        // One leaves: its connections go on, and it gets no new ones.
        ports.set(&all(&targets[..1])).unwrap();
        let mut open = TcpStream::connect("192.0.2.7:8080").unwrap();
        let mut served = servers[0].accept();
        ports.set(&all(&targets[1..])).unwrap();
        let answers = spread(reached(&servers, 50, || ask("192.0.2.7:8080")));
        assert_eq!(answers, targets[1..].iter().map(|&at| at.to_owned()).collect());
        served.write_all(b"still").unwrap();
        let mut still = [0; 5];
        open.read_exact(&mut still).unwrap();
        assert_eq!(&still, b"still");
        ports.set(&all(&[])).unwrap();
        let refused = ask("192.0.2.7:8080").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        ports.remove().unwrap();
    }
}

/// By TCP and by UDP, from the machine, a neighbour, and a target itself.
#[test]
fn connections_by_ipv6_lead_to_targets_of_ipv6() {
    on_host(|_, networks| {
        let ports = PublishedPorts::open("test").unwrap();
        let made = ["a", "b"].map(|owner| networks.up(&request(owner, &[])).unwrap());
        let inside = namespace(networks, "a");
        let at = format!("[{}]:80", made[0].address6.unwrap());
        let server = inside.run(|| Server::open(&at)).unwrap();
        ports.set(&[published("[2001:db8::7]:8080", &[&at])]).unwrap();
        let (neighbour, other) = (neighbour(), namespace(networks, "b"));
        let bridge = "fd00:37::1";
        assert_eq!(server.serve(|| ask("[2001:db8::7]:8080")).unwrap(), HOST6);
        for (from, seen) in [(&neighbour, "2001:db8::8"), (&other, bridge)] {
            assert_eq!(server.serve(|| from.run(|| ask("[2001:db8::7]:8080")).unwrap()).unwrap(), seen);
            let asked = server.serve_datagram(|| from.run(|| ask_datagram("[2001:db8::7]:8080")).unwrap());
            assert_eq!(asked.unwrap(), seen);
        }
        let client = UdpSocket::bind("[::]:0").unwrap();
        client.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        client.connect((HOST6, 8080)).unwrap();
        let served = |server: &Server| {
            server.serve_datagram(|| {
                client.send(b"?").unwrap();
                client.recv(&mut [0; 64]).is_ok()
            })
        };
        assert!(served(&server));
        // A client that sends on reaches the next target.
        let next = Server::open("[2001:db8::7]:20002");
        ports.set(&[published("[2001:db8::7]:8080", &["[2001:db8::7]:20002"])]).unwrap();
        assert!(served(&next));
        ports.remove().unwrap();
    });
}

#[test]
fn connections_lead_to_ports_of_the_machine() {
    on_host(|_, networks| {
        let ports = PublishedPorts::open("test").unwrap();
        let own = [Echo::open("127.0.0.1:20001"), Echo::open("192.0.2.7:20002")];
        let both = ["127.0.0.1:20001", "192.0.2.7:20002"];
        ports.set(&[published("127.0.0.1:8080", &both), published("192.0.2.7:8080", &both[1..])]).unwrap();
        let answers: BTreeSet<String> = reached(&own, 50, || ask("127.0.0.1:8080")).into_iter().collect();
        assert_eq!(answers.len(), 2);
        networks.up(&request("a", &[])).unwrap();
        let (neighbour, inside) = (neighbour(), namespace(networks, "a"));
        for from in [&neighbour, &inside] {
            let outside = || from.run(|| ask("192.0.2.7:8080")).unwrap();
            assert_eq!(reached(&own, 1, outside), ["192.0.2.7:20002"]);
        }
        ports.remove().unwrap();
    });
}

/// A neighbour can route 127.0.0.1 to the machine.
#[test]
fn a_neighbour_does_not_reach_what_is_published_for_the_machine_alone() {
    on_host(|_, networks| {
        let ports = PublishedPorts::open("test").unwrap();
        let made = networks.up(&request("a", &[])).unwrap();
        let at = format!("{}:80", made.address4);
        let servers =
            [namespace(networks, "a").run(|| Echo::open(&at)).unwrap(), Echo::open("127.0.0.1:20001")];
        ports.set(&[published("127.0.0.1:8080", &[&at, "127.0.0.1:20001"])]).unwrap();
        assert_eq!(reached(&servers, 1, || ask("127.0.0.1:8080")).len(), 1, "the machine itself");
        let neighbour = neighbour();
        let mut outside = neighbour.socket(Protocol::Route).unwrap();
        let inner = link::find(&mut outside, &inner_name().unwrap()).unwrap().unwrap();
        neighbour.run(|| Setting::RouteLoopback(INTERFACE.to_owned()).set("1").unwrap()).unwrap();
        route::set_default(&mut outside, HOST.parse().unwrap(), inner.index).unwrap();
        let own = InterfaceAddress { ip: IpAddr::from([127, 0, 0, 1]), prefix: 8 };
        let _ = address::remove(&mut outside, LOOPBACK, &own);
        for address in ["127.0.0.1:8080", "192.0.2.7:8080"] {
            let address: SocketAddr = address.parse().unwrap();
            let reached = neighbour.run(|| TcpStream::connect_timeout(&address, Duration::from_millis(300)));
            assert!(reached.unwrap().is_err(), "{address}");
        }
        ports.remove().unwrap();
    });
}

/// The kernel translates what a socket sends by UDP as it did before, as long as the socket sends on.
#[test]
fn a_client_that_sends_on_reaches_the_next_target() {
    on_host(|_, _| {
        let ports = PublishedPorts::open("test").unwrap();
        let client = UdpSocket::bind("0.0.0.0:0").unwrap();
        client.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        client.connect((HOST, 8080)).unwrap();
        for target in ["127.0.0.1:20001", "192.0.2.7:20002"] {
            let server = Server::open(target);
            ports.set(&[published("192.0.2.7:8080", &[target])]).unwrap();
            let answered = server.serve_datagram(|| {
                client.send(b"?").unwrap();
                client.recv(&mut [0; 64]).is_ok()
            });
            assert!(answered, "{target}");
        }
        ports.remove().unwrap();
    });
}
