//! Tasks of the driver `exec` beside those of `raw_exec`: the latency of one, the rate of many, memory for each. Needs root.

use std::{
    fs::File,
    io::Read as _,
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use herdlet_e2e::wait;
use rustix::fs::{CWD, Mode, mkfifoat};

use super::{
    cost,
    ground::BenchDirs,
    job::Bench,
    table::{Table, quantile},
};

/// Number of pairs of one measurement with each driver, one after the other.
const PAIRS: usize = 20;
const COUNT: usize = 200;
const SLEEP: &str = r#"{command: sleep, args: ["100000"]}"#;
const DRIVERS: [&str; 2] = ["exec", "raw_exec"];
/// By then tasks have been healthy for long enough, and threads that starts needed have ended.
const SETTLED: Duration = Duration::from_secs(24);

/// A volume with a fifo, into which a task writes as its first action.
const VOLUME: &str =
    "apiVersion: herdlet/v1\nkind: Volume\nmetadata: {name: acts}\nspec: {type: host, plugin_id: mkdir}\n";

/// One task at a time: from before the request until its first action.
pub(super) fn latency(table: &mut Table, ground: &BenchDirs) {
    let Some(bench) = begin(ground) else { return };
    bench.apply(VOLUME);
    let acts = acts(&bench);
    let mut taken = [Vec::new(), Vec::new()];
    for _ in 0..PAIRS {
        for (driver, taken) in DRIVERS.into_iter().zip(&mut taken) {
            wait::pause(Duration::from_millis(50));
            let began = Instant::now();
            bench.apply(&acting(driver));
            let acted = acts.recv_timeout(Duration::from_secs(60)).expect("the task's action");
            taken.push((acted - began).as_secs_f64() * 1_000.0);
            bench.until_complete(1);
            bench.delete();
            bench.until_removed();
        }
    }
    let [exec, raw_exec] = taken.map(sorted);
    table.row(
        "one exec task with a volume, from the request to its first action, median / p95",
        format_args!("{:.1} / {:.1} ms", quantile(&exec, 0.5), quantile(&exec, 0.95)),
        "≤ 10 ms",
        format_args!("{:.1} / {:.1} ms (raw_exec)", quantile(&raw_exec, 0.5), quantile(&raw_exec, 0.95)),
    );
    bench.agent.finish();
}

/// 200 tasks of each driver, in turns.
pub(super) fn rate(table: &mut Table, ground: &BenchDirs) {
    let Some(bench) = begin(ground) else { return };
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..PAIRS {
        for (driver, rates) in DRIVERS.into_iter().zip(&mut rates) {
            let began = Instant::now();
            bench.submit_to(driver, ("service", COUNT), SLEEP);
            bench.until_running(COUNT);
            rates.push(tasks(COUNT) / began.elapsed().as_secs_f64());
            bench.delete();
            bench.until_removed();
        }
    }
    let shares = rates[0].iter().zip(&rates[1]).map(|(exec, raw_exec)| 100.0 * exec / raw_exec).collect();
    let shares = sorted(shares);
    let [exec, raw_exec] = rates.map(sorted);
    table.row(
        "200 exec tasks submitted, all running, medians of pairs",
        format_args!("{:.0}/s, {:.0} % of raw_exec", quantile(&exec, 0.5), quantile(&shares, 0.5)),
        "≥ 50 %",
        format_args!("{:.0}/s (raw_exec)", quantile(&raw_exec, 0.5)),
    );
    bench.agent.finish();
}

/// Memory for each of 200 running tasks beyond the task.
pub(super) fn memory(table: &mut Table, ground: &BenchDirs) {
    let Some(bench) = begin(ground) else { return };
    let [exec, raw_exec] = DRIVERS.map(|driver| memory_of_each(&bench, driver));
    table.row(
        "memory for each running exec task, without the task's own (PSS; of the kernel)",
        format_args!("{:.0} KB; {:.0} KB", exec.0, exec.1),
        "≤ 80 KB",
        format_args!("{:.0} KB; {:.0} KB (raw_exec)", raw_exec.0, raw_exec.1),
    );
    bench.agent.finish();
}

fn memory_of_each(bench: &Bench, driver: &str) -> (f64, f64) {
    let agent = bench.agent.pid();
    let before = (cost::pss_kib([agent]), cost::kernel_kib());
    bench.submit_to(driver, ("service", COUNT), SLEEP);
    bench.until_running(COUNT);
    wait::pause(SETTLED);
    let grown = cost::pss_kib([agent]).saturating_sub(before.0) + cost::pss_kib(bench.supervisors());
    let kernel = cost::kernel_kib().saturating_sub(before.1);
    bench.delete();
    bench.until_removed();
    // The agent keeps leftovers of attempts for a minute.
    wait::pause(Duration::from_secs(70));
    (kilobytes(grown) / tasks(COUNT), kilobytes(kernel) / tasks(COUNT))
}

fn begin(ground: &BenchDirs) -> Option<Bench> {
    rustix::process::geteuid().is_root().then(|| Bench::new(ground))
}

/// Times at which a task has written a byte.
fn acts(bench: &Bench) -> Receiver<Instant> {
    let volume = bench.agent.home.state().join("volumes/acts");
    wait::until_true("the volume is there", || volume.is_dir());
    let fifo = volume.join("fifo");
    mkfifoat(CWD, &fifo, Mode::from_raw_mode(0o666)).expect("a fifo");
    rustix::fs::chmod(&fifo, Mode::from_raw_mode(0o666)).expect("the fifo is for all users");
    // Also open for writing, so that reading never ends.
    let mut acting = File::options().read(true).write(true).open(&fifo).expect("the fifo");
    let (send, acts) = mpsc::sync_channel(1);
    thread::spawn(move || {
        while acting.read(&mut [0]).is_ok_and(|len| len == 1) && send.send(Instant::now()).is_ok() {}
    });
    acts
}

/// A job whose task acts. Its volume is below `local` for both drivers.
fn acting(driver: &str) -> String {
    let path = match driver {
        "exec" => "/local/acts/fifo",
        _ => "local/acts/fifo",
    };
    format!(
        "apiVersion: herdlet/v1
kind: Job
metadata: {{name: bench}}
spec:
  type: batch
  groups:
    - name: main
      volumes: {{acts: {{type: host, source: acts}}}}
      tasks:
        - name: work
          driver: {driver}
          config: {{command: sh, args: [-c, \"printf x > {path}\"]}}
          volume_mounts: [{{volume: acts, destination: local/acts}}]
"
    )
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn tasks(count: usize) -> f64 {
    count as f64
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn kilobytes(kib: u64) -> f64 {
    kib as f64 * 1.024
}
