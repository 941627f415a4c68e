//! Servers, an agent of ours that is their node, and the stock command line.
//!
//! In: the number of servers, and whether they require certificates and tokens. Out: a node that is ready.
//! Each story's jobs are removed before the next one, and nothing remains at the end.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use rustix::{mount::UnmountFlags, process::Signal};
use serde_json::Value;

use super::{
    program::Program,
    stock::{self, Stock, addresses},
};
use crate::{
    agent::{Agent, Setup},
    command::{self, Output, Running, User},
    home::Home,
    host,
    http::{self, Peer},
    ports, wait,
};

/// Maximum duration of a command: some wait for the effect of a request.
const COMMAND_MAX: Duration = Duration::from_secs(60);

/// The agent's name, unless the story sets another.
pub const NAME: &str = "herd-1";

/// The API that a command talks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiSide {
    Server,
    /// The node's own API.
    Node,
}

/// The environment of a story.
#[derive(Debug)]
pub struct StockCluster {
    /// The program under test.
    pub program: Program,
    /// The servers' node.
    pub agent: Agent,
    /// Stories stop, start and kill them; commands talk to the first that runs.
    pub servers: Vec<Stock>,
    /// A stock client.
    pub client: Option<Stock>,
    /// The node id of the agent.
    pub node: String,
    /// Time from the agent's start until the servers report it as ready.
    pub ready_in: Duration,
    /// The HTTP ports of the servers, in order.
    pub server_ports: Vec<u16>,
    /// The RPC addresses of the servers in the agent's config.
    pub rpc: Vec<String>,
    /// The port of the node's own API.
    pub node_port: u16,
    /// A management token, if tokens are required.
    pub token: Option<String>,
    /// Whether certificates are required.
    pub guarded: bool,
    jobs: BTreeSet<String>,
    written: u32,
}

impl StockCluster {
    /// Returns one server without ACLs, and an agent with a config of herdlet's own.
    pub fn plain(program: &Program) -> Self {
        let mut ground = Self::servers(program, 1, |_| String::new());
        ground.until("there is a leader", || ground.get("/v1/status/leader").filter(|leader| leader != ""));
        let config = format!(
            "servers: [\"{}\"]\ncluster: {{http_addr: 127.0.0.1, http_port: {}, advertise_http: 127.0.0.1, network_interface: lo}}\nraw_exec: {{enabled: true}}\n",
            ground.rpc.join("\", \""),
            ground.node_port
        );
        ground.join("config.yaml", &config);
        ground
    }

    /// Returns servers, and an agent that is not started yet. The result of `more`, called with the common
    /// directory, is added to the servers' files.
    pub fn servers(program: &Program, count: usize, more: impl FnOnce(&Path) -> String) -> Self {
        let agent = Agent::prepare(Setup::default());
        let more = more(agent.home.path());
        let ports: Vec<[u16; 3]> = (0..count).map(|_| ports::free()).collect();
        let peers: Vec<String> = ports.iter().map(|[_, _, serf]| format!("\"127.0.0.1:{serf}\"")).collect();
        let start = |(index, ports): (usize, &[u16; 3])| {
            let text = format!(
                "{}log_level = \"INFO\"\nserver {{\n  enabled = true\n  bootstrap_expect = {count}\n  \
                 heartbeat_grace = \"3s\"\n  min_heartbeat_ttl = \"5s\"\n  \
                 server_join {{\n    retry_join = [{}]\n    retry_interval = \"1s\"\n  }}\n}}\n{more}",
                addresses(*ports),
                peers.join(", ")
            );
            Stock::start(&agent.home, program, &format!("server-{}", index + 1), &text)
        };
        let servers = ports.iter().enumerate().map(start).collect();
        let [node_port] = ports::free();
        Self {
            program: program.clone(),
            agent,
            servers,
            client: None,
            node: String::new(),
            ready_in: Duration::ZERO,
            server_ports: ports.iter().map(|[http, _, _]| *http).collect(),
            rpc: ports.iter().map(|[_, rpc, _]| format!("127.0.0.1:{rpc}")).collect(),
            node_port,
            token: None,
            guarded: false,
            jobs: BTreeSet::new(),
            written: 0,
        }
    }

    /// Starts the agent with this config, and waits until the servers report it as ready.
    pub fn join(&mut self, file: &str, config: &str) {
        let path = self.agent.home.write(file, config);
        self.agent.set_arguments(vec!["--config".to_owned(), path.display().to_string()]);
        let began = Instant::now();
        self.agent.launch();
        self.node = self.until("the agent's node is ready", || {
            let nodes = self.json(&["node", "status", "-json"]);
            let is_ours = |node: &&Value| is(node, "Status", "ready") && !is(node, "Name", stock::CLIENT);
            nodes.as_array()?.iter().find(is_ours).map(|node| text(node, "ID"))
        });
        self.ready_in = began.elapsed();
    }

    /// Returns a command of the stock command line.
    pub fn command(&self, door: ApiSide, token: Option<&str>, arguments: &[&str]) -> Command {
        let mut command = command::prepare(self.home(), User::Same, &self.program.path, arguments);
        let port = match door {
            ApiSide::Server => self.server_port(),
            ApiSide::Node => self.node_port,
        };
        if self.guarded {
            command.env("NOMAD_ADDR", format!("https://localhost:{port}"));
            let file = |name: &str| self.home().path().join(name).display().to_string();
            command.env("NOMAD_CACERT", file("authority.pem"));
            command.env("NOMAD_CLIENT_CERT", file("client.pem"));
            command.env("NOMAD_CLIENT_KEY", file("client-key.pem"));
        } else {
            command.env("NOMAD_ADDR", format!("http://127.0.0.1:{port}"));
        }
        if let Some(token) = token {
            command.env("NOMAD_TOKEN", token);
        }
        command
    }

    /// Runs a command with a management token.
    pub fn at(&self, door: ApiSide, arguments: &[&str]) -> Output {
        Running::start(self.command(door, self.token.as_deref(), arguments)).finish_within(COMMAND_MAX)
    }

    /// Runs a command with the given token, or none.
    pub fn with(&self, door: ApiSide, token: Option<&str>, arguments: &[&str]) -> Output {
        Running::start(self.command(door, token, arguments)).finish_within(COMMAND_MAX)
    }

    /// Runs a command against a server, and returns its standard output.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.at(ApiSide::Server, arguments);
        assert!(
            output.code == 0,
            "`nomad {}` ended with {}:\n{}{}",
            arguments.join(" "),
            output.code,
            output.stdout,
            output.stderr
        );
        output.stdout
    }

    /// Returns the output of a command as JSON; null if it isn't JSON.
    pub fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.at(ApiSide::Server, arguments).stdout).unwrap_or_default()
    }

    /// Returns a response of a server without ACLs.
    pub fn get(&self, path: &str) -> Option<Value> {
        let answer = http::get(&Peer::Port(self.server_port()), path)?;
        serde_json::from_str(&answer.body).ok()
    }

    /// Writes a job and runs it.
    ///
    /// # Panics
    /// If it is refused.
    #[track_caller]
    pub fn run(&mut self, name: &str, job: &str) {
        let file = self.job_file(name, job);
        self.ok(&["job", "run", "-detach", &file]);
    }

    /// Writes a job that is stopped after the story, and returns its path.
    pub fn job_file(&mut self, name: &str, job: &str) -> String {
        self.jobs.insert(name.to_owned());
        self.write("nomad", job)
    }

    /// Writes a file and returns its path.
    pub fn write(&mut self, kind: &str, text: &str) -> String {
        self.written += 1;
        self.home().write(&format!("{}.{kind}", self.written), text).display().to_string()
    }

    /// Returns the common directory.
    pub fn home(&self) -> &Home {
        &self.agent.home
    }

    /// Polls `probe`, at a longer interval than [`wait::until`].
    #[track_caller]
    pub fn until<T>(&self, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
        self.until_seen(what, |_| probe())
    }

    /// Polls `probe`, and reports its last observation on failure.
    ///
    /// # Panics
    /// If it takes too long.
    #[track_caller]
    pub fn until_seen<T>(&self, what: &str, mut probe: impl FnMut(&mut String) -> Option<T>) -> T {
        let deadline = Instant::now() + 2 * wait::PATIENCE;
        let mut seen = String::new();
        loop {
            if let Some(answer) = probe(&mut seen) {
                return answer;
            }
            assert!(Instant::now() < deadline, "expected that {what}; found {seen}");
            wait::pause(Duration::from_millis(150));
        }
    }

    /// Polls `probe` until it returns true.
    #[track_caller]
    pub fn until_true(&self, what: &str, mut probe: impl FnMut() -> bool) {
        self.until(what, || probe().then_some(()));
    }

    /// Returns the servers' status of a node.
    pub fn node_is(&self, id: &str) -> String {
        text(&self.json(&["node", "status", "-json", id]), "Status")
    }

    /// Checks that the servers' jobs are valid job files here: what `nomad job inspect` prints has no problem and no warning.
    pub fn validate_jobs(&self) {
        // One story runs a job that is refused here.
        for job in self.jobs.iter().filter(|job| *job != "unbuilt") {
            let printed = self.at(ApiSide::Server, &["job", "inspect", job]);
            // A story may have purged its job.
            if printed.code != 0 {
                continue;
            }
            let file = self.home().write("inspected.json", &printed.stdout).display().to_string();
            let checked = self.agent.cli(&["validate", "--strict", &file]);
            assert!(checked.code == 0, "{job}: {}{}\n{}", checked.stdout, checked.stderr, printed.stdout);
        }
    }

    /// Stops and purges the jobs of a story, and waits for their ends.
    pub fn clear(&mut self) {
        for job in std::mem::take(&mut self.jobs) {
            self.until_seen(&format!("{job} is stopped"), |seen| {
                let output = self.at(ApiSide::Server, &["job", "stop", "-purge", "-yes", "-detach", &job]);
                *seen = output.stderr;
                (output.code == 0 || seen.contains("No job")).then_some(())
            });
        }
        self.until_true("the jobs of the story have ended", || self.agent.members().is_empty());
    }

    /// Cleans up after a failed story: stopped processes continue, and the node is eligible again.
    pub fn mend(&mut self) {
        for server in &mut self.servers {
            if server.has_ended() {
                server.start_again(&self.agent.home);
            }
            server.signal(Signal::CONT);
        }
        if self.agent.has_ended() {
            self.agent.launch();
        }
        host::signal(self.agent.pid(), Signal::CONT);
        self.until_true("the node is ready again", || self.node_is(&self.node) == "ready");
        self.at(ApiSide::Server, &["node", "drain", "-disable", "-yes", &self.node]);
        self.at(ApiSide::Server, &["node", "eligibility", "-enable", &self.node]);
        self.clear();
    }

    /// Returns the ends of all logs.
    pub fn logs(&self) -> String {
        let mut shown = String::new();
        for (name, lines) in [("agent", 12), ("server-1", 6), (stock::CLIENT, 6)] {
            for line in stock::tail(&self.home().path().join(format!("{name}.log")), lines).lines() {
                shown.push_str(&format!("      {name}: {line}\n"));
            }
        }
        shown
    }

    /// Purges all jobs, ends all processes, and checks that nothing remains.
    pub fn finish(mut self) {
        self.clear();
        if let Some(client) = &mut self.client {
            client.terminate();
            // Stock clients keep the mounts of ended allocations until they collect them.
            for point in host::mounts_below(&stock::data(&self.agent.home, stock::CLIENT)) {
                let _ = rustix::mount::unmount(&point, UnmountFlags::DETACH);
            }
        }
        if !self.agent.has_ended() {
            self.until_true("ended allocations are collected", || {
                self.at(ApiSide::Server, &["system", "gc"]);
                self.agent.allocs().is_empty()
            });
        }
        self.servers.iter_mut().for_each(Stock::kill);
        if !self.agent.has_ended() {
            self.agent.finish();
        }
    }

    fn server_port(&self) -> u16 {
        let running = self.servers.iter().position(Stock::runs).unwrap_or(0);
        self.server_ports.get(running).copied().unwrap_or_default()
    }
}

/// Returns a string field of JSON; empty if it isn't one.
pub fn text(value: &Value, field: &str) -> String {
    value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Returns whether a field of JSON is this string.
pub fn is(value: &Value, field: &str, wanted: &str) -> bool {
    value.get(field).and_then(Value::as_str) == Some(wanted)
}

/// Asserts that a text contains all of `wanted`.
///
/// # Panics
/// If one is missing.
#[track_caller]
pub fn assert_has(text: &str, wanted: &[&str]) {
    for words in wanted {
        assert!(text.contains(words), "expected {words:?}, found:\n{text}");
    }
}

/// Returns the number of entries of a directory; zero if it does not exist.
pub fn entries(dir: &Path) -> usize {
    fs::read_dir(dir).map_or(0, Iterator::count)
}
