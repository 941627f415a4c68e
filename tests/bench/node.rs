//! Costs of a node: an agent as a node of stand-in servers on loopback, and many simulated nodes in one process.
//!
//! The servers collect reports for 50 ms, as stock ones do, and send changes at once. They run in this process, so on few cores they take
//! time from the measured processes.

use std::{
    fs::File,
    io::{self, Read as _},
    net::{Shutdown, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use herdlet_e2e::{host, ports, program::program, wait};
use herdlet_nomad::wire::{AllocId, ClientStatus, Job, NodeId, NodeStatus};
use herdlet_nomad_server::{Cluster, Settings, jobs, lan::Listener, state::State};
use rustix::{
    fs::Mode,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use serde_json::json;
use tokio::runtime::Runtime;

use super::{
    cost,
    ground::BenchDirs,
    job::Bench,
    table::{Table, quantile},
};

/// Far longer than any step should take.
const LIMIT: Duration = Duration::from_secs(300);
/// Single allocations for the latency.
const SINGLES: usize = 60;
/// By then the agent has released the memory that starts needed.
const SETTLED: Duration = Duration::from_secs(25);
/// Number of simulated nodes.
const NODES: usize = 5_000;
/// Number of allocations on each of them.
const EACH: usize = 10;
/// Duration of the measurement of simulated nodes.
const WATCHED: Duration = Duration::from_secs(90);

/// Servers, and a way to start an agent as their node.
struct Servers {
    runtime: Runtime,
    cluster: Cluster,
    _listeners: Vec<Listener>,
    /// Bytes that nodes have sent to them.
    sent: Arc<AtomicU64>,
    address: String,
}

impl Servers {
    /// Starts servers behind a proxy that counts the bytes sent to them.
    fn counting() -> Self {
        let servers = Self::start();
        let address = counted(servers.address.clone(), &servers.sent);
        servers.cluster.set_addresses(vec![address.clone()]);
        Self { address, ..servers }
    }

    fn start() -> Self {
        every_file();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let guard = runtime.enter();
        let cluster = Cluster::start(Settings::default());
        let listeners = runtime.block_on(cluster.listen()).expect("listeners on loopback");
        drop(guard);
        let sent = Arc::new(AtomicU64::new(0));
        let address = listeners.first().map(|listener| listener.address.clone()).unwrap_or_default();
        cluster.set_addresses(vec![address.clone()]);
        Self { runtime, cluster, _listeners: listeners, sent, address }
    }

    fn agent(&self, ground: &BenchDirs) -> (Bench, NodeId) {
        let [port] = ports::free();
        let bench = Bench::with(ground, |setup| {
            let setup = setup.config(format!("cluster: {{http_addr: 127.0.0.1, http_port: {port}}}\n"));
            setup.argument(format!("--servers={}", self.address)).argument("--raw-exec=true")
        });
        let ready = |state: &State| {
            let mut nodes = state.nodes.iter();
            nodes.find(|(_, known)| known.node.status == NodeStatus::Ready).map(|(id, _)| id.clone())
        };
        let node = wait::until("the node is ready", || self.cluster.read(ready));
        (bench, node)
    }

    /// Places `count` allocations in one change.
    fn place(&self, node: &NodeId, job: &Job, count: usize) -> Vec<AllocId> {
        let _guard = self.runtime.enter();
        self.cluster.write(|state| (0..count).map(|_| state.place(node, job, "g")).collect())
    }

    /// Waits until servers know this status of all of these allocations.
    fn until(&self, ids: &[AllocId], status: &ClientStatus) {
        let all_have = |state: &State| {
            ids.iter().all(|id| state.allocs.get(id).is_some_and(|alloc| alloc.client_status == *status))
        };
        let reached =
            self.runtime.block_on(async { tokio::time::timeout(LIMIT, self.cluster.until(all_have)).await });
        reached.expect("the status within the time limit");
    }

    fn stop(&self, ids: &[AllocId]) {
        let _guard = self.runtime.enter();
        self.cluster.write(|state| {
            for id in ids {
                state.change(id, |alloc| alloc.desired_status = herdlet_nomad::wire::DesiredStatus::Stop);
            }
        });
        self.until(ids, &ClientStatus::Complete);
    }

    fn forget(&self, ids: &[AllocId]) {
        let _guard = self.runtime.enter();
        self.cluster.write(|state| ids.iter().for_each(|id| state.collect(id)));
    }
}

/// One allocation at a time: from its placement to its task's first action, and until the servers know that it runs.
pub(super) fn latency(table: &mut Table, ground: &BenchDirs) {
    let servers = Servers::start();
    let (bench, node) = servers.agent(ground);
    let (send, acts) = mpsc::sync_channel(1);
    let fifo = bench.agent.home.path().join("acts");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR | Mode::WUSR).expect("a fifo");
    // Also open for writing, so that reading never ends.
    let mut acting = File::options().read(true).write(true).open(&fifo).expect("the fifo");
    thread::spawn(move || {
        while acting.read(&mut [0]).is_ok_and(|len| len == 1) && send.send(Instant::now()).is_ok() {}
    });
    let script = format!("printf x > {}; exec sleep 100000", fifo.display());
    let job = job("single", "service", &json!({ "command": "/bin/sh", "args": ["-c", script] }));
    let (mut acted, mut known) = (Vec::new(), Vec::new());
    for _ in 0..SINGLES {
        // Wait until the machine is idle, and the previous report is long past.
        wait::pause(Duration::from_millis(400));
        let began = Instant::now();
        let ids = servers.place(&node, &job, 1);
        acted.push((acts.recv_timeout(LIMIT).expect("the task's action") - began).as_secs_f64() * 1000.0);
        servers.until(&ids, &ClientStatus::Running);
        known.push(began.elapsed().as_secs_f64() * 1000.0);
        servers.stop(&ids);
        servers.forget(&ids);
    }
    acted.sort_by(f64::total_cmp);
    known.sort_by(f64::total_cmp);
    table.row(
        "node: one allocation, from its placement to its task's first action, median / p95",
        format_args!("{:.1} / {:.1} ms", quantile(&acted, 0.5), quantile(&acted, 0.95)),
        "≤ 12 / 20 ms",
        "",
    );
    table.row(
        "node: one allocation, until the servers know that it runs, median",
        format_args!("{:.1} ms (of which servers collect reports for 50 ms)", quantile(&known, 0.5)),
        "≤ 80 ms",
        "",
    );
    wait::pause(Duration::from_secs(1));
    bench.agent.finish();
}

/// `count` allocations at once.
pub(super) fn many(table: &mut Table, ground: &BenchDirs, count: usize) {
    let servers = Servers::counting();
    let (bench, node) = servers.agent(ground);
    let beats = |servers: &Servers| servers.cluster.seen("Node.UpdateStatus").len();
    let (sent, beaten, life) = (servers.sent.load(Ordering::Relaxed), beats(&servers), Instant::now());
    let sleep = job("many", "service", &json!({ "command": "/bin/sleep", "args": ["100000"] }));
    let began = Instant::now();
    let ids = servers.place(&node, &sleep, count);
    servers.until(&ids, &ClientStatus::Running);
    let took = began.elapsed();
    wait::pause(Duration::from_secs(2));
    let bytes = servers.sent.load(Ordering::Relaxed) - sent;
    table.row(
        &format!("node: {count} allocations placed at once, until the servers know that all run"),
        format_args!("{:.2} s", took.as_secs_f64()),
        if count <= 200 { "≤ 0.8 s" } else { "≤ 2.0 s" },
        "",
    );
    table.row(
        &format!("node: bytes sent to servers for each start, of {count}"),
        format_args!("{:.0} B", ratio(bytes, count)),
        "≤ 1,500 B",
        "",
    );
    wait::pause(SETTLED);
    table.row(
        &format!("node: memory of the agent with {count} running (PSS)"),
        format_args!("{:.1} MB", ratio(cost::pss_kib([bench.agent.pid()]), 1_000)),
        if count <= 200 { "≤ 25 MB" } else { "≤ 40 MB" },
        "",
    );
    servers.stop(&ids);
    table.row(
        &format!("node: heartbeats while {count} start, run and stop"),
        format_args!("{} in {:.0} s", beats(&servers) - beaten, life.elapsed().as_secs_f64()),
        "one each TTL (10 to 20 s)",
        "",
    );
    servers.forget(&ids);
    bench.agent.finish();
}

/// Many nodes in one process, each with ten allocations.
pub(super) fn simulated(table: &mut Table, _ground: &BenchDirs) {
    let servers = Servers::start();
    let nodes = NODES.to_string();
    let mut simulation = Command::new(program());
    simulation.args(["simulate", "--nodes", &nodes, "--servers", &servers.address]);
    let mut simulation = KillOnDrop(simulation.stdout(Stdio::null()).spawn().expect("a simulation"));
    let pid = simulation.0.id();
    let began = Instant::now();
    let ready =
        |state: &State| state.nodes.values().filter(|known| known.node.status == NodeStatus::Ready).count();
    wait::until_true("all nodes are ready", || servers.cluster.read(ready) == NODES);
    let joined = began.elapsed();
    wait::pause(SETTLED);
    let idle = cost::pss_kib([pid]);
    let job = job("simulated", "service", &json!({}));
    let ids: Vec<AllocId> = {
        let _guard = servers.runtime.enter();
        servers.cluster.write(|state| {
            let nodes: Vec<NodeId> = state.nodes.keys().cloned().collect();
            let slots = nodes.iter().flat_map(|node| std::iter::repeat_n(node, EACH));
            slots.map(|node| state.place(node, &job, "g")).collect()
        })
    };
    let began = Instant::now();
    servers.until(&ids, &ClientStatus::Running);
    let placed = began.elapsed();
    let cpu = cost::cpu([pid]);
    let began = Instant::now();
    let mut least = NODES;
    while began.elapsed() < WATCHED {
        wait::pause(Duration::from_secs(1));
        least = least.min(servers.cluster.read(ready));
    }
    let busy = cost::cpu([pid]).saturating_sub(cpu);
    let loaded = cost::pss_kib([pid]);
    // The servers record this for each node, so polling misses none.
    let missed = |state: &State| {
        state.nodes.values().filter(|known| known.node.last_missed_heartbeat_index > 0).count()
    };
    let late = servers.cluster.read(missed);
    table.row(
        &format!(
            "simulate: {NODES} nodes in one process, memory of each, idle / with {EACH} allocations (PSS)"
        ),
        format_args!("{:.1} / {:.1} KiB", ratio(idle, NODES), ratio(loaded, NODES)),
        "≤ 154 KiB",
        "",
    );
    table.row(
        &format!("simulate: {NODES} nodes joined / {} allocations running after", ids.len()),
        format_args!("{:.1} / {:.1} s", joined.as_secs_f64(), placed.as_secs_f64()),
        "",
        "",
    );
    table.row(
        &format!("simulate: minimum of ready nodes in {} s, processor time", WATCHED.as_secs()),
        format_args!(
            "{least} of {NODES}, {:.1} % of a core",
            busy.as_secs_f64() / WATCHED.as_secs_f64() * 100.0
        ),
        "all",
        "",
    );
    table.row("simulate: nodes with late heartbeats", format_args!("{late}"), "0", "");
    host::signal(pid, rustix::process::Signal::TERM);
    let _ = simulation.0.wait();
}

/// A child process, killed when dropped.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A job with one task of the driver raw_exec.
fn job(id: &str, kind: &str, config: &serde_json::Value) -> Job {
    let task = json!({
        "Name": "t", "Driver": "raw_exec", "Config": config, "KillTimeout": 5_000_000_000_i64,
        "Resources": { "CPU": 100, "MemoryMB": 10 }, "LogConfig": { "MaxFiles": 1, "MaxFileSizeMB": 1 },
    });
    let job = json!({ "ID": id, "Name": id, "Type": kind, "TaskGroups": [{ "Name": "g", "Count": 1, "Tasks": [task] }] });
    Job::new(jobs::value(&job).expect("a job"))
}

/// Raises the limit of open files to the maximum, because thousands of nodes connect.
fn every_file() {
    let known = getrlimit(Resource::Nofile);
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|most| most.trim().parse().ok());
    let most = most.or(known.maximum);
    for maximum in [most, known.maximum] {
        if setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok() {
            return;
        }
    }
}

/// Starts a proxy before a server that counts the bytes sent to it.
fn counted(server: String, sent: &Arc<AtomicU64>) -> String {
    let door = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = door.local_addr().expect("a bound socket has an address").to_string();
    let sent = Arc::clone(sent);
    thread::spawn(move || {
        for client in door.incoming().flatten() {
            let Ok(server) = TcpStream::connect(&server) else { continue };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let pairs = (
                client.try_clone().and_then(|from| Ok((from, server.try_clone()?))),
                Ok::<_, io::Error>((server, client)),
            );
            if let (Ok(up), Ok(down)) = pairs {
                let sent = Arc::clone(&sent);
                thread::Builder::new()
                    .stack_size(64 * 1024)
                    .spawn(move || pass(up, Some(&sent)))
                    .expect("a thread");
                thread::Builder::new()
                    .stack_size(64 * 1024)
                    .spawn(move || pass(down, None))
                    .expect("a thread");
            }
        }
    });
    address
}

fn pass((mut from, mut to): (TcpStream, TcpStream), count: Option<&AtomicU64>) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        if let Some(count) = count {
            count.fetch_add(len as u64, Ordering::Relaxed);
        }
        if io::Write::write_all(&mut to, &buffer[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn ratio(total: u64, count: usize) -> f64 {
    total as f64 / count as f64
}
