//! Removes images that tasks have used and no task uses any more.
//!
//! An image is in use while the record of an attempt names it, or a container has it, whoever created that. Only images that were fetched
//! for a task are removed: one that people have built or loaded may exist nowhere else.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bollard::query_parameters::RemoveImageOptionsBuilder;
use herdlet_api_types::UnixNanos;
use herdlet_base::clock::wall_now;
use herdlet_driver::{AttemptId, DriverError, DriverResult, ImageUse, ImageView};
use tokio::time::{self, Instant};

use super::Shared;
use crate::{
    engine::Place,
    failure::{self, Meaning},
    images::{self, LocalImage},
    records::RecordClaim,
    used::UsedImage,
};

/// How often unused images are looked for. A shorter delay shortens it.
const PERIOD_MAX: Duration = Duration::from_secs(60);
const PERIOD_MIN: Duration = Duration::from_millis(500);

/// How long an image is kept for an attempt that never starts.
const CLAIM_MAX: Duration = Duration::from_secs(3_600);

/// Images of attempts that are being prepared, since when.
pub(super) type Preparing = Mutex<BTreeMap<AttemptId, (Instant, (String, Place))>>;

/// How long the engine of an allocation without records is known. It waits for its next attempt.
const ENGINE_AGE: Duration = Duration::from_secs(7 * 86_400);

pub(super) async fn run(shared: Arc<Shared>) {
    if let Err(error) = shared.records.forget_engines(ENGINE_AGE) {
        tracing::debug!(%error, "failed to look for engines of allocations that are gone");
    }
    let Some(delay) = shared.policy.image_delay else { return };
    let period = (delay / 2).clamp(PERIOD_MIN, PERIOD_MAX);
    let collecting = async {
        loop {
            time::sleep(period).await;
            if let Err(error) = shared.collect(delay).await {
                tracing::debug!(error = error.why(), "failed to look for unused images");
            }
        }
    };
    shared.ended.run_until_cancelled(collecting).await;
}

impl Shared {
    /// Notes that a task uses an image now.
    pub(super) fn note_image(&self, image: &str, engine: &Place) {
        self.note_fetched(image, engine, None);
    }

    /// Notes that an image was fetched for a task, by its id.
    pub(super) fn note_fetched(&self, image: &str, engine: &Place, fetched: Option<String>) {
        if image.is_empty() {
            return;
        }
        let used = UsedImage { image: image.to_owned(), engine: engine.clone(), at_s: now_s(), fetched };
        if let Err(error) = self.used.note(&used) {
            tracing::debug!(%error, image, "failed to note the use of an image");
        }
    }

    /// Notes that a pull has given an image its name. The one that had it is removed like others if it was pulled, too.
    pub(super) fn note_pulled(
        &self,
        name: &str,
        engine: &Place,
        older: Option<LocalImage>,
        pulled: &LocalImage,
    ) {
        let fetched = self.used.get(name, engine).and_then(|used| used.fetched);
        if let Some(older) =
            older.filter(|older| older.id != pulled.id && Some(&older.id) == fetched.as_ref())
        {
            self.note_fetched(&older.id, engine, fetched);
        }
        self.note_fetched(name, engine, Some(pulled.id.clone()));
    }

    /// Keeps an image for an attempt that has no record yet.
    pub(super) fn claim_image(&self, id: &AttemptId, image: &str, engine: &Place) {
        let claim = (Instant::now(), (image.to_owned(), engine.clone()));
        self.preparing.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), claim);
    }

    pub(super) fn release_image(&self, id: &AttemptId) {
        self.preparing.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// The images that attempts use now, with their engines.
    pub(super) fn images_in_use(&self) -> DriverResult<BTreeSet<(String, Place)>> {
        let mut in_use: BTreeSet<(String, Place)> = {
            let mut preparing = self.preparing.lock().unwrap_or_else(PoisonError::into_inner);
            preparing.retain(|_, (since, _)| since.elapsed() < CLAIM_MAX);
            preparing.values().map(|(_, image)| image.clone()).collect()
        };
        for id in self.recorded()? {
            if let Some(record) = self.record(&id)?.filter(|record| record.claim == RecordClaim::Taken)
                && let Some(engine) = record.engine
            {
                in_use.insert((record.image, engine));
            }
        }
        Ok(in_use)
    }

    pub(super) fn recorded(&self) -> DriverResult<Vec<AttemptId>> {
        self.records.list().map_err(|error| DriverError::retry(format!("list the records: {error}")))
    }

    /// Removes the images whose last use is longer ago than this.
    pub(super) async fn collect(self: &Arc<Self>, delay: Duration) -> DriverResult<()> {
        let failed = |error| DriverError::retry(format!("list the images that tasks have used: {error}"));
        let all = self.used.list().map_err(failed)?;
        if all.is_empty() {
            return Ok(());
        }
        let in_use = self.images_in_use()?;
        let delay_s = i64::try_from(delay.as_secs()).unwrap_or(i64::MAX);
        for used in all {
            if in_use.contains(&(used.image.clone(), used.engine.clone())) {
                self.note_image(&used.image, &used.engine);
            } else if now_s().saturating_sub(used.at_s) >= delay_s
                && let Err(error) = self.remove_image(&used).await
            {
                tracing::debug!(error = error.why(), "failed to remove an image");
            }
        }
        Ok(())
    }

    /// The images that tasks use or have used.
    pub(super) async fn images(self: &Arc<Self>) -> DriverResult<Vec<ImageView>> {
        let failed = |error| DriverError::retry(format!("list the images that tasks have used: {error}"));
        let mut users: BTreeMap<(String, Place), Vec<ImageUse>> = BTreeMap::new();
        let mut sizes = BTreeMap::new();
        for id in self.recorded()? {
            let Some(record) = self.record(&id)?.filter(|record| record.claim == RecordClaim::Taken) else {
                continue;
            };
            let Some(place) = record.engine else { continue };
            if !sizes.contains_key(&place) {
                let engine = self.engine(place.clone());
                sizes.insert(place.clone(), engine.writable_bytes(&self.owner).await.unwrap_or_default());
            }
            let writable_bytes = sizes.get(&place).and_then(|sizes| sizes.get(&id.name()).copied());
            let (alloc, task, alloc_name) = (id.alloc, id.task.clone(), String::new());
            let user = ImageUse { alloc, alloc_name, task, writable_bytes };
            users.entry((record.image, place)).or_default().push(user);
        }
        let mut views = Vec::new();
        for used in self.used.list().map_err(failed)? {
            let engine = self.engine(used.engine.clone());
            let local = match engine.reach().await {
                Ok(client) => images::local(&client, &used.image).await.ok().flatten(),
                Err(_) => None,
            };
            let local = local.unwrap_or_default();
            views.push(ImageView {
                driver: self.info.name.clone(),
                digest: local.digest,
                size_bytes: local.size_bytes,
                last_used: UnixNanos(used.at_s.saturating_mul(1_000_000_000)),
                used_by: users.remove(&(used.image.clone(), used.engine)).unwrap_or_default(),
                name: used.image,
            });
        }
        Ok(views)
    }

    async fn remove_image(self: &Arc<Self>, used: &UsedImage) -> DriverResult<()> {
        let engine = self.engine(used.engine.clone());
        let client = &engine.reach().await.map_err(DriverError::retry)?;
        let failed = |error| failure::retry(&format!("find the image {}", used.image), &error);
        let forget = || {
            let failed = |error| DriverError::retry(format!("forget the image {}: {error}", used.image));
            self.used.remove(used).map_err(failed)
        };
        let Some(found) = images::local(client, &used.image).await.map_err(failed)? else {
            return forget();
        };
        // One that was superseded is known by its id; a name of it is somebody else's.
        let is_named = found.id == used.image && !found.names.is_empty();
        if Some(&found.id) != used.fetched.as_ref() || is_named {
            return Ok(());
        }
        // Of an image with several names an engine removes one, whoever uses the image.
        if engine.has_containers_of(&found.id).await.map_err(DriverError::retry)? {
            self.note_image(&used.image, &used.engine);
            return Ok(());
        }
        let options = RemoveImageOptionsBuilder::new().force(false).build();
        match client.remove_image(&used.image, Some(options), None).await {
            Ok(_) => {
                tracing::info!(image = used.image, "removed an image that no task uses");
                forget()
            }
            Err(error) => match failure::meaning(&error) {
                Meaning::Missing => forget(),
                // A container has it. Podman's status is 500.
                Meaning::Conflict | Meaning::Failed | Meaning::Refused | Meaning::Unchanged => {
                    self.note_image(&used.image, &used.engine);
                    Ok(())
                }
                Meaning::Unreachable => {
                    Err(failure::retry(&format!("remove the image {}", used.image), &error))
                }
            },
        }
    }
}

fn now_s() -> i64 {
    wall_now().0 / 1_000_000_000
}
