//! A published port and a mapped port beside the addresses of the same instances: connections a second, and bytes a second.
//!
//! In a network namespace of its own, so that the machine's networks stay as they are. Needs root.

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    thread,
    time::Instant,
};

use herdlet_network::{
    firewall::published::{PublishedPort, PublishedPorts, Target},
    link::{self, Hairpin, InterfaceName},
    namespace::{Namespace, Pin, Pins},
    networks::{BridgeConfig, NetworkRequest, Networks, RequestedPort},
    socket::{Protocol, Socket},
};

use super::{
    ground::BenchDirs,
    table::{Table, median},
};

const INSTANCES: u16 = 3;
const PAIRS: usize = 21;
const CONNECTIONS_OF_A_ROUND: usize = 300;
const REQUESTS_OF_A_ROUND: usize = 3_000;
const BYTES: usize = 64 << 20;
const CHUNK: usize = 64 << 10;

const PUBLISHED: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8080));
/// The first instance's port.
const MAPPED: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9090));

/// As medians of interleaved pairs.
pub(super) fn beside_direct(table: &mut Table, _: &BenchDirs) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let machine = Namespace::new().expect("a network namespace");
    for Ratio { what, ratio, direct } in machine.run(measure).expect("a thread in the namespace") {
        table.row(what, format_args!("{:.1} %", ratio * 100.0), "≥ 95 %", direct);
    }
}

struct Ratio {
    what: &'static str,
    /// Of the direct way.
    ratio: f64,
    /// The direct way alone.
    direct: String,
}

fn measure() -> [Ratio; 6] {
    link::set_up(&mut Socket::open(Protocol::Route).expect("a socket"), 1).expect("a loopback interface");
    let runtime = tempfile::tempdir().expect("a directory");
    let networks = Networks::open(BridgeConfig {
        instance: "bench".to_owned(),
        name: InterfaceName::new("hlbench").expect("a name"),
        subnet4: "172.26.64.0/20".parse().expect("a network"),
        subnet6: None,
        mtu: 1500,
        hairpin: Hairpin::Off,
        runtime: runtime.path().to_owned(),
    })
    .expect("netfilter");
    let owner = |index: u16| format!("00000000-0000-4000-8000-{index:012}");
    let targets: Vec<Target> = (0..INSTANCES)
        .map(|index| {
            let owner = owner(index);
            let mapped = RequestedPort { host_ip: None, host: MAPPED.port(), inside: 80 };
            let ports = if index == 0 { &[mapped][..] } else { &[] };
            let made = networks.up(&NetworkRequest { owner: &owner, ports }).expect("a network");
            let pins = Pins::in_dir(runtime.path().join("netns"));
            let Pin::Kept(inside) = pins.find(&owner).expect("a directory") else { panic!("no namespace") };
            let at = SocketAddr::from((made.address4, 80));
            let listener = inside.run(|| TcpListener::bind(at).expect("a listener")).expect("a thread");
            thread::spawn(move || serve(&listener));
            Target { at, owner }
        })
        .collect();
    let ports = PublishedPorts::open("bench").expect("netfilter");
    let each: Vec<SocketAddr> = targets.iter().map(|target| target.at).collect();
    let published = PublishedPort { at: PUBLISHED, targets: targets.into_iter().collect() };
    ports.set(&[published]).expect("a published port");
    let (all, first) = (each.as_slice(), &each[..1]);
    let (published, mapped) = (&[PUBLISHED][..], &[MAPPED][..]);
    let measured = [
        of_direct("published port: requests/s, a connection each", [all, published], &CONNECTIONS),
        of_direct("published port: requests/s of one connection", [all, published], &REQUESTS),
        of_direct("published port: throughput", [all, published], &THROUGHPUT),
        of_direct("mapped port: requests/s, a connection each", [first, mapped], &CONNECTIONS),
        of_direct("mapped port: requests/s of one connection", [first, mapped], &REQUESTS),
        of_direct("mapped port: throughput", [first, mapped], &THROUGHPUT),
    ];
    ports.remove().expect("no published port");
    (0..INSTANCES).for_each(|index| networks.down(&owner(index)).expect("no network"));
    measured
}

/// A client's first byte is the kind of its request: `1` for one answer, `+` for an answer to each byte, `*` for many bytes.
fn serve(listener: &TcpListener) {
    let chunk = vec![0; CHUNK];
    while let Ok((mut stream, _)) = listener.accept() {
        stream.set_nodelay(true).expect("an option of a socket");
        let mut kind = [0];
        let _ = match stream.read(&mut kind) {
            Ok(1) if kind == *b"*" => (0..BYTES / CHUNK).try_for_each(|_| stream.write_all(&chunk)),
            Ok(1) if kind == *b"+" => answer_each(&mut stream),
            Ok(_) | Err(_) => stream.write_all(b"ok"),
        };
    }
}

fn answer_each(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"o")?;
    while stream.read(&mut [0])? == 1 {
        stream.write_all(b"o")?;
    }
    Ok(())
}

/// What is done to addresses, and its unit.
struct Work {
    /// Each second. The addresses are used in turn.
    rate: fn(&[SocketAddr]) -> f64,
    unit: &'static str,
}

const CONNECTIONS: Work = Work { rate: connections, unit: "/s" };
const REQUESTS: Work = Work { rate: requests, unit: "/s" };
const THROUGHPUT: Work = Work { rate: throughput, unit: "MiB/s" };

/// Each way in turn, because the machine's speed changes. Both ways lead to the same instances: processes that have not run
/// for long wake up more slowly.
fn of_direct(what: &'static str, [direct, other]: [&[SocketAddr]; 2], work: &Work) -> Ratio {
    (work.rate)(direct);
    let pairs: Vec<(f64, f64)> = (0..PAIRS).map(|_| ((work.rate)(direct), (work.rate)(other))).collect();
    let direct = median(pairs.iter().map(|(direct, _)| *direct));
    Ratio {
        what,
        ratio: median(pairs.iter().map(|(direct, other)| other / direct)),
        direct: format!("direct {direct:.0} {}", work.unit),
    }
}

fn connections(to: &[SocketAddr]) -> f64 {
    let began = Instant::now();
    for to in to.iter().cycle().take(CONNECTIONS_OF_A_ROUND) {
        let mut stream = TcpStream::connect(to).expect("a connection");
        stream.write_all(b"1").expect("a request");
        stream.read_to_end(&mut Vec::new()).expect("an answer");
    }
    CONNECTIONS_OF_A_ROUND as f64 / began.elapsed().as_secs_f64()
}

fn requests(to: &[SocketAddr]) -> f64 {
    let began = Instant::now();
    let mut stream = TcpStream::connect(to[0]).expect("a connection");
    stream.set_nodelay(true).expect("an option of a socket");
    for _ in 0..REQUESTS_OF_A_ROUND {
        stream.write_all(b"+").expect("a request");
        stream.read_exact(&mut [0]).expect("an answer");
    }
    REQUESTS_OF_A_ROUND as f64 / began.elapsed().as_secs_f64()
}

fn throughput(to: &[SocketAddr]) -> f64 {
    let began = Instant::now();
    let mut stream = TcpStream::connect(to[0]).expect("a connection");
    stream.write_all(b"*").expect("a request");
    let (mut chunk, mut read) = (vec![0; CHUNK], 0);
    while read < BYTES {
        read += stream.read(&mut chunk).expect("bytes");
    }
    (BYTES >> 20) as f64 / began.elapsed().as_secs_f64()
}
