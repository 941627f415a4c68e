//! What users see of networks: the list, reports to clients of the API, host names, names that the agent resolves.

use std::{
    fs,
    net::{Ipv4Addr, UdpSocket},
    path::Path,
};

use herdlet_e2e::{
    agent::{Agent, Setup},
    http, ports,
    shown::Alloc,
    wait,
};
use serde_json::Value;

use crate::{
    common::{indented, is_root, job},
    networks::{python, server},
};

fn start(config: &str) -> Agent {
    Agent::start_with(Setup::default().config(format!("{config}\n{}", ports::for_tasks())))
}

/// What the API shows of the network of an allocation, in Nomad's form.
fn reported(agent: &Agent, alloc: &Alloc) -> Value {
    let path = format!("/v1/allocation/{}", alloc.id());
    http::get(&agent.peer(), &path).unwrap().json()["NetworkStatus"].clone()
}

fn resolver_of(agent: &Agent, alloc: &Alloc) -> String {
    let dir = agent.home.state().join("alloc").join(alloc.id()).join(".network");
    fs::read_to_string(dir.join("resolv.conf")).unwrap()
}

#[test]
fn networks_are_shown_and_reported_over_crashes() {
    if !is_root() {
        return;
    }
    let mut agent = start("");
    let task = "- name: server\n  driver: exec\n  config: {command: sleep, args: [\"3600\"]}\n";
    let group = "network: {mode: bridge, hostname: \"box-${NOMAD_ALLOC_INDEX}.example\", ports: {http: {to: 8080}}}\n";
    agent.apply_and_wait(&job("web", "service", group, &[indented(task, 8)]));
    let alloc = agent.alloc("web.g[0]").unwrap();
    let status = reported(&agent, &alloc);
    let address = status["Address"].as_str().unwrap().to_owned();
    assert!(address.starts_with("172.26.") && status["InterfaceName"] == "eth0", "{status}");
    let shown = |agent: &Agent| http::get(&agent.peer(), "/v1/herdlet/networks").unwrap().json();
    let views = shown(&agent);
    let [bridge, network] = [&views[0], &views[1]];
    assert_eq!((&bridge["kind"], &bridge["addresses_used"]), (&"bridge".into(), &1.into()), "{views}");
    assert_eq!(bridge["problem"], Value::Null, "{views}");
    assert_eq!((&network["name"], &network["address"]), (&"web.g[0]".into(), &address.as_str().into()));
    let port = &network["ports"][0];
    assert_eq!((&port["label"], &port["port"]), (&"http".into(), &8080.into()), "{views}");
    assert_eq!(port["host_port"], alloc.port("http").unwrap());
    assert!(port["held_by"].as_str().unwrap().starts_with("herdlet (process "), "{views}");
    assert!(Path::new(network["namespace"].as_str().unwrap()).exists());
    let listed = agent.cli(&["get", "networks", "web"]).success().stdout;
    let expected = format!("http=127.0.0.1:{}->8080  ready", alloc.port("http").unwrap());
    assert!(listed.contains(&expected) && !listed.contains("addresses are free"), "{listed}");
    assert!(agent.cli(&["get", "networks"]).success().stdout.contains("addresses are free"));
    let paths = [agent.home.state(), agent.home.socket()].map(|path| path.display().to_string());
    let doctor = agent.cli(&["doctor", "--state-dir", &paths[0], "--socket", &paths[1]]).stdout;
    assert!(doctor.contains("mode bridge: nf_tables is there"), "{doctor}");

    let script = "cat /proc/sys/kernel/hostname; grep box- /etc/hosts";
    let arguments = ["exec", "web.g[0]", "--task", "server", "--", "sh", "-c", script];
    let names = format!("box-0.example\n{address} box-0.example\n");
    assert_eq!(agent.cli(&arguments).success().stdout, names);
    let own = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_ne!(own.trim(), "box-0.example", "the machine keeps its name");

    agent.crash();
    assert_eq!(reported(&agent, &alloc), status);
    agent.cli(&["wait", "web"]).success();
    assert_eq!(agent.cli(&arguments).success().stdout, names);
    assert_eq!(shown(&agent)[1]["address"], address.as_str());
    agent.cli(&["stop", "web", "--wait"]).success();
    wait::until_true("its network is gone", || shown(&agent).as_array().unwrap().len() == 1);
    assert_eq!(reported(&agent, &alloc), status, "the last network is known after the end");
    agent.crash();
    assert_eq!(reported(&agent, &alloc), status);
    agent.cli(&["delete", "web", "--wait"]).success();
    agent.finish();
}

/// Prints the last four bytes of the answer to a query, which are an address, or why there is none.
fn resolve(agent: &Agent, alloc: &Alloc, (server, name): (&str, &str)) -> String {
    let script = format!(
        "import socket, struct\n\
         q = struct.pack('>6H', 7, 256, 1, 0, 0, 0) + b''.join(bytes([len(l)]) + l for l in b'{name}'.split(b'.')) + b'\\0\\0\\1\\0\\1'\n\
         s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20); s.connect(('{server}', 53)); s.send(q)\n\
         try:\n    a = s.recv(4096); print(a[3] & 15, socket.inet_ntoa(a[-4:]))\nexcept ConnectionRefusedError:\n    print('refused')"
    );
    python(agent, alloc, &script)
}

/// A name server of the machine on its loopback address, as systemd-resolved, which knows one address for all names.
fn answer_on_loopback(socket: &UdpSocket) {
    let mut query = [0; 512];
    while let Ok((length, peer)) = socket.recv_from(&mut query) {
        let mut answer = query[..length].to_vec();
        (answer[2], answer[3], answer[7]) = (0x81, 0x80, 1);
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 192, 0, 2, 99]);
        socket.send_to(&answer, peer).unwrap();
    }
}

#[test]
fn allocations_resolve_services_and_other_names_with_the_agent() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let of_machine = folder.path().join("resolv.conf");
    fs::write(&of_machine, "nameserver 127.0.0.1\n").unwrap();
    rustix::mount::mount_bind(&of_machine, "/etc/resolv.conf").unwrap();
    let upstream = UdpSocket::bind("127.0.0.1:53").unwrap();
    std::thread::spawn(move || answer_on_loopback(&upstream));
    let mut agent = start("");
    let group = "network: {mode: bridge, ports: {http: {to: 8080}}}\nservices:\n  - {name: inside, port: http, address_mode: alloc}\n";
    agent.apply_and_wait(&job("web", "service", group, &[server()]));
    let alloc = agent.alloc("web.g[0]").unwrap();
    agent.until_logged(&alloc.id(), "server", "stdout", |log| log.contains("listens"));
    let address = reported(&agent, &alloc)["Address"].as_str().unwrap().to_owned();
    let resolver = resolver_of(&agent, &alloc);
    let gateway = resolver.lines().next().and_then(|line| line.strip_prefix("nameserver ")).unwrap();
    let gateway: Ipv4Addr = gateway.parse().unwrap();
    let server = gateway.to_string();
    assert_eq!(gateway.octets()[..2], [172, 26]);
    wait::until_true("the service is listed", || {
        resolve(&agent, &alloc, (&server, "inside.service.herdlet")) == format!("0 {address}")
    });
    assert_eq!(resolve(&agent, &alloc, (&server, "other.example")), "0 192.0.2.99");
    assert!(resolve(&agent, &alloc, (&server, "none.service.herdlet")).starts_with("3 "));
    // A program of the machine can still have the port, also at all addresses.
    UdpSocket::bind((gateway, 53)).unwrap();

    agent.kill();
    agent.launch();
    agent.cli(&["wait", "web"]).success();
    wait::until_true("the next agent answers", || {
        resolve(&agent, &alloc, (&server, "other.example")) == "0 192.0.2.99"
    });
    assert_eq!(resolver_of(&agent, &alloc), resolver);
    agent.cli(&["delete", "web", "--wait"]).success();
    agent.finish();
}

#[test]
fn allocations_do_not_use_the_agents_name_server_where_it_is_off() {
    if !is_root() {
        return;
    }
    let mut agent = start("network: {dns: false}");
    agent.apply_and_wait(&job("web", "service", "network: {mode: bridge}\n", &[server_without_port()]));
    let alloc = agent.alloc("web.g[0]").unwrap();
    assert!(!resolver_of(&agent, &alloc).contains("nameserver 172.26."));
    let bridge = http::get(&agent.peer(), "/v1/herdlet/networks").unwrap().json()[0]["address"].clone();
    let gateway = bridge.as_str().unwrap().split('/').next().unwrap().to_owned();
    assert_eq!(resolve(&agent, &alloc, (&gateway, "web.example")), "refused");
    agent.cli(&["delete", "web", "--wait"]).success();
    agent.finish();
}

fn server_without_port() -> String {
    crate::common::sleeper("server", "")
}
