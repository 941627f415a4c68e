//! Names, labels and sweeps: which containers an agent recognises as its own, and which it removes.

use herdlet_e2e::{engine::Engine, wait};
use serde_json::{Value, json};

use super::{containers_of, finish, on_both_engines, on_own_engine, remove, running_of, sleeping};
use crate::common::job;

on_both_engines!(
    a_restarted_agent_adopts_every_container,
    a_container_that_is_removed_behind_the_agent_is_replaced_once,
    names_and_labels_are_functions_of_attempts,
    containers_of_unknown_attempts_are_removed_and_those_of_strangers_are_not,
);
on_own_engine!(
    a_restarted_agent_adopts_every_container,
    a_container_that_is_removed_behind_the_agent_is_replaced_once,
);

const RESTARTS: &str = "restart: {attempts: 10, interval: 10m, delay: 50ms, mode: delay}";

fn label<'v>(container: &'v Value, name: &str) -> &'v str {
    container["Labels"][name].as_str().unwrap_or_default()
}

fn names_and_labels_are_functions_of_attempts(engine: Engine<'_>) {
    let mut agent = engine.agent("extra_labels: [\"job*\", task_name]");
    agent.apply_and_wait(&job("named", "service", RESTARTS, &[sleeping("t", "")]));
    let alloc = agent.until_alloc("named.g[0]", "runs", |alloc| alloc.state("t") == "running");
    let [first] = containers_of(&engine, &agent).try_into().unwrap();
    assert_eq!(label(&first, "herdlet.alloc_id"), alloc.id());
    assert_eq!(label(&first, "herdlet.job_name"), "named");
    assert_eq!(label(&first, "herdlet.task_name"), "t");
    let attempt = label(&first, "herdlet.attempt").to_owned();
    assert!(attempt.contains(&alloc.id()), "{first:#}");
    assert!(
        first["Names"][0].as_str().unwrap().trim_start_matches('/').starts_with(&format!("t-{}", alloc.id()))
    );

    agent.cli(&["restart", "named"]).success();
    wait::until_true("another container runs alone", || {
        let found = containers_of(&engine, &agent);
        found.len() == 1 && found[0]["State"] == "running" && found[0]["Id"] != first["Id"]
    });
    let [second] = containers_of(&engine, &agent).try_into().unwrap();
    assert_ne!(label(&second, "herdlet.attempt"), attempt, "each attempt has a name of its own");
    assert_ne!(first["Names"], second["Names"]);
    finish(&engine, agent);
}

fn a_restarted_agent_adopts_every_container(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    agent.apply_and_wait(&job("kept", "service", "count: 3", &[sleeping("a", ""), sleeping("b", "")]));
    let before = running_of(&engine, &agent);
    assert_eq!(before.len(), 6);
    for _ in 0..3 {
        agent.crash();
        agent.cli(&["wait", "kept"]).success();
        assert_eq!(running_of(&engine, &agent), before);
    }
    agent.terminate();
    assert_eq!(running_of(&engine, &agent), before, "tasks outlive their agent");
    agent.launch();
    assert!(
        (0..3).all(|index| agent
            .alloc(&format!("kept.g[{index}]"))
            .is_some_and(|alloc| alloc.restarts("a") == 0))
    );
    finish(&engine, agent);
}

fn a_container_that_is_removed_behind_the_agent_is_replaced_once(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    agent.apply_and_wait(&job("taken", "service", RESTARTS, &[sleeping("t", "")]));
    for round in 1..=2 {
        let [only] = running_of(&engine, &agent).try_into().unwrap();
        if round == 1 {
            remove(&engine, &agent, &only);
        } else {
            agent.kill();
            remove(&engine, &agent, &only);
            agent.launch();
        }
        let alloc = agent.until_alloc("taken.g[0]", "runs again", |alloc| {
            alloc.state("t") == "running" && alloc.restarts("t") == round
        });
        assert_eq!(alloc.events("t").iter().filter(|kind| *kind == "Started").count(), 1 + round as usize);
        let [other] = running_of(&engine, &agent).try_into().unwrap();
        assert_ne!(other, only);
    }
    finish(&engine, agent);
}

fn containers_of_unknown_attempts_are_removed_and_those_of_strangers_are_not(engine: Engine<'_>) {
    let mut agent = engine.agent("gc: {image: false, dangling_containers: {period: 1s, creation_grace: 2s}}");
    agent.apply_and_wait(&job("known", "service", "", &[sleeping("t", "")]));
    let known = running_of(&engine, &agent);
    let instance = agent.home.instance().unwrap();
    let [listed] = containers_of(&engine, &agent).try_into().unwrap();
    // The same attempt of another allocation.
    let alloc = label(&listed, "herdlet.alloc_id");
    let unknown = "11111111-2222-4333-8444-555555555555";
    let attempt = label(&listed, "herdlet.attempt").replace(alloc, unknown);
    let name = |kind: &str| format!("{kind}-{instance}");
    let strangers = [
        engine.stranger(&name("plain"), &json!({})),
        engine.stranger(&name("other"), &json!({"herdlet.instance": "other", "herdlet.attempt": attempt})),
        engine.stranger(&name("nomad"), &json!({"com.hashicorp.nomad.alloc_id": unknown})),
    ];
    let driver = label(&listed, "herdlet.driver");
    let ours = json!({"herdlet.instance": instance, "herdlet.driver": driver, "herdlet.attempt": attempt});
    let own_name = listed["Names"][0].as_str().unwrap().trim_start_matches('/').replace(alloc, unknown);
    let dangling = engine.stranger(&own_name, &ours);
    // After a restart, and while the agent runs.
    agent.crash();
    wait::until_true("the unknown container is removed", || engine.inspect(&dangling).is_none());
    let dangling = engine.stranger(&own_name, &ours);
    wait::until_true("the unknown container is removed", || engine.inspect(&dangling).is_none());
    for stranger in &strangers {
        assert_eq!(engine.inspect(stranger).unwrap()["State"]["Running"], true);
    }
    assert!(known.iter().all(|id| engine.inspect(id).is_some()));
    strangers.iter().for_each(|stranger| engine.remove(stranger));
    finish(&engine, agent);
}
