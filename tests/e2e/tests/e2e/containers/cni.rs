//! Containers in networks that CNI plugins make.

use std::fs;

use herdlet_e2e::{
    agent::{Agent, Setup},
    engine::Engine,
    wait,
};

use super::{container, finish, networks::process, on_both_engines, running_of};
use crate::{
    cni::{Folder, nothing_left},
    common::job,
};

on_both_engines!(containers_and_processes_share_the_network_of_a_plugin_over_crashes);

fn containers_and_processes_share_the_network_of_a_plugin_over_crashes(engine: Engine<'_>) {
    let folder = Folder::with_plugin();
    let plugins = folder.config(&folder.path(""));
    let of_plugins = plugins.strip_suffix('}').unwrap();
    let config = engine.config("").replace("network: {", &format!("{of_plugins}, "));
    let mut agent = Agent::start_with(Setup::default().config(config));
    let tasks = [container("t", "exec sleep 100000", "network_mode: \"\"", ""), process("beside")];
    agent.apply_and_wait(&job("joined", "service", "network: {mode: cni/net}\n", &tasks));
    let namespace = |agent: &Agent, task: &str| {
        let command = ["exec", "joined.g[0]", "--task", task, "--", "readlink", "/proc/self/ns/net"];
        agent.cli(&command).success().stdout.trim().to_owned()
    };
    let before = namespace(&agent, "beside");
    assert_eq!(namespace(&agent, "t"), before);
    assert_ne!(before, fs::read_link("/proc/self/ns/net").unwrap().display().to_string());
    let running = running_of(&engine, &agent);
    agent.crash();
    agent.cli(&["wait", "joined"]).success();
    assert_eq!(running_of(&engine, &agent), running, "nothing was started again");
    assert_eq!(namespace(&agent, "t"), before);
    // A container that ends joins the same network at its next start.
    agent.cli(&["restart", "joined.g[0]", "--task", "t"]).success();
    agent.until_alloc("joined.g[0]", "runs again", |alloc| {
        alloc.restarts("t") == 1 && alloc.state("t") == "running"
    });
    assert_eq!(namespace(&agent, "t"), before);
    assert_eq!(folder.calls().iter().filter(|call| *call == "ADD").count(), 1, "{:?}", folder.calls());
    agent.cli(&["delete", "joined", "--wait"]).success();
    wait::until_true("nothing is left", || nothing_left(&agent));
    assert_eq!(folder.calls().last().unwrap(), "DEL");
    finish(&engine, agent);
}
