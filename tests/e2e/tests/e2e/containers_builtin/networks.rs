//! Networks of single containers: ports of the machine, names, crashes of the agent, damage by others.

use std::{fs, path::Path, process::Command};

use herdlet_e2e::{http, ports, wait};
use rustix::mount::{UnmountFlags, unmount};

use super::{Ground, runs_on};
use crate::{
    common::job,
    networks::{pairs, until_nothing_left},
};

const ENTRY: &str = "entrypoint: [env]\n";

/// A server of a page in the network of its container.
const HTTPD: &str = "mkdir -p /tmp/www; echo served >/tmp/www/index.html; trap 'exit 0' TERM; busybox httpd -f -p 8080 -h /tmp/www & wait";

const GROUP: &str = "network: {ports: {http: {to: 8080}}}\nrestart: {attempts: 100, interval: 1h, delay: 50ms, mode: delay}\n\
     services:\n  - {name: web, port: http}\n";

fn ground() -> Option<Ground> {
    Ground::start_with("", &ports::for_tasks())
}

fn serves(ground: &Ground, config: &str) -> String {
    let config = format!("{ENTRY}network_mode: bridge\nports: [http]\n{config}");
    let service = "user: root\nservices:\n  - {name: inside, port: http, address_mode: driver}";
    ground.task(("t", HTTPD), &config, service)
}

fn until_served(port: u16) {
    wait::until_true("it answers", || {
        http::poll_task(port, "/").is_some_and(|answer| answer.body.trim() == "served")
    });
}

/// Waits until a container finds its own service by its name.
fn until_found(ground: &Ground) {
    let shown = ground.exec("web", "ip -o -4 addr show dev eth0");
    let address = shown.split_whitespace().nth(3).unwrap().split('/').next().unwrap().to_owned();
    wait::until_true("the name of its service is its address", || {
        let lookup = ["exec", "web", "--", "busybox", "nslookup", "inside.service.herdlet"];
        ground.agent.cli(&lookup).stdout.contains(&address)
    });
}

/// Ends the agent, and checks that neither containers nor networks are left.
fn finish(ground: Ground) {
    for job in ["web", "modes", "pair"] {
        ground.agent.cli(&["delete", job, "--wait"]);
    }
    until_nothing_left(&ground.agent);
    ground.finish();
}

#[test]
fn a_container_has_a_network_of_its_own_with_ports_of_the_machine() {
    let Some(mut ground) = ground() else { return };
    let config = "hostname: box\nextra_hosts: [\"db:10.1.2.3\", \"machine:host-gateway\"]\ndns_servers: [192.0.2.53]\nsysctl: {net.core.somaxconn: \"77\"}";
    let task = serves(&ground, config);
    ground.agent.apply_and_wait(&job("web", "service", GROUP, &[task]));
    let port = ground.agent.alloc("web.g[0]").unwrap().port("http").unwrap();
    until_served(port);
    let shown = ground.exec("web", "ip -o -4 addr show dev eth0");
    let address = shown.split_whitespace().nth(3).unwrap().split('/').next().unwrap().to_owned();
    assert!(address.starts_with("172."), "{shown}");
    let gateway = format!("{}.1", address.rsplit_once('.').unwrap().0);
    let seen = ground.exec(
        "web",
        "hostname; cat /etc/hosts; grep nameserver /etc/resolv.conf; cat /proc/sys/net/core/somaxconn; ls /sys/class/net",
    );
    let expected = format!(
        "box\n127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n{address} box\n10.1.2.3 db\n{gateway} machine\nnameserver 192.0.2.53\n77\neth0\nlo"
    );
    assert_eq!(seen, expected);
    let of = |ground: &Ground, service: &str| {
        let listed = http::get(&ground.agent.peer(), &format!("/v1/service/{service}")).unwrap().json();
        format!("{}:{}", listed[0]["Address"].as_str().unwrap(), listed[0]["Port"])
    };
    assert_eq!(of(&ground, "web"), format!("127.0.0.1:{port}"));
    assert_eq!(of(&ground, "inside"), format!("{address}:8080"));

    let before = ground.first();
    for _ in 0..2 {
        ground.agent.kill();
        until_served(port);
        ground.agent.launch();
        ground.agent.cli(&["wait", "web"]).success();
        assert_eq!(ground.first(), before, "it is the same process");
        until_served(port);
        assert!(std::net::TcpListener::bind(("127.0.0.1", port)).is_err(), "its port is held");
        assert_eq!(of(&ground, "inside"), format!("{address}:8080"));
    }
    ground.agent.cli(&["restart", "web"]).success();
    until_served(port);
    finish(ground);
}

#[test]
fn the_network_of_a_container_is_repaired() {
    let Some(mut ground) = ground() else { return };
    let task = serves(&ground, "");
    ground.agent.apply_and_wait(&job("web", "service", GROUP, &[task]));
    let port = ground.agent.alloc("web.g[0]").unwrap().port("http").unwrap();
    until_served(port);
    until_found(&ground);
    let before = ground.first();
    let runtime = Path::new("/run/herdlet").join(ground.agent.home.instance().unwrap());
    let files = fs::read_dir(runtime.join("netns")).unwrap().map(|entry| entry.unwrap().path());
    let of_container = |path: &std::path::PathBuf| {
        path.file_name().unwrap().to_string_lossy().starts_with(&ground.agent.alloc("web.g[0]").unwrap().id())
    };
    let file = files.into_iter().find(of_container).unwrap();
    ground.agent.kill();
    for pair in pairs() {
        assert!(Command::new("ip").args(["link", "delete", &pair]).status().unwrap().success());
    }
    unmount(&file, UnmountFlags::DETACH).unwrap();
    ground.agent.launch();
    until_served(port);
    until_found(&ground);
    // While the agent runs, the kernel reports it.
    for pair in pairs() {
        assert!(Command::new("ip").args(["link", "delete", &pair]).status().unwrap().success());
    }
    until_served(port);
    assert_eq!(ground.first(), before, "it is the same process");
    finish(ground);
}

#[test]
fn modes_are_those_of_docker() {
    let Some(mut ground) = ground() else { return };
    let with = |name: &str, mode: &str| {
        ground.task((name, &runs_on("echo up")), &format!("{ENTRY}network_mode: \"{mode}\""), "user: root")
    };
    let tasks = [with("none", "none"), with("host", "host"), with("bridge", "")];
    ground.agent.apply_and_wait(&job("modes", "service", "", &tasks));
    let shown = |task: &str, script: &str| {
        let arguments = ["exec", "modes.g[0]", "--task", task, "--", "sh", "-c", script];
        ground.agent.cli(&arguments).success().stdout.trim().to_owned()
    };
    assert_eq!(shown("none", "ls /sys/class/net"), "lo");
    assert_eq!(shown("bridge", "ls /sys/class/net"), "eth0\nlo");
    let of_machine = fs::read_link("/proc/self/ns/net").unwrap();
    assert!(shown("host", "ls -l /proc/self/ns/net").ends_with(of_machine.to_str().unwrap()));
    // It waits for the container that it joins.
    let server = serves(&ground, "").replace("name: t\n", "name: server\n");
    let beside = ground.task(
        ("beside", &runs_on("echo up")),
        &format!("{ENTRY}network_mode: \"container:server-${{NOMAD_ALLOC_ID}}\""),
        "user: root",
    );
    ground.agent.apply_and_wait(&job("pair", "service", GROUP, &[server, beside]));
    let shown = |task: &str| {
        let arguments = [
            "exec",
            "pair.g[0]",
            "--task",
            task,
            "--",
            "sh",
            "-c",
            "ip -o -4 addr show dev eth0; cat /etc/hosts",
        ];
        ground.agent.cli(&arguments).success().stdout
    };
    assert_eq!(shown("server"), shown("beside"));
    finish(ground);
}

#[test]
fn the_network_of_another_allocations_container_is_refused() {
    let Some(mut ground) = ground() else { return };
    let task = serves(&ground, "");
    ground.agent.apply_and_wait(&job("web", "service", GROUP, &[task]));
    let mode =
        format!("{ENTRY}network_mode: \"container:t-{}\"", ground.agent.alloc("web.g[0]").unwrap().id());
    let task = ground.task(("t", "true"), &mode, "restart: {attempts: 0, mode: fail}");
    ground.agent.apply(&job("pair", "batch", "reschedule: {attempts: 0, unlimited: false}\n", &[task]));
    let shown = ground.failure("pair");
    assert!(shown.contains("is not a container of the same allocation"), "{shown}");
    finish(ground);
}

#[test]
fn a_port_that_another_process_has_fails_the_start() {
    let Some(mut ground) = ground() else { return };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let group = format!(
        "network: {{ports: {{http: {{static: {port}, to: 8080}}}}}}\nreschedule: {{attempts: 0, unlimited: false}}\n"
    );
    let config = format!("{ENTRY}network_mode: bridge\nports: [http]");
    let task = ground.task(("t", HTTPD), &config, "user: root\nrestart: {attempts: 0, mode: fail}");
    ground.agent.apply(&job("web", "batch", &group, &[task]));
    let shown = ground.failure("web");
    assert!(shown.contains(&format!("take port {port}/tcp")), "{shown}");
    finish(ground);
}
