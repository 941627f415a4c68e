//! Removes containers of this instance that belong to no task: a request to create one was under way when its attempt was fenced or
//! its agent was killed.
//!
//! A container is recognised by its labels and its name. It belongs to a task if its attempt has a record, which is written before the container and removed after it. Containers of
//! others have no label of this instance and are never touched.

use std::{sync::Arc, time::Duration};

use bollard::models::ContainerSummaryStateEnum as Status;
use herdlet_base::clock::wall_now;
use herdlet_driver::DriverResult;
use tokio::time;

use super::Shared;
use crate::{engine::Engine, names, records::RecordClaim};

/// Nomad's defaults.
const PERIOD: Duration = Duration::from_secs(300);
const GRACE: Duration = Duration::from_secs(300);

pub(super) async fn run(shared: Arc<Shared>) {
    let options = shared.policy.dangling.clone();
    if !options.enabled {
        return;
    }
    let length = |span: Option<herdlet_api_types::manifest::Span>, default| {
        span.map_or(default, |span| span.0.to_std())
    };
    let period = length(options.period, PERIOD).max(Duration::from_secs(1));
    let grace = length(options.creation_grace, GRACE);
    let ended = shared.ended.clone();
    let sweeping = async {
        time::sleep(period.max(grace)).await;
        loop {
            let engines: Vec<Arc<Engine>> = {
                let engines = shared.engines.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                engines.values().map(Arc::clone).collect()
            };
            for engine in engines.iter().filter(|engine| engine.about().is_some()) {
                if let Err(error) = shared.sweep(engine, grace).await {
                    tracing::debug!(error = error.why(), "failed to look for containers without a task");
                }
            }
            if let Err(error) = shared.sweep_pauses(grace).await {
                tracing::debug!(error = error.why(), "failed to look for pause containers without a task");
            }
            time::sleep(period).await;
        }
    };
    ended.run_until_cancelled(sweeping).await;
}

impl Shared {
    /// Removes the containers of an engine that belong to no task.
    pub(super) async fn sweep(self: &Arc<Self>, engine: &Arc<Engine>, grace: Duration) -> DriverResult<()> {
        let all = engine.containers(&self.owner).await.map_err(herdlet_driver::DriverError::retry)?;
        let now_s = wall_now().0 / 1_000_000_000;
        let grace_s = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
        for container in all {
            let (Some(id), Some(name)) = (names::owned(&container, &self.owner), container.id) else {
                continue;
            };
            let has_ended = matches!(container.state, Some(Status::EXITED | Status::DEAD));
            if has_ended && !self.policy.remove_containers {
                continue;
            }
            let is_new = container.created.is_none_or(|created| now_s.saturating_sub(created) < grace_s);
            let lock = self.runs.lock(&id);
            let _held = lock.lock().await;
            let is_claimed = match self.record(&id)? {
                Some(record) => record.claim == RecordClaim::Taken,
                // Its record is lost, but the agent knows it.
                None => self.earlier.has(&id),
            };
            if is_new || is_claimed || self.runs.get(&id).is_some() {
                continue;
            }
            if self.policy.dangling.dry_run {
                tracing::info!(container = name, attempt = %id, "this container belongs to no task (dry_run)");
                continue;
            }
            tracing::warn!(container = name, attempt = %id, "removing a container that belongs to no task");
            self.outdate_lists(wall_now());
            let client = &engine.reach().await.map_err(herdlet_driver::DriverError::retry)?;
            if let Err(error) = self.remove_listed(client, &name, container.state).await {
                tracing::warn!(error = error.why(), container = name, "failed to remove a container");
            }
        }
        Ok(())
    }
}
