//! Templates of tasks in containers: the files, the environment, signals, and scripts that run inside.

use std::fs;

use herdlet_e2e::{engine::Engine, wait};

use super::{container, finish, on_every_engine, running_of};
use crate::{
    common::job,
    templates::{greeting, path_of, put, recorded, template, templates, until_explained, until_file},
};

on_every_engine!(
    rendered_files_and_variables_are_in_the_container,
    signals_and_scripts_reach_the_container,
    a_container_waits_and_survives_a_crash,
);

const NOW: &str = "wait: {min: 0s, max: 0s}";

/// Like `templates::RECORDER`, as pid 1 of a container.
const RECORDER: &str = "trap 'echo hup >> /local/log' HUP; trap 'exit 0' INT TERM; echo start >> /local/log; while :; do sleep 0.1; done";

fn rendered_files_and_variables_are_in_the_container(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    put(&agent, "nomad/jobs/files", &["greeting=one"]);
    let each = [
        template(&greeting("files"), "local/conf", NOW),
        template(&greeting("files"), "/secrets/conf", &format!("{NOW}, perms: \"0600\"")),
        template(&greeting("files"), "${NOMAD_ALLOC_DIR}/data/conf", NOW),
        template(&format!("A={}\n", greeting("files")), "secrets/env", &format!("{NOW}, env: true")),
        template(&greeting("files"), "local/owned", &format!("{NOW}, uid: 1234, gid: 5678, perms: \"0440\"")),
        template("{{ env \"NOMAD_TASK_DIR\" }} {{ file \"/alloc/data/input\" }}", "local/copy", NOW),
    ];
    let script = "echo $(cat /local/conf /secrets/conf /alloc/data/conf) $A $(stat -c %u:%g:%a /local/owned) $(cat /local/copy) >> /local/log; exec sleep 100000";
    let before = container("before", "echo input > /alloc/data/input", "", "lifecycle: {hook: prestart}");
    agent.apply(&job("files", "service", "", &[before, container("t", script, "", &templates(&each))]));
    agent.cli(&["wait", "files"]).success();
    let log = |lines: &[&str]| {
        wait::until_true(&format!("the log is {lines:?}"), || recorded(&agent, "files.g[0]", "t") == lines);
    };
    log(&["oneoneone one 1234:5678:440 /local input"]);
    put(&agent, "nomad/jobs/files", &["greeting=two"]);
    log(&["oneoneone one 1234:5678:440 /local input", "twotwotwo two 1234:5678:440 /local input"]);
    // The engine records a container as running only after its program has begun.
    wait::until_true("one container runs", || running_of(&engine, &agent).len() == 1);
    finish(&engine, agent);
}

fn signals_and_scripts_reach_the_container(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    put(&agent, "nomad/jobs/inside", &["greeting=one"]);
    let script = "change_mode: script, change_script: {command: /bin/sh, args: [-c, \"echo script $(cat /local/script) $(hostname | wc -l) >> /local/log; test ! -e /local/fail\"], timeout: 2m, fail_on_error: true}";
    let each = [
        template(&greeting("inside"), "local/signal", &format!("{NOW}, change_mode: signal")),
        template(&greeting("inside/g"), "local/script", &format!("{NOW}, {script}")),
    ];
    put(&agent, "nomad/jobs/inside/g", &["greeting=one"]);
    let group = "restart: {attempts: 0, mode: fail}\nreschedule: {attempts: 0, unlimited: false}";
    let task = container("t", RECORDER, "", &templates(&each));
    agent.apply_and_wait(&job("inside", "service", group, &[task]));
    let until = |lines: &[&str]| {
        wait::until_true(&format!("the log is {lines:?}"), || recorded(&agent, "inside.g[0]", "t") == lines);
    };
    until(&["start"]);
    let before = running_of(&engine, &agent);
    put(&agent, "nomad/jobs/inside", &["greeting=two"]);
    until(&["start", "hup"]);
    put(&agent, "nomad/jobs/inside/g", &["greeting=two"]);
    until(&["start", "hup", "script two 1"]);
    assert_eq!(running_of(&engine, &agent), before);
    fs::write(path_of(&agent, "inside.g[0]", "t/local/fail"), "").unwrap();
    put(&agent, "nomad/jobs/inside/g", &["greeting=three"]);
    let failed = agent.until_alloc("inside.g[0]", "failed", |alloc| alloc.status() == "failed");
    assert!(failed.0["TaskStates"]["t"].to_string().contains("exited with code: 1"), "{:#}", failed.0);
    finish(&engine, agent);
}

fn a_container_waits_and_survives_a_crash(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    let each = [template(&greeting("late"), "secrets/conf", NOW)];
    agent.apply(&job("late", "service", "", &[container("t", RECORDER, "", &templates(&each))]));
    until_explained(&agent, "late", "waits for nomad/jobs/late");
    assert!(running_of(&engine, &agent).is_empty());
    put(&agent, "nomad/jobs/late", &["greeting=one"]);
    agent.cli(&["wait", "late"]).success();
    until_file(&agent, "late.g[0]", ("t/secrets/conf", "one"));
    let before = running_of(&engine, &agent);
    agent.crash();
    agent.cli(&["wait", "late"]).success();
    assert_eq!(running_of(&engine, &agent), before);
    put(&agent, "nomad/jobs/late", &["greeting=two"]);
    agent.crash();
    wait::until_true("it restarts once", || recorded(&agent, "late.g[0]", "t") == ["start", "start"]);
    until_file(&agent, "late.g[0]", ("t/secrets/conf", "two"));
    finish(&engine, agent);
}
