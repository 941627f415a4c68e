//! Crashes of the agent while containers start, run, write and end.
//!
//! 20 restarts with 10 containers; `HERDLET_TEST_RESTARTS` and `HERDLET_TEST_CONTAINERS` set other numbers. At the end each
//! task has exactly one container, no attempt has started twice, and every line that a task has written is in its log once.

use std::{collections::BTreeSet, time::Duration};

use herdlet_e2e::{engine::Engine, random::Rng, wait};

use super::{container, containers_of, finish, networks, on_every_engine, remove, running_of};
use crate::common::job;

on_every_engine!(agents_are_killed_while_their_containers_run);

fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn agents_are_killed_while_their_containers_run(engine: Engine<'_>) {
    let (restarts, count) = (number("HERDLET_TEST_RESTARTS", 20), number("HERDLET_TEST_CONTAINERS", 10));
    let seed = u64::from(std::process::id());
    eprintln!("seed {seed}");
    let mut random = Rng::new(seed);
    // A busy engine creates a container after its agent was killed: nothing claims it.
    let mut agent = engine.agent("gc: {dangling_containers: {period: 2s, creation_grace: 10s}}");
    // Half of them end by themselves at different times and are started again.
    let restart = "restart: {attempts: 1000, interval: 1h, delay: 10ms, mode: delay}";
    let steady = "echo start; i=0; while :; do i=$((i+1)); echo $i; sleep 0.2; done";
    let brief = "echo start; sleep 0.$((RANDOM % 9)); exit $((RANDOM % 2))";
    let steady_job = |release: usize| {
        let task = container("t", steady, "", &format!("env: {{RELEASE: \"{release}\"}}"));
        job("steady", "service", &format!("{restart}\ncount: {}", count / 2), &[task])
    };
    agent.apply(&steady_job(0));
    agent.apply(&job(
        "brief",
        "service",
        &format!("{restart}\ncount: {}", count - count / 2),
        &[container("t", brief, "", "")],
    ));
    // Both containers of a group join its network.
    let pair = ["a", "b"].map(|name| container(name, brief, "network_mode: \"\"", ""));
    let shared = format!("{restart}\ncount: 2\nnetwork: {{mode: bridge}}");
    agent.apply(&job("shared", "service", &shared, &pair));
    for round in 0..restarts {
        match random.below(4) {
            0 => agent.apply(&steady_job(round)),
            1 => {
                agent.cli(&["restart", "brief"]);
            }
            _ => {}
        }
        wait::pause(Duration::from_millis(random.below(400)));
        agent.kill();
        if random.below(3) == 0
            && let Some(id) = running_of(&engine, &agent).first()
        {
            remove(&engine, &agent, id);
        }
        agent.launch();
        let found = containers_of(&engine, &agent);
        let names: BTreeSet<String> = found
            .iter()
            .map(|found| {
                format!("{} {}", found["Labels"]["herdlet.attempt"], found["Labels"]["herdlet.pause"])
            })
            .collect();
        assert_eq!(names.len(), found.len(), "an attempt or a network has two containers: {found:#?}");
    }
    agent.cli(&["delete", "brief", "--wait"]).success();
    agent.apply_and_wait(&job("shared", "service", &shared, &pair.map(|task| task.replace(brief, steady))));
    networks::expect_together(&engine, &agent, "shared", 2);
    agent.cli(&["delete", "shared", "--wait"]).success();
    agent.apply_and_wait(&steady_job(restarts));
    wait::until_true("each task has one container", || {
        containers_of(&engine, &agent).len() == count / 2 && running_of(&engine, &agent).len() == count / 2
    });
    for index in 0..count / 2 {
        let alloc = agent.alloc(&format!("steady.g[{index}]")).unwrap();
        let starts = alloc.events("t").iter().filter(|kind| *kind == "Started").count();
        assert_eq!(starts as u64, 1 + alloc.restarts("t"), "{:#}", alloc.0);
        let log = agent
            .until_logged(&alloc.id(), "t", "stdout", |log| log.ends_with('\n') && log.contains("\n3\n"));
        let mut expected = 0;
        for line in log.lines() {
            if line == "start" {
                expected = 0;
            } else {
                expected += 1;
                assert_eq!(line, expected.to_string(), "{log}");
            }
        }
    }
    finish(&engine, agent);
}
