//! A real Consul that is frozen, killed, wiped, refuses requests, or is behind a proxy that gives wrong
//! answers: tasks keep running, start and stop, and the catalogue is exact afterwards.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::Duration,
};

use herdlet_e2e::{
    agent::{Agent, Setup},
    consul::{Access, Consul},
    host, http,
    proxy::{Manner, Proxy},
    wait,
};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{is_root, job, shell, sleeper};

/// Returns a group with a port and a service of this name in `provider`.
fn group(name: &str, provider: &str, more: &str) -> String {
    format!(
        "network: {{ports: {{p: {{}}}}}}\nservices: [{{name: {name}, provider: {provider}, port: p{more}}}]"
    )
}

fn with(address: impl Into<String>) -> Setup {
    Setup::default().env("CONSUL_HTTP_ADDR", address)
}

/// Returns a job with one sleeping task and one service in Consul, both with its name.
fn simple(name: &str, more: &str) -> String {
    job(name, "service", &group(name, "consul", more), &[sleeper("t", "")])
}

fn secret_file(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

const WRITE_ALL: &str = r#"agent_prefix "" { policy = "read" } node_prefix "" { policy = "read" } service_prefix "" { policy = "write" }"#;

fn write_only(service: &str) -> String {
    format!("service \"{service}\" {{ policy = \"write\" }}")
}

#[test]
fn refused_token_affects_only_its_service() {
    if !is_root() {
        return;
    }
    let Some(consul) = Consul::start(Access::Denied) else { return };
    let (_, own) = consul.token("ours", WRITE_ALL);
    let (web_accessor, web) = consul.token("web", &write_only("web"));
    let (_, other) = consul.token("other", &write_only("other"));
    let mut agent = Agent::prepare(Setup::default().config("{}"));
    let tokens = agent.home.path().join("tokens");
    std::fs::create_dir(&tokens).unwrap();
    secret_file(&tokens.join("web"), &web);
    secret_file(&tokens.join("refused"), &other);
    secret_file(&agent.home.path().join("own"), &own);
    let config = format!(
        "consul:\n  address: {}\n  token_file: {}\n  service_tokens_dir: {}\n",
        consul.address(),
        agent.home.path().join("own").display(),
        tokens.display()
    );
    agent.home.write("config.yaml", &config);
    agent.launch();
    // All in one group: each has its own request, and none waits for another.
    let services =
        ["web", "refused", "plain"].map(|name| format!("{{name: {name}, provider: consul, port: p}}"));
    let group = format!("network: {{ports: {{p: {{}}}}}}\nservices: [{}]", services.join(", "));
    agent.apply(&job("three", "service", &group, &[sleeper("t", "")]));
    let member = agent.single("three.g[0]", "t");
    wait::until_true("servers know both", || consul.known("web") == 1 && consul.known("plain") == 1);
    let explained = wait::until("an explanation", || {
        let explanation = agent.cli(&["explain", "three"]).stdout;
        explanation.contains("403").then_some(explanation)
    });
    let source = format!("with the token in {}", tokens.join("refused").display());
    assert!(explained.contains(&source) && explained.contains("ermission denied"), "{explained}");
    assert!(consul.ids("refused").is_empty());
    let services = |agent: &Agent, state: &str| {
        agent.metric("herdlet_services", &format!("catalog=\"consul\",state=\"{state}\""))
    };
    assert!(
        (services(&agent, "registered") - 2.0).abs() < 0.1 && (services(&agent, "pending") - 1.0).abs() < 0.1
    );
    assert!(agent.metric("herdlet_catalog_failures_total", "request=\"register\"") > 0.0);
    // The agent picks up a token with sufficient rights by itself.
    let (_, right) = consul.token("refused", &write_only("refused"));
    secret_file(&tokens.join("refused"), &right);
    wait::until_true("it is registered", || consul.known("refused") == 1);
    wait::until_true("none is pending", || services(&agent, "pending") < 0.1);
    // The token is revoked before deregistration, and the servers still forget the service.
    consul.revoke(&web_accessor);
    agent.crash();
    assert_eq!(agent.single("three.g[0]", "t"), member);
    agent.cli(&["delete", "three", "--wait"]).success();
    wait::until_true("Consul's servers know no service", || {
        ["web", "refused", "plain"].iter().all(|name| consul.known(name) == 0)
    });
    let shown = format!("{}{explained}", agent.log());
    for secret in [own, web, other, right] {
        assert!(!shown.contains(&secret), "a token is shown");
    }
    agent.finish();
}

#[test]
fn foreign_consul_entries_are_never_changed() {
    if !is_root() {
        return;
    }
    let Some(consul) = Consul::start(Access::Open) else { return };
    let theirs = [
        json!({ "ID": "_nomad-client-abc", "Name": "nomad-client", "Port": 4646,
            "Check": { "CheckID": "_nomad-check-1", "TTL": "1h" } }),
        json!({ "ID": "_nomad-task-8d5e2f3a-0000-0000-0000-000000000000-group-web-mine-http", "Name": "mine", "Port": 1,
            "Meta": { "external-source": "nomad" } }),
        json!({ "ID": "_herdlet-task-11111111-2222-3333-4444-555555555555-group-g-mine-p", "Name": "mine", "Port": 2,
            "Meta": { "herdlet-instance": "another", "herdlet-alloc": "11111111-2222-3333-4444-555555555555" } }),
        json!({ "ID": "by-hand", "Name": "mine", "Port": 3, "Tags": ["theirs"] }),
        json!({ "ID": "by-hand-sidecar-proxy", "Name": "mine-sidecar-proxy", "Kind": "connect-proxy", "Port": 4,
            "Proxy": { "DestinationServiceName": "mine", "DestinationServiceID": "by-hand" } }),
    ];
    for entry in &theirs {
        consul.put("/v1/agent/service/register", &entry.to_string());
    }
    let of_theirs = || {
        let mut services = consul.services();
        services.retain(|id, _| theirs.iter().any(|entry| entry["ID"] == **id));
        let mut checks = consul.get("/v1/agent/checks").unwrap().json();
        let checks = checks.as_object_mut().unwrap();
        checks.retain(|id, _| id.starts_with("_nomad-"));
        (services, checks.keys().cloned().collect::<Vec<_>>())
    };
    let before = of_theirs();
    assert_eq!((before.0.len(), before.1.len()), (5, 1));
    let mut agent = Agent::start_with(with(consul.address()));
    let ours = || consul.ids("mine").len() - 3;
    agent.apply_and_wait(&simple("mine", ""));
    assert_eq!(ours(), 1);
    let instance = agent.home.instance().unwrap();
    // The running agent also removes leftovers of its own instance.
    let left = "_herdlet-task-99999999-2222-3333-4444-555555555555-group-g-left-p";
    let meta =
        json!({ "herdlet-instance": instance, "herdlet-alloc": "99999999-2222-3333-4444-555555555555" });
    consul
        .put("/v1/agent/service/register", &json!({ "ID": left, "Name": "left", "Meta": meta }).to_string());
    wait::until_true("leftover services are gone", || consul.ids("left").is_empty());
    assert_eq!(ours(), 1);
    // A new version of the tasks, a change of the service alone, a crash, a deletion.
    agent.apply_and_wait(&job(
        "mine",
        "service",
        &group("mine", "consul", ""),
        &[sleeper("t", "env: {A: b}")],
    ));
    agent.apply_and_wait(&simple("mine", ", tags: [new]"));
    wait::until_true("one service remains", || ours() == 1);
    agent.crash();
    agent.until_running("mine.g[0]", "t");
    assert_eq!(of_theirs(), before);
    agent.cli(&["delete", "mine", "--wait"]).success();
    agent.crash();
    wait::until_true("no service remains", || ours() == 0);
    assert_eq!(of_theirs(), before);
    agent.finish();
    assert_eq!(of_theirs(), before);
}

#[test]
fn frozen_consul_delays_nothing_and_is_repaired() {
    if !is_root() {
        return;
    }
    let Some(consul) = Consul::start(Access::Open) else { return };
    let mut agent = Agent::start_with(with(consul.address()));
    agent.apply_and_wait(&simple("stays", ""));
    agent.apply_and_wait(&simple("goes", ""));
    let stays = agent.single("stays.g[0]", "t");
    let goes = agent.single("goes.g[0]", "t");
    consul.freeze();
    // Consul answers nothing until it is thawed, so nothing may wait for it.
    agent.apply(&simple("comes", ""));
    let comes = agent.single("comes.g[0]", "t");
    agent.cli(&["delete", "goes"]).success();
    wait::until_true("the deleted job's task ends", || !host::is_alive(goes.pid));
    // The other catalogue does not queue behind Consul.
    agent.apply_and_wait(&job("local", "service", &group("local", "nomad", ""), &[sleeper("t", "")]));
    let listed = http::get(&agent.peer(), "/v1/service/local").unwrap().json();
    assert_eq!(listed.as_array().map(Vec::len), Some(1));
    let unlisted = agent.cli(&["get", "services"]).success().stderr;
    assert!(unlisted.starts_with("not listed because they are in Consul: comes, "), "{unlisted}");
    let warns = |agent: &Agent| agent.cli(&["status"]).success().stdout.contains("has not answered for");
    wait::until_true("the status reports that Consul does not respond", || warns(&agent));
    // The agent that deleted the job is killed before Consul continues; the next one finishes the deletion.
    agent.crash();
    consul.thaw();
    wait::until_true("new services are registered, removed ones are not", || {
        consul.known("comes") == 1 && consul.known("goes") == 0 && consul.known("stays") == 1
    });
    wait::until_true("the deleted job is forgotten", || !agent.cli(&["get", "jobs"]).stdout.contains("goes"));
    wait::until_true("the status has no warning", || !warns(&agent));
    assert_eq!(agent.single("stays.g[0]", "t"), stays);
    assert_eq!(agent.single("comes.g[0]", "t"), comes);
    agent.finish();
}

#[test]
fn invalid_consul_answers_affect_no_task() {
    if !is_root() {
        return;
    }
    let Some(consul) = Consul::start(Access::Open) else { return };
    let proxy = Proxy::before(consul.port());
    let mut agent = Agent::start_with(with(proxy.address()));
    agent.apply_and_wait(&simple("told", ", tags: [first]"));
    let member = agent.single("told.g[0]", "t");
    let tags = || {
        let answer = consul.get("/v1/catalog/service/told").unwrap().json();
        answer[0]["ServiceTags"].clone()
    };
    wait::until_true("the service is registered", || tags() == json!(["first"]));
    for fault in Manner::FAULTS {
        // No request succeeds until the proxy forwards again, so nothing may wait for success.
        proxy.set(fault);
        let tag = format!("{fault:?}").to_lowercase();
        agent.apply(&simple("told", &format!(", tags: [{tag}]")));
        agent.apply(&simple("beside", ""));
        agent.until_running("beside.g[0]", "t");
        wait::until_true("the proxy received a request", || proxy.answer_count() > 0);
        assert_eq!(agent.single("told.g[0]", "t"), member, "{fault:?}");
        agent.cli(&["delete", "beside"]).success();
        proxy.set(Manner::Passed);
        wait::until_true(&format!("after {fault:?} the change is registered"), || tags() == json!([tag]));
        wait::until_true("the other service is gone", || consul.known("beside") == 0);
        // Delays grow with each failed attempt, and are reset once all services are seen to be registered.
        agent.cli(&["wait", "told"]).success();
        assert_eq!(agent.single("told.g[0]", "t"), member, "{fault:?}");
    }
    agent.finish();
}

#[test]
fn rolling_fifty_services_survives_ten_consul_crashes() {
    if !is_root() {
        return;
    }
    const COUNT: usize = 50;
    let Some(mut consul) = Consul::start(Access::Open) else { return };
    let mut agent = Agent::start_with(with(consul.address()));
    let text = |version: u32| {
        let service = group("many", "consul", &format!(", tags: [v{version}]"));
        let update = "update: {max_parallel: 4, min_healthy_time: 100ms, health_check: task_states}";
        let tasks = [sleeper("t", &format!("env: {{VERSION: \"{version}\"}}"))];
        job("many", "service", &format!("count: {COUNT}\n{update}\n{service}"), &tasks)
    };
    agent.apply_and_wait(&text(1));
    wait::until_true("all services are registered", || consul.known("many") == COUNT);
    agent.apply(&text(2));
    for round in 0..10 {
        consul.stop();
        wait::pause(Duration::from_millis(150 * (round % 3)));
        consul.begin();
        wait::pause(Duration::from_millis(300 + 250 * (round % 4)));
    }
    wait::until_true("the job has converged", || agent.cli(&["wait", "many", "--timeout", "5s"]).code == 0);
    // One process per allocation, started once.
    let wanted: BTreeMap<String, u64> = (agent.allocs().iter())
        .filter(|alloc| alloc.desired() == "run")
        .map(|alloc| agent.alloc(&alloc.name()).unwrap())
        .map(|alloc| {
            assert_eq!(alloc.restarts("t"), 0, "{:#}", alloc.0);
            let started = alloc.events("t").iter().filter(|event| *event == "Started").count();
            assert_eq!(started, 1, "{:?}", alloc.events("t"));
            let ports = &alloc.0["AllocatedResources"]["Shared"]["Ports"];
            (alloc.id(), ports[0]["Value"].as_u64().unwrap_or_default())
        })
        .collect();
    assert_eq!((wanted.len(), agent.members().len()), (COUNT, COUNT));
    let pids: BTreeSet<u32> = agent.members().iter().map(|member| member.pid).collect();
    // The catalogue has exactly these entries.
    let entries = |consul: &Consul| -> BTreeMap<String, (u64, Value)> {
        let answer = consul.get("/v1/catalog/service/many").filter(|answer| answer.status == 200);
        let list = answer.map(|answer| answer.json()).and_then(|list| list.as_array().cloned());
        let entry_of = |entry: Value| {
            let alloc = entry["ServiceMeta"]["herdlet-alloc"].as_str().unwrap_or_default().to_owned();
            (alloc, (entry["ServicePort"].as_u64().unwrap_or_default(), entry["ServiceTags"].clone()))
        };
        list.unwrap_or_default().into_iter().map(entry_of).collect()
    };
    let expected: BTreeMap<_, _> =
        wanted.iter().map(|(alloc, port)| (alloc.clone(), (*port, json!(["v2"])))).collect();
    wait::until_true("the catalogue is exact", || {
        consul.known("many") == COUNT && entries(&consul) == expected
    });
    // Wipe Consul once more while nothing else happens.
    consul.stop();
    consul.launch();
    wait::until_true("the catalogue is exact again", || {
        consul.known("many") == COUNT && entries(&consul) == expected
    });
    let now: BTreeSet<u32> = agent.members().iter().map(|member| member.pid).collect();
    assert_eq!(now, pids);
    agent.finish();
}

/// Nomad does not register services again after the restart of a task that failed at first.
#[test]
fn service_of_a_failed_task_is_registered_per_process() {
    if !is_root() {
        return;
    }
    let Some(consul) = Consul::start(Access::Open) else { return };
    let mut agent = Agent::start_with(with(consul.address()));
    let script = "n=$(cat local/n 2>/dev/null || echo 0); echo $((n + 1)) > local/n; [ $n -ge 2 ] || exit 1; exec sleep 100000";
    let policy = "restart: {attempts: 10, interval: 10m, delay: 100ms, mode: fail}";
    let service = "services: [{name: late, provider: consul, port: p}]";
    let task = shell("t", script, &format!("kill_timeout: 1s\n{service}"));
    let group = format!("network: {{ports: {{p: {{}}}}}}\n{policy}");
    agent.apply(&job("late", "service", &group, &[task]));
    wait::until_true("its third process is registered", || {
        consul.known("late") == 1
            && agent
                .alloc("late.g[0]")
                .is_some_and(|alloc| alloc.restarts("t") == 2 && alloc.state("t") == "running")
    });
    for restarts in 3..6 {
        // Not while its script runs, which would then fail once more.
        let member = wait::until("the task has succeeded", || {
            let member = agent.single("late.g[0]", "t");
            host::arguments(member.pid)
                .is_some_and(|words| words.contains(&"100000".to_owned()))
                .then_some(member)
        });
        host::signal(member.pid, Signal::KILL);
        wait::until_true("another process is registered", || {
            let alloc = agent.alloc("late.g[0]");
            let again =
                alloc.is_some_and(|alloc| alloc.restarts("t") == restarts && alloc.state("t") == "running");
            again && consul.known("late") == 1 && consul.ids("late").len() == 1
        });
    }
    agent.finish();
}

#[test]
fn group_services_are_registered_after_each_restart() {
    if !is_root() {
        return;
    }
    let Some(consul) = Consul::start(Access::Open) else { return };
    let mut agent = Agent::start_with(with(consul.address()));
    agent.apply_and_wait(&simple("again", ""));
    wait::until_true("it is registered", || consul.known("again") == 1);
    for _ in 0..4 {
        let before = agent.single("again.g[0]", "t");
        agent.cli(&["restart", "again"]).success();
        wait::until_true("another process runs", || {
            agent.members().iter().any(|member| member.pid != before.pid && member.task == "t")
        });
        agent.until_running("again.g[0]", "t");
        // Not the entry that is being deregistered, nor the moment between it and its successor.
        let services =
            |state: &str| agent.metric("herdlet_services", &format!("catalog=\"consul\",state=\"{state}\""));
        wait::until_true("it is registered, and nothing is pending", || {
            consul.ids("again").len() == 1
                && consul.known("again") == 1
                && services("registered") > 0.9
                && services("pending") + services("leaving") < 0.1
        });
    }
    agent.finish();
}

/// A constraint on Consul's version waited for ever, also beside a Consul that answered.
#[test]
fn constraint_on_consul_is_explained_and_holds_once_it_answers() {
    let Some(mut consul) = Consul::prepare(Access::Open) else { return };
    let mut agent = Agent::start_with(with(consul.address()));
    let wanted = "constraints: [{attribute: '${attr.consul.version}', operator: semver, value: '>= 1.7.0'}]";
    agent.apply(&job("web", "service", wanted, &[sleeper("t", "")]));
    wait::until_true("an explanation", || {
        agent.cli(&["explain", "web"]).stdout.contains("no Consul agent has answered")
    });
    consul.launch();
    agent.cli(&["wait", "web"]).success();
    // An interruption changes nothing for the job.
    let member = agent.single("web.g[0]", "t");
    consul.stop();
    agent.crash();
    assert_eq!(agent.single("web.g[0]", "t"), member);
    agent.finish();
}
