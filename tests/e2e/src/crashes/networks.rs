//! The networks of a life: a machine's network of its own, a CNI plugin, and what must be there for the tasks that run.
//!
//! In: an agent with jobs. Out: its settings; violations: pins, addresses, interfaces and attachments that belong to no running task,
//! or that a running task lacks.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    job::{CNI, NetworkMode},
    operation::ExpectedState,
};
use crate::{
    agent::Agent,
    home, host,
    namespaces::{NetworkNamespace, identity},
    wait,
};

/// Attaches a network by a file with the name of its container. It reports the loopback interface, so it changes nothing else.
const PLUGIN: &str = r#"#!/bin/sh
cat >/dev/null
case $CNI_COMMAND in
ADD)
    : >"DIR/attached/$CNI_CONTAINERID"
    echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "lo", "sandbox": "x"}], "ips": [{"address": "127.0.0.1/8", "interface": 0}]}' ;;
DEL) rm -f "DIR/attached/$CNI_CONTAINERID" ;;
esac
"#;

/// What a line of an agent's log has that removes a network without an allocation: an allocation is never forgotten before its network.
pub const LEAK: &str = "whose owner does not exist";

/// Deadline of the comparison.
const LIMIT: Duration = wait::PATIENCE;

/// The network of the machine of a life.
#[derive(Debug)]
pub struct LifeNetwork {
    machine: NetworkNamespace,
    folder: PathBuf,
}

impl LifeNetwork {
    /// Makes one, with a plugin in this folder.
    ///
    /// # Panics
    /// If that fails.
    pub fn new(folder: PathBuf) -> Self {
        fs::create_dir_all(folder.join("attached")).expect("a folder for the plugin");
        let (program, text) = (folder.join("attach"), PLUGIN.replace("DIR", &folder.display().to_string()));
        fs::write(&program, text).expect("a plugin");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("its mode");
        let config = format!(r#"{{"cniVersion": "1.0.0", "name": "{CNI}", "type": "attach"}}"#);
        fs::write(folder.join("net.conf"), config).expect("a config of the plugin");
        Self { machine: NetworkNamespace::new().expect("a network of its own"), folder }
    }

    /// The agent's config.
    pub fn config(&self) -> String {
        let folder = self.folder.display();
        format!("network: {{cni_path: {folder}, cni_config_dir: {folder}}}\n")
    }

    /// The command that starts the agent in the network.
    pub fn enter(&self) -> String {
        self.machine.enter()
    }

    /// Waits until exactly the tasks that run have networks; returns the differences at the deadline.
    pub fn until_right(&self, agent: &Agent, instance: &str, wanted: &ExpectedState) -> Vec<String> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let wrong = self.differences(agent, instance, wanted);
            if wrong.is_empty() || Instant::now() > deadline {
                return wrong;
            }
            wait::pause(Duration::from_millis(5));
        }
    }

    /// What is left in the network after the end of its agent, at the deadline.
    pub fn until_empty(&self) -> Vec<String> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let mut left = self.machine.interfaces().unwrap_or_default();
            left.remove("lo");
            if left.is_empty() || Instant::now() > deadline {
                return left.into_iter().map(|name| format!("the interface {name} is left")).collect();
            }
            wait::pause(Duration::from_millis(5));
        }
    }

    fn differences(&self, agent: &Agent, instance: &str, wanted: &ExpectedState) -> Vec<String> {
        let modes: BTreeMap<&str, NetworkMode> =
            wanted.jobs().map(|work| (work.name.as_str(), work.network)).collect();
        let mut of_tasks: BTreeMap<String, (NetworkMode, Vec<u32>)> = BTreeMap::new();
        for member in host::members(instance) {
            let place = host::arguments(member.pid).and_then(|mut all| all.drain(..).rev().nth(2));
            let job = place.as_deref().and_then(|place| place.split('.').next()).unwrap_or_default();
            let Some(mode) = modes.get(job).filter(|mode| **mode != NetworkMode::Host) else { continue };
            of_tasks.entry(member.alloc).or_insert((*mode, Vec::new())).1.push(member.pid);
        }
        let with = |wanted: &[NetworkMode]| -> BTreeSet<String> {
            let found = of_tasks.iter().filter(|(_, (mode, _))| wanted.contains(mode));
            found.map(|(alloc, _)| alloc.clone()).collect()
        };
        let (bridged, of_cni) = (with(&[NetworkMode::Bridge]), with(&[NetworkMode::Cni]));
        let all = with(&[NetworkMode::Bridge, NetworkMode::None, NetworkMode::Cni]);
        let runtime = home::runtime(instance);
        let mut wrong = Vec::new();
        let mut compare = |what: &str, found: BTreeSet<String>, wanted: &BTreeSet<String>| {
            if found != *wanted {
                wrong.push(format!("{what}: found {found:?}, expected {wanted:?}"));
            }
        };
        compare("namespaces", names(&runtime.join("netns")), &all);
        compare("addresses", claims(&runtime.join("addresses")), &bridged);
        compare("attachments", names(&self.folder.join("attached")), &of_cni);
        compare("records of plugins", records(&agent.home.state().join("cni")), &of_cni);
        let is_pair = |name: &String| name.starts_with("hl") && !name.starts_with("hl-");
        let pairs = self.machine.interfaces().unwrap_or_default().into_iter().filter(is_pair).count();
        if pairs != bridged.len() {
            wrong.push(format!("{pairs} interfaces for {} networks on the bridge", bridged.len()));
        }
        for (alloc, (_, pids)) in &of_tasks {
            let pin = identity(&runtime.join("netns").join(alloc));
            for pid in pids {
                if pin.is_none() || identity(Path::new(&format!("/proc/{pid}/ns/net"))) != pin {
                    wrong.push(format!("process {pid} of {alloc} is not in the network of its allocation"));
                }
            }
        }
        wrong.extend(self.free_ports(agent, &bridged));
        wrong
    }

    /// Ports that lead to allocations, and that another program could take.
    fn free_ports(&self, agent: &Agent, bridged: &BTreeSet<String>) -> Vec<String> {
        let allocs = agent.allocs().into_iter().filter(|alloc| bridged.contains(&alloc.id()));
        let mut free = Vec::new();
        for alloc in allocs {
            let Some(alloc) = agent.alloc(&alloc.name()).filter(|found| found.id() == alloc.id()) else {
                continue;
            };
            let Some(port) = alloc.port("http") else {
                free.push(format!("{} has no port", alloc.name()));
                continue;
            };
            if self.machine.run(|| TcpListener::bind(("127.0.0.1", port))).is_ok() {
                free.push(format!("port {port} of {} is not held", alloc.name()));
            }
        }
        free
    }
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn records(dir: &Path) -> BTreeSet<String> {
    names(dir).into_iter().map(|name| name.trim_end_matches(".json").to_owned()).collect()
}

/// The owners of addresses on all bridges.
fn claims(dir: &Path) -> BTreeSet<String> {
    let bridges = names(dir).into_iter().map(|name| dir.join(name));
    let claims = bridges.flat_map(|bridge| names(&bridge).into_iter().map(move |name| bridge.join(name)));
    let owner = |path: PathBuf| fs::read_link(&path).unwrap_or(path).to_string_lossy().into_owned();
    claims.map(owner).collect()
}
