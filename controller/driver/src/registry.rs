//! The drivers of this agent by name, and how each of them is.
//!
//! In: drivers that come and go, what they say of themselves. Out: drivers to call; a table that is replaced whenever something of it
//! changes, so that each user of drivers follows one watch.

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

/// The drivers of this agent. Clones are one.
#[derive(Clone)]
pub struct Registry {
    entries: Arc<watch::Sender<Arc<Entries>>>,
}

/// All drivers at one moment.
#[derive(Clone, Default)]
pub struct Entries {
    present: BTreeMap<String, Entry>,
    /// Names of drivers that were removed and have not come back.
    departed: BTreeSet<String>,
}

/// A driver, and what is known of it.
#[derive(Clone)]
pub struct Entry {
    /// The driver.
    pub driver: Arc<dyn TaskDriver>,
    /// Its name, schema and abilities.
    pub info: Arc<DriverInfo>,
    /// Whether the agent's config offers it.
    pub availability: Availability,
    /// What it has said of itself last; none before it has said anything.
    pub fingerprint: Option<Fingerprint>,
}

impl Registry {
    /// No drivers.
    pub fn new() -> Self {
        Self { entries: Arc::new(watch::Sender::new(Arc::default())) }
    }

    /// The same with one more driver, which is offered.
    #[must_use]
    pub fn with(self, driver: Arc<dyn TaskDriver>) -> Self {
        self.insert(driver, Availability::Enabled);
        self
    }

    /// Adds a driver under its own name; one of the same name is replaced.
    pub fn insert(&self, driver: Arc<dyn TaskDriver>, availability: Availability) {
        let info = driver.info();
        self.change(|entries| {
            let name = info.name.clone();
            entries.departed.remove(&name);
            entries.present.insert(name, Entry { driver, info, availability, fingerprint: None });
        });
    }

    /// Removes a driver that is no longer there. Its tasks wait until it comes back.
    pub fn remove(&self, name: &str) {
        self.change(|entries| {
            if entries.present.remove(name).is_some() {
                entries.departed.insert(name.to_owned());
            }
        });
    }

    /// All drivers, now and whenever anything of them has changed.
    pub fn watch(&self) -> watch::Receiver<Arc<Entries>> {
        self.entries.subscribe()
    }

    /// The driver of that name.
    pub fn get(&self, name: &str) -> Option<Arc<dyn TaskDriver>> {
        self.entries.borrow().get(name).map(|entry| Arc::clone(&entry.driver))
    }

    /// All drivers as they are now.
    pub fn entries(&self) -> Arc<Entries> {
        Arc::clone(&self.entries.borrow())
    }

    /// What a driver says of itself from now on. Nothing where it was replaced or removed meanwhile.
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

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.present.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// The attributes that drivers give the node now.
    pub fn attributes(&self) -> BTreeMap<String, String> {
        self.present.values().flat_map(Entry::attributes).collect()
    }

    /// The drivers that tasks have to wait for, and why. One that the config turns off is not awaited: its tasks fail.
    pub fn away(&self) -> BTreeMap<String, String> {
        let departed = self.departed.iter().map(|name| (name.clone(), "it is gone".to_owned()));
        let unwell = self.present.iter().filter_map(|(name, entry)| Some((name.clone(), entry.trouble()?)));
        departed.chain(unwell).collect()
    }
}

impl Entry {
    /// Why it can't start tasks now, where that may change.
    fn trouble(&self) -> Option<String> {
        match (self.availability, &self.fingerprint) {
            (Availability::Disabled, _) => None,
            (Availability::Enabled, None) => Some("it has not reported whether it works".to_owned()),
            (Availability::Enabled, Some(Fingerprint { health, description, .. })) => match health {
                Health::Healthy => None,
                Health::Undetected => Some(format!("it is not detected: {description}")),
                Health::Unhealthy => Some(format!("it does not work: {description}")),
            },
        }
    }

    /// Whether the config offers it, and it is there and works.
    pub fn is_ready(&self) -> bool {
        let is_healthy = self.fingerprint.as_ref().is_some_and(|known| known.health == Health::Healthy);
        is_healthy && self.availability == Availability::Enabled
    }

    /// The attributes that it gives the node now.
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
