//! The built-in catalogue of services, for templates and the API.
//!
//! In: registrations by owner, and ids of single registrations that a user removes. Out: registrations by name, and
//! events for owners whose services were removed externally. This module does not know which registrations are wanted.
//! The catalogue is kept in memory: a new agent fills it with running services before it answers requests, and the
//! planner, which inspects every part again, corrects it.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use herdlet_api_types::service::Registration;
use herdlet_base::observation::Observation;

use tokio::sync::{mpsc, watch};

use super::{CatalogEvent, ServiceOwner};

/// The built-in catalogue.
#[derive(Debug, Default)]
pub struct BuiltIn {
    held: Mutex<BTreeMap<ServiceOwner, Vec<Registration>>>,
    /// The number of changes so far.
    version: watch::Sender<u64>,
    /// Receives changes not made by [`BuiltIn::up`] and [`BuiltIn::down`].
    events: Option<mpsc::Sender<CatalogEvent>>,
}

impl BuiltIn {
    /// An empty catalogue that reports removals.
    pub fn new(events: mpsc::Sender<CatalogEvent>) -> Self {
        Self { events: Some(events), ..Self::default() }
    }

    /// Makes it hold exactly `registrations` for `owner`.
    pub fn up(&self, owner: &ServiceOwner, registrations: Vec<Registration>) {
        if registrations.is_empty() {
            self.down(owner);
        } else {
            self.held().insert(owner.clone(), registrations);
            self.version.send_modify(|version| *version += 1);
        }
    }

    /// Removes the registrations of `owner`.
    pub fn down(&self, owner: &ServiceOwner) {
        if self.held().remove(owner).is_some() {
            self.version.send_modify(|version| *version += 1);
        }
    }

    /// Removes one registration and reports it. Returns whether it existed.
    pub async fn remove(&self, namespace: &str, id: &str) -> bool {
        let Some(owner) = self.take(namespace, id) else { return false };
        self.version.send_modify(|version| *version += 1);
        if let Some(events) = &self.events {
            // Without a receiver the agent is shutting down.
            let _ = events.send(CatalogEvent::Changed(owner)).await;
        }
        true
    }

    /// Removes a registration and returns its owner.
    fn take(&self, namespace: &str, id: &str) -> Option<ServiceOwner> {
        let mut held = self.held();
        let is_it = |one: &Registration| one.id == id && *one.job.namespace == *namespace;
        let owner = held.iter().find(|(_, held)| held.iter().any(is_it))?.0.clone();
        let left = held.get_mut(&owner)?;
        left.retain(|one| !is_it(one));
        if left.is_empty() {
            held.remove(&owner);
        }
        Some(owner)
    }

    /// The number of changes so far. Data read after this call is at least as new.
    pub fn version(&self) -> u64 {
        *self.version.borrow()
    }

    /// Waits until the version is greater than `version`.
    pub async fn changed(&self, version: u64) {
        // The wait fails only when the catalogue is dropped.
        let _ = self.version.subscribe().wait_for(|now| *now > version).await;
    }

    /// Whether it holds exactly `registrations` for `owner`.
    pub fn inspect(&self, owner: &ServiceOwner, registrations: &[Registration]) -> Observation {
        match self.held().get(owner).map(Vec::as_slice) {
            None if registrations.is_empty() => Observation::Present,
            None => Observation::Absent,
            Some(held) if held == registrations => Observation::Present,
            Some(_) => Observation::foreign("the registered services differ from the wanted ones"),
        }
    }

    /// All registrations, ordered by id.
    pub fn all(&self) -> Vec<Registration> {
        self.select(|_| true)
    }

    /// The registrations that match `wanted`, ordered by id.
    pub fn select(&self, wanted: impl Fn(&Registration) -> bool) -> Vec<Registration> {
        let mut found: Vec<_> =
            self.held().values().flatten().filter(|registration| wanted(registration)).cloned().collect();
        found.sort_by(|a, b| a.id.cmp(&b.id));
        found
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<ServiceOwner, Vec<Registration>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
