//! Watching a Consul agent: what changes behind our back, and the results of checks.
//!
//! In: what should be there. Out: [`CatalogEvent`]s. Consul 1.8 has no event for the services of its own agent as a whole, but the
//! servers' view of the node (`/v1/catalog/node`, `/v1/health/node`) answers when it changes. So two blocking queries, whatever the
//! number of services, say *when* to look; the agent's own lists, which are the truth, say what there is. Should the servers be out of
//! reach or hidden from our token, a look every half minute remains.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use backon::{BackoffBuilder as _, ExponentialBuilder};
use herdlet_api_types::service::{CheckResult, CheckStatus, RegisteredCheck, Registration};
use serde::Deserialize;
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{CheckEntry, Consul, Entry, META_INSTANCE, mark};
use crate::drivers::{
    catalog::{CatalogEvent, CatalogFailure, ServiceOwner},
    checks::{CheckReport, wall_now},
};

/// How long a change may go unnoticed when nothing tells of it.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Changes come in bursts; one look serves a burst.
const LOOK_PAUSE: Duration = Duration::from_millis(200);

/// Half of what the delays may reach: jitter doubles them at most.
const BACKOFF_MAX: Duration = Duration::from_secs(15);

/// Results of checks by owner and check.
type Results = BTreeMap<(ServiceOwner, String), CheckResult>;

impl Consul {
    /// Watches until `stop`, or until nobody listens to `events`. While nothing is registered it asks nothing.
    pub async fn watch(self: Arc<Self>, events: mpsc::Sender<CatalogEvent>, stop: CancellationToken) {
        let poke = Notify::new();
        let work = async {
            tokio::join!(
                self.follow("/v1/catalog/node/", &poke),
                self.follow("/v1/health/node/", &poke),
                self.look_when_poked(&events, &poke),
            );
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = events.closed() => {}
            () = work => {}
        }
    }

    /// Pokes whenever what the servers know of this node changes.
    async fn follow(&self, path: &str, poke: &Notify) {
        let mut node = None;
        let mut index = 0;
        let mut delays = backoff();
        loop {
            self.until_something_is_held().await;
            match self.follow_once(path, &mut node, index).await {
                Ok(newer) => {
                    delays = backoff();
                    if newer != index {
                        poke.notify_one();
                    }
                    // Going backwards means other servers: begin anew (Consul's rule for blocking queries).
                    index = if newer < index { 0 } else { newer.max(1) };
                }
                Err(failure) => {
                    tracing::debug!(why = %failure.why, "no news from Consul");
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
        node: &mut Option<String>,
        index: u64,
    ) -> Result<u64, CatalogFailure> {
        let name = match node {
            Some(name) => name,
            None => node.insert(self.node_name().await?),
        };
        let path = format!("{path}{}", super::path_part(name));
        Ok(self.api.wait_newer(&path, index).await?.index)
    }

    async fn node_name(&self) -> Result<String, CatalogFailure> {
        let about: AgentSelf = self.api.get("/v1/agent/self", &[]).await?;
        Ok(about.config.node_name)
    }

    async fn look_when_poked(&self, events: &mpsc::Sender<CatalogEvent>, poke: &Notify) {
        let mut results = Results::new();
        let mut delays = backoff();
        let mut next_look = Instant::now() + LOOK_EVERY;
        loop {
            self.until_something_is_held().await;
            tokio::select! {
                () = poke.notified() => {}
                () = self.changed.notified() => {}
                () = tokio::time::sleep_until(next_look) => {}
            }
            tokio::time::sleep(LOOK_PAUSE).await;
            match self.news(&mut results).await {
                Ok(news) => {
                    delays = backoff();
                    next_look = Instant::now() + LOOK_EVERY;
                    for event in news {
                        if events.send(event).await.is_err() {
                            return;
                        }
                    }
                }
                Err(failure) => {
                    tracing::debug!(why = %failure.why, "Consul can't be looked at");
                    next_look = Instant::now() + delays.next().unwrap_or(BACKOFF_MAX);
                }
            }
        }
    }

    /// Compares what the agent holds with what it should hold, and checks with their last results.
    async fn news(&self, results: &mut Results) -> Result<Vec<CatalogEvent>, CatalogFailure> {
        // What is settled only after the lists were made can't be compared with them.
        let asked_at = self.clock.load(Ordering::Relaxed);
        let entries = self.list_entries(&mark(META_INSTANCE, &self.instance.to_string())).await?;
        let checks = self.list_checks("^_(herdlet|nomad)-task-").await?;
        let mut news = Vec::new();
        let mut known = BTreeSet::new();
        for (owner, held) in
            self.held().iter_mut().filter(|(_, held)| held.settled.is_some_and(|seen| seen < asked_at))
        {
            let own: BTreeMap<String, Entry> = entries
                .iter()
                .filter(|(_, entry)| entry.is_of(owner))
                .map(|(id, entry)| (id.clone(), entry.clone()))
                .collect();
            if std::mem::take(&mut held.tell_again) {
                results.retain(|(of, _), _| of != owner);
            }
            if self.difference(&held.registrations, &own, &checks).is_some() {
                // Told once: whoever hears it looks, and settles it again.
                held.settled = None;
                news.push(CatalogEvent::Changed(owner.clone()));
            }
            for registration in &held.registrations {
                // What a command says is told by whoever runs it.
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
        let held = self.held();
        results.retain(|key, _| known.contains(key) || held.contains_key(&key.0));
        Ok(news)
    }

    async fn until_something_is_held(&self) {
        // The sender lives in `self`.
        let _ = self.held_count.subscribe().wait_for(|count| *count > 0).await;
    }
}

/// The check's new result, if its status differs from the last one told. Pending is where every check begins.
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
