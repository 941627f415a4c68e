//! Loads the images of an archive: the format of `docker save`, or an OCI layout.
//!
//! In: a tar, also compressed. Out: its images in the store. The archive is unpacked in the sandbox first; its documents then lead
//! to the files of its layers, and every content has to have the digest that led to it. Sources: the OCI image specification,
//! `image-layout.md`; `moby/moby:image/tarexport`.

use std::{
    fs::File,
    io::{Read as _, Seek as _},
    os::unix::fs::FileExt as _,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use herdlet_base::{
    artifact::format::{Codec, Format},
    safe_fs::{Crossing, Dir, Rights},
};
use herdlet_unpack::Order;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::{
    Image,
    error::{LoadError, StoreError, io_error},
    layers::{LayerSource, Layers, blame, blocking},
    layout::{Layout, Staging},
    records::{self, NameRecord, NewImage},
};
use crate::{
    config::ImageConfig,
    digest::Digest,
    document::{DOCUMENT_BYTES_MAX, Descriptor, Document, DocumentError, Index, LAYERS_MAX, Manifest},
    media::Compression,
    platform::Platforms,
    reference::Reference,
};

/// The files of an archive: each image has a few documents, and a file for each layer.
const ENTRIES_MAX: u64 = 100_000;
/// How many images an archive has at most.
const IMAGES_MAX: usize = 1000;
const ARCHIVE: &str = "archive";

/// Loads into a store.
#[derive(Debug, Clone)]
pub(super) struct Loader {
    pub(super) layout: Arc<Layout>,
    pub(super) layers: Arc<Layers>,
}

/// An image in the unpacked archive.
struct FoundImage {
    config: Vec<u8>,
    id: Digest,
    /// What its names stood for.
    digest: Option<Digest>,
    names: Vec<String>,
    layers: Vec<FoundLayer>,
}

struct FoundLayer {
    diff_id: Digest,
    path: PathBuf,
    /// What an OCI layout promises about the file.
    content: Option<Descriptor>,
}

/// An entry of `manifest.json`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SavedImage {
    config: PathBuf,
    repo_tags: Option<Vec<String>>,
    layers: Vec<PathBuf>,
}

impl Loader {
    pub(super) async fn load(
        &self,
        archive: File,
        platforms: &Platforms,
        cancelled: &CancellationToken,
    ) -> Result<Vec<Image>, LoadError> {
        let layout = Arc::clone(&self.layout);
        let staging = Arc::new(blocking(move || layout.stage()).await?);
        let loaded = self.load_staged(&staging, archive, platforms, cancelled).await;
        blocking(move || Arc::into_inner(staging).map_or(Ok(()), Staging::discard)).await?;
        loaded
    }

    async fn load_staged(
        &self,
        staging: &Arc<Staging>,
        archive: File,
        platforms: &Platforms,
        cancelled: &CancellationToken,
    ) -> Result<Vec<Image>, LoadError> {
        let dir = Arc::new(self.unpack(staging, archive, cancelled).await?);
        let (of_archive, platforms) = (Arc::clone(&dir), platforms.clone());
        let found = blocking(move || ArchiveDir(&of_archive).images(&platforms)).await?;
        let mut images = Vec::new();
        for image in found {
            images.push(self.load_one(&dir, image, cancelled).await?);
        }
        Ok(images)
    }

    /// Unpacks the archive itself.
    async fn unpack(
        &self,
        staging: &Arc<Staging>,
        archive: File,
        cancelled: &CancellationToken,
    ) -> Result<Dir, LoadError> {
        let staging = Arc::clone(staging);
        let rights = Rights::Exact { mode: 0o700, owner: None };
        let (dir, archive, codec) = blocking(move || {
            let codec = codec_of(&archive).map_err(|error| LoadError::Archive { why: error.to_string() })?;
            let dir = staging.dir.make(ARCHIVE.as_ref(), rights).map_err(StoreError::Fs)?;
            Ok::<_, LoadError>((dir, archive, codec))
        })
        .await?;
        let stored = archive.metadata().map_err(io_error("examine", Path::new(ARCHIVE)))?.len();
        let (bytes_max, bound) = self.layers.bytes_max(&self.layout, stored)?;
        let order = Order {
            format: Format::Tar(codec),
            name: String::new(),
            folder: PathBuf::new(),
            bytes_max,
            entries_max: ENTRIES_MAX,
            user: None,
            seconds_max: self.layers.limits.time_max.as_secs().max(1),
            keep_owners: false,
        };
        let unpacked = self.layers.unpacker.unpack(archive, &dir, &order, cancelled).await;
        match unpacked.map_err(|error| blame(error, bound).into_load(0)) {
            Ok(()) => Ok(dir),
            Err(LoadError::Layer { why, .. }) => Err(LoadError::Archive { why }),
            Err(error) => Err(error),
        }
    }

    async fn load_one(
        &self,
        dir: &Arc<Dir>,
        image: FoundImage,
        cancelled: &CancellationToken,
    ) -> Result<Image, LoadError> {
        for (index, layer) in image.layers.into_iter().enumerate() {
            let (layout, dir, number) = (Arc::clone(&self.layout), Arc::clone(dir), index + 1);
            let source = blocking(move || match records::has_layer(&layout, &layer.diff_id) {
                true => Ok(None),
                false => ArchiveDir(&dir).layer(layer, number).map(Some),
            })
            .await?;
            let Some(source) = source else { continue };
            let unpacked = self.layers.unpack(&self.layout, source, cancelled).await;
            unpacked.map_err(|error| error.into_load(number))?;
        }
        let record = |name| NameRecord { name, id: image.id.clone(), digest: image.digest.clone() };
        let names = image.names.into_iter().map(record).collect();
        let new = NewImage { id: image.id.clone(), config: image.config, names };
        let layout = Arc::clone(&self.layout);
        let published = blocking(move || records::publish(&layout, &new)).await?;
        let removed =
            || LoadError::Archive { why: "another process removes its layers meanwhile".to_owned() };
        published.ok_or_else(removed)
    }
}

/// An unpacked archive. Its names are not trusted.
struct ArchiveDir<'d>(&'d Dir);

impl ArchiveDir<'_> {
    fn images(&self, platforms: &Platforms) -> Result<Vec<FoundImage>, LoadError> {
        let images = if let Some(saved) = self.document(Path::new("manifest.json"))? {
            let wrong = |error: serde_json::Error| wrong(format!("its manifest.json is invalid: {error}"));
            let saved: Vec<SavedImage> = serde_json::from_slice(&saved).map_err(wrong)?;
            check_number(saved.len())?;
            saved.into_iter().map(|image| self.saved(image)).collect()
        } else if let Some(index) = self.document(Path::new("index.json"))? {
            let Document::Index(index) = Document::read(&index, None)? else {
                return Err(wrong("its index.json is no index".to_owned()));
            };
            self.of_layout(index, platforms)
        } else {
            Err(wrong(
                "it has neither manifest.json nor index.json, so it is no archive of images".to_owned(),
            ))
        };
        images.and_then(|images| match images.is_empty() {
            true => Err(wrong("it has no image".to_owned())),
            false => Ok(images),
        })
    }

    fn saved(&self, image: SavedImage) -> Result<FoundImage, LoadError> {
        let SavedImage { config: path, repo_tags, layers } = image;
        let missing = || wrong(format!("{} is missing", path.display()));
        let bytes = self.document(&path)?.ok_or_else(missing)?;
        if layers.len() > LAYERS_MAX {
            return Err(DocumentError::Layers { number: layers.len() }.into());
        }
        let config = ImageConfig::read(&bytes, layers.len())?;
        let names = repo_tags.unwrap_or_default();
        let names = names.iter().filter_map(|name| tagged(name));
        let layers = config.diff_ids.into_iter().zip(layers);
        let layers = layers.map(|(diff_id, path)| FoundLayer { diff_id, path, content: None });
        Ok(FoundImage {
            id: Digest::of_bytes(&bytes),
            config: bytes,
            digest: None,
            names: names.collect(),
            layers: layers.collect(),
        })
    }

    /// The images of an OCI layout: those of its index for the machine.
    fn of_layout(&self, index: Index, platforms: &Platforms) -> Result<Vec<FoundImage>, LoadError> {
        check_number(index.entries.len())?;
        let mut images = Vec::new();
        for entry in index.entries {
            // One entry of a layout is one image, whatever the machine; an index in it has one for each platform.
            let Some(manifest) = self.manifest(&entry.descriptor, platforms)? else { continue };
            let bytes = self.blob(&manifest.config)?;
            let config = ImageConfig::read(&bytes, manifest.layers.len())?;
            let layers =
                config.diff_ids.into_iter().zip(manifest.layers).map(|(diff_id, layer)| FoundLayer {
                    diff_id,
                    path: blob_path(&layer.descriptor.digest),
                    content: Some(layer.descriptor),
                });
            images.push(FoundImage {
                id: manifest.config.digest.clone(),
                config: bytes,
                digest: Some(entry.descriptor.digest),
                names: entry.name.iter().filter_map(|name| full_name(name)).collect(),
                layers: layers.collect(),
            });
        }
        Ok(images)
    }

    fn manifest(
        &self,
        descriptor: &Descriptor,
        platforms: &Platforms,
    ) -> Result<Option<Manifest>, LoadError> {
        match Document::read(&self.blob(descriptor)?, None)? {
            Document::Manifest(manifest) => Ok(Some(manifest)),
            Document::Index(index) => {
                let chosen = &index.choose(platforms)?.descriptor;
                match Document::read(&self.blob(chosen)?, None)? {
                    Document::Manifest(manifest) => Ok(Some(manifest)),
                    Document::Index(_) => {
                        Err(DocumentError::Ambiguous { why: "it has indexes in indexes" }.into())
                    }
                }
            }
        }
    }

    /// A small content with its digest.
    fn blob(&self, wanted: &Descriptor) -> Result<Vec<u8>, LoadError> {
        let path = blob_path(&wanted.digest);
        let missing = || wrong(format!("{} is missing", path.display()));
        let bytes = self.document(&path)?.ok_or_else(missing)?;
        match wanted.digest.is_of(&bytes) {
            true => Ok(bytes),
            false => Err(wrong(format!("{} does not have this digest", path.display()))),
        }
    }

    fn document(&self, path: &Path) -> Result<Option<Vec<u8>>, LoadError> {
        let Some(mut file) = self.open(path)? else { return Ok(None) };
        let mut bytes = Vec::new();
        let read = file.by_ref().take(DOCUMENT_BYTES_MAX + 1).read_to_end(&mut bytes);
        let len = read.map_err(io_error("read", path))?;
        match u64::try_from(len).unwrap_or(u64::MAX) > DOCUMENT_BYTES_MAX {
            true => Err(DocumentError::TooLarge.into()),
            false => Ok(Some(bytes)),
        }
    }

    /// The file of a layer, which is as it was promised.
    fn layer(&self, layer: FoundLayer, number: usize) -> Result<LayerSource, LoadError> {
        let FoundLayer { diff_id, path, content } = layer;
        let refused = |why: &str| LoadError::Layer { number, why: why.to_owned() };
        let mut file = self.open(&path)?.ok_or_else(|| refused("its file is missing"))?;
        if let Some(content) = content {
            let len = file.metadata().map_err(io_error("examine", &path))?.len();
            if len != content.size {
                return Err(refused("its file has another size than its manifest promises"));
            }
            let digest = digest_of(&mut file, &content.digest).map_err(io_error("read", &path))?;
            if digest != content.digest {
                return Err(refused("its file does not have the digest in its manifest"));
            }
        }
        let compression = match codec_of(&file).map_err(io_error("read", &path))? {
            Codec::Gzip => Compression::Gzip,
            Codec::Zstd => Compression::Zstd,
            Codec::Plain | Codec::Bzip2 | Codec::Xz => Compression::None,
        };
        Ok(LayerSource { diff_id, file, compression })
    }

    /// Opens a file of the archive. Old programs saved a layer that occurs twice as a link to another directory of the archive.
    fn open(&self, path: &Path) -> Result<Option<File>, LoadError> {
        let path = normal(path)?;
        let Some((dir, name)) = self.place(&path)? else { return Ok(None) };
        match dir.read_link(&name) {
            Ok(Some(target)) => {
                let target = normal(&path.parent().unwrap_or(Path::new("")).join(target))?;
                let Some((dir, name)) = self.place(&target)? else { return Ok(None) };
                Ok(dir.open_file(&name).map_err(StoreError::Fs)?)
            }
            Ok(None) | Err(_) => Ok(dir.open_file(&name).map_err(StoreError::Fs)?),
        }
    }

    fn place(&self, path: &Path) -> Result<Option<(Dir, std::ffi::OsString)>, LoadError> {
        let Some(name) = path.file_name() else { return Err(outside(path)) };
        match self.0.open_below(path.parent().unwrap_or(Path::new("")), Crossing::Nothing) {
            Ok(dir) => Ok(Some((dir, name.to_owned()))),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(StoreError::Fs(error).into()),
        }
    }
}

fn check_number(number: usize) -> Result<(), LoadError> {
    match number > IMAGES_MAX {
        true => Err(wrong(format!("it has {number} images, more than {IMAGES_MAX}"))),
        false => Ok(()),
    }
}

fn wrong(why: String) -> LoadError {
    LoadError::Archive { why: why.chars().filter(|char| !char.is_control()).take(300).collect() }
}

fn outside(path: &Path) -> LoadError {
    wrong(format!("{} leads out of it", path.display()))
}

/// A path without `.` and `..`, if it stays in the archive.
fn normal(path: &Path) -> Result<PathBuf, LoadError> {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => normal.push(name),
            Component::CurDir => {}
            Component::ParentDir if normal.pop() => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return Err(outside(path)),
        }
    }
    Ok(normal)
}

fn blob_path(digest: &Digest) -> PathBuf {
    Path::new("blobs").join(digest.as_str().replace(':', "/"))
}

/// A name in an OCI layout, which may be a tag only. Such a one names nothing here.
fn full_name(name: &str) -> Option<String> {
    name.contains(['/', ':']).then(|| tagged(name))?
}

/// A name by a tag. An archive cannot say what a digest names: else it would replace an image that others have pinned.
fn tagged(name: &str) -> Option<String> {
    Reference::parse(name).ok().filter(|name| name.digest.is_none()).map(|name| name.to_string())
}

/// How a file is compressed, by its first bytes (RFC 1952, RFC 8878).
fn codec_of(file: &File) -> std::io::Result<Codec> {
    let mut begin = [0; 4];
    let len = file.read_at(&mut begin, 0)?;
    Ok(match begin.get(..len).unwrap_or_default() {
        [0x1F, 0x8B, ..] => Codec::Gzip,
        [0x28, 0xB5, 0x2F, 0xFD] => Codec::Zstd,
        _ => Codec::Plain,
    })
}

fn digest_of(file: &mut File, wanted: &Digest) -> std::io::Result<Digest> {
    file.rewind()?;
    let mut hasher = wanted.hasher();
    let mut chunk = vec![0; 256 * 1024];
    loop {
        let len = file.read(&mut chunk)?;
        let Some(part) = chunk.get(..len).filter(|part| !part.is_empty()) else { return Ok(hasher.finish()) };
        hasher.update(part);
    }
}
