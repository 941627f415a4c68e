//! The store of images for operators: `herdlet images`.
//!
//! In: orders of people. Out: images, removals, damage, as the API has them. Tasks' images are fetched by `pull`.

use std::{collections::BTreeMap, fs::File, sync::Arc, time::Duration};

use futures_util::{FutureExt as _, future::BoxFuture};
use herdlet_api_types::images::{
    DamagedImage, DamagedLayers, ImagePrune, PruneReport, StoreCheck, StoredImage,
};
use herdlet_base::error::in_full;
use herdlet_driver::{DriverError, DriverResult, ImageStore};
use herdlet_images::{
    Reference,
    digest::Digest,
    platform::Platforms,
    progress::Progress,
    registry::Pace,
    store::{Extent, Image, KEPT, PruneOrder, PullOrder, RemovalReport, StoreError},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::shared::BuiltinState;

/// An image that was used this recently stays also on a full disk: its container may be about to start.
const RECENT: Duration = Duration::from_secs(60);
/// How often the progress of a pull is reported.
const REPORT_PERIOD: Duration = Duration::from_millis(200);

/// The store, for operators.
pub(super) struct OperatedStore(pub(super) Arc<BuiltinState>);

/// Removes the images that nobody uses and nobody has asked to keep, for a pull that fills the disk.
pub(super) async fn make_room(shared: &Arc<BuiltinState>) -> DriverResult<RemovalReport> {
    prune(shared, RECENT, Extent::Due).await
}

async fn prune(
    shared: &Arc<BuiltinState>,
    unused_for: Duration,
    extent: Extent,
) -> DriverResult<RemovalReport> {
    let own = Arc::clone(shared);
    blocking("remove unused images", move || {
        let order = PruneOrder { claims: own.claims()?, unused_for, free_bytes_min: 0, extent };
        own.store.prune(&order).map_err(failed)
    })
    .await
}

impl ImageStore for OperatedStore {
    fn pull<'a>(
        &'a self,
        name: &'a str,
        report: &'a (dyn Fn(String) + Send + Sync),
    ) -> BoxFuture<'a, DriverResult<StoredImage>> {
        async move {
            let image = Reference::parse(name).map_err(DriverError::fatal)?;
            let order = self.order(&image).await?;
            let (progress, stop) = (watch::Sender::new(Progress::default()), CancellationToken::new());
            let mut reached = progress.subscribe();
            let reporting = async {
                loop {
                    report(reached.borrow_and_update().to_string());
                    tokio::time::sleep(REPORT_PERIOD).await;
                    if reached.changed().await.is_err() {
                        return;
                    }
                }
            };
            let pulling = self.0.store.pull(order, &progress, &stop);
            let pulled = tokio::select! {
                pulled = pulling => pulled.map_err(|error| DriverError::recoverable(in_full(&error)))?,
                () = reporting => return Err(DriverError::retry(format!("pull image {image}: it was interrupted"))),
            };
            self.keep(vec![pulled.id.clone()]).await?;
            Ok(stored(&pulled))
        }
        .boxed()
    }

    fn file(&self) -> BoxFuture<'_, DriverResult<File>> {
        let shared = Arc::clone(&self.0);
        blocking("make a file for the archive", move || shared.store.unnamed_file().map_err(failed)).boxed()
    }

    fn load(&self, archive: File) -> BoxFuture<'_, DriverResult<Vec<StoredImage>>> {
        async move {
            let loaded =
                self.0.store.load(archive, &Platforms::of_machine(), &CancellationToken::new()).await;
            let loaded = loaded.map_err(|error| DriverError::recoverable(in_full(&error)))?;
            self.keep(loaded.iter().map(|image| image.id.clone()).collect()).await?;
            Ok(loaded.iter().map(stored).collect())
        }
        .boxed()
    }

    fn prune(&self, order: ImagePrune) -> BoxFuture<'_, DriverResult<PruneReport>> {
        async move {
            let shared = Arc::clone(&self.0);
            let listed = blocking("list the images", move || shared.store.list().map_err(failed)).await?;
            let known: BTreeMap<Digest, StoredImage> =
                listed.iter().map(|listed| (listed.image.id.clone(), stored(&listed.image))).collect();
            let extent = if order.dry_run { Extent::Preview } else { Extent::All };
            let unused_for = Duration::from_nanos(order.unused_for_ns);
            let removed = prune(&self.0, unused_for, extent).await?;
            let of_id = |id: &Digest| known.get(id).cloned().unwrap_or_else(|| unnamed(id));
            Ok(PruneReport {
                images: removed.images.iter().map(of_id).collect(),
                layers: u64::try_from(removed.layers).unwrap_or(u64::MAX),
                bytes: removed.bytes,
                dry_run: order.dry_run,
            })
        }
        .boxed()
    }

    fn verify(&self, damaged: DamagedLayers) -> BoxFuture<'_, DriverResult<StoreCheck>> {
        let shared = Arc::clone(&self.0);
        blocking("read the images", move || check(&shared, damaged)).boxed()
    }
}

impl OperatedStore {
    async fn order(&self, image: &Reference) -> DriverResult<PullOrder> {
        let policy = &self.0.policy;
        let sources = policy.credential_sources();
        let credentials = sources.find(image).await.map_err(DriverError::recoverable)?;
        let endpoints = policy.registries.endpoints(image, credentials.as_ref(), sources).await;
        let endpoints = endpoints.map_err(|error| DriverError::recoverable(in_full(&error)))?;
        let pace = Pace { silence_max: policy.pull_activity_timeout, ..Pace::default() };
        Ok(PullOrder { image: image.clone(), endpoints, pace, platforms: Platforms::of_machine() })
    }

    /// Collection removes what no container uses; what was ordered by a person is meant for later.
    async fn keep(&self, ids: Vec<Digest>) -> DriverResult<()> {
        let shared = Arc::clone(&self.0);
        blocking("record that images are kept", move || shared.store.keep(&ids).map_err(failed)).await
    }
}

fn check(shared: &BuiltinState, layers: DamagedLayers) -> DriverResult<StoreCheck> {
    let listed = shared.store.list().map_err(failed)?;
    let names = |id: &Digest| -> Vec<String> {
        let known = listed.iter().filter(|listed| listed.image.id == *id);
        known.flat_map(|listed| listed.image.names.clone()).collect()
    };
    let mut damaged = Vec::new();
    for layer in shared.store.verify().map_err(failed)? {
        let of_layer = layer.images.iter().flat_map(names).collect();
        damaged.push(DamagedImage {
            digest: layer.layer.to_string(),
            images: of_layer,
            why: layer.why,
            is_removed: match layers {
                DamagedLayers::Report => false,
                DamagedLayers::Remove => remove_damaged(shared, &layer.layer, &layer.images)?,
            },
        });
    }
    for id in shared.store.damaged_images().map_err(failed)? {
        let why = "its config is damaged".to_owned();
        damaged.push(DamagedImage { digest: id.to_string(), images: names(&id), why, is_removed: false });
    }
    Ok(StoreCheck { images: u64::try_from(listed.len()).unwrap_or(u64::MAX), damaged })
}

/// Removes a damaged layer, so that the next pull fetches it, unless a container has it below its root.
fn remove_damaged(shared: &BuiltinState, layer: &Digest, images: &[Digest]) -> DriverResult<bool> {
    let listed = shared.store.list().map_err(failed)?;
    let is_used = |owners: &[String]| owners.iter().any(|owner| owner != KEPT);
    let own = shared.claims()?;
    let in_use = images.iter().any(|id| {
        own.images.contains(id)
            || listed.iter().any(|listed| listed.image.id == *id && is_used(&listed.claimed_by))
    });
    if in_use {
        return Ok(false);
    }
    shared.store.discard_layer(layer).map_err(failed)?;
    Ok(true)
}

fn stored(image: &Image) -> StoredImage {
    StoredImage {
        id: image.id.to_string(),
        digest: image.digest.as_ref().map(ToString::to_string).unwrap_or_default(),
        names: image.names.clone(),
        size_bytes: image.bytes,
    }
}

fn unnamed(id: &Digest) -> StoredImage {
    StoredImage { id: id.to_string(), ..StoredImage::default() }
}

fn failed(error: StoreError) -> DriverError {
    DriverError::retry(in_full(&error))
}

async fn blocking<T: Send + 'static>(
    what: &'static str,
    work: impl FnOnce() -> DriverResult<T> + Send + 'static,
) -> DriverResult<T> {
    let done = herdlet_runtime::off_thread(work).await;
    done.map_err(|error| DriverError::retry(format!("{what}: {error}")))?
}
