//! Servers that answer slowly, wrongly, partially or not at all, and servers of other versions: a whole agent
//! keeps its tasks running.

use std::time::Duration;

use herdlet_nomad::wire::{AllocId, Allocation, ClientStatus, NodeStatus};
use herdlet_nomad_server::{Fault, Fields, Settings};
use serde_json::json;
use tokio::time::sleep;

use crate::world::{Living, World, job, seconds, status, within};

const METHODS: [&str; 5] =
    ["Node.UpdateStatus", "Node.GetClientAllocs", "Alloc.GetAllocs", "Node.UpdateAlloc", "Node.Register"];

/// Starts a node with an allocation that runs for ever.
async fn begin(settings: Settings) -> (World, Living, AllocId) {
    let world = World::new(settings);
    let node = world.ready_node(0).await;
    let id = world.place(&node, &forever());
    world.reaches(&id, ClientStatus::Running).await;
    (world, node, id)
}

fn forever() -> serde_json::Value {
    job("web", "service", json!({ "run_for": "100000h" }), json!({}))
}

/// Asserts that a new allocation starts, that the old one still runs, and that each was started once.
async fn goes_on(world: &World, node: &Living, old: &AllocId) {
    let new = world.place(node, &forever());
    let runs = |id: &AllocId| {
        let id = id.clone();
        world.until(700, "it runs", move |state| state.allocs[&id].client_status == ClientStatus::Running)
    };
    runs(&new).await;
    runs(old).await;
    world.until(90, "the node is ready", |state| status(state, &node.id) == Some(NodeStatus::Ready)).await;
    assert_eq!((node.starts(&new), node.starts(old)), (1, 1));
    world.cluster.stop(&new);
    world
        .until(700, "it has ended", |state| state.allocs[&new].client_status == ClientStatus::Complete)
        .await;
}

#[tokio::test(start_paused = true)]
async fn faulty_answers_stop_nothing() {
    let (world, node, id) = begin(Settings { servers: 2, ..Settings::default() }).await;
    let faults = [
        Fault::WrongTypes,
        Fault::Raw(vec![0xc1]),
        Fault::Raw(vec![0x81]),
        // More entries, and deeper nesting, than any reader accepts.
        Fault::Raw(vec![0xdf, 0xff, 0xff, 0xff, 0xff]),
        Fault::Raw(vec![0x91; 200]),
        Fault::Slow(Duration::from_secs(12)),
        Fault::Late("rpc error: EOF".to_owned()),
        Fault::Drop,
        Fault::Hang,
        Fault::EmptyList(1),
    ];
    for fault in &faults {
        for method in METHODS {
            cluster_fault(&world, method, fault);
        }
        goes_on(&world, &node, &id).await;
        world.cluster.no_faults();
    }
    node.end().await;
}

/// Only a list of allocations can be empty.
fn cluster_fault(world: &World, method: &str, fault: &Fault) {
    if !matches!(fault, Fault::EmptyList(_)) || method == "Node.GetClientAllocs" {
        world.cluster.fault(method, 1, fault);
    }
}

/// In the handshake, in a header, in the middle of a list, of a report, of a response.
#[tokio::test(start_paused = true)]
async fn connections_may_break_at_any_byte() {
    let (world, node, id) = begin(Settings { servers: 2, ..Settings::default() }).await;
    for bytes in (0..40).step_by(5).chain((40..4_000).step_by(330)) {
        (0..3).for_each(|more| world.lan.cut_after(bytes + more));
        for server in [0, 1] {
            world.cluster.set_down(server, true);
        }
        sleep(Duration::from_millis(500)).await;
        for server in [0, 1] {
            world.cluster.set_down(server, false);
        }
        goes_on(&world, &node, &id).await;
    }
    node.end().await;
}

#[tokio::test(start_paused = true)]
async fn lost_leaders_stop_nothing() {
    let (world, node, id) = begin(Settings { servers: 3, ..Settings::default() }).await;
    for round in 0..5 {
        world.cluster.lead(None);
        sleep(seconds(10 * round)).await;
        world.cluster.lead(Some(usize::try_from(round).unwrap() % 3));
        goes_on(&world, &node, &id).await;
    }
    node.end().await;
}

/// An agent that is killed before its full disk has stored the tokens loses them.
#[tokio::test(start_paused = true)]
async fn tokens_lost_in_a_crash_are_requested_again() {
    let settings = Settings { fields: Fields::Of(1, 6), signs: true, ..Settings::default() };
    let world = World::new(settings);
    let node = world.ready_node(0).await;
    let key = world.submit(&forever());
    let is_running = |alloc: &Allocation| alloc.client_status == ClientStatus::Running;
    world.until(90, "the allocation runs", |state| state.allocs.values().any(is_running)).await;
    let id = world.cluster.allocs_of(&key)[0].id.clone();
    let file = node.paths.server_tokens(&id.as_str().parse().map(herdlet_api_types::AllocId).unwrap());
    let signed = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let node = world.again(node).await;
    within(60, "they are there", || std::fs::read(&file).is_ok_and(|found| found == signed)).await;
    assert_eq!((node.status(&id), node.starts(&id)), (Some(ClientStatus::Running), 1));
    node.end().await;
}

#[tokio::test(start_paused = true)]
async fn servers_of_any_version_are_understood() {
    // From 1.9 and 1.10 on, all calls of a node need its secret; from 1.11 on, servers sign identities for
    // nodes.
    for (fields, tokens, signs) in [
        (Fields::Of(1, 1), false, false),
        (Fields::Of(1, 6), false, true),
        (Fields::Of(1, 10), true, true),
        (Fields::Of(2, 0), true, true),
        (Fields::New, true, true),
    ] {
        let settings = Settings { fields, tokens, signs, ..Settings::default() };
        let (world, node, id) = begin(settings).await;
        goes_on(&world, &node, &id).await;
        let node = world.again(node).await;
        goes_on(&world, &node, &id).await;
        world.cluster.stop(&id);
        world.reaches(&id, ClientStatus::Complete).await;
        node.end().await;
    }
}
