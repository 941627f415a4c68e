//! Servers, an agent of ours that is their node, and the stock command line between them.
//!
//! In: how many servers, and whether they ask for certificates and tokens. Out: a node that is ready. What a story has left is
//! cleared before the next one, and nothing is left in the end.

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
use crate::e2e::{
    agent::{Agent, Setup},
    command::{self, Output, Running, User},
    home::Home,
    host,
    http::{self, Peer},
    ports, wait,
};

/// How long a command may take: some wait for what they have asked for.
const COMMAND_MAX: Duration = Duration::from_secs(60);

/// The agent's name where it may choose one.
pub const NAME: &str = "herd-1";

/// Who is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// A server.
    Server,
    /// The node's own API.
    Node,
}

/// All of it.
#[derive(Debug)]
pub struct Ground {
    /// What is tried.
    pub program: Program,
    /// Their node.
    pub agent: Agent,
    /// Stopped, started and killed by stories; the first that runs is asked.
    pub servers: Vec<Stock>,
    /// A stock client beside it.
    pub client: Option<Stock>,
    /// The agent's id among servers.
    pub node: String,
    /// From the agent's start until servers called it ready.
    pub ready_in: Duration,
    /// The HTTP ports of the servers, in their order.
    pub server_ports: Vec<u16>,
    /// The RPC ports of the servers, as the agent is told.
    pub rpc: Vec<String>,
    /// Of the node's own API.
    pub node_port: u16,
    /// A management token, where tokens are asked for.
    pub token: Option<String>,
    /// Whose certificates are asked for.
    pub guarded: bool,
    jobs: BTreeSet<String>,
    written: u32,
}

impl Ground {
    /// One server that asks nobody who he is, and an agent that is told by herdlet's own config.
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

    /// Servers, and an agent that was not started yet. What `more` makes of the directory of all is added to the servers' files.
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

    /// Starts the agent with this config, and waits until servers call it ready.
    pub fn join(&mut self, file: &str, config: &str) {
        let path = self.agent.home.write(file, config);
        self.agent.set_arguments(vec!["--config".to_owned(), path.display().to_string()]);
        let began = Instant::now();
        self.agent.launch();
        self.node = self.until("our node is ready", || {
            let nodes = self.json(&["node", "status", "-json"]);
            let is_ours = |node: &&Value| is(node, "Status", "ready") && !is(node, "Name", stock::CLIENT);
            nodes.as_array()?.iter().find(is_ours).map(|node| text(node, "ID"))
        });
        self.ready_in = began.elapsed();
    }

    /// A command of the stock command line.
    pub fn command(&self, door: Door, token: Option<&str>, arguments: &[&str]) -> Command {
        let mut command = command::prepare(self.home(), User::Same, &self.program.path, arguments);
        let port = match door {
            Door::Server => self.server_port(),
            Door::Node => self.node_port,
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

    /// What a command came to, with all rights.
    pub fn at(&self, door: Door, arguments: &[&str]) -> Output {
        Running::start(self.command(door, self.token.as_deref(), arguments)).finish_within(COMMAND_MAX)
    }

    /// What a command with a certain token, or none, came to.
    pub fn with(&self, door: Door, token: Option<&str>, arguments: &[&str]) -> Output {
        Running::start(self.command(door, token, arguments)).finish_within(COMMAND_MAX)
    }

    /// What a command said that a server was asked by.
    ///
    /// # Panics
    /// When it failed.
    #[track_caller]
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.at(Door::Server, arguments);
        assert!(
            output.code == 0,
            "`nomad {}` came to {}:\n{}{}",
            arguments.join(" "),
            output.code,
            output.stdout,
            output.stderr
        );
        output.stdout
    }

    /// What a command said as JSON; null where it said none.
    pub fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.at(Door::Server, arguments).stdout).unwrap_or_default()
    }

    /// What the API of a server that asks nobody says.
    pub fn get(&self, path: &str) -> Option<Value> {
        let answer = http::get(&Peer::Port(self.server_port()), path)?;
        serde_json::from_str(&answer.body).ok()
    }

    /// Writes a job and has it run.
    ///
    /// # Panics
    /// When it is refused.
    #[track_caller]
    pub fn run(&mut self, name: &str, job: &str) {
        let file = self.job_file(name, job);
        self.ok(&["job", "run", "-detach", &file]);
    }

    /// Writes a job that is stopped after the story, and says where.
    pub fn job_file(&mut self, name: &str, job: &str) -> String {
        self.jobs.insert(name.to_owned());
        self.write("nomad", job)
    }

    /// Writes a file and says where.
    pub fn write(&mut self, kind: &str, text: &str) -> String {
        self.written += 1;
        self.home().write(&format!("{}.{kind}", self.written), text).display().to_string()
    }

    /// The directories of all of it.
    pub fn home(&self) -> &Home {
        &self.agent.home
    }

    /// Waits; asks less often than for what is cheap.
    #[track_caller]
    pub fn until<T>(&self, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
        self.until_seen(what, |_| probe())
    }

    /// Waits, and tells of what was seen last where it was in vain.
    ///
    /// # Panics
    /// When it was.
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

    /// Waits until something holds.
    #[track_caller]
    pub fn until_true(&self, what: &str, mut probe: impl FnMut() -> bool) {
        self.until(what, || probe().then_some(()));
    }

    /// What servers call a node.
    pub fn node_is(&self, id: &str) -> String {
        text(&self.json(&["node", "status", "-json", id]), "Status")
    }

    /// Stops and forgets the jobs of a story, and waits for their ends.
    pub fn clear(&mut self) {
        for job in std::mem::take(&mut self.jobs) {
            self.until_seen(&format!("{job} is stopped"), |seen| {
                let output = self.at(Door::Server, &["job", "stop", "-purge", "-yes", "-detach", &job]);
                *seen = output.stderr;
                (output.code == 0 || seen.contains("No job")).then_some(())
            });
        }
        self.until_true("what the story ran has ended", || self.agent.members().is_empty());
    }

    /// After a story that broke off: what was stopped goes on, and the node takes work.
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
        self.at(Door::Server, &["node", "drain", "-disable", "-yes", &self.node]);
        self.at(Door::Server, &["node", "eligibility", "-enable", &self.node]);
        self.clear();
    }

    /// What was logged last.
    pub fn logs(&self) -> String {
        let mut shown = String::new();
        for (name, lines) in [("agent", 12), ("server-1", 6), (stock::CLIENT, 6)] {
            for line in stock::tail(&self.home().path().join(format!("{name}.log")), lines).lines() {
                shown.push_str(&format!("      {name}: {line}\n"));
            }
        }
        shown
    }

    /// Everything is forgotten and ended, and nothing is left.
    pub fn finish(mut self) {
        self.clear();
        if let Some(client) = &mut self.client {
            client.terminate();
            // Stock clients leave the mounts of what has ended until they collect it.
            for point in host::mounts_below(&stock::data(&self.agent.home, stock::CLIENT)) {
                let _ = rustix::mount::unmount(&point, UnmountFlags::DETACH);
            }
        }
        if !self.agent.has_ended() {
            self.until_true("what has ended is collected", || {
                self.at(Door::Server, &["system", "gc"]);
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

/// A field of JSON, where it is a text.
pub fn text(value: &Value, field: &str) -> String {
    value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Whether a field of JSON is this text.
pub fn is(value: &Value, field: &str, wanted: &str) -> bool {
    value.get(field).and_then(Value::as_str) == Some(wanted)
}

/// Says what of `wanted` a text lacks.
///
/// # Panics
/// When it lacks something.
#[track_caller]
pub fn assert_has(text: &str, wanted: &[&str]) {
    for words in wanted {
        assert!(text.contains(words), "expected {words:?}, found:\n{text}");
    }
}

/// The number of entries of a directory; none where there is no such directory.
pub fn entries(dir: &Path) -> usize {
    fs::read_dir(dir).map_or(0, Iterator::count)
}
