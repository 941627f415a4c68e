//! What all HTTP clients of herdlet share: the command line's, Consul's and the checks'.
//!
//! In: whether peers speak TLS. Out: a builder. The system's certificates are loaded only where TLS is spoken: that costs
//! time and memory, and fails on a machine without any, where a local socket works all the same.

use std::time::Duration;

use reqwest::{Certificate, ClientBuilder, Identity};
use zeroize::Zeroizing;

/// How long to wait for a connection, unless the caller knows better.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// What a client says it is.
pub const USER_AGENT: &str = concat!("herdlet/", env!("CARGO_PKG_VERSION"));

/// How peers are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tls {
    /// Unix sockets and `http://` only; a peer that speaks TLS is refused.
    None,
    /// By the certificates that this system trusts.
    Verified,
    /// Not at all: what a check with `tls_skip_verify` asks for.
    Unverified,
}

impl Tls {
    /// What a URL needs.
    pub fn of(url: &str) -> Self {
        if url.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://")) {
            Self::Verified
        } else {
            Self::None
        }
    }
}

/// Whom a client trusts instead of the system's authorities, and what it shows of itself.
#[derive(Default)]
pub struct Credentials {
    /// Authorities, in PEM; the system's where absent.
    pub authorities: Option<Vec<u8>>,
    /// A certificate and its key, in PEM.
    pub identity: Option<Zeroizing<Vec<u8>>>,
}

impl Credentials {
    /// A client that has them.
    ///
    /// # Errors
    /// When one of them makes no sense.
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

/// A client that names itself and heeds no proxy settings: what it talks to is this node's own.
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

/// What was wrong in the end: the causes before it only say what was tried, and where.
pub fn innermost(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), innermost)
}
