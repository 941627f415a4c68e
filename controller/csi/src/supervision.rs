//! Supervision of a plugin's task: it must be ready in time, and is described again from time to time.
//!
//! In: a function that describes the plugin, limits. Out: a report at each change, and one each time that the plugin was not
//! ready within the limit. The caller ends the supervision with the task, and decides what follows from a report.

use std::{convert::Infallible, time::Duration};

use herdlet_runtime::Backoff;
use tokio::time::{Instant, sleep, timeout_at};

use crate::{
    description::{PluginDescription, UnusableError},
    error::{CallError, CallFailure},
};

/// What has changed about a plugin. Reasons are sentences.
#[derive(Debug, Clone, PartialEq)]
pub enum PluginHealth {
    /// It is ready; or its description has changed, for instance the id of its node.
    Healthy(Box<PluginDescription>),
    Unhealthy {
        why: String,
    },
    /// It was not ready within the limit.
    Overdue {
        why: String,
    },
}

/// Between tries: a plugin that is ready soon is used soon. Nomad waits 5 s between all.
const BACKOFF: Backoff =
    Backoff { base: Duration::from_millis(100), factor: 2, max: Duration::from_secs(5), jitter_percent: 0 };

/// Between descriptions of a plugin that was ready once, as in Nomad.
const INTERVAL: Duration = Duration::from_secs(30);

/// Supervises a plugin until the future is dropped.
pub async fn supervise<F: Future<Output = Result<PluginDescription, UnusableError>>>(
    limit: Duration,
    describe: impl Fn() -> F,
    mut report: impl FnMut(PluginHealth),
) -> Infallible {
    let mut known = loop {
        match first(limit, &describe).await {
            Ok(description) => break PluginHealth::Healthy(Box::new(description)),
            Err(why) => report(PluginHealth::Overdue { why }),
        }
        // If the caller lets the plugin run, the supervision goes on.
        sleep(BACKOFF.max).await;
    };
    report(known.clone());
    loop {
        sleep(INTERVAL).await;
        let found = match describe().await {
            Ok(description) => PluginHealth::Healthy(Box::new(description)),
            Err(error) => PluginHealth::Unhealthy { why: format!("failed to {error}") },
        };
        if found != known {
            report(found.clone());
            known = found;
        }
    }
}

/// The first description, or why there was none within the limit.
async fn first<F: Future<Output = Result<PluginDescription, UnusableError>>>(
    limit: Duration,
    describe: &impl Fn() -> F,
) -> Result<PluginDescription, String> {
    let deadline = Instant::now() + limit;
    let mut last = None;
    let mut attempt = 0;
    loop {
        attempt += 1;
        match timeout_at(deadline, describe()).await {
            Ok(Ok(description)) => return Ok(description),
            Ok(Err(error)) => last = Some(error),
            // The error is from the last call that ended, which is more precise.
            Err(_) => return Err(overdue(limit, last)),
        }
        if timeout_at(deadline, sleep(BACKOFF.delay(attempt, 0))).await.is_err() {
            return Err(overdue(limit, last));
        }
    }
}

/// Why a plugin is overdue.
fn overdue(limit: Duration, last: Option<UnusableError>) -> String {
    let remedy = match &last {
        Some(UnusableError::Call(CallError { failure: CallFailure::Unreachable { .. }, .. })) => {
            "; the plugin must serve the socket in CSI_ENDPOINT"
        }
        Some(
            UnusableError::Call(_) | UnusableError::Starting { .. } | UnusableError::NoController { .. },
        )
        | None => "",
    };
    let last = last.map_or_else(|| "it did not respond".to_owned(), |error| format!("failed to {error}"));
    format!(
        "the CSI plugin was not ready within {} s of the start of its task or of the agent: {last}{remedy}",
        limit.as_secs_f64()
    )
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
    async fn watch(limit: u64, length: u64, at: impl Fn(f64) -> DescribeResult) -> Vec<(f64, String)> {
        let begin = Instant::now();
        let second = || begin.elapsed().as_secs_f64();
        let reports = RefCell::new(Vec::new());
        let report = |health| {
            let text = match health {
                PluginHealth::Healthy(found) => found.node.map(|node| node.info.id).unwrap_or_default(),
                PluginHealth::Unhealthy { why } | PluginHealth::Overdue { why } => why,
            };
            reports.borrow_mut().push((second(), text));
        };
        let work = supervise(Duration::from_secs(limit), async || at(second()), report);
        let _ = tokio::time::timeout(Duration::from_secs(length), work).await;
        let rounded = |(at, text): (f64, String)| ((at * 10.0).round() / 10.0, text);
        reports.into_inner().into_iter().map(rounded).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn only_changes_are_reported() {
        let reports = watch(30, 200, |second| match second {
            0.0..1.0 => starting(),
            1.0..100.0 => plugin("n1"),
            100.0..160.0 => starting(),
            _ => plugin("n2"),
        })
        .await;
        let starting = "failed to use the CSI plugin `p`: it reports that it is not initialized yet";
        // 0.1 + 0.2 + 0.4 + 0.8 s, then every 30 s.
        let expected = [(1.5, "n1"), (121.5, starting), (181.5, "n2")];
        let reports: Vec<_> = reports.iter().map(|(at, text)| (*at, text.as_str())).collect();
        assert_eq!(reports, expected);
    }

    /// FLAW of Nomad before 1.8.11: such a plugin stayed broken. Here the caller gets the reason, for the restart policy.
    #[tokio::test(start_paused = true)]
    async fn a_plugin_that_is_not_ready_in_time_is_reported_and_supervised_on() {
        let reports = watch(30, 60, |second| if second < 50.0 { starting() } else { plugin("n1") }).await;
        let why = "the CSI plugin was not ready within 30 s of the start of its task or of the agent: failed to use the CSI \
                   plugin `p`: it reports that it is not initialized yet";
        assert_eq!(reports.first(), Some(&(30.0, why.to_owned())));
        let [_, (_, last)] = reports.as_slice() else { panic!("{reports:?}") };
        assert_eq!(last, "n1");
    }

    #[tokio::test(start_paused = true)]
    async fn the_remedy_of_a_missing_socket_is_named() {
        let failure = CallFailure::Unreachable { socket: "/s".into(), why: "No such file".to_owned() };
        let call = CallError { call: "Identity/Probe".to_owned(), plugin: "p".to_owned(), failure };
        let reports = watch(1, 2, |_| Err(UnusableError::Call(call.clone()))).await;
        let [(_, why)] = reports.as_slice() else { panic!("{reports:?}") };
        assert_eq!(
            why,
            "the CSI plugin was not ready within 1 s of the start of its task or of the agent: failed to call \
             Identity/Probe of the CSI plugin `p`: cannot connect to /s: No such file; the plugin must serve the socket in \
             CSI_ENDPOINT"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_plugin_that_hangs_is_not_waited_for_beyond_the_limit() {
        let reports = RefCell::new(Vec::new());
        let report = |health| reports.borrow_mut().push(health);
        let work = supervise(Duration::from_secs(10), async || std::future::pending().await, report);
        let _ = tokio::time::timeout(Duration::from_secs(11), work).await;
        let why = "the CSI plugin was not ready within 10 s of the start of its task or of the agent: it did not respond";
        assert_eq!(reports.into_inner(), [PluginHealth::Overdue { why: why.to_owned() }]);
    }
}
