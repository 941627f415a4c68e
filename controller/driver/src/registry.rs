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

use herdlet_api_types::{
    driver::{DriverInfo, built_in},
    job::{Job, Task},
};
use tokio::sync::watch;

pub use follow::{DriverNews, Recorded};

use super::{AttemptId, Availability, DriverResult, Fingerprint, Health, TaskDriver};

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
    link: Link,
    /// Its last fingerprint; none before the first.
    fingerprint: Option<Fingerprint>,
    /// How often it has begun to work, by its fingerprints.
    recoveries: u64,
}

/// The agent's link to a driver instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    /// The instance has not received the recorded attempts yet.
    New,
    /// It has, and its reports about attempts are followed.
    Attached,
    /// Its reports about attempts have ended.
    Broken,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Self { entries: Arc::new(watch::Sender::new(Arc::default())) }
    }

    /// Adds an enabled driver without recorded attempts.
    #[must_use]
    pub fn with(self, driver: Arc<dyn TaskDriver>) -> Self {
        self.insert(Arc::clone(&driver), Availability::Enabled);
        self.set_link(&driver, Link::Attached);
        self
    }

    /// Adds a driver under its own name; replaces a driver of the same name. No call reaches it before it is
    /// [attached](Self::attach).
    pub fn insert(&self, driver: Arc<dyn TaskDriver>, availability: Availability) {
        let info = driver.info();
        self.change(|entries| {
            let name = info.name.clone();
            entries.departed.remove(&name);
            let link = Link::New;
            let entry = Entry { driver, info, availability, link, fingerprint: None, recoveries: 0 };
            entries.present.insert(name, entry);
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

    /// A warning for each task that its driver would refuse to start, because of the driver's options. Blocking: drivers may query name
    /// services.
    pub fn refusals(&self, jobs: &[Job]) -> Vec<String> {
        let entries = self.entries();
        let warning = |job: &Job, task: &Task| {
            let why = entries.get(&task.driver)?.driver.refusal(task)?;
            Some(format!("job {}, task {}: its start will fail: {why}", job.key(), task.name))
        };
        let tasks = |job: &Job| -> Vec<String> {
            let tasks = job.groups.iter().flat_map(|group| &group.tasks);
            tasks.filter_map(|task| warning(job, task)).collect()
        };
        jobs.iter().flat_map(tasks).collect()
    }

    /// Watches all drivers.
    pub fn watch(&self) -> watch::Receiver<Arc<Entries>> {
        self.entries.subscribe()
    }

    /// The driver of that name, once it is attached.
    pub fn get(&self, name: &str) -> Option<Arc<dyn TaskDriver>> {
        self.entries.borrow().get(name).and_then(Entry::attached).map(Arc::clone)
    }

    /// Hands the recorded attempts over to a driver instance; from then on it gets calls. Returns the attempts that it finds on
    /// the machine.
    ///
    /// # Errors
    /// If it can't list them: it remains unattached.
    pub async fn attach(
        &self,
        driver: &Arc<dyn TaskDriver>,
        recorded: &BTreeSet<AttemptId>,
    ) -> DriverResult<Vec<AttemptId>> {
        driver.set_earlier(recorded);
        let found = driver.list_attempts().await?;
        self.set_link(driver, Link::Attached);
        Ok(found)
    }

    /// The current snapshot of all drivers.
    pub fn entries(&self) -> Arc<Entries> {
        Arc::clone(&self.entries.borrow())
    }

    /// Sets the fingerprint of a driver. Does nothing if the driver was replaced or removed meanwhile.
    pub fn set_fingerprint(&self, driver: &Arc<dyn TaskDriver>, fingerprint: Fingerprint) {
        self.update(driver, |entry| {
            let worked = entry.fingerprint.as_ref().is_some_and(|known| known.health == Health::Healthy);
            let recovers = fingerprint.health == Health::Healthy && !worked;
            let recoveries = entry.recoveries + u64::from(recovers);
            Entry { fingerprint: Some(fingerprint), recoveries, ..entry.clone() }
        });
    }

    fn set_link(&self, driver: &Arc<dyn TaskDriver>, link: Link) {
        self.update(driver, |entry| Entry { link, ..entry.clone() });
    }

    /// The link to a driver; none if it was replaced or removed.
    fn link(&self, driver: &Arc<dyn TaskDriver>) -> Option<Link> {
        self.entries.borrow().of(driver).map(|entry| entry.link)
    }

    fn update(&self, driver: &Arc<dyn TaskDriver>, change: impl FnOnce(&Entry) -> Entry) {
        let name = &driver.info().name;
        self.entries.send_if_modified(|entries| {
            let current = entries.of(driver);
            let Some((current, changed)) = current.map(|entry| (entry, change(entry))) else { return false };
            let is_news = (current.link, &current.fingerprint) != (changed.link, &changed.fingerprint);
            if is_news {
                Arc::make_mut(entries).present.insert(name.clone(), changed);
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

    /// The entry of this instance; none if it was replaced or removed.
    fn of(&self, driver: &Arc<dyn TaskDriver>) -> Option<&Entry> {
        self.get(&driver.info().name).filter(|entry| Arc::ptr_eq(&entry.driver, driver))
    }

    /// All present drivers, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.present.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// The node attributes that ready drivers contribute.
    pub fn attributes(&self) -> BTreeMap<String, String> {
        self.present.values().flat_map(Entry::attributes).collect()
    }

    /// The built-in drivers that the config disables. One that was never enabled is not even open.
    pub fn disabled(&self) -> BTreeSet<String> {
        let is_off = |name: &String| match self.present.get(name) {
            Some(entry) => entry.availability == Availability::Disabled,
            None => !self.departed.contains(name),
        };
        built_in().into_iter().map(|info| info.name).filter(is_off).collect()
    }

    /// The drivers whose prerequisites are missing, with the reason.
    pub fn undetected(&self) -> BTreeMap<String, String> {
        let is_undetected =
            |entry: &Entry| entry.fingerprint().is_some_and(|known| known.health == Health::Undetected);
        let all = self.present.iter().filter(|(_, entry)| is_undetected(entry));
        all.filter_map(|(name, entry)| Some((name.clone(), entry.trouble()?))).collect()
    }

    /// The drivers that tasks have to wait for, with the reason. Disabled drivers are not included: their tasks fail.
    pub fn away(&self) -> BTreeMap<String, String> {
        let departed = self.departed.iter().map(|name| (name.clone(), "it is gone".to_owned()));
        let unwell = self.present.iter().filter_map(|(name, entry)| Some((name.clone(), entry.trouble()?)));
        departed.chain(unwell).collect()
    }
}

impl Entry {
    /// The driver, once it is attached.
    pub fn attached(&self) -> Option<&Arc<dyn TaskDriver>> {
        (self.link != Link::New).then_some(&self.driver)
    }

    /// Whether it has reported its health since it was added.
    pub fn has_reported(&self) -> bool {
        self.fingerprint.is_some()
    }

    /// Its state: its last fingerprint, unless the agent knows better. None before the first fingerprint.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        let because = |health, why: &str| {
            Some(Fingerprint { health, description: why.to_owned(), attributes: BTreeMap::new() })
        };
        match (self.availability, self.link) {
            (Availability::Disabled, _) => because(Health::Undetected, "disabled"),
            (Availability::Enabled, Link::Broken) => because(Health::Unhealthy, REPORTS_ENDED),
            (Availability::Enabled, Link::New | Link::Attached) => self.fingerprint.clone(),
        }
    }

    /// Why it can't start tasks now, if that may change.
    pub fn trouble(&self) -> Option<String> {
        if self.availability == Availability::Disabled {
            return (self.link == Link::New).then(|| NOT_ATTACHED.to_owned());
        }
        let Some(Fingerprint { health, description, .. }) = self.fingerprint() else {
            return Some("it has not reported its health yet".to_owned());
        };
        match health {
            Health::Healthy => (self.link == Link::New).then(|| NOT_ATTACHED.to_owned()),
            Health::Undetected => Some(format!("it is not detected: {description}")),
            Health::Unhealthy => Some(format!("it does not work: {description}")),
        }
    }

    /// Whether the config enables it and it is healthy.
    pub fn is_ready(&self) -> bool {
        self.fingerprint().is_some_and(|known| known.health == Health::Healthy)
    }

    /// The node attributes that it contributes; none unless it is ready.
    pub fn attributes(&self) -> BTreeMap<String, String> {
        match self.fingerprint() {
            Some(Fingerprint { health: Health::Healthy, attributes, .. }) => {
                self.info.attributes.clone().into_iter().chain(attributes).collect()
            }
            Some(_) | None => BTreeMap::new(),
        }
    }
}

/// Why an instance without the recorded attempts gets no calls.
const NOT_ATTACHED: &str = "its earlier tasks have not been listed yet";

/// The description of a driver whose reports have ended. Exits of its tasks would be missed.
const REPORTS_ENDED: &str = "it no longer reports the exits of its tasks";

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
