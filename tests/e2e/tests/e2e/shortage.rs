//! Starts that could not be made for lack of processes or descriptors, on the first agent of a runtime
//! directory, as after each boot. They count as no attempt, no task fails permanently, and all tasks run once
//! the resources suffice.

use std::fs;

use herdlet_e2e::{agent::Agent, environment, http, wait};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::{
    common::{is_root, job, sleeper},
    faults::Pids,
};

/// More tasks than either limit allows.
const TASKS: usize = 60;

/// The policy tolerates one lost attempt; a second one fails the task permanently.
fn manifest() -> String {
    let group = format!("count: {TASKS}\nrestart: {{attempts: 1, interval: 10m, delay: 1s, mode: fail}}");
    job("many", "service", &group, &[sleeper("t", "")])
}

/// Asserts that every task runs in its first attempt, and was never reported as ended.
fn assert_nothing_was_counted(agent: &Agent) {
    let all = wait::until("all tasks run", || {
        let all = agent.allocs();
        let lost = all.iter().find(|alloc| alloc.failed("t") || alloc.restarts("t") > 0);
        assert!(lost.is_none(), "{lost:?}\n{}", agent.log_tail());
        (all.len() == TASKS && all.iter().all(|alloc| alloc.state("t") == "running")).then_some(all)
    });
    for alloc in all {
        let events = alloc.events("t");
        assert!(!events.iter().any(|event| event == "Terminated" || event == "Restarting"), "{events:?}");
    }
    assert_eq!(agent.members().len(), TASKS);
}

#[test]
fn start_without_free_processes_uses_no_attempt() {
    if !is_root() {
        return;
    }
    let Some(group) = Pids::new("boot") else {
        environment::leave_out("there is no pids controller that tests may use");
        return;
    };
    let mut agent = Agent::start();
    group.take(agent.pid());
    group.limit("60");
    agent.apply(&manifest());
    // If supervisors are not in the agent's cgroup, all tasks start.
    let is_short = wait::until("a start hits the limit, or all tasks run", || {
        let is_short = agent.cli(&["explain", "many"]).stdout.contains("Resource temporarily unavailable");
        (is_short || agent.members().len() == TASKS).then_some(is_short)
    });
    if !is_short {
        environment::leave_out(
            "supervisors are not in the agent's group: its limit of processes lets all tasks run",
        );
    }
    group.limit("max");
    assert_nothing_was_counted(&agent);
    agent.finish();
}

#[test]
fn start_without_descriptors_uses_no_attempt() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::prepare(Default::default());
    agent.set_shell("ulimit -S -n 96");
    agent.launch();
    let path = agent.manifest(&manifest()).display().to_string();
    let asked = agent.spawn(&["apply", "-f", &path]);
    // Its API may lack descriptors too.
    wait::until_true("a start hits the limit", || {
        let is_met = agent.log().matches("Too many open files").count() > 1
            || fs::read_dir(format!("/proc/{}/fd", agent.pid())).is_ok_and(|open| open.count() >= 95);
        assert!(is_met || agent.members().len() < TASKS, "all tasks run within the limit");
        is_met
    });
    let pid = Pid::from_raw(i32::try_from(agent.pid()).unwrap());
    // Its hard limit is that of this process.
    let maximum = getrlimit(Resource::Nofile).maximum;
    prlimit(pid, Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let _ = asked.finish();
    agent.apply(&manifest());
    assert_nothing_was_counted(&agent);
    agent.finish();
}

/// Regression: the command counted as run, so the task was killed without it.
#[test]
fn prestop_without_descriptors_runs_later() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let mark = agent.home.path().join("hook");
    let hook = format!(
        "shutdown_delay: 3s\nprestop: {{command: /bin/sh, args: [-c, 'echo ran > {}'], timeout: 5m}}",
        mark.display()
    );
    agent.apply_and_wait(&job("hooked", "service", "", &[sleeper("t", &hook)]));
    agent.cli(&["delete", "hooked"]).success();
    let pid = Pid::from_raw(i32::try_from(agent.pid()).unwrap());
    let before = getrlimit(Resource::Nofile);
    // All descriptor numbers below the limit are in use.
    let open = fs::read_dir(format!("/proc/{}/fd", agent.pid())).unwrap();
    let open: Vec<u64> = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    let current = (0..).find(|number| !open.contains(number));
    prlimit(pid, Resource::Nofile, Rlimit { current, ..before }).unwrap();
    // Long enough for the delay and several attempts. A shorter pause would prove less, but fail nothing.
    wait::pause(std::time::Duration::from_secs(8));
    assert_eq!(agent.members().len(), 1, "the task waits for its prestop command");
    assert!(!mark.exists());
    prlimit(pid, Resource::Nofile, before).unwrap();
    wait::until_true("the command has run", || mark.exists());
    wait::until_true("the task has ended", || agent.members().is_empty());
    agent.finish();
}

/// If the agent can't run a check, the task's state is unknown: nothing is restarted or delisted.
#[test]
fn checks_without_descriptors_affect_no_task() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let restart = "interval: 1s, timeout: 2m, check_restart: {limit: 2, grace: 0s}";
    let checks = [
        format!("{{name: cmd, type: script, command: /bin/true, {restart}}}"),
        format!("{{name: tcp, type: tcp, port: {port}, {restart}}}"),
    ];
    let services = format!("services: [{{name: web, checks: [{}]}}]", checks.join(", "));
    agent.apply_and_wait(&job("checked", "service", "", &[sleeper("t", &services)]));
    let member = agent.single("checked.g[0]", "t");
    let is_listed = || {
        let listed = http::get(&agent.peer(), "/v1/service/web").unwrap().json();
        listed.as_array().is_some_and(|listed| listed.len() == 1)
    };
    wait::until_true("both checks pass", is_listed);
    let pid = Pid::from_raw(i32::try_from(agent.pid()).unwrap());
    let before = getrlimit(Resource::Nofile);
    prlimit(pid, Resource::Nofile, Rlimit { current: Some(12), ..before }).unwrap();
    wait::until_true("a check could not run", || agent.log().contains("a check could not run"));
    // Long enough for several runs of each; a shorter pause would prove less and fail nothing.
    wait::pause(std::time::Duration::from_secs(5));
    prlimit(pid, Resource::Nofile, before).unwrap();
    let alloc = agent.alloc("checked.g[0]").unwrap();
    assert_eq!(alloc.restarts("t"), 0, "{}", agent.log_tail());
    assert_eq!(agent.single("checked.g[0]", "t"), member);
    assert!(is_listed(), "its checks affect the status as before");
    assert_eq!(agent.log().matches("a check could not run").count(), 1);
    drop(listener);
    // The checks run again.
    wait::until_true("the check without a server fails", || {
        agent.alloc("checked.g[0]").is_some_and(|alloc| alloc.restarts("t") > 0)
    });
    agent.finish();
}
