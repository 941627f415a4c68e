//! Many tasks started and stopped, tasks that end by themselves, and how long one takes.

use std::{
    fs,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use herdlet_tests::e2e::wait;

use super::{
    cost,
    job::Bench,
    machine,
    table::{Table, quantile},
};

const SLEEP: &str = r#"{command: sleep, args: ["100000"]}"#;

/// Single starts that are measured.
const SINGLES: usize = 40;

/// `count` tasks that sleep: started, stopped, and what that cost.
pub(super) fn many(table: &mut Table, count: usize) {
    let plain = machine::spawns(count, "sleep", &["100000"]);
    let plain_rate = rate(count, plain.took);
    let bench = Bench::new();
    let agent = bench.agent.pid();
    let (cpu_before, written_before) = (cost::cpu([agent]), cost::written(agent));
    let (commits, records) =
        (bench.metric("herdlet_state_write_seconds_count"), bench.metric("herdlet_state_records_total"));
    let began = Instant::now();
    bench.submit("service", count, SLEEP);
    bench.until_running(count);
    let took = began.elapsed();
    wait::pause(Duration::from_millis(300));
    let cpu = cost::cpu(bench.whole_tree()).saturating_sub(cpu_before);
    let written = cost::written(agent).saturating_sub(written_before);
    let (commits, records) = (
        bench.metric("herdlet_state_write_seconds_count") - commits,
        bench.metric("herdlet_state_records_total") - records,
    );
    let share = 100.0 * rate(count, took) / plain_rate;
    table.row(
        &format!("{count} tasks submitted, all running"),
        format_args!("{:.2} s, {:.0}/s, {share:.0} % of plain spawns", took.as_secs_f64(), rate(count, took)),
        "≥ 700/s, ≥ 45 %",
        format_args!("{plain_rate:.0}/s"),
    );
    table.row(
        &format!("{count} tasks: processor time each, whole tree"),
        format_args!("{:.2} ms", each_ms(cpu, count)),
        "≤ 2.5 ms",
        format_args!("{:.2} ms", each_ms(plain.cpu, count)),
    );
    table.row(
        &format!("{count} tasks: written to disk, each"),
        format_args!(
            "{:.1} KiB, {:.2} records, {:.3} commits",
            ratio(written, count) / 1024.0,
            records / ratio(count as u64, 1),
            commits / ratio(count as u64, 1)
        ),
        "≤ 16 KiB, ≤ 4 records",
        "",
    );
    let began = Instant::now();
    bench.delete();
    bench.until_gone();
    let stopped = began.elapsed();
    bench.until_removed();
    table.row(
        &format!("{count} tasks stopped, all processes gone"),
        format_args!(
            "{:.2} s (nothing left at all: {:.2} s)",
            stopped.as_secs_f64(),
            began.elapsed().as_secs_f64()
        ),
        "≤ 0.2 s (at 200)",
        "",
    );
    bench.agent.finish();
}

/// 200 tasks that end at once.
pub(super) fn batch(table: &mut Table) {
    const COUNT: usize = 200;
    let plain = machine::spawns(COUNT, "true", &[]);
    let bench = Bench::new();
    let began = Instant::now();
    bench.submit("batch", COUNT, "{command: /bin/true}");
    bench.until_complete(COUNT);
    table.row(
        "200 × /bin/true, all complete",
        format_args!("{:.2} s", began.elapsed().as_secs_f64()),
        "≤ 0.5 s",
        format_args!("{:.2} s", plain.took.as_secs_f64()),
    );
    bench.agent.finish();
}

/// One task at a time: from before the request until the task's own first act.
pub(super) fn latency(table: &mut Table) {
    let bench = Bench::new();
    let mark = bench.agent.home.path().join("mark");
    let script = format!("{{command: /bin/sh, args: [-c, \"date +%s%N > {}\"]}}", mark.display());
    let mut taken = Vec::new();
    for _ in 0..SINGLES {
        let _ = fs::remove_file(&mark);
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        bench.submit("batch", 1, &script);
        bench.until_complete(1);
        let at: u128 = fs::read_to_string(&mark).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        taken.push(Duration::from_nanos_u128(at.saturating_sub(began.as_nanos())).as_secs_f64() * 1000.0);
        bench.delete();
        bench.until_removed();
        // A lone start is one that finds the machine at rest.
        wait::pause(Duration::from_millis(50));
    }
    taken.sort_by(f64::total_cmp);
    let mut plain: Vec<f64> = (0..SINGLES)
        .map(|_| {
            wait::pause(Duration::from_millis(50));
            let began = Instant::now();
            let _ = std::process::Command::new("/bin/sh").args(["-c", "date +%s%N > /dev/null"]).status();
            began.elapsed().as_secs_f64() * 1000.0
        })
        .collect();
    plain.sort_by(f64::total_cmp);
    table.row(
        "one task, from the request to its first act, median / p95",
        format_args!("{:.1} / {:.1} ms", quantile(&taken, 0.5), quantile(&taken, 0.95)),
        "≤ 4 / 8 ms",
        format_args!("{:.1} / {:.1} ms (the shell itself)", quantile(&plain, 0.5), quantile(&plain, 0.95)),
    );
    bench.agent.finish();
}

fn rate(count: usize, took: Duration) -> f64 {
    ratio(count as u64, 1) / took.as_secs_f64()
}

fn each_ms(cpu: Duration, count: usize) -> f64 {
    cpu.as_secs_f64() * 1000.0 / ratio(count as u64, 1)
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn ratio(total: u64, count: usize) -> f64 {
    total as f64 / count as f64
}
