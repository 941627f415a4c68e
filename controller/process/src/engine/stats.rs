//! Measures the usage of an attempt periodically.

use std::{sync::Arc, time::Duration};

use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use herdlet_driver::{AttemptId, CpuUsage, DriverResult, Usage};
use tokio::time::{Instant, MissedTickBehavior};

use super::{Shared, off_thread};
use crate::{cgroup::Cgroup, process_tree};

/// The shortest interval between two measurements, and the wait of a first measurement for a second one to compare with.
const SPAN_MIN: Duration = Duration::from_millis(100);

/// An older sample does not show current usage: users query every few seconds, and Prometheus once a minute.
const SPAN_MAX: Duration = Duration::from_secs(61);

/// Processor time at a moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    at: Instant,
    user_ns: u64,
    system_ns: u64,
}

/// Streams measurements until the attempt ends. The first one comes at once if any caller measured recently.
pub(super) fn stream(
    shared: &Arc<Shared>,
    id: &AttemptId,
    interval: Duration,
) -> DriverResult<BoxStream<'static, DriverResult<Usage>>> {
    let (live, record) = shared.running(id)?;
    let cgroup = shared.cgroup(id);
    let mut ticks = tokio::time::interval(interval.max(SPAN_MIN));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    Ok(stream::unfold((live, ticks), move |(live, mut ticks)| {
        let (cgroup, shim) = (cgroup.clone(), record.shim.pid);
        async move {
            let measuring = async {
                ticks.tick().await;
                let measure_now = || {
                    let cgroup = cgroup.clone();
                    off_thread(move || Ok(measure(cgroup.as_ref(), shim)))
                };
                let before = match live.sample().filter(|sample| sample.at.elapsed() < SPAN_MAX) {
                    Some(before) => before,
                    None => measure_now().await?.0,
                };
                tokio::time::sleep_until(before.at + SPAN_MIN).await;
                let (now, usage) = measure_now().await?;
                live.set_sample(now);
                Ok(Usage { at: herdlet_base::clock::wall_now(), cpu: now.since(&before, usage.cpu), ..usage })
            };
            let measured = tokio::select! {
                biased;
                _ = live.ended() => return None,
                measured = measuring => measured,
            };
            Some((measured, (live, ticks)))
        }
    })
    .boxed())
}

/// Takes the usage and its timestamp together: waiting for a thread in between would count as idle time.
fn measure(cgroup: Option<&Cgroup>, shim: u32) -> (Sample, Usage) {
    let usage = usage(cgroup, shim);
    let CpuUsage { user_ns, system_ns, .. } = usage.cpu;
    (Sample { at: Instant::now(), user_ns, system_ns }, usage)
}

fn usage(cgroup: Option<&Cgroup>, shim: u32) -> Usage {
    if let Some(cgroup) = cgroup {
        return cgroup.usage();
    }
    let mut pids = process_tree::members(shim);
    pids.retain(|pid| *pid != shim);
    Usage { memory: process_tree::memory(&pids), cpu: process_tree::cpu(&pids), pids, ..Usage::default() }
}

impl Sample {
    fn since(&self, before: &Self, cpu: CpuUsage) -> CpuUsage {
        let wall = self.at.duration_since(before.at).as_secs_f64();
        // Without a cgroup, the sum lacks the time of ended processes, so it may shrink.
        let percent = |now: u64, before: u64| {
            let busy = Duration::from_nanos(now.saturating_sub(before)).as_secs_f64();
            if wall > 0.0 { busy / wall * 100.0 } else { 0.0 }
        };
        let user_percent = percent(self.user_ns, before.user_ns);
        let system_percent = percent(self.system_ns, before.system_ns);
        CpuUsage { user_percent, system_percent, ..cpu }
    }
}
