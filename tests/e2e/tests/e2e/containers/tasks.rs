//! Properties of tasks that depend on the engine: health checks of images, addresses, limits, secrets, changes of a job.

use std::fs;

use herdlet_e2e::{
    engine::{Engine, IMAGE, Kind},
    http, wait,
};
use serde_json::{Value, json};

use super::{container, containers_of, finish, image_task, on_every_engine, running_of};
use crate::{
    common::{job, patient},
    secrets::planted::kept,
};

on_every_engine!(
    the_example_serves_on_two_ports,
    a_published_port_answers_on_the_machine_and_in_the_container,
    secrets_are_seen_in_memory_and_nowhere_else,
    files_of_a_task_are_readable_for_the_user_of_its_container,
    a_change_of_env_replaces_the_container,
    every_task_ends_with_its_code_or_signal,
    containers_and_raw_processes_share_a_group,
);

fn the_example_serves_on_two_ports(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    agent.apply_and_wait(&patient("docker-web").replace("busybox:1.36", IMAGE));
    for index in 0..2 {
        let name = format!("docker-web.web[{index}]");
        let port = agent.alloc(&name).unwrap().port("http").unwrap();
        wait::until_true("it answers", || {
            http::poll_task(port, "/").is_some_and(|answer| answer.body == format!("hello from {name}\n"))
        });
    }
    finish(&engine, agent);
}

/// Gives the test image a configuration under a name of its own.
fn configured(engine: &Engine<'_>, name: &str, config: &Value) -> String {
    let base = engine.stranger(&format!("base-{name}-{}", std::process::id()), &json!({}));
    let repository = format!("herdlet-test/{name}-{}", std::process::id());
    let path = format!("/commit?container={base}&repo={repository}&tag=1&pause=false");
    let made = engine.request("POST", &path, config);
    assert_eq!(made.status, 201, "{}", made.body);
    engine.remove(&base);
    format!("{repository}:1")
}

/// Only with Docker: Podman 4.3 ignores the body of a commit, and starts health checks by systemd.
#[test]
fn the_health_of_an_image_is_shown() {
    super::on_shared(Kind::Docker, health_of_an_image);
}

fn health_of_an_image(engine: Engine<'_>) {
    let check =
        json!({ "Test": ["CMD-SHELL", "test -e /tmp/fine"], "Interval": 1_000_000_000, "Retries": 1 });
    let image = configured(&engine, "health", &json!({ "Healthcheck": check, "Cmd": ["sleep", "100000"] }));
    let mut agent = engine.agent("");
    agent.apply_and_wait(&job("health", "service", "", &[image_task("t", &image, "", "")]));
    agent.until_printed(&["describe", "health"], |text| text.contains("HEALTHCHECK: unhealthy"));
    agent.cli(&["exec", "health", "--", "touch", "/tmp/fine"]).success();
    agent.until_printed(&["describe", "health"], |text| text.contains("HEALTHCHECK: healthy"));
    // It is shown, and restarts nothing.
    assert_eq!(agent.alloc("health.g[0]").unwrap().restarts("t"), 0);
    finish(&engine, agent);
    engine.untag(&image);
}

fn a_published_port_answers_on_the_machine_and_in_the_container(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    let script = "mkdir /w; env | grep NOMAD_ > /w/env; exec httpd -f -h /w -p 8080";
    let task = container("t", script, "ports: [http]", "");
    agent.apply_and_wait(&job("port", "service", "network: {ports: {http: {to: 8080}}}", &[task]));
    let port = agent.alloc("port.g[0]").unwrap().port("http").unwrap();
    let text = wait::until("an answer", || http::poll_task(port, "/env").map(|answer| answer.body));
    assert!(text.contains(&format!("NOMAD_HOST_PORT_http={port}\n")), "{text}");
    assert!(text.contains("NOMAD_PORT_http=8080\n"), "as in Nomad, the port inside: {text}");
    finish(&engine, agent);
}

fn secrets_are_seen_in_memory_and_nowhere_else(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    let script = "grep ' /secrets ' /proc/mounts; ls /local /alloc /secrets; exec sleep 100000";
    let identity = "identities: [{name: api, aud: [example.test], ttl: 1h, file: true}]";
    agent.apply_and_wait(&job("secrets", "service", "", &[container("t", script, "", identity)]));
    let alloc = agent.alloc("secrets.g[0]").unwrap().id();
    let log = agent.until_logged(&alloc, "t", "stdout", |log| log.contains("nomad_api.jwt"));
    assert!(log.lines().next().unwrap().contains(" /secrets tmpfs "), "{log}");
    let token =
        fs::read_to_string(agent.home.state().join("alloc").join(&alloc).join("t/secrets/nomad_api.jwt"))
            .unwrap();
    match engine.kind {
        Kind::Docker | Kind::Podman => {
            assert!(!engine.container(&alloc, "t").to_string().contains(&token));
        }
        // The engine in the agent describes a container in files.
        Kind::Builtin => {
            let mut files = Vec::new();
            kept(&agent.home.state(), &mut files);
            assert!(files.iter().any(|path| path.ends_with("container.json")), "{files:?}");
            for path in files {
                let bytes = fs::read(&path).unwrap_or_default();
                assert!(!String::from_utf8_lossy(&bytes).contains(&token), "{}", path.display());
            }
        }
    }
    finish(&engine, agent);
}

/// Files of the agent belonged to root with mode 0600, also where the container runs as another user.
fn files_of_a_task_are_readable_for_the_user_of_its_container(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    let script = "cat /secrets/nomad_api.jwt >/dev/null && echo read; exec sleep 100000";
    let task = |name: &str, user: &str| {
        let more = format!(
            "user: \"{user}\"\nidentities: [{{name: api, aud: [example.test], ttl: 1h, file: true}}]"
        );
        container(name, script, "", &more)
    };
    let tasks = [task("number", "1000:1000"), task("name", "nobody"), task("root", "0")];
    agent.apply_and_wait(&job("readable", "service", "", &tasks));
    let alloc = agent.alloc("readable.g[0]").unwrap().id();
    for task in ["number", "name", "root"] {
        agent.until_logged(&alloc, task, "stdout", |log| log == "read\n");
    }
    finish(&engine, agent);
}

fn a_change_of_env_replaces_the_container(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    let text = |value: &str| {
        job(
            "env",
            "service",
            "",
            &[container("t", "echo $VALUE; exec sleep 100000", "", &format!("env: {{VALUE: {value}}}"))],
        )
    };
    agent.apply_and_wait(&text("one"));
    let first = running_of(&engine, &agent);
    agent.apply_and_wait(&text("two"));
    wait::until_true("only the other container runs", || {
        let now = running_of(&engine, &agent);
        now.len() == 1 && now != first
    });
    agent.until_printed(&["logs", "env"], |log| log.contains("two"));
    finish(&engine, agent);
}

fn every_task_ends_with_its_code_or_signal(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    let group = "restart: {attempts: 0, mode: fail}\nreschedule: {attempts: 0, unlimited: false}";
    for (name, script, code) in [
        ("zero", "exit 0", 0),
        ("one", "exit 1", 1),
        ("last", "exit 255", 255),
        ("killed", "kill -9 $$; sleep 1", 137),
    ] {
        // As pid 1 a task does not get its own signals, so the shell is not the main process.
        let script = if name == "killed" { "sh -c 'kill -9 $$'; exit $?" } else { script };
        agent.apply(&job(name, "batch", group, &[container("t", script, "", "")]));
        let status = if code == 0 { "complete" } else { "failed" };
        let alloc = agent.until_alloc(&format!("{name}.g[0]"), status, |alloc| alloc.status() == status);
        assert_eq!(alloc.exit_codes("t"), [code], "{name}");
    }
    wait::until_true("ended containers are removed", || containers_of(&engine, &agent).is_empty());
    finish(&engine, agent);
}

fn containers_and_raw_processes_share_a_group(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    let raw = crate::common::shell("raw", "echo from raw > $NOMAD_ALLOC_DIR/data/raw; exec sleep 100000", "");
    let script = "while ! cat /alloc/data/raw; do sleep 0.05; done; exec sleep 100000";
    agent.apply_and_wait(&job("mixed", "service", "", &[raw, container("t", script, "", "")]));
    let alloc = agent.alloc("mixed.g[0]").unwrap().id();
    agent.until_logged(&alloc, "t", "stdout", |log| log.contains("from raw"));
    agent.crash();
    agent.cli(&["wait", "mixed"]).success();
    finish(&engine, agent);
}
