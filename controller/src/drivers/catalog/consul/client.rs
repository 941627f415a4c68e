//! The requests we make of a Consul agent (API of Consul 1.8 and later).
//!
//! In: paths and bodies. Out: parsed answers, or failures that say whether trying again may help. Every request has a deadline,
//! and there are never more at a time, nor per second, than an agent takes from one client. It must not know why it is asked.

use std::{num::NonZeroU32, time::Duration};

use herdlet_runtime::{Limit, Permits, Rate};
use reqwest::{
    Client, Method, StatusCode,
    header::{HeaderMap, HeaderValue},
};
use serde::de::DeserializeOwned;

use super::config::{Address, ConsulConfig};
use crate::{
    drivers::{catalog::CatalogFailure, sight::Class, task::in_full},
    http_client::{self, Tls},
};

/// Speaks to one Consul agent.
#[derive(Debug)]
pub(super) struct HttpApi {
    client: Client,
    base: String,
    /// The same for people.
    address: String,
    permits: Permits<Kind>,
}

/// Kinds of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Answered at once.
    Short,
    /// Answered when something changes.
    Blocking,
}

/// A request that was not done.
#[derive(Debug)]
pub(super) struct Refused {
    /// What Consul answered, if it did.
    status: Option<StatusCode>,
    failure: CatalogFailure,
}

impl Refused {
    /// Consul knows no such thing.
    pub(super) fn is_missing(&self) -> bool {
        self.status == Some(StatusCode::NOT_FOUND)
    }
}

impl From<Refused> for CatalogFailure {
    fn from(refused: Refused) -> Self {
        refused.failure
    }
}

/// Answer to a blocking query.
pub(super) struct Answer {
    /// Grows with every change.
    pub(super) index: u64,
}

impl HttpApi {
    pub(super) fn new(config: &ConsulConfig) -> Result<Self, reqwest::Error> {
        let mut headers = HeaderMap::new();
        if let Some(token) = &config.token
            && let Ok(mut value) = HeaderValue::from_str(token)
        {
            value.set_sensitive(true);
            headers.insert("x-consul-token", value);
        }
        let (builder, base, address) = match &config.address {
            Address::Http(url) => (http_client::builder(Tls::of(url)), url.clone(), url.clone()),
            Address::Unix(path) => {
                let builder = http_client::builder(Tls::None).unix_socket(path.as_path());
                (builder, "http://localhost".to_owned(), format!("unix://{}", path.display()))
            }
        };
        let builder = builder
            .default_headers(headers)
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none());
        Ok(Self { client: builder.build()?, base, address, permits: Permits::new(limit_of) })
    }

    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<T, CatalogFailure> {
        let doing = || format!("ask Consul for {path}");
        let request = self.client.request(Method::GET, self.url(path)).query(query);
        let response = self.send(Kind::Short, request, REQUEST_TIMEOUT, &doing).await?;
        let body = body(response).await.map_err(|why| retry(format!("{}: {why}", doing())))?;
        serde_json::from_slice(&body).map_err(|error| retry(format!("{}: {error}", doing())))
    }

    pub(super) async fn put(
        &self,
        path: &str,
        body: Option<&serde_json::Value>,
        doing: &(impl Fn() -> String + Sync),
    ) -> Result<(), Refused> {
        let mut request = self.client.request(Method::PUT, self.url(path));
        if let Some(body) = body {
            request = request.json(body);
        }
        self.send(Kind::Short, request, REQUEST_TIMEOUT, doing).await.map(drop)
    }

    /// Waits until what `path` shows is newer than `index`, or for a few minutes.
    pub(super) async fn wait_newer(&self, path: &str, index: u64) -> Result<Answer, CatalogFailure> {
        let doing = || format!("wait for changes of {path} in Consul");
        let index = index.to_string();
        let wait = format!("{}s", BLOCKING_WAIT.as_secs());
        let query = [("index", index.as_str()), ("wait", wait.as_str()), ("stale", "")];
        let request = self.client.request(Method::GET, self.url(path)).query(&query);
        // Consul adds up to a sixteenth of the wait.
        let response = self.send(Kind::Blocking, request, BLOCKING_WAIT + BLOCKING_WAIT / 8, &doing).await?;
        let index =
            response.headers().get("x-consul-index").and_then(|value| value.to_str().ok()?.parse().ok());
        // Only the index matters, but an unread body would cost the connection.
        body(response).await.map_err(|why| retry(format!("{}: {why}", doing())))?;
        Ok(Answer { index: index.unwrap_or(0) })
    }

    async fn send(
        &self,
        kind: Kind,
        request: reqwest::RequestBuilder,
        timeout: Duration,
        doing: &(impl Fn() -> String + Sync),
    ) -> Result<reqwest::Response, Refused> {
        let _permit = self.permits.acquire(kind, 0).await;
        let response = match request.timeout(timeout).send().await {
            Ok(response) => response,
            Err(error) => {
                let why = in_full(&error.without_url());
                return Err(unanswered(format!("{}: no answer from {}: {why}", doing(), self.address)));
            }
        };
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let said = said(response).await;
        let why = format!("{}: Consul answers {status}: {said}", doing());
        Err(Refused { status: Some(status), failure: CatalogFailure { class: class_of(status), why } })
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }
}

/// Thousands of services fit.
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

/// As much of an error page as a person wants to read.
const SAID_CHARS_MAX: usize = 300;

/// A Consul agent takes 200 connections from one address, and others may want some of them (`http_max_conns_per_client`).
fn limit_of(kind: Kind) -> Limit {
    let one = |n| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
    match kind {
        Kind::Short => Limit {
            concurrent: one(16),
            rate: Some(Rate { burst: one(100), period: Duration::from_millis(10) }),
        },
        // Two are made, one after the other each; should every one return at once, once a second is enough.
        Kind::Blocking => {
            Limit { concurrent: one(4), rate: Some(Rate { burst: one(8), period: Duration::from_secs(1) }) }
        }
    }
}

/// Consul refuses what it will never take with 400. Permissions, and what a newer agent or an operator may repair, can
/// change.
fn class_of(status: StatusCode) -> Class {
    if status == StatusCode::BAD_REQUEST { Class::Fatal } else { Class::Retry }
}

fn retry(why: String) -> CatalogFailure {
    CatalogFailure { class: Class::Retry, why }
}

fn unanswered(why: String) -> Refused {
    Refused { status: None, failure: retry(why) }
}

async fn said(mut response: reqwest::Response) -> String {
    let mut bytes = Vec::new();
    while bytes.len() < 4 * SAID_CHARS_MAX {
        match response.chunk().await {
            Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
            Ok(None) | Err(_) => break,
        }
    }
    String::from_utf8_lossy(&bytes).trim().chars().take(SAID_CHARS_MAX).collect()
}
