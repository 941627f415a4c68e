//! Every manifest in manifests/ is run, and what its comments promise is looked at.

use std::{collections::BTreeSet, fs};

use herdlet_tests::e2e::{
    agent::{Agent, Setup},
    command::User,
    consul::{Access, Consul},
    home::Home,
    http::{self, Peer},
    program::{example, project},
    wait,
};
use rustix::process::Signal;

use crate::common::{is_root, start_run};

/// The examples that have a test below, in `run.rs` or in `traefik.rs`.
const TOLD: [&str; 10] = [
    "dispatch",
    "hello",
    "identity",
    "periodic",
    "placement",
    "sidecar",
    "volume",
    "web",
    "web-consul",
    "web-traefik",
];

#[test]
fn every_example_has_its_story_and_is_valid() {
    let home = Home::new(User::Same);
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(project().join("manifests")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            found.insert(path.file_stem().unwrap().to_string_lossy().into_owned());
            let program = herdlet_tests::e2e::program::program();
            let arguments = ["validate".as_ref(), path.as_os_str()];
            let command = herdlet_tests::e2e::command::prepare(&home, User::Same, program, &arguments);
            herdlet_tests::e2e::command::Running::start(command).finish().success();
        }
    }
    assert_eq!(found, TOLD.map(str::to_owned).into_iter().collect());
}

#[test]
fn identity_shows_that_it_has_three_tokens_and_none_of_them() {
    if !is_root() {
        return;
    }
    let home = Home::new(User::Same);
    let output = start_run(&home, User::Same, &[&example("identity")]).finish().success();
    assert_eq!(output.stdout, "show | three tokens\n");
}

#[test]
fn sidecar_runs_its_tasks_in_order() {
    let home = Home::new(User::Same);
    let output = start_run(&home, User::Same, &[&example("sidecar")]).finish().success();
    let lines: Vec<&str> =
        output.stdout.lines().map(|line| line.split_once("| ").map_or("", |(_, text)| text)).collect();
    assert_eq!(lines.first(), Some(&"one"), "{}", output.stdout);
    assert_eq!(lines.last(), Some(&"tidied"), "{}", output.stdout);
    home.assert_no_trace_within(std::time::Duration::from_secs(2));
}

#[test]
fn volume_shares_one_and_gives_one_to_each_allocation() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&fs::read_to_string(example("volume")).unwrap());
    let volumes = agent.home.state().join("volumes");
    let logs = agent.cli(&["logs", "volume"]).success().stdout;
    for index in 0..2 {
        let line = format!("from volume.post[{index}]");
        assert_eq!(fs::read_to_string(volumes.join("inbox").join(index.to_string())).unwrap().trim(), line);
        assert!(logs.contains(&line), "{logs}");
        let journal = fs::read_dir(&volumes)
            .unwrap()
            .filter_map(|entry| fs::read_to_string(entry.unwrap().path().join("log")).ok());
        assert_eq!(journal.filter(|text| text.trim() == line).count(), 1, "a journal of its own");
    }
    agent.finish();
}

#[test]
fn web_serves_what_lies_in_its_volume_on_dynamic_ports() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&fs::read_to_string(example("web")).unwrap());
    fs::write(agent.home.state().join("volumes/site/index.html"), "it is served").unwrap();
    let mut ports = BTreeSet::new();
    for name in ["web.web[0]", "web.web[1]"] {
        let alloc = agent.alloc(name).unwrap();
        let port = alloc.port("http").unwrap();
        assert!(ports.insert(port));
        let answer = http::get(&Peer::Port(port), "/").unwrap();
        assert_eq!((answer.status, answer.body.as_str()), (200, "it is served"));
        assert!(
            agent.home.state().join("alloc").join(alloc.id()).join("httpd/secrets/nomad_api.jwt").exists()
        );
    }
    let services = agent.cli(&["get", "services"]).success().stdout;
    for port in &ports {
        assert!(services.contains(&port.to_string()), "{port} in {services}");
    }
    assert!(agent.cli(&["status", "--check"]).code == 0);
    let logs = wait::until("access logs", || {
        let logs = agent.cli(&["logs", "web"]).success();
        let logs = format!("{}{}", logs.stdout, logs.stderr);
        logs.contains("GET / HTTP/1.1").then_some(logs)
    });
    assert!(logs.contains("web.web[0]") || logs.contains("httpd"), "{logs}");
    let output = agent.cli(&["exec", "web", "--", "sh", "-c", "echo $NOMAD_PORT_http"]).success();
    assert!(ports.contains(&output.stdout.trim().parse().unwrap()), "{output:?}");
    agent.finish();
}

#[test]
fn web_runs_privately_until_ctrl_c() {
    let home = Home::new(User::Same);
    let run = start_run(&home, User::Same, &[&example("web")]);
    let port = wait::until("a server", || {
        let servers = herdlet_tests::e2e::host::processes_naming(home.path()).into_values();
        servers
            .filter_map(|line| line.split_once("http.server ")?.1.split(' ').next()?.parse::<u16>().ok())
            .next()
    });
    let answer = wait::until("an answer", || http::get(&Peer::Port(port), "/"));
    assert_eq!(answer.status, 200);
    run.signal(Signal::INT);
    assert_eq!(run.finish().code, 130);
    home.assert_no_trace_within(std::time::Duration::from_secs(2));
    assert!(http::get(&Peer::Port(port), "/").is_none());
}

#[test]
fn web_consul_is_registered_and_checked_by_consul() {
    if !is_root() {
        return;
    }
    let Some(consul) = Consul::start(Access::Open) else { return };
    let mut agent = Agent::start_with(Setup::default().env("CONSUL_HTTP_ADDR", consul.address()));
    agent.apply_and_wait(&fs::read_to_string(example("web-consul")).unwrap());
    let port = agent.alloc("web-consul.web[0]").unwrap().port("http").unwrap();
    let id = wait::until("the registration", || consul.ids("web-consul").pop());
    assert!(id.starts_with("_herdlet-"), "{id}");
    let service = consul.services()[&id].clone();
    assert_eq!(service["Port"], port);
    assert_eq!(service["Tags"], serde_json::json!(["example", "v1"]));
    assert_eq!(service["Meta"]["owner"], "web team");
    wait::until_true("both checks pass", || {
        let checks = consul.checks("web-consul");
        checks.len() == 2 && checks.iter().all(|check| check["Status"] == "passing")
    });
    agent.cli(&["delete", "web-consul", "--wait"]).success();
    assert!(consul.ids("web-consul").is_empty());
    agent.finish();
}
