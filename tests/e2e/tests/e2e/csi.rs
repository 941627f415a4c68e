//! Tasks that are CSI plugins, with the plugin of `tests/csi`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use herdlet_e2e::{
    agent::Agent,
    host, http,
    program::{csi_plugin, example},
    shown::Alloc,
    wait,
};

use crate::common::{indented, is_root, job};

const HEALTHY: &str = "Plugin became healthy";
const UNHEALTHY: &str = "Plugin became unhealthy";

/// The allocation of the example.
const NAME: &str = "csi-plugin.plugin[0]";

/// The plugin for tests; `None` without root, which its mounts need.
fn plugin() -> Option<PathBuf> {
    is_root().then(csi_plugin)
}

/// A task that runs it; `more` are fields of the task, one per line.
fn task(plugin: &Path, data: &Path, more: &str) -> String {
    let (plugin, data) = (plugin.display(), data.display());
    let head =
        format!("- name: t\n  driver: raw_exec\n  config: {{command: {plugin}, args: [--data, {data}]}}\n");
    indented(&format!("{head}{}", indented(more, 2)), 8)
}

fn count(events: &[String], kind: &str) -> usize {
    events.iter().filter(|event| *event == kind).count()
}

#[test]
fn a_plugin_is_supervised_while_it_runs() {
    let Some(plugin) = plugin() else { return };
    let mut agent = Agent::start();
    let text = fs::read_to_string(example("csi-plugin")).unwrap();
    let text = text.replace("command: csi-plugin", &format!("command: {}", plugin.display()));
    agent.apply_and_wait(&text.replace("health_timeout: 30s", "health_timeout: 5m"));
    let is_healthy = |alloc: &Alloc| count(&alloc.events("plugin"), HEALTHY) == 1;
    agent.until_alloc(NAME, "is healthy", is_healthy);
    let member = agent.single(NAME, "plugin");
    let data = agent.home.state().join("alloc").join(&member.alloc).join("alloc/data");
    let csi = agent.home.state().join("csi");
    let sockets = || {
        let entries = fs::read_dir(csi.join("plugins")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().join("csi.sock")).filter(|path| path.exists()).count()
    };
    assert_eq!(sockets(), 1);
    assert!(csi.join("monolith/disks").is_dir());
    assert_eq!(host::mounts_below(&csi), [csi.clone()], "what it mounts appears on the machine");
    let plugins = http::get(&agent.peer(), "/v1/plugins?type=csi").unwrap().json();
    assert_eq!((&plugins[0]["ID"], &plugins[0]["NodesHealthy"]), (&"disks".into(), &1.into()), "{plugins}");
    let plugin = http::get(&agent.peer(), "/v1/plugin/csi/disks").unwrap().json();
    assert_eq!(plugin["Allocations"][0]["ID"].as_str(), Some(member.alloc.as_str()), "{plugin}");
    assert_eq!(http::get(&agent.peer(), "/v1/plugin/csi/other").unwrap().status, 404);
    let listed = agent.cli(&["get", "plugins"]).success().stdout;
    assert!(listed.contains("disks") && listed.contains("healthy"), "{listed}");
    // The next agent supervises it, and changes nothing.
    let probes = || {
        let calls = fs::read_to_string(data.join("calls")).unwrap_or_default();
        calls.lines().filter(|line| line.starts_with("Probe")).count()
    };
    let before = probes();
    agent.crash();
    wait::until_true("the next agent calls it", || probes() > before);
    assert_eq!(agent.single(NAME, "plugin"), member, "the task ran on");
    let alloc = agent.until_alloc(NAME, "is healthy", is_healthy);
    assert_eq!(count(&alloc.events("plugin"), UNHEALTHY), 0);
    agent.cli(&["stop", "csi-plugin", "--wait"]).success();
    wait::until_true("its socket is gone", || sockets() == 0);
    wait::until_true("nothing is mounted", || host::mounts_below(&csi).is_empty());
    agent.finish();
}

#[test]
fn a_plugin_that_is_not_ready_in_time_restarts() {
    let Some(plugin) = plugin() else { return };
    let mut agent = Agent::start();
    let data = agent.home.path().join("data");
    fs::create_dir_all(&data).unwrap();
    // It reports that it is not initialized.
    fs::write(data.join("starting"), "").unwrap();
    let more = "csi_plugin: {id: disks, type: node, health_timeout: 1s}\n\
                restart: {attempts: 100, interval: 1h, delay: 100ms, mode: fail}";
    agent.apply(&job("disks", "service", "", &[task(&plugin, &data, more)]));
    let alloc = agent.until_alloc("disks.g[0]", "has restarted", |alloc| alloc.restarts("t") > 0);
    let events = alloc.events("t");
    assert!(count(&events, UNHEALTHY) > 0 && count(&events, HEALTHY) == 0, "{events:?}");
    fs::remove_file(data.join("starting")).unwrap();
    agent.until_alloc("disks.g[0]", "is healthy", |alloc| count(&alloc.events("t"), HEALTHY) == 1);
    agent.finish();
}
