//! Allocations of a group that share data restart in turns.

use std::fs;

use herdlet_e2e::{agent::Agent, wait};

use super::{greeting, put, quick, recorded, template, templates, until_file};
use crate::common::{is_root, job, shell};

const NAMES: [&str; 3] = ["turns.g[0]", "turns.g[1]", "turns.g[2]"];

fn starts(agent: &Agent) -> Vec<usize> {
    NAMES
        .iter()
        .map(|name| recorded(agent, name, "t").iter().filter(|line| *line == "start").count())
        .collect()
}

/// A task holds the lock from its stop until it has begun again, which takes until `go` exists.
fn script(agent: &Agent) -> String {
    let path = |name: &str| agent.home.path().join(name).display().to_string();
    let (lock, go) = (path("lock"), path("go"));
    format!(
        "trap 'rm -f local/healthy; [ -e local/holds ] || mkdir {lock} || echo broken >> local/log; touch local/holds; exit 0' INT TERM\n\
         echo start >> local/log\n\
         if [ -e local/holds ]; then while [ ! -e {go} ]; do sleep 0.02; done; rm local/holds; rmdir {lock}; fi\n\
         touch local/healthy\n\
         while :; do sleep 0.05; done"
    )
}

#[test]
fn replicas_restart_one_after_the_other() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/turns", &["greeting=0"]);
    let more = format!(
        "kill_timeout: 1m\nservices: [{{name: turns, provider: nomad, checks: [{{name: ok, type: script, command: /bin/sh, args: [-c, \"test -e local/healthy\"], interval: 1s, timeout: 2m}}]}}]\n{}",
        templates(&[template(&greeting("turns"), "local/conf", "")])
    );
    let group = "count: 3\nupdate: {max_parallel: 1, health_check: checks, min_healthy_time: 0s, healthy_deadline: 5m, progress_deadline: 10m}";
    agent.apply_and_wait(&job("turns", "service", group, &[shell("t", &script(&agent), &more)]));
    wait::until_true("all have begun", || starts(&agent) == [1, 1, 1]);
    put(&agent, "nomad/jobs/turns", &["greeting=1"]);
    let sum = |agent: &Agent| starts(agent).iter().sum::<usize>();
    wait::until_true("one restarts", || sum(&agent) == 4);
    agent.until_printed(&["explain", "turns"], |text| text.contains("restart"));
    // Later changes, and a new agent, do not let the others restart.
    for value in ["2", "3"] {
        put(&agent, "nomad/jobs/turns", &[&format!("greeting={value}")]);
        NAMES.iter().for_each(|name| until_file(&agent, name, ("t/local/conf", value)));
        agent.crash();
    }
    agent.cli(&["status", "turns"]);
    assert_eq!(starts(&agent).iter().filter(|starts| **starts == 1).count(), 2, "{:?}", starts(&agent));
    fs::write(agent.home.path().join("go"), "").unwrap();
    wait::until_true("each of the others restarts", || starts(&agent).iter().all(|starts| *starts >= 2));
    agent.cli(&["wait", "turns"]).success();
    let all = starts(&agent);
    assert_eq!(
        all.iter().filter(|starts| **starts == 2).count(),
        2,
        "several changes are one restart: {all:?}"
    );
    for name in NAMES {
        until_file(&agent, name, ("t/local/conf", "3"));
        assert!(
            !recorded(&agent, name, "t").contains(&"broken".to_owned()),
            "two restarted at the same time"
        );
    }
    agent.finish();
}
