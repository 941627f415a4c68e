//! Jobs that servers place, update, move and replace, seen from the nodes.

use herdlet_nomad::wire::{
    AllocId, Allocation, ClientStatus, DesiredStatus, NodeStatus, node::DrainStrategy, queries::AllocResponse,
};
use herdlet_nomad_server::{Cluster, Lan, Settings, state::Key};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    runner::Bench,
    world::{Living, identity, live, pool, ready, seconds, within},
};

/// A job with a group `web` of one task.
fn web(count: usize, command: &str) -> Value {
    let port = json!({ "Label": "http", "To": -1 });
    let task = json!({
        "Name": "main",
        "Driver": "raw_exec",
        "Config": { "command": command },
        "Resources": { "CPU": 100, "MemoryMB": 32 },
    });
    let group = json!({
        "Name": "web",
        "Count": count,
        "Tasks": [task],
        "Networks": [{ "Mode": "host", "DynamicPorts": [port] }],
        "Update": { "MaxParallel": 1 },
        "ReschedulePolicy": { "Unlimited": true, "Delay": 5_000_000_000_i64 },
    });
    json!({ "ID": "shop", "Type": "service", "Datacenters": ["dc1"], "TaskGroups": [group] })
}

fn with(mut job: Value, field: &str, value: Value) -> Value {
    job["TaskGroups"][0][field] = value;
    job
}

/// Starts nodes and waits until they are ready.
async fn nodes(cluster: &Cluster, count: usize) -> Vec<Living> {
    let mut nodes = Vec::new();
    for number in 1..=count {
        let living = live(pool(Lan::new(cluster), &["s0"]), identity(number), Bench::default());
        ready(cluster, &living.id).await;
        nodes.push(living);
    }
    nodes
}

fn running(cluster: &Cluster, key: &Key) -> Vec<Allocation> {
    let runs = |alloc: &Allocation| {
        alloc.desired_status == DesiredStatus::Run && alloc.client_status == ClientStatus::Running
    };
    cluster.allocs_of(key).into_iter().filter(runs).collect()
}

async fn run(cluster: &Cluster, key: &Key, count: usize) {
    within(60, "the allocations run", || running(cluster, key).len() == count).await;
}

fn names(allocs: &[Allocation]) -> Vec<&str> {
    let mut names: Vec<_> = allocs.iter().map(|alloc| &alloc.name[..]).collect();
    names.sort_unstable();
    names
}

/// The node that runs an allocation.
fn node_of<'a>(nodes: &'a [Living], alloc: &Allocation) -> &'a Living {
    nodes.iter().find(|node| node.id == alloc.node_id).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_service_is_placed_scaled_and_stopped() {
    let cluster = Cluster::start(Settings::default());
    let nodes = nodes(&cluster, 2).await;
    let key = cluster.submit(&web(4, "one")).unwrap();
    run(&cluster, &key, 4).await;
    let allocs = running(&cluster, &key);
    assert_eq!(names(&allocs), ["shop.web[0]", "shop.web[1]", "shop.web[2]", "shop.web[3]"]);
    for node in &nodes {
        let mut ports: Vec<_> = allocs
            .iter()
            .filter(|alloc| alloc.node_id == node.id)
            .map(|alloc| alloc.allocated_resources.as_ref().unwrap().shared.ports[0].clone())
            .collect();
        ports.sort_by_key(|port| port.value);
        assert_eq!(
            ports.iter().map(|port| port.value).collect::<Vec<_>>(),
            [20_000, 20_001],
            "two on each node"
        );
        assert!(ports.iter().all(|port| port.to == port.value && port.label == "http"));
    }
    let resources = allocs[0].allocated_resources.clone().unwrap();
    assert_eq!((resources.tasks["main"].memory.memory_mb, resources.shared.disk_mb), (32, 300));
    within(5, "the job is healthy", || cluster.deployment(&key) == "successful").await;
    assert_eq!(cluster.submit(&web(4, "one")).unwrap(), key);
    assert_eq!(cluster.allocs_of(&key).len(), 4, "submitting the same job again changes nothing");
    // Scaling down changes the remaining allocations in place.
    cluster.submit(&web(2, "one")).unwrap();
    within(10, "two remain", || names(&running(&cluster, &key)) == ["shop.web[0]", "shop.web[1]"]).await;
    let left = running(&cluster, &key);
    assert!(left.iter().all(|alloc| alloc.job.version() == 1 && allocs.iter().any(|it| it.id == alloc.id)));
    cluster.stop_job(&key, true);
    within(10, "all have stopped", || {
        cluster.allocs_of(&key).iter().all(|alloc| alloc.client_status == ClientStatus::Complete)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn update_follows_health_one_by_one() {
    let cluster = Cluster::start(Settings::default());
    let _nodes = nodes(&cluster, 2).await;
    let key = cluster.submit(&web(3, "one")).unwrap();
    run(&cluster, &key, 3).await;
    within(5, "the job is healthy", || cluster.deployment(&key) == "successful").await;
    cluster.submit(&web(3, "two")).unwrap();
    let old = |alloc: &&Allocation| alloc.job.version() == 0;
    let mut least = 3;
    for _ in 0..400 {
        least = least.min(running(&cluster, &key).len());
        sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(least >= 2, "{least}");
    assert_eq!(cluster.deployment(&key), "successful");
    let allocs = cluster.allocs_of(&key);
    assert_eq!((allocs.iter().filter(old).count(), allocs.len()), (3, 6));
    assert!(running(&cluster, &key).iter().all(|alloc| alloc.job.version() == 1));
    let replaces = |alloc: &&Allocation| allocs.iter().any(|it| it.id.as_str() == alloc.previous_allocation);
    assert_eq!(allocs.iter().filter(replaces).count(), 3);
}

#[tokio::test(start_paused = true)]
async fn failed_allocation_is_replaced_and_complete_batch_is_not() {
    let cluster = Cluster::start(Settings::default());
    let nodes = nodes(&cluster, 2).await;
    let key = cluster.submit(&web(1, "one")).unwrap();
    run(&cluster, &key, 1).await;
    let first = running(&cluster, &key).remove(0);
    node_of(&nodes, &first).ends(&first.id, ClientStatus::Failed);
    within(4, "the report arrives", || cluster.client_status(&first.id) == ClientStatus::Failed).await;
    assert_eq!(cluster.allocs_of(&key).len(), 1, "not before its delay");
    run(&cluster, &key, 1).await;
    let second = running(&cluster, &key).remove(0);
    assert_eq!((&second.name, &second.previous_allocation[..]), (&first.name, first.id.as_str()));
    let mut batch = web(2, "work");
    (batch["Type"], batch["ID"]) = (json!("batch"), json!("work"));
    let batch = cluster.submit(&batch).unwrap();
    run(&cluster, &batch, 2).await;
    for alloc in running(&cluster, &batch) {
        node_of(&nodes, &alloc).ends(&alloc.id, ClientStatus::Complete);
    }
    sleep(seconds(60)).await;
    let done = cluster.allocs_of(&batch);
    assert!(done.len() == 2 && done.iter().all(|alloc| alloc.client_status == ClientStatus::Complete));
}

#[tokio::test(start_paused = true)]
async fn drained_node_stops_system_jobs_last() {
    let cluster = Cluster::start(Settings::default());
    let nodes = nodes(&cluster, 2).await;
    let key = cluster.submit(&web(4, "one")).unwrap();
    let mut system = web(1, "agent");
    (system["Type"], system["ID"]) = (json!("system"), json!("agent"));
    let system = cluster.submit(&with(system, "Networks", json!([]))).unwrap();
    run(&cluster, &key, 4).await;
    run(&cluster, &system, 2).await;
    let node = nodes[0].id.clone();
    cluster.write(|state| state.drain(&node, Some(DrainStrategy::default())));
    within(60, "the node is empty", || {
        let is_on = |alloc: &Allocation| alloc.node_id == node;
        !running(&cluster, &key).iter().any(is_on) && !running(&cluster, &system).iter().any(is_on)
    })
    .await;
    run(&cluster, &key, 4).await;
    let drained = || cluster.read(|state| state.nodes[&node].node.drain_strategy.is_none());
    within(5, "the drain is over", drained).await;
    // The node is eligible again.
    cluster.write(|state| state.set_eligible(&node, true));
    run(&cluster, &system, 2).await;
}

/// Depending on the job: without a disconnect setting, or with one that lets allocations outlive the absence.
#[tokio::test(start_paused = true)]
async fn unreachable_allocation_is_lost_or_unknown_by_its_job() {
    let minutes = |minutes: i64| minutes * 60_000_000_000;
    let outlive = json!({ "LostAfter": minutes(60), "Replace": true });
    let keep_other = json!({ "LostAfter": minutes(60), "Reconcile": "keep_replacement" });
    let alone = json!({ "LostAfter": minutes(60), "Replace": false });
    let brief = json!({ "LostAfter": minutes(1) });
    let cases = [
        (Value::Null, ClientStatus::Lost, 1, ClientStatus::Complete),
        (outlive, ClientStatus::Unknown, 1, ClientStatus::Running),
        (keep_other, ClientStatus::Unknown, 1, ClientStatus::Complete),
        (alone, ClientStatus::Unknown, 0, ClientStatus::Running),
        (brief, ClientStatus::Unknown, 1, ClientStatus::Complete),
    ];
    for (disconnect, expected, others, back) in cases {
        let cluster = Cluster::start(Settings { servers: 2, ..Settings::default() });
        let away = live(pool(Lan::new(&cluster), &["s0"]), identity(1), Bench::default());
        ready(&cluster, &away.id).await;
        let key = cluster.submit(&with(web(1, "one"), "Disconnect", disconnect.clone())).unwrap();
        run(&cluster, &key, 1).await;
        let id = running(&cluster, &key)[0].id.clone();
        let bench = away.end().await;
        let there = live(pool(Lan::new(&cluster), &["s1"]), identity(2), Bench::default());
        within(40, "the node is missed", || cluster.client_status(&id) == expected).await;
        sleep(seconds(90)).await;
        assert_eq!(running(&cluster, &key).len(), others, "{disconnect}");
        let second = live(pool(Lan::new(&cluster), &["s0"]), identity(1), bench);
        within(60, "the allocation is settled", || cluster.client_status(&id) == back).await;
        within(60, "the node is ready", || cluster.status(&second.id) == Some(NodeStatus::Ready)).await;
        run(&cluster, &key, 1).await;
        assert_eq!(second.bench.see(|seen| seen.started[&id]), 1);
        drop(there);
    }
}

/// Compares with a stock server's response: the same fields must be present.
#[test]
fn placed_allocation_has_the_fields_of_stock_servers() {
    let mut state = herdlet_nomad_server::state::State::new(true);
    let node = crate::world::described();
    let node = herdlet_nomad::wire::Node {
        id: identity(1).id,
        secret_id: identity(1).secret,
        status: NodeStatus::Ready,
        ..node
    };
    let now = tokio::time::Instant::now();
    state.register(node, now).unwrap();
    state.submit(&web(1, "one")).unwrap();
    state.evaluate(now);
    let alloc = state.allocs.values().next().cloned().unwrap();
    let answer = AllocResponse { alloc: Some(alloc), ..AllocResponse::default() };
    let bytes = herdlet_rpc::codec::encode(&answer).unwrap();
    let ours: herdlet_rpc::codec::Value = herdlet_rpc::codec::decode(&bytes).unwrap();
    let alloc = ours.get("Alloc").unwrap();
    let fields = [
        "ID",
        "Namespace",
        "EvalID",
        "Name",
        "NodeID",
        "JobID",
        "Job",
        "TaskGroup",
        "AllocatedResources",
        "DesiredStatus",
        "ClientStatus",
        "DeploymentID",
        "CreateIndex",
        "ModifyIndex",
        "AllocModifyIndex",
    ];
    for field in fields {
        assert!(alloc.get(field).is_some(), "{field}");
    }
    let _: AllocId = state.allocs.keys().next().cloned().unwrap();
}
