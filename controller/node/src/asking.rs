//! How the cluster's servers are asked for something that the session of the node doesn't ask for itself.
//!
//! In: a [`Question`]. Out: the answer as it came. Who asks is whoever is named in the question, not the node: nothing is done in the
//! node's own name.

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

/// Asks servers.
pub trait Servers: Send + Sync + 'static {
    /// Asks one of them, and another one where that fails. [`Question::body`] is what to send.
    ///
    /// # Errors
    /// See [`CallError`].
    fn ask(&self, question: Question) -> BoxFuture<'_, Result<Answer, CallError>>;

    /// Begins a call that goes on for long, at one of them. [`Question::body`] is what to send.
    ///
    /// # Errors
    /// See [`CallError`].
    fn stream(&self, question: Question) -> BoxFuture<'_, Result<Framed<Box<dyn Io>>, CallError>>;

    /// Addresses of those that are known, for people.
    fn addresses(&self) -> Vec<String>;

    /// Takes these in place of those that are known, until servers tell of others. Those of them that don't answer are left out.
    ///
    /// # Errors
    /// Where none of them answers, what each of them fails with: then nothing is changed.
    fn set_addresses(&self, servers: Vec<Address>) -> BoxFuture<'_, Result<(), String>>;

    /// The identity that they have signed for the node (1.11 and later); empty: none.
    fn signed(&self) -> Secret;

    /// They are asked for another one with the next heartbeat.
    fn renew_identity(&self);
}

/// What is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// `Service.Method`.
    pub method: String,
    pub token: Secret,
    /// The region; none for the node's own.
    pub region: Option<String>,
    /// Empty is the default one, where it matters.
    pub namespace: String,
    /// The answer waits until there is something newer; 0 for one at once.
    pub index: u64,
    /// For how long; zero for what servers think right.
    pub wait: Duration,
    /// Any server may answer, not only the leader.
    pub stale: bool,
    /// Something is changed: it must not be sent twice, unless nothing was done.
    pub is_write: bool,
    /// Everything else that the method takes.
    pub fields: Value,
}

impl Question {
    /// A question about everything, of the anonymous token, to the leader.
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

    /// The arguments of the call, for a node of that region. `block` is for how long its server may let it wait.
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

/// What a server has said.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer(pub Value);

impl Answer {
    /// The same as a type.
    ///
    /// # Errors
    /// When it has other types.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, CallError> {
        let bytes = codec::encode(&self.0).map_err(MessageError::from)?;
        Ok(codec::decode(&bytes).map_err(MessageError::from)?)
    }
}

/// The servers of a session, in the order of its pool.
#[derive(Debug)]
pub struct OfSession<S, D> {
    pub queries: Queries<S, D>,
    pub pool: Arc<Pool<S, D>>,
}

impl<S: Service, D: Dial> Servers for OfSession<S, D> {
    fn ask(&self, question: Question) -> BoxFuture<'_, Result<Answer, CallError>> {
        async move {
            let method = question.method.as_str();
            if question.is_write {
                let request = |options: WriteOptions| question.body(&options.region, Duration::ZERO);
                return self.queries.tell(method, request).await.map(Answer);
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

/// Servers that are known later: what is served to them is there before the first connection to one.
#[derive(Default)]
pub struct Late(OnceLock<Box<dyn Servers>>);

impl Late {
    /// From now on these are asked. Said once; nothing changes later.
    pub fn are(&self, servers: impl Servers) {
        if self.0.set(Box::new(servers)).is_err() {
            tracing::debug!("whom to ask was known already");
        }
    }
}

impl Servers for Late {
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
