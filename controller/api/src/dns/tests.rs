//! DNS queries: encoding of the answers, and the server over real sockets.

use std::collections::BTreeSet;

use domain::{
    base::{Message, Rtype, iana::Rcode},
    rdata::AllRecordData,
};
use herdlet_api_types::{
    fixture,
    service::{CheckResult, CheckStatus, RegisteredCheck},
};
use herdlet_manifest::fixture::{THEN, alloc_view, job, registration};
use herdlet_plan::turn::View;
use herdlet_runtime::{CommitIndex, Gate, Publisher as _};
use herdlet_services::catalog::ServiceOwner;

use super::*;

const A: u16 = 1;
const SOA: u16 = 6;
const AAAA: u16 = 28;
const SRV: u16 = 33;
const ANY: u16 = 255;

/// A zone to which instances are added.
struct ZoneFixture {
    zone: Arc<Zone>,
    instances: u8,
}

impl ZoneFixture {
    fn new() -> Self {
        let zone = Zone { model: Arc::default(), catalog: Arc::default(), restored: Gate::opened_before() };
        Self { zone: Arc::new(zone), instances: 0 }
    }

    /// Adds an instance `NAMESPACE/NAME` at an address. With a status, it has a check.
    fn add(&mut self, service: &str, address: &str, status: Option<CheckStatus>) {
        self.instances += 1;
        let (namespace, name) = service.split_once('/').unwrap();
        let mut view = alloc_view(&job("web", "g", "t"), 0, self.instances);
        let mut one = registration(&view, name, &format!("s{}", self.instances));
        one.job.namespace = namespace.into();
        one.address = address.to_owned();
        one.port = 8_000 + u16::from(self.instances);
        if let Some(status) = status {
            one.checks = vec![check()];
            view.checks = vec![result(status)];
        }
        self.zone.catalog.up(&ServiceOwner { alloc: view.spec.id, task: None }, vec![one]);
        self.zone.model.publisher().offer(CommitIndex(1), vec![View::Alloc(view.into())]);
    }

    fn ask(&self, query: &[u8], over: Over) -> ParsedAnswer {
        ParsedAnswer::read(&answer(query, over, &self.zone).unwrap())
    }

    fn udp(&self, name: &str, kind: u16) -> ParsedAnswer {
        self.ask(&query(name, kind), Over::Loopback)
    }
}

fn check() -> RegisteredCheck {
    fixture::registered_check("c1")
}

fn result(status: CheckStatus) -> CheckResult {
    CheckResult { at: THEN, service: "web".to_owned(), ..fixture::check_result("c1", status) }
}

/// A query with recursion desired, as stub resolvers send it.
fn query(name: &str, kind: u16) -> Vec<u8> {
    let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.').filter(|label| !label.is_empty()) {
        query.push(u8::try_from(label.len()).unwrap());
        query.extend(label.as_bytes());
    }
    query.push(0);
    query.extend(kind.to_be_bytes());
    query.extend([0, 1]);
    query
}

/// The query with an OPT record of this version and payload size.
fn with_opt(mut query: Vec<u8>, version: u8, room: u16) -> Vec<u8> {
    query[11] = 1;
    query.extend([0, 0, 41]);
    query.extend(room.to_be_bytes());
    query.extend([0, version, 0, 0, 0, 0]);
    query
}

/// A decoded answer.
#[derive(Debug)]
struct ParsedAnswer {
    len: usize,
    rcode: Rcode,
    flags: [bool; 3],
    question: String,
    answer: Vec<(String, String)>,
    authority: Vec<(String, String)>,
    additional: Vec<(String, String)>,
    opt: Option<(u16, u16)>,
}

impl ParsedAnswer {
    fn read(bytes: &[u8]) -> Self {
        let message = Message::from_octets(bytes).unwrap();
        let header = message.header();
        assert!(header.qr() && header.id() == 0x1234 && header.rd() && !header.ra());
        let [mut answer, mut authority, mut additional] = [const { Vec::new() }; 3];
        let (mut answers, mut authorities) = (message.answer().unwrap(), message.authority().unwrap());
        let read = |section: &mut domain::base::message::RecordSection<'_, _>, into: &mut Vec<_>| {
            for record in section {
                let record = record.unwrap();
                if record.rtype() == Rtype::OPT {
                    continue;
                }
                assert!(record.ttl().is_zero());
                let owner = record.owner().to_string();
                let data = record.to_record::<AllRecordData<_, _>>().unwrap().unwrap().into_data();
                into.push((owner, data.to_string()));
            }
        };
        read(&mut answers, &mut answer);
        read(&mut authorities, &mut authority);
        read(&mut message.additional().unwrap(), &mut additional);
        Self {
            len: bytes.len(),
            rcode: header.rcode(),
            flags: [header.aa(), header.tc(), header.qr()],
            question: message.first_question().map(|one| one.qname().to_string()).unwrap_or_default(),
            answer,
            authority,
            additional,
            opt: message.opt().map(|opt| (opt.udp_payload_size(), opt.rcode(header).to_int())),
        }
    }

    fn data(&self) -> Vec<&str> {
        let mut data: Vec<&str> = self.answer.iter().map(|(_, data)| data.as_str()).collect();
        data.sort_unstable();
        data
    }

    fn is_truncated(&self) -> bool {
        self.flags[1]
    }

    /// It is a negative answer with the SOA record of the zone.
    fn is_nothing(&self, rcode: Rcode) -> bool {
        let soa = [("herdlet".to_owned(), "ns.herdlet. hostmaster.herdlet. 1 0 0 0 0".to_owned())];
        self.rcode == rcode && self.answer.is_empty() && self.flags[0] && self.authority == soa
    }
}

#[test]
fn name_resolves_to_listed_instances() {
    let mut ground = ZoneFixture::new();
    ground.add("default/web", "192.0.2.1", None);
    ground.add("default/web", "192.0.2.2", Some(CheckStatus::Success));
    ground.add("default/web", "192.0.2.3", Some(CheckStatus::Failure));
    ground.add("default/web", "192.0.2.4", Some(CheckStatus::Pending));
    ground.add("default/web", "2001:db8::5", None);
    ground.add("prod/web", "192.0.2.6", None);
    let answer = ground.udp("web.service.herdlet", A);
    assert_eq!((answer.rcode, answer.data()), (Rcode::NOERROR, vec!["192.0.2.1", "192.0.2.2"]));
    assert_eq!(answer.flags, [true, false, true]);
    assert!(answer.authority.is_empty() && answer.opt.is_none());
    assert_eq!(ground.udp("web.default.service.herdlet", AAAA).data(), ["2001:db8::5"]);
    assert_eq!(ground.udp("web.prod.service.herdlet", A).data(), ["192.0.2.6"]);
    assert_eq!(ground.udp("a.web.prod.service.herdlet", A).data(), ["192.0.2.6"], "instances with a tag");
    assert_eq!(ground.udp("b.web.prod.service.herdlet", A).rcode, Rcode::NXDOMAIN);
    // The answer repeats the case of the query (0x20 encoding).
    let answer = ground.udp("wEb.sERVICE.Herdlet", A);
    assert_eq!(answer.question, "wEb.sERVICE.Herdlet");
    assert!(answer.answer.iter().all(|(owner, _)| owner == "wEb.sERVICE.Herdlet"));
    assert_eq!(answer.answer.len(), 2);
}

#[test]
fn service_records_point_to_names_that_have_addresses() {
    let mut ground = ZoneFixture::new();
    ground.add("default/web", "192.0.2.1", None);
    ground.add("default/web", "192.0.2.1", None);
    ground.add("default/web", "2001:db8::5", None);
    ground.add("default/web", "db.example.org", None);
    let answer = ground.udp("web.service.herdlet", SRV);
    let v6 = "20010db8000000000000000000000005.addr.herdlet";
    let expected = [
        "1 1 8001 c0000201.addr.herdlet".to_owned(),
        "1 1 8002 c0000201.addr.herdlet".to_owned(),
        format!("1 1 8003 {v6}"),
        "1 1 8004 db.example.org".to_owned(),
    ];
    assert_eq!(answer.data(), expected);
    let beside: BTreeSet<_> = answer.additional.into_iter().collect();
    let first = ("c0000201.addr.herdlet".to_owned(), "192.0.2.1".to_owned());
    assert_eq!(beside, BTreeSet::from([first, (v6.to_owned(), "2001:db8::5".to_owned())]));
    assert_eq!(ground.udp("c0000201.ADDR.herdlet", A).data(), ["192.0.2.1"]);
    assert_eq!(ground.udp(&v6.to_uppercase(), AAAA).data(), ["2001:db8::5"]);
    assert!(ground.udp("c0000201.addr.herdlet", SRV).is_nothing(Rcode::NOERROR));
    for label in ["c000020", "+0000201", "c000020g", "c0000201.x"] {
        assert!(ground.udp(&format!("{label}.addr.herdlet"), A).is_nothing(Rcode::NXDOMAIN), "{label}");
    }
    assert_eq!(ground.udp("web.service.herdlet", A).data(), ["192.0.2.1"], "instances may share an address");
    assert_eq!(ground.udp("web.service.herdlet", ANY).answer.len(), 6);
}

#[test]
fn missing_name_is_nxdomain_and_other_zones_are_refused() {
    let mut ground = ZoneFixture::new();
    ground.add("default/web", "192.0.2.1", None);
    ground.add("default/ill", "192.0.2.2", Some(CheckStatus::Failure));
    ground.add("prod/db", "192.0.2.3", None);
    for name in [
        "nope.service.herdlet",
        "web.nope.service.herdlet",
        "x.herdlet",
        "a.b.c.d.service.herdlet",
        "x.addr.herdlet",
    ] {
        assert!(ground.udp(name, A).is_nothing(Rcode::NXDOMAIN), "{name}");
    }
    // Also names with other names below them, and a service without a listed instance.
    for name in ["herdlet", "service.herdlet", "addr.herdlet", "prod.service.herdlet", "ill.service.herdlet"]
    {
        assert!(ground.udp(name, A).is_nothing(Rcode::NOERROR), "{name}");
    }
    for kind in [AAAA, 15, 65, 65_280] {
        assert!(ground.udp("web.service.herdlet", kind).is_nothing(Rcode::NOERROR), "{kind}");
    }
    assert_eq!(ground.udp("herdlet", SOA).answer.len(), 1);
    for name in ["", "example.org", "herdlet.example.org", "xherdlet"] {
        let answer = ground.udp(name, A);
        assert_eq!((answer.rcode, answer.flags[0]), (Rcode::REFUSED, false), "{name}");
        assert!(answer.authority.is_empty());
    }
    for kind in [251, 252] {
        assert_eq!(ground.udp("herdlet", kind).rcode, Rcode::REFUSED, "transfers");
    }
    let mut chaos = query("web.service.herdlet", A);
    *chaos.last_mut().unwrap() = 3;
    assert_eq!(ground.ask(&chaos, Over::Loopback).rcode, Rcode::REFUSED);
}

#[test]
fn queries_before_restoration_fail() {
    let (opener, restored) = Gate::closed();
    let zone = Zone { model: Arc::default(), catalog: Arc::default(), restored };
    let rcode = || {
        ParsedAnswer::read(&answer(&query("web.service.herdlet", A), Over::Loopback, &zone).unwrap()).rcode
    };
    assert_eq!(rcode(), Rcode::SERVFAIL);
    opener.open();
    assert_eq!(rcode(), Rcode::NXDOMAIN);
}

#[test]
fn large_answer_is_truncated_and_complete_over_tcp() {
    let mut ground = ZoneFixture::new();
    (1..=200).for_each(|at| ground.add("default/web", &format!("192.0.2.{at}"), None));
    let plain = query("web.service.herdlet", A);
    for (query, most) in [
        (plain.clone(), 512),
        (with_opt(plain.clone(), 0, 100), 512),
        (with_opt(plain.clone(), 0, 800), 800),
        (with_opt(plain.clone(), 0, 65_535), 1_232),
    ] {
        let answer = ground.ask(&query, Over::Loopback);
        assert!(
            answer.is_truncated() && answer.len <= most && answer.len > most - 40,
            "{} of {most}",
            answer.len
        );
        assert_eq!(answer.opt, (query.len() > plain.len()).then_some((1_232, 0)));
    }
    let answer = ground.ask(&plain, Over::Tcp);
    assert!(!answer.is_truncated());
    assert_eq!(answer.answer.len(), 200);
    // Additional records that don't fit are left out, and the answer is not marked as truncated.
    let mut few = ZoneFixture::new();
    (1..=8).for_each(|at| few.add("default/web", &format!("192.0.2.{at}"), None));
    let answer = few.udp("web.service.herdlet", SRV);
    assert_eq!((answer.answer.len(), answer.is_truncated()), (8, false));
    assert!(answer.additional.len() < 8 && answer.len <= 512);
    let firsts: BTreeSet<String> =
        (0..64).map(|_| ground.ask(&plain, Over::Tcp).answer.remove(0).1).collect();
    assert!(firsts.len() > 8, "the first instance changes");
}

#[test]
fn invalid_query_is_refused_or_ignored() {
    let mut ground = ZoneFixture::new();
    ground.add("default/web", "192.0.2.1", None);
    let good = query("web.service.herdlet", A);
    for len in 0..12 {
        assert_eq!(answer(&good[..len], Over::Loopback, &ground.zone), None);
    }
    let changed = |at: usize, value: u8| {
        let mut query = good.clone();
        query[at] = value;
        query
    };
    assert_eq!(answer(&changed(2, 0x81), Over::Loopback, &ground.zone), None, "an answer");
    let rcode = |query: &[u8]| ground.ask(query, Over::Loopback).rcode;
    for len in 12..good.len() {
        assert_eq!(rcode(&good[..len]), Rcode::FORMERR, "{len}");
    }
    assert_eq!(rcode(&changed(2, 0x11)), Rcode::NOTIMP, "another opcode");
    assert_eq!(rcode(&changed(5, 0)), Rcode::FORMERR, "no question");
    assert_eq!(rcode(&changed(5, 2)), Rcode::FORMERR, "two questions announced, one sent");
    assert_eq!(rcode(&changed(3, 0x70)), Rcode::NOERROR, "unknown bits");
    assert_eq!(rcode(&changed(12, 0xc0)), Rcode::FORMERR, "a name that points to itself");
    let answer = ground.ask(&with_opt(good.clone(), 1, 512), Over::Loopback);
    assert_eq!((answer.opt, answer.answer.len()), (Some((1_232, 16)), 0), "BADVERS");
}

async fn exchanged(stream: &mut TcpStream, query: &[u8]) -> ParsedAnswer {
    let length = u16::try_from(query.len()).unwrap();
    stream.write_all(&[&length.to_be_bytes()[..], query].concat()).await.unwrap();
    let mut answer = vec![0; usize::from(stream.read_u16().await.unwrap())];
    stream.read_exact(&mut answer).await.unwrap();
    ParsedAnswer::read(&answer)
}

/// A test waits this long for something before it fails.
const PATIENCE: Duration = Duration::from_secs(180);

/// Whether the other side has closed the connection.
async fn is_over(stream: &mut TcpStream) -> bool {
    let end = tokio::time::timeout(PATIENCE, stream.read(&mut [0; 1])).await;
    matches!(end, Ok(Ok(0) | Err(_)))
}

/// A query with a forged source address caused an answer 19 times its size to be sent to that address.
#[test]
fn remote_answer_is_limited_to_the_size_of_its_query() {
    let mut ground = ZoneFixture::new();
    for number in 0..64 {
        ground.add("default/web", &format!("192.0.2.{number}"), None);
    }
    ground.add("default/one", "192.0.2.200", None);
    let room = |query: Vec<u8>| {
        let answer = answer(&query, Over::Udp, &ground.zone).unwrap();
        let parsed = ParsedAnswer::read(&answer);
        assert!(answer.len() <= 3 * query.len(), "{} for {}", answer.len(), query.len());
        parsed
    };
    for kind in [A, AAAA, SRV, ANY, SOA] {
        for name in
            ["web.service.herdlet", "none.service.herdlet", "herdlet", "example.org", "c0000201.addr.herdlet"]
        {
            room(query(name, kind));
            room(with_opt(query(name, kind), 0, 4_096));
        }
    }
    // A truncated answer is marked so. TCP, and UDP from this machine, return it whole.
    let many = with_opt(query("web.service.herdlet", A), 0, 4_096);
    let parsed = room(many.clone());
    assert!(parsed.is_truncated() && !parsed.answer.is_empty(), "the answer contains as much as fits");
    assert_eq!(ground.ask(&many, Over::Tcp).answer.len(), 64);
    assert!(ground.ask(&many, Over::Loopback).answer.len() > parsed.answer.len());
    let parsed = room(query("one.service.herdlet", A));
    assert_eq!(
        (parsed.is_truncated(), parsed.data()),
        (false, vec!["192.0.2.200"]),
        "a small answer is complete"
    );
}

#[tokio::test]
async fn one_peer_cannot_take_all_connections() {
    let ground = ZoneFixture::new();
    let sockets = Sockets::open("127.0.0.1:0").await.unwrap();
    let address = sockets.address().unwrap();
    let limits = Limits { connections_max: 8, per_peer_max: 2, ..Limits::default() };
    let closing = CancellationToken::new();
    let server = tokio::spawn(serve(sockets, Arc::clone(&ground.zone), limits, closing.clone()));
    let query = query("web.service.herdlet", A);
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        exchanged(&mut stream, &query).await;
        held.push(stream);
    }
    assert!(
        is_over(&mut TcpStream::connect(address).await.unwrap()).await,
        "the address already has its share"
    );
    let other = tokio::net::TcpSocket::new_v4().unwrap();
    other.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    exchanged(&mut other.connect(address).await.unwrap(), &query).await;
    closing.cancel();
    server.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn address_in_use_is_reported_after_a_wait() {
    // Other tests may take a port once it is free.
    for _ in 0..20 {
        let datagrams = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = datagrams.local_addr().unwrap();
        let began = tokio::time::Instant::now();
        let taken = Sockets::open(&address.to_string()).await.unwrap_err();
        assert_eq!(taken.to_string(), format!("listen on {address} for DNS"));
        assert_eq!(began.elapsed(), Duration::from_secs(2));
        drop(datagrams);
        if Sockets::open(&address.to_string()).await.is_ok() {
            return;
        }
    }
    panic!("no port was free after its socket was closed");
}

/// A server with these limits: its address, its task and the token that stops it.
async fn serving(limits: Limits) -> (SocketAddr, tokio::task::JoinHandle<()>, CancellationToken) {
    let mut ground = ZoneFixture::new();
    ground.add("default/web", "192.0.2.1", None);
    let sockets = Sockets::open("127.0.0.1:0").await.unwrap();
    let (address, closing) = (sockets.address().unwrap(), CancellationToken::new());
    (address, tokio::spawn(serve(sockets, Arc::clone(&ground.zone), limits, closing.clone())), closing)
}

/// Longer than any test runs.
const LONG: Duration = Duration::from_secs(3_600);

#[tokio::test]
async fn connections_are_bounded() {
    let limits = Limits { connections_max: 2, per_peer_max: 0, idle_max: LONG, connection_max: LONG };
    let (address, server, closing) = serving(limits).await;
    let query = query("web.service.herdlet", A);
    let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    udp.send_to(b"?", address).await.unwrap();
    udp.send_to(&query, address).await.unwrap();
    let mut buffer = [0; 512];
    let (length, from) = udp.recv_from(&mut buffer).await.unwrap();
    assert_eq!((from, ParsedAnswer::read(&buffer[..length]).data()), (address, vec!["192.0.2.1"]));

    let mut first = TcpStream::connect(address).await.unwrap();
    for _ in 0..3 {
        assert_eq!(exchanged(&mut first, &query).await.data(), ["192.0.2.1"]);
    }
    let mut second = TcpStream::connect(address).await.unwrap();
    assert_eq!(exchanged(&mut second, &query).await.answer.len(), 1);
    let mut third = TcpStream::connect(address).await.unwrap();
    assert!(is_over(&mut third).await, "there are two already");
    closing.cancel();
    tokio::time::timeout(PATIENCE, server).await.unwrap().unwrap();
}

#[tokio::test]
async fn idle_invalid_or_old_connections_are_closed() {
    let idle = Limits {
        connections_max: 2,
        per_peer_max: 0,
        idle_max: Duration::from_millis(400),
        connection_max: LONG,
    };
    let (address, ..) = serving(idle).await;
    let mut silent = TcpStream::connect(address).await.unwrap();
    assert!(is_over(&mut silent).await, "no query within the time limit");
    // Clients that send byte by byte, too much, or garbage.
    for bytes in [&[0, 40, 1][..], &[0xff, 0xff], &[0, 1, 1]] {
        let mut bad = TcpStream::connect(address).await.unwrap();
        bad.write_all(bytes).await.unwrap();
        assert!(is_over(&mut bad).await, "{bytes:?}");
    }
    let short = Limits {
        connections_max: 2,
        per_peer_max: 0,
        idle_max: LONG,
        connection_max: Duration::from_secs(1),
    };
    let (address, ..) = serving(short).await;
    let mut last = TcpStream::connect(address).await.unwrap();
    let query = query("web.service.herdlet", A);
    let question = [&u16::try_from(query.len()).unwrap().to_be_bytes()[..], &query].concat();
    let talks = async {
        let mut answer = [0; 512];
        while last.write_all(&question).await.is_ok()
            && last.read(&mut answer).await.is_ok_and(|read| read > 0)
        {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, talks).await.expect("the end of the connection");
}
