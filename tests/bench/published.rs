//! A published port beside the addresses of its instances: connections a second, and bytes a second.
//!
//! In a network namespace of its own, so that the machine's networks stay as they are. Needs root.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    thread,
    time::Instant,
};

use herdlet_network::{
    firewall::published::{PublishedPort, PublishedPorts, Target},
    link::{self, Hairpin, InterfaceName},
    namespace::{Namespace, Pin, Pins},
    networks::{BridgeConfig, NetworkRequest, Networks},
    socket::{Protocol, Socket},
};

use super::{
    ground::BenchDirs,
    table::{Table, quantile},
};

const INSTANCES: u16 = 3;
const PAIRS: usize = 21;
const CONNECTIONS: usize = 300;
const BYTES: usize = 64 << 20;
const CHUNK: usize = 64 << 10;

const PUBLISHED: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8080));

/// Both as medians of interleaved pairs.
pub(super) fn beside_direct(table: &mut Table, _: &BenchDirs) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let machine = Namespace::new().expect("a network namespace");
    let [requests, bytes] = machine.run(measure).expect("a thread in the namespace");
    let shown = |ratio: f64| format!("{:.1} %", ratio * 100.0);
    let direct = |each: f64, unit: &str| format!("direct {each:.0} {unit}");
    table.row(
        "published port: requests/s of direct",
        shown(requests.ratio),
        "95 %",
        direct(requests.direct, "/s"),
    );
    let mebibytes = direct(bytes.direct / f64::from(1 << 20), "MiB/s");
    table.row("published port: throughput of direct", shown(bytes.ratio), "95 %", mebibytes);
}

struct Ratio {
    ratio: f64,
    /// Of the direct way, each second.
    direct: f64,
}

fn measure() -> [Ratio; 2] {
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
            let made = networks.up(&NetworkRequest { owner: &owner, ports: &[] }).expect("a network");
            let pins = Pins::in_dir(runtime.path().join("netns"));
            let Pin::Kept(inside) = pins.find(&owner).expect("a directory") else { panic!("no namespace") };
            let at = SocketAddr::from((made.address4, 80));
            let listener = inside.run(|| TcpListener::bind(at).expect("a listener")).expect("a thread");
            thread::spawn(move || serve(&listener));
            Target { at, owner }
        })
        .collect();
    let ports = PublishedPorts::open("bench").expect("netfilter");
    let direct = targets[0].at;
    let published = PublishedPort { at: PUBLISHED, targets: targets.into_iter().collect() };
    ports.set(&[published]).expect("a published port");
    let measured = [pairs(direct, connections), pairs(direct, throughput)];
    ports.remove().expect("no published port");
    (0..INSTANCES).for_each(|index| networks.down(&owner(index)).expect("no network"));
    measured
}

/// A client's first byte is the kind of its request: `1` for one answer, `*` for many bytes.
fn serve(listener: &TcpListener) {
    let chunk = vec![0; CHUNK];
    while let Ok((mut stream, _)) = listener.accept() {
        let mut kind = [0];
        let _ = match stream.read(&mut kind) {
            Ok(1) if kind == *b"*" => (0..BYTES / CHUNK).try_for_each(|_| stream.write_all(&chunk)),
            Ok(_) | Err(_) => stream.write_all(b"ok"),
        };
    }
}

/// Each way in turn, because the machine's speed changes.
fn pairs(direct: SocketAddr, each_second: fn(SocketAddr) -> f64) -> Ratio {
    each_second(direct);
    let pairs: Vec<(f64, f64)> = (0..PAIRS).map(|_| (each_second(direct), each_second(PUBLISHED))).collect();
    let median = |values: Vec<f64>| {
        let mut values = values;
        values.sort_by(f64::total_cmp);
        quantile(&values, 0.5)
    };
    Ratio {
        ratio: median(pairs.iter().map(|(direct, published)| published / direct).collect()),
        direct: median(pairs.iter().map(|(direct, _)| *direct).collect()),
    }
}

fn connections(to: SocketAddr) -> f64 {
    let began = Instant::now();
    for _ in 0..CONNECTIONS {
        let mut stream = TcpStream::connect(to).expect("a connection");
        stream.write_all(b"1").expect("a request");
        stream.read_to_end(&mut Vec::new()).expect("an answer");
    }
    CONNECTIONS as f64 / began.elapsed().as_secs_f64()
}

fn throughput(to: SocketAddr) -> f64 {
    let began = Instant::now();
    let mut stream = TcpStream::connect(to).expect("a connection");
    stream.write_all(b"*").expect("a request");
    let (mut chunk, mut read) = (vec![0; CHUNK], 0);
    while read < BYTES {
        read += stream.read(&mut chunk).expect("bytes");
    }
    BYTES as f64 / began.elapsed().as_secs_f64()
}
