//! Requests to a Consul agent (API of Consul 1.8 and later).
//!
//! In: paths, bodies and tokens. Out: responses, or failures that tell whether a retry can help. Every request has a
//! timeout. Concurrency and rate stay below what an agent accepts from one client. This module does not know the
//! purpose of requests.

use std::{
    num::NonZeroU32,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use herdlet_api_types::UnixNanos;
use herdlet_base::{
    clock::wall_now,
    error::in_full,
    http_client::{self, Tls},
    observation::Class,
};
use herdlet_runtime::{Limit, Permits, Rate};
use reqwest::{Client, Method, StatusCode, header::HeaderMap};

use super::{
    config::{Address, ConsulConfig},
    tokens::Token,
};
use crate::catalog::CatalogFailure;

/// A client of one Consul agent, for one of its namespaces.
#[derive(Debug)]
pub(super) struct HttpApi {
    pub(super) client: Client,
    base: String,
    /// The address in messages.
    pub(super) address: String,
    /// The same, with the namespace and the partition.
    place: String,
    scope: Scope,
    agent: Arc<AgentState>,
    /// The address is a default: no warning if nothing ever answers there.
    pub(super) is_guess: bool,
}

/// What the clients of one Consul agent share.
#[derive(Debug)]
struct AgentState {
    permits: Permits<RequestKind>,
    failures: [AtomicU64; RequestKind::ALL.len()],
    silence: Mutex<Option<Silence>>,
    /// Time of the last answer; 0 before the first.
    answered_at: AtomicI64,
}

/// A namespace and a partition of Consul Enterprise, as arguments of requests; those of the token if empty.
pub(super) type Scope = Vec<(&'static str, String)>;

/// An outage: the agent does not answer, or answers with server errors.
#[derive(Debug)]
struct Silence {
    since: UnixNanos,
    why: String,
}

/// Kinds of requests. Each has its own permits, so that removals don't wait for registrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RequestKind {
    /// List entries.
    List,
    /// Register a service.
    Register,
    /// Deregister a service.
    Deregister,
    /// Report a check result.
    Update,
    /// Wait for changes.
    Watch,
}

impl RequestKind {
    pub(super) const ALL: [Self; 5] =
        [Self::List, Self::Register, Self::Deregister, Self::Update, Self::Watch];

    /// Its name in metrics.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Register => "register",
            Self::Deregister => "deregister",
            Self::Update => "update",
            Self::Watch => "watch",
        }
    }
}

/// A failed request.
#[derive(Debug)]
pub(super) struct RequestError {
    /// The status of Consul's response, if there was one.
    status: Option<StatusCode>,
    /// The text of the response.
    body: String,
    failure: CatalogFailure,
}

impl RequestError {
    /// Consul does not know the item. Older agents have no separate status for that.
    pub(super) fn is_missing(&self) -> bool {
        self.status == Some(StatusCode::NOT_FOUND)
            || (self.status == Some(StatusCode::INTERNAL_SERVER_ERROR)
                && self.body.starts_with("Unknown service"))
    }

    /// The token lacks permission, or no longer exists.
    pub(super) fn is_denied(&self) -> bool {
        self.status == Some(StatusCode::FORBIDDEN)
            || ["ACL not found", "Permission denied"].iter().any(|sign| self.body.contains(sign))
    }
}

impl From<RequestError> for CatalogFailure {
    fn from(refused: RequestError) -> Self {
        refused.failure
    }
}

/// A change to make.
#[derive(Debug, Clone, Copy)]
pub(super) struct Put<'a> {
    pub(super) kind: RequestKind,
    pub(super) path: &'a str,
    pub(super) body: Option<&'a serde_json::Value>,
    pub(super) token: &'a Token,
}

/// What all requests have.
#[derive(Debug, Clone, Copy)]
struct Call<'a> {
    kind: RequestKind,
    token: &'a Token,
    timeout: Duration,
}

impl HttpApi {
    pub(super) fn new(config: &ConsulConfig) -> Result<Self, reqwest::Error> {
        let (builder, base, address) = match &config.address {
            Address::Http(url) => {
                let tls = config.tls(url);
                let builder = http_client::builder(tls);
                let builder = if tls == Tls::None { builder } else { config.credentials.give(builder)? };
                (builder, url.clone(), url.clone())
            }
            Address::Unix(path) => {
                let builder = http_client::builder(Tls::None).unix_socket(path.as_path());
                (builder, "http://localhost".to_owned(), format!("unix://{}", path.display()))
            }
        };
        let builder = builder.connect_timeout(CONNECT_TIMEOUT).redirect(reqwest::redirect::Policy::none());
        let agent = AgentState {
            permits: Permits::new(limit_of),
            failures: RequestKind::ALL.map(|_| AtomicU64::new(0)),
            silence: Mutex::default(),
            answered_at: AtomicI64::default(),
        };
        let (client, agent, scope) = (builder.build()?, Arc::new(agent), Scope::new());
        Ok(Self { client, base, place: address.clone(), address, scope, agent, is_guess: false })
    }

    /// A client of the same agent for another namespace.
    pub(super) fn in_scope(&self, scope: Scope) -> Self {
        let names = scope.iter().map(|(kind, name)| format!(" {kind}={name}"));
        Self {
            client: self.client.clone(),
            base: self.base.clone(),
            address: self.address.clone(),
            place: names.fold(self.address.clone(), |place, name| place + &name),
            scope,
            agent: Arc::clone(&self.agent),
            is_guess: self.is_guess,
        }
    }

    /// How long Consul has not answered, and why; the beginning of a sentence.
    pub(super) fn trouble(&self, wall: UnixNanos) -> Option<String> {
        let silence = self.silence();
        let Silence { since, why } = silence.as_ref()?;
        let length = herdlet_api_types::Duration::from_secs((wall.0 - since.0).max(0) / 1_000_000_000);
        Some(format!("Consul at {} has not answered for {}: {why}", self.address, length))
    }

    fn silence(&self) -> MutexGuard<'_, Option<Silence>> {
        self.agent.silence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends an outage. Each outage is logged once, however many requests fail.
    pub(super) fn mark_reachable(&self) {
        self.agent.answered_at.store(wall_now().0, Ordering::Relaxed);
        if self.silence().take().is_some() {
            tracing::info!(address = self.address, "Consul answers again");
        }
    }

    pub(super) fn unanswered(&self, why: &str) {
        let mut silence = self.silence();
        if silence.is_none() {
            let answered_at = self.agent.answered_at.load(Ordering::Relaxed);
            if self.is_guess && answered_at == 0 {
                tracing::debug!(address = self.address, why, "Consul does not answer");
            } else {
                tracing::warn!(address = self.address, why, "Consul does not answer");
            }
            let since = match answered_at {
                0 => wall_now(),
                answered => UnixNanos(answered),
            };
            *silence = Some(Silence { since, why: why.to_owned() });
        }
    }

    /// The number of failed requests so far, by kind.
    pub(super) fn failures(&self) -> [(&'static str, u64); RequestKind::ALL.len()] {
        RequestKind::ALL.map(|kind| (kind.as_str(), self.failed(kind).load(Ordering::Relaxed)))
    }

    /// Requests a path and parses the response with `read`.
    pub(super) async fn get<T, E: std::error::Error>(
        &self,
        path: &str,
        filter: Option<&str>,
        token: &Token,
        read: impl Fn(&[u8]) -> Result<T, E>,
    ) -> Result<T, CatalogFailure> {
        let doing = || format!("request {path} from Consul {token}");
        let mut request = self.client.request(Method::GET, self.url(path));
        if let Some(filter) = filter {
            request = request.query(&[("filter", filter)]);
        }
        let call = Call { kind: RequestKind::List, token, timeout: REQUEST_TIMEOUT };
        let response = self.send(call, request, &doing).await?;
        let read = match body(response).await {
            Ok(body) => read(&body).map_err(|error| error.to_string()),
            Err(why) => Err(why),
        };
        read.map_err(|why| {
            self.failed(RequestKind::List).fetch_add(1, Ordering::Relaxed);
            retry(format!("{}: {why}", doing()))
        })
    }

    /// Makes a change; `doing` describes it in errors.
    pub(super) async fn put(
        &self,
        Put { kind, path, body, token }: Put<'_>,
        doing: &(impl Fn() -> String + Sync),
    ) -> Result<(), RequestError> {
        let mut request = self.client.request(Method::PUT, self.url(path));
        if let Some(body) = body {
            request = request.json(body);
        }
        let doing = || format!("{} {token}", doing());
        self.send(Call { kind, token, timeout: REQUEST_TIMEOUT }, request, &doing).await.map(drop)
    }

    /// Waits until the index of `path` is greater than `index`, at most a few minutes, and returns the index, which
    /// grows with every change. `filter` removes the contents.
    pub(super) async fn wait_newer(
        &self,
        path: &str,
        filter: &str,
        index: u64,
        token: &Token,
    ) -> Result<u64, CatalogFailure> {
        let doing = || format!("wait for changes of {path} in Consul {token}");
        let index = index.to_string();
        let wait = format!("{}s", BLOCKING_WAIT.as_secs());
        let query = [("index", index.as_str()), ("wait", wait.as_str()), ("stale", ""), ("filter", filter)];
        let request = self.client.request(Method::GET, self.url(path)).query(&query);
        // Consul adds up to a sixteenth of the wait.
        let timeout = BLOCKING_WAIT + BLOCKING_WAIT / 8;
        let response = self.send(Call { kind: RequestKind::Watch, token, timeout }, request, &doing).await?;
        let index = index_of(response.headers());
        // Only the index matters, but an unread body would close the connection.
        let read = body(response).await;
        let index = read.and_then(|_| index.ok_or_else(|| "its answer has no index".to_owned()));
        index.map_err(|why| {
            self.failed(RequestKind::Watch).fetch_add(1, Ordering::Relaxed);
            retry(format!("{}: {why}", doing()))
        })
    }

    async fn send(
        &self,
        Call { kind, token, timeout }: Call<'_>,
        request: reqwest::RequestBuilder,
        doing: &(impl Fn() -> String + Sync),
    ) -> Result<reqwest::Response, RequestError> {
        let _permit = self.agent.permits.acquire(kind, 0).await;
        let request = if self.scope.is_empty() { request } else { request.query(&self.scope) };
        let request = match token.header() {
            Some(token) => request.header("x-consul-token", token),
            None => request,
        };
        let refused = match request.timeout(timeout).send().await {
            Ok(response) if response.status().is_success() => {
                self.mark_reachable();
                return Ok(response);
            }
            Ok(response) => {
                let status = response.status();
                let body = body_text(response).await;
                // For single services it also uses this status for invalid requests.
                if kind == RequestKind::List && status.is_server_error() {
                    self.unanswered(&format!("{status}: {body}"));
                }
                let why = format!("{}: Consul at {} answers {status}: {body}", doing(), self.place);
                RequestError {
                    status: Some(status),
                    body,
                    failure: CatalogFailure { class: class_of(status), why },
                }
            }
            Err(error) => {
                let why = in_full(&error.without_url());
                self.unanswered(&why);
                unanswered(format!("{}: no answer from {}: {why}", doing(), self.address))
            }
        };
        if !refused.is_missing() {
            self.failed(kind).fetch_add(1, Ordering::Relaxed);
        }
        Err(refused)
    }

    fn failed(&self, kind: RequestKind) -> &AtomicU64 {
        let [list, register, deregister, update, watch] = &self.agent.failures;
        match kind {
            RequestKind::List => list,
            RequestKind::Register => register,
            RequestKind::Deregister => deregister,
            RequestKind::Update => update,
            RequestKind::Watch => watch,
        }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }
}

/// The index of a blocking query. It is never 0 (Consul's rules for blocking queries).
pub(super) fn index_of(headers: &HeaderMap) -> Option<u64> {
    headers.get("x-consul-index")?.to_str().ok()?.parse().ok().filter(|index| *index > 0)
}

/// Enough for thousands of services.
const BODY_BYTES_MAX: usize = 32 * 1024 * 1024;

async fn body(mut response: reqwest::Response) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| in_full(&error))? {
        if body.len() + chunk.len() > BODY_BYTES_MAX {
            return Err(format!("its answer is longer than {BODY_BYTES_MAX} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const BLOCKING_WAIT: Duration = Duration::from_secs(300);

/// The length of a readable error message.
pub(super) const SAID_CHARS_MAX: usize = 300;

/// A Consul agent accepts 200 connections from one address (`http_max_conns_per_client`), and other clients need some
/// of them. All of herdlet has at most 100: 38 here, 40 for templates, 20 for log-ins, one for attributes.
fn limit_of(kind: RequestKind) -> Limit {
    let one = |n| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
    let (concurrent, burst, period) = match kind {
        // Concurrent callers share listings: see `listing.rs`.
        RequestKind::List => (4, 100, Duration::from_millis(10)),
        // The agent forwards changes to its servers one after the other, so a higher rate would only queue.
        RequestKind::Register | RequestKind::Deregister | RequestKind::Update => {
            (10, 100, Duration::from_millis(4))
        }
        // Two watches run, each with one request at a time. The rate limit applies if every one returns at once.
        RequestKind::Watch => (4, 8, Duration::from_secs(1)),
    };
    Limit { concurrent: one(concurrent), rate: Some(Rate { burst: one(burst), period }) }
}

/// Consul responds with 400 to requests that can never succeed. Other refusals, such as permissions, may change.
fn class_of(status: StatusCode) -> Class {
    if status == StatusCode::BAD_REQUEST { Class::Fatal } else { Class::Retry }
}

fn retry(why: String) -> CatalogFailure {
    CatalogFailure { class: Class::Retry, why }
}

fn unanswered(why: String) -> RequestError {
    RequestError { status: None, body: String::new(), failure: retry(why) }
}

pub(super) async fn body_text(response: reqwest::Response) -> String {
    let mut bytes = Vec::new();
    http_client::read_start(response, &mut bytes, 4 * SAID_CHARS_MAX).await;
    String::from_utf8_lossy(&bytes).trim().chars().take(SAID_CHARS_MAX).collect()
}
