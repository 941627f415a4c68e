//! Documents of images: the index of several platforms, and the manifest of one.
//!
//! In: the bytes of a document, and the media type that its sender declares. Out: an [`Index`] or a [`Manifest`] in which everything
//! is known and within bounds. Addresses in documents are ignored: content comes from the registry only. Sources: the OCI image
//! specification, `image-index.md` and `manifest.md`; `distribution/distribution:docs/content/spec/manifest-v2-2.md`.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, de::IgnoredAny};

use crate::{
    digest::Digest,
    media::{self, Compression, DocumentKind},
    platform::{Platform, Platforms},
};

/// The largest document, and the largest config of an image: what registries accept.
pub const DOCUMENT_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// As many layers as the kernel stacks (`OVL_MAX_STACK` of overlayfs).
pub const LAYERS_MAX: usize = 500;
/// How many entries of an index an error lists.
const LISTED_MAX: usize = 10;
/// The annotation of documents about other documents, such as the record of a build.
const REFERENCE_TYPE: &str = "vnd.docker.reference.type";

/// A content: what it is, and how to check it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    pub digest: Digest,
    /// In bytes.
    pub size: u64,
}

/// A document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Document {
    Index(Index),
    Manifest(Manifest),
}

/// Images of several platforms, without what is no image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    pub entries: Vec<Entry>,
}

/// A document in an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub descriptor: Descriptor,
    /// `None` if only the document itself contains it.
    pub platform: Option<Platform>,
    /// The name of the image in an archive (`org.opencontainers.image.ref.name`).
    pub name: Option<String>,
}

/// The image of one platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    pub config: Descriptor,
    /// The lowest one first.
    pub layers: Vec<Layer>,
}

/// A layer as it is transferred.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    pub descriptor: Descriptor,
    pub compression: Compression,
}

/// Why a document is refused. Continues "failed to".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    #[error("read the document of an image: it is larger than {DOCUMENT_BYTES_MAX} bytes")]
    TooLarge,
    #[error("read the document of an image: {why}")]
    Syntax { why: String },
    /// One reader would see another image than the next.
    #[error("read the document of an image: {why}, so it is ambiguous")]
    Ambiguous { why: &'static str },
    #[error(
        "read the document of an image: it has Docker's first format, which is not supported; push the image again with a current program"
    )]
    Schema1,
    #[error("read the document of an image: its media type {media_type:?} is not that of an image")]
    NotAnImage { media_type: String },
    #[error(
        "read the document of an image: layer {number} has the media type {media_type:?}, which is not supported"
    )]
    Layer { number: usize, media_type: String },
    #[error("read the document of an image: {what} has {size} bytes, more than {max}")]
    Size { what: &'static str, size: u64, max: u64 },
    #[error("read the document of an image: it has {number} layers, more than {LAYERS_MAX}")]
    Layers { number: usize },
    #[error("find an image for {wanted}: there are only images for {offered}")]
    Platform { wanted: String, offered: String },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDocument {
    schema_version: Option<u64>,
    media_type: Option<String>,
    config: Option<RawDescriptor>,
    layers: Option<Vec<RawDescriptor>>,
    manifests: Option<Vec<RawDescriptor>>,
    fs_layers: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDescriptor {
    #[serde(default)]
    media_type: String,
    digest: Digest,
    size: u64,
    platform: Option<Platform>,
    annotations: Option<BTreeMap<String, String>>,
}

impl Document {
    /// Reads a document. `declared` is the media type by the descriptor or the registry that led to it, if there is one.
    ///
    /// # Errors
    /// If it is no image, ambiguous or beyond a bound.
    pub fn read(bytes: &[u8], declared: Option<&str>) -> Result<Self, DocumentError> {
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > DOCUMENT_BYTES_MAX {
            return Err(DocumentError::TooLarge);
        }
        let raw: RawDocument = serde_json::from_slice(bytes)
            .map_err(|error| DocumentError::Syntax { why: short(&error.to_string()) })?;
        match raw.kind(declared.map(media::essence).unwrap_or_default())? {
            DocumentKind::Schema1 => Err(DocumentError::Schema1),
            DocumentKind::Index if raw.config.is_some() || raw.layers.is_some() => {
                Err(DocumentError::Ambiguous { why: "an index also has a config or layers" })
            }
            DocumentKind::Manifest if raw.manifests.is_some() => {
                Err(DocumentError::Ambiguous { why: "a manifest also has manifests" })
            }
            DocumentKind::Index => Ok(Self::Index(Index::of_raw(raw.manifests.unwrap_or_default())?)),
            DocumentKind::Manifest => {
                let missing = || DocumentError::Syntax { why: "the manifest has no config".to_owned() };
                let config = raw.config.ok_or_else(missing)?;
                Ok(Self::Manifest(Manifest::of_raw(&config, raw.layers.unwrap_or_default())?))
            }
        }
    }
}

impl RawDocument {
    /// The document's kind, if the declared media type and its own agree.
    fn kind(&self, declared: &str) -> Result<DocumentKind, DocumentError> {
        let own = self.media_type.as_deref().map(media::essence).unwrap_or_default();
        let known = |media_type: &str| match media::document_kind(media_type) {
            None if media::is_generic(media_type) => Ok(None),
            None => Err(DocumentError::NotAnImage { media_type: short(media_type) }),
            kind @ Some(_) => Ok(kind),
        };
        let by_fields = match (self.schema_version, &self.manifests) {
            (Some(2), Some(_)) => DocumentKind::Index,
            (Some(2), None) => DocumentKind::Manifest,
            (Some(1), _) if self.fs_layers.is_some() => DocumentKind::Schema1,
            (version, _) => {
                let version = version.map_or_else(|| "none".to_owned(), |version| version.to_string());
                return Err(DocumentError::Syntax { why: format!("its schemaVersion is {version}, not 2") });
            }
        };
        match (known(own)?, known(declared)?) {
            (Some(own), Some(declared)) if own != declared => Err(DocumentError::Ambiguous {
                why: "its media type is not the one that its sender declares",
            }),
            (Some(DocumentKind::Schema1), _) | (_, Some(DocumentKind::Schema1)) => Ok(DocumentKind::Schema1),
            (Some(_), _) | (_, Some(_)) if by_fields == DocumentKind::Schema1 => Ok(DocumentKind::Schema1),
            (Some(kind), _) | (None, Some(kind)) => Ok(kind),
            (None, None) => Ok(by_fields),
        }
    }
}

impl RawDescriptor {
    fn descriptor(&self, what: &'static str, max: u64) -> Result<Descriptor, DocumentError> {
        match self.size {
            size if size > max => Err(DocumentError::Size { what, size, max }),
            size => Ok(Descriptor { digest: self.digest.clone(), size }),
        }
    }

    /// Whether it is an image or an index of images, according to the entry of an index.
    fn is_image(&self) -> bool {
        let kind = media::document_kind(media::essence(&self.media_type));
        let is_about_another =
            self.annotations.as_ref().is_some_and(|notes| notes.contains_key(REFERENCE_TYPE));
        kind.is_some() && !is_about_another && !self.platform.as_ref().is_some_and(Platform::is_unknown)
    }
}

impl Index {
    fn of_raw(raw: Vec<RawDescriptor>) -> Result<Self, DocumentError> {
        let images = raw.into_iter().filter(RawDescriptor::is_image).map(|entry| {
            let descriptor = entry.descriptor("a document in the index", DOCUMENT_BYTES_MAX)?;
            let name =
                entry.annotations.and_then(|mut notes| notes.remove("org.opencontainers.image.ref.name"));
            // Some programs write a platform without content.
            let platform = entry.platform.filter(|platform| *platform != Platform::default());
            Ok(Entry { descriptor, platform, name })
        });
        Ok(Self { entries: images.collect::<Result<_, _>>()? })
    }

    /// The entry that the machine prefers. One that does not name its platform is the last choice.
    ///
    /// # Errors
    /// If there is none for the machine.
    pub fn choose(&self, platforms: &Platforms) -> Result<&Entry, DocumentError> {
        let rank = |entry: &Entry| match &entry.platform {
            Some(platform) => platforms.rank(platform),
            None => Some(usize::MAX),
        };
        let ranked = self.entries.iter().filter_map(|entry| Some((rank(entry)?, entry)));
        let best = ranked.min_by_key(|(rank, _)| *rank).map(|(_, entry)| entry);
        best.ok_or_else(|| DocumentError::Platform { wanted: platforms.first(), offered: self.offered() })
    }

    fn offered(&self) -> String {
        let named = self.entries.iter().filter_map(|entry| entry.platform.as_ref());
        let mut names: Vec<String> =
            named.map(|platform| short(&platform.normalized().to_string())).collect();
        names.dedup();
        let more = names.len().saturating_sub(LISTED_MAX);
        names.truncate(LISTED_MAX);
        match (names.is_empty(), more) {
            (true, _) => "no platform".to_owned(),
            (false, 0) => names.join(", "),
            (false, more) => format!("{} and {more} others", names.join(", ")),
        }
    }
}

impl Manifest {
    fn of_raw(config: &RawDescriptor, layers: Vec<RawDescriptor>) -> Result<Self, DocumentError> {
        if !media::is_config(media::essence(&config.media_type)) {
            return Err(DocumentError::NotAnImage { media_type: short(&config.media_type) });
        }
        let config = config.descriptor("the config", DOCUMENT_BYTES_MAX)?;
        if layers.len() > LAYERS_MAX {
            return Err(DocumentError::Layers { number: layers.len() });
        }
        let layer = |(index, raw): (usize, &RawDescriptor)| {
            let compression = media::layer_compression(media::essence(&raw.media_type));
            let refused = || DocumentError::Layer { number: index + 1, media_type: short(&raw.media_type) };
            let compression = compression.ok_or_else(refused)?;
            // A file's size is a signed number.
            let descriptor = raw.descriptor("a layer", i64::MAX.unsigned_abs())?;
            Ok(Layer { descriptor, compression })
        };
        let layers: Vec<Layer> = layers.iter().enumerate().map(layer).collect::<Result<_, _>>()?;
        let mut sizes = BTreeMap::new();
        for Descriptor { digest, size } in layers.iter().map(|layer| &layer.descriptor) {
            if *sizes.entry(digest).or_insert(*size) != *size {
                return Err(DocumentError::Ambiguous { why: "a layer has two sizes" });
            }
        }
        let sum = sizes.values().try_fold(0_u64, |sum, size| sum.checked_add(*size));
        let max = i64::MAX.unsigned_abs();
        match sum.unwrap_or(u64::MAX) {
            size if size > max => Err(DocumentError::Size { what: "the sum of its layers", size, max }),
            _ => Ok(Self { config, layers }),
        }
    }

    /// The contents of the layers, without repeated ones: many images have the same empty layer several times.
    pub fn contents(&self) -> impl Iterator<Item = &Descriptor> {
        let mut seen = BTreeSet::new();
        self.layers.iter().map(|layer| &layer.descriptor).filter(move |layer| seen.insert(&layer.digest))
    }
}

/// The begin of a text that a stranger wrote, for an error.
fn short(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).take(100).collect()
}

#[cfg(test)]
mod tests;
