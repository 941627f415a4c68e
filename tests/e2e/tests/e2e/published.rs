//! Published ports of services: which instances answer, over roll-outs, drains and crashes of the agent.

use std::{
    collections::BTreeSet,
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use herdlet_e2e::{
    agent::{Agent, Setup},
    host,
    http::{self, Peer},
    ports,
    program::example,
    wait,
};

use crate::common::{indented, is_root, job};

/// A server whose answers are its version and its allocation's index. It is sick while there is a file `sick`. A connection stays open,
/// and each line is answered.
const SERVER: &str = r#"
import os, socketserver
class Lines(socketserver.StreamRequestHandler):
    def handle(self):
        own = os.environ["VERSION"] + " " + os.environ["NOMAD_ALLOC_INDEX"]
        line = self.rfile.readline().decode()
        if not line.startswith("GET"):
            while line:
                self.wfile.write((own + "\n").encode())
                line = self.rfile.readline().decode()
            return
        while self.rfile.readline().strip():
            pass
        status = "500 Sick" if line.split()[1] == "/health" and os.path.exists("sick") else "200 OK"
        head = "HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(own))
        self.wfile.write((head + own).encode())
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 1024
Server((os.environ["BIND"], int(os.environ["NOMAD_PORT_http"])), Lines).serve_forever()
"#;

/// The network of the instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Bridge,
    Host,
}

/// A service with a published port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shop<'p> {
    pub(crate) name: &'p str,
    pub(crate) port: u16,
    pub(crate) count: u32,
    pub(crate) mode: Mode,
    /// The version of the job.
    pub(crate) version: u32,
    pub(crate) shutdown_delay: &'p str,
}

impl Shop<'_> {
    pub(crate) fn manifest(&self) -> String {
        let Self { name, port, count, mode, version, shutdown_delay } = self;
        let (network, bind) = match mode {
            Mode::Bridge => ("mode: bridge, ports: {http: {to: 8080}}", "0.0.0.0"),
            Mode::Host => ("ports: {http: {}}", "127.0.0.1"),
        };
        let group = format!(
            "count: {count}\nshutdown_delay: {shutdown_delay}\nupdate: {{max_parallel: 1, min_healthy_time: 1s, healthy_deadline: 5m, \
             progress_deadline: 10m}}\nnetwork: {{{network}}}\nservices:\n  - name: {name}\n    port: http\n    publish: {{port: {port}}}\n    \
             checks: [{{name: alive, type: http, path: /health, interval: 1s, timeout: 60s}}]\n"
        );
        let script = serde_json::to_string(SERVER).unwrap();
        let task = format!(
            "- name: server\n  driver: raw_exec\n  env: {{VERSION: \"{version}\", BIND: {bind}}}\n  config: {{command: python3, args: [-c, \
             {script}]}}\n  kill_timeout: 5s\n"
        );
        job(name, "service", &group, &[indented(&task, 8)])
    }
}

fn shop(port: u16, mode: Mode) -> Shop<'static> {
    Shop { name: "shop", port, count: 3, mode, version: 1, shutdown_delay: "1s" }
}

fn start() -> Agent {
    Agent::start_with(Setup::default().config(ports::for_tasks()))
}

fn ask(port: u16) -> Option<String> {
    Some(http::get(&Peer::Port(port), "/")?.body)
}

/// The answers to this many connections.
fn answers(port: u16, count: usize) -> BTreeSet<String> {
    (0..count).map(|_| ask(port).unwrap()).collect()
}

fn set(all: &[&str]) -> BTreeSet<String> {
    all.iter().map(|&one| one.to_owned()).collect()
}

/// Whether all of these connections are answered so. One of three targets is missed by 40 connections once in ten million runs.
fn until_answers(port: u16, wanted: &[&str]) {
    let wanted = set(wanted);
    wait::until_true("these answers", || {
        (0..40).map(|_| ask(port)).collect::<Option<BTreeSet<_>>>() == Some(wanted.clone())
    });
}

fn until_refused(port: u16) {
    wait::until_true("a refusal", || {
        TcpStream::connect(("127.0.0.1", port))
            .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    });
}

#[test]
fn connections_reach_healthy_instances_in_networks_of_their_own() {
    reach_healthy_instances(Mode::Bridge);
}

#[test]
fn connections_reach_healthy_instances_on_ports_of_the_machine() {
    reach_healthy_instances(Mode::Host);
}

fn reach_healthy_instances(mode: Mode) {
    if !is_root() {
        return;
    }
    let [port] = ports::free();
    let mut agent = start();
    agent.apply_and_wait(&shop(port, mode).manifest());
    until_answers(port, &["1 0", "1 1", "1 2"]);
    let shown = agent.cli(&["get", "services"]).success().stdout;
    assert_eq!(shown.matches(&format!("127.0.0.1:{port}")).count(), 3, "{shown}");
    let described = agent.cli(&["describe", "shop"]).success().stdout;
    assert!(described.contains(&format!("published port {port}: 127.0.0.1:{port} leads to ")), "{described}");
    let refused = (TcpListener::bind(("127.0.0.1", port)), UdpSocket::bind(("127.0.0.1", port)));
    assert!(refused.0.is_err() && refused.1.is_err(), "the agent holds the port");

    agent.kill();
    assert_eq!(answers(port, 40), set(&["1 0", "1 1", "1 2"]), "without an agent");
    agent.launch();
    assert_eq!(answers(port, 40), set(&["1 0", "1 1", "1 2"]), "while the next agent starts");
    agent.cli(&["wait", "shop"]).success();
    wait::until_true("the next agent holds the port", || TcpListener::bind(("127.0.0.1", port)).is_err());

    let sick = |agent: &Agent, index: u32, act: &str| {
        let arguments = ["exec", &format!("shop.g[{index}]"), "--", "sh", "-c", act].map(str::to_owned);
        agent.cli(&arguments.each_ref().map(String::as_str)).success();
    };
    sick(&agent, 1, "touch sick");
    until_answers(port, &["1 0", "1 2"]);
    sick(&agent, 0, "touch sick");
    sick(&agent, 2, "touch sick");
    until_refused(port);
    let explained = agent.cli(&["explain", "shop"]).success().stdout;
    assert!(explained.contains("no instance is healthy, connections are refused"), "{explained}");
    sick(&agent, 1, "rm sick");
    until_answers(port, &["1 1"]);

    agent.cli(&["delete", "shop", "--wait"]).success();
    until_refused(port);
    wait::until_true("the port is free", || TcpListener::bind(("0.0.0.0", port)).is_ok());
    let mark = std::path::Path::new("/run/herdlet").join(agent.home.instance().unwrap()).join("published");
    wait::until_true("nothing is published", || !mark.exists());
    agent.finish();
}

/// Sends requests by one connection each, at most a thousand a second, and counts those that fail.
struct Load {
    port: u16,
    ended: AtomicBool,
    answered: AtomicUsize,
    failed: Mutex<Vec<String>>,
}

impl Load {
    const THREADS: u32 = 8;
    const PERIOD: Duration = Duration::from_millis(8);

    fn new(port: u16) -> Self {
        Self { port, ended: AtomicBool::new(false), answered: AtomicUsize::new(0), failed: Mutex::default() }
    }

    fn send(&self) {
        let mut next = Instant::now();
        while !self.ended.load(Ordering::Relaxed) {
            match self.request() {
                Ok(()) => drop(self.answered.fetch_add(1, Ordering::Relaxed)),
                Err(error) => self.failed.lock().unwrap().push(error),
            }
            // A busy machine sends fewer, instead of making up for them.
            next = (next + Self::PERIOD).max(Instant::now());
            wait::pause(next.saturating_duration_since(Instant::now()));
        }
    }

    /// # Errors
    /// What failed, when, and from which port.
    fn request(&self) -> Result<(), String> {
        let began = SystemTime::now();
        let mut stream =
            TcpStream::connect(("127.0.0.1", self.port)).map_err(|error| format!("connect: {error}"))?;
        let own = stream.local_addr().unwrap().port();
        let failed = |what: &str, error: std::io::Error| {
            format!("{what} from port {own}: {error}; began at {began:?}, failed at {:?}", SystemTime::now())
        };
        stream.set_read_timeout(Some(wait::PATIENCE)).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: shop\r\n\r\n").map_err(|error| failed("write", error))?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(|error| failed("read", error))?;
        if answer.starts_with("HTTP/1.1 200") { Ok(()) } else { Err(answer) }
    }
}

#[test]
fn roll_out_in_networks_of_their_own_loses_no_connection() {
    roll_out_under_load(Mode::Bridge);
}

#[test]
fn roll_out_on_ports_of_the_machine_loses_no_connection() {
    roll_out_under_load(Mode::Host);
}

fn roll_out_under_load(mode: Mode) {
    if !is_root() {
        return;
    }
    let [port] = ports::free();
    let mut agent = start();
    let shop = shop(port, mode);
    agent.apply_and_wait(&shop.manifest());
    until_answers(port, &["1 0", "1 1", "1 2"]);
    let load = Load::new(port);
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..Load::THREADS {
            scope.spawn(|| load.send());
        }
        agent.apply_and_wait(&Shop { version: 2, ..shop }.manifest());
        // Also the restart of an allocation, and a crash of the agent.
        agent.cli(&["restart", "shop.g[1]", "--wait"]).success();
        agent.crash();
        agent.cli(&["wait", "shop"]).success();
        load.ended.store(true, Ordering::Relaxed);
    });
    let answered = load.answered.load(Ordering::Relaxed);
    let rate = answered as f64 / began.elapsed().as_secs_f64();
    println!("{answered} requests were answered, {rate:.0} a second");
    assert_eq!(*load.failed.lock().unwrap(), Vec::<String>::new());
    assert!(answered > 0);
    until_answers(port, &["2 0", "2 1", "2 2"]);
    agent.cli(&["delete", "shop", "--wait"]).success();
    agent.finish();
}

/// A connection whose lines are answered, to the instance with this answer.
fn connected_to(port: u16, wanted: &str) -> TcpStream {
    wait::until("a connection to this instance", || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(wait::PATIENCE)).ok()?;
        (line(&mut stream)? == wanted).then_some(stream)
    })
}

fn line(stream: &mut TcpStream) -> Option<String> {
    stream.write_all(b"?\n").ok()?;
    let mut answer = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte).ok()? == 1 && byte != *b"\n" {
        answer.push(byte[0]);
    }
    String::from_utf8(answer).ok()
}

#[test]
fn open_connections_outlive_the_end_of_new_ones() {
    if !is_root() {
        return;
    }
    let [port] = ports::free();
    let mut agent = start();
    // It ends early below.
    let shop = Shop { count: 2, shutdown_delay: "30m", ..shop(port, Mode::Bridge) };
    agent.apply_and_wait(&shop.manifest());
    until_answers(port, &["1 0", "1 1"]);
    let mut open = connected_to(port, "1 1");
    agent.cli(&["scale", "shop", "1"]).success();
    until_answers(port, &["1 0"]);
    assert_eq!(line(&mut open).as_deref(), Some("1 1"));
    agent.crash();
    assert_eq!(line(&mut open).as_deref(), Some("1 1"), "after a crash of the agent");
    assert_eq!(answers(port, 20), set(&["1 0"]));
    agent.cli(&["delete", "shop", "--no-shutdown-delay"]).success();
    until_refused(port);
    agent.finish();
}

#[test]
fn the_example_answers_on_its_port() {
    if !is_root() {
        return;
    }
    let [port] = ports::free();
    let mut agent = start();
    let manifest = fs::read_to_string(example("published")).unwrap().replace("8088", &port.to_string());
    agent.apply_and_wait(&manifest);
    wait::until_true("it answers", || http::poll_task(port, "/").is_some_and(|answer| answer.status == 200));
    agent.cli(&["delete", "published", "--wait"]).success();
    agent.finish();
}

#[test]
fn port_of_a_stranger_is_named_and_waited_for() {
    if !is_root() {
        return;
    }
    let [port] = ports::free();
    let stranger = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let mut agent = start();
    agent.apply(&Shop { count: 1, ..shop(port, Mode::Bridge) }.manifest());
    let why = format!("failed to take port {port}/tcp: ");
    let explained = agent.until_printed(&["explain", "shop"], |text| text.contains(&why));
    assert!(explained.contains(&format!("(process {}) has it", std::process::id())), "{explained}");
    drop(stranger);
    until_answers(port, &["1 0"]);
    let explained = agent.cli(&["explain", "shop"]).success().stdout;
    assert!(!explained.contains(&why), "{explained}");
    agent.cli(&["delete", "shop", "--wait"]).success();
    agent.finish();
}

#[test]
fn a_port_is_published_by_one_job() {
    if !is_root() {
        return;
    }
    let [port] = ports::free();
    let mut agent = start();
    let shop = Shop { count: 1, ..shop(port, Mode::Host) };
    agent.apply_and_wait(&shop.manifest());
    let other = Shop { name: "other", version: 2, ..shop };
    agent.apply(&other.manifest());
    let why = format!("needs port {port}, which shop.g[0] holds");
    agent.until_printed(&["explain", "other"], |text| text.contains(&why));
    let fixed = format!("network: {{ports: {{http: {{static: {port}}}}}}}\n");
    agent.apply(&job("fixed", "service", &fixed, &[crate::common::sleeper("t", "")]));
    agent.until_printed(&["explain", "fixed"], |text| text.contains(&why));
    agent.cli(&["delete", "fixed", "--wait"]).success();
    until_answers(port, &["1 0"]);
    agent.cli(&["delete", "shop", "--wait"]).success();
    until_answers(port, &["2 0"]);
    agent.cli(&["delete", "other", "--wait"]).success();
    agent.finish();
}

/// At no point of a roll-out a crash leaves a target that is gone.
#[test]
fn crashes_between_changes_leave_no_target_that_is_gone() {
    if !is_root() {
        return;
    }
    let [port] = ports::free();
    let mut agent = start();
    let mut shop = Shop { count: 2, shutdown_delay: "0s", ..shop(port, Mode::Bridge) };
    agent.apply_and_wait(&shop.manifest());
    for version in 2..5 {
        shop.version = version;
        agent.apply(&shop.manifest());
        for _ in 0..3 {
            wait::pause(Duration::from_millis(150 * u64::from(version)));
            agent.crash();
        }
        agent.cli(&["wait", "shop"]).success();
        until_answers(port, &[&format!("{version} 0"), &format!("{version} 1")]);
    }
    // An instance ends while no agent runs.
    agent.kill();
    let pid = agent.members().iter().find(|member| member.task == "server").map(|member| member.pid).unwrap();
    host::signal(pid, rustix::process::Signal::KILL);
    agent.launch();
    until_answers(port, &["4 0", "4 1"]);
    agent.cli(&["delete", "shop", "--wait"]).success();
    until_refused(port);
    agent.finish();
}

#[test]
fn an_agent_without_privileges_refuses_to_publish() {
    if !is_root() {
        return;
    }
    let [port] = ports::free();
    let agent = Agent::start_with(Setup::nobody().config(ports::for_tasks()));
    let manifest = agent.home.write("shop.yaml", &shop(port, Mode::Host).manifest());
    let refused = agent.cli(&["apply", "-f", &manifest.display().to_string()]);
    assert_ne!(refused.code, 0);
    let why = "can't publish ports of services: run it as root";
    assert!(refused.stderr.contains(why), "{}", refused.stderr);
    assert!(agent.allocs().is_empty());
    agent.finish();
}
