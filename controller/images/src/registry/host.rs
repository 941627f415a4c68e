//! Requests to one host of a registry.
//!
//! In: what to get. Out: an answer that has it, after redirects, challenges and pauses, all of them bounded. Credentials follow no
//! redirect to another host, and no redirect leads from https to http.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use herdlet_base::http_client::{self, Tls};
use jiff::fmt::rfc2822::DateTimeParser;
use reqwest::{
    Certificate, Client, Response, StatusCode, Url,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION, RANGE, RETRY_AFTER},
    redirect,
};
use serde::Deserialize;
use tokio::time;

use super::{
    Endpoint, Pace,
    access::{self, Access, Demand, TOKEN_BYTES_MAX},
    challenge::Challenge,
    error::RegistryError,
};
use crate::{digest::Digest, media};

/// Redirects of one request. Registries lead to a store in one or two.
const REDIRECTS_MAX: usize = 5;
/// How long a small content may take, as a multiple of the longest silence.
const SILENCES_MAX: u32 = 5;
/// How much is read of an answer that is an error.
const ERROR_BYTES_MAX: usize = 16 * 1024;
/// How much of a stranger's text is repeated.
const TEXT_CHARS_MAX: usize = 200;

/// A host, for pulls from one repository.
#[derive(Debug)]
pub(super) struct Host {
    url: Url,
    name: Arc<str>,
    repository: String,
    client: Client,
    access: Access,
    pub(super) pace: Pace,
    /// Whether another host comes after it.
    pub(super) has_next: bool,
    /// Set by its first answer.
    has_answered: AtomicBool,
    /// Set if it can't be reached: the rest of the pull does not wait for it again.
    is_down: AtomicBool,
}

/// What to get.
pub(super) enum Query<'q> {
    /// A manifest or an index, by tag or digest.
    Document { version: &'q str },
    Blob {
        digest: &'q Digest,
        /// What is already there, in bytes.
        from: u64,
    },
}

#[derive(Deserialize)]
struct ErrorAnswer {
    errors: Vec<ErrorEntry>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ErrorEntry {
    code: String,
    message: String,
}

impl Host {
    /// A host, before the first request.
    ///
    /// # Errors
    /// If it can't be used.
    pub(super) fn new(endpoint: Endpoint, repository: &str, pace: Pace) -> Result<Self, RegistryError> {
        let Endpoint { url, credentials, authorities } = endpoint;
        let is_plain = url.path() == "/" && url.query().is_none() && url.username().is_empty();
        if !is_plain || !matches!(url.scheme(), "http" | "https") || url.password().is_some() {
            return Err(RegistryError::Endpoint { url: url.host_str().unwrap_or_default().to_owned() });
        }
        let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
        let name: Arc<str> = format!("{}{port}", url.host_str().unwrap_or_default()).into();
        let client = client(&url, authorities.as_deref());
        let client = client.map_err(|error| RegistryError::Client {
            host: (*name).to_owned(),
            why: herdlet_base::error::in_full(&error.without_url()),
        })?;
        let access = Access::new(credentials, repository);
        Ok(Self {
            url,
            name,
            repository: repository.to_owned(),
            client,
            access,
            pace,
            has_next: false,
            has_answered: AtomicBool::new(false),
            is_down: AtomicBool::new(false),
        })
    }

    /// Its name, with the port if it is a special one.
    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Whether an error means that the host can't be reached at all.
    pub(super) fn is_unreachable_by(&self, error: &RegistryError) -> bool {
        error.is_connection() && !self.has_answered.load(Ordering::Relaxed)
    }

    pub(super) fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Relaxed)
    }

    pub(super) fn set_down(&self) {
        self.is_down.store(true, Ordering::Relaxed);
    }

    /// Gets a small content as a whole, with its media type. Tries again after faults of the host.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub(super) async fn bytes(
        &self,
        query: &Query<'_>,
        max: u64,
    ) -> Result<(Vec<u8>, Option<String>), RegistryError> {
        let mut failures = 0;
        loop {
            let got = match self.open(query).await {
                Ok(response) => {
                    let media_type =
                        response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
                    let media_type = media_type.map(str::to_owned);
                    self.read(response, max).await.map(|bytes| (bytes, media_type))
                }
                Err(error) => Err(error),
            };
            match got {
                Err(error) if self.pause(&error, &mut failures).await => {}
                got => return got,
            }
        }
    }

    /// Waits until a failed request can be tried again. False if it can't.
    pub(super) async fn pause(&self, error: &RegistryError, failures: &mut u32) -> bool {
        let Pace { tries, first_pause, pause_max, .. } = self.pace;
        if self.has_next && self.is_unreachable_by(error) {
            return false;
        }
        let Some(demanded) = error.pause().filter(|demanded| *demanded <= pause_max) else { return false };
        let pause = first_pause.saturating_mul(2_u32.saturating_pow(*failures)).min(pause_max);
        *failures += 1;
        if *failures >= tries {
            return false;
        }
        time::sleep(pause.max(demanded)).await;
        true
    }

    /// Sends a request, answers a challenge, and follows redirects. One try.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub(super) async fn open(&self, query: &Query<'_>) -> Result<Response, RegistryError> {
        // A host that refuses what it has just given refuses everything.
        for is_last in [false, true] {
            let sent = self.access.current().await;
            let response = self.follow(query, sent.as_ref()).await?;
            let challenge = match response.status() {
                StatusCode::UNAUTHORIZED if !is_last && self.is_own(response.url()) => {
                    Challenge::of_headers(response.headers())
                }
                _ => None,
            };
            let demand = challenge.map(|challenge| self.access.demand(challenge, &self.url)).transpose();
            let Some(demand) = demand.map_err(|why| self.protocol(why))?.flatten() else {
                return match response.status().is_success() {
                    true => Ok(response),
                    false => Err(self.failure(response).await),
                };
            };
            self.access.renew(sent.as_ref(), self.meet(demand)).await?;
        }
        Err(self.protocol("it demands credentials without end"))
    }

    async fn meet(&self, demand: Demand) -> Result<HeaderValue, RegistryError> {
        let request = match demand {
            Demand::Value(value) => return Ok(value),
            Demand::Token(request) => self.access.token_request(&self.client, request),
        };
        // No redirect is followed: it could lead the password to anybody.
        let response = self.within(request.send()).await?;
        if !response.status().is_success() {
            return Err(match (response.status(), self.failure(response).await) {
                (StatusCode::NOT_FOUND, _) => self.protocol("its token server does not exist"),
                (StatusCode::FORBIDDEN, RegistryError::Fault { host, text, .. }) => {
                    RegistryError::Denied { host, text }
                }
                (_, error) => error,
            });
        }
        let answer = self.read(response, TOKEN_BYTES_MAX).await?;
        access::bearer(&answer).ok_or_else(|| self.protocol("its token server gives no token"))
    }

    async fn follow(&self, query: &Query<'_>, sent: Option<&HeaderValue>) -> Result<Response, RegistryError> {
        let mut url = self.address(query)?;
        for _ in 0..=REDIRECTS_MAX {
            let mut request = self.client.get(url.clone()).headers(headers(query));
            if let Some(sent) = sent.filter(|_| self.is_own(&url)) {
                request = request.header(AUTHORIZATION, sent.clone());
            }
            let response = self.within(request.send()).await?;
            self.has_answered.store(true, Ordering::Relaxed);
            if !response.status().is_redirection() {
                return Ok(response);
            }
            url = self.redirected(&url, response.headers())?;
        }
        Err(self.protocol(format!("it redirects more than {REDIRECTS_MAX} times")))
    }

    fn address(&self, query: &Query<'_>) -> Result<Url, RegistryError> {
        let path = match query {
            Query::Document { version } => format!("/v2/{}/manifests/{version}", self.repository),
            Query::Blob { digest, .. } => format!("/v2/{}/blobs/{digest}", self.repository),
        };
        self.url.join(&path).map_err(|error| self.protocol(error.to_string()))
    }

    fn redirected(&self, from: &Url, headers: &HeaderMap) -> Result<Url, RegistryError> {
        let to = headers.get(LOCATION).and_then(|to| to.to_str().ok()).and_then(|to| from.join(to).ok());
        let to = to.ok_or_else(|| self.protocol("it redirects to no address"))?;
        let is_as_safe = to.scheme() == "https" || (to.scheme() == "http" && from.scheme() == "http");
        if !is_as_safe {
            return Err(self.protocol("it redirects from https to an address without"));
        }
        if !to.username().is_empty() || to.password().is_some() {
            return Err(self.protocol("it redirects to an address with a password"));
        }
        Ok(to)
    }

    /// Whether an address is on this host itself.
    fn is_own(&self, url: &Url) -> bool {
        url.origin() == self.url.origin()
    }

    /// Why an answer has no content.
    async fn failure(&self, response: Response) -> RegistryError {
        let status = response.status();
        let host = (*self.name).to_owned();
        let (is_own, after) = (self.is_own(response.url()), retry_after(response.headers()));
        let body = self.read_start(response).await;
        let text = error_text(&body);
        match status {
            StatusCode::NOT_FOUND => RegistryError::Missing { host, text },
            StatusCode::TOO_MANY_REQUESTS => RegistryError::Throttled { host, after },
            StatusCode::UNAUTHORIZED => RegistryError::Denied { host, text },
            StatusCode::FORBIDDEN if is_own => RegistryError::Denied { host, text },
            // The signature of an address of a store expires; the next redirect has a new one.
            StatusCode::FORBIDDEN | StatusCode::REQUEST_TIMEOUT => {
                RegistryError::Fault { host, status: status.as_u16(), text, after }
            }
            StatusCode::RANGE_NOT_SATISFIABLE => self.no_range(),
            _ if status.is_server_error() => {
                RegistryError::Fault { host, status: status.as_u16(), text, after }
            }
            _ => self.protocol(format!("it answers {}", status.as_u16())),
        }
    }

    /// Reads a whole body.
    async fn read(&self, mut response: Response, max: u64) -> Result<Vec<u8>, RegistryError> {
        let whole = async {
            let mut bytes = Vec::new();
            while let Some(chunk) = self.within(response.chunk()).await? {
                bytes.extend_from_slice(&chunk);
                if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > max {
                    return Err(self.too_large(max));
                }
            }
            Ok(bytes)
        };
        // A host that always sends a byte in time is never silent.
        let limit = self.pace.silence_max.saturating_mul(SILENCES_MAX);
        let slow = || self.connection(format!("it does not end within {} s", limit.as_secs()));
        time::timeout(limit, whole).await.unwrap_or_else(|_| Err(slow()))
    }

    /// Reads the start of a body, as far as it arrives.
    async fn read_start(&self, response: Response) -> Vec<u8> {
        let mut bytes = Vec::new();
        let start = http_client::read_start(response, &mut bytes, ERROR_BYTES_MAX);
        // What has arrived by then is enough.
        let _ = time::timeout(self.pace.silence_max, start).await;
        bytes
    }

    /// Waits for a host, which may be silent for a while only.
    pub(super) async fn within<T>(
        &self,
        next: impl Future<Output = reqwest::Result<T>>,
    ) -> Result<T, RegistryError> {
        let silence_max = self.pace.silence_max;
        match time::timeout(silence_max, next).await {
            Ok(next) => next.map_err(|error| {
                // The address may have a signature.
                self.connection(herdlet_base::error::in_full(&error.without_url()))
            }),
            Err(_) => Err(self.connection(format!("it has sent nothing for {} s", silence_max.as_secs()))),
        }
    }

    pub(super) fn connection(&self, why: impl Into<String>) -> RegistryError {
        RegistryError::Connection { host: (*self.name).to_owned(), why: why.into() }
    }

    pub(super) fn protocol(&self, why: impl Into<String>) -> RegistryError {
        RegistryError::Protocol { host: (*self.name).to_owned(), why: why.into() }
    }

    pub(super) fn no_range(&self) -> RegistryError {
        RegistryError::Range { host: (*self.name).to_owned() }
    }

    pub(super) fn corrupt(&self, digest: &Digest) -> RegistryError {
        RegistryError::Corrupt { host: (*self.name).to_owned(), digest: digest.clone() }
    }

    pub(super) fn too_large(&self, max: u64) -> RegistryError {
        RegistryError::TooLarge { host: (*self.name).to_owned(), max }
    }
}

/// A client that follows no redirects by itself.
fn client(url: &Url, authorities: Option<&[u8]>) -> reqwest::Result<Client> {
    let begin = |tls| http_client::builder(tls).redirect(redirect::Policy::none());
    let certificates = authorities.map(Certificate::from_pem_bundle).transpose()?;
    match (certificates, Tls::of(url.as_str())) {
        (Some(own), _) => {
            let merged = begin(Tls::Verified).tls_certs_merge(own.clone()).build();
            // A machine may have no certificates itself.
            merged.or_else(|_| begin(Tls::Verified).tls_certs_only(own).build())
        }
        (None, Tls::Verified | Tls::Unverified) => begin(Tls::Verified).build(),
        // It may redirect to https.
        (None, Tls::None) => begin(Tls::Verified).build().or_else(|_| begin(Tls::None).build()),
    }
}

fn headers(query: &Query<'_>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    match query {
        Query::Document { .. } => {
            for media_type in media::ACCEPT {
                headers.append(ACCEPT, HeaderValue::from_static(media_type));
            }
        }
        Query::Blob { from: 0, .. } => {}
        Query::Blob { from, .. } => {
            // Digits and ASCII are always a header's value.
            headers.extend(HeaderValue::from_str(&format!("bytes={from}-")).ok().map(|value| (RANGE, value)));
        }
    }
    headers
}

/// The pause that a host demands: seconds, or a date (RFC 9110, section 10.2.3).
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = DateTimeParser::new().parse_timestamp(text).ok()?.as_second();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
    Some(Duration::from_secs(u64::try_from(at).ok()?.saturating_sub(now)))
}

/// The body of an error response of a registry.
fn error_text(body: &[u8]) -> String {
    let Ok(ErrorAnswer { errors }) = serde_json::from_slice(body) else { return String::new() };
    let Some(ErrorEntry { code, message }) = errors.into_iter().next() else { return String::new() };
    let text = if message.is_empty() { code } else { message };
    text.chars().filter(|char| !char.is_control()).take(TEXT_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_may_demand_a_pause_in_two_forms() {
        let of = |text: &'static str| {
            retry_after(&HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(text))]))
        };
        assert_eq!(of("120"), Some(Duration::from_secs(120)));
        assert_eq!(of("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
        assert!(of("Thu, 21 Oct 2190 07:28:00 GMT").unwrap() > Duration::from_secs(3600));
        assert_eq!((of("-1"), of("soon"), retry_after(&HeaderMap::new())), (None, None, None));
    }

    #[test]
    fn texts_of_registries_are_short_and_plain() {
        assert_eq!(
            error_text(br#"{"errors": [{"code": "DENIED", "message": "no\u001b[31m access"}]}"#),
            "no[31m access"
        );
        assert_eq!(error_text(br#"{"errors": [{"code": "DENIED"}]}"#), "DENIED");
        let long = format!("{{\"errors\": [{{\"message\": \"{}\"}}]}}", "x".repeat(9000));
        assert_eq!(error_text(long.as_bytes()).len(), TEXT_CHARS_MAX);
        assert_eq!((error_text(b"<html>"), error_text(b"{\"errors\": []}")), (String::new(), String::new()));
    }
}
