//! Changes of a job that don't replace its allocations.

use herdlet_e2e::{agent::Agent, http, wait};
use serde_json::Value;

use crate::common::{is_root, job, sleeper};

fn services(agent: &Agent, name: &str) -> Vec<Value> {
    let path = format!("/v1/service/{name}");
    let Some(answer) = http::get(&agent.peer(), &path).filter(|answer| answer.status == 200) else {
        return Vec::new();
    };
    answer.json().as_array().cloned().unwrap_or_default()
}

fn manifest(service: &str, more: &str) -> String {
    job("kept", "service", &format!("network: {{ports: {{http: {{}}}}}}\n{service}"), &[sleeper("t", more)])
}

#[test]
fn policies_and_services_change_under_a_task_that_runs_on() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&manifest(
        "services: [{name: one, port: http, tags: [a]}]\n",
        "restart: {attempts: 2}",
    ));
    let first = agent.single("kept.g[0]", "t");
    let ids = |agent: &Agent| agent.allocs().iter().map(|alloc| alloc.id()).collect::<Vec<_>>();
    let before = ids(&agent);

    let changed = manifest(
        "services: [{name: one, port: http, tags: [b]}, {name: two, port: http}]\n",
        "restart: {attempts: 1}",
    );
    let file = agent.manifest(&changed).display().to_string();
    let output = agent.cli(&["diff", "-f", &file]);
    assert!(output.code == 1 && output.stdout.contains("group g: in-place"), "{}", output.stdout);
    agent.apply_and_wait(&changed);
    wait::until_true("the second service", || services(&agent, "two").len() == 1);
    wait::until_true("the new tag", || {
        services(&agent, "one").first().is_some_and(|one| one["Tags"] == serde_json::json!(["b"]))
    });
    assert_eq!((agent.single("kept.g[0]", "t"), ids(&agent)), (first.clone(), before.clone()));
    let alloc = http::get(&agent.peer(), "/v1/job/kept/allocations").unwrap().json()[0].clone();
    assert_eq!(alloc["JobVersion"], 1, "the allocation has the new version");

    agent.apply_and_wait(&manifest("", "restart: {attempts: 1}"));
    wait::until_true("no service", || {
        services(&agent, "one").is_empty() && services(&agent, "two").is_empty()
    });
    assert_eq!((agent.single("kept.g[0]", "t"), ids(&agent)), (first.clone(), before));

    let replaced = manifest("", "restart: {attempts: 1}\nenv: {A: \"1\"}");
    let file = agent.manifest(&replaced).display().to_string();
    let diff = agent.cli(&["diff", "-f", &file]).stdout;
    assert!(
        diff.contains("group g: replace, all at once (it has no `update`), because of tasks[t].env.A"),
        "{diff}"
    );
    agent.apply_and_wait(&replaced);
    assert_ne!(agent.single("kept.g[0]", "t"), first);
    agent.cli(&["delete", "kept", "--wait"]).success();
    agent.finish();
}
