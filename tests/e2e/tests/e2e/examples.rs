//! Runs every manifest in manifests/ and checks the claims in its comments.

mod machines;
mod pages;

use std::{collections::BTreeSet, fs};

use herdlet_e2e::{
    agent::{Agent, Setup},
    command::User,
    consul::{Access, Consul},
    home::Home,
    http::{self, Peer},
    ports,
    program::{example, project},
    wait,
};
use rustix::process::Signal;

use crate::common::{is_root, patient, start_run};

/// The examples with a test below, in `run.rs`, in `cni.rs`, in `published.rs`, in `traefik.rs`, in `vault.rs`, in `consul_clusters.rs`, in `consul_tokens.rs`, in `csi.rs` or in `containers`.
const TESTED: [&str; 31] = [
    "artifact",
    "bridge",
    "bridge-docker",
    "canary",
    "check-restart",
    "cni",
    "consul-clusters",
    "consul-template",
    "consul-token",
    "csi-plugin",
    "dispatch",
    "docker-web",
    "exec",
    "exec.nomad",
    "hello",
    "identity",
    "java",
    "periodic",
    "placement",
    "published",
    "qemu",
    "sidecar",
    "tag-override",
    "templates",
    "templates.nomad",
    "vault",
    "vault-secrets",
    "volume",
    "web",
    "web-consul",
    "web-traefik",
];

#[test]
fn every_example_is_valid_and_tested() {
    let home = Home::new(User::Same);
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(project().join("manifests")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "yaml" || extension == "hcl") {
            found.insert(path.file_stem().unwrap().to_string_lossy().into_owned());
            let program = herdlet_e2e::program::program();
            let arguments = ["validate".as_ref(), path.as_os_str()];
            let command = herdlet_e2e::command::prepare(&home, User::Same, program, &arguments);
            herdlet_e2e::command::Running::start(command).finish().success();
        }
    }
    assert_eq!(found, TESTED.map(str::to_owned).into_iter().collect());
}

#[test]
fn artifact_runs_what_it_has_fetched() {
    let home = Home::new(User::Same);
    let output = start_run(&home, User::Same, &[&example("artifact")]).finish().success();
    assert!(
        output.stdout.contains("| fetched\n") && output.stdout.contains("| hello\n"),
        "{}",
        output.stdout
    );
    home.until_no_trace();
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
    home.until_no_trace();
}

#[test]
fn exec_examples_show_what_an_isolated_task_sees() {
    if !is_root() {
        return;
    }
    let home = Home::new(User::Same);
    let output = start_run(&home, User::Same, &[&example("exec")]).finish().success();
    let expected = [
        "I am nobody, process 1",
        "root: /alloc /bin /etc /local /secrets /usr",
        "no other directory of the machine",
        "/etc belongs to root",
        "/alloc /local /secrets",
    ];
    assert_eq!(output.stdout, expected.map(|line| format!("look | {line}\n")).concat());
    home.until_no_trace();
    let agent = Agent::start();
    let path = project().join("manifests/exec.nomad.hcl");
    agent.cli(&["apply", "--wait", "-f", &path.display().to_string()]).success();
    let seen = agent.cli(&["exec", "exec-hcl", "--", "cat", "/etc/exec.conf", "/proc/2/comm"]).success();
    assert_eq!(seen.stdout, "written for exec-hcl.exec[0]\nsleep\n");
    agent.finish();
}

#[test]
fn volume_example_shares_one_and_separates_others() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&fs::read_to_string(example("volume")).unwrap());
    let volumes = agent.home.state().join("volumes");
    let lines = [0, 1].map(|index| format!("from volume.post[{index}]"));
    agent.until_printed(&["logs", "volume"], |output| lines.iter().all(|line| output.contains(line)));
    for index in 0..2 {
        let line = format!("from volume.post[{index}]");
        assert_eq!(fs::read_to_string(volumes.join("inbox").join(index.to_string())).unwrap().trim(), line);
        let journal = fs::read_dir(&volumes)
            .unwrap()
            .filter_map(|entry| fs::read_to_string(entry.unwrap().path().join("log")).ok());
        assert_eq!(
            journal.filter(|text| text.trim() == line).count(),
            1,
            "each allocation has its own journal"
        );
    }
    agent.finish();
}

#[test]
fn bridge_leads_two_ports_to_the_same_one() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start_with(Setup::default().config(ports::for_tasks()));
    agent.apply_and_wait(&patient("bridge"));
    let ports = ["bridge.web[0]", "bridge.web[1]"].map(|name| {
        let alloc = agent.alloc(name).unwrap();
        let port = alloc.port("http").unwrap();
        wait::until_true("an answer", || {
            http::poll_task(port, "/").is_some_and(|answer| answer.status == 200)
        });
        port
    });
    assert_ne!(ports[0], ports[1]);
    agent.finish();
}

#[test]
fn web_serves_what_lies_in_its_volume_on_dynamic_ports() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start_with(Setup::default().config(ports::for_tasks()));
    agent.apply_and_wait(&patient("web"));
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
        let servers = herdlet_e2e::host::processes_naming(home.path()).into_values();
        servers
            .filter_map(|line| line.split_once("http.server ")?.1.split(' ').next()?.parse::<u16>().ok())
            .next()
    });
    let answer = wait::until("an answer", || http::poll_task(port, "/"));
    assert_eq!(answer.status, 200);
    run.signal(Signal::INT);
    assert_eq!(run.finish().code, 130);
    home.until_no_trace();
    assert!(http::get(&Peer::Port(port), "/").is_none());
}

#[test]
fn web_consul_is_registered_and_checked_by_consul() {
    if !is_root() {
        return;
    }
    let Some(consul) = Consul::start(Access::Open) else { return };
    let setup = Setup::default().config(ports::for_tasks()).env("CONSUL_HTTP_ADDR", consul.address());
    let mut agent = Agent::start_with(setup);
    agent.apply_and_wait(&patient("web-consul"));
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

#[test]
fn consul_template_follows_its_key() {
    let Some(consul) = Consul::start(Access::Open) else { return };
    let setup = Setup::default().config("template: {wait: {min: 0s, max: 0s}}\n");
    let mut agent = Agent::start_with(setup.env("CONSUL_HTTP_ADDR", consul.address()));
    consul.put("/v1/kv/app/greeting", "hello");
    consul.put("/v1/agent/service/register", r#"{"Name": "api", "Port": 8001, "Address": "10.0.0.9"}"#);
    agent.apply_and_wait(&fs::read_to_string(example("consul-template")).unwrap());
    let file = ["fs", "cat", "consul-template.app[0]/server", "local/app.conf"];
    let first = "greeting = hello\ncolor = blue\napi = 10.0.0.9:8001";
    agent.until_printed(&file, |output| output.trim() == first);
    consul.put("/v1/kv/app/greeting", "goodbye");
    agent.until_printed(&["logs", "consul-template.app[0]/server"], |output| output.contains("goodbye"));
    agent.finish();
}

#[test]
fn check_restart_restarts_what_is_stuck() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&patient("check-restart"));
    let before = agent.single("check-restart.worker[0]", "worker");
    agent.cli(&["exec", "check-restart", "--", "touch", "local/stuck"]).success();
    let printed = wait::until("the announcement of a restart", || {
        let printed = agent.cli(&["explain", "check-restart"]).success().stdout;
        printed.contains("restarts unless check moves of service worker passes").then_some(printed)
    });
    assert!(printed.contains("it is stuck"), "the output of the check is shown: {printed}");
    wait::until_true("it is another process", || {
        agent.members().iter().any(|member| member.alloc == before.alloc && member.pid != before.pid)
    });
    agent.cli(&["wait", "check-restart"]).success();
    let events = agent.cli(&["describe", "check-restart"]).success().stdout;
    assert!(events.contains("healthcheck: check \"moves\" unhealthy"), "{events}");
    agent.finish();
}

#[test]
fn canary_is_seen_under_its_own_tags_until_it_is_promoted() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start_with(Setup::default().config(ports::for_tasks()));
    let text = patient("canary");
    agent.apply_and_wait(&text);
    let tags = || {
        let listed = http::get(&agent.peer(), "/v1/service/canary").unwrap().json();
        let mut tags: Vec<String> = listed
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["Tags"][0].as_str().unwrap().to_owned())
            .collect();
        tags.sort();
        tags
    };
    assert_eq!(tags(), ["live", "live"]);
    let next = agent.home.write("next.yaml", &text.replace("RELEASE: \"1\"", "RELEASE: \"2\""));
    agent.cli(&["apply", "-f", next.to_str().unwrap()]).success();
    wait::until_true("the canary is listed beside the others", || tags() == ["canary", "live", "live"]);
    // Healthy for long enough.
    wait::until_true("it may be promoted", || agent.cli(&["promote", "canary"]).code == 0);
    agent.cli(&["wait", "canary"]).success();
    assert_eq!(tags(), ["live", "live"]);
    agent.finish();
}

#[test]
fn tag_override_keeps_what_others_write() {
    if !is_root() {
        return;
    }
    let Some(consul) = Consul::start(Access::Open) else { return };
    let setup = Setup::default().config(ports::for_tasks()).env("CONSUL_HTTP_ADDR", consul.address());
    let mut agent = Agent::start_with(setup);
    agent.apply_and_wait(&fs::read_to_string(example("tag-override")).unwrap());
    let id = wait::until("the registration", || consul.ids("tag-override").pop());
    let mut entry = consul.services()[&id].clone();
    assert_eq!(entry["Tags"], serde_json::json!(["replica"]));
    // In the form of the agent's own API; changes from the servers reach the agent in the same way.
    entry["Tags"] = serde_json::json!(["primary"]);
    entry["Name"] = entry["Service"].take();
    entry.as_object_mut().unwrap().retain(|key, _| {
        ["ID", "Name", "Tags", "Address", "Port", "Meta", "EnableTagOverride"].contains(&key.as_str())
    });
    consul.put("/v1/agent/service/register", &entry.to_string());
    // Another change, so that the agent inspects all services.
    let other = patient("web-consul");
    agent.apply_and_wait(&other);
    assert_eq!(consul.services()[&id]["Tags"], serde_json::json!(["primary"]));
    agent.finish();
}

#[test]
fn templates_follow_their_variable() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start_with(Setup::default().config(ports::for_tasks()));
    agent.cli(&["var", "put", "nomad/jobs/templates", "greeting=hello", "token=s3cret"]).success();
    agent.apply_and_wait(&patient("templates"));
    let page = ["fs", "cat", "templates.web[0]/server", "local/www/index.html"];
    agent.until_printed(&page, |output| output.contains("hello from templates"));
    let again = ["var", "put", "-force", "nomad/jobs/templates", "greeting=goodbye", "token=s3cret"];
    agent.cli(&again).success();
    agent.until_printed(&page, |output| output.contains("goodbye from templates"));
    agent.finish();
}

#[test]
fn templates_in_hcl_signal_their_task() {
    if !is_root() {
        return;
    }
    let agent = Agent::start();
    agent.cli(&["var", "put", "nomad/jobs/templates-hcl", "greeting=hello"]).success();
    let file = project().join("manifests/templates.nomad.hcl");
    agent.cli(&["apply", "-f", file.to_str().unwrap(), "--wait"]).success();
    agent.until_printed(&["logs", "templates-hcl"], |output| output.contains("hello at level info"));
    agent.cli(&["var", "put", "-force", "nomad/jobs/templates-hcl", "greeting=goodbye"]).success();
    agent.until_printed(&["logs", "templates-hcl"], |output| output.contains("goodbye at level info"));
    agent.finish();
}

/// The page about templates: its first block and the settings of the agent. Its secrets need a plugin.
#[test]
fn blocks_of_the_guide_to_templates_work() {
    if !is_root() {
        return;
    }
    let page = fs::read_to_string(project().join("docs/guide/templates.md")).unwrap();
    let blocks: Vec<&str> =
        page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let [tasks, _secrets, settings] = blocks.as_slice() else { panic!("{blocks:?}") };
    let tasks: String = tasks.lines().map(|line| format!("      {line}\n")).collect();
    let tasks = tasks.replace("{command: bin/server}", "{command: /bin/sleep, args: [\"100000\"]}").replace(
        "change_mode: signal",
        "change_mode: signal\n              splay: 0s\n              wait: {min: 1s}",
    );
    let mut agent = Agent::start_with(Setup::default().config(*settings));
    agent.cli(&["var", "put", "nomad/jobs/web", "password=s3cret"]).success();
    agent.apply_and_wait(&format!(
        "apiVersion: herdlet/v1\nkind: Job\nmetadata: {{name: web}}\nspec:\n  groups:\n    - name: g\n{tasks}"
    ));
    // `fs` refuses secrets.
    let file = ["exec", "web", "--", "cat", "secrets/app.conf"];
    assert_eq!(agent.cli(&file).success().stdout.trim(), "password = s3cret");
    agent.finish();
}
