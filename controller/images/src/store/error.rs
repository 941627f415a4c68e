//! Why the store did not do what was asked for.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use herdlet_base::{observation::Class, safe_fs::FsError};
use herdlet_unpack::UnpackError;

use crate::{config::ConfigError, digest::Digest, document::DocumentError, registry::RegistryError};

/// Why the store can't be used. Continues "failed to".
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{operation} {path}: {source}")]
    Io { operation: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Fs(FsError),
    #[error("read {path}: {why}; remove this file if it is damaged")]
    Record { path: PathBuf, why: String },
    #[error("draw a random number")]
    Random,
    #[error("remove the image {id}: the agent {owner} uses it; stop its containers first")]
    Claimed { id: Digest, owner: String },
    #[error("finish its work in the store of images: a thread ended early")]
    Thread,
}

/// Why an image was not pulled. Continues "failed to". Several callers may get the same one.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PullError {
    /// The registry, or what it sends.
    #[error(transparent)]
    Registry(Arc<RegistryError>),
    /// The content is not what its digest promises, or must not be unpacked.
    #[error("unpack layer {number} of the image: {why}")]
    Layer { number: usize, why: String },
    /// The machine failed several times, not the image.
    #[error("unpack layer {number} of the image: this machine failed, not the image: {why}")]
    Machine { number: usize, why: String },
    /// Nothing of what did not fit is left.
    #[error("pull the image: the disk is full; free some space, or remove unused images ({why})")]
    Full { why: String },
    #[error(transparent)]
    Store(Arc<StoreError>),
    /// Several times.
    #[error("pull the image: its layers are removed at the same time by another process; try again")]
    Removed,
    #[error("pull the image: it was cancelled")]
    Cancelled,
}

/// Why an archive was not loaded. Continues "failed to".
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("load the archive: {why}")]
    Archive { why: String },
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("unpack layer {number} of the image: {why}")]
    Layer { number: usize, why: String },
    /// The machine failed several times, not the archive.
    #[error("unpack the archive: this machine failed, not the archive: {why}")]
    Machine { why: String },
    /// Nothing of what did not fit is left.
    #[error("load the archive: the disk is full; free some space, or remove unused images ({why})")]
    Full { why: String },
    #[error(transparent)]
    Store(StoreError),
    #[error("load the archive: it was cancelled")]
    Cancelled,
}

impl PullError {
    /// Whether no registry could answer: it is down, limits requests or has a fault. The image that is there may be used instead.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Registry(error) => error.is_unavailable(),
            Self::Layer { .. }
            | Self::Machine { .. }
            | Self::Full { .. }
            | Self::Store(_)
            | Self::Removed
            | Self::Cancelled => false,
        }
    }

    /// Whether another try can help.
    pub fn class(&self) -> Class {
        match self {
            Self::Registry(error) => match error.is_final() {
                true => Class::Fatal,
                false => Class::Retry,
            },
            Self::Layer { .. } => Class::Fatal,
            Self::Machine { .. } | Self::Full { .. } | Self::Store(_) | Self::Removed | Self::Cancelled => {
                Class::Retry
            }
        }
    }
}

impl From<RegistryError> for PullError {
    fn from(error: RegistryError) -> Self {
        if let RegistryError::Write(source) = &error
            && is_full(source)
        {
            return Self::Full { why: source.to_string() };
        }
        match matches!(error, RegistryError::Cancelled) {
            true => Self::Cancelled,
            false => Self::Registry(Arc::new(error)),
        }
    }
}

impl From<StoreError> for PullError {
    fn from(error: StoreError) -> Self {
        match error {
            error if error.is_full() => Self::Full { why: error.to_string() },
            error => Self::Store(Arc::new(error)),
        }
    }
}

impl From<StoreError> for LoadError {
    fn from(error: StoreError) -> Self {
        match error {
            error if error.is_full() => Self::Full { why: error.to_string() },
            error => Self::Store(error),
        }
    }
}

impl StoreError {
    /// Whether the disk or the quota is used up.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Io { source, .. } => is_full(source),
            Self::Fs(error) => error.is_full(),
            Self::Record { .. } | Self::Random | Self::Claimed { .. } | Self::Thread => false,
        }
    }
}

/// Completes an error of a call.
pub(super) fn io_error(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { operation, path, source }
}

/// Why a layer was not unpacked.
#[derive(Debug)]
pub(super) enum LayerError {
    /// The layer is at fault.
    Refused {
        why: String,
    },
    /// The machine is at fault.
    Machine {
        why: String,
    },
    Full {
        why: String,
    },
    Cancelled,
    Store(StoreError),
}

impl From<StoreError> for LayerError {
    fn from(error: StoreError) -> Self {
        match error {
            error if error.is_full() => Self::Full { why: error.to_string() },
            error => Self::Store(error),
        }
    }
}

impl From<UnpackError> for LayerError {
    fn from(error: UnpackError) -> Self {
        match error {
            UnpackError::Refused { why } | UnpackError::TooLarge { why } => Self::Refused { why },
            UnpackError::Full { why } => Self::Full { why },
            UnpackError::Cancelled => Self::Cancelled,
            UnpackError::Fault { why } => Self::Machine { why },
            // An image that needs this much of a processor ends by the limit of its processor time.
            UnpackError::Slow { limit } => Self::Machine {
                why: format!("its disk is slow: unpacking took longer than {} s", limit.as_secs()),
            },
            UnpackError::Fs(error) => StoreError::Fs(error).into(),
            UnpackError::Start(source) => Self::Store(StoreError::Io {
                operation: "start the unpacking process in",
                path: PathBuf::from("staging"),
                source,
            }),
        }
    }
}

impl LayerError {
    pub(super) fn into_pull(self, number: usize) -> PullError {
        match self {
            Self::Refused { why } => PullError::Layer { number, why },
            Self::Machine { why } => PullError::Machine { number, why },
            Self::Full { why } => PullError::Full { why },
            Self::Cancelled => PullError::Cancelled,
            Self::Store(error) => error.into(),
        }
    }

    pub(super) fn into_load(self, number: usize) -> LoadError {
        match self {
            Self::Refused { why } => LoadError::Layer { number, why },
            Self::Machine { why } => LoadError::Machine { why },
            Self::Full { why } => LoadError::Full { why },
            Self::Cancelled => LoadError::Cancelled,
            Self::Store(error) => error.into(),
        }
    }
}

/// Whether a write failed because the disk or the quota is used up.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
