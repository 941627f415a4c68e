//! The images of a machine without an engine: each layer is unpacked once, into a directory that an overlay can have as a lower one.
//!
//! In: a directory that only root may enter; orders to pull, archives to load, the images in use. Out: images with the directories
//! of their layers, or why not. A layer appears under its name by one rename, once it is checked and on disk: a crash, a full disk
//! or a second process never leaves a part of one. Several agents may share a store.
//!
//! [`Store`] is cheap to clone. Its functions block, except `pull` and `load`: call them off the threads of the runtime.

//! - [`layout`]: its directory. [`records`]: names, images, layers, claims.
//! - [`layers`]: unpacking. [`pull`], [`pulls`]: from registries. [`load`]: from archives.
//! - [`collect`]: lists and removals. [`seal`]: what damage is compared with.

mod collect;
mod error;
mod layers;
mod layout;
mod load;
mod pull;
mod pulls;
mod records;
mod seal;

use std::{
    collections::BTreeSet,
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use herdlet_base::safe_fs::Dir;
use herdlet_unpack::Unpacker;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use self::{
    error::{LoadError, PullError, StoreError},
    layers::LayerLimits,
};
use self::{
    layers::Layers,
    layout::{Layout, TREE},
    load::Loader,
    pull::{Control, Puller},
    pulls::Pulls,
};
use crate::{
    config::ImageConfig,
    digest::Digest,
    platform::Platforms,
    progress::Progress,
    reference::Reference,
    registry::{Endpoint, Pace},
};

/// A store of images.
#[derive(Debug, Clone)]
pub struct Store {
    shared: Arc<StoreParts>,
}

#[derive(Debug)]
struct StoreParts {
    layout: Arc<Layout>,
    layers: Arc<Layers>,
    puller: Arc<Puller>,
    pulls: Pulls,
}

/// How a store unpacks.
#[derive(Debug, Clone, Default)]
pub struct StoreSettings {
    /// The program that unpacks: this one, except in tests.
    pub unpacker: Unpacker,
    pub limits: LayerLimits,
}

/// An image whose layers are all there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The digest of its config. Claims name an image by it.
    pub id: Digest,
    /// What its name stood for in the registry or the archive: an index, if there was one. None in an archive of `docker save`.
    pub digest: Option<Digest>,
    /// Its names in their one notation, in order; empty if other images have taken them all.
    pub names: Vec<String>,
    /// The directories of its layers, the lowest one first. An image may have the same layer several times.
    pub layers: Vec<PathBuf>,
    pub config: ImageConfig,
    /// The size of its layers as files; layers that other images have too count in full.
    pub bytes: u64,
}

/// An image to pull.
#[derive(Debug, Clone)]
pub struct PullOrder {
    pub image: Reference,
    /// Mirrors first, then the registry: [`Registries::endpoints`](crate::registries::Registries::endpoints).
    pub endpoints: Vec<Endpoint>,
    pub pace: Pace,
    pub platforms: Platforms,
}

/// The images that one agent uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claims {
    /// Names the agent among those that share the store: the id of its instance.
    pub owner: String,
    /// [`Image::id`] of each image that a container uses.
    pub images: BTreeSet<Digest>,
}

/// What to remove.
#[derive(Debug, Clone)]
pub struct PruneOrder {
    /// The claims of the caller, which become its recorded ones. Claims of other agents are those that they recorded last.
    pub claims: Claims,
    /// An image without claims is removed once nobody has pulled, loaded or found it for this long.
    pub unused_for: Duration,
    /// While less than this is free on the disk, images without claims are removed whatever their age, the least recently used one
    /// first.
    pub free_bytes_min: u64,
    pub extent: Extent,
}

/// Which images are removed, and whether they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Those that nobody has asked to keep.
    Due,
    /// Also those of [`Store::keep`].
    All,
    /// None: the report has what [`Extent::All`] would remove.
    Preview,
}

impl Extent {
    fn has_kept(self) -> bool {
        matches!(self, Self::All | Self::Preview)
    }

    fn is_preview(self) -> bool {
        self == Self::Preview
    }
}

/// The owner of images that [`Store::keep`] keeps, in the place of an agent.
pub const KEPT: &str = "kept";

/// What has been removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemovalReport {
    /// [`Image::id`] of each image.
    pub images: Vec<Digest>,
    /// Layers that no image needs any more.
    pub layers: usize,
    pub bytes: u64,
}

/// An image for a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedImage {
    pub image: Image,
    /// When it was pulled, loaded or found last.
    pub used_at: SystemTime,
    /// [`Claims::owner`] of each agent that uses it.
    pub claimed_by: Vec<String>,
}

/// A layer that is not what was unpacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedLayer {
    /// The digest of the layer as it is unpacked (`diff_id`).
    pub layer: Digest,
    /// [`Image::id`] of each image that has it.
    pub images: Vec<Digest>,
    pub why: String,
}

impl Store {
    /// Opens the store in a directory, which is made if it is missing. Removes what processes that have ended were preparing.
    ///
    /// # Errors
    /// If the directory can't be used.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Self::with(dir, StoreSettings::default())
    }

    /// As [`Store::open`] with other settings.
    ///
    /// # Errors
    /// If the directory can't be used.
    pub fn with(dir: &Path, settings: StoreSettings) -> Result<Self, StoreError> {
        let StoreSettings { unpacker, limits } = settings;
        let layout = Arc::new(Layout::open(dir)?);
        let layers = Arc::new(Layers::new(unpacker, limits));
        let puller = Arc::new(Puller::new(Arc::clone(&layout), Arc::clone(&layers)));
        Ok(Self { shared: Arc::new(StoreParts { layout, layers, puller, pulls: Pulls::default() }) })
    }

    /// Finds an image that was pulled or loaded under a name, without a registry. It counts as used now.
    ///
    /// An image pulled by its tag is also found by its digest. None if a layer is missing, so that a pull completes it.
    ///
    /// # Errors
    /// If the store can't be read.
    pub fn find(&self, name: &Reference) -> Result<Option<Image>, StoreError> {
        records::find(&self.shared.layout, &name.to_string())
    }

    /// Finds an image by its id, for instance that of a container that already exists. It counts as used now.
    ///
    /// # Errors
    /// If the store can't be read.
    pub fn find_id(&self, id: &Digest) -> Result<Option<Image>, StoreError> {
        records::find_id(&self.shared.layout, id)
    }

    /// Pulls an image, also if one with this name is there: the registry may have another one now. Layers that are there are not
    /// fetched again. Calls for the same name share one pull; it ends early once all of them are cancelled or dropped, and the next
    /// one continues what it has fetched.
    ///
    /// # Errors
    /// [`PullError`]; if [`PullError::is_unavailable`], the image that [`Store::find`] returns may be used instead.
    pub async fn pull(
        &self,
        order: PullOrder,
        progress: &watch::Sender<Progress>,
        cancelled: &CancellationToken,
    ) -> Result<Image, PullError> {
        let waiting = Control { progress: progress.clone(), stop: cancelled.clone() };
        let puller = Arc::clone(&self.shared.puller);
        let name = order.image.to_string();
        let pull = |control: Control| async move { puller.pull(order, &control).await };
        self.shared.pulls.join(name, &waiting, pull).await
    }

    /// Loads the images of an archive: of `docker save`, or an OCI layout; a tar, or one compressed with gzip or zstd.
    ///
    /// # Errors
    /// [`LoadError`]; the images before the wrong one stay.
    pub async fn load(
        &self,
        archive: File,
        platforms: &Platforms,
        cancelled: &CancellationToken,
    ) -> Result<Vec<Image>, LoadError> {
        let StoreParts { layout, layers, .. } = &*self.shared;
        let loader = Loader { layout: Arc::clone(layout), layers: Arc::clone(layers) };
        let (platforms, stop) = (platforms.clone(), cancelled.child_token());
        // A task of its own, so that a caller who no longer waits leaves nothing behind.
        let _stop = stop.clone().drop_guard();
        let loading = tokio::spawn(async move { loader.load(archive, &platforms, &stop).await });
        loading.await.unwrap_or(Err(LoadError::Store(StoreError::Thread)))
    }

    /// All images, by id.
    ///
    /// # Errors
    /// If the store can't be read.
    pub fn list(&self) -> Result<Vec<ListedImage>, StoreError> {
        collect::list(&self.shared.layout)
    }

    /// Records the images that an agent uses, for others that share the store. Durable when it returns: call it before a container
    /// of the image exists.
    ///
    /// # Errors
    /// If the record can't be written.
    pub fn claim(&self, claims: &Claims) -> Result<(), StoreError> {
        collect::claim(&self.shared.layout, claims)
    }

    /// Whether an agent has recorded that it uses an image.
    ///
    /// # Errors
    /// If the store can't be read.
    pub fn is_claimed(&self, owner: &str, id: &Digest) -> Result<bool, StoreError> {
        collect::is_claimed(&self.shared.layout, owner, id)
    }

    /// Keeps images whatever their age, for instance those that an operator has loaded, until [`Extent::All`] is removed. An image
    /// whose names another image takes is not kept any more.
    ///
    /// # Errors
    /// If the record can't be written.
    pub fn keep(&self, ids: &[Digest]) -> Result<(), StoreError> {
        collect::keep(&self.shared.layout, ids)
    }

    /// Makes a file without a name on the disk of the store, for an archive to load. It lasts until it is closed.
    ///
    /// # Errors
    /// If it can't be made.
    pub fn unnamed_file(&self) -> Result<File, StoreError> {
        self.shared.layout.unnamed_file()
    }

    /// Images whose config is damaged. A pull repairs them.
    ///
    /// # Errors
    /// If the store can't be read.
    pub fn damaged_images(&self) -> Result<Vec<Digest>, StoreError> {
        let layout = &self.shared.layout;
        let mut damaged = Vec::new();
        for id in records::all_images(layout)? {
            if records::config(layout, &id)?.is_none() {
                damaged.push(id);
            }
        }
        Ok(damaged)
    }

    /// Removes an image with all its names. Layers stay that another image needs.
    ///
    /// # Errors
    /// [`StoreError::Claimed`] if the caller, by `claims`, or another agent uses it.
    pub fn remove(&self, id: &Digest, claims: &Claims) -> Result<RemovalReport, StoreError> {
        collect::remove(&self.shared.layout, id, claims)
    }

    /// Removes images that nobody uses, and what processes that have ended were preparing.
    ///
    /// # Errors
    /// If the store can't be changed; what has been removed until then stays so.
    pub fn prune(&self, order: &PruneOrder) -> Result<RemovalReport, StoreError> {
        collect::prune(&self.shared.layout, order)
    }

    /// Reads all layers and compares them with what was unpacked.
    ///
    /// # Errors
    /// If the store can't be read.
    pub fn verify(&self) -> Result<Vec<DamagedLayer>, StoreError> {
        let layout = &self.shared.layout;
        let mut damaged = Vec::new();
        for layer in records::all_layers(layout)? {
            let Some(why) = damage(layout, &layer) else { continue };
            let images = collect::images_of(layout, &layer)?;
            damaged.push(DamagedLayer { layer, images, why });
        }
        Ok(damaged)
    }

    /// Removes a damaged layer. Its images are not found any more until they are pulled again, which fetches only this layer.
    ///
    /// # Errors
    /// If it can't be removed.
    pub fn discard_layer(&self, layer: &Digest) -> Result<(), StoreError> {
        collect::discard_layer(&self.shared.layout, layer)
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        self.shared.layout.dir()
    }
}

/// Why a layer is not what was unpacked; none if it is, or has been removed meanwhile.
fn damage(layout: &Layout, layer: &Digest) -> Option<String> {
    let path = layout.layer(layer);
    let Some(record) = records::layer(layout, layer) else {
        return path.exists().then(|| "its record is missing or damaged".to_owned());
    };
    match Dir::open(&path.join(TREE)).and_then(|tree| seal::is_of(&record.seal, &tree)) {
        Ok(true) => None,
        Ok(false) => Some("its files are not those that were unpacked".to_owned()),
        Err(_) if !path.exists() => None,
        Err(error) => Some(format!("failed to {error}")),
    }
}

#[cfg(test)]
mod tests;
