//! Supervision of a plugin's task: it must be ready in time, and is described again from time to time.
//!
//! In: a function that describes the plugin, limits. Out: a report at each change, and the reason if the plugin was not ready
//! in time. The caller ends the supervision with the task, and decides what follows from a report.

use std::time::Duration;

use herdlet_runtime::Backoff;
use tokio::time::{Instant, sleep, timeout_at};

use crate::description::{PluginDescription, UnusableError};

/// What has changed about a plugin.
#[derive(Debug, Clone, PartialEq)]
pub enum PluginHealth {
    /// It is ready; or its description has changed, for instance the id of its node.
    Healthy(Box<PluginDescription>),
    Unhealthy {
        why: String,
    },
}

/// The plugin was never ready.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("start the CSI plugin: it was not ready within {} s: {why}", limit.as_secs_f64())]
pub struct OverdueError {
    pub limit: Duration,
    pub why: String,
}

/// Nomad's default for `health_timeout`.
pub const HEALTH_TIMEOUT: Duration = Duration::from_secs(30);

/// Between tries: a plugin that is ready soon is used soon. Nomad waits 5 s between all.
const BACKOFF: Backoff =
    Backoff { base: Duration::from_millis(100), factor: 2, max: Duration::from_secs(5), jitter_percent: 0 };

/// Between descriptions of a plugin that was ready once, as in Nomad.
const INTERVAL: Duration = Duration::from_secs(30);

/// Supervises a plugin until the future is dropped.
///
/// # Errors
///
/// If the plugin is not ready within `limit`. Once it was ready, it is supervised without a limit.
pub async fn supervise(
    limit: Duration,
    describe: impl AsyncFn() -> Result<PluginDescription, UnusableError>,
    mut report: impl FnMut(PluginHealth),
) -> Result<std::convert::Infallible, OverdueError> {
    let mut known = first(limit, &describe).await?;
    report(known.clone());
    loop {
        sleep(INTERVAL).await;
        let found = match describe().await {
            Ok(description) => PluginHealth::Healthy(Box::new(description)),
            Err(error) => PluginHealth::Unhealthy { why: error.to_string() },
        };
        if found != known {
            report(found.clone());
            known = found;
        }
    }
}

/// The first description.
async fn first(
    limit: Duration,
    describe: &impl AsyncFn() -> Result<PluginDescription, UnusableError>,
) -> Result<PluginHealth, OverdueError> {
    let deadline = Instant::now() + limit;
    let mut why = "no response".to_owned();
    let mut attempt = 0;
    loop {
        attempt += 1;
        match timeout_at(deadline, describe()).await {
            Ok(Ok(description)) => return Ok(PluginHealth::Healthy(Box::new(description))),
            Ok(Err(error)) => why = error.to_string(),
            // `why` is from the last call that ended, which is more precise.
            Err(_) => return Err(OverdueError { limit, why }),
        }
        if timeout_at(deadline, sleep(BACKOFF.delay(attempt, 0))).await.is_err() {
            return Err(OverdueError { limit, why });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, collections::BTreeSet};

    use super::*;
    use crate::{
        identity::PluginInfo,
        node::{NodeFeature, NodeInfo},
    };

    type DescribeResult = Result<PluginDescription, UnusableError>;

    fn plugin(node_id: &str) -> DescribeResult {
        let info = PluginInfo { name: "p".to_owned(), version: "1".to_owned() };
        let node = NodeInfo { id: node_id.to_owned(), volumes_max: None, topology: None };
        let node = crate::description::NodeDescription {
            info: node,
            features: BTreeSet::from([NodeFeature::Stage]),
        };
        Ok(PluginDescription { info, features: BTreeSet::new(), node: Some(node), controller: None })
    }

    fn starting() -> DescribeResult {
        Err(UnusableError::Starting { plugin: "p".to_owned() })
    }

    /// Supervises a plugin that is described by `at` (seconds) for `length`. Returns the reports with their seconds.
    async fn watch(
        limit: u64,
        length: u64,
        at: impl Fn(f64) -> DescribeResult,
    ) -> (Vec<(f64, String)>, Option<OverdueError>) {
        let begin = Instant::now();
        let second = || begin.elapsed().as_secs_f64();
        let reports = RefCell::new(Vec::new());
        let report = |health| {
            let text = match health {
                PluginHealth::Healthy(found) => found.node.map(|node| node.info.id).unwrap_or_default(),
                PluginHealth::Unhealthy { why } => why,
            };
            reports.borrow_mut().push((second(), text));
        };
        let work = supervise(Duration::from_secs(limit), async || at(second()), report);
        let ended = tokio::time::timeout(Duration::from_secs(length), work).await;
        (reports.into_inner(), ended.ok().and_then(Result::err))
    }

    #[tokio::test(start_paused = true)]
    async fn only_changes_are_reported() {
        let (reports, ended) = watch(30, 200, |second| match second {
            0.0..1.0 => starting(),
            1.0..100.0 => plugin("n1"),
            100.0..160.0 => starting(),
            _ => plugin("n2"),
        })
        .await;
        let starting = "use the CSI plugin `p`: it reports that it is not initialized yet";
        // 0.1 + 0.2 + 0.4 + 0.8 s, then every 30 s.
        let expected = [(1.5, "n1"), (121.5, starting), (181.5, "n2")];
        let reports: Vec<_> =
            reports.iter().map(|(at, text)| ((at * 10.0).round() / 10.0, text.as_str())).collect();
        assert_eq!((reports.as_slice(), ended), (&expected[..], None));
    }

    /// FLAW of Nomad before 1.8.11: such a plugin stayed broken. Here the caller gets the reason, for the restart policy.
    #[tokio::test(start_paused = true)]
    async fn a_plugin_that_is_never_ready_ends_with_the_reason() {
        let (reports, ended) = watch(30, 3600, |_| starting()).await;
        assert_eq!(reports, []);
        assert_eq!(
            ended.map(|error| error.to_string()).as_deref(),
            Some(
                "start the CSI plugin: it was not ready within 30 s: use the CSI plugin `p`: it reports that it is not \
                 initialized yet"
            )
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_plugin_that_hangs_is_not_waited_for_beyond_the_limit() {
        let begin = Instant::now();
        let limit = Duration::from_secs(10);
        let ended = supervise(limit, async || std::future::pending().await, |_| {}).await;
        assert_eq!(ended, Err(OverdueError { limit, why: "no response".to_owned() }));
        assert_eq!(begin.elapsed(), limit);
    }
}
