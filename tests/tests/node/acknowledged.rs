//! The agent remembers across restarts which reports the servers have acknowledged. It reports changes only,
//! or everything if the servers may have lost reports.

use herdlet_nomad::wire::{AllocId, ClientStatus, DesiredStatus};
use herdlet_nomad_server::Settings;
use serde_json::json;
use tokio::time::sleep;

use crate::world::{Living, World, job, seconds};

const FOR_EVER: &str = "100000h";

/// Starts a node with `count` allocations that run for ever and that servers know as running.
async fn running(world: &World, count: usize) -> (Living, Vec<AllocId>) {
    let node = world.ready_node(0).await;
    let text = job("web", "service", json!({ "run_for": FOR_EVER }), json!({}));
    let ids: Vec<_> = (0..count).map(|_| world.place(&node, &text)).collect();
    for id in &ids {
        world.reaches(id, ClientStatus::Running).await;
    }
    settle().await;
    (node, ids)
}

/// Waits until non-urgent reports are sent, and acknowledgements are stored.
async fn settle() {
    sleep(seconds(8)).await;
}

/// Returns the number of reports for each allocation.
fn report_counts(world: &World, ids: &[AllocId]) -> Vec<usize> {
    world.cluster.read(|state| ids.iter().map(|id| state.reports[id].len()).collect())
}

fn calls(world: &World) -> usize {
    world.cluster.seen("Node.UpdateAlloc").len()
}

/// Asserts that the next agent reports each allocation exactly once more.
async fn assert_reported_again(world: &World, node: Living, ids: &[AllocId]) -> Living {
    let before = report_counts(world, ids);
    let node = world.again(node).await;
    world.ready(&node).await;
    sleep(seconds(30)).await;
    assert!(report_counts(world, ids).iter().zip(&before).all(|(now, before)| *now == before + 1));
    node
}

#[tokio::test(start_paused = true)]
async fn restarted_agent_reports_only_changes() {
    let world = World::new(Settings::default());
    let (node, ids) = running(&world, 20).await;
    let ends = world.place(&node, &job("sum", "batch", json!({ "run_for": "15s" }), json!({})));
    world.reaches(&ends, ClientStatus::Running).await;
    settle().await;
    let before = (report_counts(&world, &ids), calls(&world));
    // The tasks keep running without an agent.
    let number = node.end().await;
    sleep(seconds(9)).await;
    let node = world.node(number).await;
    world.reaches(&ends, ClientStatus::Complete).await;
    world.ready(&node).await;
    sleep(seconds(60)).await;
    assert_eq!((report_counts(&world, &ids), calls(&world)), (before.0.clone(), before.1 + 1));
    // After several restarts, ended allocations are not reported again either.
    let mut node = node;
    for _ in 0..3 {
        node = world.again(node).await;
        world.ready(&node).await;
        sleep(seconds(20)).await;
    }
    assert_eq!((report_counts(&world, &ids), calls(&world)), (before.0, before.1 + 1));
    // The node forgets an allocation that the servers have forgotten, with its next report.
    world.cluster.write(|state| state.collect(&ends));
    world.cluster.stop(&ids[0]);
    world.reaches(&ids[0], ClientStatus::Complete).await;
    settle().await;
    let kept = std::fs::read_to_string(node.paths.node().join("acknowledged")).unwrap();
    assert!(kept.contains(ids[1].as_str()) && !kept.contains(ends.as_str()), "{kept}");
    node.end().await;
}

/// Servers give a node no new work until it has reported all allocations.
#[tokio::test(start_paused = true)]
async fn missed_heartbeat_repeats_all_reports() {
    let world = World::new(Settings { outlive: true, ..Settings::default() });
    let (node, ids) = running(&world, 5).await;
    let before = report_counts(&world, &ids);
    let number = node.end().await;
    world
        .until(60, "the allocations are unknown", |state| {
            state.allocs.values().all(|alloc| alloc.client_status == ClientStatus::Unknown)
        })
        .await;
    let node = world.node(number).await;
    world.ready(&node).await;
    for id in &ids {
        world.reaches(id, ClientStatus::Running).await;
    }
    sleep(seconds(30)).await;
    assert!(report_counts(&world, &ids).iter().zip(before).all(|(now, before)| *now > before));
    node.end().await;
}

/// Even if the servers' index has by now passed that of the acknowledged reports.
#[tokio::test(start_paused = true)]
async fn restored_servers_get_all_reports() {
    let world = World::new(Settings::default());
    let (node, ids) = running(&world, 5).await;
    let kept = world.cluster.read(Clone::clone);
    world.cluster.stop(&ids[0]);
    world.reaches(&ids[0], ClientStatus::Complete).await;
    settle().await;
    let number = node.end().await;
    world.cluster.write(|state| {
        state.restore(kept);
        for _ in 0..30 {
            state.change(&ids[0], |alloc| alloc.desired_status = DesiredStatus::Stop);
        }
    });
    assert_eq!(world.cluster.client_status(&ids[0]), ClientStatus::Running);
    let before = report_counts(&world, &ids);
    let node = world.node(number).await;
    world.reaches(&ids[0], ClientStatus::Complete).await;
    sleep(seconds(30)).await;
    assert!(report_counts(&world, &ids).iter().zip(before).all(|(now, before)| *now == before + 1));
    node.end().await;
}

#[tokio::test(start_paused = true)]
async fn lost_acknowledgements_repeat_all_reports() {
    let world = World::new(Settings::default());
    let (node, ids) = running(&world, 3).await;
    let path = node.paths.node().join("acknowledged");
    let kept = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, &kept[..kept.len() / 2]).unwrap();
    let node = assert_reported_again(&world, node, &ids).await;
    std::fs::remove_file(&path).unwrap();
    let node = assert_reported_again(&world, node, &ids).await;
    // An older file, as from a backup.
    std::fs::write(&path, kept).unwrap();
    let node = assert_reported_again(&world, node, &ids).await;
    node.end().await;
}
