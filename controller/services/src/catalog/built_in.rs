//! The built-in catalogue: what this agent itself knows of services, for templates and the API.
//!
//! In: registrations by owner, and ids of single ones that somebody wants gone. Out: the same, by name, and whose services were
//! changed behind the planner's back. It must not know which of them are wanted. It lives in memory: a new agent fills it with what
//! runs before it answers anybody, and the planner, which asks for every part anew, makes it right.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use herdlet_api_types::service::Registration;
use herdlet_base::sight::Sight;

use tokio::sync::{mpsc, watch};

use super::{CatalogEvent, ServiceOwner};

/// The built-in catalogue.
#[derive(Debug, Default)]
pub struct BuiltIn {
    held: Mutex<BTreeMap<ServiceOwner, Vec<Registration>>>,
    /// How often it has changed.
    version: watch::Sender<u64>,
    /// Who is told of what was not changed by [`BuiltIn::up`] and [`BuiltIn::down`].
    events: Option<mpsc::Sender<CatalogEvent>>,
}

impl BuiltIn {
    /// An empty one that tells of what was removed.
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

    /// Takes back what it holds for `owner`.
    pub fn down(&self, owner: &ServiceOwner) {
        if self.held().remove(owner).is_some() {
            self.version.send_modify(|version| *version += 1);
        }
    }

    /// Removes one registration and tells of it. Whether there was one.
    pub async fn remove(&self, namespace: &str, id: &str) -> bool {
        let Some(owner) = self.take(namespace, id) else { return false };
        self.version.send_modify(|version| *version += 1);
        if let Some(events) = &self.events {
            // Nobody listens any more where the agent ends, and with it the catalogue.
            let _ = events.send(CatalogEvent::Changed(owner)).await;
        }
        true
    }

    /// Whose it was.
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

    /// How often it has changed. What is read after this is no older.
    pub fn version(&self) -> u64 {
        *self.version.borrow()
    }

    /// Waits until it has changed after `version`.
    pub async fn changed(&self, version: u64) {
        // Ends without a change only with the catalogue.
        let _ = self.version.subscribe().wait_for(|now| *now > version).await;
    }

    /// Whether it holds exactly `registrations` for `owner`.
    pub fn look(&self, owner: &ServiceOwner, registrations: &[Registration]) -> Sight {
        match self.held().get(owner).map(Vec::as_slice) {
            None if registrations.is_empty() => Sight::Present,
            None => Sight::Absent,
            Some(held) if held == registrations => Sight::Present,
            Some(_) => Sight::foreign("other services are registered than should"),
        }
    }

    /// All registrations, in order of their ids.
    pub fn all(&self) -> Vec<Registration> {
        self.select(|_| true)
    }

    /// All registrations that are wanted, in order of their ids.
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
