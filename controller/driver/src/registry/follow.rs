//! Follows the reports of all drivers while the agent runs.
//!
//! In: the registry. Out: exits and events of attempts on a channel; fingerprints, back into the registry. A driver is followed
//! from when it is added until it is removed or replaced.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinSet},
    time::sleep,
};

use super::{Entries, Registry};
use crate::{Exited, Fingerprint, Health, TaskDriver, TaskEvent};

/// The first wait before a driver whose fingerprint stream ended is asked for a new one; doubles up to [`AGAIN_MAX`]. Both values
/// are Nomad's.
const AGAIN_MIN: Duration = Duration::from_secs(5);
const AGAIN_MAX: Duration = Duration::from_secs(120);

/// A driver's report about an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DriverNews {
    /// An attempt exited.
    Exited(Exited),
    /// Another event of an attempt.
    Event(TaskEvent),
}

/// A driver that is followed.
struct Followed {
    driver: Arc<dyn TaskDriver>,
    task: AbortHandle,
}

impl Registry {
    /// Follows all drivers until the receiver of `news` is dropped.
    ///
    /// # Panics
    /// If following a driver panicked: its exits would be lost.
    pub async fn follow(self, news: mpsc::Sender<DriverNews>) {
        let mut entries = self.watch();
        let mut tasks = JoinSet::new();
        let mut followed = BTreeMap::new();
        loop {
            let now = Arc::clone(&entries.borrow_and_update());
            self.adapt(&now, &mut followed, &mut tasks, &news);
            tokio::select! {
                changed = entries.changed() => if changed.is_err() { return },
                () = news.closed() => return,
                Some(ended) = tasks.join_next() => {
                    if let Err(error) = ended && let Ok(panic) = error.try_into_panic() {
                        std::panic::resume_unwind(panic);
                    }
                }
            }
        }
    }

    fn adapt(
        &self,
        now: &Entries,
        followed: &mut BTreeMap<String, Followed>,
        tasks: &mut JoinSet<()>,
        news: &mpsc::Sender<DriverNews>,
    ) {
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
                let task = tasks.spawn(follow_driver(self.clone(), Arc::clone(&driver), news.clone()));
                followed.insert(name.to_owned(), Followed { driver, task });
            }
        }
    }
}

async fn follow_driver(registry: Registry, driver: Arc<dyn TaskDriver>, news: mpsc::Sender<DriverNews>) {
    let exits = driver.exits().map(DriverNews::Exited);
    let events = driver.events().map(DriverNews::Event);
    let mut all = stream::select(exits, events);
    let reports = async {
        // Reserve capacity first: a report that is taken while the channel is full would be lost if the driver is replaced.
        while let Ok(room) = news.reserve().await {
            let Some(report) = all.next().await else { return };
            room.send(report);
        }
    };
    tokio::join!(reports, follow_fingerprints(&registry, &driver));
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
