//! Calls from servers to a node, signed identities, and responses that cannot be decoded.

use std::sync::Arc;

use herdlet_nomad::{
    session::{Options, Session},
    wire::{ClientStatus, NodeStatus, Secret},
};
use herdlet_nomad_server::{Cluster, Fault, Fields, Lan, Settings};
use herdlet_rpc::{
    Service,
    error::{ErrorKind, Refusal},
    framed::{Framed, StreamFrame},
    mux::Io,
    pool::{Chance, Pool},
    serve::{Call, Peer, answer},
};
use serde_json::{Value, json};
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    runner::Bench,
    world::{described, identity, live, pool, ready, runs, seconds, within, world},
};

/// A node that accepts calls.
struct Called;

impl Service for Called {
    async fn call(&self, _: &Peer, call: Call) -> Result<Vec<u8>, Refusal> {
        match &call.method[..] {
            "ClientStats.Stats" => answer(&json!({ "HostStats": { "Uptime": 7 } })),
            "Allocations.Restart" => {
                let arguments: Value = call.arguments()?;
                Err(Refusal::Error(format!("Unknown allocation {}", arguments["AllocID"])))
            }
            _ => Err(Refusal::UnknownMethod),
        }
    }

    fn streams(&self, method: &str) -> bool {
        method == "FileSystem.Logs"
    }

    async fn stream(&self, _: &Peer, _: String, stream: &mut Framed<Box<dyn Io>>) {
        let arguments: Value = stream.arguments().await.unwrap();
        for line in 0..3 {
            let payload = format!("{} {line}\n", arguments["Task"].as_str().unwrap()).into_bytes();
            stream.send(&StreamFrame { payload, error: None }).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn servers_call_a_node_over_its_own_connection() {
    let cluster = Cluster::start(Settings { servers: 2, ..Settings::default() });
    let servers = vec!["s0:4647".parse().unwrap(), "s1:4647".parse().unwrap()];
    let pool = Pool::new(Arc::new(Called), "global".to_owned(), servers, Lan::new(&cluster), Chance::of(5));
    let id = identity(1).id;
    let error = cluster.call_node::<_, Value>(&id, "ClientStats.Stats", &json!({})).await.unwrap_err();
    assert!(error.to_string().contains("Unknown node"), "{error}");
    let living = live(Arc::new(pool), identity(1), Bench::default());
    ready(&cluster, &living.id).await;
    let stats: Value =
        cluster.call_node(&id, "ClientStats.Stats", &json!({ "NodeID": id.as_str() })).await.unwrap();
    assert_eq!(stats["HostStats"]["Uptime"], 7);
    let arguments = json!({ "AllocID": "x" });
    let restart = cluster.call_node::<_, Value>(&id, "Allocations.Restart", &arguments).await.unwrap_err();
    assert!(restart.to_string().contains("Unknown allocation"), "{restart}");
    let unknown = cluster.call_node::<_, Value>(&id, "Allocations.Dance", &json!({})).await.unwrap_err();
    assert!(unknown.to_string().contains("can't find method Allocations.Dance"), "{unknown}");
    let mut logs = cluster.stream_to_node(&id, "FileSystem.Logs", &json!({ "Task": "main" })).await.unwrap();
    let mut text = Vec::new();
    while let Some(frame) = logs.receive::<StreamFrame>().await.unwrap() {
        text.extend(frame.payload);
    }
    assert_eq!(text, b"main 0\nmain 1\nmain 2\n");
    let refused = cluster.stream_to_node(&id, "FileSystem.Dance", &json!({})).await.unwrap_err();
    assert!(refused.to_string().contains("Unknown rpc method"), "{refused}");
    // The server goes down; the node is called over its new connection.
    let used = cluster.seen("Node.UpdateStatus").last().unwrap().server;
    cluster.set_down(used, true);
    sleep(seconds(40)).await;
    let _: Value = cluster.call_node(&id, "ClientStats.Stats", &json!({})).await.unwrap();
    living.end().await;
    sleep(seconds(1)).await;
    let gone = cluster.call_node::<_, Value>(&id, "ClientStats.Stats", &json!({})).await.unwrap_err();
    assert!(gone.to_string().contains("No path to node"), "{gone}");
}

#[tokio::test(start_paused = true)]
async fn signed_node_identity_survives_restarts() {
    let introduction = Secret::from("introduction");
    let settings =
        Settings { tokens: true, signs: true, introduction: introduction.clone(), ..Settings::default() };
    let cluster = Cluster::start(settings);
    let begin = |introduction: Secret, signed: Secret| {
        let (node, description) = watch::channel(Arc::new(described()));
        let options = Options { introduction, signed, chance: Chance::of(3), ..Options::default() };
        let session = Session::new(pool(Lan::new(&cluster), &["s0"]), identity(1), description, options);
        let (signed, cancel) = (session.signed(), CancellationToken::new());
        (node, signed, tokio::spawn(session.run(Bench::default(), cancel.clone())), cancel)
    };
    let (_node, _, task, cancel) = begin(Secret::default(), Secret::default());
    sleep(seconds(60)).await;
    assert_eq!(cluster.status(&identity(1).id), None, "the node has no introduction token");
    cancel.cancel();
    task.await.unwrap();
    let (_node, signed, task, cancel) = begin(introduction, Secret::default());
    ready(&cluster, &identity(1).id).await;
    let first = signed.borrow().clone();
    assert!(!first.is_empty());
    sleep(seconds(100)).await;
    assert_eq!(*signed.borrow(), first, "servers sign no other while it is valid");
    cancel.cancel();
    task.await.unwrap();
    // Servers have forgotten the node: its identity is enough to register.
    cluster.write(|state| state.purge(&identity(1).id));
    let (_node, again, task, cancel) = begin(Secret::default(), first.clone());
    ready(&cluster, &identity(1).id).await;
    assert_eq!(*again.borrow(), first);
    // The identity is no longer valid.
    cluster.write(|state| state.signed.clear());
    within(90, "the node has a new one", || {
        let now = again.borrow().clone();
        !now.is_empty() && now != first
    })
    .await;
    cancel.cancel();
    task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn invalid_answers_stop_nothing() {
    let (cluster, living) = world(Settings { servers: 2, ..Settings::default() }).await;
    let id = cluster.place(&living.id, "job");
    runs(&cluster, &id).await;
    let methods =
        ["Node.UpdateStatus", "Node.GetClientAllocs", "Alloc.GetAllocs", "Node.UpdateAlloc", "Node.Register"];
    let faults = [
        Fault::WrongTypes,
        Fault::Raw(vec![0xc1]),
        Fault::Raw(vec![0x81]),
        Fault::Raw(vec![0xdf, 0xff, 0xff, 0xff, 0xff]),
        Fault::Raw(vec![0x91; 200]),
    ];
    for fault in &faults {
        for method in methods {
            cluster.fault(method, 1, fault);
        }
        let new = cluster.place(&living.id, "new");
        // A truncated response is waited for as long as any other.
        within(700, "the allocation runs", || cluster.client_status(&new) == ClientStatus::Running).await;
        within(60, "the node is ready", || cluster.status(&living.id) == Some(NodeStatus::Ready)).await;
    }
    assert_eq!(living.bench.see(|seen| (seen.removed.len(), seen.unreadable.len())), (0, 0));
    assert_eq!(cluster.client_status(&id), ClientStatus::Running);
}

#[tokio::test(start_paused = true)]
async fn missing_and_unknown_fields_are_accepted() {
    for fields in [Fields::Of(1, 1), Fields::New] {
        let (cluster, living) = world(Settings { fields, signs: true, ..Settings::default() }).await;
        let ids = cluster.place_many(&living.id, "job", 5);
        for id in &ids {
            runs(&cluster, id).await;
        }
        cluster.stop(&ids[0]);
        within(5, "the allocation has stopped", || cluster.client_status(&ids[0]) == ClientStatus::Complete)
            .await;
        cluster.write(|state| state.collect(&ids[0]));
        within(5, "the allocation is gone", || living.bench.ids() == ids[1..]).await;
        let eligibility = living.contact.borrow().eligibility.clone();
        let unsaid = eligibility == herdlet_nomad::wire::Eligibility::Unsaid;
        assert_eq!(unsaid, fields == Fields::Of(1, 1), "{eligibility}");
        cluster.write(|state| state.purge(&living.id));
        ready(&cluster, &living.id).await;
    }
}

#[tokio::test(start_paused = true)]
async fn servers_answer_what_a_test_says() {
    let cluster = Cluster::start(Settings::default());
    let (_node, description) = watch::channel(Arc::new(described()));
    let session =
        Session::new(pool(Lan::new(&cluster), &["s0"]), identity(1), description, Options::default());
    let queries = session.queries();
    let life = tokio::spawn(session.run(Bench::default(), CancellationToken::new()));
    let ask = |options| {
        let mut request = serde_json::to_value(&options).unwrap();
        request["SecretID"] = json!("user");
        request
    };
    let newer = herdlet_nomad::session::Newer::Now;
    let unknown = queries.ask::<_, Value>("ACL.ResolveToken", newer, ask).await.unwrap_err();
    let herdlet_rpc::error::CallError::Server(unknown) = unknown else { panic!("{unknown}") };
    assert_eq!(unknown.kind(), ErrorKind::Token, "ACLs are off");
    let unknown = queries.ask::<_, Value>("CSIVolume.Get", newer, ask).await.unwrap_err();
    let herdlet_rpc::error::CallError::Server(unknown) = unknown else { panic!("{unknown}") };
    assert_eq!(unknown.kind(), ErrorKind::UnknownMethod);
    cluster
        .set_answer("ACL.ResolveToken", &json!({ "Token": { "Type": "management" }, "Index": 3 }))
        .unwrap();
    let answer: Value = queries.ask("ACL.ResolveToken", newer, ask).await.unwrap();
    assert_eq!(answer["Token"]["Type"], "management");
    let asked = cluster.requests("ACL.ResolveToken");
    assert_eq!(asked[0].get("SecretID").unwrap().as_text(), Some("user"));
    let upsert = |options| {
        let mut request = serde_json::to_value(&options).unwrap();
        request["Services"] = json!([{ "ID": "_nomad-task-x", "ServiceName": "web" }]);
        request
    };
    let _: Value = queries.send_once("ServiceRegistration.Upsert", upsert).await.unwrap();
    assert_eq!(cluster.requests("ServiceRegistration.Upsert").len(), 1);
    life.abort();
}
