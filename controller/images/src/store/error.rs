//! Why the store did not do what was asked for.

use std::{io, path::PathBuf, sync::Arc};

use herdlet_base::observation::Class;

use crate::{config::ConfigError, digest::Digest, document::DocumentError, registry::RegistryError};

/// Why the store can't be used. Continues "failed to".
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{operation} {path}: {source}")]
    Io { operation: &'static str, path: PathBuf, source: io::Error },
    #[error("remove the image {id}: {owner} uses it")]
    Claimed { id: Digest, owner: String },
    #[error("use the store of images: this function is not complete yet")]
    Incomplete,
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
    /// Nothing of what did not fit is left.
    #[error("pull the image: the disk is full; free some space, or remove unused images ({why})")]
    Full { why: String },
    #[error(transparent)]
    Store(Arc<StoreError>),
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
    /// Nothing of what did not fit is left.
    #[error("load the archive: the disk is full; free some space, or remove unused images ({why})")]
    Full { why: String },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("load the archive: it was cancelled")]
    Cancelled,
}

impl PullError {
    /// Whether no registry could answer: it is down, limits requests or has a fault. The image that is there may be used instead.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Registry(error) => error.is_unavailable(),
            Self::Layer { .. } | Self::Full { .. } | Self::Store(_) | Self::Cancelled => false,
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
            Self::Full { .. } | Self::Store(_) | Self::Cancelled => Class::Retry,
        }
    }
}

impl From<RegistryError> for PullError {
    fn from(error: RegistryError) -> Self {
        match error {
            RegistryError::Cancelled => Self::Cancelled,
            RegistryError::Write(error) if is_full(&error) => Self::Full { why: error.to_string() },
            error => Self::Registry(Arc::new(error)),
        }
    }
}

impl From<StoreError> for PullError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Io { source, .. } if is_full(&source) => Self::Full { why: source.to_string() },
            error => Self::Store(Arc::new(error)),
        }
    }
}

/// Whether a write failed because the disk or the quota is used up.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
