//! What jobs of servers may say, with whole agents: what is old, what is new, and what isn't here.

use herdlet_nomad::wire::{AllocId, ClientStatus, Job};
use herdlet_nomad_server::{Settings, state::State};
use serde_json::{Value, json};

use crate::world::{Living, World, job, nanos, within};

const FOR_EVER: &str = "100000h";

/// What a task of an allocation has written.
fn said(node: &Living, id: &AllocId, task: &str) -> String {
    let id = herdlet_api_types::AllocId(id.as_str().parse().unwrap());
    std::fs::read_to_string(node.paths.logs(&id).join(format!("{task}.stdout.0"))).unwrap_or_default()
}

/// `resources { network { port "http" {} } }`: before groups had networks each task had its own, and the ports of all often the same label.
#[tokio::test(start_paused = true)]
async fn tasks_of_old_jobs_have_ports_of_their_own_and_know_those_of_the_others() {
    let world = World::new(Settings::default());
    let node = world.ready_node(0).await;
    let task = |name: &str, other: &str| {
        let says = format!("${{NOMAD_PORT_http}} ${{NOMAD_ADDR_http}} ${{NOMAD_ADDR_{other}_http}}\n");
        json!({
            "Name": name, "Driver": "mock", "Config": { "run_for": FOR_EVER, "stdout_string": says },
            "Resources": { "Networks": [{ "MBits": 10, "DynamicPorts": [{ "Label": "http", "Value": 0, "To": 0 }] }] },
            "Services": [{ "Name": name, "Provider": "nomad", "PortLabel": "http", "AddressMode": "auto" }],
        })
    };
    let job = json!({ "ID": "old", "Type": "service", "TaskGroups": [
        { "Name": "group", "Count": 1, "Tasks": [task("web", "cache"), task("cache", "web")] },
    ] });
    let key = world.submit(&job);
    let runs =
        |state: &State| state.allocs.values().any(|alloc| alloc.client_status == ClientStatus::Running);
    world.until(90, "it runs", runs).await;
    let id = world.cluster.allocs_of(&key)[0].id.clone();
    within(30, "both have spoken", || {
        !said(&node, &id, "web").is_empty() && !said(&node, &id, "cache").is_empty()
    })
    .await;
    assert_eq!(said(&node, &id, "web"), "20000 127.0.0.1:20000 127.0.0.1:20001\n");
    assert_eq!(said(&node, &id, "cache"), "20001 127.0.0.1:20001 127.0.0.1:20000\n");
    world.until(30, "their services are registered", |state| state.services.len() == 2).await;
    node.end().await;
}

/// What a server's job wants and this machine hasn't got.
#[tokio::test(start_paused = true)]
async fn what_is_not_here_fails_the_allocation_and_is_named() {
    let world = World::new(Settings::default());
    let node = world.ready_node(0).await;
    let volumes = json!({ "Volumes": { "data": { "Name": "data", "Type": "host", "Source": "disk" } } });
    let templates = |mut job: Value| {
        job["TaskGroups"][0]["Tasks"][0]["Templates"] =
            json!([{ "DestPath": "local/x", "EmbeddedTmpl": "x" }]);
        job
    };
    let plain = job("web", "service", json!({ "run_for": FOR_EVER }), json!({}));
    for (job, says) in [
        (job("web", "service", json!({ "run_for": FOR_EVER }), volumes), "missing disk"),
        (templates(plain), "Templates"),
    ] {
        let id = world.place(&node, &job);
        world.reaches(&id, ClientStatus::Failed).await;
        let told = world.cluster.read(|state| state.allocs[&id].task_states["main"].clone());
        let event = told.events.iter().find(|event| event.kind == "Setup Failure").unwrap();
        assert!(event.display_message.contains(says), "{event:?}");
        assert_eq!((told.failed, node.starts(&id)), (true, 0));
    }
    node.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_may_not_run_longer_has_completed_then_over_a_restart_of_the_agent() {
    let world = World::new(Settings::default());
    let node = world.ready_node(0).await;
    let limit = json!({ "MaxRunDuration": nanos(120) });
    let job = Job::new(
        herdlet_nomad_server::jobs::value(&job("sum", "batch", json!({ "run_for": FOR_EVER }), limit))
            .unwrap(),
    );
    let now = world.now();
    let id = world.cluster.write(|state| {
        let id = state.place(&node.id, &job, "group");
        state.change(&id, |alloc| alloc.create_time = now.0);
        id
    });
    world.reaches(&id, ClientStatus::Running).await;
    let node = world.again(node).await;
    world
        .until(200, "it has completed", |state| state.allocs[&id].client_status == ClientStatus::Complete)
        .await;
    let why = world.cluster.read(|state| state.allocs[&id].client_description.clone());
    assert_eq!(why, "allocation exceeded max_run_duration");
    node.end().await;
}
