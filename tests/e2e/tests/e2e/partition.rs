//! A node and its servers in separate network namespaces, with a router between them that drops packets:
//! connections are not refused, and neither side learns that the other is unreachable. In both directions and
//! in one, for longer than the node's TTL.
//!
//! ```text
//!   servers 10.91.1.1 ──veth── 10.91.1.2 router 10.91.2.2 ──veth── 10.91.2.1 agent
//! ```

use std::{
    fs,
    net::Ipv4Addr,
    os::unix::fs::PermissionsExt as _,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use herdlet_e2e::{
    agent::{Agent, Setup},
    environment, host,
    program::program,
    wait,
};
use herdlet_nomad::wire::{AllocId, ClientStatus, NodeId, NodeStatus};
use herdlet_nomad_server::{
    Cluster, Settings,
    state::{Key, Stored},
};
use serde_json::{Value, json};

use crate::common::is_root;

const SERVERS: &str = "10.91.1.0/24";
const AGENT: &str = "10.91.2.0/24";

/// Three network namespaces, each held by an idle process.
struct Net {
    servers: Child,
    router: Child,
    agent: Child,
}

impl Net {
    fn create() -> Self {
        let hold = || {
            let mut command = Command::new("unshare");
            command.args(["--net", "sleep", "100000"]).stdin(Stdio::null());
            command.spawn().unwrap()
        };
        let net = Self { servers: hold(), router: hold(), agent: hold() };
        let own = fs::read_link("/proc/self/ns/net").unwrap();
        for child in [&net.servers, &net.router, &net.agent] {
            let link = format!("/proc/{}/ns/net", child.id());
            wait::until_true("the process has a network namespace", || {
                fs::read_link(&link).is_ok_and(|of| of != own)
            });
        }
        let router = net.router.id();
        let (servers, agent) = (net.servers.id(), net.agent.id());
        run(router, &format!("ip link add to-servers type veth peer name wan netns {servers}"));
        run(router, &format!("ip link add to-agent type veth peer name wan netns {agent}"));
        for (pid, device, address) in [
            (router, "to-servers", "10.91.1.2/24"),
            (router, "to-agent", "10.91.2.2/24"),
            (servers, "wan", "10.91.1.1/24"),
            (agent, "wan", "10.91.2.1/24"),
        ] {
            run(pid, &format!("ip addr add {address} dev {device}"));
            run(pid, &format!("ip link set {device} up"));
            run(pid, "ip link set lo up");
        }
        run(servers, "ip route add default via 10.91.1.2");
        run(agent, "ip route add default via 10.91.2.2");
        run(router, "echo 1 > /proc/sys/net/ipv4/ip_forward");
        net
    }

    /// Silently drops packets to these addresses.
    fn drop_to(&self, net: &str) {
        // More specific than the device's route, and so preferred.
        for half in halves(net) {
            run(self.router.id(), &format!("ip route add blackhole {half}"));
        }
    }

    fn pass_to(&self, net: &str) {
        for half in halves(net) {
            run(self.router.id(), &format!("ip route del blackhole {half}"));
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for child in [&mut self.servers, &mut self.router, &mut self.agent] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn halves(net: &str) -> [String; 2] {
    let begin = net.trim_end_matches("0/24");
    [format!("{begin}0/25"), format!("{begin}128/25")]
}

/// Runs a script as root in the network namespace of a process.
fn run(pid: u32, script: &str) {
    let net = format!("--net=/proc/{pid}/ns/net");
    let output = Command::new("nsenter").args([&net, "sh", "-c", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Starts servers in the namespace of a process: one thread in that namespace creates all their sockets.
fn servers(pid: u32) -> (Cluster, tokio::runtime::Handle, String) {
    let (send, receive) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let net = fs::File::open(format!("/proc/{pid}/ns/net")).unwrap();
        let kind = rustix::thread::LinkNameSpaceType::Network;
        rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&net), Some(kind)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let settings = Settings {
                ttl_min: Duration::from_secs(1),
                // Even a busy machine does not delay a heartbeat this long.
                grace: Duration::from_secs(9),
                ..Settings::default()
            };
            let cluster = Cluster::start(settings);
            let listener = cluster.listen_on(Ipv4Addr::new(10, 91, 1, 1), 4647).await.unwrap();
            send.send((cluster, tokio::runtime::Handle::current(), listener.address.clone())).unwrap();
            // Runs until the test ends.
            std::future::pending::<()>().await;
        });
    });
    receive.recv_timeout(wait::PATIENCE).unwrap()
}

struct PartitionTest {
    net: Net,
    cluster: Cluster,
    runtime: tokio::runtime::Handle,
    agent: Agent,
    node: NodeId,
}

impl PartitionTest {
    fn start() -> Self {
        let net = Net::create();
        let (cluster, runtime, address) = servers(net.servers.id());
        let setup = Setup::default()
            .config("cluster: {http_addr: 127.0.0.1, http_port: 4646}\n")
            .argument(format!("--servers={address}"))
            .argument("--raw-exec=true");
        let mut agent = Agent::prepare(setup);
        let wrapper = agent.home.path().join("behind-the-router");
        let script = format!(
            "#!/bin/sh\nexec nsenter --net=/proc/{}/ns/net {} \"$@\"\n",
            net.agent.id(),
            program().display()
        );
        fs::write(&wrapper, script).unwrap();
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
        agent.set_program(wrapper);
        agent.launch();
        let is_ready = |node: &Stored| node.node.status == NodeStatus::Ready;
        let node = wait::until("the node is ready", || {
            let find = |state: &herdlet_nomad_server::state::State| {
                state.nodes.iter().find(|(_, node)| is_ready(node)).map(|(id, _)| id.clone())
            };
            cluster.read(find)
        });
        Self { net, cluster, runtime, agent, node }
    }

    fn submit(&self, id: &str, disconnect: Value) -> (Key, AllocId, u32) {
        let task = json!({
            "Name": "t", "Driver": "raw_exec", "Config": { "command": "/bin/sleep", "args": ["100000"] },
            "Resources": { "CPU": 10, "MemoryMB": 16 }, "LogConfig": { "MaxFiles": 1, "MaxFileSizeMB": 1 },
        });
        let group = json!({ "Name": "g", "Count": 1, "Tasks": [task], "Disconnect": disconnect });
        let job = json!({ "ID": id, "Name": id, "Type": "service", "Namespace": "default", "Datacenters": ["dc1"], "TaskGroups": [group] });
        let key = {
            let _guard = self.runtime.enter();
            self.cluster.submit(&job).unwrap()
        };
        let alloc = wait::until("it is placed", || self.cluster.allocs_of(&key).pop()).id;
        self.reaches(&alloc, &ClientStatus::Running);
        let pid = self.agent.single(&format!("{id}.g[0]"), "t").pid;
        (key, alloc, pid)
    }

    #[track_caller]
    fn reaches(&self, id: &AllocId, status: &ClientStatus) {
        wait::until_true(&format!("{id} is {status}"), || self.cluster.client_status(id) == *status);
    }

    /// Blocks these directions until the servers have missed the node, and for some heartbeats more.
    fn part(&self, nets: &[&str]) {
        nets.iter().for_each(|net| self.net.drop_to(net));
        wait::until_true("the servers have missed the node", || {
            self.cluster.status(&self.node).is_some_and(|status| status != NodeStatus::Ready)
        });
        wait::pause(Duration::from_secs(3));
    }

    fn join(&self, nets: &[&str]) {
        nets.iter().for_each(|net| self.net.pass_to(net));
        wait::until_true("the node is ready again", || {
            self.cluster.status(&self.node) == Some(NodeStatus::Ready)
        });
    }

    /// Checks that replacements placed before the node reported its allocations end without being started.
    fn never_ran_elsewhere(&self, key: &Key, id: &AllocId) {
        let others = || self.cluster.allocs_of(key).into_iter().filter(|alloc| alloc.id != *id);
        wait::until_true("the servers want no other allocations on the node", || {
            others().all(|alloc| alloc.desired_status.is_terminal() && alloc.client_status.is_terminal())
        });
        for alloc in others() {
            let started = alloc.task_states.values().any(|task| !task.started_at.is_zero());
            assert!(!started, "{alloc:?} was started");
        }
    }

    /// Waits until another allocation of the job runs as a new process.
    fn until_replaced(&self, key: &Key, id: &AllocId, pid: u32) {
        wait::until_true("it is replaced", || {
            let others = self.cluster.allocs_of(key).into_iter().filter(|alloc| alloc.id != *id);
            others.filter(|alloc| alloc.client_status == ClientStatus::Running).count() == 1
        });
        wait::until_true("the first has ended", || !host::is_alive(pid));
        self.reaches(id, &ClientStatus::Complete);
    }
}

#[test]
fn partitioned_node_follows_each_job_policy() {
    if !is_root() || environment::program("ip").is_none() || environment::program("nsenter").is_none() {
        return;
    }
    for ways in [&[SERVERS, AGENT][..], &[AGENT], &[SERVERS]] {
        let ground = PartitionTest::start();
        let second = 1_000_000_000_i64;
        let lost = ground.submit("lost", Value::Null);
        let stops = ground.submit("stops", json!({ "StopOnClientAfter": 10 * second }));
        let stays = ground.submit("stays", json!({ "LostAfter": 600 * second }));
        ground.part(ways);
        ground.reaches(&lost.1, &ClientStatus::Lost);
        ground.reaches(&stays.1, &ClientStatus::Unknown);
        wait::until_true("the node stops allocations that may not run without servers", || {
            !host::is_alive(stops.2)
        });
        assert!(
            host::is_alive(lost.2) && host::is_alive(stays.2),
            "no server has requested to stop the others"
        );
        ground.join(ways);
        ground.until_replaced(&lost.0, &lost.1, lost.2);
        ground.until_replaced(&stops.0, &stops.1, stops.2);
        ground.reaches(&stays.1, &ClientStatus::Running);
        assert!(host::is_alive(stays.2));
        ground.never_ran_elsewhere(&stays.0, &stays.1);
        ground.finish();
    }
}

#[test]
fn address_changes_are_reported_to_servers() {
    if !is_root() || environment::program("ip").is_none() || environment::program("nsenter").is_none() {
        return;
    }
    let ground = PartitionTest::start();
    let has = |address: &str| {
        ground.cluster.read(|state| {
            let resources = state.nodes[&ground.node].node.node_resources.as_ref().unwrap();
            resources
                .node_networks
                .iter()
                .flat_map(|network| &network.addresses)
                .any(|known| known.address == address)
        })
    };
    assert!(has("10.91.2.1") && !has("10.91.2.9"));
    run(ground.net.agent.id(), "ip addr add 10.91.2.9/24 dev wan");
    wait::until_true("the address is known", || has("10.91.2.9"));
    run(ground.net.agent.id(), "ip addr del 10.91.2.9/24 dev wan");
    wait::until_true("the address is forgotten", || !has("10.91.2.9"));
    ground.finish();
}

impl PartitionTest {
    /// Removes everything from the servers, and checks that nothing remains.
    fn finish(self) {
        {
            let _guard = self.runtime.enter();
            let jobs: Vec<_> = self.cluster.read(|state| state.jobs.keys().cloned().collect());
            jobs.iter().for_each(|key| self.cluster.stop_job(key, true));
            wait::until_true("all allocations have ended", || self.agent.members().is_empty());
            self.cluster.write(|state| {
                let ids: Vec<AllocId> = state.allocs.keys().cloned().collect();
                ids.iter().for_each(|id| state.collect(id));
            });
        }
        wait::until_true("nothing remains", || self.agent.allocs().is_empty());
        self.agent.finish();
    }
}
