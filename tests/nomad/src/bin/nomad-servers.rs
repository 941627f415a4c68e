//! Stand-in servers to try a node without a cluster: `cargo run -p herdlet-nomad-server --bin nomad-servers -- [PORT]
//! [JOB.json…]`.
//!
//! In: a port of loopback, jobs in the JSON of Nomad's API, and lines: `run JOB.json`, `stop JOB`, `purge JOB`,
//! `drain`, `collect`, `status`. Out: the state of nodes and allocations, on each change. The servers keep their state
//! in memory, and place jobs simply.

use std::{io::BufRead as _, process::ExitCode, time::Duration};

use herdlet_nomad::wire::node::DrainStrategy;
use herdlet_nomad_server::{Cluster, Settings, state::State};
use tokio::sync::mpsc;

const WORDS: &str = "run JOB.json, stop JOB, purge JOB, drain, collect, status";

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.peek().is_some_and(|first| first.starts_with('-')) {
        println!("usage: nomad-servers [PORT] [JOB.json…]; then lines: {WORDS}");
        return ExitCode::SUCCESS;
    }
    let port = arguments
        .next_if(|first| first.parse::<u16>().is_ok())
        .and_then(|port| port.parse().ok())
        .unwrap_or(4647);
    let cluster = Cluster::start(Settings::default());
    let listener = match cluster.listen_at(port).await {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("failed to listen on port {port}: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("servers at {}", listener.address);
    for path in arguments {
        command(&cluster, &format!("run {path}"));
    }
    let (send, mut lines) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if send.blocking_send(line).is_err() {
                break;
            }
        }
    });
    let mut printed = String::new();
    loop {
        tokio::select! {
            Some(line) = lines.recv() => command(&cluster, line.trim()),
            () = tokio::time::sleep(Duration::from_millis(200)) => {}
        }
        let now = cluster.read(state_text);
        if now != printed {
            print!("{now}");
            printed = now;
        }
    }
}

fn command(cluster: &Cluster, line: &str) {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    let key = ("default".to_owned(), rest.to_owned());
    match word {
        "run" => match read(rest).and_then(|job| cluster.submit(&job)) {
            Ok((_, id)) => println!("job {id} is submitted"),
            Err(error) => println!("{rest}: {error}"),
        },
        "stop" => cluster.stop_job(&key, false),
        "purge" => cluster.stop_job(&key, true),
        "drain" => cluster.write(|state| {
            let nodes: Vec<_> = state.nodes.keys().cloned().collect();
            for node in nodes {
                state.drain(
                    &node,
                    Some(DrainStrategy { deadline: 3_600_000_000_000, ..DrainStrategy::default() }),
                );
            }
        }),
        "collect" => cluster.write(|state| {
            let over = state.allocs.values().filter(|alloc| alloc.client_status.is_terminal());
            let over: Vec<_> = over.map(|alloc| alloc.id.clone()).collect();
            over.iter().for_each(|id| state.collect(id));
        }),
        "status" => print!("{}", cluster.read(state_text)),
        "" => {}
        other => println!("unknown command {other:?}; known: {WORDS}"),
    }
}

fn read(path: &str) -> Result<serde_json::Value, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let mut job: serde_json::Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    Ok(job.get_mut("Job").map(serde_json::Value::take).unwrap_or(job))
}

fn state_text(state: &State) -> String {
    let nodes = state
        .nodes
        .values()
        .map(|known| format!("node {} {} {}\n", known.node.name, known.node.id, known.node.status));
    let allocs = state.allocs.values().map(|alloc| {
        let healthy = alloc.deployment_status.as_ref().and_then(|status| status.healthy);
        let healthy = healthy.map_or("", |healthy| if healthy { " healthy" } else { " unhealthy" });
        let what = format!("alloc {} {} wanted: {}", alloc.id, alloc.name, alloc.desired_status);
        format!("{what}, is: {}{healthy} ({})\n", alloc.client_status, alloc.client_description)
    });
    nodes.chain(allocs).chain(["\n".to_owned()]).collect()
}
