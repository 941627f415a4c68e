//! The node's metadata, as servers read and change it (`NodeMeta.*`, `nomad node meta`); the node's [`Describer`] stores it.

use std::collections::BTreeMap;

use futures_util::{FutureExt as _, future::BoxFuture};

use crate::{
    describe::Describer,
    meta::{MetaError, NodeMeta},
};

/// Metadata by key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetaView {
    /// The effective values: `dynamic` over `configured`.
    pub meta: BTreeMap<String, String>,
    /// Changes at run time; `None` for a removed key.
    pub dynamic: BTreeMap<String, Option<String>>,
    /// Values from the config.
    pub configured: BTreeMap<String, String>,
}

/// Why metadata was not changed. The texts are complete sentences.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetaRefused {
    /// A key or value is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The change could not be stored.
    #[error("{0}")]
    Failed(String),
}

/// Stores the node's metadata.
pub trait DynamicMeta: Send + Sync + 'static {
    /// The current metadata.
    fn read(&self) -> MetaView;

    /// Sets keys, or removes those without a value, and returns the result. Completes once the change is stored; servers receive it soon
    /// after.
    ///
    /// # Errors
    /// If nothing was changed.
    fn apply(
        &self,
        changes: BTreeMap<String, Option<String>>,
    ) -> BoxFuture<'_, Result<MetaView, MetaRefused>>;
}

impl From<NodeMeta> for MetaView {
    fn from(meta: NodeMeta) -> Self {
        Self { meta: meta.merged(), dynamic: meta.dynamic, configured: meta.fixed }
    }
}

impl From<MetaError> for MetaRefused {
    fn from(error: MetaError) -> Self {
        let message = format!("failed to {error}");
        match error {
            // Stock clients use this text.
            MetaError::Key(key) if key.is_empty() => {
                Self::Invalid("metadata keys must not be empty".to_owned())
            }
            MetaError::Nothing | MetaError::Key(_) | MetaError::TooMuch => Self::Invalid(message),
            MetaError::Read { .. } | MetaError::Write { .. } => Self::Failed(message),
        }
    }
}

impl DynamicMeta for Describer {
    fn read(&self) -> MetaView {
        self.meta().into()
    }

    fn apply(
        &self,
        changes: BTreeMap<String, Option<String>>,
    ) -> BoxFuture<'_, Result<MetaView, MetaRefused>> {
        async move { Ok(self.set_meta(&changes).await?.into()) }.boxed()
    }
}
