//! Follows the reports of all drivers while the agent runs.
//!
//! In: the registry, and the attempts that the agent has recorded. Out: exits and events of attempts on a channel; fingerprints
//! and links, back into the registry. A driver instance is followed from when it is added until it is removed or replaced:
//!
//! ```text
//! new ──► attach: hand over the recorded attempts ──► every one of them is inspected ──► follow exits and events
//!                              ▲                                                                   │ one of them ends
//!                              └──────────── wait, inspect again ◄──── broken: it counts as away ◄─┘
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures_util::StreamExt as _;
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinSet},
    time::sleep,
};

use super::{Entries, Link, Registry};
use crate::{AttemptId, Exited, Fingerprint, Health, TaskDriver, TaskEvent};

/// The first wait before a driver one of whose streams ended is asked for a new one; doubles up to [`AGAIN_MAX`]. Both values
/// are Nomad's.
const AGAIN_MIN: Duration = Duration::from_secs(5);
const AGAIN_MAX: Duration = Duration::from_secs(120);

/// A driver's report about its attempts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DriverNews {
    /// A driver instance was attached while the agent ran, and finds these attempts on the machine.
    Attached {
        /// The driver's name.
        driver: String,
        /// The attempts.
        found: Vec<AttemptId>,
    },
    /// An attempt exited.
    Exited(Exited),
    /// Another event of an attempt.
    Event(TaskEvent),
}

/// The attempts of the driver of that name that the agent has recorded as started and not as ended.
pub type Recorded = Arc<dyn Fn(&str) -> BTreeSet<AttemptId> + Send + Sync>;

/// A driver that is followed.
struct Followed {
    driver: Arc<dyn TaskDriver>,
    task: AbortHandle,
}

/// What following each driver needs.
#[derive(Clone)]
struct Follower {
    registry: Registry,
    recorded: Recorded,
    news: mpsc::Sender<DriverNews>,
}

/// Nobody receives news any more.
struct Closed;

impl Registry {
    /// Follows all drivers until the receiver of `news` is dropped.
    ///
    /// # Panics
    /// If following a driver panicked: its exits would be lost.
    pub async fn follow(self, recorded: Recorded, news: mpsc::Sender<DriverNews>) {
        let mut entries = self.watch();
        let mut tasks = JoinSet::new();
        let mut followed = BTreeMap::new();
        let follower = Follower { registry: self, recorded, news };
        loop {
            let now = Arc::clone(&entries.borrow_and_update());
            follower.adapt(&now, &mut followed, &mut tasks);
            tokio::select! {
                changed = entries.changed() => if changed.is_err() { return },
                () = follower.news.closed() => return,
                Some(ended) = tasks.join_next() => {
                    if let Err(error) = ended && let Ok(panic) = error.try_into_panic() {
                        std::panic::resume_unwind(panic);
                    }
                }
            }
        }
    }
}

impl Follower {
    fn adapt(&self, now: &Entries, followed: &mut BTreeMap<String, Followed>, tasks: &mut JoinSet<()>) {
        followed.retain(|name, known| {
            let stays = now.get(name).is_some_and(|entry| Arc::ptr_eq(&entry.driver, &known.driver));
            if !stays {
                known.task.abort();
            }
            stays
        });
        for (name, entry) in now.iter() {
            if !followed.contains_key(name) {
                let driver = Arc::clone(&entry.driver);
                let task = tasks.spawn(self.clone().follow_driver(Arc::clone(&driver)));
                followed.insert(name.to_owned(), Followed { driver, task });
            }
        }
    }

    async fn follow_driver(self, driver: Arc<dyn TaskDriver>) {
        tokio::select! {
            Closed = self.follow_attempts(&driver) => {}
            () = follow_fingerprints(&self.registry, &driver) => {}
        }
    }

    async fn follow_attempts(&self, driver: &Arc<dyn TaskDriver>) -> Closed {
        let mut delay = AGAIN_MIN;
        loop {
            // Open before the attempts are inspected, so that no exit is missed in between.
            let (mut exits, mut events) = (driver.exits(), driver.events());
            if let Err(Closed) = self.link(driver).await {
                return Closed;
            }
            // Reserve capacity first: a report that is taken while the channel is full would be lost if the driver is replaced.
            loop {
                let Ok(room) = self.news.reserve().await else { return Closed };
                let report = tokio::select! {
                    exit = exits.next() => exit.map(DriverNews::Exited),
                    event = events.next() => event.map(DriverNews::Event),
                };
                let Some(report) = report else { break };
                delay = AGAIN_MIN;
                room.send(report);
            }
            if self.registry.link(driver).is_none() {
                // It was removed or replaced.
                return std::future::pending().await;
            }
            self.registry.set_link(driver, Link::Broken);
            let name = &driver.info().name;
            tracing::warn!(
                driver = name,
                delay_s = delay.as_secs(),
                "the driver no longer reports the exits of its tasks; connecting again"
            );
            sleep(delay).await;
            delay = (delay * 2).min(AGAIN_MAX);
        }
    }

    /// Attaches the instance if it is new. Has all recorded attempts inspected, unless it was attached at the agent's start:
    /// then they are inspected anyway.
    async fn link(&self, driver: &Arc<dyn TaskDriver>) -> Result<(), Closed> {
        let name = &driver.info().name;
        let recorded = match self.registry.link(driver) {
            Some(Link::Attached) | None => return Ok(()),
            Some(Link::Broken) => {
                self.registry.set_link(driver, Link::Attached);
                (self.recorded)(name)
            }
            Some(Link::New) => {
                let mut delay = AGAIN_MIN;
                loop {
                    let recorded = (self.recorded)(name);
                    let recoveries = self.recoveries(driver);
                    match self.registry.attach(driver, &recorded).await {
                        Ok(found) => {
                            self.send(DriverNews::Attached { driver: name.clone(), found }).await?;
                            break recorded;
                        }
                        Err(error) => {
                            tracing::warn!(
                                driver = name,
                                error = error.why(),
                                delay_s = delay.as_secs(),
                                "failed to list the tasks of the driver; retrying"
                            );
                        }
                    }
                    tokio::select! {
                        () = sleep(delay) => {}
                        () = self.recovers(driver, recoveries) => {}
                    }
                    delay = (delay * 2).min(AGAIN_MAX);
                }
            }
        };
        for id in recorded {
            self.send(DriverNews::Event(TaskEvent::Drift { id })).await?;
        }
        Ok(())
    }

    /// How often the driver has begun to work.
    fn recoveries(&self, driver: &Arc<dyn TaskDriver>) -> u64 {
        self.registry.entries.borrow().of(driver).map_or(0, |entry| entry.recoveries)
    }

    /// Waits until the driver has begun to work more often than this. What happened before the call counts: it may begin to work
    /// while a list that fails is under way.
    async fn recovers(&self, driver: &Arc<dyn TaskDriver>, recoveries: u64) {
        let mut entries = self.registry.watch();
        let has_recovered =
            |entries: &Arc<Entries>| entries.of(driver).is_some_and(|entry| entry.recoveries > recoveries);
        if entries.wait_for(has_recovered).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    async fn send(&self, news: DriverNews) -> Result<(), Closed> {
        self.news.send(news).await.map_err(|_| Closed)
    }
}

async fn follow_fingerprints(registry: &Registry, driver: &Arc<dyn TaskDriver>) {
    let mut delay = AGAIN_MIN;
    loop {
        let mut fingerprints = driver.fingerprint();
        while let Some(fingerprint) = fingerprints.next().await {
            delay = AGAIN_MIN;
            registry.set_fingerprint(driver, fingerprint);
        }
        let description = "failed to fingerprint driver".to_owned();
        let unhealthy = Fingerprint { health: Health::Unhealthy, description, attributes: BTreeMap::new() };
        registry.set_fingerprint(driver, unhealthy);
        sleep(delay).await;
        delay = (delay * 2).min(AGAIN_MAX);
    }
}
