//! Settings shared by all HTTP clients of herdlet: the command line's, Consul's and the checks'.
//!
//! In: whether peers use TLS. Out: a builder. The system's certificates are loaded only for TLS: loading costs time and
//! memory, and fails on a machine without any, where a local socket still works.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::fmt::rfc2822::DateTimeParser;
use reqwest::{
    Certificate, ClientBuilder, Identity, Response,
    header::{HeaderMap, RETRY_AFTER},
};
use zeroize::Zeroizing;

/// Default limit for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The `User-Agent` of every client.
pub const USER_AGENT: &str = concat!("herdlet/", env!("CARGO_PKG_VERSION"));

/// How a client verifies its peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tls {
    /// No TLS: Unix sockets and `http://` only; TLS peers are refused.
    None,
    /// Against the certificates that this system trusts.
    Verified,
    /// Not at all, as a check with `tls_skip_verify` requests.
    Unverified,
}

impl Tls {
    /// The setting that a URL needs.
    pub fn of(url: &str) -> Self {
        if url.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://")) {
            Self::Verified
        } else {
            Self::None
        }
    }
}

/// The authorities that a client trusts instead of the system's, and its own certificate.
#[derive(Default)]
pub struct Credentials {
    /// Certificate authorities, in PEM; the system's if absent.
    pub authorities: Option<Vec<u8>>,
    /// A certificate and its key, in PEM.
    pub identity: Option<Zeroizing<Vec<u8>>>,
}

impl Credentials {
    /// Adds the credentials to a client.
    ///
    /// # Errors
    /// If one of them is invalid.
    pub fn give(&self, builder: ClientBuilder) -> reqwest::Result<ClientBuilder> {
        let builder = match &self.authorities {
            Some(pem) => builder.tls_certs_only(Certificate::from_pem_bundle(pem)?),
            None => builder,
        };
        Ok(match &self.identity {
            Some(pem) => builder.identity(Identity::from_pem(pem)?),
            None => builder,
        })
    }
}

/// A client with our user agent that ignores proxy settings, because it connects to this node's own services.
pub fn builder(tls: Tls) -> ClientBuilder {
    let builder = reqwest::Client::builder()
        .user_agent(USER_AGENT)
        .connect_timeout(CONNECT_TIMEOUT)
        .http1_only()
        .no_proxy();
    match tls {
        Tls::None => builder.tls_certs_only([]),
        Tls::Verified => builder,
        Tls::Unverified => builder.tls_danger_accept_invalid_certs(true),
    }
}

/// The innermost cause. The errors around it only describe the request.
pub fn innermost(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), innermost)
}

/// Reads the start of a body, such as the reason in an error response: until `bytes` has this many, the body ends or the connection
/// fails.
pub async fn read_start(mut response: Response, bytes: &mut Vec<u8>, enough: usize) {
    while bytes.len() < enough
        && let Ok(Some(chunk)) = response.chunk().await
    {
        bytes.extend_from_slice(&chunk);
    }
}

/// The pause that a server demands: seconds, or a date (RFC 9110, section 10.2.3).
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = DateTimeParser::new().parse_timestamp(text).ok()?.as_second();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
    Some(Duration::from_secs(u64::try_from(at).ok()?.saturating_sub(now)))
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    #[test]
    fn a_server_may_demand_a_pause_in_two_forms() {
        let of = |text: &'static str| {
            retry_after(&HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(text))]))
        };
        assert_eq!(of("120"), Some(Duration::from_secs(120)));
        assert_eq!(of("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
        assert!(of("Thu, 21 Oct 2190 07:28:00 GMT").unwrap() > Duration::from_secs(3600));
        assert_eq!((of("-1"), of("soon"), retry_after(&HeaderMap::new())), (None, None, None));
    }
}
