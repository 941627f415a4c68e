//! What only the engine in the agent has to do: pulls from registries, by way of mirrors, and the README's container on a machine without Docker.

use std::fs;

use herdlet_e2e::{
    agent::{Agent, Setup},
    engine::{Engine, IMAGE, Kind, LOCAL_REGISTRY, PASSWORD, REGISTRY, USER},
    http, ports, wait,
};
use serde_json::json;

use super::{finish, image_task, on_shared};
use crate::common::{job, patient};

/// Credentials for the registry under one of its names.
fn auth(agent: &Agent, registry: &str) {
    // "herdlet:not-a-real-password"
    let encoded = "aGVyZGxldDpub3QtYS1yZWFsLXBhc3N3b3Jk";
    assert_eq!((USER, PASSWORD), ("herdlet", "not-a-real-password"));
    agent.home.write("auth.json", &json!({ "auths": { registry: { "auth": encoded } } }).to_string());
}

/// An agent that reads credentials from a file; with more options.
fn with_auth(engine: &Engine<'_>, registry: &str, more: &str) -> Agent {
    let mut agent = Agent::prepare(Setup::default().config("x: y"));
    auth(&agent, registry);
    let file = agent.home.path().join("auth.json");
    let options = format!("auth: {{config: \"{}\"}}{more}", file.display());
    agent.home.write("config.yaml", &engine.config(&options));
    agent.launch();
    agent
}

#[test]
fn an_image_is_pulled_by_hand_and_used_by_a_task() {
    on_shared(Kind::Builtin, |engine| {
        let mut agent = with_auth(&engine, LOCAL_REGISTRY, "");
        let name = format!("{LOCAL_REGISTRY}/herdlet-test/busybox:1");
        let pulled = agent.cli(&["images", "pull", &name]).success();
        assert!(pulled.stdout.contains(&format!("\npulled {name} (")), "{pulled:?}");
        assert!(agent.cli(&["images"]).success().stdout.contains(&name));
        let again = agent.cli(&["images", "pull", &name]).success();
        assert!(again.stdout.contains(&name), "{again:?}");
        let task = image_task("t", &name, "command: sh\nargs: [-c, \"echo runs; exec sleep 100000\"]", "");
        agent.apply_and_wait(&job("pulled", "service", "", &[task]));
        agent.until_printed(&["logs", "pulled"], |log| log == "runs\n");
        let events = agent.cli(&["describe", "pulled"]).success().stdout;
        assert!(!events.contains("Downloading image"), "it was there: {events}");
        let missing = agent.cli(&["images", "pull", &name.replace(":1", ":none")]).ended(1);
        assert!(missing.stderr.contains("it does not exist there"), "{missing:?}");
        assert!(!agent.log().contains(PASSWORD));
        finish(&engine, agent);
    });
}

/// The registry's own name is unknown here: only its mirror can have the image.
#[test]
fn a_mirror_has_the_image_and_needs_credentials_of_its_own() {
    on_shared(Kind::Builtin, |engine| {
        let mut agent = with_auth(&engine, REGISTRY, ", pull_fallback: false");
        let image = format!("{REGISTRY}/herdlet-test/busybox:2");
        let refused = agent.cli(&["images", "pull", &image]).ended(1);
        // The last one that can be used: without certificate authorities on the machine, that is the mirror.
        assert!(
            refused.stderr.contains("access is denied") || refused.stderr.contains(REGISTRY),
            "{refused:?}"
        );
        auth(&agent, LOCAL_REGISTRY);
        let task = image_task("t", &image, "command: sleep\nargs: [\"100000\"]", "");
        agent.apply_and_wait(&job("mirrored", "service", "", &[task]));
        assert!(agent.cli(&["images"]).success().stdout.contains(&image));
        finish(&engine, agent);
    });
}

#[test]
fn a_pull_that_fails_uses_the_image_that_is_there_and_reports_it() {
    on_shared(Kind::Builtin, |engine| {
        let mut agent = with_auth(&engine, LOCAL_REGISTRY, "");
        let name = format!("{LOCAL_REGISTRY}/herdlet-test/busybox:1");
        agent.cli(&["images", "pull", &name]).success();
        // Without credentials the registry refuses the next pull.
        auth(&agent, "other.test");
        let config = "command: sleep\nargs: [\"100000\"]\nforce_pull: true";
        agent.apply_and_wait(&job("there", "service", "", &[image_task("t", &name, config, "")]));
        let described = agent.cli(&["describe", "there"]).success().stdout;
        assert!(described.contains("the task starts with the image that is there"), "{described}");
        finish(&engine, agent);
    });
}

#[test]
fn a_registry_with_an_unknown_authority_is_refused() {
    on_shared(Kind::Builtin, |engine| {
        let config = engine.config("");
        let begin = config.find(", registries: ").unwrap();
        let end = begin + config[begin..].find("}}").unwrap() + 2;
        let config = format!("{}{}", &config[..begin], &config[end..]);
        let agent = Agent::start_with(Setup::default().config(config));
        let name = format!("{LOCAL_REGISTRY}/herdlet-test/busybox:1");
        let refused = agent.cli(&["images", "pull", &name]).ended(1);
        assert!(refused.stderr.contains("certificate"), "{refused:?}");
        finish(&engine, agent);
    });
}

/// The command is the README's; the machine has neither Docker nor Podman, and the agent no settings of an engine.
#[test]
fn readme_starts_a_container_without_docker() {
    on_shared(Kind::Builtin, |engine| {
        let docker = engine.beside(Kind::Docker);
        docker.tag("busybox", "1.36");
        let config = format!("host_ip: 127.0.0.1\n{}", ports::for_tasks());
        let agent = Agent::start_with(Setup::default().config(config));
        let archive = agent.home.path().join("busybox.tar");
        docker.save("busybox:1.36", &archive);
        docker.untag("busybox:1.36");
        let loaded = agent.cli(&["images", "load", &archive.display().to_string()]);
        if loaded.stderr.contains("builtin") && loaded.code != 0 {
            herdlet_e2e::environment::leave_out("a machine without Docker and Podman");
            return;
        }
        fs::remove_file(archive).unwrap();
        assert!(loaded.success().stdout.contains("docker.io/library/busybox:1.36"));
        let manifest = agent.home.write("docker-web.yaml", &patient("docker-web"));
        agent.cli(&["apply", "-f", &manifest.display().to_string(), "--wait"]).success();
        let name = "docker-web.web[0]";
        let port = agent.alloc(name).unwrap().port("http").unwrap();
        wait::until_true("it answers", || {
            http::poll_task(port, "/").is_some_and(|answer| answer.body == format!("hello from {name}\n"))
        });
        assert!(!agent.cli(&["images"]).success().stdout.contains(IMAGE));
        finish(&engine, agent);
    });
}
