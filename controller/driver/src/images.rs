//! The store of images of a driver that keeps images itself: what people may do with it.

use std::fs::File;

use futures_util::future::BoxFuture;
use herdlet_api_types::images::{DamagedLayers, ImagePrune, PruneReport, StoreCheck, StoredImage};

use super::DriverResult;

/// A store of images. Each call ends early if its future is dropped, and leaves nothing half done.
pub trait ImageStore: Send + Sync {
    /// Pulls an image, and keeps it until [`ImageStore::prune`]. `report` gets the progress, for people.
    fn pull<'a>(
        &'a self,
        name: &'a str,
        report: &'a (dyn Fn(String) + Send + Sync),
    ) -> BoxFuture<'a, DriverResult<StoredImage>>;

    /// Makes an empty file on the store's disk, for an archive. It lasts until it is closed.
    fn file(&self) -> BoxFuture<'_, DriverResult<File>>;

    /// Loads the images of an archive, and keeps them until [`ImageStore::prune`].
    fn load(&self, archive: File) -> BoxFuture<'_, DriverResult<Vec<StoredImage>>>;

    /// Removes images that no agent uses, also kept ones.
    fn prune(&self, order: ImagePrune) -> BoxFuture<'_, DriverResult<PruneReport>>;

    /// Reads all layers, and compares them with what was unpacked.
    fn verify(&self, damaged: DamagedLayers) -> BoxFuture<'_, DriverResult<StoreCheck>>;
}
