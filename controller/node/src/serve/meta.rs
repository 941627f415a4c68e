//! The node's metadata, as servers read and change it (`NodeMeta.*`, `nomad node meta`); kept by the node's [`Describer`].

use std::collections::BTreeMap;

use futures_util::{FutureExt as _, future::BoxFuture};

use crate::{
    describe::Describer,
    meta::{MetaError, NodeMeta},
};

/// Metadata by key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetaView {
    /// What holds: `dynamic` over `configured`.
    pub meta: BTreeMap<String, String>,
    /// What was changed while the node ran; none where a key was taken away.
    pub dynamic: BTreeMap<String, Option<String>>,
    /// What the configuration says.
    pub configured: BTreeMap<String, String>,
}

/// Why metadata was not changed. The sentences stand alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetaRefused {
    /// A key or a value can't be one.
    #[error("{0}")]
    Invalid(String),
    /// It could not be stored.
    #[error("{0}")]
    Failed(String),
}

/// Whoever keeps the node's metadata.
pub trait DynamicMeta: Send + Sync + 'static {
    /// As it is now.
    fn read(&self) -> MetaView;

    /// Changes these keys, or takes away those without a value, and says how it is then. Done once it is stored; servers hear of it soon.
    ///
    /// # Errors
    /// When nothing was changed.
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
            // In the words of stock clients.
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
