//! A real agent with real processes as a node of a Nomad cluster with stand-in servers on loopback.

use std::time::Duration;

use herdlet_e2e::{
    agent::{Agent, Setup},
    host,
    http::{self, Peer},
    openbao::OpenBao,
    ports, wait,
};
use herdlet_nomad::wire::{AllocId, Allocation, ClientStatus, NodeId, NodeStatus, queries::DeriveResponse};
use herdlet_nomad_server::{Cluster, Settings, lan::Listener};
use herdlet_rpc::framed::StreamFrame;
use serde_json::{Value, json};

use crate::common::{has, is_root};

/// Servers, and an agent that is their node.
pub(crate) struct NodeTest {
    runtime: tokio::runtime::Runtime,
    cluster: Cluster,
    _listeners: Vec<Listener>,
    pub(crate) agent: Agent,
    node: NodeId,
    /// The port of the node's own API.
    pub(crate) port: u16,
}

impl NodeTest {
    pub(crate) fn start() -> Self {
        Self::start_with("")
    }

    /// Starts them with additional lines in the agent's config.
    pub(crate) fn start_with(config: &str) -> Self {
        Self::start_at("127.0.0.1", config)
    }

    /// Starts it with its API at this address of the test's network.
    pub(crate) fn start_at(address: &str, config: &str) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let guard = runtime.enter();
        // Heartbeats are frequent, but one is missed only if the node is gone.
        let settings = Settings {
            ttl_min: Duration::from_secs(1),
            grace: Duration::from_secs(120),
            ..Settings::default()
        };
        let cluster = Cluster::start(settings);
        let listeners = runtime.block_on(cluster.listen()).unwrap();
        drop(guard);
        let servers = listeners.iter().map(|listener| listener.address.clone()).collect::<Vec<_>>().join(",");
        let [port] = ports::free();
        let setup = Setup::default()
            .config(format!(
                "cluster: {{http_addr: {address}, http_port: {port}, network_interface: lo}}\n{config}"
            ))
            .argument(format!("--servers={servers}"))
            .argument("--raw-exec=true")
            .argument("--node-class=edge");
        let agent = Agent::start_with(setup);
        let is_ready = |node: &herdlet_nomad_server::state::Stored| node.node.status == NodeStatus::Ready;
        let node = wait::until("the node is ready", || {
            cluster
                .read(|state| state.nodes.iter().find(|(_, node)| is_ready(node)).map(|(id, _)| id.clone()))
        });
        Self { runtime, cluster, _listeners: listeners, agent, node, port }
    }

    fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        wait::until_true(what, is_so);
    }

    /// Returns the servers' record of the node.
    pub(crate) fn known(&self) -> herdlet_nomad::wire::Node {
        self.cluster.read(|state| state.nodes[&self.node].node.clone())
    }

    /// Returns the servers' record of an allocation.
    pub(crate) fn stored(&self, id: &AllocId) -> Allocation {
        self.cluster.alloc(id).unwrap()
    }

    /// Returns the interface and the address that the node has reported of an allocation.
    fn network(&self, id: &AllocId) -> (String, String) {
        let status = self.stored(id).network_status.unwrap_or_default();
        (status.interface_name, status.address)
    }

    pub(crate) fn submit(&self, job: &Value) -> herdlet_nomad_server::state::Key {
        let _guard = self.runtime.enter();
        self.cluster.submit(job).unwrap()
    }

    /// Returns the only allocation of a job that is wanted.
    pub(crate) fn alloc(&self, key: &herdlet_nomad_server::state::Key) -> Allocation {
        wait::until("it is placed", || {
            let allocs = self.cluster.allocs_of(key);
            allocs.into_iter().find(|alloc| !alloc.desired_status.is_terminal())
        })
    }

    /// Stops a job on the servers, and waits for its end.
    pub(crate) fn stop(&self, key: &herdlet_nomad_server::state::Key) {
        {
            let _guard = self.runtime.enter();
            self.cluster.stop_job(key, true);
        }
        self.until("it has ended", || self.agent.members().is_empty());
    }

    pub(crate) fn reaches(&self, id: &AllocId, status: &ClientStatus) {
        self.until(&format!("{id} is {status}"), || self.cluster.client_status(id) == *status);
    }
}

impl NodeTest {
    /// Removes everything from the servers, and checks that nothing remains.
    pub(crate) fn finish(self) {
        {
            let _guard = self.runtime.enter();
            let jobs: Vec<_> = self.cluster.read(|state| state.jobs.keys().cloned().collect());
            for key in &jobs {
                self.cluster.stop_job(key, true);
            }
            self.until("all allocations have ended", || self.agent.members().is_empty());
            self.cluster.write(|state| {
                let ids: Vec<AllocId> = state.allocs.keys().cloned().collect();
                ids.iter().for_each(|id| state.collect(id));
            });
        }
        self.until("nothing remains", || self.agent.allocs().is_empty());
        self.agent.finish();
    }
}

/// Returns a service whose only task sleeps for `seconds`.
pub(crate) fn service(id: &str, seconds: u32) -> Value {
    json!({
        "ID": id, "Name": id, "Type": "service", "Namespace": "default", "Datacenters": ["dc1"],
        "TaskGroups": [{
            "Name": "g", "Count": 1,
            "Update": { "MaxParallel": 1, "HealthCheck": "checks", "MinHealthyTime": 100_000_000, "HealthyDeadline": 300_000_000_000_i64, "ProgressDeadline": 600_000_000_000_i64 },
            "Networks": [{ "Mode": "host", "DynamicPorts": [{ "Label": "http" }] }],
            "Tasks": [{
                "Name": "t", "Driver": "raw_exec",
                "Config": { "command": "/bin/sleep", "args": [seconds.to_string()] },
                "Resources": { "CPU": 100, "MemoryMB": 32 },
                "LogConfig": { "MaxFiles": 2, "MaxFileSizeMB": 1 },
                "KillTimeout": 5_000_000_000_i64,
            }],
        }],
    })
}

/// The plugin attaches nothing: its network is the loopback interface of the namespace.
#[test]
fn server_job_runs_in_a_network_of_cni() {
    use std::{fs, os::unix::fs::PermissionsExt as _};
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let result = r#"{"interfaces": [{"name": "lo", "sandbox": "x"}], "ips": [{"address": "127.0.0.1/8", "interface": 0}]}"#;
    let calls = path("calls").display().to_string();
    let script = format!(
        "#!/bin/sh\n[ -n \"$CNI_COMMAND\" ] || {{ echo CNI stand-in plugin v1.2.3; exit; }}\n\
         echo \"$CNI_COMMAND $CNI_ARGS\" >>{calls}\n[ $CNI_COMMAND != ADD ] || echo '{result}'\n"
    );
    fs::write(path("stand-in"), script).unwrap();
    fs::set_permissions(path("stand-in"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(path("net.conf"), r#"{"cniVersion": "1.0.0", "name": "net", "type": "stand-in"}"#).unwrap();
    let dir = folder.path().display();
    let mut ground = NodeTest::start_with(&format!("network: {{cni_path: {dir}, cni_config_dir: {dir}}}"));
    ground.until("the network is advertised", || {
        let known = ground.known();
        let offers =
            known.node_resources.is_some_and(|of| of.networks.iter().any(|one| one.mode == "cni/net"));
        let version = known.attributes.get("plugins.cni.version.stand-in").map(String::as_str);
        offers && version == Some("1.2.3")
    });
    let mut job = service("web", 100_004);
    job["TaskGroups"][0]["Networks"] = json!([{ "Mode": "cni/net", "CNI": { "Args": { "KEY": "value" } } }]);
    let key = ground.submit(&job);
    let alloc = ground.alloc(&key);
    ground.reaches(&alloc.id, &ClientStatus::Running);
    let called = fs::read_to_string(&calls).unwrap();
    let expected = format!("ADD IgnoreUnknown=true;KEY=value;NOMAD_ALLOC_ID={};", alloc.id);
    assert!(called.contains(&expected) && called.contains("NOMAD_REGION=global"), "{called}");
    ground.agent.crash();
    ground.reaches(&alloc.id, &ClientStatus::Running);
    ground.stop(&key);
    ground.reaches(&alloc.id, &ClientStatus::Complete);
    ground.until("it is detached", || fs::read_to_string(&calls).unwrap().contains("DEL "));
    ground.finish();
}

#[test]
fn server_job_runs_isolated_in_a_network_of_its_own() {
    if !is_root() {
        return;
    }
    let mut ground = NodeTest::start();
    let known = ground.known();
    assert!(known.drivers["exec"].healthy && known.attributes.contains_key("plugins.cni.version.bridge"));
    let mut job = service("web", 100_003);
    let group = &mut job["TaskGroups"][0];
    group["Networks"] = json!([{
        "Mode": "bridge", "Hostname": "box-${NOMAD_ALLOC_INDEX}", "DynamicPorts": [{ "Label": "http", "To": 8080 }],
    }]);
    group["Tasks"][0]["Driver"] = "exec".into();
    let key = ground.submit(&job);
    let alloc = ground.alloc(&key);
    ground.reaches(&alloc.id, &ClientStatus::Running);
    let script = "ls /sys/class/net; echo $NOMAD_PORT_http; id -un; cat /proc/sys/kernel/hostname";
    let arguments = ["exec", "web.g[0]", "--task", "t", "--", "sh", "-c", script];
    let expected = "eth0\nlo\n8080\nnobody\nbox-0\n";
    ground.until("its address is reported", || ground.network(&alloc.id).1.starts_with("172.26."));
    let network = ground.network(&alloc.id);
    assert_eq!(network.0, "eth0");
    assert_eq!(ground.agent.cli(&arguments).success().stdout, expected);
    ground.agent.crash();
    ground.reaches(&alloc.id, &ClientStatus::Running);
    assert_eq!(ground.agent.cli(&arguments).success().stdout, expected);
    ground.stop(&key);
    ground.reaches(&alloc.id, &ClientStatus::Complete);
    assert_eq!(ground.network(&alloc.id), network, "as for a stock client, it is known after the end");
    ground.finish();
}

#[test]
fn servers_know_the_installed_java_and_emulator_and_run_a_class() {
    if !is_root() || !has("java") || !has("qemu-system-x86_64") {
        return;
    }
    let ground = NodeTest::start();
    wait::until_true("the versions are known", || {
        let known = ground.known();
        ["java", "qemu"].iter().all(|driver| {
            known.drivers[*driver].healthy
                && known.attributes.contains_key(&format!("driver.{driver}.version"))
        })
    });
    let mut job = service("usage", 0);
    job["Type"] = "batch".into();
    let group = job["TaskGroups"][0].as_object_mut().unwrap();
    group.remove("Update");
    let task = &mut group["Tasks"][0];
    task["Driver"] = "java".into();
    task["Config"] = json!({ "class": "sun.security.tools.keytool.Main", "args": ["-help"] });
    task["Resources"] = json!({ "CPU": 100, "MemoryMB": 256 });
    let key = ground.submit(&job);
    let alloc = ground.alloc(&key);
    ground.reaches(&alloc.id, &ClientStatus::Complete);
    ground.finish();
}

#[test]
fn server_job_runs_updates_survives_and_ends() {
    if !is_root() {
        return;
    }
    let mut ground = NodeTest::start();
    let known = ground.cluster.read(|state| state.nodes[&ground.node].node.clone());
    assert_eq!((&*known.node_class, &*known.datacenter), ("edge", "dc1"));
    assert!(known.drivers["raw_exec"].healthy && known.attributes.contains_key("kernel.name"));

    let key = ground.submit(&service("web", 100_001));
    let first = ground.alloc(&key);
    ground.reaches(&first.id, &ClientStatus::Running);
    ground.until("it is healthy", || {
        let healthy = ground.cluster.alloc(&first.id).and_then(|alloc| alloc.deployment_status?.healthy);
        healthy == Some(true)
    });
    ground.until("its deployment has ended", || ground.cluster.deployment(&key) == "successful");
    let member = ground.agent.single("web.g[0]", "t");
    assert_eq!(host::arguments(member.pid).unwrap(), ["/bin/sleep", "100001"]);
    let port = first.allocated_resources.unwrap().shared.ports[0].value;
    let environment = std::fs::read_to_string(format!("/proc/{}/environ", member.pid)).unwrap();
    for expected in [format!("NOMAD_PORT_http={port}"), format!("NOMAD_ALLOC_ID={}", first.id)] {
        assert!(environment.split('\0').any(|variable| variable == expected), "{expected}: {environment:?}");
    }

    ground.agent.crash();
    ground
        .until("the node is ready again", || ground.cluster.status(&ground.node) == Some(NodeStatus::Ready));
    assert_eq!(ground.agent.single("web.g[0]", "t").pid, member.pid, "the agent adopted the process");

    ground.submit(&service("web", 100_002));
    ground.until("another process runs", || {
        let other = ground.cluster.allocs_of(&key).into_iter().find(|alloc| alloc.id != first.id);
        other.is_some_and(|alloc| alloc.client_status == ClientStatus::Running)
    });
    ground.reaches(&first.id, &ClientStatus::Complete);
    assert!(!host::is_alive(member.pid));

    {
        let _guard = ground.runtime.enter();
        ground.cluster.stop_job(&key, true);
    }
    for alloc in ground.cluster.allocs_of(&key) {
        ground.reaches(&alloc.id, &ClientStatus::Complete);
    }
    assert!(ground.agent.members().is_empty());
    ground.finish();
}

#[test]
fn failures_are_reported_with_code_or_feature_name() {
    if !is_root() {
        return;
    }
    let ground = NodeTest::start_with("vault: {default: {address: \"http://127.0.0.1:1\"}}\n");
    let mut job = service("bad", 1);
    job["Type"] = "batch".into();
    job["TaskGroups"][0]["Update"] = Value::Null;
    job["TaskGroups"][0]["RestartPolicy"] =
        json!({ "Attempts": 0, "Interval": 60_000_000_000_i64, "Delay": 1_000_000_000, "Mode": "fail" });
    job["TaskGroups"][0]["Tasks"][0]["Config"] = json!({ "command": "/bin/sh", "args": ["-c", "exit 7"] });
    let alloc = ground.alloc(&ground.submit(&job));
    ground.reaches(&alloc.id, &ClientStatus::Failed);
    let state = ground.cluster.alloc(&alloc.id).unwrap().task_states["t"].clone();
    assert!(state.events.iter().any(|event| event.kind == "Terminated" && event.exit_code == 7));

    let mut job = service("vault", 1);
    job["TaskGroups"][0]["Tasks"][0]["Vault"] = json!({ "Policies": ["db"] });
    let alloc = ground.alloc(&ground.submit(&job));
    ground.reaches(&alloc.id, &ClientStatus::Failed);
    let state = ground.cluster.alloc(&alloc.id).unwrap().task_states["t"].clone();
    let texts: Vec<&str> = state.events.iter().map(|event| &*event.display_message).collect();
    assert!(texts.iter().any(|text| text.contains("the servers derive none (1.10 and later)")), "{texts:?}");
    ground.finish();
}

/// As servers through 1.9 do for tasks without an identity.
#[test]
fn a_token_of_vault_that_servers_derive_is_unwrapped_and_renewed() {
    let Some(mut bao) = is_root().then(OpenBao::prepare).flatten() else { return };
    bao.launch();
    let ground = NodeTest::start_with(&bao.config());
    let wrapped = bao.wrapped_token("4s");
    let answer = DeriveResponse {
        tasks: [("t".to_owned(), wrapped.clone().into())].into(),
        ..DeriveResponse::default()
    };
    ground.cluster.set_answer("Node.DeriveVaultToken", &answer).unwrap();
    let mut job = service("derived", 1);
    job["TaskGroups"][0]["Tasks"][0]["Vault"] =
        json!({ "Policies": ["db"], "Env": true, "ChangeMode": "noop" });
    job["TaskGroups"][0]["Tasks"][0]["Config"] = json!({ "command": "/bin/sleep", "args": ["100000"] });
    let alloc = ground.alloc(&ground.submit(&job));
    ground.reaches(&alloc.id, &ClientStatus::Running);
    let file = format!("alloc/{}/t/secrets/vault_token", alloc.id);
    let token = std::fs::read_to_string(ground.agent.home.state().join(file)).unwrap();
    assert!(token != wrapped && bao.look_up(&token).is_some());
    wait::until_true("it is renewed", || {
        let known = bao.look_up(&token).unwrap();
        known["last_renewal_time"].as_u64() > known["creation_time"].as_u64().map(|at| at + 4)
    });
    assert_eq!(ground.cluster.requests("Node.DeriveVaultToken").len(), 1);
    assert!(!ground.agent.log().contains(&token) && !ground.agent.log().contains(&wrapped));
    ground.finish();
}

/// The calls behind `nomad alloc logs`, `alloc restart` and `node status -self`.
#[test]
fn servers_and_people_reach_what_runs_on_the_node() {
    if !is_root() {
        return;
    }
    let ground = NodeTest::start();
    let mut job = service("told", 1);
    job["TaskGroups"][0]["Tasks"][0]["Config"] =
        json!({ "command": "/bin/sh", "args": ["-c", "echo hello; exec sleep 100000"] });
    let alloc = ground.alloc(&ground.submit(&job));
    ground.reaches(&alloc.id, &ClientStatus::Running);

    let asked = json!({
        "AllocID": alloc.id.to_string(), "Task": "t", "LogType": "stdout", "Origin": "start", "Offset": 0, "PlainText": true,
        "Follow": false, "Region": "global",
    });
    let logs = async {
        let mut stream =
            ground.cluster.stream_to_node(&ground.node, "FileSystem.Logs", &asked).await.unwrap();
        let mut output = String::new();
        while let Ok(Some(frame)) = stream.receive::<StreamFrame>().await {
            output.push_str(&String::from_utf8_lossy(&frame.payload));
        }
        output
    };
    ground.agent.until_logged(&alloc.id.to_string(), "t", "stdout", |log| log == "hello\n");
    assert_eq!(ground.runtime.block_on(logs), "hello\n");

    let pid = ground.agent.single("told.g[0]", "t").pid;
    let asked = json!({ "AllocID": alloc.id.to_string(), "TaskName": "t", "Region": "global" });
    let restarted = ground.cluster.call_node::<_, Nothing>(&ground.node, "Allocations.Restart", &asked);
    ground.runtime.block_on(restarted).unwrap();
    ground.until("it was restarted", || {
        ground.agent.members().iter().any(|member| member.task == "t" && member.pid != pid)
    });

    let peer = Peer::Port(ground.port);
    let own = http::request(&peer, "GET", "/v1/agent/self", &[], "").unwrap();
    assert!(own.status == 200 && own.body.contains(&ground.node.to_string()), "{own:?}");
    let shown = http::request(
        &peer,
        "GET",
        &format!("/v1/client/fs/logs/{}?task=t&type=stdout&plain=true", alloc.id),
        &[],
        "",
    );
    assert_eq!(shown.unwrap().body.lines().next(), Some("hello"));
    ground.finish();
}

#[derive(serde::Deserialize)]
struct Nothing {}
