//! The agent as user `nobody`: without HOME, a runtime directory, or writable cgroups.

use herdlet_e2e::{
    agent::{Agent, Setup},
    command::User,
    home::Home,
    host,
    http::{self, Peer},
    ports,
    program::example,
    wait,
};
use rustix::process::Signal;

use crate::common::{is_root, job, patient, shell, sleeper, start_run};

#[test]
fn hello_as_nobody() {
    if !is_root() {
        return;
    }
    let home = Home::new(User::Nobody);
    let manifest = home.write("hello.yaml", &std::fs::read_to_string(example("hello")).unwrap());
    let output = start_run(&home, User::Nobody, &[&manifest]).finish().success();
    assert_eq!(output.stdout, "greet | hello from hello.hello[0]\n", "{}", output.stderr);
    home.until_no_trace();
}

/// It printed nothing, and did not end.
#[test]
fn a_run_ends_with_the_reason_why_a_driver_is_not_offered() {
    if !is_root() {
        return;
    }
    let home = Home::new(User::Nobody);
    let task = "        - name: t\n          driver: exec\n          config: {command: /bin/true}\n";
    let manifest = home.write("m.yaml", &job("isolated", "batch", "", &[task.to_owned()]));
    let output = start_run(&home, User::Nobody, &[&manifest]).finish();
    assert_eq!(output.code, 125, "{}", output.stderr);
    let reason =
        "driver exec is not available: it is not detected: Driver must run as root; run the agent as root";
    assert!(output.stderr.contains(reason), "{}", output.stderr);
    home.until_no_trace();
}

#[test]
fn web_as_nobody_serves_restarts_and_ends() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start_with(Setup::nobody().config(ports::for_tasks()));
    agent.apply_and_wait(&patient("web"));
    for name in ["web.web[0]", "web.web[1]"] {
        let port = agent.alloc(name).unwrap().port("http").unwrap();
        let answer = http::get(&Peer::Port(port), "/").unwrap();
        assert_eq!(answer.status, 200);
    }
    let status = agent.cli(&["status"]).success();
    let everything = format!("{}{}{}", status.stdout, status.stderr, agent.log());
    assert!(everything.contains("isolation"), "the missing isolation is reported: {everything}");
    let pids = servers(&agent.home);
    assert_eq!(pids.len(), 2);
    // After a kill and a restart, the same processes keep running.
    agent.crash();
    agent.cli(&["wait", "web"]).success();
    assert_eq!(servers(&agent.home), pids);
    agent.cli(&["delete", "web", "--wait"]).success();
    wait::until_true("no web server is left", || servers(&agent.home).is_empty());
    agent.finish();
}

#[test]
fn limits_that_have_no_effect_are_warned_about() {
    if !is_root() {
        return;
    }
    let agent = Agent::start_with(Setup::nobody().config(ports::for_tasks()));
    let task = "        - name: t\n          driver: raw_exec\n          config: {command: /bin/sleep, args: ['100000'], pids_limit: 10}\n          \
                resources: {memory: 64}\n";
    let text = job("limited", "service", "", &[task.to_owned()]);
    let file = agent.home.write("limited.yaml", &text).display().to_string();
    let expected = "job limited, task t (memory, pids_limit): these limits have no effect";
    for command in
        [&["apply", "--wait", "-f", &file][..], &["explain", "limited"], &["explain", "limited.g[0]"]]
    {
        let output = agent.cli(command).success();
        assert!(output.stderr.contains(expected), "{command:?}: {}", output.stderr);
    }
    agent.cli(&["delete", "limited", "--wait"]).success();
    let home = Home::new(User::Nobody);
    let file = home.write("run.yaml", &text.replace("type: service", "type: batch").replace("100000", "0"));
    let output = start_run(&home, User::Nobody, &[&file]).finish().success();
    assert!(output.stderr.contains(expected), "{}", output.stderr);
    agent.finish();
}

/// `user: root` was accepted silently, and then failed.
#[test]
fn a_user_that_the_agent_cannot_change_to_is_warned_about() {
    if !is_root() {
        return;
    }
    let agent = Agent::start_with(Setup::nobody().config(ports::for_tasks()));
    let text = job("foreign", "service", "", &[sleeper("t", "user: root")]);
    let file = agent.home.write("foreign.yaml", &text).display().to_string();
    let stderr = agent.cli(&["apply", "-f", &file]).success().stderr;
    let expected = "job foreign, task t: its start will fail to run as user \"root\"";
    assert!(stderr.contains(expected), "{stderr}");
    agent.cli(&["delete", "foreign", "--wait"]).success();
    agent.finish();
}

#[test]
fn a_kill_timeout_above_the_maximum_is_warned_about() {
    let agent = Agent::start_with(Setup::nobody().config(ports::for_tasks()));
    let task = "        - name: t\n          driver: mock\n          kill_timeout: 2m\n          config: {run_for: 1h}\n";
    let file =
        agent.home.write("slow.yaml", &job("slow", "service", "", &[task.to_owned()])).display().to_string();
    for command in [&["apply", "--wait", "-f", &file][..], &["explain", "slow"]] {
        let output = agent.cli(command).success();
        assert!(output.stderr.contains("slow (2m"), "{command:?}: {}", output.stderr);
        assert!(output.stderr.contains("max_kill_timeout"), "{command:?}: {}", output.stderr);
    }
    agent.cli(&["delete", "slow", "--wait"]).success();
    agent.finish();
}

#[test]
fn killed_run_of_nobody_ends_its_forked_tasks() {
    if !is_root() {
        return;
    }
    let home = Home::new(User::Nobody);
    let script = "setsid sh -c 'trap \"\" TERM INT; sleep 1000 & sleep 1000' & echo up; exec sleep 1000";
    let file = home.write("m.yaml", &job("leashed", "service", "", &[shell("t", script, "")]));
    let run = start_run(&home, User::Nobody, &[&file]);
    run.until_stdout("up");
    run.signal(Signal::KILL);
    home.until_no_trace();
    run.finish();
}

/// Returns the web servers whose files are in this home.
fn servers(home: &Home) -> Vec<u32> {
    let found = host::processes_naming(home.path());
    found
        .into_iter()
        .filter(|(_, arguments)| arguments.contains("-m http.server"))
        .map(|(pid, _)| pid)
        .collect()
}
