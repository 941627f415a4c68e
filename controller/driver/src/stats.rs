//! Resource usage of a task, and how to follow it.

use std::{sync::Arc, time::Duration};

use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use herdlet_api_types::UnixNanos;

use super::{AttemptId, DriverError, DriverResult, FailureClass, TaskDriver};

/// The first wait after a statistics stream failed or closed; doubles up to [`REARM_DELAY_MAX`].
const REARM_DELAY_MIN: Duration = Duration::from_secs(1);
/// The longest wait. It limits how often a broken driver is called while a task runs for months.
const REARM_DELAY_MAX: Duration = Duration::from_secs(120);

/// Resource usage of a task at one moment. `None` means that the machine does not measure the value.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Usage {
    /// When it was measured.
    pub at: UnixNanos,
    /// Memory.
    pub memory: MemoryUsage,
    /// Processor time.
    pub cpu: CpuUsage,
    /// The processes of the task.
    pub pids: Vec<u32>,
}

/// Memory in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Anonymous memory.
    pub rss: Option<u64>,
    /// Page cache.
    pub cache: Option<u64>,
    /// Swapped out.
    pub swap: Option<u64>,
    /// Files mapped into memory.
    pub mapped_file: Option<u64>,
    /// All memory that counts against the limit.
    pub usage: Option<u64>,
    /// The maximum of `usage` so far.
    pub usage_max: Option<u64>,
    /// Memory the kernel uses on the task's behalf.
    pub kernel: Option<u64>,
}

/// Processor time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CpuUsage {
    /// Time in user mode since the start, in nanoseconds.
    pub user_ns: u64,
    /// Time in the kernel since the start, in nanoseconds.
    pub system_ns: u64,
    /// Share of one core in user mode since the last measurement, in percent; 400 where four cores were busy.
    pub user_percent: f64,
    /// The same in the kernel.
    pub system_percent: f64,
    /// How often the limit throttled the task.
    pub throttled_periods: Option<u64>,
    /// How long the limit throttled the task, in nanoseconds.
    pub throttled_ns: Option<u64>,
}

enum Following {
    Arming { delay: Duration },
    Reading { samples: BoxStream<'static, DriverResult<Usage>>, delay: Duration },
}

/// Follows the statistics of an attempt.
///
/// A stream that fails or closes is opened again after a delay, which doubles from 1 s to 2 min and is reset by the next
/// measurement. Ends when the attempt is gone or the driver has no statistics.
pub fn follow_stats(
    driver: Arc<dyn TaskDriver>,
    id: AttemptId,
    interval: Duration,
) -> BoxStream<'static, Usage> {
    let start = Following::Arming { delay: Duration::ZERO };
    stream::unfold((driver, id, start), move |(driver, id, mut state)| async move {
        loop {
            state = match state {
                Following::Arming { delay } => {
                    tokio::time::sleep(delay).await;
                    let delay = (delay * 2).clamp(REARM_DELAY_MIN, REARM_DELAY_MAX);
                    match driver.stats(&id, interval).await {
                        Ok(samples) => Following::Reading { samples, delay },
                        Err(error) if is_final(&error) => return None,
                        Err(error) => {
                            tracing::debug!(%id, %error, "failed to open statistics");
                            Following::Arming { delay }
                        }
                    }
                }
                Following::Reading { mut samples, delay } => match samples.next().await {
                    Some(Ok(usage)) => {
                        let delay = REARM_DELAY_MIN;
                        return Some((usage, (driver, id, Following::Reading { samples, delay })));
                    }
                    Some(Err(error)) if is_final(&error) => return None,
                    Some(Err(error)) => {
                        tracing::debug!(%id, %error, "failed to read statistics");
                        Following::Arming { delay }
                    }
                    None => Following::Arming { delay },
                },
            }
        }
    })
    .boxed()
}

fn is_final(error: &DriverError) -> bool {
    match error.class() {
        FailureClass::Fatal | FailureClass::NoProgram => true,
        FailureClass::Retry | FailureClass::Recoverable => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use herdlet_api_types::AllocId;
    use tokio::time::Instant;

    use super::*;
    use crate::fixture::StandIn;

    /// A driver whose first stream yields one measurement; later streams close or fail at once. Open number `opens_max` reports
    /// the attempt as gone.
    fn broken(opens: Arc<AtomicU32>, opens_max: u32) -> StandIn {
        StandIn::default().with_stats(move |id| match opens.fetch_add(1, Ordering::Relaxed) {
            nth if nth == opens_max => Err(DriverError::Gone(id.clone())),
            0 => Ok(stream::iter([Ok(Usage::default())]).boxed()),
            nth if nth % 3 == 0 => Err(DriverError::retry("open it")),
            nth if nth % 3 == 1 => Ok(stream::empty().boxed()),
            _ => Ok(stream::iter([Err(DriverError::retry("read it"))]).boxed()),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_broken_stream_is_armed_again_in_growing_distances() {
        let opens = Arc::new(AtomicU32::new(0));
        let driver: Arc<dyn TaskDriver> = Arc::new(broken(Arc::clone(&opens), 12));
        let id = AttemptId { alloc: AllocId::from_hash([1; 16]), task: "t".into(), attempt: 1 };
        let began = Instant::now();
        let seen = follow_stats(Arc::clone(&driver), id.clone(), Duration::from_secs(1)).count().await;
        assert_eq!(seen, 1);
        // 1 + 2 + 4 + … + 64, then 120 each.
        assert_eq!(began.elapsed().as_secs(), 127 + 5 * 120);
        assert_eq!(opens.load(Ordering::Relaxed), 13);
        let signal = driver.signal(&id, "SIGHUP").await.map_err(|error| error.to_string());
        assert_eq!(signal, Err("sending signals is not supported by this driver".to_owned()));
    }
}
