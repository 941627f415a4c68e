//! What processes have cost so far, from /proc: processor time to the nanosecond, memory by shares (PSS), bytes written.
//!
//! Processes that are gone are not seen; whoever measures looks while they live.

use std::{fs, path::PathBuf, time::Duration};

/// Processor time of all present threads of these processes (`schedstat`, field 1).
pub(super) fn cpu(pids: impl IntoIterator<Item = u32>) -> Duration {
    let ns = pids.into_iter().flat_map(threads).filter_map(|thread| {
        let text = fs::read_to_string(thread.join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(ns.sum())
}

/// How often all present threads of these processes were put on a core by themselves (`status`).
pub(super) fn wake_ups(pids: impl IntoIterator<Item = u32>) -> u64 {
    let counts = pids.into_iter().flat_map(threads).filter_map(|thread| {
        let text = fs::read_to_string(thread.join("status")).ok()?;
        text.lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?
            .trim()
            .parse::<u64>()
            .ok()
    });
    counts.sum()
}

/// Memory of these processes, what is shared counted by shares, in KiB.
pub(super) fn pss_kib(pids: impl IntoIterator<Item = u32>) -> u64 {
    let sizes = pids.into_iter().filter_map(|pid| {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok()
    });
    sizes.sum()
}

/// Bytes that a process has given to the disk.
pub(super) fn written(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}

/// Present threads of a process.
pub(super) fn thread_count(pid: u32) -> usize {
    threads(pid).len()
}

fn threads(pid: u32) -> Vec<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}
