//! What an attempt uses, measured again and again.

use std::{sync::Arc, time::Duration};

use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use tokio::time::{Instant, MissedTickBehavior};

use super::{Shared, off_thread, supervise};
use crate::drivers::{
    cgroup::Cgroup,
    process_tree,
    task::{AttemptId, CpuUsage, DriverResult, Usage},
};

/// The shortest distance of two measurements.
const INTERVAL_MIN: Duration = Duration::from_millis(10);

struct Last {
    at: Instant,
    cpu_ns: u64,
}

/// Measurements until the attempt ends, the first one at once.
pub(super) fn stream(
    shared: &Arc<Shared>,
    id: &AttemptId,
    interval: Duration,
) -> DriverResult<BoxStream<'static, DriverResult<Usage>>> {
    let (live, record) = shared.running(id)?;
    let cgroup = shared.cgroup(id);
    let mut ticks = tokio::time::interval(interval.max(INTERVAL_MIN));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let start = (live, ticks, None::<Last>);
    Ok(stream::unfold(start, move |(live, mut ticks, last)| {
        let (cgroup, shim) = (cgroup.clone(), record.shim.pid);
        async move {
            tokio::select! {
                biased;
                _ = live.ended() => return None,
                _ = ticks.tick() => {}
            }
            let usage = match off_thread(move || Ok(measure(cgroup.as_ref(), shim))).await {
                Ok(usage) => usage,
                Err(error) => return Some((Err(error), (live, ticks, last))),
            };
            let now =
                Last { at: Instant::now(), cpu_ns: usage.cpu.user_ns.saturating_add(usage.cpu.system_ns) };
            let cpu = CpuUsage { percent: percent(last.as_ref(), &now), ..usage.cpu };
            let usage = Usage { at: supervise::now(), cpu, ..usage };
            Some((Ok(usage), (live, ticks, Some(now))))
        }
    })
    .boxed())
}

fn measure(cgroup: Option<&Cgroup>, shim: u32) -> Usage {
    if let Some(cgroup) = cgroup {
        return cgroup.usage();
    }
    let mut pids = process_tree::members(shim);
    pids.retain(|pid| *pid != shim);
    Usage { memory: process_tree::memory(&pids), cpu: process_tree::cpu(&pids), pids, ..Usage::default() }
}

fn percent(last: Option<&Last>, now: &Last) -> f64 {
    let Some(last) = last else { return 0.0 };
    let wall = now.at.duration_since(last.at).as_secs_f64();
    // Without a cgroup the time of ended processes is missing from the sum, so it may shrink.
    let busy = Duration::from_nanos(now.cpu_ns.saturating_sub(last.cpu_ns)).as_secs_f64();
    if wall > 0.0 { busy / wall * 100.0 } else { 0.0 }
}
