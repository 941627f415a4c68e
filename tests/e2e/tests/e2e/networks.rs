//! Networks of allocations: namespaces, addresses, ports of the machine that lead there, over crashes and damage.

mod drift;
mod ipv6;

use std::{
    collections::BTreeSet,
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{TcpListener, TcpStream, UdpSocket},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use herdlet_e2e::{
    agent::{Agent, Setup},
    environment,
    http::{self, Peer},
    ports,
    shown::Alloc,
    wait,
};

use crate::common::{indented, is_root, job};

/// A server that answers requests by TCP and datagrams by UDP with its environment's port and what it sees of its network.
const SERVER: &str = r#"
import os, socket, threading
port = int(os.environ["NOMAD_PORT_http"])
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("0.0.0.0", port))
def echo():
    while True:
        data, peer = udp.recvfrom(1500)
        udp.sendto(data + b" " + os.environ["NOMAD_ALLOC_INDEX"].encode(), peer)
threading.Thread(target=echo, daemon=True).start()
tcp = socket.socket()
tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
tcp.bind(("0.0.0.0", port))
tcp.listen()
print("listens", flush=True)
def answer(client):
    client.recv(4096)
    body = os.environ["NOMAD_ALLOC_INDEX"] + " at " + client.getsockname()[0]
    client.sendall(("HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body)).encode())
    client.close()
while True:
    threading.Thread(target=answer, args=(tcp.accept()[0],), daemon=True).start()
"#;

/// A task that serves.
pub(crate) fn server() -> String {
    let script = serde_json::to_string(SERVER).unwrap();
    let task = format!(
        "- name: server\n  driver: raw_exec\n  config: {{command: python3, args: [-c, {script}]}}\n  kill_timeout: 5s\n"
    );
    indented(&task, 8)
}

/// Starts an agent for tests with ports.
fn start(config: &str) -> Agent {
    Agent::start_with(Setup::default().config(format!("{config}\n{}", ports::for_tasks())))
}

/// What the API shows of one of the environment's variables of a task.
pub(crate) fn variable(agent: &Agent, alloc: &Alloc, name: &str) -> String {
    let script = format!("echo \"${name}\"");
    let arguments = ["exec", &alloc.name(), "--task", "server", "--", "sh", "-c", &script];
    agent.cli(&arguments).success().stdout.trim().to_owned()
}

/// Runs a script with Python in a task.
pub(crate) fn python(agent: &Agent, alloc: &Alloc, script: &str) -> String {
    let arguments = ["exec", &alloc.name(), "--task", "server", "--", "python3", "-c", script];
    agent.cli(&arguments).success().stdout.trim().to_owned()
}

pub(crate) fn ask_udp(port: u16) -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    wait::until("an answer by UDP", || {
        socket.send_to(b"hello", ("127.0.0.1", port)).unwrap();
        let mut bytes = [0; 64];
        let length = socket.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
    })
}

/// The interfaces of the machine that lead to allocations.
pub(crate) fn pairs() -> BTreeSet<String> {
    let entries = fs::read_dir("/proc/sys/net/ipv4/conf").unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("hl") && !name.starts_with("hl-")).collect()
}

fn runtime(agent: &Agent) -> PathBuf {
    Path::new("/run/herdlet").join(agent.home.instance().unwrap())
}

/// The names of all files in the directory of namespaces, and of all claims of addresses.
fn claims(agent: &Agent) -> Vec<String> {
    let runtime = runtime(agent);
    let bridges = fs::read_dir(runtime.join("addresses")).into_iter().flatten().flatten();
    let dirs = bridges.map(|entry| entry.path()).chain([runtime.join("netns")]);
    let entries = dirs.flat_map(|dir| fs::read_dir(dir).into_iter().flatten().flatten());
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

pub(crate) fn until_nothing_left(agent: &Agent) {
    wait::until_true("no namespace, no claim, no interface", || {
        claims(agent).is_empty() && pairs().is_empty()
    });
}

#[test]
fn isolated_tasks_have_the_files_of_their_network() {
    if !is_root() {
        return;
    }
    let mut agent = start("");
    let task = "- name: server\n  driver: exec\n  config: {command: sleep, args: [\"3600\"]}\n";
    // As in job files that name the plugins of Nomad's bridge.
    let group = "network: {mode: bridge}\nconstraints:\n  - attribute: \"${attr.plugins.cni.version.bridge}\"\n    \
                 operator: semver\n    value: \">= 0.4.0\"\n";
    agent.apply_and_wait(&job("web", "service", group, &[indented(task, 8)]));
    let alloc = agent.alloc("web.g[0]").unwrap();
    let dir = agent.home.state().join("alloc").join(alloc.id()).join(".network");
    let [hosts, resolver] = ["hosts", "resolv.conf"].map(|name| fs::read_to_string(dir.join(name)).unwrap());
    assert!(hosts.contains("172.26."), "{hosts}");
    let script = "cat /etc/hosts /etc/resolv.conf; ls /sys/class/net; echo x >>/etc/hosts || echo refused";
    let arguments = ["exec", &alloc.name(), "--task", "server", "--", "sh", "-c", script];
    let expected = format!("{hosts}{resolver}eth0\nlo\nrefused\n");
    assert_eq!(agent.cli(&arguments).success().stdout, expected);
    agent.crash();
    assert_eq!(agent.cli(&arguments).success().stdout, expected);
    agent.cli(&["delete", "web", "--wait"]).success();
    until_nothing_left(&agent);
}

/// Also without a network of their own, and over damage.
#[test]
fn isolated_tasks_resolve_names_as_their_group_says() {
    if !is_root() {
        return;
    }
    let mut agent = start("");
    let task = "- name: server\n  driver: exec\n  config: {command: sleep, args: [\"3600\"]}\n";
    let dns = |mode: &str| {
        let domain = "${node.datacenter}.example";
        format!(
            "network: {{mode: {mode}, dns: {{servers: [192.0.2.1], searches: [a.example, \"{domain}\"], options: [\"ndots:2\"]}}}}\n"
        )
    };
    for (name, mode) in [("machine", "host"), ("own", "bridge")] {
        agent.apply_and_wait(&job(name, "service", &dns(mode), &[indented(task, 8)]));
    }
    let shown = |agent: &Agent, name: &str| {
        let arguments = ["exec", name, "--task", "server", "--", "cat", "/etc/resolv.conf"];
        agent.cli(&arguments).success().stdout
    };
    let words = ["search a.example dc1.example\n", "options ndots:2\n", "nameserver 192.0.2.1\n"];
    let names = ["machine.g[0]", "own.g[0]"];
    let ids = names.map(|name| agent.alloc(name).unwrap().id());
    for name in names {
        let text = shown(&agent, name);
        assert!(words.iter().all(|word| text.matches(word).count() == 1), "{name}: {text}");
        assert_eq!(text.matches("nameserver").count(), 1, "{name}: {text}");
    }
    let allocs = agent.home.state().join("alloc");
    let files = ids.map(|id| allocs.join(id).join(".network"));
    assert!(!files[0].join("hosts").exists(), "the machine's own is used");
    let before = shown(&agent, "machine.g[0]");
    let pid = agent.single("machine.g[0]", "server").pid;
    agent.kill();
    fs::write(files[0].join("resolv.conf"), "nameserver 192.0.2.9\n").unwrap();
    agent.launch();
    agent.cli(&["wait", "machine"]).success();
    wait::until_true("the file is written again", || shown(&agent, "machine.g[0]") == before);
    assert_eq!(agent.single("machine.g[0]", "server").pid, pid, "the task runs on");
    for name in ["machine", "own"] {
        agent.cli(&["stop", name]).success();
    }
    for dir in &files {
        wait::until_true("its files are removed", || !dir.exists());
    }
    for name in ["machine", "own"] {
        agent.cli(&["delete", name, "--wait"]).success();
    }
    until_nothing_left(&agent);
    agent.finish();
}

#[test]
fn ports_of_the_machine_lead_to_allocations_over_crashes() {
    if !is_root() {
        return;
    }
    let mut agent = start("");
    let group = "count: 2\nnetwork: {mode: bridge, ports: {http: {to: 8080}}}\nservices:\n  \
                 - {name: web, port: http}\n  - {name: inside, port: http, address_mode: alloc}\n";
    agent.apply_and_wait(&job("web", "service", group, &[server()]));
    let names = ["web.g[0]", "web.g[1]"];
    let allocs = names.map(|name| agent.alloc(name).unwrap());
    let ports = allocs.each_ref().map(|alloc| alloc.port("http").unwrap());
    let mut addresses = Vec::new();
    for (index, alloc) in allocs.iter().enumerate() {
        agent.until_logged(&alloc.id(), "server", "stdout", |log| log.contains("listens"));
        let address = variable(&agent, alloc, "NOMAD_ALLOC_IP_http");
        assert!(address.starts_with("172.26."), "{address}");
        let answer = http::get(&Peer::Port(ports[index]), "/").unwrap();
        assert_eq!(answer.body, format!("{index} at {address}"));
        assert_eq!(ask_udp(ports[index]), format!("hello {index}"));
        let shown = variable(&agent, alloc, "NOMAD_PORT_http $NOMAD_HOST_PORT_http $NOMAD_ALLOC_ADDR_http");
        assert_eq!(shown, format!("8080 {} {address}:8080", ports[index]));
        let dir = agent.home.state().join("alloc").join(alloc.id()).join(".network");
        let hosts = fs::read_to_string(dir.join("hosts")).unwrap();
        assert!(hosts.contains(&format!("{address} ")), "{hosts}");
        assert!(dir.join("resolv.conf").exists());
        addresses.push(address);
    }
    // Both listen on the same port, and reach each other.
    let script = format!(
        "import urllib.request as u; print(u.urlopen('http://{}:8080').read().decode())",
        addresses[1]
    );
    assert_eq!(python(&agent, &allocs[0], &script), format!("1 at {}", addresses[1]));
    let of = |service: &str| {
        let listed = http::get(&agent.peer(), &format!("/v1/service/{service}")).unwrap().json();
        let all = listed.as_array().unwrap().iter();
        all.map(|one| format!("{}:{}", one["Address"].as_str().unwrap(), one["Port"]))
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(of("web"), ports.iter().map(|port| format!("127.0.0.1:{port}")).collect());
    assert_eq!(of("inside"), addresses.iter().map(|address| format!("{address}:8080")).collect());
    for port in ports {
        assert!(TcpListener::bind(("127.0.0.1", port)).is_err(), "the agent holds it");
        assert!(UdpSocket::bind(("127.0.0.1", port)).is_err(), "the agent holds it");
    }

    let pids = names.map(|name| agent.single(name, "server").pid);
    agent.kill();
    for port in ports {
        assert_eq!(http::get(&Peer::Port(port), "/").unwrap().status, 200, "without an agent");
    }
    agent.launch();
    agent.cli(&["wait", "web"]).success();
    assert_eq!(names.map(|name| agent.single(name, "server").pid), pids, "no task was restarted");
    for (index, alloc) in allocs.iter().enumerate() {
        assert_eq!(variable(&agent, alloc, "NOMAD_ALLOC_IP_http"), addresses[index]);
        let answer = http::get(&Peer::Port(ports[index]), "/").unwrap();
        assert_eq!(answer.body, format!("{index} at {}", addresses[index]));
        assert!(TcpListener::bind(("127.0.0.1", ports[index])).is_err(), "the next agent holds it");
    }
    assert_eq!(agent.cli(&["status", "--check"]).code, 0);

    agent.cli(&["delete", "web", "--wait"]).success();
    until_nothing_left(&agent);
    for port in ports {
        TcpListener::bind(("0.0.0.0", port)).unwrap();
        UdpSocket::bind(("0.0.0.0", port)).unwrap();
    }
    agent.finish();
}

#[test]
fn network_without_a_connection_has_a_loopback_interface() {
    if !is_root() {
        return;
    }
    let mut agent = start("");
    agent.apply_and_wait(&job("alone", "service", "network: {mode: none}\n", &[sleeping("server")]));
    let alloc = agent.alloc("alone.g[0]").unwrap();
    let script = "import os, socket; s = socket.create_server(('127.0.0.1', 0)); \
                  socket.create_connection(s.getsockname()); print(*sorted(os.listdir('/proc/sys/net/ipv4/conf')))";
    assert_eq!(python(&agent, &alloc, script), "all default lo");
    let machine = namespace_of(std::process::id());
    let pid = agent.single("alone.g[0]", "server").pid;
    let own = namespace_of(pid);
    assert_ne!(own, machine);
    agent.kill();
    agent.launch();
    agent.cli(&["wait", "alone"]).success();
    assert_eq!(agent.single("alone.g[0]", "server").pid, pid);
    agent.cli(&["restart", "alone", "--wait"]).success();
    let next = agent.single("alone.g[0]", "server").pid;
    assert_ne!(next, pid);
    assert_eq!(namespace_of(next), own, "the allocation keeps it");
    agent.cli(&["delete", "alone", "--wait"]).success();
    until_nothing_left(&agent);
    agent.finish();
}

#[test]
fn port_of_another_process_is_waited_for() {
    if !is_root() {
        return;
    }
    let [port] = ports::free();
    let mut agent = start("");
    let stranger = UdpSocket::bind(("127.0.0.1", port)).unwrap();
    let group = format!("network: {{mode: bridge, ports: {{http: {{static: {port}, to: 80}}}}}}\n");
    agent.apply(&job("web", "service", &group, &[server()]));
    let why = format!("port {port}/udp, which ");
    let explained = agent.until_printed(&["explain", "web"], |text| text.contains(&why));
    assert!(explained.contains(&format!("(process {})", std::process::id())), "{explained}");
    drop(stranger);
    agent.cli(&["wait", "web"]).success();
    let alloc = agent.alloc("web.g[0]").unwrap();
    agent.until_logged(&alloc.id(), "server", "stdout", |log| log.contains("listens"));
    assert_eq!(http::get(&Peer::Port(port), "/").unwrap().status, 200);
    let explained = agent.cli(&["explain", "web"]).success().stdout;
    assert!(!explained.contains("another process"), "its own sockets hold the port: {explained}");
    agent.cli(&["delete", "web", "--wait"]).success();
    until_nothing_left(&agent);
    agent.finish();
}

#[test]
fn ports_are_on_the_network_of_the_machine_that_they_name() {
    if !is_root() || environment::program("ip").is_none() {
        return;
    }
    let added = Command::new("ip").args(["address", "add", "192.0.2.7/32", "dev", "lo"]).status();
    assert!(added.unwrap().success());
    let mut agent = start(
        "network: {host_networks: [{name: public, cidr: 192.0.2.0/24}, {name: away, cidr: 203.0.113.0/24}]}",
    );
    let group = |network: &str| {
        format!(
            "network: {{mode: bridge, ports: {{http: {{to: 8080, host_network: {network}}}}}}}\nservices:\n  - {{name: web, port: http}}\n"
        )
    };
    agent.apply_and_wait(&job("web", "service", &group("public"), &[server()]));
    let alloc = agent.alloc("web.g[0]").unwrap();
    let port = alloc.port("http").unwrap();
    agent.until_logged(&alloc.id(), "server", "stdout", |log| log.contains("listens"));
    let mut client = TcpStream::connect(("192.0.2.7", port)).unwrap();
    client.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("0 at 172.26."), "{answer}");
    let refused = TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.kind());
    assert_eq!(refused.map(drop), Err(ErrorKind::ConnectionRefused));
    assert_eq!(variable(&agent, &alloc, "NOMAD_HOST_ADDR_http"), format!("192.0.2.7:{port}"));
    let service = http::get(&agent.peer(), "/v1/service/web").unwrap().json();
    assert_eq!((&service[0]["Address"], &service[0]["Port"]), (&"192.0.2.7".into(), &port.into()));
    for (network, why) in [
        ("wan", "needs the host network `wan` for port `http`: add it to `network.host_networks`"),
        ("away", "needs the host network `away`, and the machine has no such address"),
    ] {
        agent.apply(&job(network, "service", &group(network), &[server()]));
        agent.until_printed(&["explain", network], |text| text.contains(why));
    }
    // The machine gets the address while the agent runs.
    let added = Command::new("ip").args(["address", "add", "203.0.113.9/32", "dev", "lo"]).status();
    assert!(added.unwrap().success());
    agent.cli(&["wait", "away"]).success();
    let away = agent.alloc("away.g[0]").unwrap();
    assert!(variable(&agent, &away, "NOMAD_HOST_ADDR_http").starts_with("203.0.113.9:"));
    for name in ["web", "wan", "away"] {
        agent.cli(&["delete", name, "--wait"]).success();
    }
    until_nothing_left(&agent);
    agent.finish();
}

/// What another program has removed while no agent ran is made again, under the running task where that is possible.
#[test]
fn damaged_networks_are_repaired() {
    if !is_root() {
        return;
    }
    let mut agent = start("");
    let group = "network: {mode: bridge, ports: {http: {to: 8080}}}\n";
    agent.apply_and_wait(&job("web", "service", group, &[server()]));
    let alloc = agent.alloc("web.g[0]").unwrap();
    let port = alloc.port("http").unwrap();
    agent.until_logged(&alloc.id(), "server", "stdout", |log| log.contains("listens"));
    let pid = agent.single("web.g[0]", "server").pid;
    let address = variable(&agent, &alloc, "NOMAD_ALLOC_IP_http");
    agent.kill();
    fs::remove_dir_all(runtime(&agent).join("addresses")).unwrap();
    fs::remove_dir_all(agent.home.state().join("alloc").join(alloc.id()).join(".network")).unwrap();
    agent.launch();
    agent.cli(&["wait", "web"]).success();
    wait::until_true("the claim", || claims(&agent).contains(&address));
    assert_eq!(agent.single("web.g[0]", "server").pid, pid, "the task runs on");
    assert_eq!(http::get(&Peer::Port(port), "/").unwrap().body, format!("0 at {address}"));

    // A task can't follow into another namespace.
    agent.kill();
    let kept = runtime(&agent).join("netns").join(alloc.id());
    rustix::mount::unmount(&kept, rustix::mount::UnmountFlags::DETACH).unwrap();
    agent.launch();
    wait::until_true("a restart", || {
        agent.members().iter().any(|member| member.task == "server" && member.pid != pid)
    });
    agent.cli(&["wait", "web"]).success();
    wait::until_true("an answer", || {
        http::poll_task(port, "/").is_some_and(|answer| answer.body.starts_with("0 at "))
    });
    agent.cli(&["delete", "web", "--wait"]).success();
    until_nothing_left(&agent);
    agent.finish();
}

fn sleeping(name: &str) -> String {
    crate::common::sleeper(name, "")
}

fn namespace_of(pid: u32) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/net")).unwrap()
}
