//! Finding the engine and the container of an attempt.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bollard::{Docker, models::ContainerInspectResponse, query_parameters::InspectContainerOptions};
use herdlet_api_types::UnixNanos;
use herdlet_driver::{AttemptId, DriverError, DriverResult};

use tokio::time;

use super::Shared;
use crate::{
    engine::{Engine, State},
    failure::{self, Meaning, settled},
    names,
    records::Record,
};

/// How long a list may take. The start of the agent waits for it; a driver that can't list its attempts is attached later.
const LIST_MAX: Duration = Duration::from_secs(10);

/// When an engine was asked for its first list, and the attempts in it.
pub(super) type FirstList = (UnixNanos, BTreeSet<AttemptId>);

impl Shared {
    pub(super) fn record(&self, id: &AttemptId) -> DriverResult<Option<Record>> {
        self.records.read(id).map_err(|error| DriverError::retry(format!("read the record of {id}: {error}")))
    }

    /// The engine of an attempt: its own, its allocation's, or the one for new allocations.
    pub(super) fn engine_of(
        self: &Arc<Self>,
        id: &AttemptId,
        record: Option<&Record>,
    ) -> DriverResult<Arc<Engine>> {
        if let Some(place) = record.and_then(|record| record.engine.clone()) {
            return Ok(self.engine(place));
        }
        let of_alloc = self.records.engine_of(id);
        match of_alloc.map_err(|error| DriverError::retry(format!("read the records of {id}: {error}")))? {
            Some(place) if !self.policy.forgotten.contains(&place.socket) => Ok(self.engine(place)),
            Some(_) | None => Ok(self.current()),
        }
    }

    /// Whether an engine has no containers any more by the options.
    pub(super) fn is_forgotten(&self, engine: &Engine) -> bool {
        self.policy.forgotten.iter().any(|socket| socket == engine.socket())
    }

    /// The container of an attempt; none if it does not exist, or has the attempt's name and is not its own.
    pub(super) async fn find(
        &self,
        client: &Docker,
        id: &AttemptId,
        record: Option<&Record>,
    ) -> DriverResult<Option<ContainerInspectResponse>> {
        let recorded = record.map(|record| record.container.clone()).filter(|name| !name.is_empty());
        let name = recorded.unwrap_or_else(|| names::container(id, &self.owner.instance, self.naming));
        let found = inspect(client, &name).await?;
        Ok(found.filter(|found| self.attempt_of(found).as_ref() == Some(id)))
    }

    /// The attempt that a container is, if it is one of this instance.
    pub(super) fn attempt_of(&self, about: &ContainerInspectResponse) -> Option<AttemptId> {
        let labels = about.config.as_ref()?.labels.as_ref()?;
        names::attempt_of(labels, &self.owner)
    }

    /// All attempts of which there are traces. Those of an engine that is gone are known from their records.
    pub(super) async fn list(self: &Arc<Self>) -> DriverResult<Vec<AttemptId>> {
        let mut found = self.recorded()?;
        let is_unused = found.is_empty();
        let current = self.current();
        let mut engines = vec![Arc::clone(&current)];
        for id in &found {
            if let Some(place) = self.record(id)?.and_then(|record| record.engine)
                && place.socket.exists()
            {
                let engine = self.engine(place);
                if !engines.iter().any(|known| Arc::ptr_eq(known, &engine)) {
                    engines.push(engine);
                }
            }
        }
        for engine in engines {
            // A machine without an engine has no containers either.
            if found.is_empty() && !engine.socket().exists() {
                continue;
            }
            let listed = time::timeout(LIST_MAX, self.attempts_on(&engine)).await;
            let silent = || {
                DriverError::retry(format!(
                    "list the containers of {}: it did not answer in time",
                    engine.place
                ))
            };
            let listed = match listed.map_err(|_| silent()).and_then(|all| all.map_err(DriverError::retry)) {
                // A container without a record is removed by the sweep, once its engine answers.
                Err(error) if is_unused || !Arc::ptr_eq(&engine, &current) || self.is_replaced() => {
                    tracing::debug!(error = error.why(), "only the recorded attempts of an engine are known");
                    continue;
                }
                listed => listed?,
            };
            found.extend(listed);
        }
        found.sort();
        found.dedup();
        Ok(found)
    }

    /// The attempts that have containers. The first call uses the list with which the engine was connected to, if nothing has changed
    /// since: an agent that starts needs no other.
    async fn attempts_on(&self, engine: &Engine) -> Result<Vec<AttemptId>, String> {
        let (mut lists, mut state) = (self.first_lists.subscribe(), engine.watch());
        tokio::select! {
            _ = lists.wait_for(|lists| lists.contains_key(engine.socket())) => {}
            _ = state.wait_for(|state| matches!(state, State::Down { .. })) => {}
        }
        let mut first = None;
        self.first_lists.send_if_modified(|lists| {
            first = lists.get_mut(engine.socket()).and_then(Option::take);
            false
        });
        if let Some((_, first)) = first {
            return Ok(first.into_iter().collect());
        }
        let all = engine.containers(&self.owner).await?;
        Ok(all.iter().filter_map(|container| names::owned(container, &self.owner)).collect())
    }

    /// Containers have changed at this time.
    pub(super) fn outdate_lists(&self, at: UnixNanos) {
        self.first_lists.send_if_modified(|lists| {
            for list in lists.values_mut() {
                list.take_if(|(asked, _)| at >= *asked);
            }
            false
        });
    }
}

/// Inspects a container; none if it does not exist.
pub(super) async fn inspect(client: &Docker, name: &str) -> DriverResult<Option<ContainerInspectResponse>> {
    let inspected = settled(|| client.inspect_container(name, None::<InspectContainerOptions>)).await;
    match inspected {
        Ok(found) => Ok(Some(found)),
        Err(error) if failure::meaning(&error) == Meaning::Missing => Ok(None),
        Err(error) => Err(failure::retry(&format!("inspect the container {name}"), &error)),
    }
}
