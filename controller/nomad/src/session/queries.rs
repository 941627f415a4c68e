//! What else servers can be asked by a node: of allocations elsewhere, of nodes, and for identities.

use std::{sync::Arc, time::Duration};

use herdlet_rpc::{Service, connect::Dial, error::CallError};

use super::Inner;
use crate::wire::{
    AllocId, NodeId,
    queries::{
        AllocRequest, AllocResponse, IdentityRequest, NodeRequest, NodeResponse, SignRequest, SignResponse,
    },
};

/// Questions to servers, with the node's token. Clones are one and the same.
#[derive(Debug)]
pub struct Queries<S, D> {
    inner: Arc<Inner<S, D>>,
}

impl<S, D> Clone for Queries<S, D> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

/// Whether an answer has to be waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Newer {
    /// The leader's answer, now.
    Now,
    /// Any server's, once there is something newer than this index, for 300 s at most.
    Than(u64),
}

impl<S: Service, D: Dial> Queries<S, D> {
    pub(super) fn new(inner: Arc<Inner<S, D>>) -> Self {
        Self { inner }
    }

    /// An allocation of any node: for whoever waits for its end.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn alloc(&self, id: &AllocId, newer: Newer) -> Result<AllocResponse, CallError> {
        let (index, block, stale) = parts(newer);
        let request =
            |block| AllocRequest { alloc_id: id.clone(), options: self.inner.query(index, block, stale) };
        self.inner.pool.query("Alloc.GetAlloc", block, request).await?.decode()
    }

    /// A node: for the address of its HTTP API.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn node(&self, id: &NodeId, newer: Newer) -> Result<NodeResponse, CallError> {
        let (index, block, stale) = parts(newer);
        let request =
            |block| NodeRequest { node_id: id.clone(), options: self.inner.query(index, block, stale) };
        self.inner.pool.query("Node.GetNode", block, request).await?.decode()
    }

    /// Signed identities (1.7 and later) for an allocation that servers have known since `create_index`.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn sign(
        &self,
        identities: &[IdentityRequest],
        create_index: u64,
    ) -> Result<SignResponse, CallError> {
        let request = |block| SignRequest {
            identities: identities.to_vec(),
            options: self.inner.query(create_index.saturating_sub(1), block, true),
        };
        let block = Duration::from_secs(30);
        self.inner.pool.query("Alloc.SignIdentities", block, request).await?.decode()
    }
}

fn parts(newer: Newer) -> (u64, Duration, bool) {
    match newer {
        Newer::Now => (0, Duration::ZERO, false),
        Newer::Than(index) => (index, Duration::from_secs(300), true),
    }
}
