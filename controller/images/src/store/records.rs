//! The records of a store: names, images, layers, claims.
//!
//! In: the directory of the store. Out: what its files describe. A record that can't be read counts as absent, so that a pull writes
//! it again, except claims: without them nothing is removed.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::Path,
    time::SystemTime,
};

use herdlet_base::durable;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    Claims, Image,
    error::{StoreError, io_error},
    layout::{Layout, TREE, digest_of_name, entries},
};
use crate::{config::ImageConfig, digest::Digest};

/// The image of a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NameRecord {
    pub(super) name: String,
    /// The digest of the config.
    pub(super) id: Digest,
    /// What the name stood for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) digest: Option<Digest>,
}

/// A layer that is complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LayerRecord {
    /// The size of its files.
    pub(super) bytes: u64,
    /// The number of entries that were left out, such as device nodes.
    pub(super) skipped: u64,
    /// The seal of its tree.
    pub(super) seal: String,
}

/// The images that an agent uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClaimRecord {
    pub(super) owner: String,
    pub(super) images: BTreeSet<Digest>,
}

/// The name of a layer's record in its directory.
pub(super) const LAYER_RECORD: &str = "record";

/// A new image: the config with names. Its layers are there.
pub(super) struct NewImage {
    pub(super) id: Digest,
    pub(super) config: Vec<u8>,
    pub(super) names: Vec<NameRecord>,
}

/// Whether a layer is complete.
pub(super) fn has_layer(layout: &Layout, diff_id: &Digest) -> bool {
    layer(layout, diff_id).is_some()
}

pub(super) fn layer(layout: &Layout, diff_id: &Digest) -> Option<LayerRecord> {
    read(&layout.layer(diff_id).join(LAYER_RECORD)).ok().flatten()
}

/// Finds an image by its name; it counts as used now.
pub(super) fn find(layout: &Layout, name: &str) -> Result<Option<Image>, StoreError> {
    let _lock = layout.lock_shared()?;
    let Some(record) = read::<NameRecord>(&layout.name(name)).ok().flatten() else { return Ok(None) };
    use_image(layout, &record.id, record.digest)
}

/// Finds an image by its id; it counts as used now.
pub(super) fn find_id(layout: &Layout, id: &Digest) -> Result<Option<Image>, StoreError> {
    let _lock = layout.lock_shared()?;
    use_image(layout, id, None)
}

fn use_image(layout: &Layout, id: &Digest, digest: Option<Digest>) -> Result<Option<Image>, StoreError> {
    let names = all_names(layout)?;
    let Some(mut image) = image(layout, id, &names)? else { return Ok(None) };
    image.digest = digest.or(image.digest);
    set_used(&layout.image(id))?;
    Ok(Some(image))
}

/// An image whose layers are all there.
pub(super) fn image(layout: &Layout, id: &Digest, names: &[NameRecord]) -> Result<Option<Image>, StoreError> {
    let Some(config) = config(layout, id)? else { return Ok(None) };
    let records = config.diff_ids.iter().map(|diff_id| layer(layout, diff_id));
    let Some(records) = records.collect::<Option<Vec<_>>>() else { return Ok(None) };
    let own = || names.iter().filter(|record| record.id == *id);
    Ok(Some(Image {
        id: id.clone(),
        digest: own().find_map(|record| record.digest.clone()),
        names: own().map(|record| record.name.clone()).collect(),
        layers: config.diff_ids.iter().map(|diff_id| layout.layer(diff_id).join(TREE)).collect(),
        bytes: records.iter().fold(0, |sum, record| record.bytes.saturating_add(sum)),
        config,
    }))
}

/// The config of an image; none if it is absent or damaged.
pub(super) fn config(layout: &Layout, id: &Digest) -> Result<Option<ImageConfig>, StoreError> {
    let path = layout.image(id);
    match fs::read(&path) {
        Ok(bytes) if id.is_of(&bytes) => Ok(ImageConfig::read_alone(&bytes).ok()),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("read", &path)(error)),
    }
}

/// Publishes an image with its names; none if one of its layers has been removed meanwhile.
pub(super) fn publish(layout: &Layout, new: &NewImage) -> Result<Option<Image>, StoreError> {
    let _lock = layout.lock_exclusive()?;
    write_config(layout, new)?;
    if image(layout, &new.id, &[])?.is_none() {
        return Ok(None);
    }
    for record in &new.names {
        let path = layout.name(&record.name);
        if read::<NameRecord>(&path).ok().flatten().as_ref() != Some(record) {
            write(&path, record)?;
        }
    }
    let found = image(layout, &new.id, &all_names(layout)?)?;
    let digest = new.names.iter().find_map(|record| record.digest.clone());
    Ok(found.map(|found| Image { digest: digest.or(found.digest.clone()), ..found }))
}

/// Writes the config unless it is there; then it only counts as used now.
fn write_config(layout: &Layout, new: &NewImage) -> Result<(), StoreError> {
    let path = layout.image(&new.id);
    match fs::read(&path) {
        Ok(bytes) if bytes == new.config => set_used(&path),
        Ok(_) | Err(_) => durable::write(&path, &new.config).map_err(io_error("write", &path)),
    }
}

fn set_used(path: &Path) -> Result<(), StoreError> {
    let file = File::open(path).map_err(io_error("open", path))?;
    file.set_modified(SystemTime::now()).map_err(io_error("set the time of", path))
}

/// All names, in order.
pub(super) fn all_names(layout: &Layout) -> Result<Vec<NameRecord>, StoreError> {
    let records = entries(&layout.names())?.into_iter();
    let mut records: Vec<NameRecord> = records.filter_map(|path| read(&path).ok().flatten()).collect();
    records.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(records)
}

/// The ids of all images, also of those that are not complete, in order.
pub(super) fn all_images(layout: &Layout) -> Result<BTreeSet<Digest>, StoreError> {
    digests_in(&layout.images())
}

/// The digests of all layers.
pub(super) fn all_layers(layout: &Layout) -> Result<BTreeSet<Digest>, StoreError> {
    digests_in(&layout.layers())
}

fn digests_in(dir: &Path) -> Result<BTreeSet<Digest>, StoreError> {
    let paths = entries(dir)?;
    Ok(paths.iter().filter_map(|path| digest_of_name(path.file_name()?)).collect())
}

/// The claims of all agents.
pub(super) fn all_claims(layout: &Layout) -> Result<Vec<ClaimRecord>, StoreError> {
    let read_one = |path: std::path::PathBuf| {
        let gone = || StoreError::Record { path: path.clone(), why: "it has gone".to_owned() };
        read(&path)?.ok_or_else(gone)
    };
    entries(&layout.claims())?.into_iter().map(read_one).collect()
}

/// Whether an agent has recorded that it uses an image.
pub(super) fn is_claimed(layout: &Layout, owner: &str, id: &Digest) -> bool {
    let record = read::<ClaimRecord>(&layout.claim(owner)).ok().flatten();
    record.is_some_and(|record| record.images.contains(id))
}

/// Records the claims of an agent. The caller has locked the store exclusively.
pub(super) fn write_claims(layout: &Layout, claims: &Claims) -> Result<(), StoreError> {
    let path = layout.claim(&claims.owner);
    let record = ClaimRecord { owner: claims.owner.clone(), images: claims.images.clone() };
    if read::<ClaimRecord>(&path).ok().flatten().as_ref() == Some(&record) {
        return Ok(());
    }
    write(&path, &record)
}

/// Reads a record; none if it is absent.
fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StoreError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error("read", path)(error)),
    };
    let wrong =
        |error: serde_json::Error| StoreError::Record { path: path.to_owned(), why: error.to_string() };
    serde_json::from_slice(&bytes).map(Some).map_err(wrong)
}

fn write(path: &Path, record: &impl Serialize) -> Result<(), StoreError> {
    durable::write(path, &to_bytes(path, record)?).map_err(io_error("write", path))
}

/// The bytes of a record for the file at `path`.
pub(super) fn to_bytes(path: &Path, record: &impl Serialize) -> Result<Vec<u8>, StoreError> {
    let wrong =
        |error: serde_json::Error| StoreError::Record { path: path.to_owned(), why: error.to_string() };
    serde_json::to_vec(record).map_err(wrong)
}
