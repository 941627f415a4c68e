//! The drivers of this agent by name, and their health.
//!
//! In: drivers that are added and removed, their fingerprints. Out: drivers to call; a table that is replaced at every change, so
//! that each user of drivers follows one watch.

mod follow;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use herdlet_api_types::driver::DriverInfo;
use tokio::sync::watch;

pub use follow::DriverNews;

use super::{Availability, Fingerprint, Health, TaskDriver};

/// The drivers of this agent. Clones share the state.
#[derive(Clone)]
pub struct Registry {
    entries: Arc<watch::Sender<Arc<Entries>>>,
}

/// A snapshot of all drivers.
#[derive(Clone, Default)]
pub struct Entries {
    present: BTreeMap<String, Entry>,
    /// Names of drivers that were removed and not added again.
    departed: BTreeSet<String>,
}

/// A driver and its state.
#[derive(Clone)]
pub struct Entry {
    /// The driver.
    pub driver: Arc<dyn TaskDriver>,
    /// Its name, schema and abilities.
    pub info: Arc<DriverInfo>,
    /// Whether the agent's config enables it.
    pub availability: Availability,
    /// Its last fingerprint; none before the first.
    pub fingerprint: Option<Fingerprint>,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Self { entries: Arc::new(watch::Sender::new(Arc::default())) }
    }

    /// Adds an enabled driver.
    #[must_use]
    pub fn with(self, driver: Arc<dyn TaskDriver>) -> Self {
        self.insert(driver, Availability::Enabled);
        self
    }

    /// Adds a driver under its own name; replaces a driver of the same name.
    pub fn insert(&self, driver: Arc<dyn TaskDriver>, availability: Availability) {
        let info = driver.info();
        self.change(|entries| {
            let name = info.name.clone();
            entries.departed.remove(&name);
            entries.present.insert(name, Entry { driver, info, availability, fingerprint: None });
        });
    }

    /// Removes a driver that has gone away. Its tasks wait until it is added again.
    pub fn remove(&self, name: &str) {
        self.change(|entries| {
            if entries.present.remove(name).is_some() {
                entries.departed.insert(name.to_owned());
            }
        });
    }

    /// Watches all drivers.
    pub fn watch(&self) -> watch::Receiver<Arc<Entries>> {
        self.entries.subscribe()
    }

    /// The driver of that name.
    pub fn get(&self, name: &str) -> Option<Arc<dyn TaskDriver>> {
        self.entries.borrow().get(name).map(|entry| Arc::clone(&entry.driver))
    }

    /// The current snapshot of all drivers.
    pub fn entries(&self) -> Arc<Entries> {
        Arc::clone(&self.entries.borrow())
    }

    /// Sets the fingerprint of a driver. Does nothing if the driver was replaced or removed meanwhile.
    pub fn set_fingerprint(&self, driver: &Arc<dyn TaskDriver>, fingerprint: Fingerprint) {
        let name = &driver.info().name;
        self.entries.send_if_modified(|entries| {
            let current = entries.get(name).filter(|entry| Arc::ptr_eq(&entry.driver, driver));
            let is_news = current.is_some_and(|entry| entry.fingerprint.as_ref() != Some(&fingerprint));
            if is_news && let Some(entry) = Arc::make_mut(entries).present.get_mut(name) {
                entry.fingerprint = Some(fingerprint);
            }
            is_news
        });
    }

    fn change(&self, change: impl FnOnce(&mut Entries)) {
        self.entries.send_modify(|entries| change(Arc::make_mut(entries)));
    }
}

impl Entries {
    /// The driver of that name.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.present.get(name)
    }

    /// All present drivers, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.present.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// The node attributes that ready drivers contribute.
    pub fn attributes(&self) -> BTreeMap<String, String> {
        self.present.values().flat_map(Entry::attributes).collect()
    }

    /// The drivers that tasks have to wait for, with the reason. Disabled drivers are not included: their tasks fail.
    pub fn away(&self) -> BTreeMap<String, String> {
        let departed = self.departed.iter().map(|name| (name.clone(), "it is gone".to_owned()));
        let unwell = self.present.iter().filter_map(|(name, entry)| Some((name.clone(), entry.trouble()?)));
        departed.chain(unwell).collect()
    }
}

impl Entry {
    /// Why it can't start tasks now, if that may change.
    fn trouble(&self) -> Option<String> {
        match (self.availability, &self.fingerprint) {
            (Availability::Disabled, _) => None,
            (Availability::Enabled, None) => Some("it has not reported its health yet".to_owned()),
            (Availability::Enabled, Some(Fingerprint { health, description, .. })) => match health {
                Health::Healthy => None,
                Health::Undetected => Some(format!("it is not detected: {description}")),
                Health::Unhealthy => Some(format!("it does not work: {description}")),
            },
        }
    }

    /// Whether the config enables it and it is healthy.
    pub fn is_ready(&self) -> bool {
        let is_healthy = self.fingerprint.as_ref().is_some_and(|known| known.health == Health::Healthy);
        is_healthy && self.availability == Availability::Enabled
    }

    /// The node attributes that it contributes; none unless it is ready.
    pub fn attributes(&self) -> BTreeMap<String, String> {
        let Some(fingerprint) = self.fingerprint.as_ref().filter(|_| self.is_ready()) else {
            return BTreeMap::new();
        };
        self.info.attributes.clone().into_iter().chain(fingerprint.attributes.clone()).collect()
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.entries.borrow().present.keys()).finish()
    }
}
