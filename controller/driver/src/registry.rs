//! The drivers of this agent by name, and how each of them is.
//!
//! In: drivers that come and go, what they say of themselves. Out: drivers to call; a table that is replaced whenever something of it
//! changes, so that whoever depends on drivers follows one watch.

use std::{collections::BTreeMap, fmt, sync::Arc};

use herdlet_api_types::driver::DriverInfo;
use tokio::sync::watch;

use super::{Availability, Fingerprint, Health, TaskDriver};

/// The drivers of this agent. Clones are one.
#[derive(Clone)]
pub struct Registry {
    entries: Arc<watch::Sender<Entries>>,
}

/// All drivers by name, at one moment.
pub type Entries = Arc<BTreeMap<String, Entry>>;

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
        Self { entries: Arc::new(watch::Sender::new(Entries::default())) }
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
            entries.insert(name, Entry { driver, info, availability, fingerprint: None });
        });
    }

    /// The driver of that name.
    pub fn get(&self, name: &str) -> Option<Arc<dyn TaskDriver>> {
        self.entries.borrow().get(name).map(|entry| Arc::clone(&entry.driver))
    }

    /// All drivers as they are now.
    pub fn entries(&self) -> Entries {
        Arc::clone(&self.entries.borrow())
    }

    /// What a driver says of itself from now on. Nothing where it was replaced or removed meanwhile.
    pub fn set_fingerprint(&self, driver: &Arc<dyn TaskDriver>, fingerprint: Fingerprint) {
        let name = &driver.info().name;
        self.entries.send_if_modified(|entries| {
            let current = entries.get(name).filter(|entry| Arc::ptr_eq(&entry.driver, driver));
            let is_news = current.is_some_and(|entry| entry.fingerprint.as_ref() != Some(&fingerprint));
            if is_news && let Some(entry) = Arc::make_mut(entries).get_mut(name) {
                entry.fingerprint = Some(fingerprint);
            }
            is_news
        });
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Entry>)) {
        self.entries.send_modify(|entries| change(Arc::make_mut(entries)));
    }
}

impl Entry {
    /// Whether it is there and works.
    pub fn is_healthy(&self) -> bool {
        self.fingerprint.as_ref().is_some_and(|known| known.health == Health::Healthy)
    }

    /// The attributes that it gives the node now.
    pub fn attributes(&self) -> BTreeMap<String, String> {
        let Some(fingerprint) = self.fingerprint.as_ref().filter(|_| self.is_healthy()) else {
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
        f.debug_list().entries(self.entries.borrow().keys()).finish()
    }
}
