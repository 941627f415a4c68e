//! Usage of the machine's processors, under Nomad's names.
//!
//! In: `/proc/stat` (proc_stat(5)). Out: samples: shares of the time since the previous page; on the first page,
//! since the machine was started.

use std::fmt;

use herdlet_plan::env::NodeFacts;

use super::{Metric, Page, gauge};

const LABELS: [&str; 5] = ["node_id", "datacenter", "node_class", "node_pool", "cpu"];

const PERCENT: Metric =
    gauge("nomad_client_host_cpu_total_percent", "Time that the processor was busy, in percent.", &LABELS);
const USER: Metric =
    gauge("nomad_client_host_cpu_user", "Time that the processor was in user mode, in percent.", &LABELS);
const SYSTEM: Metric =
    gauge("nomad_client_host_cpu_system", "Time that the processor was in the kernel, in percent.", &LABELS);
const IDLE: Metric =
    gauge("nomad_client_host_cpu_idle", "Time that the processor was idle, in percent.", &LABELS);
const TICKS: Metric =
    gauge("nomad_client_host_cpu_total_ticks", "How busy the processor was, in MHz.", &LABELS);

/// The speed of one core of this machine.
#[derive(Debug, Clone, Copy)]
pub(in crate::telemetry) struct Clock {
    pub(in crate::telemetry) core_mhz: f64,
}

/// The time that a processor has spent since the machine was started, in ticks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Processor {
    name: String,
    user: u64,
    system: u64,
    idle: u64,
    total: u64,
}

impl Processor {
    /// Parses each processor in `/proc/stat`.
    pub(super) fn each(stat: &str) -> Vec<Self> {
        stat.lines().filter_map(Self::of).collect()
    }

    /// `cpuN user nice system idle iowait irq softirq steal …`; the line of the sums has no number.
    fn of(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let name = words.next().filter(|name| name.len() > 3 && name.starts_with("cpu"))?;
        // The guests' times after these are included in the user's.
        let times: Vec<u64> = words.take(8).map_while(|word| word.parse().ok()).collect();
        let &[user, nice, system, idle, wait, ..] = &*times else { return None };
        let total = times.iter().sum();
        Some(Self { name: name.to_owned(), user: user + nice, system, idle: idle + wait, total })
    }

    /// The name, such as `cpu0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The shares of user, system and idle time since `before`, in percent. Idle if no time has passed.
    #[expect(clippy::cast_precision_loss, reason = "a metric needs no more than 52 bits")]
    pub fn since(&self, before: &Self) -> [f64; 3] {
        let total = self.total.saturating_sub(before.total);
        if total == 0 {
            return [0.0, 0.0, 100.0];
        }
        let share = |now: u64, before: u64| now.saturating_sub(before) as f64 / total as f64 * 100.0;
        [
            share(self.user, before.user),
            share(self.system, before.system),
            share(self.idle, before.idle).min(100.0),
        ]
    }
}

/// A metric, and its value from the shares of user, system and idle time and the speed of a core.
type Of = (&'static Metric, fn([f64; 3], f64) -> f64);

pub(super) fn write(
    page: &mut Page<'_>,
    node: &NodeFacts,
    now: &[Processor],
    before: &[Processor],
    clock: Clock,
) -> fmt::Result {
    let none = Processor::default();
    let shares: Vec<(&str, [f64; 3])> = now
        .iter()
        .map(|one| {
            let was = before.iter().find(|was| was.name == one.name).unwrap_or(&none);
            (&*one.name, one.since(was))
        })
        .collect();
    let gauges: [Of; 5] = [
        (&PERCENT, |[_, _, idle], _| 100.0 - idle),
        (&USER, |[user, _, _], _| user),
        (&SYSTEM, |[_, system, _], _| system),
        (&IDLE, |[_, _, idle], _| idle),
        (&TICKS, |[_, _, idle], core_mhz| (100.0 - idle) / 100.0 * core_mhz),
    ];
    for (metric, get) in gauges {
        page.gauges(
            metric,
            shares.iter().map(|(name, shares)| {
                ([&*node.id, &node.datacenter, &node.class, &node.pool, name], get(*shares, clock.core_mhz))
            }),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_the_time_since_then() {
        let before = Processor::each("cpu  9 9 9 9\ncpu0 10 0 10 80 0 0 0 0 5 5\n");
        let now = Processor::each("cpu0 30 10 20 130 10 0 0 0 9 9\nintr 1 2\n");
        assert_eq!((before.len(), now.len()), (1, 1));
        assert_eq!(now[0].since(&before[0]), [30.0, 10.0, 60.0]);
        assert_eq!(now[0].since(&now[0]), [0.0, 0.0, 100.0], "no time has passed");
        assert_eq!(now[0].since(&Processor::default())[2], 70.0, "since the start");
        assert!(Processor::each("cpu0 x\ncpuinfo\n").is_empty());
        assert!(!Processor::each(&std::fs::read_to_string("/proc/stat").unwrap()).is_empty());
    }
}
