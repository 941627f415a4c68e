//! Servers that stop and start under load, again and again, and agents that restart meanwhile.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use herdlet_nomad::wire::{AllocId, Allocation, ClientStatus, DesiredStatus, NodeId, NodeStatus};
use herdlet_nomad_server::{Fault, Settings, state::State};
use herdlet_rpc::pool::Chance;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::world::{Living, World, job, nanos};

/// Number of server restarts.
const RESTARTS: usize = 1_000;

/// Returns a random number below `most`.
fn draw(chance: &mut Chance, most: usize) -> usize {
    usize::try_from(chance.below(Duration::from_nanos(most as u64)).as_nanos()).unwrap()
}

/// Returns the next version of one of seven jobs: some complete or fail, some have several allocations, all
/// outlive their servers.
fn some_job(number: usize, chance: &mut Chance) -> Value {
    let (id, count) = (number % 7, 1 + draw(chance, 4));
    let (kind, config) = match id {
        3 => ("batch", json!({ "run_for": format!("{}s", 1 + draw(chance, 6)) })),
        5 => (
            "service",
            json!({ "run_for": format!("{}s", 5 + draw(chance, 40)), "exit_code": draw(chance, 2) }),
        ),
        _ => ("service", json!({ "run_for": "100000h", "kill_after": format!("{}ms", draw(chance, 700)) })),
    };
    let group = json!({
        "Count": count, "Meta": { "version": number.to_string() },
        "Disconnect": { "LostAfter": nanos(86_400) },
        "Update": { "MaxParallel": 2, "HealthCheck": "task_states", "MinHealthyTime": nanos(1), "HealthyDeadline": nanos(60), "ProgressDeadline": nanos(120) },
        "ReschedulePolicy": { "Unlimited": true, "Delay": nanos(1) },
    });
    job(&format!("job{id}"), kind, config, group)
}

/// Ended allocations that servers have forgotten: the last status, and the number of starts.
#[derive(Default)]
struct Collected(BTreeMap<AllocId, (ClientStatus, usize)>);

impl Collected {
    fn collect(&mut self, world: &World, nodes: &[Living]) {
        let is_over = |alloc: &&Allocation| {
            alloc.desired_status == DesiredStatus::Stop
                && matches!(alloc.client_status, ClientStatus::Complete | ClientStatus::Failed)
        };
        let over: Vec<Allocation> =
            world.cluster.read(|state| state.allocs.values().filter(is_over).cloned().collect());
        for alloc in &over {
            let starts = node_with(nodes, &alloc.node_id).starts(&alloc.id);
            self.0.insert(alloc.id.clone(), (alloc.client_status.clone(), starts));
        }
        world.cluster.write(|state| over.iter().for_each(|alloc| state.collect(&alloc.id)));
    }
}

fn node_with<'a>(nodes: &'a [Living], id: &NodeId) -> &'a Living {
    nodes.iter().find(|living| living.id == *id).unwrap()
}

/// No allocation is lost, none runs twice, and none changes after its end.
#[tokio::test(start_paused = true)]
async fn a_thousand_server_restarts_lose_nothing() {
    let world = World::new(Settings { servers: 3, ..Settings::default() });
    let cluster = &world.cluster;
    let mut chance = Chance::of(41);
    let mut nodes = Vec::new();
    for number in 0..3 {
        nodes.push(world.ready_node(number).await);
    }
    let (mut keys, mut collected) = (BTreeSet::new(), Collected::default());
    for number in 0..RESTARTS {
        // Actions of users.
        match draw(&mut chance, 12) {
            0 | 1 => drop(keys.insert(world.submit(&some_job(number, &mut chance)))),
            2 if !keys.is_empty() => {
                let key = keys.iter().nth(draw(&mut chance, keys.len())).unwrap();
                cluster.stop_job(key, false);
            }
            _ => {}
        }
        // Actions of servers.
        let server = draw(&mut chance, 3);
        match draw(&mut chance, 4) {
            0 => {
                cluster.lead(None);
                cluster.set_down(server, true);
                sleep(chance.below(Duration::from_secs(3))).await;
                cluster.lead(Some((server + 1) % 3));
            }
            1 => {
                cluster.freeze(server);
                cluster.fault("Node.UpdateAlloc", 1, &Fault::Drop);
                cluster.set_down((server + 1) % 3, true);
                sleep(chance.below(Duration::from_millis(300))).await;
                cluster.set_down((server + 1) % 3, false);
                cluster.thaw(server);
            }
            2 => {
                cluster.fault("Alloc.GetAllocs", 1, &Fault::Drop);
                cluster.set_down(server, true);
            }
            _ => cluster.set_down(server, true),
        }
        sleep(chance.below(Duration::from_millis(1_500))).await;
        cluster.set_down(server, false);
        if number % 20 == 19 {
            collected.collect(&world, &nodes);
        }
        // Now and then an agent restarts.
        if number % 50 == 7 {
            let before = nodes.remove(draw(&mut chance, nodes.len()));
            nodes.push(world.again(before).await);
        }
    }
    cluster.no_faults();
    // A job that ends and is replaced for ever never settles.
    cluster.stop_job(&("default".to_owned(), "job5".to_owned()), false);
    world.until(900, "servers and nodes agree", is_settled).await;
    sleep(Duration::from_secs(60)).await;
    let (mut ran, mut placed) = (0, 0);
    let here: Vec<Allocation> = cluster.read(|state| state.allocs.values().cloned().collect());
    for alloc in &here {
        let node = node_with(&nodes, &alloc.node_id);
        let starts = node.starts(&alloc.id);
        assert!(starts <= 1, "{} was started {starts} times", alloc.id);
        assert!(
            starts == 1 || alloc.client_status != ClientStatus::Running,
            "{} is reported as running, but never started",
            alloc.id
        );
        // An allocation that was stopped before its node heard of it never reached the node.
        let status = node.status(&alloc.id);
        assert!(
            status.is_none_or(|status| status == alloc.client_status),
            "the node has another status of {}",
            alloc.id
        );
        (placed, ran) = (placed + 1, ran + starts);
    }
    for node in &nodes {
        for view in node.agent.model.allocs() {
            let id = AllocId::from(view.spec.id.to_string());
            assert!(
                here.iter().any(|alloc| alloc.id == id),
                "servers have forgotten {id}, but the node has it"
            );
        }
    }
    assert!(collected.0.values().all(|(_, starts)| *starts <= 1), "an allocation was started twice");
    cluster.read(|state| {
        for (id, reports) in &state.reports {
            let ended = reports.iter().position(ClientStatus::is_terminal).unwrap_or(reports.len());
            let end = reports.get(ended);
            assert!(reports[ended..].iter().all(|status| Some(status) == end), "{id}: {reports:?}");
            let known = state.allocs.get(id).map(|alloc| &alloc.client_status);
            let known = known.or(collected.0.get(id).map(|(status, _)| status));
            assert_eq!(known, reports.last(), "{id}");
        }
    });
    for key in &keys {
        let job = cluster.read(|state| state.jobs[key].clone());
        let wanted = if job.is_stopped { 0 } else { job.spec.task_groups[0].count() };
        let is_batch = job.spec.kind == "batch";
        assert!(is_batch || world.desired_allocs(key).len() == wanted, "{key:?}");
    }
    let total = collected.0.len();
    assert!(total > 200 && placed > 5 && ran > 5, "{total} were collected, {ran} of {placed} ran");
    for node in nodes {
        node.end().await;
    }
}

fn is_settled(state: &State) -> bool {
    let ready = state.nodes.values().all(|stored| stored.node.status == NodeStatus::Ready);
    ready
        && state.allocs.values().all(|alloc| match alloc.desired_status {
            DesiredStatus::Run => !matches!(
                alloc.client_status,
                ClientStatus::Pending | ClientStatus::Unknown | ClientStatus::Lost
            ),
            DesiredStatus::Stop | DesiredStatus::Evict => alloc.client_status.is_terminal(),
            DesiredStatus::Unsaid | DesiredStatus::Other(_) => false,
        })
}
