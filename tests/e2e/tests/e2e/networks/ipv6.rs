//! IPv6 of bridges: addresses, ports of the machine, published ports and names, over a crash of the agent.

use std::{
    io::{ErrorKind, Read as _},
    net::{TcpListener, TcpStream, UdpSocket},
    process::Command,
    time::Duration,
};

use herdlet_e2e::{environment, http, ports, wait};

use super::{start, until_nothing_left};
use crate::common::{indented, is_root, job};

/// Answers by TCP and by UDP with the address at which it was reached, and the client's.
const SERVER: &str = r#"
import os, socket, threading
udp = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
udp.bind(("::", 8080))
def echo():
    while True:
        data, peer = udp.recvfrom(1500)
        udp.sendto(data + b" " + peer[0].encode(), peer)
threading.Thread(target=echo, daemon=True).start()
tcp = socket.socket(socket.AF_INET6)
tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
tcp.bind(("::", 8080))
tcp.listen()
print("listens", flush=True)
while True:
    client, peer = tcp.accept()
    client.sendall((client.getsockname()[0] + " " + peer[0]).encode())
    client.close()
"#;

const CONFIG: &str =
    "network: {subnet6: \"fd00:37::/64\", host_networks: [{name: six, cidr: \"2001:db8::/32\"}]}";

fn ask(ip: &str, port: u16) -> std::io::Result<String> {
    let mut answer = String::new();
    let mut client = TcpStream::connect((ip, port))?;
    client.set_read_timeout(Some(Duration::from_secs(60)))?;
    client.read_to_string(&mut answer)?;
    Ok(answer)
}

fn ask_udp(ip: &str, port: u16) -> String {
    let socket = UdpSocket::bind("[::]:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    wait::until("an answer by UDP", || {
        socket.send_to(b"hello", (ip, port)).unwrap();
        let mut bytes = [0; 64];
        let length = socket.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
    })
}

#[test]
fn allocations_have_addresses_and_ports_of_ipv6() {
    if !is_root() || environment::program("ip").is_none() {
        return;
    }
    let added =
        Command::new("ip").args(["-6", "address", "add", "2001:db8::7/128", "dev", "lo", "nodad"]).status();
    assert!(added.unwrap().success());
    let [published] = ports::free();
    let mut agent = start(CONFIG);
    let group = format!(
        "network: {{mode: bridge, ports: {{http: {{to: 8080, host_network: six}}}}, dns: {{servers: [\"fd00:37::1\"]}}}}\n\
         services:\n  - {{name: web, port: http, publish: {{port: {published}, host_network: six}}}}\n"
    );
    let script = serde_json::to_string(SERVER).unwrap();
    let task = format!(
        "- name: server\n  driver: exec\n  config: {{command: python3, args: [-c, {script}]}}\n  kill_timeout: 5s\n"
    );
    agent.apply_and_wait(&job("web", "service", &group, &[indented(&task, 8)]));
    let alloc = agent.alloc("web.g[0]").unwrap();
    let port = alloc.port("http").unwrap();
    agent.until_logged(&alloc.id(), "server", "stdout", |log| log.contains("listens"));
    let pid = agent.single("web.g[0]", "server").pid;
    for crash in [false, true] {
        if crash {
            agent.crash();
            agent.cli(&["wait", "web"]).success();
        }
        wait::until_true("the published port", || ask("2001:db8::7", published).is_ok());
        for port in [port, published] {
            let answer = ask("2001:db8::7", port).unwrap();
            let (own, peer) = answer.split_once(' ').unwrap();
            assert!(own.starts_with("fd00:37::") && peer == "2001:db8::7", "{answer}");
            assert_eq!(ask_udp("2001:db8::7", port), "hello 2001:db8::7");
            assert!(TcpListener::bind(("2001:db8::7", port)).is_err(), "the agent holds it");
        }
        let refused = TcpStream::connect(("::1", port)).map_err(|error| error.kind());
        assert_eq!(refused.map(drop), Err(ErrorKind::ConnectionRefused));
        let inside = |script: &str| {
            let arguments = ["exec", &alloc.name(), "--task", "server", "--", "sh", "-c", script];
            agent.cli(&arguments).success().stdout
        };
        assert!(inside("cat /etc/hosts").contains("\nfd00:37::"));
        // By the agent's name server, at the bridge's address of IPv6.
        let names = inside(
            "python3 -c 'import socket; print(*socket.getaddrinfo(\"web.service.herdlet\", 80)[0][4][:2])'",
        );
        assert_eq!(names, "2001:db8::7 80\n");
        assert_eq!(agent.single("web.g[0]", "server").pid, pid, "no task was restarted");
        let listed = agent.cli(&["get", "networks"]).success().stdout;
        for part in [",fd00:37::1/64", &format!("[2001:db8::7]:{port}->8080")] {
            assert!(listed.contains(part), "{part}: {listed}");
        }
    }
    let service = http::get(&agent.peer(), "/v1/service/web").unwrap().json();
    assert_eq!((&service[0]["Address"], &service[0]["Port"]), (&"2001:db8::7".into(), &port.into()));
    agent.cli(&["delete", "web", "--wait"]).success();
    until_nothing_left(&agent);
    TcpListener::bind(("2001:db8::7", port)).unwrap();
    agent.finish();
}

/// Connections to it would hang.
#[test]
fn port_of_the_loopback_address_of_ipv6_is_refused() {
    if !is_root() {
        return;
    }
    let mut agent = start(&format!("host_ip: \"::1\"\n{CONFIG}"));
    let group = "network: {mode: bridge, ports: {http: {to: 8080}}}\n";
    agent.apply(&job("web", "service", group, &[crate::common::sleeper("server", "")]));
    agent.until_printed(&["explain", "web"], |text| {
        text.contains("of ::1: the kernel can't translate this address; use 127.0.0.1")
    });
}
