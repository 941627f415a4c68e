//! Starting and stopping many tasks, tasks that end by themselves, and the latency of one task.

use std::{
    fs::File,
    io::Read as _,
    process::Command,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use herdlet_e2e::wait;
use rustix::fs::Mode;

use super::{
    cost,
    ground::BenchDirs,
    job::Bench,
    machine,
    table::{Table, quantile},
};

const SLEEP: &str = r#"{command: sleep, args: ["100000"]}"#;

/// Number of single starts.
const SINGLES: usize = 40;

/// Costs of starting and stopping `count` sleeping tasks.
pub(super) fn many(table: &mut Table, ground: &BenchDirs, count: usize) {
    let plain = machine::spawns(ground, count, "sleep", &["100000"]);
    let plain_rate = rate(count, plain.took);
    let bench = Bench::new(ground);
    let agent = bench.agent.pid();
    let (cpu_before, written_before) = (cost::cpu([agent]), cost::written(agent));
    let began = Instant::now();
    bench.submit("service", count, SLEEP);
    bench.until_running(count);
    let took = began.elapsed();
    wait::pause(Duration::from_millis(300));
    let cpu = cost::cpu(bench.whole_tree()).saturating_sub(cpu_before);
    let written = cost::written(agent).saturating_sub(written_before);
    let share = 100.0 * rate(count, took) / plain_rate;
    table.row(
        &format!("{count} tasks submitted, all running"),
        format_args!("{:.2} s, {:.0}/s, {share:.0} % of plain spawns", took.as_secs_f64(), rate(count, took)),
        "≥ 700/s, ≥ 45 %",
        format_args!("{plain_rate:.0}/s"),
    );
    table.row(
        &format!("{count} tasks: processor time for each, whole process tree"),
        format_args!("{:.2} ms", each_ms(cpu, count)),
        "≤ 2.5 ms",
        format_args!("{:.2} ms", each_ms(plain.cpu, count)),
    );
    table.row(
        &format!("{count} tasks: written to the disk by the agent for each (including directories)"),
        format_args!("{:.1} KiB", ratio(written, count) / 1024.0),
        "",
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
            "{:.2} s (everything removed: {:.2} s)",
            stopped.as_secs_f64(),
            began.elapsed().as_secs_f64()
        ),
        "≤ 0.2 s (at 200)",
        "",
    );
    bench.agent.finish();
}

/// 200 tasks that end at once.
pub(super) fn batch(table: &mut Table, ground: &BenchDirs) {
    const COUNT: usize = 200;
    let plain = machine::spawns(ground, COUNT, "true", &[]);
    let bench = Bench::new(ground);
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

/// One task at a time: from before the request until the task's first action, a write to a fifo.
pub(super) fn latency(table: &mut Table, ground: &BenchDirs) {
    let bench = Bench::new(ground);
    let (send, acts) = mpsc::sync_channel(1);
    let fifo = bench.agent.home.path().join("acts");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR | Mode::WUSR).expect("a fifo");
    // Also open for writing, so that reading never ends.
    let mut acting = File::options().read(true).write(true).open(&fifo).expect("the fifo");
    thread::spawn(move || {
        while acting.read(&mut [0]).is_ok_and(|len| len == 1) && send.send(Instant::now()).is_ok() {}
    });
    let script = format!("printf x > {}", fifo.display());
    let act = || acts.recv_timeout(Duration::from_secs(60)).expect("the task's action");
    let (mut taken, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..SINGLES {
        // Wait until the machine is idle.
        wait::pause(Duration::from_millis(50));
        let began = Instant::now();
        bench.submit("batch", 1, &format!("{{command: /bin/sh, args: [-c, \"{script}\"]}}"));
        taken.push((act() - began).as_secs_f64() * 1000.0);
        bench.until_complete(1);
        bench.delete();
        bench.until_removed();
        wait::pause(Duration::from_millis(50));
        let began = Instant::now();
        let mut child = Command::new("/bin/sh").args(["-c", &script]).spawn().expect("a shell");
        plain.push((act() - began).as_secs_f64() * 1000.0);
        let _ = child.wait();
    }
    taken.sort_by(f64::total_cmp);
    plain.sort_by(f64::total_cmp);
    table.row(
        "one task, from the request to its first action, median / p95",
        format_args!("{:.1} / {:.1} ms", quantile(&taken, 0.5), quantile(&taken, 0.95)),
        "≤ 4 / 8 ms",
        format_args!(
            "{:.1} / {:.1} ms (the shell itself); {:.1} ms (a wait for the disk)",
            quantile(&plain, 0.5),
            quantile(&plain, 0.95),
            machine::sync(ground).as_secs_f64() * 1000.0
        ),
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
