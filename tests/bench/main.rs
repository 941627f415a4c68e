//! What herdlet costs on this machine, beside what the machine itself can do:
//! `cargo run --profile dist -p herdlet-tests --bin bench [-- MEASURE…]`.
//!
//! In: names of measures (all of them by default; `--list` shows them), the released program. Out: a table as each figure
//! comes in. Every figure has a goal; where a goal is a share of what the machine can do, the machine is measured in the
//! same run. Nothing fails because a machine is slow: it is printed, and a person reads it.
//!
//! - [`starts`]: tasks started, stopped, run to their end; one task's latency.
//! - [`durable`]: what is written to the database.
//! - [`rest`]: what an agent costs that has nothing to do, with and without tasks.
//! - [`adoption`]: a killed agent that finds its tasks again.
//! - [`checks`]: what checks cost that the agent makes.
//! - [`output`]: how fast a task can write its log.
//! - [`services`]: services in a Consul; left out where there is none.
//! - [`node`]: a node of stand-in servers, and thousands of simulated ones.
//! - [`machine`]: what the same work costs without herdlet.
//! - [`ground`]: where it takes place.
//! - [`cost`]: what processes have cost so far, read from /proc.
//! - [`table`]: how it is printed.

#![expect(clippy::expect_used, reason = "a measure that can't go on says why and ends")]

mod adoption;
mod checks;
mod cost;
mod durable;
mod ground;
mod job;
mod machine;
mod node;
mod output;
mod rest;
mod services;
mod starts;
mod table;

use std::process::ExitCode;

use ground::BenchDirs;
use table::Table;

/// A measure: prints one row or more.
type Measure = fn(&mut Table, &BenchDirs);

const MEASURES: [(&str, Measure); 19] = [
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
        eprintln!("no measure {unknown:?}; --list shows all");
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
