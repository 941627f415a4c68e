//! Metrics of single tasks under Nomad's names and in its units, where they are enabled
//! (`publish_allocation_metrics`): their labels are unbounded.
//!
//! In: the usage of running tasks, measured for this page, and their restarts. Out: samples. Shares of processors
//! cover the time since the previous page; on the first page a task has none.

use std::{collections::BTreeMap, fmt, sync::Arc};

use herdlet_api_types::{
    job::Resources,
    view::{AllocView, TaskView},
};
use herdlet_driver::{AttemptId, Usage};
use herdlet_plan::env::NodeFacts;

use super::{Clock, Metric, Page, gauge, number};

const LABELS: [&str; 9] = [
    "node_id",
    "datacenter",
    "node_class",
    "node_pool",
    "namespace",
    "job",
    "task_group",
    "alloc_id",
    "task",
];

const CPU_PERCENT: Metric =
    gauge("nomad_client_allocs_cpu_total_percent", "Processor time in percent of one core.", &LABELS);
const CPU_USER: Metric =
    gauge("nomad_client_allocs_cpu_user", "Processor time in user mode in percent of one core.", &LABELS);
const CPU_SYSTEM: Metric =
    gauge("nomad_client_allocs_cpu_system", "Processor time in the kernel in percent of one core.", &LABELS);
const CPU_TICKS: Metric = gauge("nomad_client_allocs_cpu_total_ticks", "Processor time in MHz.", &LABELS);
const CPU_THROTTLED_TIME: Metric =
    gauge("nomad_client_allocs_cpu_throttled_time", "Nanoseconds that the task was throttled.", &LABELS);
const CPU_THROTTLED_PERIODS: Metric =
    gauge("nomad_client_allocs_cpu_throttled_periods", "Times that the task was throttled.", &LABELS);
const CPU_ALLOCATED: Metric =
    gauge("nomad_client_allocs_cpu_allocated", "MHz that the task requests.", &LABELS);
const MEMORY_USAGE: Metric =
    gauge("nomad_client_allocs_memory_usage", "Bytes that count against the task's limit.", &LABELS);
const MEMORY_MAX_USAGE: Metric = gauge(
    "nomad_client_allocs_memory_max_usage",
    "The most bytes that ever counted against the task's limit.",
    &LABELS,
);
const MEMORY_RSS: Metric = gauge("nomad_client_allocs_memory_rss", "Bytes of anonymous memory.", &LABELS);
const MEMORY_CACHE: Metric = gauge("nomad_client_allocs_memory_cache", "Bytes of page cache.", &LABELS);
const MEMORY_SWAP: Metric = gauge("nomad_client_allocs_memory_swap", "Bytes that are swapped out.", &LABELS);
const MEMORY_MAPPED: Metric =
    gauge("nomad_client_allocs_memory_mapped_file", "Bytes of files that are mapped into memory.", &LABELS);
const MEMORY_KERNEL: Metric = gauge(
    "nomad_client_allocs_memory_kernel_usage",
    "Bytes that the kernel uses on the task's behalf.",
    &LABELS,
);
const MEMORY_ALLOCATED: Metric =
    gauge("nomad_client_allocs_memory_allocated", "Bytes that the task requests.", &LABELS);
const RESTART: Metric = gauge("nomad_client_allocs_restart", "Times that the task was restarted.", &LABELS);
const OOM_KILLED: Metric = gauge(
    "nomad_client_allocs_oom_killed",
    "1 if the kernel killed the task's last attempt because it was out of memory.",
    &LABELS,
);

/// The usage of a running task.
#[derive(Debug, Clone)]
pub struct Measured {
    pub alloc: Arc<AllocView>,
    pub attempt: AttemptId,
    pub usage: Usage,
}

impl Measured {
    fn view(&self) -> Option<&TaskView> {
        self.alloc.tasks.iter().find(|task| *task.name == *self.attempt.task)
    }

    fn resources(&self) -> Option<Resources> {
        let spec = &self.alloc.spec;
        Some(spec.resources_of(spec.task(&self.attempt.task)?))
    }
}

/// The usage of tasks when the previous page was written.
#[derive(Debug, Default)]
pub(in crate::telemetry) struct Before(BTreeMap<AttemptId, Usage>);

/// A metric, and how to get its value.
type Of<T, V> = (&'static Metric, fn(&T) -> V);

pub(in crate::telemetry) fn write(
    page: &mut Page<'_>,
    node: &NodeFacts,
    measured: &[Measured],
    before: &mut Before,
    clock: Clock,
) -> fmt::Result {
    let shares: BTreeMap<&AttemptId, Shares> = measured
        .iter()
        .filter_map(|one| Some((&one.attempt, Shares::between(before.0.get(&one.attempt)?, &one.usage)?)))
        .collect();
    let of_shares: [Of<Shares, f64>; 3] = [
        (&CPU_PERCENT, Shares::all),
        (&CPU_USER, |shares| shares.user),
        (&CPU_SYSTEM, |shares| shares.system),
    ];
    for (metric, get) in of_shares {
        samples(page, metric, node, measured, |one| shares.get(&one.attempt).map(get))?;
    }
    samples(page, &CPU_TICKS, node, measured, |one| {
        Some(shares.get(&one.attempt)?.all() / 100.0 * clock.core_mhz)
    })?;
    let of_usage: [Of<Usage, Option<u64>>; 9] = [
        (&CPU_THROTTLED_TIME, |usage| usage.cpu.throttled_ns),
        (&CPU_THROTTLED_PERIODS, |usage| usage.cpu.throttled_periods),
        (&MEMORY_USAGE, |usage| usage.memory.usage),
        (&MEMORY_MAX_USAGE, |usage| usage.memory.usage_max),
        (&MEMORY_RSS, |usage| usage.memory.rss),
        (&MEMORY_CACHE, |usage| usage.memory.cache),
        (&MEMORY_SWAP, |usage| usage.memory.swap),
        (&MEMORY_MAPPED, |usage| usage.memory.mapped_file),
        (&MEMORY_KERNEL, |usage| usage.memory.kernel),
    ];
    for (metric, get) in of_usage {
        samples(page, metric, node, measured, |one| get(&one.usage).map(number))?;
    }
    samples(page, &CPU_ALLOCATED, node, measured, |one| one.resources()?.cpu_mhz.map(number))?;
    samples(page, &MEMORY_ALLOCATED, node, measured, |one| {
        Some(number(one.resources()?.allocated().memory_mib?) * 1024.0 * 1024.0)
    })?;
    samples(page, &RESTART, node, measured, |one| Some(f64::from(one.view()?.restarts)))?;
    samples(page, &OOM_KILLED, node, measured, |one| {
        let killed = one.view()?.exit.as_ref().is_some_and(|exit| exit.oom_killed);
        Some(f64::from(u8::from(killed)))
    })?;
    before.0 = measured.iter().map(|one| (one.attempt.clone(), one.usage.clone())).collect();
    Ok(())
}

/// Processor time in percent of one core.
struct Shares {
    user: f64,
    system: f64,
}

impl Shares {
    #[expect(clippy::cast_precision_loss, reason = "a metric needs no more than 52 bits")]
    fn between(before: &Usage, now: &Usage) -> Option<Self> {
        let wall = (now.at.0 - before.at.0) as f64;
        let share = |before: u64, now: u64| now.saturating_sub(before) as f64 / wall * 100.0;
        (wall > 0.0).then(|| Self {
            user: share(before.cpu.user_ns, now.cpu.user_ns),
            system: share(before.cpu.system_ns, now.cpu.system_ns),
        })
    }

    fn all(&self) -> f64 {
        self.user + self.system
    }
}

fn samples(
    page: &mut Page<'_>,
    metric: &Metric,
    node: &NodeFacts,
    measured: &[Measured],
    get: impl Fn(&Measured) -> Option<f64>,
) -> fmt::Result {
    let found: Vec<(&Measured, String, f64)> =
        measured.iter().filter_map(|one| Some((one, one.attempt.alloc.to_string(), get(one)?))).collect();
    page.gauges(
        metric,
        found.iter().map(|(one, id, value)| {
            let spec = &one.alloc.spec;
            let labels = [
                &*node.id,
                &node.datacenter,
                &node.class,
                &node.pool,
                &*spec.job_key.namespace,
                &*spec.job_key.id,
                &*spec.group,
                id,
                &*one.attempt.task,
            ];
            (labels, *value)
        }),
    )
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::UnixNanos;

    use super::*;
    use herdlet_driver::CpuUsage;

    fn used(at_s: i64, user_ms: u64, system_ms: u64) -> Usage {
        let cpu = CpuUsage {
            user_ns: user_ms * 1_000_000,
            system_ns: system_ms * 1_000_000,
            ..CpuUsage::default()
        };
        Usage { at: UnixNanos(at_s * 1_000_000_000), cpu, ..Usage::default() }
    }

    #[test]
    fn shares_are_those_between_two_measurements() {
        let shares = Shares::between(&used(10, 100, 50), &used(12, 1_100, 550)).unwrap();
        assert_eq!((shares.user, shares.system, shares.all()), (50.0, 25.0, 75.0));
        assert!(Shares::between(&used(10, 0, 0), &used(10, 5, 5)).is_none(), "no time has passed");
        // Time of processes that have ended may be missing.
        assert_eq!(Shares::between(&used(10, 9, 9), &used(11, 0, 0)).unwrap().all(), 0.0);
    }
}
