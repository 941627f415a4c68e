//! Jobs that may not run on this machine, in a real agent: they wait, report the reason, also in Nomad's
//! terms, and start once they may.

use std::fs;

use herdlet_e2e::{agent::Agent, http, program::example, wait::until_true};
use serde_json::{Value, json};

use crate::common::{is_root, job, sleeper};

fn wanting(attribute: &str, value: &str) -> String {
    let constraint = format!("constraints: [{{attribute: \"{attribute}\", value: \"{value}\"}}]\n");
    job("picky", "service", &constraint, &[sleeper("t", "")])
}

fn get(agent: &Agent, path: &str) -> Value {
    http::get(&agent.peer(), path).unwrap().json()
}

/// Returns the result of Nomad's plan for the job's group.
fn failed(agent: &Agent, job: &str) -> Value {
    let body = json!({ "Job": get(agent, &format!("/v1/job/{job}")) }).to_string();
    let path = format!("/v1/job/{job}/plan");
    let planned = http::request(&agent.peer(), "POST", &path, &[("Content-Type", "application/json")], &body);
    planned.unwrap().json()["FailedTGAllocs"]["g"].clone()
}

#[test]
fn infeasible_group_waits() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply(&wanting("${attr.kernel.name}", "plan9"));
    let why = "picky.g: ${attr.kernel.name} is \"linux\" on this node, but must be \"plan9\"";
    until_true("the reason is shown", || agent.cli(&["status"]).stdout.contains("${attr.kernel.name}"));
    let explained = agent.cli(&["explain", "picky"]).success().stdout;
    assert!(explained.contains(why), "{explained}");
    assert_eq!(get(&agent, "/v1/job/picky")["Status"], "pending");
    let failed = failed(&agent, "picky");
    assert_eq!(
        (&failed["NodesFiltered"], &failed["ConstraintFiltered"]),
        (&1.into(), &json!({ "${attr.kernel.name} = plan9": 1 })),
        "{failed}"
    );

    let node = &get(&agent, "/v1/nodes")[0]["ID"];
    let node = get(&agent, &format!("/v1/node/{}", node.as_str().unwrap()));
    let arch = node["Attributes"]["cpu.arch"].as_str().unwrap();
    agent.apply_and_wait(&wanting("${attr.cpu.arch}", arch));
    let pid = agent.cli(&["get", "allocs", "picky", "-o", "name"]).success().stdout;

    agent.apply(&wanting("${attr.kernel.name}", "plan9"));
    until_true("the reason is shown again", || agent.cli(&["status"]).stdout.contains("${attr.kernel.name}"));
    assert_eq!(
        agent.cli(&["get", "allocs", "picky", "-o", "name"]).success().stdout,
        pid,
        "running tasks keep running"
    );
    agent.cli(&["delete", "picky", "--wait"]).success();
    agent.finish();
}

#[test]
fn the_example_runs_where_what_it_names_is_so() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let named = agent.cli(&["get", "node", "-o", "yaml"]).success().stdout;
    for line in ["${attr.kernel.name}: linux", "${node.datacenter}: dc1", "${node.pool}: default"] {
        assert!(named.replace(['\'', '"'], "").contains(line), "{line} in {named}");
    }
    agent.apply_and_wait(&fs::read_to_string(example("placement")).unwrap());
    let id = agent.alloc("placement.work[0]").unwrap().id();
    let scores = &get(&agent, &format!("/v1/allocation/{id}"))["Metrics"]["ScoreMetaData"][0]["Scores"];
    assert_eq!(scores, &json!({ "node-affinity": 1.0 }));
    let asked_for = fs::read_to_string(example("placement")).unwrap().replace("value: 1}", "value: 9999}");
    agent.apply(&asked_for);
    let why = "must be at least \"9999\"";
    until_true("the reason is shown", || agent.cli(&["explain", "placement"]).stdout.contains(why));
    agent.cli(&["delete", "placement", "--wait"]).success();
    agent.finish();
}

fn hungry(name: &str, memory: u64) -> String {
    job(name, "service", "", &[sleeper("t", &format!("resources: {{memory: {memory}}}"))])
}

#[test]
fn job_without_room_waits_for_an_end() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let id = get(&agent, "/v1/nodes")[0]["ID"].as_str().unwrap().to_owned();
    let node = get(&agent, &format!("/v1/node/{id}"));
    let all = node["NodeResources"]["Memory"]["MemoryMB"].as_u64().unwrap();
    let most = all * 2 / 3;
    agent.apply_and_wait(&hungry("first", most));
    let manifest = agent.home.write("second.yaml", &hungry("second", most));
    let planned = agent.cli(&["plan", "-f", manifest.to_str().unwrap()]).stdout;
    let lacking = format!("needs {most} MiB of memory ({} of {all} MiB are free)", all - most);
    assert!(planned.contains(&format!("group g would wait: {lacking}")), "{planned}");
    agent.apply(&hungry("second", most));
    let why = format!("second.g[0] needs {most} MiB of memory ({} of {all} MiB are free)", all - most);
    until_true("the reason is shown", || agent.cli(&["explain", "second"]).stdout.contains(&why));
    let failed = failed(&agent, "second");
    assert_eq!(failed["DimensionExhausted"], json!({ "memory": 1 }), "{failed}");
    let metrics = http::get(&agent.peer(), "/v1/metrics?format=prometheus").unwrap().body;
    let allocated = format!("herdlet_node_memory_bytes{{state=\"allocated\"}} {}", most * 1024 * 1024);
    assert!(metrics.contains(&allocated), "{allocated} in {metrics}");
    agent.cli(&["delete", "first", "--wait"]).success();
    agent.cli(&["wait", "second"]).success();
    agent.cli(&["delete", "second", "--wait"]).success();
    agent.finish();
}

/// Tasks got ports on which other processes listened, and failed.
#[test]
fn listening_port_is_not_assigned() {
    if !is_root() {
        return;
    }
    let range = herdlet_e2e::ports::for_tasks();
    let numbers: Vec<u16> =
        range.split(|char: char| !char.is_ascii_digit()).filter_map(|text| text.parse().ok()).collect();
    let [min, max] = numbers[..] else { panic!("{range}") };
    // All but the last one.
    let held: Vec<_> =
        (min..max).filter_map(|port| std::net::TcpListener::bind(("127.0.0.1", port)).ok()).collect();
    let mut agent = Agent::start_with(herdlet_e2e::agent::Setup::default().config(range));
    for name in ["a", "b", "c"] {
        agent.apply_and_wait(&job(name, "service", "network: {ports: {http: {}}}", &[sleeper("t", "")]));
        let listed = agent.cli(&["get", "allocs", "-o", "json"]).success().stdout;
        let listed: Value = serde_json::from_str(&listed).unwrap();
        let port = &listed[0]["AllocatedResources"]["Shared"]["Ports"][0]["Value"];
        assert_eq!(port, &Value::from(max), "{} ports are held", held.len());
        agent.cli(&["delete", name, "--wait"]).success();
    }
    agent.finish();
}
