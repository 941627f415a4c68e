//! Metrics of a Nomad client under its own names and in its units (MHz, MiB), for dashboards and alerts that were
//! made for it.
//!
//! In: the published state, and values that the kernel provides at once. Out: samples, computed on request.
//! `host_memory_total` is left out: by Prometheus' rules only a counter may have this suffix.

pub(super) mod allocs;
mod processors;

use std::fmt;

use herdlet_plan::{env::NodeFacts, job::capacity::Room};

use super::{
    gauges::Gauges,
    names::{Kind, Measure, Metric},
    number,
    page::Page,
};

pub use allocs::Measured;
pub(super) use processors::Clock;
pub use processors::Processor;

const LABELS: [&str; 4] = ["node_id", "datacenter", "node_class", "node_pool"];

const fn gauge(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Metric {
    Metric { name, help, kind: Kind::Gauge, measure: Measure::Number, labels }
}

const PENDING: Metric = gauge("nomad_client_allocations_pending", "Pending allocations.", &LABELS);
const RUNNING: Metric = gauge("nomad_client_allocations_running", "Running allocations.", &LABELS);
const TERMINAL: Metric = gauge("nomad_client_allocations_terminal", "Allocations that have ended.", &LABELS);
const TASKS_PENDING: Metric = gauge("nomad_client_tasks_pending", "Pending tasks.", &LABELS);
const TASKS_RUNNING: Metric = gauge("nomad_client_tasks_running", "Running tasks.", &LABELS);
const TASKS_DEAD: Metric = gauge("nomad_client_tasks_dead", "Tasks that have ended.", &LABELS);
const ALLOCATED_CPU: Metric =
    gauge("nomad_client_allocated_cpu", "MHz that live allocations request.", &LABELS);
const ALLOCATED_MEMORY: Metric =
    gauge("nomad_client_allocated_memory", "MiB that live allocations request.", &LABELS);
const ALLOCATED_DISK: Metric =
    gauge("nomad_client_allocated_disk", "MiB of disk that live allocations request.", &LABELS);
const UNALLOCATED_CPU: Metric =
    gauge("nomad_client_unallocated_cpu", "MHz that are left for further allocations.", &LABELS);
const UNALLOCATED_MEMORY: Metric =
    gauge("nomad_client_unallocated_memory", "MiB that are left for further allocations.", &LABELS);
const UNALLOCATED_DISK: Metric =
    gauge("nomad_client_unallocated_disk", "MiB of disk that are left for further allocations.", &LABELS);
const UPTIME: Metric = gauge("nomad_client_uptime", "Seconds since this machine was started.", &LABELS);
const MEMORY_USED: Metric = gauge(
    "nomad_client_host_memory_used",
    "Bytes of memory that are not available without swapping.",
    &LABELS,
);
const MEMORY_AVAILABLE: Metric = gauge(
    "nomad_client_host_memory_available",
    "Bytes of memory that are available without swapping.",
    &LABELS,
);
const MEMORY_FREE: Metric =
    gauge("nomad_client_host_memory_free", "Bytes of memory that are unused.", &LABELS);

/// All metrics, except those of processors and of single tasks.
pub const ALL: &[Metric] = &[
    PENDING,
    RUNNING,
    TERMINAL,
    TASKS_PENDING,
    TASKS_RUNNING,
    TASKS_DEAD,
    ALLOCATED_CPU,
    ALLOCATED_MEMORY,
    ALLOCATED_DISK,
    UNALLOCATED_CPU,
    UNALLOCATED_MEMORY,
    UNALLOCATED_DISK,
    UPTIME,
    MEMORY_USED,
    MEMORY_AVAILABLE,
    MEMORY_FREE,
];

/// The machine's state according to the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Host {
    /// Seconds since the machine was started.
    pub uptime: u64,
    /// Bytes of memory.
    pub total: u64,
    /// Bytes that are available without swapping.
    pub available: u64,
    /// Bytes that are unused.
    pub free: u64,
    /// The time that each processor has spent.
    pub processors: Vec<Processor>,
}

impl Host {
    /// Queries the kernel; values that it does not provide are 0.
    pub fn now() -> Self {
        let uptime = u64::try_from(rustix::system::sysinfo().uptime).unwrap_or_default();
        let text = |path| std::fs::read_to_string(path).unwrap_or_default();
        let processors = Processor::each(&text("/proc/stat"));
        Self { uptime, processors, ..Self::of(&text("/proc/meminfo")) }
    }

    /// Parses `/proc/meminfo`.
    fn of(meminfo: &str) -> Self {
        let bytes = |name: &str| {
            let value = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let kib = value.and_then(|value| value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
            kib.unwrap_or_default().saturating_mul(1024)
        };
        let (total, available, free) = (bytes("MemTotal"), bytes("MemAvailable"), bytes("MemFree"));
        Self { total, available, free, ..Self::default() }
    }
}

pub(super) fn write(
    page: &mut Page<'_>,
    node: &NodeFacts,
    gauges: &Gauges,
    room: Room,
    host: &Host,
    before: &Host,
    clock: Clock,
) -> fmt::Result {
    let allocations = |status| gauges.allocations.get(status).copied().unwrap_or_default();
    let tasks = |state| gauges.tasks.get(state).copied().unwrap_or_default();
    let (taken, left) = (gauges.allocated, room.minus(gauges.allocated));
    let labels = [&*node.id, &node.datacenter, &node.class, &node.pool];
    for (metric, value) in [
        (&PENDING, allocations("pending")),
        (&RUNNING, allocations("running")),
        (&TERMINAL, allocations("complete") + allocations("failed")),
        (&TASKS_PENDING, tasks("pending")),
        (&TASKS_RUNNING, tasks("running")),
        (&TASKS_DEAD, tasks("dead")),
        (&ALLOCATED_CPU, taken.cpu_mhz),
        (&ALLOCATED_MEMORY, taken.memory_mib),
        (&ALLOCATED_DISK, taken.disk_mib),
        (&UNALLOCATED_CPU, left.cpu_mhz),
        (&UNALLOCATED_MEMORY, left.memory_mib),
        (&UNALLOCATED_DISK, left.disk_mib),
        (&UPTIME, host.uptime),
        (&MEMORY_USED, host.total.saturating_sub(host.available)),
        (&MEMORY_AVAILABLE, host.available),
        (&MEMORY_FREE, host.free),
    ] {
        page.gauges(metric, [(labels, number(value))])?;
    }
    processors::write(page, node, &host.processors, &before.processors, clock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_parsed() {
        let meminfo =
            "MemTotal:       24590736 kB\nMemFree:          100 kB\nMemAvailable:   200 kB\nBuffers: 1 kB\n";
        let host = Host::of(meminfo);
        assert_eq!((host.total, host.free, host.available), (24_590_736 * 1024, 102_400, 204_800));
        assert_eq!(Host::of("nothing"), Host::default());
        assert!(Host::now().total > 0);
    }
}
