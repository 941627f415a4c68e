//! A whole agent as a node of stand-in servers, in one process: servers' allocations run, and servers know their state.

mod identities;
mod templates;

use herdlet_services::catalog::ConsulConfig;
use std::{
    fs,
    future::Future,
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::FutureExt as _;
use herdlet_agent::{
    agent::{self, Agent},
    instance::{self, Instance},
    present,
    publish::ReadModel,
    state_db::{StateDb, StateDir},
};
use herdlet_api_types::InstanceId;
use herdlet_base::{paths::Paths, test_env::TestEnv};
use herdlet_config::{DriverSettings, START_PRESSURE_LIMIT, artifact::Limits};
use herdlet_driver::Availability;
use herdlet_manifest::manifests::Drivers;
use herdlet_nomad::{
    identity::Identity,
    session::{Options, Session},
    wire::{
        self, AllocId, ClientStatus, Node, NodeId, Secret, queries,
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
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;

use super::{
    join::join,
    predecessor,
    snapshot::{Snapshots, tests::migrate_token},
};

/// An agent with the driver mock in this directory, as a node of the cluster.
async fn start(cluster: &Cluster, path: &Path) -> (Agent, NodeId) {
    let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
    start_at(cluster, path, http.local_addr().unwrap().to_string()).await
}

/// An agent that serves its disks to other nodes.
async fn start_giving(cluster: &Cluster, path: &Path) -> (Agent, NodeId, Identity) {
    let identity = Identity::load_or_create(&path.join("node"), None).unwrap();
    let paths = Paths { runtime: path.join("run"), state: path.to_owned() };
    let snapshots = Snapshots::new(paths, identity.secret.clone(), CancellationToken::new());
    let model: Arc<OnceLock<Arc<ReadModel>>> = Arc::default();
    let shown = Arc::clone(&model);
    let known = move |id| shown.get()?.alloc(&id).map(|view| Arc::clone(&view.spec));
    let address = predecessor::tests::serve(Arc::new(snapshots), known).await;
    let (agent, node) = start_at(cluster, path, address).await;
    assert!(model.set(Arc::clone(&agent.model)).is_ok());
    (agent, node, identity)
}

async fn start_at(cluster: &Cluster, path: &Path, http_addr: String) -> (Agent, NodeId) {
    let dir = StateDir::claim(path).unwrap();
    let paths = Paths { runtime: path.join("run"), state: path.to_owned() };
    let instance = Instance::open(instance::Options {
        instance: dir.instance().clone(),
        paths: paths.clone(),
        cgroup_parent: "herdlet-node-test".to_owned(),
        drivers: DriverSettings::all().with("raw_exec", Availability::Disabled),
        host: instance::Host::standalone(),
        network: herdlet_config::network::Network::default(),
        leash: None,
    })
    .unwrap();
    let state = StateDb::open(dir, &paths, present::now()).unwrap();
    let node = agent::node_facts(&instance);
    let settings = agent::planner_settings(InstanceId(node.id.clone()));
    let mut agent = Agent::start(agent::Parts {
        instance,
        state,
        node,
        settings,
        volumes: Vec::new(),
        consuls: [(
            "default".to_owned(),
            (ConsulConfig::resolve(None, None, |_| None).unwrap(), Default::default()),
        )]
        .into(),
        start_pressure_limit: START_PRESSURE_LIMIT,
        task_dir_users: Vec::new(),
        artifacts: Limits::default(),
        variables: agent::variables_in(&paths).unwrap(),
        issuer: Default::default(),
        vault: Default::default(),
        secrets_plugins: Path::new("/none").to_owned(),
        templates: herdlet_config::template::Template::default(),
        network: herdlet_config::network::Network::default(),
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
        http_addr,
        attributes: [("nomad.version".to_owned(), "1.6.5".to_owned())].into(),
        node_resources: Some(NodeResources::default()),
        reserved_resources: Some(ReservedResources::default()),
        ..Node::default()
    };
    let (_, node) = watch::channel(Arc::new(described));
    let session = Session::new(Arc::new(pool), identity, node, Options::default());
    let mover = predecessor::tests::mover(&paths, id.as_str());
    join(&mut agent, session, watch::channel(Drivers::built_in()).1, mover, std::future::ready(()));
    (agent, id)
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    // Longer than anything here takes.
    tokio::time::timeout(Duration::from_secs(180), what).await.expect("completion in time")
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

/// A job with one task with this config.
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
async fn placed_allocation_runs_ends_and_is_forgotten() {
    let dir = TestEnv::plain();
    let cluster = Cluster::start(Settings::default());
    let (agent, node) = start(&cluster, dir.path()).await;
    ready(&cluster, &node).await;
    let service = place(&cluster, &node, &job("web", "service", json!({ "run_for": "1h" })));
    let batch = place(&cluster, &node, &job("sum", "batch", json!({ "run_for": "10ms" })));
    let fails = place(&cluster, &node, &job("bad", "batch", json!({ "run_for": "10ms", "exit_code": 3 })));
    reaches(&cluster, &service, ClientStatus::Running).await;
    reaches(&cluster, &batch, ClientStatus::Complete).await;
    reaches(&cluster, &fails, ClientStatus::Failed).await;
    let task_state = cluster.alloc(&fails).unwrap().task_states["main"].clone();
    let ended = task_state.events.iter().find(|event| event.kind == "Terminated").unwrap();
    assert_eq!((ended.exit_code, task_state.failed), (3, true));
    assert!(!task_state.started_at.is_zero() && !task_state.finished_at.is_zero());
    cluster.stop(&service);
    reaches(&cluster, &service, ClientStatus::Complete).await;
    let id = super::runner::parse(&service).unwrap();
    assert!(agent.model.alloc(&id).is_some(), "the allocation is kept until servers forget it");
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
async fn unsupported_feature_fails_with_its_name() {
    let dir = TestEnv::plain();
    let cluster = Cluster::start(Settings::default());
    let (agent, node) = start(&cluster, dir.path()).await;
    ready(&cluster, &node).await;
    let task = json!({ "Name": "main", "Driver": "rkt", "Config": { "image": "redis" } });
    let text =
        json!({ "ID": "redis", "Type": "service", "TaskGroups": [{ "Name": "group", "Tasks": [task] }] });
    let alloc = place(&cluster, &node, &wire::Job::new(value(&text)));
    reaches(&cluster, &alloc, ClientStatus::Failed).await;
    let task_state = cluster.alloc(&alloc).unwrap().task_states["main"].clone();
    let failure = task_state.events.iter().find(|event| event.kind == "Setup Failure").unwrap();
    assert!(failure.display_message.contains("rkt"), "{}", failure.display_message);
    assert_eq!((task_state.failed, task_state.state), (true, wire::RunState::Dead));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_agent_adopts_and_repeats_no_report() {
    let dir = TestEnv::plain();
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

/// A service job whose one task wants an additional identity.
fn identified(id: &str, identity: Json) -> wire::Job {
    let task =
        json!({ "Name": "main", "Driver": "mock", "Config": { "run_for": "1h" }, "Identities": [identity] });
    let group = json!({ "Name": "group", "Tasks": [task], "RestartPolicy": { "Attempts": 0, "Mode": "fail", "Interval": 60_000_000_000_i64, "Delay": 1 } });
    wire::Job::new(value(&json!({ "ID": id, "Type": "service", "TaskGroups": [group] })))
}

fn signs() -> Settings {
    Settings { signs: true, identity_ttl: Duration::from_secs(3_600), ..Settings::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn signed_identity_survives_restarts_and_is_renewed() {
    let dir = TestEnv::plain();
    let cluster = Cluster::start(signs());
    let (agent, node) = start(&cluster, dir.path()).await;
    ready(&cluster, &node).await;
    let hour = 3_600_000_000_000_i64;
    let identity = json!({ "Name": "aws", "Audience": ["sts"], "File": true, "Env": true, "TTL": hour, "ChangeMode": "restart" });
    let alloc = place(&cluster, &node, &identified("web", identity));
    reaches(&cluster, &alloc, ClientStatus::Running).await;
    let paths = agent.context.paths.clone();
    let id = super::runner::parse(&alloc).unwrap();
    let file = paths.task(&id, "main").join("secrets/nomad_aws.jwt");
    let first = std::fs::read_to_string(&file).unwrap();
    assert!(first.starts_with(&format!("header.{alloc}-aws-")), "{first}");
    let asked = || cluster.seen("Alloc.SignIdentities").len();
    assert_eq!(asked(), 1);
    agent.stop().await;

    let (agent, _) = start(&cluster, dir.path()).await;
    ready(&cluster, &node).await;
    let other = place(&cluster, &node, &job("sum", "batch", json!({ "run_for": "10ms" })));
    reaches(&cluster, &other, ClientStatus::Complete).await;
    assert_eq!(
        (std::fs::read_to_string(&file).unwrap(), asked()),
        (first.clone(), 1),
        "no other identity is requested"
    );
    agent.stop().await;

    // Make the token due for renewal.
    let kept = paths.server_identities(&id).join("main");
    let mut text: Json = serde_json::from_slice(&std::fs::read(&kept).unwrap()).unwrap();
    assert!(text["aws"]["renew_at"].as_i64().unwrap() > 0);
    text["aws"]["renew_at"] = json!(1);
    std::fs::write(&kept, text.to_string()).unwrap();
    let (agent, _) = start(&cluster, dir.path()).await;
    let renewed = async {
        while asked() < 2 || std::fs::read_to_string(&file).unwrap_or_default() == first {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(renewed).await;
    let is_told = |state: &herdlet_nomad_server::state::State| {
        let events = &state.allocs[&alloc].task_states["main"].events;
        events.iter().any(|event| event.kind == "Restart Signaled" || event.kind == "Restarting")
    };
    within(cluster.until(is_told)).await;
    cluster.write(|state| state.collect(&alloc));
    let gone = async {
        while kept.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(gone).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_identity_fails_the_task_with_its_name() {
    let dir = TestEnv::plain();
    let cluster = Cluster::start(signs());
    let (agent, node) = start(&cluster, dir.path()).await;
    ready(&cluster, &node).await;
    let alloc_id = |state: &herdlet_nomad_server::state::State| state.allocs.keys().next().cloned();
    let (web, node_id) =
        (identified("web", json!({ "Name": "aws", "Audience": ["sts"], "Env": true })), node.clone());
    // Ids are sequential, so the id is known before the placement.
    let first = AllocId::from("00000001-0000-4000-8000-000000000001".to_owned());
    let rejection = queries::Rejection {
        alloc_id: first.clone(),
        identity_name: "aws".to_owned(),
        workload_identifier: "main".to_owned(),
        reason: "identity not found".to_owned(),
    };
    let answer = queries::SignResponse { rejections: vec![rejection], ..queries::SignResponse::default() };
    cluster.set_answer("Alloc.SignIdentities", &answer).unwrap();
    let alloc = place(&cluster, &node_id, &web);
    assert_eq!((cluster.read(alloc_id), &alloc), (Some(first.clone()), &first));
    reaches(&cluster, &alloc, ClientStatus::Failed).await;
    let task_state = cluster.alloc(&alloc).unwrap().task_states["main"].clone();
    let named = task_state.events.iter().any(|event| {
        let text = format!("{} {:?}", event.display_message, event.details);
        text.contains("aws") && text.contains("identity not found")
    });
    assert!(named, "{:?}", task_state.events);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leaving_node_ends_server_allocations() {
    let dir = TestEnv::plain();
    let cluster = Cluster::start(Settings::default());
    let (agent, node) = start(&cluster, dir.path()).await;
    ready(&cluster, &node).await;
    let service = place(&cluster, &node, &job("web", "service", json!({ "run_for": "1h" })));
    reaches(&cluster, &service, ClientStatus::Running).await;
    let id = super::runner::parse(&service).unwrap();
    let ended = || super::leave::ended(&agent.model, false);
    assert!(ended().now_or_never().is_none(), "the allocation runs");
    cluster.stop(&service);
    within(ended()).await;
    assert!(agent.model.alloc(&id).unwrap().status.is_terminal());
    agent.stop().await;
}

/// A service with this ephemeral disk.
fn keeping(id: &str, disk: Json) -> wire::Job {
    let task = json!({ "Name": "main", "Driver": "mock", "Config": { "run_for": "1h" } });
    let group = json!({ "Name": "group", "Tasks": [task], "EphemeralDisk": disk });
    wire::Job::new(value(&json!({ "ID": id, "Type": "service", "TaskGroups": [group] })))
}

/// Writes to both parts of an allocation's disk.
fn fill(path: &Path, alloc: &AllocId) {
    let top = path.join("alloc").join(alloc.to_string());
    fs::write(top.join("alloc/data/shared"), "shared").unwrap();
    fs::write(top.join("main/local/own"), "own").unwrap();
}

/// Which parts of the disk an allocation has.
fn filled(path: &Path, alloc: &AllocId) -> [bool; 2] {
    let top = path.join("alloc").join(alloc.to_string());
    [("alloc/data/shared", "shared"), ("main/local/own", "own")]
        .map(|(name, text)| fs::read_to_string(top.join(name)).is_ok_and(|read| read == text))
}

/// Replaces an allocation by another one.
fn replace(
    cluster: &Cluster,
    node: &NodeId,
    job: &wire::Job,
    previous: &AllocId,
    token: Option<Secret>,
) -> AllocId {
    cluster.write(|state| {
        let next = state.place(node, job, "group");
        state.change(&next, |alloc| alloc.previous_allocation = previous.to_string());
        state.migrate_tokens.extend(token.map(|token| (next.clone(), token)));
        next
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn sticky_disk_moves_on_the_same_node() {
    let dir = TestEnv::plain();
    let cluster = Cluster::start(Settings::default());
    let (agent, node) = start(&cluster, dir.path()).await;
    ready(&cluster, &node).await;
    for (id, disk, keeps) in [
        ("sticky", json!({ "Sticky": true }), true),
        ("migrates", json!({ "Migrate": true }), true),
        ("plain", json!({ "SizeMB": 10 }), false),
    ] {
        let job = keeping(id, disk);
        let first = place(&cluster, &node, &job);
        reaches(&cluster, &first, ClientStatus::Running).await;
        fill(dir.path(), &first);
        let next = replace(&cluster, &node, &job, &first, None);
        cluster.stop(&first);
        reaches(&cluster, &next, ClientStatus::Running).await;
        assert_eq!(
            cluster.client_status(&first),
            ClientStatus::Complete,
            "the first allocation ended before"
        );
        assert_eq!(
            (filled(dir.path(), &next), filled(dir.path(), &first)),
            ([keeps; 2], [!keeps; 2]),
            "{id}"
        );
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disk_migrates_only_with_the_right_token() {
    let (here, there) = (TestEnv::plain(), TestEnv::plain());
    let cluster = Cluster::start(Settings::default());
    let (old, old_node, identity) = start_giving(&cluster, there.path()).await;
    let (new, new_node) = start(&cluster, here.path()).await;
    ready(&cluster, &old_node).await;
    ready(&cluster, &new_node).await;
    let secret = identity.secret.reveal();
    for (id, is_right, migrates) in [("right", true, true), ("wrong", false, true), ("sticky", true, false)] {
        let job = keeping(id, json!({ "Sticky": true, "Migrate": migrates }));
        let first = place(&cluster, &old_node, &job);
        reaches(&cluster, &first, ClientStatus::Running).await;
        fill(there.path(), &first);
        let token = migrate_token(if is_right { secret } else { "another" }, first.as_str());
        let next = replace(&cluster, &new_node, &job, &first, Some(token));
        cluster.stop(&first);
        reaches(&cluster, &next, ClientStatus::Running).await;
        assert_eq!(
            cluster.client_status(&first),
            ClientStatus::Complete,
            "the first allocation ended before"
        );
        assert_eq!(filled(here.path(), &next), [is_right && migrates; 2], "{id}");
        assert_eq!(
            filled(there.path(), &first),
            [true; 2],
            "{id}: the old node keeps it until it is collected"
        );
    }
    let left = fs::read_dir(here.path().join("alloc")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.into_iter().all(|name| !name.as_encoded_bytes().starts_with(b".")));
    old.stop().await;
    new.stop().await;
}

/// The agent stops while an allocation waits for one on another node: the next agent keeps waiting, and still has the token.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_a_disk_outlives_the_agent() {
    let (here, there) = (TestEnv::plain(), TestEnv::plain());
    let cluster = Cluster::start(Settings::default());
    let (old, old_node, identity) = start_giving(&cluster, there.path()).await;
    let (new, new_node) = start(&cluster, here.path()).await;
    ready(&cluster, &old_node).await;
    ready(&cluster, &new_node).await;
    let job = keeping("web", json!({ "Migrate": true }));
    let first = place(&cluster, &old_node, &job);
    reaches(&cluster, &first, ClientStatus::Running).await;
    fill(there.path(), &first);
    let token = migrate_token(identity.secret.reveal(), first.as_str());
    let next = replace(&cluster, &new_node, &job, &first, Some(token));
    let id = super::runner::parse(&next).unwrap();
    let known = async {
        while new.model.alloc(&id).is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(known).await;
    new.stop().await;
    let (new, _) = start(&cluster, here.path()).await;
    cluster.stop(&first);
    reaches(&cluster, &next, ClientStatus::Running).await;
    assert_eq!(filled(here.path(), &next), [true; 2]);
    old.stop().await;
    new.stop().await;
}
