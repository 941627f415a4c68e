//! Networks that groups share, with containers in them: one network for containers and processes, over crashes, lost
//! namespaces and lost pause containers.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use herdlet_e2e::{
    agent::{Agent, Setup},
    engine::{Engine, IMAGE, Kind},
    host::{self, Member},
    http, wait,
};
use rustix::{
    mount::{UnmountFlags, unmount},
    process::Signal,
};
use serde_json::{Value, json};

use super::{container, containers_of, finish, on_both_engines, on_own_engine, running_of};
use crate::common::{indented, job, patient};

on_both_engines!(
    containers_and_processes_share_a_network_over_crashes,
    a_network_without_a_connection_is_shared,
    a_lost_network_is_made_again_and_the_group_restarts_once,
    names_are_those_of_the_group,
    the_example_serves_in_a_network_of_its_own,
    a_lost_pause_container_harms_no_task,
);
on_own_engine!(
    containers_and_processes_share_a_network_over_crashes,
    a_network_without_a_connection_is_shared,
    a_lost_network_is_made_again_and_the_group_restarts_once,
    names_are_those_of_the_group,
    the_example_serves_in_a_network_of_its_own,
);

const HTTPD: &str = "mkdir -p /local/www; echo \"at $NOMAD_ALLOC_ADDR_http\" >/local/www/index.html; \
                     trap 'exit 0' INT TERM; httpd -f -p $NOMAD_PORT_http -h /local/www & wait";

/// A process of the machine in the network of its group.
pub(super) fn process(name: &str) -> String {
    let task =
        format!("- name: {name}\n  driver: raw_exec\n  config: {{command: sleep, args: [\"100000\"]}}\n");
    indented(&task, 8)
}

fn bridged() -> String {
    "network: {mode: bridge, ports: {http: {to: 8080}}}\nrestart: {attempts: 100, interval: 1h, delay: 50ms, mode: delay}\n"
        .to_owned()
}

/// The containers of an agent through which others join a network.
fn pauses(engine: &Engine<'_>, agent: &Agent) -> Vec<Value> {
    let is_pause = |found: &Value| found["Labels"].get("herdlet.pause").is_some();
    containers_of(engine, agent).into_iter().filter(is_pause).collect()
}

fn expected_pauses(engine: &Engine<'_>) -> usize {
    match engine.kind {
        Kind::Docker => 1,
        Kind::Podman | Kind::Builtin => 0,
    }
}

fn pid_of(engine: &Engine<'_>, found: &Value) -> u32 {
    let about = engine.inspect(found["Id"].as_str().unwrap()).unwrap();
    u32::try_from(about["State"]["Pid"].as_u64().unwrap()).unwrap()
}

fn namespace_of(pid: u32) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/net")).unwrap()
}

/// The process of the container of a task that runs.
fn task_pid(engine: &Engine<'_>, agent: &Agent, alloc: &str) -> u32 {
    if engine.kind == Kind::Builtin {
        let of_task = |pid: &Member| pid.alloc == alloc && pid.task == "t";
        return wait::until("its container runs", || agent.members().into_iter().find(of_task)).pid;
    }
    let of_task = |found: &&Value| {
        found["State"] == "running"
            && found["Labels"].get("herdlet.attempt").is_some()
            && found["Labels"].to_string().contains(alloc)
    };
    wait::until("its container runs", || {
        let found = containers_of(engine, agent);
        found.iter().find(of_task).map(|found| pid_of(engine, found))
    })
}

/// Waits until all containers of each allocation of a job run in one network, with one pause container where there are any.
pub(super) fn expect_together(engine: &Engine<'_>, agent: &Agent, job: &str, count: usize) {
    for index in 0..count {
        let alloc = agent.alloc(&format!("{job}.g[{index}]")).unwrap().id();
        wait::until_true("its containers share a network", || {
            if engine.kind == Kind::Builtin {
                let members = agent.members().into_iter().filter(|member| member.alloc == alloc);
                let (tasks, namespaces): (BTreeSet<String>, BTreeSet<PathBuf>) = members
                    .filter_map(|member| {
                        Some((member.task, fs::read_link(format!("/proc/{}/ns/net", member.pid)).ok()?))
                    })
                    .unzip();
                return tasks.len() == 2 && namespaces.len() == 1;
            }
            let mut found = engine.containers(&alloc);
            let pauses = found.iter().filter(|found| found["Labels"].get("herdlet.pause").is_some()).count();
            found.retain(|found| found["State"] == "running");
            let pids = found.iter().filter_map(|found| engine.inspect(found["Id"].as_str()?));
            let pids = pids.filter_map(|about| about["State"]["Pid"].as_u64());
            let namespaces: BTreeSet<PathBuf> =
                pids.filter_map(|pid| fs::read_link(format!("/proc/{pid}/ns/net")).ok()).collect();
            pauses == expected_pauses(engine) && found.len() == 2 + pauses && namespaces.len() == 1
        });
    }
}

fn until_answered(port: u16, body: &str) {
    wait::until_true("it answers", || {
        http::poll_task(port, "/").is_some_and(|answer| answer.body.trim() == body)
    });
}

fn containers_and_processes_share_a_network_over_crashes(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    let group = format!(
        "{}services:\n  - {{name: web, port: http}}\n  - {{name: inside, port: http, address_mode: alloc}}\n",
        bridged()
    );
    let tasks = [container("t", HTTPD, "ports: [http]", ""), process("beside")];
    agent.apply_and_wait(&job("mixed", "service", &group, &tasks));
    let alloc = agent.alloc("mixed.g[0]").unwrap();
    let port = alloc.port("http").unwrap();
    let shown = |task: &str, script: &str| {
        let arguments = ["exec", "mixed.g[0]", "--task", task, "--", "sh", "-c", script];
        agent.cli(&arguments).success().stdout.trim().to_owned()
    };
    let address = shown("t", "echo $NOMAD_ALLOC_IP_http");
    assert!(address.starts_with("10."), "{address}");
    until_answered(port, &format!("at {address}:8080"));
    // Both have the same interfaces, and reach each other at 127.0.0.1.
    assert_eq!(shown("t", "ls /sys/class/net"), "eth0\nlo");
    assert_eq!(shown("t", "cat /proc/net/route"), shown("beside", "cat /proc/net/route"));
    let fetch = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8080').read().decode())";
    let fetched = agent.cli(&["exec", "mixed.g[0]", "--task", "beside", "--", "python3", "-c", fetch]);
    assert_eq!(fetched.success().stdout.trim(), format!("at {address}:8080"));
    let hosts = agent.home.state().join("alloc").join(alloc.id()).join(".network/hosts");
    assert_eq!(shown("t", "cat /etc/hosts"), fs::read_to_string(hosts).unwrap().trim());
    let name = shown("t", "hostname");
    if engine.kind == Kind::Docker {
        assert!(shown("t", "cat /etc/hosts").contains(&format!("{address} {name}")), "{name}");
    }
    let of = |service: &str| {
        let listed = http::get(&agent.peer(), &format!("/v1/service/{service}")).unwrap().json();
        format!("{}:{}", listed[0]["Address"].as_str().unwrap(), listed[0]["Port"])
    };
    assert_eq!(of("web"), format!("127.0.0.1:{port}"));
    assert_eq!(of("inside"), format!("{address}:8080"));
    assert_eq!(pauses(&engine, &agent).len(), expected_pauses(&engine));

    let running = running_of(&engine, &agent);
    agent.kill();
    until_answered(port, &format!("at {address}:8080"));
    agent.launch();
    agent.cli(&["wait", "mixed"]).success();
    assert_eq!(running_of(&engine, &agent), running, "nothing was started again");
    until_answered(port, &format!("at {address}:8080"));
    agent.cli(&["restart", "mixed", "--wait"]).success();
    until_answered(port, &format!("at {address}:8080"));
    assert_eq!(pauses(&engine, &agent).len(), expected_pauses(&engine));
    assert_eq!(agent.cli(&["status", "--check"]).code, 0);
    finish(&engine, agent);
}

fn a_network_without_a_connection_is_shared(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    let tasks = [container("t", "sleep 100000", "network_mode: \"\"", ""), process("beside")];
    agent.apply_and_wait(&job("alone", "service", "network: {mode: none}\n", &tasks));
    let alloc = agent.alloc("alone.g[0]").unwrap();
    assert_eq!(
        agent.cli(&["exec", "alone", "--task", "t", "--", "ls", "/sys/class/net"]).success().stdout,
        "lo\n"
    );
    let container = task_pid(&engine, &agent, &alloc.id());
    let beside = agent.single("alone.g[0]", "beside").pid;
    assert_eq!(namespace_of(container), namespace_of(beside));
    assert_ne!(namespace_of(container), namespace_of(std::process::id()));
    finish(&engine, agent);
}

fn a_lost_network_is_made_again_and_the_group_restarts_once(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    let tasks = [container("t", HTTPD, "ports: [http]", ""), process("beside")];
    agent.apply_and_wait(&job("lost", "service", &bridged(), &tasks));
    let alloc = agent.alloc("lost.g[0]").unwrap();
    let before = namespace_of(task_pid(&engine, &agent, &alloc.id()));
    agent.kill();
    let instance = agent.home.instance().unwrap();
    let pin = Path::new("/run/herdlet").join(instance).join("netns").join(alloc.id());
    unmount(&pin, UnmountFlags::DETACH).unwrap();
    fs::remove_file(&pin).unwrap();
    agent.launch();
    agent.until_alloc("lost.g[0]", "the tasks were restarted", |alloc| {
        ["t", "beside"].iter().all(|task| {
            let starts = alloc.events(task).iter().filter(|kind| *kind == "Started").count();
            starts == 2 && alloc.state(task) == "running"
        })
    });
    agent.cli(&["wait", "lost"]).success();
    let after = namespace_of(task_pid(&engine, &agent, &alloc.id()));
    assert_ne!(after, before);
    assert_eq!(after, namespace_of(agent.single("lost.g[0]", "beside").pid));
    let pauses = pauses(&engine, &agent);
    assert_eq!(pauses.len(), expected_pauses(&engine));
    assert!(pauses.iter().all(|pause| namespace_of(pid_of(&engine, pause)) == after));
    let address =
        agent.cli(&["exec", "lost", "--task", "t", "--", "sh", "-c", "echo $NOMAD_ALLOC_ADDR_http"]);
    until_answered(alloc.port("http").unwrap(), &format!("at {}", address.success().stdout.trim()));
    finish(&engine, agent);
}

fn a_lost_pause_container_harms_no_task(engine: Engine<'_>) {
    if engine.kind == Kind::Podman {
        return;
    }
    let mut agent = engine.agent("");
    let task = container("t", HTTPD, "ports: [http]", "");
    agent.apply_and_wait(&job("pause", "service", &bridged(), &[task]));
    let alloc = agent.alloc("pause.g[0]").unwrap();
    let port = alloc.port("http").unwrap();
    let address = agent.cli(&["exec", "pause", "--", "sh", "-c", "echo $NOMAD_ALLOC_ADDR_http"]);
    let address = address.success().stdout.trim().to_owned();
    let [pause] = pauses(&engine, &agent).try_into().unwrap();
    // It has no capability once it is in the namespace.
    let status = fs::read_to_string(format!("/proc/{}/status", pid_of(&engine, &pause))).unwrap();
    let none = |set: &str| status.contains(&format!("{set}:\t0000000000000000"));
    assert!(none("CapEff") && none("CapPrm") && none("CapInh") && none("CapAmb"), "{status}");
    host::signal(pid_of(&engine, &pause), Signal::KILL);
    until_answered(port, &format!("at {address}"));
    agent.cli(&["restart", "pause", "--wait"]).success();
    until_answered(port, &format!("at {address}"));
    let [again] = pauses(&engine, &agent).try_into().unwrap();
    assert_ne!(again["Id"], pause["Id"]);

    // It goes with the last task.
    let name = pause["Names"][0].as_str().unwrap().trim_start_matches('/').to_owned();
    agent.cli(&["stop", "pause"]).success();
    wait::until_true("its containers are gone", || containers_of(&engine, &agent).is_empty());
    finish(&engine, agent);
    assert!(engine.inspect(&name).is_none());
}

fn names_are_those_of_the_group(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    let more = "ports: [http]\nextra_hosts: [\"db:10.0.0.5\", \"cache:fd00::1\"]";
    let own = "volumes: [\"local/hosts:/etc/hosts\"]\nports: [http]";
    let apart = "network_mode: none\nhostname: other";
    let write = "lifecycle: {hook: poststart, sidecar: true}";
    let tasks = [
        container("t", "sleep 100000", more, ""),
        container(
            "own",
            "sleep 100000",
            own,
            "templates: [{data: \"10.0.0.6 mine\\n\", destination: local/hosts}]",
        ),
        container("apart", "sleep 100000", apart, write),
    ];
    let group = bridged().replace("mode: bridge,", "mode: bridge, hostname: \"box-${NOMAD_ALLOC_INDEX}\",");
    agent.apply_and_wait(&job("names", "service", &group, &tasks));
    let alloc = agent.alloc("names.g[0]").unwrap();
    let shown = |task: &str, script: &str| {
        let arguments = ["exec", "names", "--task", task, "--", "sh", "-c", script];
        agent.cli(&arguments).success().stdout
    };
    let hosts = agent.home.state().join("alloc").join(alloc.id()).join(".network/hosts");
    let shared = fs::read_to_string(hosts).unwrap();
    assert_eq!(shown("t", "cat /etc/hosts"), format!("{shared}10.0.0.5 db\nfd00::1 cache\n"));
    assert_eq!(shown("t", "hostname"), "box-0\n");
    assert!(shared.lines().last().unwrap().ends_with(" box-0"), "{shared}");
    assert_eq!(shown("own", "cat /etc/hosts"), "10.0.0.6 mine\n");
    assert_eq!(shown("apart", "hostname; ls /sys/class/net"), "other\nlo\n");
    assert!(!shown("apart", "cat /etc/hosts").contains(shared.lines().last().unwrap()));
    let described = agent.cli(&["describe", "names"]).success().stdout;
    assert!(
        described.contains("it does not use the network of its group: its network_mode is \"none\""),
        "{described}"
    );

    let refused = container("t", "sleep 100000", "ports: [http]\nhostname: box", "");
    let file = agent.home.write("refused.yaml", &job("refused", "service", &bridged(), &[refused]));
    let answer = agent.cli(&["apply", "-f", file.to_str().unwrap()]);
    assert!(answer.code != 0 && answer.stderr.contains("config.hostname"), "{answer:?}");
    finish(&engine, agent);
}

fn the_example_serves_in_a_network_of_its_own(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    agent.apply_and_wait(&patient("bridge-docker").replace("busybox:1.36", IMAGE));
    let ports = [0, 1].map(|index| {
        let name = format!("bridge-docker.web[{index}]");
        let port = agent.alloc(&name).unwrap().port("http").unwrap();
        until_answered(port, &format!("hello from {name}"));
        port
    });
    assert_ne!(ports[0], ports[1]);
    finish(&engine, agent);
}

/// Docker drops packets that are forwarded, unless a rule accepts them.
#[test]
fn ports_reach_the_network_although_docker_drops_what_is_forwarded() {
    super::on_shared(Kind::Docker, |engine| {
        let network = engine.request("GET", "/networks/bridge", &Value::Null).json();
        let subnet = network["IPAM"]["Config"][0]["Subnet"].as_str().unwrap().to_owned();
        let machine = subnet.replace(".0/16", ".1");
        let config = engine.config("").replace("host_ip: 127.0.0.1", &format!("host_ip: {machine}"));
        let mut agent = Agent::start_with(Setup::default().config(config));
        agent.apply_and_wait(&job(
            "web",
            "service",
            &bridged(),
            &[container("t", HTTPD, "ports: [http]", "")],
        ));
        let port = agent.alloc("web.g[0]").unwrap().port("http").unwrap();
        // From another network of the machine: its packets are forwarded.
        let script = format!("until wget -q -O - http://{machine}:{port}/; do sleep 0.1; done");
        let body =
            json!({ "Image": IMAGE, "Cmd": ["sh", "-c", script], "HostConfig": { "NetworkMode": "bridge" } });
        let client = engine.start_as(&format!("client-{}", std::process::id()), &body);
        let state = wait::until("it has ended", || {
            let state = engine.inspect(&client)?["State"].clone();
            (state["Status"] == "exited").then_some(state)
        });
        assert_eq!(state["ExitCode"], 0, "{state:#}");
        engine.remove(&client);
        finish(&engine, agent);
    });
}
