//! The range of jobs from servers, with whole agents: old features, new ones, and unsupported ones.

use herdlet_nomad::wire::{AllocId, ClientStatus, Job};
use herdlet_nomad_server::{Settings, state::State};
use serde_json::{Value, json};

use crate::world::{Living, World, job, nanos, within};

const FOR_EVER: &str = "100000h";

/// Returns the output of a task.
fn output(node: &Living, id: &AllocId, task: &str) -> String {
    let id = herdlet_api_types::AllocId(id.as_str().parse().unwrap());
    std::fs::read_to_string(node.paths.logs(&id).join(format!("{task}.stdout.0"))).unwrap_or_default()
}

/// `resources { network { port "http" {} } }`: before groups had networks, each task had its own, often with
/// the same port label.
#[tokio::test(start_paused = true)]
async fn tasks_of_old_jobs_have_own_ports() {
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
    world.until(90, "the allocation runs", runs).await;
    let id = world.cluster.allocs_of(&key)[0].id.clone();
    within(30, "both have spoken", || {
        !output(&node, &id, "web").is_empty() && !output(&node, &id, "cache").is_empty()
    })
    .await;
    assert_eq!(output(&node, &id, "web"), "20000 127.0.0.1:20000 127.0.0.1:20001\n");
    assert_eq!(output(&node, &id, "cache"), "20001 127.0.0.1:20001 127.0.0.1:20000\n");
    world.until(30, "their services are registered", |state| state.services.len() == 2).await;
    node.end().await;
}

/// Requirements of a server's job that this machine lacks.
#[tokio::test(start_paused = true)]
async fn missing_requirement_fails_the_allocation() {
    let world = World::new(Settings::default());
    let node = world.ready_node(0).await;
    let volumes = json!({ "Volumes": { "data": { "Name": "data", "Type": "host", "Source": "disk" } } });
    let templates = |mut job: Value| {
        job["TaskGroups"][0]["Tasks"][0]["Templates"] =
            json!([{ "DestPath": "local/x", "EmbeddedTmpl": "{{ exportedServices }}" }]);
        job
    };
    let plain = job("web", "service", json!({ "run_for": FOR_EVER }), json!({}));
    for (job, says) in [
        (job("web", "service", json!({ "run_for": FOR_EVER }), volumes), "missing disk"),
        (templates(plain), "`exportedServices` is not available"),
    ] {
        let id = world.place(&node, &job);
        world.reaches(&id, ClientStatus::Failed).await;
        let task = world.cluster.read(|state| state.allocs[&id].task_states["main"].clone());
        let event = task.events.iter().find(|event| event.kind == "Setup Failure").unwrap();
        assert!(event.display_message.contains(says), "{event:?}");
        assert_eq!((task.failed, node.starts(&id)), (true, 0));
    }
    node.end().await;
}

#[tokio::test(start_paused = true)]
async fn max_run_duration_completes_over_a_restart() {
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
        .until(200, "a complete job", |state| state.allocs[&id].client_status == ClientStatus::Complete)
        .await;
    let why = world.cluster.read(|state| state.allocs[&id].client_description.clone());
    assert_eq!(why, "allocation exceeded max_run_duration");
    node.end().await;
}

/// As in recordings of stock clients, except for texts that are more specific.
#[tokio::test(start_paused = true)]
async fn task_events_match_stock_clients() {
    let world = World::new(Settings::default());
    let node = world.ready_node(0).await;
    let once = json!({
        "RestartPolicy": { "Attempts": 1, "Mode": "fail", "Interval": nanos(300), "Delay": nanos(1) },
    });
    let id = world.place(&node, &job("sum", "batch", json!({ "run_for": "1s", "exit_code": 3 }), once));
    world.reaches(&id, ClientStatus::Failed).await;
    let (task, description) = world.cluster.read(|state| {
        let alloc = &state.allocs[&id];
        (alloc.task_states["main"].clone(), alloc.client_description.clone())
    });
    assert_eq!((task.failed, task.restarts, &*description), (true, 1, "Failed tasks"));
    assert!(![task.started_at, task.finished_at, task.last_restart].iter().any(|time| time.is_zero()));
    let events: Vec<(&str, Vec<&str>)> = task
        .events
        .iter()
        .map(|event| (&*event.kind, event.details.keys().map(String::as_str).collect()))
        .collect();
    let ended = vec!["exit_code", "oom_killed", "signal"];
    assert_eq!(
        events,
        [
            ("Received", vec![]),
            ("Task Setup", vec!["message"]),
            ("Started", vec![]),
            ("Terminated", ended.clone()),
            ("Restarting", vec!["restart_reason", "start_delay"]),
            ("Started", vec![]),
            ("Terminated", ended),
            ("Not Restarting", vec!["fails_task", "restart_reason"]),
        ]
    );
    let last = task.events.last().unwrap();
    let why = "Exceeded allowed attempts 1 in interval 5m0s and mode is \"fail\"";
    assert_eq!((&*last.display_message, &*last.restart_reason, last.fails_task), (why, why, true));
    node.end().await;
}

/// From 1.11 on, servers also roll out system jobs.
#[tokio::test(start_paused = true)]
async fn system_job_health_is_reported_to_its_deployment() {
    let world = World::new(Settings::default());
    let node = world.ready_node(0).await;
    let update = json!({ "Update": {
        "MaxParallel": 1, "HealthCheck": "task_states", "MinHealthyTime": nanos(5), "HealthyDeadline": nanos(60),
        "ProgressDeadline": nanos(120), "Stagger": nanos(30),
    } });
    let job = job("agent", "system", json!({ "run_for": FOR_EVER }), update);
    let job = Job::new(herdlet_nomad_server::jobs::value(&job).unwrap());
    let id = world.cluster.write(|state| {
        let id = state.place(&node.id, &job, "group");
        state.change(&id, |alloc| alloc.deployment_id = "5b0d1c52-0000-4000-8000-000000000001".to_owned());
        id
    });
    let healthy = |state: &State| {
        state.allocs[&id].deployment_status.as_ref().is_some_and(|status| status.healthy == Some(true))
    };
    world.until(60, "it is healthy", healthy).await;
    node.end().await;
}
