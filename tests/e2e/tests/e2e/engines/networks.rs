//! Networks of groups with containers, over restarts of the daemon and deaths of the agent.

use std::{fs, path::PathBuf, time::Duration};

use herdlet_e2e::{
    agent::Agent,
    engine::{Engine, Engines},
    wait,
};
use serde_json::Value;

use crate::{
    common::{indented, job},
    containers::{container, containers_of, finish},
};

const GROUP: &str = "network: {mode: bridge, ports: {http: {to: 8080}}}\n\
                     restart: {attempts: 100, interval: 1h, delay: 50ms, mode: delay}\n";

fn server() -> String {
    let script = "mkdir -p /local/www; echo served >/local/www/index.html; trap 'exit 0' INT TERM; \
                  httpd -f -p 8080 -h /local/www & wait";
    container("t", script, "ports: [http]", "")
}

fn process() -> String {
    let task = "- name: beside\n  driver: raw_exec\n  config: {command: sleep, args: [\"100000\"]}\n";
    indented(task, 8)
}

fn is_pause(found: &Value) -> bool {
    found["Labels"].get("herdlet.pause").is_some()
}

/// The network namespaces of the running containers of an allocation; first that of its pause container.
fn namespaces(engine: &Engine<'_>, alloc: &str) -> Vec<PathBuf> {
    let mut found = engine.containers(alloc);
    found.retain(|found| found["State"] == "running");
    found.sort_by_key(|found| !is_pause(found));
    let about = found.iter().filter_map(|found| engine.inspect(found["Id"].as_str()?));
    let pids = about.filter_map(|about| about["State"]["Pid"].as_u64());
    pids.filter_map(|pid| fs::read_link(format!("/proc/{pid}/ns/net")).ok()).collect()
}

fn until_together(engine: &Engine<'_>, alloc: &str, namespace: &PathBuf) {
    wait::until_true("the pause container and the task are in the network", || {
        let found = namespaces(engine, alloc);
        found.len() == 2 && found.iter().all(|found| found == namespace)
    });
}

fn until_served(agent: &Agent) {
    let port = agent.alloc("web.g[0]").unwrap().port("http").unwrap();
    wait::until_true("it answers", || {
        let answer = herdlet_e2e::http::get(&herdlet_e2e::http::Peer::Port(port), "/");
        answer.is_some_and(|answer| answer.body == "served\n")
    });
}

#[test]
fn a_daemon_that_restarts_takes_no_network_with_it() {
    let Some(engines) = Engines::own(&["docker"]) else { return };
    let engine = engines.engine(herdlet_e2e::engine::Kind::Docker);
    let mut agent = engine.agent("");
    agent.apply_and_wait(&job("web", "service", GROUP, &[server(), process()]));
    let alloc = agent.alloc("web.g[0]").unwrap().id();
    let beside = agent.single("web.g[0]", "beside").pid;
    let namespace = fs::read_link(format!("/proc/{beside}/ns/net")).unwrap();
    until_together(&engine, &alloc, &namespace);
    until_served(&agent);
    for (round, options) in [(1, &[][..]), (2, &["--live-restore"][..]), (2, &["--live-restore"][..])] {
        let is_kept = round == agent.alloc("web.g[0]").unwrap().restarts("t");
        if is_kept {
            engine.kill();
            agent.kill();
        } else {
            engine.terminate();
        }
        engine.start(options);
        if is_kept {
            agent.launch();
        }
        agent.until_alloc("web.g[0]", "its container runs", |alloc| {
            alloc.state("t") == "running" && alloc.restarts("t") == round
        });
        until_together(&engine, &alloc, &namespace);
        until_served(&agent);
        assert_eq!(agent.single("web.g[0]", "beside").pid, beside, "the process went on");
        assert_eq!(agent.alloc("web.g[0]").unwrap().restarts("beside"), 0);
    }
    finish(&engine, agent);
}

#[test]
fn agents_that_die_while_groups_start_leave_one_pause_container_for_each() {
    let Some(engines) = Engines::own(&["docker"]) else { return };
    let engine = engines.engine(herdlet_e2e::engine::Kind::Docker);
    let mut agent = engine.agent("gc: {image: false, dangling_containers: {period: 1s, creation_grace: 1s}}");
    for round in 0..6_u64 {
        agent.apply(&job(&format!("web-{round}"), "service", GROUP, &[server()]));
        wait::pause(Duration::from_millis(90 * (round + 1)));
        agent.crash();
    }
    let mut allocs = Vec::new();
    for round in 0..6 {
        agent.cli(&["wait", &format!("web-{round}")]).success();
        allocs.push(agent.alloc(&format!("web-{round}.g[0]")).unwrap().id());
    }
    for alloc in &allocs {
        wait::until_true("a pause container and a task", || {
            let found = engine.containers(alloc);
            found.len() == 2 && found.iter().filter(|found| is_pause(found)).count() == 1
        });
        let [pause, task] = namespaces(&engine, alloc).try_into().unwrap();
        assert_eq!(pause, task);
    }
    for round in 0..6_u64 {
        agent.cli(&["delete", &format!("web-{round}")]).success();
        wait::pause(Duration::from_millis(60 * round));
        agent.crash();
    }
    wait::until_true("no container remains", || containers_of(&engine, &agent).is_empty());
    finish(&engine, agent);
}

/// As with an agent whose unit has mounts of its own.
#[test]
fn an_engine_that_does_not_see_the_network_is_named() {
    let Some(engines) = Engines::apart(&["docker"]) else { return };
    let engine = engines.engine(herdlet_e2e::engine::Kind::Docker);
    let mut agent = engine.agent("");
    let group = "network: {mode: bridge}\nrestart: {attempts: 0, mode: fail}\nreschedule: {attempts: 0, unlimited: false}\n";
    agent.apply(&job("web", "service", group, &[container("t", "sleep 100000", "network_mode: \"\"", "")]));
    agent.until_printed(&["describe", "web"], |text| {
        text.contains("join the network of the group")
            && text.contains("does not see the mounts of this agent")
    });
    wait::until_true("no container remains", || containers_of(&engine, &agent).is_empty());
    finish(&engine, agent);
}
