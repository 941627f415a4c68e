//! Volumes from the allocation's own directories, which need no permission: the engine gets them as mounts of the agent.

use std::{fs, path::Path};

use herdlet_e2e::{agent::Agent, engine::Engine, wait};

use super::{container, containers_of, finish, on_every_engine, running_of};
use crate::common::job;

on_every_engine!(
    paths_of_the_allocation_are_mounted_and_no_mount_remains,
    a_task_that_exchanges_a_volume_and_a_link_gets_nothing_of_the_machine,
);

/// Checks that no mount for an engine is left below the agent's directory.
fn none_remains(agent: &Agent) {
    let text = || fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    wait::until_true("no mount for the engine remains", || !text().lines().any(|line| is_pin(line, agent)));
}

fn is_pin(line: &str, agent: &Agent) -> bool {
    let point = line.split(' ').nth(4).unwrap_or_default();
    Path::new(point).starts_with(agent.home.state()) && point.contains("/pins/")
}

fn paths_of_the_allocation_are_mounted_and_no_mount_remains(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    let prepare = "mkdir -p $NOMAD_ALLOC_DIR/data/dir; echo shared > $NOMAD_ALLOC_DIR/data/dir/f; echo one > $NOMAD_ALLOC_DIR/data/file";
    let first = container("first", prepare, "", "lifecycle: {hook: prestart}");
    let config = "volumes: [\"local/new/deep:/new\", \"../alloc/data/file:/etc/one:ro\"]\n\
                  mount: [{type: bind, source: ../alloc/data/dir, target: /dir}]";
    let script = "cat /dir/f /etc/one; echo x > /new/x; cat /local/new/deep/x; touch /etc/one 2>/dev/null || echo readonly; \
                  exec sleep 100000";
    agent.apply_and_wait(&job("paths", "service", "", &[first, container("t", script, config, "")]));
    let alloc = agent.alloc("paths.g[0]").unwrap().id();
    agent.until_logged(&alloc, "t", "stdout", |log| log == "shared\none\nx\nreadonly\n");
    none_remains(&agent);
    // The next agent adopts the container, which keeps its volumes.
    let before = running_of(&engine, &agent);
    agent.crash();
    agent.cli(&["wait", "paths"]).success();
    assert_eq!(running_of(&engine, &agent), before);
    assert_eq!(
        agent.cli(&["exec", "paths", "--", "cat", "/new/x", "/dir/f"]).success().stdout,
        "x\nshared\n"
    );
    agent.cli(&["restart", "paths"]).success();
    agent.until_logged(&alloc, "t", "stdout", |log| log.matches("readonly\n").count() == 2);
    none_remains(&agent);
    finish(&engine, agent);
}

/// A task of the same allocation exchanges a directory and a link all the time: the engine mounted whatever the link led to, if that
/// happened between the agent's check and its own.
fn a_task_that_exchanges_a_volume_and_a_link_gets_nothing_of_the_machine(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    let machine = agent.home.path().join("machine");
    fs::create_dir(&machine).unwrap();
    fs::write(machine.join("secret"), "a secret of the machine").unwrap();
    let exchange = format!(
        "cd /alloc/data; echo ready; while :; do rm -rf x; mkdir x; rm -rf x; ln -s {} x; rm -f x; done",
        machine.display()
    );
    let attacker = container("attacker", &exchange, "", "lifecycle: {hook: prestart, sidecar: true}");
    let victim = container("victim", "ls -A /x; echo done", "volumes: [\"../alloc/data/x:/x\"]", "");
    let group = "count: 3\nrestart: {attempts: 3, interval: 1h, delay: 0s, mode: fail}\nreschedule: {attempts: 0, unlimited: false}";
    agent.apply(&job("exchange", "batch", group, &[attacker, victim]));
    for index in 0..3 {
        let name = format!("exchange.g[{index}]");
        let alloc = agent.until_alloc(&name, "has ended", |alloc| alloc.state("victim") == "dead");
        let log = agent.task_log(&alloc.id(), "victim", "stdout");
        assert!(!log.contains("secret"), "{log}");
    }
    none_remains(&agent);
    assert_eq!(fs::read_to_string(machine.join("secret")).unwrap(), "a secret of the machine");
    wait::until_true("ended containers are removed", || containers_of(&engine, &agent).is_empty());
    finish(&engine, agent);
}
