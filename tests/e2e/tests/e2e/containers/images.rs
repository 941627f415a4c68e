//! Pulls: shared, with credentials, with a fallback to the image that is there; and the collection of images.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use herdlet_e2e::{
    agent::{Agent, Setup},
    command::SEARCH_PATH,
    engine::{Engine, IMAGE, Kind, PASSWORD, PRIVATE_IMAGE, REGISTRY, USER},
    host, ports, wait,
};
use serde_json::json;

use super::{containers_of, finish, image_task, on_both_engines, on_own_engine, running_of};
use crate::common::job;

on_both_engines!(
    credentials_come_from_the_task_a_file_or_a_program,
    a_hanging_credential_program_does_not_hold_a_task_for_ever,
    tasks_that_wait_for_the_same_image_share_one_pull,
    the_progress_of_a_pull_is_shown,
    a_failed_pull_uses_the_image_that_is_there_and_reports_it,
    an_image_that_is_nowhere_is_explained,
    an_unused_image_is_removed_also_after_a_restart_of_the_agent,
);
on_own_engine!(
    credentials_come_from_the_task_a_file_or_a_program,
    tasks_that_wait_for_the_same_image_share_one_pull,
    the_progress_of_a_pull_is_shown,
);

const ONCE: &str = "restart: {attempts: 0, mode: fail}\nreschedule: {attempts: 0, unlimited: false}";

/// A registry of which nothing answers: nothing listens on port 1.
const DOWN: &str = "registry.test:1/herdlet-test/busybox";

const SLEEP: &str = "command: sleep\nargs: [\"100000\"]";

/// The registry's image `tag`, under a name that no other test uses.
fn private(engine: &Engine<'_>, tag: &str) -> String {
    PRIVATE_IMAGE.replace(":1", &format!(":{tag}")).replace(REGISTRY, engine.registry())
}

fn until_failed(agent: &Agent, name: &str) -> String {
    let alloc = agent.until_alloc(name, "has failed", |alloc| alloc.status() == "failed");
    alloc.0["TaskStates"]["t"].to_string()
}

fn auth_file(engine: &Engine<'_>, agent: &Agent) -> std::path::PathBuf {
    // "herdlet:not-a-real-password"
    let encoded = "aGVyZGxldDpub3QtYS1yZWFsLXBhc3N3b3Jk";
    agent.home.write("auth.json", &json!({ "auths": { engine.registry(): { "auth": encoded } } }).to_string())
}

/// Writes a credential program that runs `script`.
fn helper(home: &Path, script: &str) {
    let path = home.join("docker-credential-fixture");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Starts an agent with these options and with its home in PATH.
fn with_helper(engine: &Engine<'_>, options: &str, script: &str) -> Agent {
    let mut agent = Agent::prepare(Setup::default().config("x: y"));
    agent.home.write("config.yaml", &engine.config(options));
    helper(agent.home.path(), script);
    agent.set_shell(&format!("export PATH={}:{SEARCH_PATH}", agent.home.path().display()));
    agent.launch();
    agent
}

fn credentials_come_from_the_task_a_file_or_a_program(engine: Engine<'_>) {
    let auth = format!("{SLEEP}\nforce_pull: true\nauth: {{username: {USER}, password: {PASSWORD}}}");
    let plain = format!("{SLEEP}\nforce_pull: true");
    let image = private(&engine, "1");
    let answer = format!(
        "cat >/dev/null; echo '{{\"ServerURL\":\"{}\",\"Username\":\"{USER}\",\"Secret\":\"{PASSWORD}\"}}'",
        engine.registry()
    );
    // The task's own.
    let mut agent = engine.agent("pull_fallback: false");
    agent.apply(&job("none", "batch", ONCE, &[image_task("t", &image, &plain, "")]));
    assert!(until_failed(&agent, "none.g[0]").contains(engine.registry()));
    let wrong = auth.replace(PASSWORD, "wrong");
    agent.apply(&job("wrong", "batch", ONCE, &[image_task("t", &image, &wrong, "")]));
    until_failed(&agent, "wrong.g[0]");
    agent.apply_and_wait(&job("own", "service", "", &[image_task("t", &image, &auth, "")]));
    let arguments: Vec<String> = host::processes_naming(Path::new(PASSWORD)).into_values().collect();
    assert!(arguments.iter().all(|line| !line.contains("herdlet")), "{arguments:?}");
    finish_quietly(&engine, agent);
    // A file of Docker's format, which may change while the agent runs.
    let mut agent = Agent::prepare(Setup::default().config("x: y"));
    let file = agent.home.write("auth.json", "{}");
    let options = format!("pull_fallback: false, auth: {{config: \"{}\"}}", file.display());
    agent.home.write("config.yaml", &engine.config(&options));
    agent.launch();
    agent.apply(&job("empty", "batch", ONCE, &[image_task("t", &image, &plain, "")]));
    until_failed(&agent, "empty.g[0]");
    auth_file(&engine, &agent);
    agent.apply_and_wait(&job("file", "service", "", &[image_task("t", &image, &plain, "")]));
    finish_quietly(&engine, agent);
    // A program.
    let mut agent = with_helper(&engine, "pull_fallback: false, auth: {helper: fixture}", &answer);
    agent.apply_and_wait(&job("helper", "service", "", &[image_task("t", &image, &plain, "")]));
    finish_quietly(&engine, agent);
}

/// No password may be in the agent's log.
fn finish_quietly(engine: &Engine<'_>, agent: Agent) {
    assert!(!agent.log().contains(PASSWORD) && !agent.log().contains("aGVyZGxldDpub3Q"), "{}", agent.log());
    finish(engine, agent);
}

fn a_hanging_credential_program_does_not_hold_a_task_for_ever(engine: Engine<'_>) {
    let options = "pull_fallback: false, image_pull_timeout: 2s, auth: {helper: fixture}";
    let mut agent = with_helper(&engine, options, "exec sleep 100000");
    let config = format!("{SLEEP}\nforce_pull: true");
    agent.apply(&job("hangs", "batch", ONCE, &[image_task("t", &private(&engine, "1"), &config, "")]));
    let reason = until_failed(&agent, "hangs.g[0]");
    assert!(reason.contains("fixture"), "{reason}");
    finish(&engine, agent);
}

fn a_failed_pull_uses_the_image_that_is_there_and_reports_it(engine: Engine<'_>) {
    let name = format!("{DOWN}-{}", std::process::id());
    engine.tag(&name, "latest");
    let mut agent = engine.agent("");
    agent.apply_and_wait(&job("there", "service", "", &[image_task("t", &name, SLEEP, "")]));
    let alloc = agent.until_alloc("there.g[0]", "runs", |alloc| alloc.state("t") == "running");
    let events = alloc.0["TaskStates"]["t"]["Events"].to_string();
    assert!(events.contains("registry.test:1"), "the failed pull is an event: {events}");
    finish(&engine, agent);
    engine.tag(&name, "latest");
    // The option that Nomad's users expect.
    let mut agent = engine.agent("pull_fallback: false");
    agent.apply(&job("strict", "batch", ONCE, &[image_task("t", &name, SLEEP, "")]));
    assert!(until_failed(&agent, "strict.g[0]").contains("registry.test:1"));
    assert!(containers_of(&engine, &agent).is_empty());
    finish(&engine, agent);
    engine.untag(&format!("{name}:latest"));
}

fn an_image_that_is_nowhere_is_explained(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    let missing = format!("{DOWN}:nowhere");
    let group = "restart: {attempts: 1, interval: 10h, delay: 1h, mode: delay}";
    agent.apply(&job("missing", "service", group, &[image_task("t", &missing, SLEEP, "")]));
    let reason = agent.until_printed(&["explain", "missing"], |text| text.contains("registry.test:1"));
    assert!(reason.contains("missing.g[0]"), "{reason}");
    finish(&engine, agent);
}

fn tasks_that_wait_for_the_same_image_share_one_pull(engine: Engine<'_>) {
    let image = private(&engine, "2");
    if engine.kind != Kind::Builtin {
        engine.untag(&image);
    }
    let auth = format!(
        "{SLEEP}\nauth: {{username: {USER}, password: {PASSWORD}, server_address: \"{}\"}}",
        engine.registry()
    );
    let mut agent = engine.agent("");
    let tasks: Vec<String> = ["a", "b"].iter().map(|name| image_task(name, &image, &auth, "")).collect();
    agent.apply_and_wait(&job("shared", "service", "count: 4", &tasks));
    assert_eq!(running_of(&engine, &agent).len(), 8);
    for index in 0..4 {
        let alloc = agent.alloc(&format!("shared.g[{index}]")).unwrap();
        assert_eq!(alloc.restarts("a") + alloc.restarts("b"), 0);
    }
    finish(&engine, agent);
}

/// A registry that accepts connections and does not answer: what a task waits for could be seen in its events only.
fn the_progress_of_a_pull_is_shown(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    let [port] = ports::free();
    let arguments = format!("[-ll, -p, \"{port}\", -e, sleep, \"100000\"]");
    let listen = format!("network_mode: host\ncommand: nc\nargs: {arguments}");
    agent.apply_and_wait(&job("registry", "service", "", &[image_task("t", IMAGE, &listen, "")]));
    let image = format!("127.0.0.1:{port}/slow:1");
    let group = "restart: {attempts: 1000, interval: 24h, delay: 1s, mode: delay}";
    agent.apply(&job("slow", "service", group, &[image_task("t", &image, SLEEP, "")]));
    let pulling = format!("pulling image {image}");
    agent.until_printed(&["explain", "slow"], |text| text.contains(&pulling));
    agent.until_printed(&["status"], |text| text.contains(&pulling));
    finish(&engine, agent);
}

fn an_unused_image_is_removed_also_after_a_restart_of_the_agent(engine: Engine<'_>) {
    let built = format!("herdlet-test/built-{}", std::process::id());
    let kept = format!("herdlet-test/foreign-{}", std::process::id());
    engine.tag(&built, "2");
    engine.tag(&kept, "2");
    let image = private(&engine, "3");
    let pulled = format!("{SLEEP}\nauth: {{username: {USER}, password: {PASSWORD}}}");
    let mut agent = engine.agent("gc: {image: true, image_delay: 1s}");
    agent.apply_and_wait(&job("used", "service", "", &[image_task("t", &image, &pulled, "")]));
    agent.apply_and_wait(&job("local", "service", "", &[image_task("t", &format!("{built}:2"), SLEEP, "")]));
    agent.crash();
    agent.cli(&["wait", "used"]).success();
    // Twice the delay: an image in use is not removed, also in a container of others.
    wait::pause(std::time::Duration::from_secs(2));
    assert!(engine.images().contains(&image));
    agent.cli(&["delete", "used", "local", "--wait"]).success();
    wait::until_true("the unused image is removed", || !engine.images().contains(&image));
    assert!(engine.images().contains(&format!("{kept}:2")), "an image that no task has used is not touched");
    assert!(engine.images().contains(&format!("{built}:2")), "an image that was built here is not touched");
    engine.untag(&format!("{kept}:2"));
    engine.untag(&format!("{built}:2"));
    finish(&engine, agent);
}
