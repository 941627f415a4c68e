//! Networks that CNI plugins set up: those of Debian, and a plugin with faults; over crashes.

use std::{
    collections::BTreeSet,
    fs,
    net::TcpStream,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use herdlet_e2e::{
    agent::{Agent, Setup},
    environment, host,
    http::{self, Peer},
    ports, wait,
};
use serde_json::json;

use crate::{
    common::{indented, is_root, job, patient},
    networks::{ask_udp, python, server, variable},
};

/// A plugin that says what its folder tells it to say. Its network is the loopback interface of the namespace.
const PLUGIN: &str = r#"#!/bin/sh
cd DIR || exit 9
cat >/dev/null
echo "$CNI_COMMAND $CNI_ARGS" >>calls
case $CNI_COMMAND in ADD | DEL)
    if [ -e "hang.$CNI_COMMAND" ]; then
        echo $$ >"hangs.$CNI_COMMAND.new"
        mv "hangs.$CNI_COMMAND.new" "hangs.$CNI_COMMAND"
        sleep 100000
    fi ;;
esac
if [ -e "fail.$CNI_COMMAND" ]; then
    echo '{"cniVersion": "1.0.0", "code": 11, "msg": "no address is free"}'
    exit 1
fi
[ "$CNI_COMMAND" != ADD ] ||
    echo '{"interfaces": [{"name": "lo", "sandbox": "x"}], "ips": [{"address": "127.0.0.1/8", "interface": 0}]}'
"#;

/// A folder with config files and plugins.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// With the plugin above, and its network `net`.
    pub(crate) fn with_plugin() -> Self {
        let folder = Self::new();
        folder.program("stand-in", &PLUGIN.replace("DIR", &folder.path("").display().to_string()));
        folder.network(&json!({ "cniVersion": "1.0.0", "name": "net", "type": "stand-in" }));
        folder
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn program(&self, name: &str, script: &str) {
        fs::write(self.path(name), script).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn network(&self, config: &serde_json::Value) {
        fs::write(self.path("net.conflist"), config.to_string()).unwrap();
    }

    /// The commands that the plugin has got.
    pub(crate) fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.path("calls")).unwrap_or_default();
        calls.lines().filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
    }

    /// The lines of an agent's config for plugins of this path.
    pub(crate) fn config(&self, plugins: &Path) -> String {
        format!("network: {{cni_path: {}, cni_config_dir: {}}}", plugins.display(), self.path("").display())
    }

    fn start(&self) -> Agent {
        Agent::start_with(Setup::default().config(self.config(self.0.path())))
    }
}

fn sleeping() -> String {
    indented("- name: server\n  driver: raw_exec\n  config: {command: sleep, args: [\"100000\"]}\n", 8)
}

pub(crate) fn nothing_left(agent: &Agent) -> bool {
    let is_empty = |dir: PathBuf| fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none());
    let instance = agent.home.instance().unwrap();
    is_empty(agent.home.state().join("cni"))
        && is_empty(Path::new("/run/herdlet").join(instance).join("netns"))
}

/// Programs that need libraries beside them.
fn iptables(folder: &Folder, engines: &Path) {
    let libraries = fs::read_dir(engines.join("usr/lib")).unwrap().map(|entry| entry.unwrap().path());
    let libraries =
        libraries.into_iter().find(|path| path.to_string_lossy().ends_with("-linux-gnu")).unwrap();
    let program = engines.join("usr/sbin/xtables-nft-multi");
    let script = format!(
        "#!/bin/sh\nLD_LIBRARY_PATH={0} XTABLES_LIBDIR={0}/xtables exec {1} ${{0##*/}} \"$@\"\n",
        libraries.display(),
        program.display()
    );
    for name in ["iptables", "ip6tables"] {
        folder.program(name, &script);
    }
}

#[test]
fn plugins_of_debian_connect_allocations_over_crashes() {
    if !is_root() {
        return;
    }
    let Some(engines) = environment::component(environment::ENGINES) else { return };
    let folder = Folder::new();
    iptables(&folder, &engines);
    let leases = folder.path("leases");
    folder.network(&json!({ "cniVersion": "1.0.0", "name": "net", "plugins": [
        { "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
            "ipam": { "type": "host-local", "dataDir": leases, "ranges": [[{ "subnet": "10.91.0.0/24" }]],
                "routes": [{ "dst": "0.0.0.0/0" }] } },
        { "type": "portmap", "snat": true, "capabilities": { "portMappings": true } },
    ] }));
    let path = format!("{}:{}", folder.path("").display(), std::env::var("PATH").unwrap());
    let config = format!("{}\n{}", folder.config(&engines.join("usr/lib/cni")), ports::for_tasks());
    let mut agent = Agent::start_with(Setup::default().config(config).env("PATH", path));
    let group = "count: 2\nnetwork: {mode: cni/net, ports: {http: {to: 8080}}}\nservices:\n  \
                 - {name: inside, port: http, address_mode: alloc}\n";
    agent.apply_and_wait(&job("web", "service", group, &[server()]));
    let names = ["web.g[0]", "web.g[1]"];
    let allocs = names.map(|name| agent.alloc(name).unwrap());
    let ports = allocs.each_ref().map(|alloc| alloc.port("http").unwrap());
    let mut addresses = Vec::new();
    for (index, alloc) in allocs.iter().enumerate() {
        agent.until_logged(&alloc.id(), "server", "stdout", |log| log.contains("listens"));
        let address = variable(&agent, alloc, "NOMAD_ALLOC_IP_http");
        assert!(address.starts_with("10.91.0."), "{address}");
        assert_eq!(http::get(&Peer::Port(ports[index]), "/").unwrap().body, format!("{index} at {address}"));
        assert_eq!(ask_udp(ports[index]), format!("hello {index}"));
        let dir = agent.home.state().join("alloc").join(alloc.id()).join(".network");
        assert!(fs::read_to_string(dir.join("hosts")).unwrap().contains(&format!("{address} ")));
        addresses.push(address);
    }
    let script = format!(
        "import urllib.request as u; print(u.urlopen('http://{}:8080').read().decode())",
        addresses[1]
    );
    assert_eq!(python(&agent, &allocs[0], &script), format!("1 at {}", addresses[1]));
    let listed = http::get(&agent.peer(), "/v1/service/inside").unwrap().json();
    let found: BTreeSet<&str> =
        listed.as_array().unwrap().iter().map(|one| one["Address"].as_str().unwrap()).collect();
    assert_eq!(found, addresses.iter().map(String::as_str).collect());

    let pids = names.map(|name| agent.single(name, "server").pid);
    agent.kill();
    assert_eq!(http::get(&Peer::Port(ports[0]), "/").unwrap().status, 200, "without an agent");
    agent.launch();
    agent.cli(&["wait", "web"]).success();
    assert_eq!(names.map(|name| agent.single(name, "server").pid), pids, "no task was restarted");
    for (index, alloc) in allocs.iter().enumerate() {
        assert_eq!(variable(&agent, alloc, "NOMAD_ALLOC_IP_http"), addresses[index]);
        assert_eq!(http::get(&Peer::Port(ports[index]), "/").unwrap().status, 200);
    }
    agent.cli(&["delete", "web", "--wait"]).success();
    wait::until_true("nothing is left", || nothing_left(&agent));
    let left = fs::read_dir(leases.join("net")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with("10.")).collect();
    assert!(left.is_empty(), "{left:?}");
    agent.finish();
}

#[test]
fn example_has_an_address_of_its_network() {
    if !is_root() {
        return;
    }
    let Some(engines) = environment::component(environment::ENGINES) else { return };
    let folder = Folder::new();
    folder.network(&json!({ "cniVersion": "1.0.0", "name": "example", "type": "bridge", "bridge": "cni1", "isGateway": true,
        "ipam": { "type": "host-local", "dataDir": folder.path("leases"), "ranges": [[{ "subnet": "10.92.0.0/24" }]] } }));
    let config = format!("{}\n{}", folder.config(&engines.join("usr/lib/cni")), ports::for_tasks());
    let mut agent = Agent::start_with(Setup::default().config(config));
    agent.apply_and_wait(&patient("cni"));
    let listed = http::get(&agent.peer(), "/v1/service/cni").unwrap().json();
    let (address, port) = (listed[0]["Address"].as_str().unwrap(), listed[0]["Port"].as_u64().unwrap());
    assert_eq!((address, port), ("10.92.0.2", 8080));
    wait::until_true("the server listens", || TcpStream::connect((address, 8080)).is_ok());
    agent.finish();
}

#[test]
fn unknown_network_and_failing_plugin_are_explained_and_waited_for() {
    if !is_root() {
        return;
    }
    let folder = Folder::with_plugin();
    fs::rename(folder.path("net.conflist"), folder.path("net.off")).unwrap();
    fs::write(folder.path("fail.ADD"), "").unwrap();
    let mut agent = folder.start();
    let group = "network: {mode: cni/net, ports: {http: {to: 80}}}\n";
    agent.apply(&job("web", "service", group, &[sleeping()]));
    let why = format!("no file *.conflist, *.conf or *.json in {} has this name", folder.path("").display());
    agent.until_printed(&["explain", "web"], |text| text.contains(&why));
    fs::rename(folder.path("net.off"), folder.path("net.conflist")).unwrap();
    let why = "run the CNI plugin stand-in with ADD: it reported: no address is free (code 11)";
    agent.until_printed(&["explain", "web"], |text| text.contains(why));
    assert!(folder.calls().ends_with(&["ADD".to_owned(), "DEL".to_owned()]), "{:?}", folder.calls());
    fs::remove_file(folder.path("fail.ADD")).unwrap();
    agent.cli(&["wait", "web"]).success();
    let alloc = agent.alloc("web.g[0]").unwrap();
    let args = fs::read_to_string(folder.path("calls")).unwrap();
    let expected =
        format!("IgnoreUnknown=true;NOMAD_ALLOC_ID={};NOMAD_GROUP_NAME=g;NOMAD_JOB_ID=web;", alloc.id());
    assert!(args.contains(&expected), "{args}");
    agent.until_printed(&["describe", "web.g[0]"], |text| text.contains("ports are only numbers"));
    agent.cli(&["delete", "web", "--wait"]).success();
    wait::until_true("nothing is left", || nothing_left(&agent));
    agent.finish();
}

/// The agent dies while a plugin runs. The plugin goes on; what it does must not meet what the next agent does.
#[test]
fn crash_while_a_plugin_runs_leaves_nothing() {
    if !is_root() {
        return;
    }
    let folder = Folder::with_plugin();
    let mut agent = folder.start();
    let hang = |command: &str| fs::write(folder.path(&format!("hang.{command}")), "").unwrap();
    let hanging = |command: &str| -> u32 {
        let path = folder.path(&format!("hangs.{command}"));
        wait::until("the plugin runs", || fs::read_to_string(&path).ok()?.trim().parse().ok())
    };
    hang("ADD");
    agent.apply(&job("web", "service", "network: {mode: cni/net}\n", &[sleeping()]));
    let plugin = hanging("ADD");
    agent.kill();
    assert!(host::is_alive(plugin));
    fs::remove_file(folder.path("hang.ADD")).unwrap();
    agent.launch();
    agent.cli(&["wait", "web"]).success();
    assert!(!host::is_alive(plugin));
    assert_eq!(folder.calls()[..3], ["ADD", "DEL", "ADD"]);
    let pid = agent.single("web.g[0]", "server").pid;
    agent.crash();
    agent.cli(&["wait", "web"]).success();
    assert_eq!(agent.single("web.g[0]", "server").pid, pid);
    assert_eq!(folder.calls().last().unwrap(), "CHECK", "it stays as it is");

    hang("DEL");
    agent.cli(&["delete", "web"]).success();
    let plugin = hanging("DEL");
    agent.kill();
    fs::remove_file(folder.path("hang.DEL")).unwrap();
    agent.launch();
    wait::until_true("nothing is left", || nothing_left(&agent));
    assert!(!host::is_alive(plugin));
    agent.finish();
}
