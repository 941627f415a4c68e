//! Clients that find a service by DNS lose no request while it is rolled out, scaled and restarted.

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use herdlet_e2e::{
    agent::{Agent, Setup},
    environment,
    http::{self, Peer},
    ports, wait,
};

use crate::common::{is_root, job, shell};

const A: u16 = 1;
const SRV: u16 = 33;

/// The content of an answer: its code, its addresses, and the ports of its SRV records.
#[derive(Debug, Default, PartialEq, Eq)]
struct DnsAnswer {
    rcode: u8,
    addresses: BTreeSet<Ipv4Addr>,
    ports: BTreeSet<u16>,
}

fn query(name: &str, kind: u16) -> Vec<u8> {
    let mut query = vec![0x47, 0x11, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(u8::try_from(label.len()).unwrap());
        query.extend(label.as_bytes());
    }
    query.push(0);
    query.extend(kind.to_be_bytes());
    query.extend([0, 1]);
    query
}

fn over_udp(server: u16, name: &str, kind: u16) -> DnsAnswer {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(wait::PATIENCE)).unwrap();
    socket.connect(("127.0.0.1", server)).unwrap();
    socket.send(&query(name, kind)).unwrap();
    let mut answer = [0; 512];
    let length = socket.recv(&mut answer).unwrap();
    read(&answer[..length])
}

fn over_tcp(server: u16, name: &str, kind: u16) -> DnsAnswer {
    let mut stream = TcpStream::connect(("127.0.0.1", server)).unwrap();
    stream.set_read_timeout(Some(wait::PATIENCE)).unwrap();
    let query = query(name, kind);
    let length = u16::try_from(query.len()).unwrap().to_be_bytes();
    stream.write_all(&[&length[..], &query].concat()).unwrap();
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut answer).unwrap();
    read(&answer)
}

fn read(answer: &[u8]) -> DnsAnswer {
    let number = |at: usize| u16::from_be_bytes([answer[at], answer[at + 1]]);
    assert_eq!((number(0), answer[2] & 0x82), (0x4711, 0x80), "a complete answer to this query");
    let mut parsed = DnsAnswer { rcode: answer[3] & 15, ..DnsAnswer::default() };
    // Skip the question: name, type and class.
    let mut at = after_name(answer, 12) + 4;
    for _ in 0..number(6) {
        at = after_name(answer, at);
        let (kind, length, data) = (number(at), usize::from(number(at + 8)), at + 10);
        match kind {
            A => drop(parsed.addresses.insert(<[u8; 4]>::try_from(&answer[data..data + 4]).unwrap().into())),
            SRV => drop(parsed.ports.insert(number(data + 4))),
            other => panic!("unexpected record of type {other}"),
        }
        at = data + length;
    }
    parsed
}

fn after_name(message: &[u8], mut at: usize) -> usize {
    loop {
        match message[at] {
            0 => return at + 1,
            length if length >= 0xc0 => return at + 2,
            length => at += 1 + usize::from(length),
        }
    }
}

/// How long an instance still serves requests after it was delisted: the group's `shutdown_delay`.
const SERVES_ON: Duration = Duration::from_secs(2);

/// Looks up the service and sends requests to its instances, until `done` and until enough requests were sent
/// or one failed. Returns the number of answers, and the failures.
fn query_until(server: u16, done: &AtomicBool) -> (u32, Vec<String>) {
    let (mut answered, mut failed) = (0, Vec::new());
    while !done.load(Ordering::Relaxed) || (answered < 100 && failed.is_empty()) {
        let asked = Instant::now();
        let reply = over_udp(server, "web.service.herdlet", SRV);
        if reply.ports.is_empty() {
            failed.push(format!("{reply:?}"));
        }
        for port in reply.ports {
            match http::get(&Peer::Port(port), "/") {
                Some(answer) if answer.status == 200 => answered += 1,
                // A client that is this slow has no guarantee.
                _ if asked.elapsed() >= SERVES_ON => {}
                other => failed.push(format!("{port}: {other:?}")),
            }
        }
        wait::pause(Duration::from_millis(10));
    }
    (answered, failed)
}

#[test]
fn dns_answers_during_rollout_scaling_and_restart() {
    if !is_root() {
        return;
    }
    let Some(python) = environment::component(environment::PYTHON) else { return };
    let [server] = ports::free();
    let setup = Setup::default()
        .config(ports::for_tasks())
        .argument("--dns-listen")
        .argument(format!("127.0.0.1:{server}"));
    let mut agent = Agent::start_with(setup);
    let script = format!("exec {} -m http.server $NOMAD_PORT_p --bind $NOMAD_IP_p", python.display());
    let group = "count: 2
shutdown_delay: 2s
update: {max_parallel: 1, min_healthy_time: 1s, healthy_deadline: 5m, progress_deadline: 10m}
network: {ports: {p: {}}}
services:
  - {name: web, provider: nomad, port: p, tags: [v1], checks: [{name: alive, type: http, path: /, interval: 1s, timeout: 2m}]}";
    let text = |release: &str| {
        job("web", "service", group, &[shell("t", &script, &format!("env: {{RELEASE: {release}}}"))])
    };
    assert_eq!(over_udp(server, "web.service.herdlet", A).rcode, 3, "the service does not exist yet");
    agent.apply_and_wait(&text("first"));
    let found = |name: &str| over_udp(server, name, SRV).ports.len();
    wait::until_true("both are listed", || found("web.service.herdlet") == 2);
    assert_eq!(over_tcp(server, "WEB.default.Service.herdlet", A).addresses, [Ipv4Addr::LOCALHOST].into());
    assert_eq!((found("v1.web.default.service.herdlet"), found("v2.web.default.service.herdlet")), (2, 0));

    let done = AtomicBool::new(false);
    let (answered, failed) = std::thread::scope(|scope| {
        let client = scope.spawn(|| query_until(server, &done));
        let changed =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| change(&mut agent, &text("second"))));
        done.store(true, Ordering::Relaxed);
        let asked = client.join().unwrap();
        changed.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        asked
    });
    assert!(failed.is_empty(), "{answered} answered, {} failed: {failed:?}", failed.len());

    agent.cli(&["delete", "web", "--wait"]).success();
    assert_eq!(over_udp(server, "web.service.herdlet", A), DnsAnswer { rcode: 3, ..DnsAnswer::default() });
    assert_eq!(over_tcp(server, "example.org", A).rcode, 5, "queries for other zones are refused");
    agent.finish();
}

/// Applies a new version, changes the count and back, restarts one replica after the other.
fn change(agent: &mut Agent, second: &str) {
    agent.apply_and_wait(second);
    for count in ["3", "2"] {
        agent.cli(&["scale", "web", count, "--wait"]).success();
    }
    for index in 0..2 {
        agent.cli(&["restart", &format!("web.g[{index}]"), "--wait"]).success();
    }
}
