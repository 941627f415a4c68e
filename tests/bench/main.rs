//! Benchmarks of herdlet on this machine, compared with the machine itself:
//! `cargo run --profile dist -p herdlet-tests --bin bench [-- MEASURE…]`.
//!
//! In: names of benchmarks (default: all; `--list` lists them), the released program. Out: a table, row by row. Every
//! figure has a goal. If a goal is relative to the machine, the same run measures the machine. A slow machine is no failure:
//! a person judges the figures.
//!
//! - [`starts`]: tasks that are started, stopped, run to their end; one task's latency.
//! - [`durable`]: writes to the database.
//! - [`rest`]: costs of an idle agent, with and without tasks.
//! - [`adoption`]: a killed agent that finds its tasks again.
//! - [`checks`]: costs of checks.
//! - [`output`]: throughput of a task's log.
//! - [`services`]: services in a Consul; left out if there is none.
//! - [`containers`]: containers of a Docker daemon and a Podman service; left out if there is none.
//! - [`builtin`]: containers without an engine, beside those of Docker and Podman.
//! - [`template`]: the template engine, and Go's.
//! - [`templates`]: templates of a thousand tasks.
//! - [`task_api`]: requests through the sockets of tasks.
//! - [`isolated`]: tasks of the driver `exec`, beside those of `raw_exec`.
//! - [`images`]: images that are pulled into the store.
//! - [`networks`]: networks of allocations, made and removed; beside CNI plugins ([`chain`]), which are left out if there are none.
//! - [`published`]: published and mapped ports beside the addresses of their instances.
//! - [`node`]: a node of stand-in servers, and thousands of simulated nodes.
//! - [`machine`]: costs of the same work without herdlet.
//! - [`ground`]: the directories of a run.
//! - [`cost`]: costs of processes, read from /proc.
//! - [`table`]: the tables that it prints.

#![expect(clippy::expect_used, reason = "a benchmark that cannot continue ends with the reason")]

mod adoption;
mod builtin;
mod chain;
mod checks;
mod consul;
mod containers;
mod cost;
mod durable;
mod ground;
mod images;
mod isolated;
mod job;
mod machine;
mod networks;
mod node;
mod output;
mod published;
mod rest;
mod services;
mod starts;
mod table;
mod task_api;
mod template;
mod templates;

use std::process::ExitCode;

use ground::BenchDirs;
use table::Table;

/// A benchmark: prints one row or more.
type Measure = fn(&mut Table, &BenchDirs);

const MEASURES: [(&str, Measure); 38] = [
    ("idle-memory", rest::idle_memory),
    ("start-200", |table, ground| starts::many(table, ground, 200)),
    ("start-500", |table, ground| starts::many(table, ground, 500)),
    ("start-2000", |table, ground| starts::many(table, ground, 2_000)),
    ("durable-writes", durable::writes),
    ("batch", starts::batch),
    ("latency", starts::latency),
    ("rest", rest::with_tasks),
    ("look", rest::inspection),
    ("adoption", adoption::after_kill),
    ("memory-back", rest::memory_comes_back),
    ("checks", checks::http),
    ("hanging-checks", checks::hanging),
    ("output", output::throughput),
    ("services", services::a_thousand),
    ("container-starts", containers::starts),
    ("containers", containers::rest),
    ("container-adoption", containers::adoption),
    ("builtin-starts", builtin::starts),
    ("builtin-memory", builtin::memory),
    ("builtin-adoption", builtin::adoption),
    ("template", template::engine),
    ("templates", templates::a_thousand),
    ("templates-consul", consul::a_thousand),
    ("consul-token", consul::token_at_start),
    ("task-api", task_api::cached_token),
    ("image-pull", images::pull),
    ("networks", networks::made_and_removed),
    ("networks-cni", networks::beside_plugins),
    ("bridged-200", networks::many),
    ("exec-latency", isolated::latency),
    ("exec-200", isolated::rate),
    ("exec-memory", isolated::memory),
    ("published", published::beside_direct),
    ("node-latency", node::latency),
    ("node-200", |table, ground| node::many(table, ground, 200)),
    ("node-500", |table, ground| node::many(table, ground, 500)),
    ("simulate", node::simulated),
];

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if wanted.iter().any(|name| name == "--list") {
        MEASURES.iter().for_each(|(name, _)| println!("{name}"));
        return ExitCode::SUCCESS;
    }
    if let Some(unknown) = wanted.iter().find(|name| !MEASURES.iter().any(|(known, _)| known == name)) {
        eprintln!("there is no benchmark {unknown:?}; --list lists all");
        return ExitCode::from(2);
    }
    let ground = BenchDirs::new();
    let mut table = Table::begin();
    for (name, measure) in MEASURES {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            measure(&mut table, &ground);
        }
    }
    ExitCode::SUCCESS
}
