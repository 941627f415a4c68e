//! A whole agent as a node of stand-in servers, in one process: what servers want is what runs, and what runs is what they know.

use std::{future::Future, path::Path, sync::Arc, time::Duration};

use herdlet_api_types::InstanceId;
use herdlet_nomad::{
    identity::Identity,
    session::{Options, Session},
    wire::{
        self, AllocId, ClientStatus, Node, NodeId,
        resources::{NodeResources, ReservedResources},
    },
};
use herdlet_nomad_server::{Cluster, Lan, Settings};
use herdlet_rpc::{
    codec::Value,
    pool::{Chance, Pool},
    serve::Unserved,
};
use serde_json::{Value as Json, json};
use tokio::sync::watch;

use super::join::join;
use crate::{
    agent::{self, Agent},
    desired::manifests::Drivers,
    drivers::{artifact, catalog::ConsulConfig},
    executor::pressure,
    instance::{self, Availability, Instance},
    paths::Paths,
    state_db::{StateDb, StateDir},
};

/// An agent with the driver mock in this directory, as a node of the cluster.
async fn start(cluster: &Cluster, path: &Path) -> (Agent, NodeId) {
    let dir = StateDir::claim(path).unwrap();
    let paths = Paths { runtime: path.join("run"), state: path.to_owned() };
    let instance = Instance::open(instance::Options {
        instance: dir.instance().clone(),
        paths: paths.clone(),
        cgroup_parent: "herdlet-node-test".to_owned(),
        raw_exec: Availability::Disabled,
        leash: None,
    })
    .unwrap();
    let state = StateDb::open(dir, &paths, agent::now()).unwrap();
    let node = agent::node_facts(&instance);
    let settings = agent::planner_settings(InstanceId(node.id.clone()));
    let mut agent = Agent::start(agent::Parts {
        instance,
        state,
        node,
        settings,
        volumes: Vec::new(),
        consul: ConsulConfig::resolve(None, None, |_| None).unwrap(),
        start_pressure_limit: pressure::DEFAULT_LIMIT,
        artifacts: artifact::Limits::default(),
        notes: Arc::new(|_| {}),
    })
    .await
    .unwrap();
    agent.complete_after(std::future::ready(()));
    let identity = Identity::load_or_create(&path.join("node"), None).unwrap();
    let id = identity.id.clone();
    let servers = vec!["s0:4647".parse().unwrap()];
    let pool = Pool::new(Arc::new(Unserved), "global".to_owned(), servers, Lan::new(cluster), Chance::new());
    let described = Node {
        datacenter: "dc1".to_owned(),
        name: "node".to_owned(),
        attributes: [("nomad.version".to_owned(), "1.6.5".to_owned())].into(),
        node_resources: Some(NodeResources::default()),
        reserved_resources: Some(ReservedResources::default()),
        ..Node::default()
    };
    let (_, node) = watch::channel(Arc::new(described));
    let session = Session::new(Arc::new(pool), identity, node, Options::default());
    join(&mut agent, session, Drivers::built_in(), std::future::ready(()));
    (agent, id)
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), what).await.expect("it takes too long")
}

async fn ready(cluster: &Cluster, node: &NodeId) {
    let is_ready = |state: &herdlet_nomad_server::state::State| {
        state.nodes.get(node).is_some_and(|known| known.node.status == wire::NodeStatus::Ready)
    };
    within(cluster.until(is_ready)).await;
}

async fn reaches(cluster: &Cluster, alloc: &AllocId, status: ClientStatus) {
    let reached = within(
        cluster.until(|state| state.allocs.get(alloc).is_some_and(|known| known.client_status == status)),
    );
    reached.await;
}

/// A job whose one task does this.
fn job(id: &str, kind: &str, config: Json) -> wire::Job {
    let task = json!({ "Name": "main", "Driver": "mock", "Config": config });
    let group = json!({ "Name": "group", "Tasks": [task], "RestartPolicy": { "Attempts": 0, "Mode": "fail", "Interval": 60_000_000_000_i64, "Delay": 1 } });
    wire::Job::new(value(&json!({ "ID": id, "Type": kind, "TaskGroups": [group] })))
}

fn value(json: &Json) -> Value {
    herdlet_nomad_server::jobs::value(json).unwrap()
}

fn place(cluster: &Cluster, node: &NodeId, job: &wire::Job) -> AllocId {
    cluster.write(|state| state.place(node, job, "group"))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_servers_place_runs_ends_and_is_forgotten_as_they_say() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(Settings::default());
    let (agent, node) = start(&cluster, dir.path()).await;
    ready(&cluster, &node).await;
    let service = place(&cluster, &node, &job("web", "service", json!({ "run_for": "1h" })));
    let batch = place(&cluster, &node, &job("sum", "batch", json!({ "run_for": "10ms" })));
    let fails = place(&cluster, &node, &job("bad", "batch", json!({ "run_for": "10ms", "exit_code": 3 })));
    reaches(&cluster, &service, ClientStatus::Running).await;
    reaches(&cluster, &batch, ClientStatus::Complete).await;
    reaches(&cluster, &fails, ClientStatus::Failed).await;
    let told = cluster.alloc(&fails).unwrap().task_states["main"].clone();
    let ended = told.events.iter().find(|event| event.kind == "Terminated").unwrap();
    assert_eq!((ended.exit_code, told.failed), (3, true));
    assert!(!told.started_at.is_zero() && !told.finished_at.is_zero());
    cluster.stop(&service);
    reaches(&cluster, &service, ClientStatus::Complete).await;
    let id = super::runner::parse(&service).unwrap();
    assert!(agent.model.alloc(&id).is_some(), "it is kept until servers forget it");
    cluster.write(|state| state.collect(&service));
    let gone = async {
        while agent.model.alloc(&id).is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(gone).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_built_fails_with_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(Settings::default());
    let (agent, node) = start(&cluster, dir.path()).await;
    ready(&cluster, &node).await;
    let task = json!({ "Name": "main", "Driver": "docker", "Config": { "image": "redis" } });
    let text =
        json!({ "ID": "redis", "Type": "service", "TaskGroups": [{ "Name": "group", "Tasks": [task] }] });
    let alloc = place(&cluster, &node, &wire::Job::new(value(&text)));
    reaches(&cluster, &alloc, ClientStatus::Failed).await;
    let told = cluster.alloc(&alloc).unwrap().task_states["main"].clone();
    let failure = told.events.iter().find(|event| event.kind == "Setup Failure").unwrap();
    assert!(failure.display_message.contains("docker"), "{}", failure.display_message);
    assert_eq!((told.failed, told.state), (true, wire::RunState::Dead));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_starts_anew_finds_what_runs_and_tells_nothing_twice() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(Settings::default());
    let (agent, node) = start(&cluster, dir.path()).await;
    ready(&cluster, &node).await;
    let service = place(&cluster, &node, &job("web", "service", json!({ "run_for": "1h" })));
    reaches(&cluster, &service, ClientStatus::Running).await;
    let began = cluster.alloc(&service).unwrap().task_states["main"].started_at;
    agent.stop().await;
    let (agent, same) = start(&cluster, dir.path()).await;
    assert_eq!(node, same);
    let batch = place(&cluster, &node, &job("sum", "batch", json!({ "run_for": "10ms" })));
    reaches(&cluster, &batch, ClientStatus::Complete).await;
    let known = cluster.alloc(&service).unwrap();
    assert_eq!((known.client_status, known.task_states["main"].started_at), (ClientStatus::Running, began));
    assert_eq!(known.task_states["main"].restarts, 0);
    agent.stop().await;
}
