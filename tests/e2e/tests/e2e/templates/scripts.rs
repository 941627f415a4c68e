//! Scripts that run when an output has changed: their ends, the first render, and changes while one runs.

use std::fs;

use herdlet_e2e::wait;

use super::{greeting, put, quick, recorded, recorder, template, templates, until_file, until_recorded};
use crate::common::{has, is_root, job};

/// A template with a script; `script` is YAML without quotes of the shell.
fn scripted(job: &str, script: &str, more: &str) -> String {
    let args = serde_json::json!(["-c", script]);
    let fields =
        format!("change_mode: script, change_script: {{command: /bin/sh, args: {args}, timeout: 2m{more}}}");
    template(&greeting(job), "local/conf", &fields)
}

const ONCE: &str = "restart: {attempts: 0, mode: fail}\nreschedule: {attempts: 0, unlimited: false}";

#[test]
fn the_end_of_a_script_is_an_event_and_may_fail_the_task() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/ends", &["greeting=0"]);
    let script = "echo exit $(cat local/conf) >> local/log; exit $(cat local/conf)";
    let tasks = |more: &str| [recorder("t", &[scripted("ends", script, more)])];
    agent.apply_and_wait(&job("ends", "service", ONCE, &tasks("")));
    let alloc = "ends.g[0]";
    until_recorded(&agent, (alloc, "t"), &["start"]);
    put(&agent, "nomad/jobs/ends", &["greeting=3"]);
    agent.until_printed(&["describe", "ends"], |text| text.contains("exited with code: 3"));
    put(&agent, "nomad/jobs/ends", &["greeting=0"]);
    until_recorded(&agent, (alloc, "t"), &["start", "exit 3", "exit 0"]);
    agent.until_printed(&["describe", "ends"], |text| text.contains("Exit code: 0"));
    assert_eq!(agent.alloc(alloc).unwrap().state("t"), "running", "a failed script alone does no harm");

    put(&agent, "nomad/jobs/fails", &["greeting=0"]);
    let task = recorder("t", &[scripted("fails", script, ", fail_on_error: true")]);
    agent.apply_and_wait(&job("fails", "service", ONCE, &[task]));
    until_recorded(&agent, ("fails.g[0]", "t"), &["start"]);
    put(&agent, "nomad/jobs/fails", &["greeting=4"]);
    let failed = agent.until_alloc("fails.g[0]", "failed", |alloc| alloc.status() == "failed");
    let events = failed.0["TaskStates"]["t"]["Events"].to_string();
    assert!(events.contains("exited with code: 4") && events.contains("task is being killed"), "{events}");
    agent.finish();
}

#[test]
fn a_script_that_does_not_exist_or_hangs_is_reported() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/odd", &["greeting=one"]);
    let task = |name: &str, script: &str| {
        let fields = format!("change_mode: script, change_script: {script}");
        recorder(name, &[template(&greeting("odd"), "local/conf", &fields)])
    };
    let tasks = [
        task("none", "{command: /no/such/program}"),
        task("hangs", "{command: /bin/sleep, args: [\"100000\"], timeout: 1s}"),
    ];
    agent.apply_and_wait(&job("odd", "service", ONCE, &tasks));
    for name in ["none", "hangs"] {
        until_recorded(&agent, ("odd.g[0]", name), &["start"]);
    }
    put(&agent, "nomad/jobs/odd", &["greeting=two"]);
    agent.until_printed(&["describe", "odd"], |text| {
        text.contains("Template failed to run script /no/such/program")
            && text.contains("Template failed to run script /bin/sleep with arguments 100000")
    });
    wait::until_true("the script that hangs was killed", || {
        let members = agent.members();
        !members.iter().any(|member| {
            herdlet_e2e::host::arguments(member.pid)
                .is_some_and(|line| line.get(1).is_some_and(|arg| arg == "100000"))
        })
    });
    for name in ["none", "hangs"] {
        assert_eq!(recorded(&agent, "odd.g[0]", name), ["start"]);
    }
    agent.finish();
}

/// In their root, as their user.
#[test]
fn a_script_runs_inside_isolated_tasks() {
    if !is_root() || !has("java") {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/inside", &["greeting=one"]);
    let script = "echo $(cat /local/conf) $(id -un) $(ls -d /secrets/..) >> /local/log";
    let task = |driver: &str, config: &str| {
        let fields = templates(&[scripted("inside", script, "")]);
        let head = format!("- name: {driver}\n  driver: {driver}\n  config: {config}\n  kill_timeout: 5s\n");
        format!("{head}{}", crate::common::indented(&fields, 2))
    };
    let tasks = [
        task("exec", "{command: /bin/sleep, args: [\"100000\"]}"),
        // The virtual machine waits for a debugger.
        task(
            "java",
            "{class: sun.security.tools.keytool.Main, jvm_options: [-Xmx64m, \
             \"-agentlib:jdwp=transport=dt_socket,server=y,suspend=y,address=127.0.0.1:0\"]}",
        ),
    ];
    let tasks = tasks.map(|task| crate::common::indented(&task, 8));
    agent.apply_and_wait(&job("inside", "service", ONCE, &tasks));
    put(&agent, "nomad/jobs/inside", &["greeting=two"]);
    for driver in ["exec", "java"] {
        until_file(&agent, "inside.g[0]", (&format!("{driver}/local/log"), "two nobody /secrets/..\n"));
    }
    agent.finish();
}

#[test]
fn a_script_may_run_after_the_first_start() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/early", &["greeting=one"]);
    // The script may run before the task has written its first line.
    let script = "while [ ! -e local/log ]; do sleep 0.02; done; echo script $(cat local/conf) >> local/log";
    let task = recorder("t", &[scripted("early", script, ", run_on_first_render: true")]);
    agent.apply_and_wait(&job("early", "service", "", &[task]));
    let place = ("early.g[0]", "t");
    until_recorded(&agent, place, &["start", "script one"]);
    put(&agent, "nomad/jobs/early", &["greeting=two"]);
    until_recorded(&agent, place, &["start", "script one", "script two"]);
    // The agent may be killed before it has recorded the end of the script, which then runs again.
    agent.cli(&["wait", "early"]).success();
    // Another start is not the first render.
    agent.crash();
    agent.cli(&["restart", "early"]).success();
    until_recorded(&agent, place, &["start", "script one", "script two", "start"]);
    put(&agent, "nomad/jobs/early", &["greeting=three"]);
    until_recorded(&agent, place, &["start", "script one", "script two", "start", "script three"]);
    agent.finish();
}

#[test]
fn changes_while_a_script_runs_are_one_more_run() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/busy", &["greeting=0"]);
    let go = agent.home.path().join("go");
    let script = format!(
        "echo begin >> local/log; while [ ! -e {} ]; do sleep 0.02; done; echo end $(cat local/conf) >> local/log",
        go.display()
    );
    agent.apply_and_wait(&job("busy", "service", "", &[recorder("t", &[scripted("busy", &script, "")])]));
    let place = ("busy.g[0]", "t");
    until_recorded(&agent, place, &["start"]);
    put(&agent, "nomad/jobs/busy", &["greeting=1"]);
    until_recorded(&agent, place, &["start", "begin"]);
    for value in ["2", "3", "4"] {
        put(&agent, "nomad/jobs/busy", &[&format!("greeting={value}")]);
        until_file(&agent, place.0, ("t/local/conf", value));
    }
    assert_eq!(recorded(&agent, place.0, place.1), ["start", "begin"], "one at a time");
    fs::write(&go, "").unwrap();
    until_recorded(&agent, place, &["start", "begin", "end 4", "begin", "end 4"]);
    put(&agent, "nomad/jobs/busy", &["greeting=5"]);
    until_recorded(&agent, place, &["start", "begin", "end 4", "begin", "end 4", "begin", "end 5"]);
    agent.finish();
}
