//! Watches a Consul agent for external changes and check results.
//!
//! In: the wanted registrations. Out: [`CatalogEvent`]s. Consul 1.8 has no event for all services of its own agent, but
//! blocking queries on the servers' view of the node (`/v1/catalog/node`, `/v1/health/node`) return when it changes. So
//! two blocking queries, for any number of services, trigger inspections; the agent's own lists, which are
//! authoritative, provide the content. If the servers are unreachable or closed to our token, an inspection every half
//! minute remains.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use backon::{BackoffBuilder as _, ExponentialBuilder};
use herdlet_api_types::service::{CheckResult, CheckStatus, RegisteredCheck, Registration};
use herdlet_base::clock::wall_now;
use serde::Deserialize;
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    Consul,
    desired::{Owners, SyncState},
    entry::CheckEntry,
};
use crate::{
    catalog::{CatalogEvent, CatalogFailure, ServiceOwner},
    report::CheckReport,
};

/// Interval of inspections without a trigger.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// The interval while a failing check may restart a task: only a current result from Consul may do that.
const LOOK_WHILE_COUNTED: Duration = Duration::from_secs(5);

/// The first interval while a check has no result yet; it doubles each time. A new check is critical before its first
/// run, so a first failure is no change that Consul would report.
const LOOK_FOR_FIRST_WORD: Duration = Duration::from_secs(1);

/// Changes come in bursts; one inspection serves a burst.
const LOOK_PAUSE: Duration = Duration::from_millis(200);

/// Half the maximum delay: jitter at most doubles it.
const BACKOFF_MAX: Duration = Duration::from_secs(15);

/// Results of checks by owner and check.
type Results = BTreeMap<(ServiceOwner, String), CheckResult>;

impl Consul {
    /// Watches until `stop`, or until the receiver of `events` is dropped. Sends no request while nothing is
    /// registered.
    pub async fn watch(self: Arc<Self>, events: mpsc::Sender<CatalogEvent>, stop: CancellationToken) {
        let poke = Notify::new();
        let work = async {
            tokio::join!(
                self.follow("/v1/catalog/node/", "Service == \"\"", &poke),
                self.follow("/v1/health/node/", "CheckID == \"\"", &poke),
                self.inspect_when_poked(&events, &poke),
            );
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = events.closed() => {}
            () = work => {}
        }
    }

    /// Notifies `poke` when the servers' view of this node changes. The filter `nothing` removes the content, which is
    /// not needed.
    ///
    /// Not for a namespace that a job names: each of these queries occupies one of the few connections.
    async fn follow(&self, path: &str, nothing: &str, poke: &Notify) {
        if !self.is_whole() {
            return;
        }
        let mut node = None;
        let mut index = 0;
        let mut delays = backoff();
        loop {
            self.held.until_any().await;
            match self.follow_once(path, nothing, &mut node, index).await {
                Ok(newer) => {
                    delays = backoff();
                    if newer != index {
                        poke.notify_one();
                    }
                    // A smaller index means other servers: start again (Consul's rule for blocking queries).
                    index = if newer < index { 0 } else { newer.max(1) };
                }
                Err(failure) => {
                    tracing::debug!(why = %failure.why, "failed to watch Consul");
                    node = None;
                    index = 0;
                    tokio::time::sleep(delays.next().unwrap_or(BACKOFF_MAX)).await;
                }
            }
        }
    }

    async fn follow_once(
        &self,
        path: &str,
        nothing: &str,
        node: &mut Option<String>,
        index: u64,
    ) -> Result<u64, CatalogFailure> {
        let name = match node {
            Some(name) => name,
            None => node.insert(self.node_name().await?),
        };
        let path = format!("{path}{}", super::path_part(name));
        self.api.wait_newer(&path, nothing, index, self.tokens.agent()).await
    }

    async fn node_name(&self) -> Result<String, CatalogFailure> {
        self.api.get("/v1/agent/self", None, self.tokens.agent(), node_of).await
    }

    async fn inspect_when_poked(&self, events: &mpsc::Sender<CatalogEvent>, poke: &Notify) {
        let mut results = Results::new();
        let mut delays = backoff();
        let mut next_look = Instant::now() + LOOK_EVERY;
        let mut first_word = LOOK_FOR_FIRST_WORD;
        loop {
            self.held.until_any().await;
            tokio::select! {
                () = poke.notified() => first_word = LOOK_FOR_FIRST_WORD,
                () = self.held.until_changed() => first_word = LOOK_FOR_FIRST_WORD,
                () = tokio::time::sleep_until(next_look) => first_word = (2 * first_word).min(LOOK_EVERY),
            }
            tokio::time::sleep(LOOK_PAUSE).await;
            match self.news(&mut results).await {
                Ok(news) => {
                    delays = backoff();
                    let is_counted = results.values().any(|result| result.restarts_now().is_some());
                    let wait = match (is_counted, self.awaits_first_result(&results)) {
                        (_, true) => first_word,
                        (true, false) => LOOK_WHILE_COUNTED,
                        (false, false) if self.is_whole() => LOOK_EVERY,
                        (false, false) => LOOK_WHILE_COUNTED,
                    };
                    next_look = Instant::now() + wait;
                    if send_event(events, news).await.is_err() {
                        return;
                    }
                }
                Err(failure) => {
                    tracing::debug!(why = %failure.why, "failed to inspect Consul");
                    next_look = Instant::now() + delays.next().unwrap_or(BACKOFF_MAX);
                    if send_event(events, hearsay(&mut results)).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Whether a check that Consul runs has had no result yet.
    fn awaits_first_result(&self, results: &Results) -> bool {
        let owners = self.held.owners();
        owners.wanted.iter().any(|(owner, wanted)| {
            let mut checks = wanted.registrations.iter().flat_map(|one| &one.checks);
            checks.any(|check| {
                check.kind.has_address() && !results.contains_key(&(owner.clone(), check.id.clone()))
            })
        })
    }

    /// Compares the agent's entries with the wanted ones, and checks with their last results.
    async fn news(&self, results: &mut Results) -> Result<Vec<CatalogEvent>, CatalogFailure> {
        let listing = self.list().await?;
        if !self.leftovers(&listing).is_empty() {
            self.leftovers.notify_one();
        }
        let outdated = self.owners_with_other_tokens().await;
        let mut news = Vec::new();
        let mut known = BTreeSet::new();
        let mut owners = self.held.owners();
        let Owners { wanted, .. } = &mut *owners;
        for (owner, wanted) in wanted.iter_mut() {
            let is_settled = match wanted.known {
                // The running operation reports its own result.
                SyncState::Nothing => continue,
                // That listing is at least as new as this one.
                SyncState::Settled(number) if number >= listing.number => continue,
                SyncState::Settled(_) => true,
                SyncState::Differs => false,
            };
            if std::mem::take(&mut wanted.tell_again) {
                results.retain(|(of, _), _| of != owner);
            }
            let differs = || !self.differences(owner, &wanted.registrations, &listing).is_empty();
            if is_settled && (outdated.contains(owner) || differs()) {
                // Reported once: the receiver inspects, and settles it again.
                wanted.known = SyncState::Differs;
                news.push(CatalogEvent::Changed(owner.clone()));
            }
            for registration in &wanted.registrations {
                let checks = listing.checks(&registration.id);
                // We run commands ourselves, and report their results.
                for check in registration.checks.iter().filter(|check| check.kind.has_address()) {
                    let key = (owner.clone(), check.id.clone());
                    if let Some(entry) = checks.get(&check.id)
                        && let Some(result) = changed(results.get(&key), registration, check, entry)
                    {
                        results.insert(key.clone(), result.clone());
                        news.push(CatalogEvent::Check(CheckReport { alloc: owner.alloc, result }));
                    }
                    known.insert(key);
                }
            }
        }
        results.retain(|key, _| known.contains(key) || wanted.contains_key(&key.0));
        Ok(news)
    }
}

/// Marks failing results that would restart a task as stale, because Consul no longer confirms them. Once it answers
/// again, all results are reported again.
fn hearsay(results: &mut Results) -> Vec<CatalogEvent> {
    let counted = |((owner, _), result): (&(ServiceOwner, String), &CheckResult)| {
        result.restarts_now().map(|_| {
            let result = CheckResult { stale: true, ..result.clone() };
            CatalogEvent::Check(CheckReport { alloc: owner.alloc, result })
        })
    };
    let events = results.iter().filter_map(counted).collect();
    results.clear();
    events
}

/// Fails if the receiver is dropped.
async fn send_event(
    events: &mpsc::Sender<CatalogEvent>,
    news: Vec<CatalogEvent>,
) -> Result<(), mpsc::error::SendError<CatalogEvent>> {
    for event in news {
        events.send(event).await?;
    }
    Ok(())
}

/// The check's new result, if its status differs from the last reported one. Every check begins as pending.
fn changed(
    last: Option<&CheckResult>,
    registration: &Registration,
    check: &RegisteredCheck,
    entry: &CheckEntry,
) -> Option<CheckResult> {
    let status = entry.status();
    if status == last.map_or(CheckStatus::Pending, |last| last.status) {
        return None;
    }
    let pending = CheckResult::pending(registration, check);
    Some(CheckResult { status, output: entry.output(), at: wall_now(), ..pending })
}

fn backoff() -> impl Iterator<Item = Duration> {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(500))
        .with_max_delay(BACKOFF_MAX)
        .with_jitter()
        .without_max_times()
        .build()
}

/// The node's name in the agent's self-description.
pub(super) fn node_of(body: &[u8]) -> Result<String, serde_json::Error> {
    serde_json::from_slice(body).map(|AgentSelf { config }| config.node_name)
}

#[derive(Deserialize)]
struct AgentSelf {
    #[serde(rename = "Config")]
    config: AgentConfig,
}

#[derive(Deserialize)]
struct AgentConfig {
    #[serde(rename = "NodeName")]
    node_name: String,
}
