//! Costs of processes so far, from /proc: processor time in nanoseconds (from their clocks), memory by shares (PSS), bytes
//! written.
//!
//! Ended processes do not count: measure while they live.

use std::{fs, path::PathBuf, time::Duration};

/// Processor time of these processes, including ended threads.
pub(super) fn cpu(pids: impl IntoIterator<Item = u32>) -> Duration {
    pids.into_iter().filter_map(process_cpu).sum()
}

/// The clock of a process (`clock_getcpuclockid(3)`); `None` if it is gone.
#[expect(unsafe_code, reason = "the clock of another process has no safe interface")]
fn process_cpu(pid: u32) -> Option<Duration> {
    // Linux computes the id from the pid: its complement, and 2 for the scheduler's time.
    let clock = (!i32::try_from(pid).ok()? << 3) | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one `timespec`, or nothing.
    let succeeded = unsafe { libc::clock_gettime(clock, &raw mut time) } == 0;
    let seconds = u64::try_from(time.tv_sec).ok()?;
    succeeded.then(|| Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0)))
}

/// Voluntary context switches of all threads of these processes (`status`).
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

/// Memory of these processes in KiB, shared pages by shares.
pub(super) fn pss_kib(pids: impl IntoIterator<Item = u32>) -> u64 {
    let sizes = pids.into_iter().filter_map(|pid| {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok()
    });
    sizes.sum()
}

/// Memory of the kernel itself in KiB: objects, stacks, page tables, values for each processor. Of the whole machine, so that other
/// processes must rest.
pub(super) fn kernel_kib() -> u64 {
    const PARTS: [&str; 4] = ["Slab:", "KernelStack:", "PageTables:", "Percpu:"];
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let parts = text.lines().filter(|line| PARTS.iter().any(|part| line.starts_with(part)));
    parts.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
}

/// Bytes that a process has written to the disk.
pub(super) fn written(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}

/// Number of threads of a process.
pub(super) fn thread_count(pid: u32) -> usize {
    threads(pid).len()
}

fn threads(pid: u32) -> Vec<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}
