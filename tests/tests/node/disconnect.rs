//! Nodes that are unreachable for longer than their TTL, with 200 allocations each: the job's policy decides
//! what happens.

use std::collections::BTreeSet;

use herdlet_nomad::wire::{AllocId, Allocation, ClientStatus, NodeStatus};
use herdlet_nomad_server::{Settings, state::Key};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::world::{Living, World, job, nanos, seconds, status};

/// Number of running allocations.
const MANY: usize = 200;

/// Servers, and a node that runs all allocations of a job; some tests add another node.
struct Story {
    world: World,
    node: Living,
    key: Key,
    first: Vec<AllocId>,
}

impl Story {
    async fn begin(group: Value) -> Self {
        let world = World::new(Settings::default());
        let node = world.ready_node(0).await;
        let mut group = group;
        group["Count"] = MANY.into();
        let key = world.submit(&job("many", "service", json!({ "run_for": "100000h" }), group));
        let run = |alloc: &Allocation| alloc.client_status == ClientStatus::Running;
        world
            .until(120, "all run", |state| state.allocs.len() == MANY && state.allocs.values().all(run))
            .await;
        let first = world.cluster.allocs_of(&key).into_iter().map(|alloc| alloc.id).collect();
        Self { world, node, key, first }
    }

    /// Makes the servers unreachable until they have missed the node, and for `more` seconds.
    async fn away(&self, more: u64, expected: ClientStatus) {
        self.world.cluster.set_down(0, true);
        self.until_all_first(expected).await;
        sleep(seconds(more)).await;
    }

    async fn back(&self) {
        self.world.cluster.set_down(0, false);
        self.world
            .until(120, "the node is ready again", |state| {
                status(state, &self.node.id) == Some(NodeStatus::Ready)
            })
            .await;
    }

    async fn until_all_first(&self, expected: ClientStatus) {
        let is_so = |id: &AllocId, state: &herdlet_nomad_server::state::State| {
            state.allocs.get(id).is_some_and(|alloc| alloc.client_status == expected)
        };
        let what = format!("all of the first are {expected}");
        self.world.until(200, what, |state| self.first.iter().all(|id| is_so(id, state))).await;
    }

    /// Waits until the wanted number runs, each once, and none of the first ones.
    async fn until_others_run(&self) {
        let first: BTreeSet<&AllocId> = self.first.iter().collect();
        let key = &self.key;
        self.world
            .until(200, "other allocations run", |state| {
                let of_job = state.allocs.values().filter(|alloc| alloc.job_id == key.1);
                let others = of_job.filter(|alloc| !first.contains(&alloc.id));
                let running = others.filter(|alloc| alloc.client_status == ClientStatus::Running);
                running.count() == MANY
            })
            .await;
    }

    fn here(&self, expected: &ClientStatus) -> usize {
        self.first.iter().filter(|id| self.node.status(id).as_ref() == Some(expected)).count()
    }

    /// Asserts that each was started once here, and that nothing unwanted runs.
    async fn end(self, placed: usize) {
        let allocs = self.world.cluster.allocs_of(&self.key);
        assert_eq!(allocs.len(), placed);
        for alloc in &allocs {
            assert_eq!(self.node.starts(&alloc.id), 1, "{}", alloc.id);
            assert_eq!(self.node.status(&alloc.id), Some(alloc.client_status.clone()), "{}", alloc.id);
        }
        self.node.end().await;
    }
}

/// Without a policy they are lost: killed when the node is back, and replaced.
#[tokio::test(start_paused = true)]
async fn lost_allocations_without_a_policy_are_replaced() {
    let story = Story::begin(json!({})).await;
    story.away(300, ClientStatus::Lost).await;
    assert_eq!(story.here(&ClientStatus::Running), MANY, "no server has requested the node to stop them");
    story.back().await;
    story.until_all_first(ClientStatus::Complete).await;
    story.until_others_run().await;
    story.end(2 * MANY).await;
}

/// `lost_after`, and `max_client_disconnect` before 1.8: within that time they keep running as if nothing had
/// happened.
#[tokio::test(start_paused = true)]
async fn within_lost_after_all_200_go_on() {
    for policy in
        [json!({ "Disconnect": { "LostAfter": nanos(600) } }), json!({ "MaxClientDisconnect": nanos(600) })]
    {
        let story = Story::begin(policy).await;
        story.away(200, ClientStatus::Unknown).await;
        assert_eq!(story.here(&ClientStatus::Running), MANY);
        story.back().await;
        story.until_all_first(ClientStatus::Running).await;
        sleep(seconds(60)).await;
        let states = |id: &AllocId| story.world.cluster.alloc(id).unwrap().task_states["main"].clone();
        for id in &story.first {
            let events = states(id).events;
            assert!(events.iter().any(|event| event.kind == "Reconnected"), "{id}: {events:?}");
            assert_eq!(states(id).restarts, 0);
        }
        story.end(MANY).await;
    }
}

/// After that time they are lost as without it.
#[tokio::test(start_paused = true)]
async fn after_lost_after_all_200_are_killed_and_replaced() {
    let story = Story::begin(json!({ "Disconnect": { "LostAfter": nanos(60) } })).await;
    story.away(0, ClientStatus::Unknown).await;
    story.until_all_first(ClientStatus::Lost).await;
    sleep(seconds(60)).await;
    assert_eq!(story.here(&ClientStatus::Running), MANY, "no server has requested the node to stop them");
    story.back().await;
    story.until_all_first(ClientStatus::Complete).await;
    story.until_others_run().await;
    story.end(2 * MANY).await;
}

/// `stop_on_client_after`, and `stop_after_client_disconnect` before 1.10: the node itself stops all of them
/// when this time has passed since the last answered heartbeat, not earlier and not much later (flaws 16 and
/// 17).
#[tokio::test(start_paused = true)]
async fn flaws_16_and_17_all_200_stop_on_their_node_to_the_tick() {
    for policy in [
        json!({ "Disconnect": { "StopOnClientAfter": nanos(90) } }),
        json!({ "StopAfterClientDisconnect": nanos(90) }),
    ] {
        let story = Story::begin(policy).await;
        story.world.cluster.set_down(0, true);
        let last = story.node.contact.borrow().last.unwrap().at;
        sleep((last + seconds(89)).saturating_duration_since(Instant::now())).await;
        assert_eq!(story.here(&ClientStatus::Running), MANY, "the time limit has not passed");
        sleep(seconds(3)).await;
        assert_eq!(story.here(&ClientStatus::Complete), MANY, "the time limit has passed");
        sleep(seconds(60)).await;
        story.back().await;
        story.until_all_first(ClientStatus::Complete).await;
        story.until_others_run().await;
        story.end(2 * MANY).await;
    }
}

/// If replacements run meanwhile, `reconcile` decides which ones stay.
#[tokio::test(start_paused = true)]
async fn reconcile_decides_between_replacements() {
    for (policy, back) in [
        (json!({ "LostAfter": nanos(3_600), "Reconcile": "keep_original" }), ClientStatus::Running),
        (json!({ "LostAfter": nanos(3_600), "Reconcile": "keep_replacement" }), ClientStatus::Complete),
        (json!({ "LostAfter": nanos(3_600), "Replace": false }), ClientStatus::Running),
    ] {
        let is_replaced = policy["Replace"] != json!(false);
        let mut story = Story::begin(json!({ "Disconnect": policy })).await;
        // The node goes away instead, because the other node needs the servers.
        let number = story.node.end().await;
        let other = story.world.ready_node(1).await;
        story
            .world
            .until(200, "the servers have missed the node", |state| {
                state.allocs.values().filter(|alloc| alloc.client_status == ClientStatus::Unknown).count()
                    == MANY
            })
            .await;
        sleep(seconds(60)).await;
        let elsewhere = |status: ClientStatus| {
            let allocs = story.world.cluster.allocs_of(&story.key);
            allocs.iter().filter(|alloc| alloc.node_id == other.id && alloc.client_status == status).count()
        };
        assert_eq!(elsewhere(ClientStatus::Running), if is_replaced { MANY } else { 0 });
        story.node = story.world.node(number).await;
        story.until_all_first(back.clone()).await;
        sleep(seconds(60)).await;
        let stays = back == ClientStatus::Running;
        let expected = if is_replaced && !stays { MANY } else { 0 };
        assert_eq!(elsewhere(ClientStatus::Running), expected);
        assert_eq!(story.here(&ClientStatus::Running), if stays { MANY } else { 0 });
        assert!(story.first.iter().all(|id| story.node.starts(id) == 1));
        other.end().await;
        story.node.end().await;
    }
}
