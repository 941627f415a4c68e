//! The CNI plugins that Nomad runs for a bridge network, as programs of Debian.
//!
//! In: a namespace, two ports. Out: the same network as that of [`super::networks`], made by `loopback`, `bridge`, `firewall` and
//! `portmap`, one after the other, each with the result of the one before.

use std::{
    env,
    ffi::OsString,
    fs,
    io::Write as _,
    os::{
        fd::{AsFd as _, AsRawFd as _},
        unix::fs::PermissionsExt as _,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use herdlet_e2e::environment;
use herdlet_network::namespace::Namespace;
use serde_json::{Value, json};

const PLUGINS: [&str; 4] = ["loopback", "bridge", "firewall", "portmap"];
const FIRST_PORT: u16 = 30_000;

/// The programs, and what they keep.
pub(super) struct Chain {
    plugins: PathBuf,
    /// For the program `iptables`, which `firewall` and `portmap` run.
    path: OsString,
    folder: tempfile::TempDir,
}

/// What the removal of a network needs.
pub(super) struct ChainResult {
    container: String,
    index: u16,
    result: Value,
}

impl Chain {
    /// None if the programs are missing.
    pub(super) fn find() -> Option<Self> {
        let engines = environment::component(environment::ENGINES)?;
        let folder = tempfile::tempdir().expect("a directory");
        ["iptables", "ip6tables"].iter().for_each(|name| write_iptables(&folder.path().join(name), &engines));
        let mut path = folder.path().as_os_str().to_owned();
        path.push(":");
        path.push(env::var_os("PATH").unwrap_or_default());
        Some(Self { plugins: engines.join("usr/lib/cni"), path, folder })
    }

    /// Connects the namespace.
    pub(super) fn add(&self, namespace: &Namespace, index: u16) -> ChainResult {
        let mut attached = ChainResult { container: format!("bench-{index}"), index, result: Value::Null };
        for plugin in PLUGINS {
            let result = self.run(plugin, ("ADD", namespace), &attached);
            // The result of `loopback` belongs to a network of its own.
            if plugin != "loopback" {
                attached.result = result;
            }
        }
        attached
    }

    /// Disconnects the namespace.
    pub(super) fn remove(&self, namespace: &Namespace, attached: &ChainResult) {
        for plugin in PLUGINS.into_iter().rev() {
            self.run(plugin, ("DEL", namespace), attached);
        }
    }

    fn run(&self, plugin: &str, (command, namespace): (&str, &Namespace), attached: &ChainResult) -> Value {
        let interface = if plugin == "loopback" { "lo" } else { "eth0" };
        let fd = namespace.as_fd().as_raw_fd();
        let mut child = Command::new(self.plugins.join(plugin))
            .env("PATH", &self.path)
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", &attached.container)
            .env("CNI_NETNS", format!("/proc/{}/fd/{fd}", std::process::id()))
            .env("CNI_IFNAME", interface)
            .env("CNI_PATH", &self.plugins)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a plugin");
        let config = self.config(plugin, attached).to_string();
        let mut input = child.stdin.take().expect("the plugin's input");
        input.write_all(config.as_bytes()).expect("the plugin reads");
        drop(input);
        let output = child.wait_with_output().expect("the plugin's output");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{plugin} {command}: {text}");
        serde_json::from_str(&text).unwrap_or_default()
    }

    fn config(&self, plugin: &str, attached: &ChainResult) -> Value {
        let mut config = json!({ "cniVersion": "0.4.0", "name": "bench", "type": plugin });
        let keys = match plugin {
            "bridge" => {
                json!({ "bridge": "cnibench", "ipMasq": true, "isGateway": true, "forceAddress": true,
                "ipam": { "type": "host-local", "dataDir": self.folder.path().join("leases"),
                    "ranges": [[{ "subnet": "172.27.64.0/20" }]], "routes": [{ "dst": "0.0.0.0/0" }] } })
            }
            "firewall" => json!({ "backend": "iptables", "iptablesAdminChainName": "BENCH-ADMIN" }),
            "portmap" => json!({ "snat": true, "runtimeConfig": { "portMappings": ports(attached.index) } }),
            _ => json!({}),
        };
        let keys = keys.as_object().expect("an object").clone();
        let config_keys = config.as_object_mut().expect("an object");
        config_keys.extend(keys);
        if !attached.result.is_null() && plugin != "loopback" {
            config_keys.insert("prevResult".to_owned(), attached.result.clone());
        }
        config
    }
}

fn ports(index: u16) -> Vec<Value> {
    let port =
        |host: u16, protocol: &str| json!({ "hostPort": host, "containerPort": 80, "protocol": protocol });
    let hosts = [0, 1].map(|of_two| FIRST_PORT + 2 * index + of_two);
    hosts.into_iter().flat_map(|host| ["tcp", "udp"].map(|protocol| port(host, protocol))).collect()
}

/// A program that needs the libraries beside it.
fn write_iptables(path: &Path, engines: &Path) {
    let libraries = fs::read_dir(engines.join("usr/lib"))
        .expect("the libraries")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.to_string_lossy().ends_with("-linux-gnu"))
        .expect("a directory of libraries");
    let script = format!(
        "#!/bin/sh\nLD_LIBRARY_PATH={0} XTABLES_LIBDIR={0}/xtables exec {1} ${{0##*/}} \"$@\"\n",
        libraries.display(),
        engines.join("usr/sbin/xtables-nft-multi").display()
    );
    fs::write(path, script).expect("a program");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a program can be run");
}
