//! Removes images that tasks have used and no task uses any more: after some time, or earlier if their engine's disk is nearly full.
//!
//! An image is in use while the record of an attempt names it, or a container has it, also one of others. Only images that were fetched
//! for a task are removed: one that people have built or loaded may exist nowhere else.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bollard::query_parameters::RemoveImageOptionsBuilder;
use herdlet_api_types::UnixNanos;
use herdlet_base::clock::wall_now;
use herdlet_driver::{AttemptId, DriverError, DriverResult, ImageUse, ImageView};
use herdlet_runtime::off_thread;
use tokio::time::{self, Instant};

use super::Shared;
use crate::{
    engine::Place,
    failure::{self, Meaning},
    images::{self, LocalImage},
    records::{Record, RecordClaim},
    used::UsedImage,
};

/// How often unused images are looked for. A shorter delay shortens it.
const PERIOD_MAX: Duration = Duration::from_secs(60);
const PERIOD_MIN: Duration = Duration::from_millis(500);

/// How long an image is kept for an attempt that never starts.
const CLAIM_MAX: Duration = Duration::from_secs(3_600);

/// Images of attempts that are being prepared, since when.
pub(super) type Preparing = Mutex<BTreeMap<AttemptId, (Instant, (String, Place))>>;

/// How long an image is kept on a disk that is nearly full: most tasks that failed have started again by then.
const RESTART_MAX: Duration = Duration::from_secs(60);

/// Whether a directory is on a disk that is nearly full.
pub(super) type IsShort = Arc<dyn Fn(&Path) -> bool + Send + Sync>;

/// What became of an image that was to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removal {
    Removed,
    /// It is in use, is not the one that was fetched, or is gone already.
    Kept,
}

/// How long the engine of an allocation without records is known. It waits for its next attempt.
const ENGINE_AGE: Duration = Duration::from_secs(7 * 86_400);

pub(super) async fn run(shared: Arc<Shared>) {
    let forgetting = shared.on_disk(|shared| {
        let failed = |error| DriverError::retry(format!("look for engines of allocations: {error}"));
        shared.records.forget_engines(ENGINE_AGE).map_err(failed)
    });
    if let Err(error) = forgetting.await {
        tracing::debug!(error = error.why(), "engines of allocations that are gone are kept");
    }
    let Some(delay) = shared.policy.image_delay else { return };
    let period = (delay / 2).clamp(PERIOD_MIN, PERIOD_MAX);
    let collecting = async {
        loop {
            time::sleep(period).await;
            if let Err(error) = shared.collect(delay).await {
                tracing::debug!(error = error.why(), "failed to look for unused images");
            }
            let is_short = is_short(shared.policy.image_free_percent);
            if let Err(error) = shared.make_room(None, early(delay), is_short).await {
                tracing::debug!(
                    error = error.why(),
                    "failed to look for images on a disk that is nearly full"
                );
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

    /// The images that attempts use now, with their engines. Blocking.
    pub(super) fn images_in_use(&self) -> DriverResult<BTreeSet<(String, Place)>> {
        let mut in_use: BTreeSet<(String, Place)> = {
            let mut preparing = self.preparing.lock().unwrap_or_else(PoisonError::into_inner);
            preparing.retain(|_, (since, _)| since.elapsed() < CLAIM_MAX);
            preparing.values().map(|(_, image)| image.clone()).collect()
        };
        in_use.extend(self.users()?.into_iter().map(|(_, record, engine)| (record.image, engine)));
        Ok(in_use)
    }

    pub(super) fn recorded(&self) -> DriverResult<Vec<AttemptId>> {
        self.records.list().map_err(|error| DriverError::retry(format!("list the records: {error}")))
    }

    /// Removes the images whose last use is longer ago than this.
    pub(super) async fn collect(self: &Arc<Self>, delay: Duration) -> DriverResult<()> {
        for used in self.on_disk(move |shared| shared.unused(delay)).await? {
            if let Err(error) = self.remove_image(&used).await {
                tracing::debug!(error = error.why(), "failed to remove an image");
            }
        }
        Ok(())
    }

    /// Removes images that are unused for at least this time, oldest first, as long as the directory of their engine is short of
    /// space. Returns how many it has removed. Looks at one engine, or at all of them.
    pub(super) async fn make_room(
        self: &Arc<Self>,
        only: Option<&Place>,
        age: Duration,
        is_short: IsShort,
    ) -> DriverResult<u32> {
        let mut unused = self.on_disk(move |shared| shared.unused(age)).await?;
        unused.retain(|used| only.is_none_or(|place| used.engine == *place));
        unused.sort_by_key(|used| used.at_s);
        let mut removed = 0;
        for used in unused {
            let about = self.engine(used.engine.clone()).about();
            let root = about.map(|about| about.root.clone()).unwrap_or_default();
            let is_short = Arc::clone(&is_short);
            if !self.on_disk(move |_| Ok(is_short(Path::new(&root)))).await? {
                continue;
            }
            match self.remove_image(&used).await {
                Ok(Removal::Removed) => removed += 1,
                Ok(Removal::Kept) => {}
                Err(error) => tracing::debug!(error = error.why(), "failed to remove an image"),
            }
        }
        Ok(removed)
    }

    /// The images whose last use is longer ago than this. Notes those that are in use. Blocking.
    fn unused(&self, delay: Duration) -> DriverResult<Vec<UsedImage>> {
        let mut all = self.used_images()?;
        if all.is_empty() {
            return Ok(all);
        }
        let in_use = self.images_in_use()?;
        let delay_s = i64::try_from(delay.as_secs()).unwrap_or(i64::MAX);
        all.retain(|used| {
            let is_in_use = in_use.contains(&(used.image.clone(), used.engine.clone()));
            if is_in_use {
                self.note_image(&used.image, &used.engine);
            }
            !is_in_use && now_s().saturating_sub(used.at_s) >= delay_s
        });
        Ok(all)
    }

    fn used_images(&self) -> DriverResult<Vec<UsedImage>> {
        let failed = |error| DriverError::retry(format!("list the images that tasks have used: {error}"));
        self.used.list().map_err(failed)
    }

    /// Reads or writes files where this may block.
    async fn on_disk<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> DriverResult<T> + Send + 'static,
    ) -> DriverResult<T> {
        let shared = Arc::clone(self);
        let done = off_thread(move || work(&shared)).await;
        done.unwrap_or_else(|error| Err(DriverError::retry(format!("read the files of images: {error}"))))
    }

    /// The images that tasks use or have used.
    pub(super) async fn images(self: &Arc<Self>) -> DriverResult<Vec<ImageView>> {
        let (all, users) = self.on_disk(|shared| Ok((shared.used_images()?, shared.users()?))).await?;
        let mut users = self.with_sizes(users).await;
        let mut views = Vec::new();
        for used in all {
            let engine = self.engine(used.engine.clone());
            let failed = |error| failure::retry(&format!("find the image {}", used.image), &error);
            let local = match engine.reach().await {
                Ok(client) => images::local(&client, &used.image).await.map_err(failed)?,
                // An engine that is gone has no images; one that tasks are placed on is only down.
                Err(_) if used.engine != self.current().place || self.is_replaced() => None,
                Err(why) => return Err(DriverError::retry(why)),
            };
            let local = local.unwrap_or_default();
            views.push(ImageView {
                driver: self.info.name.clone(),
                digest: local.digest,
                size_bytes: local.size_bytes,
                last_used: UnixNanos(used.at_s.saturating_mul(1_000_000_000)),
                used_by: users.remove(&(used.image.clone(), used.engine)).unwrap_or_default(),
                name: used.image,
                claimed_by: Vec::new(),
            });
        }
        Ok(views)
    }

    /// The attempts that use images now. Blocking.
    fn users(&self) -> DriverResult<Vec<(AttemptId, Record, Place)>> {
        let mut users = Vec::new();
        for id in self.recorded()? {
            if let Some(record) = self.record(&id)?.filter(|record| record.claim == RecordClaim::Taken)
                && let Some(place) = record.engine.clone()
            {
                users.push((id, record, place));
            }
        }
        Ok(users)
    }

    /// The users of each image, with what their containers have written.
    async fn with_sizes(
        self: &Arc<Self>,
        users: Vec<(AttemptId, Record, Place)>,
    ) -> BTreeMap<(String, Place), Vec<ImageUse>> {
        let mut sizes = BTreeMap::new();
        let mut of_images: BTreeMap<(String, Place), Vec<ImageUse>> = BTreeMap::new();
        for (id, record, place) in users {
            if !sizes.contains_key(&place) {
                let engine = self.engine(place.clone());
                sizes.insert(place.clone(), engine.writable_bytes(&self.owner).await.unwrap_or_default());
            }
            let writable_bytes = sizes.get(&place).and_then(|sizes| sizes.get(&id.name()).copied());
            let user = ImageUse { alloc: id.alloc, alloc_name: String::new(), task: id.task, writable_bytes };
            of_images.entry((record.image, place)).or_default().push(user);
        }
        of_images
    }

    async fn remove_image(self: &Arc<Self>, used: &UsedImage) -> DriverResult<Removal> {
        let engine = self.engine(used.engine.clone());
        let client = &engine.reach().await.map_err(DriverError::retry)?;
        let failed = |error| failure::retry(&format!("find the image {}", used.image), &error);
        let Some(found) = images::local(client, &used.image).await.map_err(failed)? else {
            return self.forget_image(used).await.map(|()| Removal::Kept);
        };
        // One that was superseded is known by its id; a name of it is somebody else's.
        let is_named = found.id == used.image && !found.names.is_empty();
        if Some(&found.id) != used.fetched.as_ref() || is_named {
            return Ok(Removal::Kept);
        }
        // Of an image with several names an engine removes one, even of an image in use.
        if engine.has_containers_of(&found.id).await.map_err(DriverError::retry)? {
            return self.note_again(used).await.map(|()| Removal::Kept);
        }
        // A task may have been prepared since the images were listed.
        let claim = (used.image.clone(), used.engine.clone());
        if self.on_disk(move |shared| Ok(shared.images_in_use()?.contains(&claim))).await? {
            return Ok(Removal::Kept);
        }
        let options = RemoveImageOptionsBuilder::new().force(false).build();
        match client.remove_image(&used.image, Some(options), None).await {
            Ok(_) => {
                tracing::info!(image = used.image, "removed an image that no task uses");
                self.forget_image(used).await.map(|()| Removal::Removed)
            }
            Err(error) => match failure::meaning(&error) {
                Meaning::Missing => self.forget_image(used).await.map(|()| Removal::Kept),
                // A container has it. Podman's status is 500.
                Meaning::Conflict | Meaning::Failed | Meaning::Refused | Meaning::Unchanged => {
                    self.note_again(used).await.map(|()| Removal::Kept)
                }
                Meaning::Unreachable => {
                    Err(failure::retry(&format!("remove the image {}", used.image), &error))
                }
            },
        }
    }

    async fn forget_image(self: &Arc<Self>, used: &UsedImage) -> DriverResult<()> {
        let used = used.clone();
        self.on_disk(move |shared| {
            let failed = |error| DriverError::retry(format!("forget the image {}: {error}", used.image));
            shared.used.remove(&used).map_err(failed)
        })
        .await
    }

    async fn note_again(self: &Arc<Self>, used: &UsedImage) -> DriverResult<()> {
        let (image, engine) = (used.image.clone(), used.engine.clone());
        self.on_disk(move |shared| {
            shared.note_image(&image, &engine);
            Ok(())
        })
        .await
    }
}

/// How long an image is kept on a disk that is nearly full, if `delay` is how long it is kept otherwise.
pub(super) fn early(delay: Duration) -> Duration {
    delay.min(RESTART_MAX)
}

/// Whether less than this part of a disk is free for its users.
pub(super) fn is_short(least_percent: u8) -> IsShort {
    Arc::new(move |dir| {
        rustix::fs::statvfs(dir).is_ok_and(|disk| {
            u128::from(disk.f_bavail) * 100 < u128::from(disk.f_blocks) * u128::from(least_percent)
        })
    })
}

fn now_s() -> i64 {
    wall_now().0 / 1_000_000_000
}
