//! Tasks as containers, on the Docker daemon and the Podman service that all tests of a run share, and on the engine in the agent.
//!
//! Each test has an agent of its own in the engines' network and mounts, and ends with the check that no container of its
//! agent remains. Tests that stop an engine are in `engines`.

mod access;
mod campaign;
mod cni;
mod fences;
mod images;
mod jobs;
mod logs;
mod networks;
mod node;
mod policy;
mod tasks;
mod templates;
mod volumes;
mod without_engine;

use std::collections::BTreeSet;

use herdlet_e2e::{
    agent::Agent,
    engine::{Engine, Engines, IMAGE, Kind},
    host::{self, Member},
    wait,
};
use serde_json::{Value, json};

/// Options with which tasks may do anything.
pub(crate) const PERMISSIVE: &str = "allow_privileged: true, allow_caps: [all], volumes: {enabled: true}";

/// Defines a test for Docker and one for Podman of each function.
macro_rules! on_both_engines {
    ($($test:ident),* $(,)?) => {
        mod docker {
            $(#[test]
            fn $test() {
                crate::containers::on_shared(herdlet_e2e::engine::Kind::Docker, super::$test);
            })*
        }
        mod podman {
            $(#[test]
            fn $test() {
                crate::containers::on_shared(herdlet_e2e::engine::Kind::Podman, super::$test);
            })*
        }
    };
}
pub(crate) use on_both_engines;

/// Defines a test for the engine in the agent of each function. It runs beside the others, in the same network.
macro_rules! on_own_engine {
    ($($test:ident),* $(,)?) => {
        mod builtin {
            $(#[test]
            fn $test() {
                crate::containers::on_shared(herdlet_e2e::engine::Kind::Builtin, super::$test);
            })*
        }
    };
}
pub(crate) use on_own_engine;

/// Defines a test for each engine of each function.
macro_rules! on_every_engine {
    ($($test:ident),* $(,)?) => {
        crate::containers::on_both_engines!($($test),*);
        crate::containers::on_own_engine!($($test),*);
    };
}
pub(crate) use on_every_engine;

/// Runs a test with a shared engine, if there is one.
pub(crate) fn on_shared(kind: Kind, test: impl Fn(Engine<'_>)) {
    let Some(engines) = Engines::shared() else { return };
    test(engines.engine(kind));
}

/// Returns a task that runs `script` in a container; `config` and `more` are additional fields, one per line.
pub(crate) fn container(name: &str, script: &str, config: &str, more: &str) -> String {
    image_task(name, IMAGE, &format!("command: sh\nargs: [-c, {}]\n{config}", json!(script)), more)
}

/// Returns a task of an image with these fields of its config.
pub(crate) fn image_task(name: &str, image: &str, config: &str, more: &str) -> String {
    let lines = |text: &str, pad: &str| text.lines().map(|line| format!("{pad}{line}\n")).collect::<String>();
    let kill = if more.contains("kill_timeout:") { "" } else { "kill_timeout: 1s\n" };
    let network =
        if config.contains("network_mode:") || config.contains("ports:") { "" } else { "network_mode: none" };
    format!(
        "        - name: {name}\n          driver: docker\n          config:\n            image: \"{image}\"\n{}{}{}",
        lines(config, "            "),
        lines(network, "            "),
        lines(&format!("{kill}{more}"), "          ")
    )
}

/// Returns a container that runs until it is stopped.
pub(crate) fn sleeping(name: &str, more: &str) -> String {
    container(name, "trap 'exit 0' INT TERM; sleep 100000 & wait", "", more)
}

/// Returns the containers of an agent. Those of the engine in the agent have only the parts that tests of all engines need.
pub(crate) fn containers_of(engine: &Engine<'_>, agent: &Agent) -> Vec<Value> {
    match engine.kind {
        Kind::Docker | Kind::Podman => {
            agent.home.instance().map(|instance| engine.containers(&instance)).unwrap_or_default()
        }
        Kind::Builtin => builtin_containers(agent),
    }
}

/// The directories of containers, of which those with processes run.
fn builtin_containers(agent: &Agent) -> Vec<Value> {
    let running: BTreeSet<String> = agent.members().iter().map(name_of).collect();
    let directories = std::fs::read_dir(agent.home.state().join("containers/docker/builtin"));
    let names =
        directories.into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let described = |name: String| {
        let state = if running.contains(&name) { "running" } else { "exited" };
        json!({ "Id": name, "State": state, "Labels": { "herdlet.attempt": name } })
    };
    names.map(described).collect()
}

/// The name of the attempt of a process.
fn name_of(member: &Member) -> String {
    format!("{}.{}.{}", member.alloc, member.task, member.attempt)
}

/// Removes a container behind its agent.
pub(crate) fn remove(engine: &Engine<'_>, agent: &Agent, id: &str) {
    match engine.kind {
        Kind::Docker | Kind::Podman => engine.remove(id),
        Kind::Builtin => {
            for member in agent.members().iter().filter(|member| name_of(member) == id) {
                host::signal(member.pid, rustix::process::Signal::KILL);
            }
        }
    }
}

/// Returns the ids of those that run, sorted.
pub(crate) fn running_of(engine: &Engine<'_>, agent: &Agent) -> Vec<String> {
    let found = containers_of(engine, agent);
    let running = found.iter().filter(|found| found["State"] == "running");
    let mut ids: Vec<String> = running.filter_map(|found| Some(found["Id"].as_str()?.to_owned())).collect();
    ids.sort();
    ids
}

/// Deletes every job, ends the agent and checks that none of its containers remains.
#[track_caller]
pub(crate) fn finish(engine: &Engine<'_>, agent: Agent) {
    for job in agent.allocs().iter().map(|alloc| alloc.job()).collect::<BTreeSet<_>>() {
        agent.cli(&["delete", &job]);
    }
    let mut left = Vec::new();
    wait::until_true("no container remains", || {
        left = containers_of(engine, &agent);
        left.is_empty()
    });
    agent.finish();
}
