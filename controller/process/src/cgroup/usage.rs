//! Resource usage of a cgroup's processes.
//!
//! CPU time comes from v2's `cpu.stat`, which needs no controller. Memory comes from the hierarchy that has the
//! attempt's memory controller, else from the sum over its processes.

use std::path::Path;

use herdlet_driver::{CpuUsage, MemoryUsage, Usage, limits::Controller};

use super::{Cgroup, files};
use crate::process_tree;

impl Cgroup {
    /// Current usage of its processes. The caller sets `at` and the percentages.
    pub fn usage(&self) -> Usage {
        let pids = self.pids();
        let memory = memory_v2(&self.dir)
            .or_else(|| self.v1_dir(Controller::Memory).and_then(|dir| memory_v1(dir)))
            .unwrap_or_else(|| process_tree::memory(&pids));
        Usage { memory, cpu: cpu(&self.dir), pids, ..Usage::default() }
    }
}

fn cpu(dir: &Path) -> CpuUsage {
    let text = files::read_if_there(&dir.join("cpu.stat")).unwrap_or_default();
    let nanos = |name| files::field(&text, name).map(|micros| micros.saturating_mul(1000));
    CpuUsage {
        user_ns: nanos("user_usec").unwrap_or(0),
        system_ns: nanos("system_usec").unwrap_or(0),
        throttled_periods: files::field(&text, "nr_throttled"),
        throttled_ns: nanos("throttled_usec"),
        ..CpuUsage::default()
    }
}

fn memory_v2(dir: &Path) -> Option<MemoryUsage> {
    let usage = files::number(&dir.join("memory.current"))?;
    let stat = files::read_if_there(&dir.join("memory.stat")).unwrap_or_default();
    Some(MemoryUsage {
        rss: files::field(&stat, "anon"),
        cache: files::field(&stat, "file"),
        swap: files::number(&dir.join("memory.swap.current")),
        mapped_file: files::field(&stat, "file_mapped"),
        usage: Some(usage),
        usage_max: files::number(&dir.join("memory.peak")),
        kernel: files::field(&stat, "kernel"),
    })
}

fn memory_v1(dir: &Path) -> Option<MemoryUsage> {
    let usage = files::number(&dir.join("memory.usage_in_bytes"))?;
    let stat = files::read_if_there(&dir.join("memory.stat")).unwrap_or_default();
    Some(MemoryUsage {
        rss: files::field(&stat, "rss"),
        cache: files::field(&stat, "cache"),
        swap: files::field(&stat, "swap"),
        mapped_file: files::field(&stat, "mapped_file"),
        usage: Some(usage),
        usage_max: files::number(&dir.join("memory.max_usage_in_bytes")),
        kernel: files::number(&dir.join("memory.kmem.usage_in_bytes")),
    })
}
