//! Costs of an agent without events.

use std::time::{Duration, Instant};

use herdlet_e2e::wait;

use super::{cost, ground::BenchDirs, job::Bench, table::Table};

const COUNT: usize = 200;
const SLEEP: &str = r#"{command: sleep, args: ["100000"]}"#;
/// By then the agent has released the memory that its start needed, and idle threads have ended.
const SETTLED: Duration = Duration::from_secs(12);
/// How often the agent inspects all directories (`LOOK_PERIOD` in `controller/agent/src/watch/drift.rs`).
const LOOK_PERIOD: Duration = Duration::from_secs(30);
/// Number of inspections to wait for.
const LOOKS: u32 = 2;
/// Duration of the measurement.
const REST: Duration = Duration::from_secs(60);

/// An idle agent without tasks.
pub(super) fn idle_memory(table: &mut Table, ground: &BenchDirs) {
    let bench = Bench::new(ground);
    let pid = bench.agent.pid();
    wait::pause(SETTLED);
    table.row(
        "idle agent, no tasks: memory (PSS)",
        format_args!("{:.1} MB, {} threads", megabytes(cost::pss_kib([pid])), cost::thread_count(pid)),
        "≤ 12 MB",
        "",
    );
    bench.agent.finish();
}

/// 200 sleeping tasks: memory for each, and a minute without events.
pub(super) fn with_tasks(table: &mut Table, ground: &BenchDirs) {
    let bench = Bench::new(ground);
    wait::pause(SETTLED);
    let before = cost::pss_kib([bench.agent.pid()]);
    bench.submit("service", COUNT, SLEEP);
    bench.until_running(COUNT);
    // Until tasks have been healthy for long enough, and threads that starts needed have ended.
    wait::pause(2 * SETTLED);
    let supervisors = bench.supervisors();
    let grown = cost::pss_kib([bench.agent.pid()]).saturating_sub(before);
    let each = (grown + cost::pss_kib(supervisors.iter().copied())) / COUNT as u64;
    let threads: usize = supervisors.iter().map(|pid| cost::thread_count(*pid)).sum();
    table.row(
        "memory for each running task, without the task's own (PSS)",
        format_args!("{each} KB, {:.1} processes, {:.1} threads", per(supervisors.len()), per(threads)),
        "≤ 200 KB, ≤ 1 process, ≤ 1 thread",
        "",
    );
    let pids = bench.whole_tree();
    let (cpu, woken) = (cost::cpu(pids.iter().copied()), cost::wake_ups(pids.iter().copied()));
    let began = Instant::now();
    wait::pause(REST);
    let cpu = cost::cpu(pids.iter().copied()).saturating_sub(cpu);
    let woken = cost::wake_ups(pids.iter().copied()).saturating_sub(woken);
    table.row(
        &format!(
            "{COUNT} running, no events for {} s: processor time, whole process tree",
            began.elapsed().as_secs()
        ),
        format_args!("{:.3} s, {woken} wake-ups", cpu.as_secs_f64()),
        "≤ 0.1 s",
        "",
    );
    bench.agent.finish();
}

/// The inspection of all parts of 1,000 sleeping tasks, every 30 s.
pub(super) fn inspection(table: &mut Table, ground: &BenchDirs) {
    const MANY: usize = 1_000;
    let bench = Bench::new(ground);
    bench.submit("service", MANY, SLEEP);
    bench.until_running(MANY);
    // Until the work after a start is done.
    wait::pause(Duration::from_secs(45));
    let cpu = cost::cpu([bench.agent.pid()]);
    wait::pause(LOOK_PERIOD * LOOKS);
    let cpu = (cost::cpu([bench.agent.pid()]).saturating_sub(cpu)) / LOOKS;
    table.row(
        "an inspection of 1,000 running tasks, nothing changed: processor time",
        format_args!("{:.1} ms", cpu.as_secs_f64() * 1000.0),
        "≤ 10 ms",
        "",
    );
    bench.agent.finish();
}

/// Memory after 200 tasks have run and were removed.
pub(super) fn memory_comes_back(table: &mut Table, ground: &BenchDirs) {
    let bench = Bench::new(ground);
    wait::pause(SETTLED);
    let before = cost::pss_kib([bench.agent.pid()]);
    bench.submit("service", COUNT, SLEEP);
    bench.until_running(COUNT);
    bench.delete();
    bench.until_removed();
    // The agent keeps leftovers of attempts for a minute.
    wait::pause(Duration::from_secs(85));
    let after = cost::pss_kib([bench.agent.pid()]);
    table.row(
        "memory after 200 tasks were stopped (PSS)",
        format_args!("{:.1} MB (before: {:.1} MB)", megabytes(after), megabytes(before)),
        "within 20 % of idle",
        "",
    );
    bench.agent.finish();
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn megabytes(kib: u64) -> f64 {
    kib as f64 * 1024.0 / 1e6
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn per(total: usize) -> f64 {
    total as f64 / COUNT as f64
}
