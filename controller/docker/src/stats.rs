//! Statistics of containers: the engine's stream of one container, in the terms of the drivers' contract.
//!
//! In: the engine's samples, about one per second. Out: usage at the requested interval. No stream is opened for a container that
//! nobody measures.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bollard::{
    Docker,
    models::ContainerStatsResponse,
    query_parameters::{InspectContainerOptions, StatsOptionsBuilder},
};
use futures_util::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use herdlet_base::clock::wall_now;
use herdlet_driver::{CpuUsage, DriverResult, MemoryUsage, Usage};
use tokio::time::Instant;

use crate::failure::{self, Meaning};

/// The engine's samples come a little less regularly than once per second.
const SLACK: Duration = Duration::from_millis(250);

/// Processor time at one moment, in nanoseconds: the container's and the machine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times {
    user: u64,
    system: u64,
    machine: u64,
}

/// The times of the last sample of a container. Its share of the processor is computed from them.
pub(crate) type LastTimes = Arc<Mutex<Option<Times>>>;

/// Follows the statistics of a container until it ends.
pub(crate) fn follow(
    client: &Docker,
    container: &str,
    interval: Duration,
    last: LastTimes,
) -> BoxStream<'static, DriverResult<Usage>> {
    let options = StatsOptionsBuilder::new().stream(true).build();
    let samples = client.stats(container, Some(options)).boxed();
    let named = (client.clone(), container.to_owned());
    stream::unfold(
        (samples, Instant::now(), last, named),
        move |(mut samples, mut due, last, named)| async move {
            loop {
                let sample = match samples.next().await? {
                    Ok(sample) => sample,
                    Err(error) => {
                        let error = failure::retry("read statistics", &error);
                        return Some((Err(error), (samples, due, last, named)));
                    }
                };
                if is_empty(&sample) {
                    if has_ended(&named.0, &named.1).await {
                        return None;
                    }
                    continue;
                }
                if Instant::now() + SLACK < due {
                    continue;
                }
                let times = times(&sample);
                let before = last.lock().unwrap_or_else(PoisonError::into_inner).replace(times);
                // The very first sample has no share.
                let Some(before) = before else { continue };
                due = Instant::now() + interval;
                return Some((Ok(usage(&sample, times, before)), (samples, due, last, named)));
            }
        },
    )
    .boxed()
}

/// Reports whether the container no longer runs.
///
/// An engine sends zeros for a container that has ended, and also for one whose figures it could not read this time.
async fn has_ended(client: &Docker, container: &str) -> bool {
    match client.inspect_container(container, None::<InspectContainerOptions>).await {
        Ok(inspected) => inspected.state.and_then(|state| state.running) == Some(false),
        Err(error) => failure::meaning(&error) == Meaning::Missing,
    }
}

/// Reports whether a sample has no figures. Without a memory controller only the processor's time is known.
fn is_empty(sample: &ContainerStatsResponse) -> bool {
    let memory = sample.memory_stats.as_ref().and_then(|memory| memory.usage).unwrap_or(0);
    let time = sample.cpu_stats.as_ref().and_then(|cpu| cpu.cpu_usage.as_ref()?.total_usage).unwrap_or(0);
    memory == 0 && time == 0
}

fn usage(sample: &ContainerStatsResponse, times: Times, before: Times) -> Usage {
    let memory = sample.memory_stats.clone().unwrap_or_default();
    let stats = memory.stats.clone().unwrap_or_default();
    let of = |names: &[&str]| names.iter().find_map(|name| stats.get(*name).copied());
    let passed = times.machine.saturating_sub(before.machine);
    let cores = sample.cpu_stats.as_ref().and_then(|cpu| cpu.online_cpus).unwrap_or(1).max(1);
    let percent = |now: u64, before: u64| match passed {
        0 => 0.0,
        passed => now.saturating_sub(before) as f64 / passed as f64 * f64::from(cores) * 100.0,
    };
    let throttling =
        sample.cpu_stats.as_ref().and_then(|cpu| cpu.throttling_data.clone()).unwrap_or_default();
    Usage {
        at: wall_now(),
        memory: MemoryUsage {
            rss: of(&["total_rss", "rss", "anon"]),
            cache: of(&["total_cache", "cache", "file"]),
            swap: of(&["total_swap", "swap"]),
            mapped_file: of(&["total_mapped_file", "mapped_file", "file_mapped"]),
            usage: memory.usage,
            usage_max: memory.max_usage,
            kernel: of(&["kernel_stack"]),
        },
        cpu: CpuUsage {
            user_ns: times.user,
            system_ns: times.system,
            user_percent: percent(times.user, before.user),
            system_percent: percent(times.system, before.system),
            throttled_periods: throttling.throttled_periods,
            throttled_ns: throttling.throttled_time,
        },
        pids: Vec::new(),
    }
}

fn times(sample: &ContainerStatsResponse) -> Times {
    let cpu = sample.cpu_stats.clone().unwrap_or_default();
    let usage = cpu.cpu_usage.unwrap_or_default();
    let of = |value: Option<u64>| value.unwrap_or(0);
    let (user, system) = (of(usage.usage_in_usermode), of(usage.usage_in_kernelmode));
    // Some engines know only the sum.
    let user = if user + system == 0 { of(usage.total_usage) } else { user };
    Times { user, system, machine: of(cpu.system_cpu_usage) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine without a memory controller had no figures at all.
    #[test]
    fn samples_of_a_container_that_has_ended_are_zero() {
        let of = |text: &str| is_empty(&serde_json::from_str(text).unwrap());
        assert!(
            of("{\"memory_stats\": {}, \"cpu_stats\": {\"cpu_usage\": {\"total_usage\": 0}}}") && of("{}")
        );
        assert!(!of("{\"memory_stats\": {}, \"cpu_stats\": {\"cpu_usage\": {\"total_usage\": 5}}}"));
        assert!(!of("{\"memory_stats\": {\"usage\": 1}}"));
    }
}
