//! What all HTTP clients of herdlet share: the command line's, Consul's and the checks'.
//!
//! In: whether peers speak TLS. Out: a builder. The system's certificates are loaded only where TLS is spoken: that costs
//! time and memory, and fails on a machine without any, where a local socket works all the same.

use std::time::Duration;

use reqwest::ClientBuilder;

/// How long to wait for a connection, unless the caller knows better.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

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

/// A client that names itself and heeds no proxy settings: what it talks to is this node's own.
pub fn builder(tls: Tls) -> ClientBuilder {
    let builder = reqwest::Client::builder()
        .user_agent(concat!("herdlet/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIMEOUT)
        .no_proxy();
    match tls {
        Tls::None => builder.tls_certs_only([]),
        Tls::Verified => builder,
        Tls::Unverified => builder.tls_danger_accept_invalid_certs(true),
    }
}
