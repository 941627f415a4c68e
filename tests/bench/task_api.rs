//! Costs of the Task API: requests with a cached token through the sockets of tasks. The clients run in this process, so
//! they take time from the agent.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    os::unix::{fs::symlink, net::UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use herdlet_e2e::wait;
use serde_json::json;
use tempfile::TempDir;

use super::{
    ground::BenchDirs,
    job::Bench,
    table::{Table, quantile},
};

/// Requests for the latency of one client.
const SINGLES: usize = 5_000;
/// Duration of each other measurement.
const SPAN: Duration = Duration::from_secs(5);
/// Clients of one socket for the throughput.
const CLIENTS: usize = 16;
/// Clients that flood a socket: more than it has connections.
const FLOODERS: usize = 64;
/// Pause between two requests of the client beside a flood, which is no flood itself.
const BETWEEN: Duration = Duration::from_millis(2);
/// Longest answer that a client reads.
const ANSWER_MAX: usize = 16 << 10;

const HEALTH: &str = "/v1/agent/health";
const VARIABLE: &str = "/v1/var/nomad/jobs/quiet";

/// The socket of a task and its token.
struct Socket {
    path: PathBuf,
    token: String,
    /// The path of `secrets` is too long for a socket.
    _link: TempDir,
}

impl Socket {
    fn of(bench: &Bench, job: &str) -> Self {
        let alloc =
            bench.agent.until_alloc(&format!("{job}.g[0]"), "runs", |alloc| alloc.state("t") == "running");
        let secrets = bench.allocs().join(alloc.id()).join("t/secrets");
        let token = fs::read_to_string(secrets.join("nomad_token")).expect("a token").trim().to_owned();
        let link = tempfile::tempdir().expect("a directory");
        symlink(secrets, link.path().join("s")).expect("a link");
        Self { path: link.path().join("s/api.sock"), token, _link: link }
    }
}

/// A connection that stays open between requests.
struct Client {
    stream: UnixStream,
    request: Vec<u8>,
    buffer: Vec<u8>,
}

impl Client {
    fn connect(socket: &Path, path: &str, token: &str) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(wait::PATIENCE))?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: x\r\nX-Nomad-Token: {token}\r\n\r\n").into_bytes();
        Ok(Self { stream, request, buffer: vec![0; ANSWER_MAX] })
    }

    /// Sends the request, and returns the code of the answer.
    fn ask(&mut self) -> io::Result<u16> {
        self.stream.write_all(&self.request)?;
        let mut length = 0;
        loop {
            let read = self.stream.read(&mut self.buffer[length..])?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            length += read;
            if let Some(code) = complete(&self.buffer[..length]) {
                return Ok(code);
            }
        }
    }
}

/// The code of an answer that has arrived with its body.
fn complete(answer: &[u8]) -> Option<u16> {
    let head_length = answer.windows(4).position(|end| end == b"\r\n\r\n")?;
    let head = str::from_utf8(&answer[..head_length]).ok()?;
    let is_length = |name: &str| name.eq_ignore_ascii_case("content-length");
    let mut fields = head.lines().filter_map(|line| line.split_once(": "));
    let length = fields.find(|(name, _)| is_length(name)).map_or("0", |(_, length)| length);
    let is_whole = answer.len() >= head_length + 4 + length.parse::<usize>().ok()?;
    is_whole.then(|| head.get(9..12)?.parse().ok()).flatten()
}

/// One client, many clients, and a client beside a flooded socket.
pub(super) fn cached_token(table: &mut Table, ground: &BenchDirs) {
    let bench = Bench::new(ground);
    bench.apply(&format!("{}---\n{}", manifest("quiet"), manifest("loud")));
    bench.call("PUT", VARIABLE, &json!({ "Items": { "password": "correct horse" } }).to_string());
    let (quiet, loud) = (Socket::of(&bench, "quiet"), Socket::of(&bench, "loud"));
    wait::pause(Duration::from_secs(2));
    for (what, path) in [("agent/health", HEALTH), ("a variable", VARIABLE)] {
        let taken = latencies(&quiet, path, Until::Count(SINGLES));
        table.row(
            &format!("Task API, cached token, {what}: one client, median / p99"),
            format_args!("{:.0} / {:.0} µs", quantile(&taken, 0.5), quantile(&taken, 0.99)),
            "≤ 300 µs",
            "",
        );
        table.row(
            &format!("Task API, cached token, {what}: {CLIENTS} clients"),
            format_args!("{:.0} per second", throughput(&quiet, path)),
            if path == HEALTH { "≥ 10,000 per second" } else { "–" },
            "",
        );
    }
    for (what, path, token) in [
        ("valid requests", HEALTH, loud.token.as_str()),
        ("reads of a variable of others", VARIABLE, loud.token.as_str()),
        ("unknown tokens", HEALTH, "00000000-0000-0000-0000-000000000000"),
    ] {
        let flood = Flood::start(&loud, (path, token));
        let taken = latencies(&quiet, HEALTH, Until::Elapsed(SPAN));
        let rate = flood.end();
        table.row(
            &format!("Task API beside another socket with {FLOODERS} clients that flood it with {what}: median / p99"),
            format_args!("{:.1} / {:.1} ms", quantile(&taken, 0.5) / 1e3, quantile(&taken, 0.99) / 1e3),
            "p99 ≤ 5 ms",
            format_args!("{rate:.0} requests per second flood it"),
        );
    }
    bench.agent.finish();
}

fn manifest(name: &str) -> String {
    format!(
        "apiVersion: herdlet/v1
kind: Job
metadata: {{name: {name}}}
spec:
  groups:
    - name: g
      tasks:
        - name: t
          driver: raw_exec
          config: {{command: sleep, args: [\"100000\"]}}
          identities: [{{file: true}}]
"
    )
}

enum Until {
    Count(usize),
    /// With a pause between requests.
    Elapsed(Duration),
}

/// The time of each request in microseconds, sorted.
fn latencies(socket: &Socket, path: &str, until: Until) -> Vec<f64> {
    let mut client = Client::connect(&socket.path, path, &socket.token).expect("a connection");
    let began = Instant::now();
    let mut taken = Vec::new();
    loop {
        match until {
            Until::Count(count) if taken.len() >= count => break,
            Until::Elapsed(span) if began.elapsed() >= span => break,
            Until::Count(_) => {}
            Until::Elapsed(_) => wait::pause(BETWEEN),
        }
        let sent = Instant::now();
        assert_eq!(client.ask().expect("an answer"), 200);
        taken.push(sent.elapsed().as_secs_f64() * 1e6);
    }
    taken.sort_by(f64::total_cmp);
    taken
}

/// Requests per second of many clients.
fn throughput(socket: &Socket, path: &str) -> f64 {
    let (began, count) = (Instant::now(), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = Client::connect(&socket.path, path, &socket.token).expect("a connection");
                while began.elapsed() < SPAN {
                    assert_eq!(client.ask().expect("an answer"), 200);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    count.into_inner() as f64 / began.elapsed().as_secs_f64()
}

/// Clients that send requests without pause.
struct Flood {
    began: Instant,
    ended: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
}

impl Flood {
    fn start(socket: &Socket, (path, token): (&'static str, &str)) -> Self {
        let flood = Self { began: Instant::now(), ended: Arc::default(), count: Arc::default() };
        for _ in 0..FLOODERS {
            let (ended, count) = (Arc::clone(&flood.ended), Arc::clone(&flood.count));
            let (socket, token) = (socket.path.clone(), token.to_owned());
            thread::spawn(move || {
                // Connections beyond the socket's limit wait until others end.
                while !ended.load(Ordering::Relaxed) {
                    let Ok(mut client) = Client::connect(&socket, path, &token) else { continue };
                    while !ended.load(Ordering::Relaxed) && client.ask().is_ok() {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        // Until all have connected.
        wait::pause(Duration::from_secs(1));
        flood
    }

    /// Ends it, and returns the requests per second.
    fn end(self) -> f64 {
        self.ended.store(true, Ordering::Relaxed);
        self.count.load(Ordering::Relaxed) as f64 / self.began.elapsed().as_secs_f64()
    }
}
