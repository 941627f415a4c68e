//! The agent's writes to its database: strace(1) traces the system calls on that file.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
};

use herdlet_e2e::wait;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{ground::BenchDirs, job::Bench, table::Table};

const COUNT: usize = 200;

/// Bytes written and waits for the disk while 200 tasks start.
pub(super) fn writes(table: &mut Table, ground: &BenchDirs) {
    let bench = Bench::new(ground);
    let database = bench.agent.home.state().join("state.db");
    let trace = bench.agent.home.path().join("trace");
    let Some(mut strace) = attach(bench.agent.pid(), &database, &trace) else {
        eprintln!("cannot measure writes to the database: strace does not run");
        return bench.agent.finish();
    };
    let before =
        (bench.metric("herdlet_state_write_seconds_count"), bench.metric("herdlet_state_records_total"));
    bench.submit("service", COUNT, r#"{command: sleep, args: ["100000"]}"#);
    bench.until_running(COUNT);
    let commits = bench.metric("herdlet_state_write_seconds_count") - before.0;
    let records = bench.metric("herdlet_state_records_total") - before.1;
    detach(&mut strace);
    let calls = fs::read_to_string(&trace).unwrap_or_default();
    let (bytes, syncs) = calls.lines().fold((0, 0), |(bytes, syncs), call| match written(call) {
        Some(len) => (bytes + len, syncs),
        None => (bytes, syncs + usize::from(call.contains("sync("))),
    });
    let each = |total: f64| total / f64::from(u32::try_from(COUNT).unwrap_or(u32::MAX));
    table.row(
        "written durably for each of 200 starts (traced, so slower)",
        format_args!(
            "{:.1} KiB, {:.2} records; {syncs} syncs in {commits:.0} commits",
            each(f64::from(bytes)) / 1024.0,
            each(records),
        ),
        "≤ 16 KiB, ≤ 4 records, ≤ 1 sync per commit",
        "",
    );
    bench.agent.finish();
}

/// Bytes written according to a line of the trace.
fn written(call: &str) -> Option<u32> {
    // A call that another thread interrupts is in two lines; the second has the result.
    let is_write = call.contains("pwrite64") && call.contains(") = ");
    is_write.then(|| call.rsplit("= ").next()?.trim().parse().ok()).flatten()
}

fn attach(pid: u32, file: &Path, trace: &Path) -> Option<Child> {
    let child = Command::new("strace")
        .args(["-f", "-q", "-e", "trace=pwrite64,fdatasync,fsync", "-s", "0"])
        .arg("-P")
        .arg(file)
        .arg("-o")
        .arg(trace)
        .args(["-p", &pid.to_string()])
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let is_traced = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|tracer| tracer.trim() != "0"))
    };
    wait::until_true("the agent is traced", is_traced);
    Some(child)
}

/// Ends strace, which then writes its output.
fn detach(strace: &mut Child) {
    let pid = i32::try_from(strace.id()).ok().and_then(Pid::from_raw);
    if let Some(strace) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) {
        let _ = pidfd_send_signal(&strace, Signal::INT);
    }
    let _ = strace.wait();
}
