//! Other calls from a node to its servers: any method, with the node's token.
//!
//! In: a method, and a request that embeds the common options. Out: the response, as any type. Servers refuse calls before the node is
//! registered, so calls wait for that; callers that cannot wait set a timeout.

use std::{sync::Arc, time::Duration};

use herdlet_rpc::{Service, connect::Dial, error::CallError, framed::Framed, mux::Io};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{sync::SemaphorePermit, time::timeout};

use super::Inner;
use crate::{
    decide::watch::{Question, Responder},
    reports::lock,
    wire::{
        AllocId, NodeId, QueryOptions, Secret, WriteOptions,
        queries::{
            AllocRequest, AllocResponse, DeriveRequest, DeriveResponse, IdentityRequest, NodeRequest,
            NodeResponse, SignRequest, SignResponse,
        },
    },
};

/// Maximum number of blocking queries, a third less than the pool allows, so that the watch always gets a permit.
pub(super) const WAITS: usize = 128;

/// For how long servers may block such a query.
const BLOCK: Duration = Duration::from_secs(300);

/// For how long a server may wait for an allocation that other servers already know.
const SIGN: Duration = Duration::from_secs(30);

/// Makes calls to servers with the node's token. Clones share the session.
#[derive(Debug)]
pub struct Queries<S, D> {
    inner: Arc<Inner<S, D>>,
}

impl<S, D> Clone for Queries<S, D> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

/// Whether to wait for a newer response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Newer {
    /// The leader's current response.
    Now,
    /// Any server's response, once its index is greater than this; at most 300 s.
    Than(u64),
    /// The same with another limit, for callers with more queries than permits.
    Within {
        /// The known index.
        index: u64,
        /// For how long servers may block; more than zero, and at most 300 s.
        block: Duration,
    },
}

impl<S: Service, D: Dial> Queries<S, D> {
    pub(super) fn new(inner: Arc<Inner<S, D>>) -> Self {
        Self { inner }
    }

    /// The id of the calling node.
    #[must_use]
    pub fn node_id(&self) -> &NodeId {
        &self.inner.identity.id
    }

    /// Resolves when this node is registered.
    pub async fn registered(&self) {
        self.inner.registered().await;
    }

    /// The identity that servers have signed for the node (1.11 and later); empty if there is none.
    #[must_use]
    pub fn signed(&self) -> Secret {
        lock(&self.inner.tokens).signed()
    }

    /// Waits until servers have received all reports.
    pub async fn until_acknowledged(&self) {
        loop {
            let acknowledged = self.inner.shared.report_acknowledged.notified();
            tokio::pin!(acknowledged);
            // Register for notifications before checking, so that none is missed.
            acknowledged.as_mut().enable();
            if lock(&self.inner.shared.updates).is_all_acknowledged() {
                return;
            }
            acknowledged.await;
        }
    }

    /// Requests a new identity with the next heartbeat.
    pub fn renew_identity(&self) {
        lock(&self.inner.tokens).renew();
    }

    /// Makes a read-only call. `request` gets the options with region, token and index; it may change the namespace or the token. It is
    /// called once per server tried.
    ///
    /// ```
    /// # use herdlet_nomad::{session::{Newer, Queries}, wire::{QueryMeta, QueryOptions}};
    /// # use herdlet_rpc::{Service, connect::Dial, error::CallError};
    /// #[derive(serde::Serialize)]
    /// #[serde(rename_all = "PascalCase")]
    /// struct PolicySetRequest {
    ///     names: Vec<String>,
    ///     #[serde(flatten)]
    ///     options: QueryOptions,
    /// }
    ///
    /// #[derive(serde::Deserialize, Default)]
    /// #[serde(default, rename_all = "PascalCase")]
    /// struct PolicySetResponse {
    ///     #[serde(flatten)]
    ///     meta: QueryMeta,
    /// }
    ///
    /// # async fn policies<S: Service, D: Dial>(queries: &Queries<S, D>) -> Result<PolicySetResponse, CallError> {
    /// let names = vec!["ops".to_owned()];
    /// let request = |options| PolicySetRequest { names: names.clone(), options };
    /// queries.ask("ACL.GetPolicies", Newer::Now, request).await
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn ask<T: Serialize, R: DeserializeOwned>(
        &self,
        method: &str,
        newer: Newer,
        request: impl Fn(QueryOptions) -> T,
    ) -> Result<R, CallError> {
        match newer {
            Newer::Now => self.ask_within(method, Question::LATEST, Duration::ZERO, request).await,
            Newer::Than(index) => {
                let question = Question { index, responder: Responder::AnyServer };
                self.ask_within(method, question, BLOCK, request).await
            }
            Newer::Within { index, block } => {
                let question = Question { index, responder: Responder::AnyServer };
                self.ask_within(method, question, block, request).await
            }
        }
    }

    /// Makes a call that changes something. It is sent once, unless it is certain that nothing was done. `request` gets the options with
    /// region and token; it may change the namespace or the token.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn send_once<T: Serialize, R: DeserializeOwned>(
        &self,
        method: &str,
        request: impl FnOnce(WriteOptions) -> T,
    ) -> Result<R, CallError> {
        self.inner.registered().await;
        let token = lock(&self.inner.tokens).to_call();
        let request = request(self.inner.write(token));
        self.inner.pool.write(method, &request).await?.decode()
    }

    /// Starts a streaming call, over a connection of its own.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn stream<T: Serialize>(
        &self,
        method: &str,
        request: impl FnOnce(QueryOptions) -> T,
    ) -> Result<Framed<Box<dyn Io>>, CallError> {
        self.inner.registered().await;
        let question = Question { index: 0, responder: Responder::AnyServer };
        let request = request(self.inner.query(question, Duration::ZERO));
        self.inner.pool.stream(method, &request).await
    }

    /// An allocation of any node, for callers that wait for its end.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn alloc(&self, id: &AllocId, newer: Newer) -> Result<AllocResponse, CallError> {
        let request = |options| AllocRequest { alloc_id: id.clone(), options };
        self.ask("Alloc.GetAlloc", newer, request).await
    }

    /// A node, for the address of its HTTP API.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn node(&self, id: &NodeId, newer: Newer) -> Result<NodeResponse, CallError> {
        let request = |options| NodeRequest { node_id: id.clone(), options };
        self.ask("Node.GetNode", newer, request).await
    }

    /// Has servers sign identities (1.7 and later) for an allocation with this `create_index`.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn sign(
        &self,
        identities: &[IdentityRequest],
        create_index: u64,
    ) -> Result<SignResponse, CallError> {
        let request = |options| SignRequest { identities: identities.to_vec(), options };
        let question = Question { index: create_index.saturating_sub(1), responder: Responder::AnyServer };
        self.ask_within("Alloc.SignIdentities", question, SIGN, request).await
    }

    /// Has servers derive tokens of Vault (through 1.9) for tasks of an allocation.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn derive_vault_tokens(
        &self,
        alloc: &AllocId,
        tasks: &[String],
    ) -> Result<DeriveResponse, CallError> {
        let request = |options| DeriveRequest {
            node_id: self.inner.identity.id.clone(),
            secret_id: self.inner.identity.secret.clone(),
            alloc_id: alloc.clone(),
            tasks: tasks.to_vec(),
            options,
        };
        self.ask("Node.DeriveVaultToken", Newer::Now, request).await
    }

    async fn ask_within<T: Serialize, R: DeserializeOwned>(
        &self,
        method: &str,
        question: Question,
        block: Duration,
        request: impl Fn(QueryOptions) -> T,
    ) -> Result<R, CallError> {
        self.inner.registered().await;
        let _room = self.room(block).await?;
        let request = |block| request(self.inner.query(question, block));
        let answer = self.inner.pool.query(method, block, request);
        // A blocking query should not wait for a server that hangs.
        let answer = if block.is_zero() { answer.await } else { self.inner.while_kept(answer).await };
        answer?.decode()
    }

    /// Waits for a permit to make a blocking query.
    async fn room(&self, block: Duration) -> Result<Option<SemaphorePermit<'_>>, CallError> {
        if block.is_zero() {
            return Ok(None);
        }
        let room = timeout(block, self.inner.waits.acquire()).await;
        room.ok().and_then(Result::ok).map(Some).ok_or(CallError::NoRoom(block))
    }
}
