//! Tasks that are CSI plugins, with the plugin of `tests/csi`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use herdlet_e2e::{
    agent::{Agent, Setup},
    home, host, http,
    program::{csi_plugin, example},
    shown::Alloc,
    wait,
};

use rustix::mount::{UnmountFlags, unmount};

use crate::{
    common::{indented, is_root, job},
    isolated::{isolated, runs_on},
};

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

/// Runs the example until it is healthy.
fn with_example(plugin: &Path) -> Agent {
    let mut agent = Agent::start();
    let text = fs::read_to_string(example("csi-plugin")).unwrap();
    let text = text.replace("command: csi-plugin", &format!("command: {}", plugin.display()));
    agent.apply_and_wait(&text.replace("health_timeout: 30s", "health_timeout: 5m"));
    agent.until_alloc(NAME, "is healthy", is_healthy);
    agent
}

fn is_healthy(alloc: &Alloc) -> bool {
    count(&alloc.events("plugin"), HEALTHY) == 1
}

/// The directories of all sockets.
fn socket_dirs(agent: &Agent) -> Vec<PathBuf> {
    let sockets = home::runtime(&agent.home.instance().unwrap()).join("csi");
    fs::read_dir(sockets).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Whether a directory is a shared mount.
fn is_shared(dir: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mut lines = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    lines.any(|fields| Path::new(fields[4]) == dir && fields[6].starts_with("shared:"))
}

#[test]
fn a_plugin_is_supervised_while_it_runs() {
    let Some(plugin) = plugin() else { return };
    let mut agent = with_example(&plugin);
    let member = agent.single(NAME, "plugin");
    let data = agent.home.state().join("alloc").join(&member.alloc).join("alloc/data");
    let csi = agent.home.state().join("csi");
    let sockets =
        |agent: &Agent| socket_dirs(agent).iter().filter(|dir| dir.join("csi.sock").exists()).count();
    assert_eq!(sockets(&agent), 1);
    assert!(csi.join("monolith/disks").is_dir());
    assert_eq!(host::mounts_below(&csi), std::slice::from_ref(&csi), "the directory is a mount of its own");
    assert!(is_shared(&csi));
    let plugins = http::get(&agent.peer(), "/v1/plugins?type=csi").unwrap().json();
    assert_eq!((&plugins[0]["ID"], &plugins[0]["NodesHealthy"]), (&"disks".into(), &1.into()), "{plugins}");
    let plugin = http::get(&agent.peer(), "/v1/plugin/csi/disks").unwrap().json();
    let [stub] = plugin["Allocations"].as_array().unwrap().as_slice() else { panic!("{plugin}") };
    assert_eq!(
        (&stub["ID"], &stub["ClientStatus"]),
        (&(*member.alloc).into(), &"running".into()),
        "{plugin}"
    );
    for (service, info) in [("Controllers", "ControllerInfo"), ("Nodes", "NodeInfo")] {
        let [entry] = plugin[service].as_object().unwrap().values().collect::<Vec<_>>()[..] else {
            panic!("{plugin}")
        };
        assert!(entry["Healthy"] == true && entry[info].is_object(), "{plugin}");
    }
    let none = http::get(&agent.peer(), "/v1/plugins").unwrap().json();
    assert_eq!(none, serde_json::json!([]), "no type is meant");
    assert_eq!(http::get(&agent.peer(), "/v1/plugin/csi/other").unwrap().status, 404);
    let listed = agent.cli(&["get", "plugins"]).success().stdout;
    assert!(listed.contains("disks") && listed.contains("healthy"), "{listed}");
    let unknown = agent.cli(&["get", "plugins", "other"]);
    assert!(
        unknown.code != 0 && unknown.stderr.contains("no task is a CSI plugin with the id"),
        "{}",
        unknown.stderr
    );
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
    wait::until_true("its socket is gone", || sockets(&agent) == 0);
    wait::until_true("nothing is mounted", || host::mounts_below(&csi).is_empty());
    agent.finish();
}

/// They are restored, and the plugin runs on.
#[test]
fn lost_directories_are_restored() {
    let Some(plugin) = plugin() else { return };
    let agent = with_example(&plugin);
    let member = agent.single(NAME, "plugin");
    let csi = agent.home.state().join("csi");
    unmount(&csi, UnmountFlags::DETACH).unwrap();
    wait::until_true("it is a shared mount again", || is_shared(&csi));
    let [sockets] = <[PathBuf; 1]>::try_from(socket_dirs(&agent)).unwrap();
    fs::remove_dir_all(&sockets).unwrap();
    wait::until_true("the directory of the socket is there again", || sockets.is_dir());
    assert_eq!(agent.single(NAME, "plugin"), member);
    assert_eq!(agent.alloc(NAME).unwrap().restarts("plugin"), 0);
    agent.cli(&["stop", "csi-plugin", "--wait"]).success();
    wait::until_true("nothing is mounted", || host::mounts_below(&csi).is_empty());
    agent.finish();
}

#[test]
fn mounts_of_a_plugin_in_its_own_root_appear_on_the_machine() {
    if !is_root() {
        return;
    }
    let config = "drivers: {exec: {allow_caps: [all], denied_users: []}}\n";
    let mut agent = Agent::start_with(Setup::default().config(config.to_owned()));
    let first =
        "echo $CSI_ENDPOINT > /run/csi/seen; mkdir /volumes/later; mount -t tmpfs later /volumes/later";
    let more = "csi_plugin: {id: disks, type: node, mount_dir: /run/csi, stage_publish_base_dir: /volumes, health_timeout: 1h}\n\
                user: root";
    let task =
        isolated("t", &runs_on(first), more).replace("command: sh,", "command: sh, cap_add: [sys_admin],");
    agent.apply_and_wait(&job("disks", "service", "", &[task]));
    let volume = agent.home.state().join("csi/node/disks/later");
    wait::until_true("the plugin's mount is on the machine", || {
        host::mounts_below(&agent.home.state().join("csi")).contains(&volume)
    });
    let [sockets] = <[PathBuf; 1]>::try_from(socket_dirs(&agent)).unwrap();
    assert_eq!(fs::read_to_string(sockets.join("seen")).unwrap(), "unix:///run/csi/csi.sock\n");
    let listed = agent.cli(&["get", "plugins"]).success().stdout;
    assert!(listed.contains("unhealthy: it was not ready yet"), "{listed}");
    unmount(&volume, UnmountFlags::empty()).unwrap();
    agent.cli(&["stop", "disks", "--wait"]).success();
    wait::until_true("nothing is mounted", || host::mounts_below(&agent.home.state().join("csi")).is_empty());
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
