//! Orders to the store of images of a node, and its answers: `herdlet images`.

use serde::{Deserialize, Serialize};

use std_alloc::{string::String, vec::Vec};

/// An image to pull.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImagePull {
    /// Its name, as tasks write it.
    pub image: String,
}

/// A line of the answer to [`ImagePull`]: progress, then the image or an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PullStep {
    /// How much has been fetched, for people.
    Progress(String),
    /// The pull is complete.
    Image(StoredImage),
    /// The pull failed. Continues "failed to".
    Error(String),
}

/// An image of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredImage {
    /// The digest of its config.
    pub id: String,
    /// The digest of its manifest or index; empty for an archive without manifests.
    pub digest: String,
    /// Its names; empty if other images have taken them.
    pub names: Vec<String>,
    /// The size of its layers in bytes. Layers that other images also have count in full.
    pub size_bytes: u64,
}

/// What to remove.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImagePrune {
    /// Images that nobody has pulled, loaded or started for this long, in nanoseconds.
    pub unused_for_ns: u64,
    /// Whether nothing is removed, only listed.
    #[serde(default)]
    pub dry_run: bool,
}

/// What was removed, or would be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PruneReport {
    /// The images.
    pub images: Vec<StoredImage>,
    /// The number of layers that no other image has.
    pub layers: u64,
    /// The size of these layers in bytes.
    pub bytes: u64,
    /// Whether nothing was removed.
    pub dry_run: bool,
}

/// What to do about damaged layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DamagedLayers {
    /// They stay.
    #[default]
    Report,
    /// Those that no container uses are removed, so that the next pull fetches them.
    Remove,
}

/// How to compare a store with what was unpacked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageVerify {
    /// Damaged layers.
    #[serde(default)]
    pub damaged: DamagedLayers,
}

/// The result of [`ImageVerify`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreCheck {
    /// The number of images whose layers are all there.
    pub images: u64,
    /// What differs from what was pulled or loaded.
    pub damaged: Vec<DamagedImage>,
}

/// A damaged part of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedImage {
    /// The digest of the unpacked layer, or of the image's config.
    pub digest: String,
    /// Names of the images that have it.
    pub images: Vec<String>,
    /// What is wrong, for people.
    pub why: String,
    /// Whether it was removed, so that the next pull fetches it.
    pub is_removed: bool,
}
