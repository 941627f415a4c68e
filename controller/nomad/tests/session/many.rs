//! Many nodes in one process, and the cost of each.

use herdlet_nomad::wire::{ClientStatus, Job, NodeStatus, queries::AllocsResponse};
use herdlet_nomad_server::{Cluster, Lan, Settings, state::State};
use herdlet_rpc::codec::{self, Extent, Limits, Value};
use tokio::time::sleep;

use crate::{
    runner::Bench,
    world::{Living, identity, live, pool, seconds},
};

/// Resident memory of this process, in bytes.
fn memory() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find(|line| line.starts_with("Rss:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// A job from an allocation that a stock server has sent.
fn recorded_job() -> Job {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/nomad/recordings/1.6.5/05-alloc-ops.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let answers = text.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).unwrap();
        let is_it = message["method"] == "Alloc.GetAllocs" && message["kind"] == "response";
        is_it.then(|| message["hex"].as_str().unwrap().to_owned())
    });
    let jobs = answers.filter_map(|hex| {
        let pairs = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        let bytes: Vec<_> = pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
        let header = Extent::new(Limits::HEADER).of(&bytes).unwrap().unwrap();
        let answer: AllocsResponse = codec::decode(&bytes[header..]).unwrap();
        answer.allocs.first().map(|alloc| alloc.job.clone())
    });
    jobs.max_by_key(|job| codec::encode(job).unwrap().len()).unwrap()
}

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

/// Measures both sides: the stand-in servers hold their part of each connection. `HERDLET_TEST_NODES` sets the number; the default is 200.
#[tokio::test(start_paused = true)]
async fn many_nodes_live_in_one_process() {
    let count = std::env::var("HERDLET_TEST_NODES").ok().map_or(200, |count| count.parse().unwrap());
    let cluster = Cluster::start(Settings { servers: 3, ..Settings::default() });
    cluster.forget_calls();
    let (memory_before, tasks_before) = (memory(), tasks());
    let nodes: Vec<Living> = (1..=count)
        .map(|number| {
            let pool = pool(Lan::new(&cluster), &["s0", "s1", "s2"]);
            live(pool, identity(number), Bench::default())
        })
        .collect();
    let all_have = |status: NodeStatus| {
        move |state: &State| {
            state.nodes.len() == count && state.nodes.values().all(|stored| stored.node.status == status)
        }
    };
    cluster.until(all_have(NodeStatus::Ready)).await;
    let (idle, idle_tasks) = (memory(), tasks());
    let job = recorded_job();
    let group = job.value().get("TaskGroups").and_then(|groups| match groups {
        Value::List(groups) => groups[0].get("Name")?.as_text().map(str::to_owned),
        Value::Nil
        | Value::Bool(_)
        | Value::Int(_)
        | Value::Uint(_)
        | Value::Float(_)
        | Value::Text(_)
        | Value::Bytes(_)
        | Value::Map(_) => None,
    });
    let group = group.unwrap();
    let ids: Vec<_> = cluster.write(|state| {
        let slots = nodes.iter().flat_map(|node| std::iter::repeat_n(&node.id, 10));
        slots.map(|node| state.place(node, &job, &group)).collect()
    });
    cluster.until(|state| ids.iter().all(|id| state.allocs[id].client_status == ClientStatus::Running)).await;
    sleep(seconds(60)).await;
    assert!(cluster.read(all_have(NodeStatus::Ready)), "all heartbeats were in time");
    assert!(ids.iter().all(|id| cluster.reports(id) == [ClientStatus::Running]), "each was reported once");
    let each = |bytes: usize| bytes.saturating_sub(memory_before) / 1024 / count;
    println!(
        "{count} nodes: {} KiB each idle, {} KiB each with 10 allocations; {} tasks each, both sides; a node's own has {} bytes",
        each(idle),
        each(memory()),
        (idle_tasks - tasks_before) as f64 / count as f64,
        nodes[0].size,
    );
}
