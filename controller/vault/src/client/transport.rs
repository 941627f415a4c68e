//! Sends requests, within limits of size, time and number.
//!
//! A server that is not the active one may redirect (status 307). The token of the request gives its rights to every server
//! that receives it, so it is sent only to three kinds of servers: the configured one, those that are configured as its peers, and
//! the one that the configured server itself reports as the active one (`sys/leader`, asked without a token). The last kind
//! needs no trust in anyone new: the configured server could use the token itself. A `Location` alone does not suffice, because
//! a proxy in front may send any. Of a `Location` only the server is used, never the path; there is one redirect for each
//! request, and none from TLS to plain text.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use herdlet_base::{error::in_full, http_client};
use reqwest::{
    Method, Response, StatusCode, Url,
    header::{HeaderMap, LOCATION, RETRY_AFTER},
};
use serde_json::Value;
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

use super::endpoint::Endpoint;
use crate::{
    answer::texts,
    config::{VaultConfig, is_plain},
    error::VaultError,
    path::VaultPath,
    secret::{SecretText, SecretValue},
};

/// Vault accepts requests of at most 32 MiB; values of its key-value engine have at most 1 MiB by default.
const BODY_BYTES_MAX: usize = 8 << 20;
/// For the text of an error.
const ERROR_BYTES_MAX: usize = 64 << 10;
/// The length of a readable message.
const WHY_CHARS_MAX: usize = 300;
/// Requests to one server at once; others wait. Each ends within the config's timeout.
pub(super) const CONCURRENT_MAX: usize = 64;
/// A server that wants more is not believed.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);
/// Shorter texts occur in messages by chance.
const HIDDEN_CHARS_MIN: usize = 4;

pub(super) struct Transport {
    config: VaultConfig,
    configured: Endpoint,
    /// The last server that a followed redirect led to.
    active: Mutex<Option<Arc<Endpoint>>>,
    permits: Semaphore,
}

/// A request.
pub(super) struct Call<'a> {
    pub(super) method: Method,
    pub(super) path: &'a VaultPath,
    pub(super) doing: &'a str,
    pub(super) token: Option<&'a SecretText>,
    pub(super) body: Option<&'a SecretValue>,
    /// Secrets in the body, which no message may repeat.
    pub(super) hidden: Vec<&'a str>,
    pub(super) scope: Scope,
}

/// The namespace of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    Configured,
    Root,
}

impl<'a> Call<'a> {
    pub(super) fn new(method: Method, path: &'a VaultPath, doing: &'a str) -> Self {
        Self { method, path, doing, token: None, body: None, hidden: Vec::new(), scope: Scope::Configured }
    }

    /// A text of the server as it may appear in a message.
    fn message(&self, text: &str) -> String {
        let token = self.token.map(SecretText::reveal);
        let plain = self.hidden.iter().copied().chain(token).map(|secret| Zeroizing::new(secret.to_owned()));
        // A server may repeat the body as it was sent.
        let mut secrets: Vec<_> = plain.flat_map(|secret| [in_json(&secret), secret]).collect();
        secrets.retain(|secret| secret.len() >= HIDDEN_CHARS_MIN);
        // The longest first: one may be a part of another.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        let mut text = text.to_owned();
        for secret in secrets {
            text = text.replace(&**secret, "…");
        }
        let printable = text.chars().map(|char| if char.is_control() { ' ' } else { char });
        let words: String = printable.take(WHY_CHARS_MAX).collect();
        words.trim().to_owned()
    }
}

impl Transport {
    pub(super) fn new(config: VaultConfig) -> reqwest::Result<Self> {
        let configured = Endpoint::configured(&config)?;
        let (active, permits) = (Mutex::default(), Semaphore::new(CONCURRENT_MAX));
        Ok(Self { config, configured, active, permits })
    }

    /// Sends a request; the answer is `null` if it has no body.
    pub(super) async fn send(&self, call: Call<'_>) -> Result<SecretValue, VaultError> {
        // The semaphore is never closed.
        let _permit = self.permits.acquire().await;
        let answer = tokio::time::timeout(self.config.timeout, self.follow(&call)).await;
        answer.unwrap_or_else(|_| Err(self.unreachable(&call, "the time is up")))
    }

    async fn follow(&self, call: &Call<'_>) -> Result<SecretValue, VaultError> {
        let response = self.send_to(&self.configured, call).await?;
        if !is_redirect(response.status()) {
            return self.answer(response, call).await;
        }
        let target = self.redirect_target(&response, call).await?;
        let response = self.send_to(&target, call).await?;
        if is_redirect(response.status()) {
            return Err(redirect(call, &target.origin, "it redirects again"));
        }
        self.answer(response, call).await
    }

    async fn send_to(&self, endpoint: &Endpoint, call: &Call<'_>) -> Result<Response, VaultError> {
        // The header is required by listeners that guard against forged requests.
        let mut request = endpoint.request(call.method.clone(), call.path).header("x-vault-request", "true");
        if let Some(token) = call.token {
            let invalid = || VaultError::Invalid {
                doing: call.doing.to_owned(),
                why: "the token must be visible ASCII characters".to_owned(),
            };
            request = request.header("x-vault-token", token.header().ok_or_else(invalid)?);
        }
        if let Some(namespace) = self.config.namespace.as_ref().filter(|_| call.scope == Scope::Configured) {
            request = request.header("x-vault-namespace", namespace);
        }
        if let Some(body) = call.body {
            request = request.json(body.reveal());
        }
        request.send().await.map_err(|error| VaultError::Unreachable {
            doing: call.doing.to_owned(),
            address: endpoint.origin.clone(),
            why: in_full(&error.without_url()),
        })
    }

    /// The server that a redirect leads to, if the token may be sent there.
    async fn redirect_target(
        &self,
        response: &Response,
        call: &Call<'_>,
    ) -> Result<Arc<Endpoint>, VaultError> {
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let url = location.and_then(|location| Url::parse(location).ok()).and_then(server_of);
        let Some(url) = url else {
            return Err(redirect(call, "an unknown place", "its Location is not the URL of a server"));
        };
        let origin = url.origin().ascii_serialization();
        let refuse = |why: &str| Err(redirect(call, &origin, why));
        if self.configured.is_socket() {
            return refuse("the configured address is a socket; set the address of the active server");
        }
        if self.configured.is_tls() && url.scheme() != "https" {
            return refuse("the configured address has TLS, and this one has not");
        }
        if let Some(active) = self.known_active(&origin) {
            return Ok(active);
        }
        let is_configured = origin == self.configured.origin || self.config.peers.contains(&origin);
        if !is_configured && !self.reports_as_active(&origin).await {
            return refuse("it is neither configured nor reported by sys/leader");
        }
        let endpoint = Endpoint::of_url(&self.config, &url)
            .map_err(|error| redirect(call, &origin, &in_full(&error)))?;
        let endpoint = Arc::new(endpoint);
        *self.active.lock().unwrap_or_else(PoisonError::into_inner) = Some(endpoint.clone());
        Ok(endpoint)
    }

    fn known_active(&self, origin: &str) -> Option<Arc<Endpoint>> {
        let active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
        active.clone().filter(|active| active.origin == origin)
    }

    /// Whether the configured server reports the one with this origin as the active one.
    async fn reports_as_active(&self, origin: &str) -> bool {
        let path = VaultPath::of_checked("sys/leader".to_owned(), Vec::new());
        let call = Call { scope: Scope::Root, ..Call::new(Method::GET, &path, "find the active server") };
        let Ok(response) = self.send_to(&self.configured, &call).await else { return false };
        if response.status() != StatusCode::OK {
            return false;
        }
        let Ok(answer) = self.answer(response, &call).await else { return false };
        let address = answer.get("leader_address").and_then(Value::as_str);
        let url = address.and_then(|address| Url::parse(address).ok());
        url.is_some_and(|url| url.origin().ascii_serialization() == origin)
    }

    async fn answer(&self, response: Response, call: &Call<'_>) -> Result<SecretValue, VaultError> {
        let status = response.status();
        let retry_after = retry_after(response.headers());
        if !status.is_success() {
            let why = call.message(&error_text(response).await);
            return Err(failure(call, status, why, retry_after));
        }
        let unusable = |why: String| VaultError::Answer { doing: call.doing.to_owned(), why };
        let body = match body(response).await {
            Ok(body) => body,
            Err(BodyError::TooLong) => {
                return Err(unusable(format!("it is longer than {BODY_BYTES_MAX} bytes")));
            }
            Err(BodyError::Broken(error)) => return Err(self.unreachable(call, &in_full(&error))),
        };
        if body.is_empty() {
            return Ok(SecretValue::default());
        }
        // The parser's message may repeat parts of the text.
        let parsed = serde_json::from_slice(&body).map(SecretValue::new);
        parsed.map_err(|_| unusable("it is not JSON".to_owned()))
    }

    fn unreachable(&self, call: &Call<'_>, why: &str) -> VaultError {
        VaultError::Unreachable {
            doing: call.doing.to_owned(),
            address: self.configured.origin.clone(),
            why: why.to_owned(),
        }
    }
}

/// A text as it is inside of quotes.
fn in_json(text: &str) -> Zeroizing<String> {
    let quoted = Zeroizing::new(Value::from(text).to_string());
    Zeroizing::new(quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default().to_owned())
}

/// Others change the method, and Vault does not send them.
fn is_redirect(status: StatusCode) -> bool {
    matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT)
}

/// The server of a URL, which may have a path and a query; `None` if it names a user or another protocol.
fn server_of(mut url: Url) -> Option<Url> {
    url.set_path("/");
    url.set_query(None);
    url.set_fragment(None);
    Some(url).filter(is_plain)
}

fn redirect(call: &Call<'_>, target: &str, why: &str) -> VaultError {
    let (doing, target, why) = (call.doing.to_owned(), call.message(target), why.to_owned());
    VaultError::Redirect { doing, target, why }
}

fn failure(call: &Call<'_>, status: StatusCode, why: String, retry_after: Option<Duration>) -> VaultError {
    let doing = call.doing.to_owned();
    match status {
        StatusCode::FORBIDDEN => VaultError::Denied { doing, why },
        StatusCode::NOT_FOUND => VaultError::Missing { doing, why },
        // 412: a replica does not have the state yet that the token needs.
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::PRECONDITION_FAILED
        | StatusCode::REQUEST_TIMEOUT
        | StatusCode::TOO_EARLY => VaultError::Unready { doing, status: status.as_u16(), why, retry_after },
        _ if status.is_server_error() => {
            VaultError::Unready { doing, status: status.as_u16(), why, retry_after }
        }
        _ if status.is_client_error() => VaultError::Refused { doing, status: status.as_u16(), why },
        _ => VaultError::Answer { doing, why: format!("it has the status {status}") },
    }
}

/// Seconds only: Vault sends no dates (RFC 9110 §10.2.3 allows both).
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

enum BodyError {
    TooLong,
    Broken(reqwest::Error),
}

async fn body(mut response: Response) -> Result<Zeroizing<Vec<u8>>, BodyError> {
    let mut body = Zeroizing::new(Vec::new());
    while let Some(chunk) = response.chunk().await.map_err(BodyError::Broken)? {
        if body.len() + chunk.len() > BODY_BYTES_MAX {
            return Err(BodyError::TooLong);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// The errors in an answer, or the beginning of its text if it is not JSON.
async fn error_text(response: Response) -> String {
    let mut bytes = Vec::new();
    http_client::read_start(response, &mut bytes, ERROR_BYTES_MAX).await;
    match serde_json::from_slice(&bytes).map(SecretValue::new) {
        // Other fields may be data.
        Ok(answer) => texts(&answer, "errors").join("; "),
        Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
    }
}
