//! Servers that restart under load, again and again.

use std::{collections::BTreeMap, time::Duration};

use herdlet_nomad::wire::{AllocId, Allocation, ClientStatus, DesiredStatus, NodeStatus};
use herdlet_nomad_server::{Cluster, Fault, Lan, Settings};
use herdlet_rpc::pool::Chance;
use serde_json::json;
use tokio::time::sleep;

use crate::{
    runner::Bench,
    world::{Living, identity, live, pool, ready, within},
};

/// Number of server restarts.
const RESTARTS: usize = 1_000;

/// A random number below `most`.
fn draw(chance: &mut Chance, most: usize) -> usize {
    usize::try_from(chance.below(Duration::from_nanos(most as u64)).as_nanos()).unwrap()
}

/// Makes servers collect ended allocations; returns their final statuses.
fn collect(cluster: &Cluster) -> BTreeMap<AllocId, ClientStatus> {
    cluster.write(|state| {
        let is_over = |alloc: &&Allocation| {
            alloc.desired_status == DesiredStatus::Stop
                && matches!(alloc.client_status, ClientStatus::Complete | ClientStatus::Failed)
        };
        let over = state.allocs.values().filter(is_over);
        let over: BTreeMap<_, _> =
            over.map(|alloc| (alloc.id.clone(), alloc.client_status.clone())).collect();
        over.keys().for_each(|id| state.collect(id));
        over
    })
}

/// Nothing is lost, runs twice, or changes after its end.
#[tokio::test(start_paused = true)]
async fn a_thousand_server_restarts_lose_nothing() {
    let cluster = Cluster::start(Settings { servers: 3, ..Settings::default() });
    let mut chance = Chance::of(41);
    let mut nodes: Vec<Living> = Vec::new();
    for number in 1..=3 {
        let living = live(pool(Lan::new(&cluster), &["s0", "s1", "s2"]), identity(number), Bench::default());
        ready(&cluster, &living.id).await;
        nodes.push(living);
    }
    let job = |number: usize, count: usize, kind: &str| {
        let task = json!({ "Name": "main", "Driver": "mock", "Config": { "round": number / 7 } });
        let outlive = json!({ "LostAfter": 86_400_000_000_000_i64 });
        let group = json!({
            "Name": "group", "Count": count, "Tasks": [task], "Disconnect": outlive,
            "Update": { "MaxParallel": 2 },
            "ReschedulePolicy": { "Unlimited": true, "Delay": 1_000_000_000_i64 },
        });
        json!({ "ID": format!("job{}", number % 7), "Type": kind, "TaskGroups": [group] })
    };
    let (mut keys, mut collected) = (Vec::new(), BTreeMap::new());
    for number in 0..RESTARTS {
        // A user's action.
        match draw(&mut chance, 6) {
            0 | 1 => {
                let kind = if number % 7 == 3 { "batch" } else { "service" };
                keys.push(cluster.submit(&job(number, 1 + draw(&mut chance, 4), kind)).unwrap());
            }
            2 => keys.last().into_iter().for_each(|key| cluster.stop_job(key, false)),
            _ => {}
        }
        // A task's action.
        let node = &nodes[draw(&mut chance, nodes.len())];
        let runs = node.bench.see(|seen| {
            let is_running = |id: &&_| !seen.ended.contains_key(*id);
            seen.started.keys().filter(is_running).cloned().collect::<Vec<_>>()
        });
        if !runs.is_empty() && draw(&mut chance, 4) == 0 {
            let how = if draw(&mut chance, 2) == 0 { ClientStatus::Failed } else { ClientStatus::Complete };
            node.ends(&runs[draw(&mut chance, runs.len())], how);
        }
        // A server's action.
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
            collected.extend(collect(&cluster));
        }
        // Sometimes an agent restarts.
        if number % 50 == 7 {
            let node = draw(&mut chance, nodes.len());
            let before = nodes.remove(node);
            let id = before.id.clone();
            let bench = before.end().await;
            let number = (1..=3).find(|number| identity(*number).id == id).unwrap();
            let lan = Lan::new(&cluster);
            nodes.insert(node, live(pool(lan, &["s0", "s1", "s2"]), identity(number), bench));
        }
    }
    cluster.no_faults();
    let is_settled = || {
        cluster.read(|state| {
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
        })
    };
    within(600, "servers and nodes agree", is_settled).await;
    sleep(Duration::from_secs(60)).await;
    let (mut ran, mut placed) = (0, 0);
    for node in &nodes {
        node.bench.see(|seen| {
            for id in &seen.removed {
                assert_eq!(seen.ended.get(id), collected.get(id), "{id} was collected, as it had ended");
            }
            assert!(seen.started.values().all(|times| *times == 1));
            cluster.read(|state| {
                for alloc in state.of(&node.id) {
                    placed += 1;
                    let report = seen.state_of(&seen.allocs[&alloc.id]);
                    assert_eq!(report.client_status, alloc.client_status, "{}", alloc.id);
                    ran += usize::from(seen.started.contains_key(&alloc.id));
                }
            });
        });
    }
    cluster.read(|state| {
        for (id, reports) in &state.reports {
            let ended = reports.iter().position(|status| status.is_terminal()).unwrap_or(reports.len());
            let end = reports.get(ended);
            assert!(reports[ended..].iter().all(|status| Some(status) == end), "{id}: {reports:?}");
        }
    });
    assert!(
        collected.len() > 300 && placed > 5 && ran > 5,
        "{} were collected, {ran} of {placed} ran",
        collected.len()
    );
}
