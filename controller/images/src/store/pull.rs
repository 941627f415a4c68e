//! One pull of an image: documents, then layers in parallel, each fetched, unpacked and published, then the records.
//!
//! In: an order. Out: the image. What has been fetched of a layer stays for the next pull, except when it is wrong or the disk is
//! full.

use std::{
    collections::BTreeMap,
    fs::File,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use futures_util::{FutureExt as _, StreamExt as _, TryFutureExt as _, stream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    Image, PullOrder, collect,
    error::{PullError, StoreError},
    layers::{LayerSource, Layers, blocking},
    layout::{Layout, remove_if_there},
    records::{self, NameRecord, NewImage},
};
use crate::{
    digest::Digest,
    document::{Descriptor, Layer},
    progress::Progress,
    reference::Reference,
    registry::{LAYERS_AT_ONCE, RegistryError, RemoteImage, Repository},
};

/// How often a pull begins again because another process has removed a layer that it did not fetch.
const ROUNDS_MAX: usize = 3;

/// Pulls into a store.
#[derive(Debug)]
pub(super) struct Puller {
    pub(super) layout: Arc<Layout>,
    pub(super) layers: Arc<Layers>,
    /// Each layer is fetched and unpacked by one pull at a time.
    turns: Mutex<BTreeMap<Digest, Weak<tokio::sync::Mutex<()>>>>,
}

/// A layer of an image to pull.
struct MissingLayer {
    /// Its place in the image, from 1.
    number: usize,
    diff_id: Digest,
    layer: Layer,
}

/// How a pull reports and ends.
#[derive(Debug, Clone)]
pub(super) struct Control {
    pub(super) progress: watch::Sender<Progress>,
    pub(super) stop: CancellationToken,
}

impl Puller {
    pub(super) fn new(layout: Arc<Layout>, layers: Arc<Layers>) -> Self {
        Self { layout, layers, turns: Mutex::default() }
    }

    /// Pulls an image. Nothing is written any more once this has returned, so it must not be dropped before.
    pub(super) async fn pull(&self, order: PullOrder, control: &Control) -> Result<Image, PullError> {
        let PullOrder { image: name, endpoints, pace, platforms } = order;
        let repository = Repository::new(&name, endpoints, pace)?;
        let resolved = control.stop.run_until_cancelled(repository.resolve(&platforms)).await;
        let remote = resolved.ok_or(PullError::Cancelled)??;
        let new = Arc::new(NewImage {
            id: remote.manifest.config.digest.clone(),
            config: remote.config_bytes.clone(),
            names: names(&name, &remote.digest, &remote.manifest.config.digest),
        });
        let pulled = self.complete_image(&repository, (&remote, &new), control).await;
        if matches!(pulled, Err(PullError::Full { .. })) {
            let layout = Arc::clone(&self.layout);
            // The full disk is the error that counts.
            let _ = blocking(move || discard(&layout, &remote)).await;
        }
        pulled
    }

    async fn complete_image(
        &self,
        repository: &Repository,
        (remote, new): (&RemoteImage, &Arc<NewImage>),
        control: &Control,
    ) -> Result<Image, PullError> {
        for _ in 0..ROUNDS_MAX {
            self.complete_layers(repository, remote, control).await?;
            let (layout, image) = (Arc::clone(&self.layout), Arc::clone(new));
            let published = blocking(move || records::publish(&layout, &image)).await?;
            if let Some(image) = published {
                return Ok(image);
            }
        }
        Err(PullError::Removed)
    }

    /// Makes all layers of an image be there.
    async fn complete_layers(
        &self,
        repository: &Repository,
        remote: &RemoteImage,
        control: &Control,
    ) -> Result<(), PullError> {
        let missing = self.missing(remote).await?;
        let total_bytes =
            missing.iter().fold(0_u64, |sum, missing| sum.saturating_add(missing.layer.descriptor.size));
        let progress = Progress { done_bytes: 0, total_bytes, layers: missing.len() };
        control.progress.send_replace(progress);
        let control = Control { progress: control.progress.clone(), stop: control.stop.child_token() };
        let stop = &control.stop;
        let complete = |missing| {
            // The first failure ends the others.
            self.complete(repository, missing, &control).inspect_err(|_| stop.cancel()).boxed()
        };
        let completions: Vec<_> = missing.into_iter().map(complete).collect();
        let ended: Vec<Result<(), PullError>> =
            stream::iter(completions).buffer_unordered(LAYERS_AT_ONCE).collect().await;
        let errors = ended.into_iter().filter_map(Result::err);
        let (cancelled, failed): (Vec<_>, Vec<_>) =
            errors.partition(|error| matches!(error, PullError::Cancelled));
        failed.into_iter().chain(cancelled).next().map_or(Ok(()), Err)
    }

    /// The layers that are not there, each once.
    async fn missing(&self, remote: &RemoteImage) -> Result<Vec<MissingLayer>, StoreError> {
        let pairs = remote.config.diff_ids.iter().cloned().zip(remote.manifest.layers.iter().cloned());
        let mut layers = BTreeMap::new();
        for (index, (diff_id, layer)) in pairs.enumerate() {
            layers.entry(diff_id).or_insert((index + 1, layer));
        }
        let layout = Arc::clone(&self.layout);
        blocking(move || {
            let mut missing: Vec<MissingLayer> = layers
                .into_iter()
                .filter(|(diff_id, _)| !records::has_layer(&layout, diff_id))
                .map(|(diff_id, (number, layer))| MissingLayer { number, diff_id, layer })
                .collect();
            missing.sort_by_key(|missing| missing.number);
            Ok(missing)
        })
        .await
    }

    /// Fetches, unpacks and publishes a layer, unless another pull has done so.
    async fn complete(
        &self,
        repository: &Repository,
        missing: MissingLayer,
        control: &Control,
    ) -> Result<(), PullError> {
        let MissingLayer { number, diff_id, layer } = missing;
        let turn = self.turn(&diff_id);
        let turn = control.stop.run_until_cancelled(turn.lock()).await;
        let _turn = turn.ok_or(PullError::Cancelled)?;
        let (layout, digest, wanted) =
            (Arc::clone(&self.layout), layer.descriptor.digest.clone(), diff_id.clone());
        let download = blocking(move || match records::has_layer(&layout, &wanted) {
            true => Ok(None),
            false => Download::open(&layout, &digest).map(Some),
        })
        .await
        .map_err(PullError::from)?;
        let Some(download) = download else {
            control.add(layer.descriptor.size);
            return Ok(());
        };
        let fetched = self.fetch(repository, &download, (layer.descriptor, control)).await;
        let unpacked = match fetched {
            Ok(file) => {
                let source = LayerSource { diff_id, file, compression: layer.compression };
                let unpacked = self.layers.unpack(&self.layout, source, &control.stop).await;
                unpacked.map_err(|error| error.into_pull(number))
            }
            Err(error) => Err(error),
        };
        // What is wrong is fetched again, and a full disk gets its space back. What the machine could not unpack is right.
        let keeps_part = matches!(
            unpacked,
            Err(PullError::Registry(_) | PullError::Cancelled | PullError::Machine { .. })
        );
        blocking(move || if keeps_part { Ok(()) } else { download.remove() }).await?;
        unpacked
    }

    async fn fetch(
        &self,
        repository: &Repository,
        download: &Download,
        (content, control): (Descriptor, &Control),
    ) -> Result<File, PullError> {
        let cloned = || download.file.try_clone().map_err(RegistryError::Write);
        repository.fetch(content, cloned()?, &control.progress, &control.stop).await?;
        Ok(cloned()?)
    }

    fn turn(&self, diff_id: &Digest) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| turn.strong_count() > 0);
        let known = turns.get(diff_id).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let turn = Arc::new(tokio::sync::Mutex::new(()));
            turns.insert(diff_id.clone(), Arc::downgrade(&turn));
            turn
        })
    }
}

impl Control {
    fn add(&self, bytes: u64) {
        self.progress.send_modify(|progress| progress.done_bytes = progress.done_bytes.saturating_add(bytes));
    }
}

/// Removes what a pull has fetched that no image needs.
fn discard(layout: &Layout, remote: &RemoteImage) -> Result<(), StoreError> {
    for layer in &remote.manifest.layers {
        layout.discard_download_of(&layer.descriptor.digest)?;
    }
    collect::release(layout, &remote.config.diff_ids)
}

/// The names by which the image is found: as it was ordered, and by its digests.
fn names(name: &Reference, digest: &Digest, id: &Digest) -> Vec<NameRecord> {
    let by_digest = Reference { tag: None, digest: Some(digest.clone()), ..name.clone() };
    let mut names = vec![name.to_string(), by_digest.to_string()];
    names.dedup();
    let record = |name| NameRecord { name, id: id.clone(), digest: Some(digest.clone()) };
    names.into_iter().map(record).collect()
}

/// The file that gets a layer as the registry has it.
struct Download {
    file: File,
    /// None if it has no name: another process fetches the same layer under the name.
    path: Option<PathBuf>,
}

impl Download {
    fn open(layout: &Layout, digest: &Digest) -> Result<Self, StoreError> {
        if let Some((file, path)) = layout.open_download(digest)? {
            return Ok(Self { file, path: Some(path) });
        }
        Ok(Self { file: layout.unnamed_file()?, path: None })
    }

    fn remove(&self) -> Result<(), StoreError> {
        self.path.as_deref().map_or(Ok(()), remove_if_there)
    }
}
