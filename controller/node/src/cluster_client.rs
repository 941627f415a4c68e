//! Calls to the cluster's servers on behalf of others than the node's session.
//!
//! In: a [`Question`]. Out: the server's response. Calls carry the token of the question, never the node's own.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::{
    FutureExt as _,
    future::{BoxFuture, join_all},
};
use herdlet_nomad::{
    session::{Newer, Queries},
    wire::{QueryOptions, Secret, WriteOptions},
};
use herdlet_rpc::{
    Service,
    address::Address,
    codec::{self, Value},
    connect::Dial,
    error::{CallError, MessageError},
    framed::Framed,
    mux::Io,
    pool::Pool,
};
use serde::de::DeserializeOwned;

/// Makes calls to servers.
pub trait Servers: Send + Sync + 'static {
    /// Resolves when this node is registered: servers refuse all calls before that, so [`Self::ask`] and
    /// [`Self::stream`] wait for it.
    fn registered(&self) -> BoxFuture<'_, ()>;

    /// Calls one server, and another one if that fails. [`Question::body`] gives the arguments.
    ///
    /// # Errors
    /// See [`CallError`].
    fn ask(&self, question: Question) -> BoxFuture<'_, Result<Answer, CallError>>;

    /// Starts a streaming call to one server. [`Question::body`] gives the arguments.
    ///
    /// # Errors
    /// See [`CallError`].
    fn stream(&self, question: Question) -> BoxFuture<'_, Result<Framed<Box<dyn Io>>, CallError>>;

    /// Addresses of the known servers, for display.
    fn addresses(&self) -> Vec<String>;

    /// Replaces the known servers until servers report others. Addresses that do not answer are left out.
    ///
    /// # Errors
    /// If none of them answers: the error of each. Nothing changes then.
    fn set_addresses(&self, servers: Vec<Address>) -> BoxFuture<'_, Result<(), String>>;

    /// The identity that servers have signed for the node (1.11 and later); empty if there is none.
    fn signed(&self) -> Secret;

    /// Requests a new identity with the next heartbeat.
    fn renew_identity(&self);
}

/// A call and its options.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// `Service.Method`.
    pub method: String,
    pub token: Secret,
    /// The region; `None` for the node's own.
    pub region: Option<String>,
    /// The namespace; empty for the default one.
    pub namespace: String,
    /// Block until there is something newer; 0 for a response at once.
    pub index: u64,
    /// For how long to block; zero for the servers' default.
    pub wait: Duration,
    /// Whether any server may answer, rather than only the leader.
    pub stale: bool,
    /// Whether the call changes something. It must not be repeated then, unless nothing was done.
    pub is_write: bool,
    /// The method's own arguments.
    pub fields: Value,
}

impl Question {
    /// A read-only question to the leader with the anonymous token, without arguments.
    #[must_use]
    pub fn new(method: &str) -> Self {
        Self {
            method: method.to_owned(),
            token: Secret::default(),
            region: None,
            namespace: String::new(),
            index: 0,
            wait: Duration::ZERO,
            stale: false,
            is_write: false,
            fields: Value::Map(Vec::new()),
        }
    }

    /// The arguments of the call, from a node in `region`. `block`: how long the server may block it.
    #[must_use]
    pub fn body(&self, region: &str, block: Duration) -> Value {
        let text = |text: &str| Value::Text(text.to_owned());
        let region = self.region.as_deref().unwrap_or(region);
        let mut fields = vec![
            ("Region", text(region)),
            ("Namespace", text(&self.namespace)),
            ("AuthToken", text(self.token.reveal())),
            ("Forwarded", Value::Bool(false)),
        ];
        if !self.is_write {
            let block = if self.wait.is_zero() { block } else { block.min(self.wait) };
            let block = i64::try_from(block.as_nanos()).unwrap_or(i64::MAX);
            fields.push(("MinQueryIndex", Value::Uint(self.index)));
            fields.push(("MaxQueryTime", Value::Int(block)));
            fields.push(("AllowStale", Value::Bool(self.stale)));
        }
        let mut body: Vec<(Value, Value)> =
            fields.into_iter().map(|(name, value)| (text(name), value)).collect();
        if let Value::Map(own) = &self.fields {
            body.extend(own.iter().cloned());
        }
        Value::Map(body)
    }
}

/// A server's response.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer(pub Value);

impl Answer {
    /// Converts the response to a type.
    ///
    /// # Errors
    /// If it has another type.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, CallError> {
        let bytes = codec::encode(&self.0).map_err(MessageError::from)?;
        Ok(codec::decode(&bytes).map_err(MessageError::from)?)
    }
}

/// The servers of a session, in the order of its pool.
#[derive(Debug)]
pub struct SessionServers<S, D> {
    pub queries: Queries<S, D>,
    pub pool: Arc<Pool<S, D>>,
}

impl<S: Service, D: Dial> Servers for SessionServers<S, D> {
    fn registered(&self) -> BoxFuture<'_, ()> {
        self.queries.registered().boxed()
    }

    fn ask(&self, question: Question) -> BoxFuture<'_, Result<Answer, CallError>> {
        async move {
            let method = question.method.as_str();
            if question.is_write {
                let request = |options: WriteOptions| question.body(&options.region, Duration::ZERO);
                return self.queries.send_once(method, request).await.map(Answer);
            }
            let newer = if question.index == 0 { Newer::Now } else { Newer::Than(question.index) };
            let request = |options: QueryOptions| question.body(&options.region, options.max_query_time);
            self.queries.ask(method, newer, request).await.map(Answer)
        }
        .boxed()
    }

    fn stream(&self, question: Question) -> BoxFuture<'_, Result<Framed<Box<dyn Io>>, CallError>> {
        async move {
            let request = |options: QueryOptions| question.body(&options.region, options.max_query_time);
            self.queries.stream(&question.method, request).await
        }
        .boxed()
    }

    fn addresses(&self) -> Vec<String> {
        self.pool.servers().iter().map(ToString::to_string).collect()
    }

    fn set_addresses(&self, servers: Vec<Address>) -> BoxFuture<'_, Result<(), String>> {
        async move {
            let pings = servers.iter().map(|server| self.pool.ping(server));
            let (mut alive, mut failed) = (Vec::new(), Vec::new());
            for (server, answer) in servers.iter().zip(join_all(pings).await) {
                match answer {
                    Ok(()) => alive.push(server.clone()),
                    Err(error) => failed.push(format!("Server at address {server} failed ping: {error}")),
                }
            }
            if alive.is_empty() {
                return Err(failed.join("; "));
            }
            self.pool.set_servers(alive);
            Ok(())
        }
        .boxed()
    }

    fn signed(&self) -> Secret {
        self.queries.signed()
    }

    fn renew_identity(&self) {
        self.queries.renew_identity();
    }
}

/// Servers that are set later: services for them must exist before the first connection.
#[derive(Default)]
pub struct LazyServers(OnceLock<Box<dyn Servers>>);

impl LazyServers {
    /// Sets the servers. Only the first call has an effect.
    pub fn are(&self, servers: impl Servers) {
        if self.0.set(Box::new(servers)).is_err() {
            tracing::debug!("the servers are already set");
        }
    }
}

impl Servers for LazyServers {
    fn registered(&self) -> BoxFuture<'_, ()> {
        match self.0.get() {
            Some(servers) => servers.registered(),
            // Calls fail at once.
            None => async {}.boxed(),
        }
    }

    fn ask(&self, question: Question) -> BoxFuture<'_, Result<Answer, CallError>> {
        match self.0.get() {
            Some(servers) => servers.ask(question),
            None => async { Err(CallError::NoServers) }.boxed(),
        }
    }

    fn stream(&self, question: Question) -> BoxFuture<'_, Result<Framed<Box<dyn Io>>, CallError>> {
        match self.0.get() {
            Some(servers) => servers.stream(question),
            None => async { Err(CallError::NoServers) }.boxed(),
        }
    }

    fn addresses(&self) -> Vec<String> {
        self.0.get().map(|servers| servers.addresses()).unwrap_or_default()
    }

    fn set_addresses(&self, addresses: Vec<Address>) -> BoxFuture<'_, Result<(), String>> {
        match self.0.get() {
            Some(servers) => servers.set_addresses(addresses),
            None => async { Err(CallError::NoServers.to_string()) }.boxed(),
        }
    }

    fn signed(&self) -> Secret {
        self.0.get().map(|servers| servers.signed()).unwrap_or_default()
    }

    fn renew_identity(&self) {
        if let Some(servers) = self.0.get() {
            servers.renew_identity();
        }
    }
}
