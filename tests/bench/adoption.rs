//! A killed agent finds its tasks again.

use std::time::Instant;

use super::{ground::BenchDirs, job::Bench, table::Table};

const COUNT: usize = 200;

/// `kill -9` with 200 running tasks: the time until a new agent has adopted all of them.
pub(super) fn after_kill(table: &mut Table, ground: &BenchDirs) {
    let mut bench = Bench::new(ground);
    bench.submit("service", COUNT, r#"{command: sleep, args: ["100000"]}"#);
    bench.until_running(COUNT);
    let mut before = bench.tasks();
    bench.agent.kill();
    let began = Instant::now();
    bench.agent.launch();
    bench.until_running(COUNT);
    let took = began.elapsed();
    let mut after = bench.tasks();
    before.sort_unstable();
    after.sort_unstable();
    let same = if before == after { "same processes" } else { "OTHER PROCESSES" };
    table.row(
        "kill -9 with 200 running tasks, restart: all adopted",
        format_args!("{:.2} s, {same}", took.as_secs_f64()),
        "≤ 0.2 s",
        "",
    );
    bench.agent.finish();
}
