//! Settings shared by the HTTP clients of herdlet, except that of checks, whose peers are tasks.
//!
//! In: whether peers use TLS. Out: a builder. The system's certificates are loaded only for TLS: loading costs time and
//! memory, and fails on a machine without any, where a local socket still works.

mod files;

use std::time::Duration;

use reqwest::{Certificate, ClientBuilder, Identity, Response};
use zeroize::Zeroizing;

pub use files::CredentialFiles;

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
    /// Not at all, as an artifact with the option `insecure` requests.
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
///
/// Each request needs a time limit. A peer that sends informational heads (`100 Continue`) without end occupies a thread until
/// then, so this client is not for peers that anybody can be, such as tasks.
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

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
        thread,
    };

    use super::*;

    /// hyper skips informational heads without a limit. It pauses in between, so the timer of a request fires, and the
    /// connection ends with the request.
    #[tokio::test]
    async fn endless_informational_heads_end_with_the_request() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let (ended, end) = tokio::sync::oneshot::channel::<()>();
        // Its own thread: it sends while the client's is busy.
        let server = thread::spawn(move || {
            let _ended = ended;
            let (mut stream, _) = listener.accept().unwrap();
            assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
            let heads = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(1000);
            while stream.write_all(&heads).is_ok() {}
        });
        let client = builder(Tls::None).build().unwrap();
        let answer = tokio::time::timeout(Duration::from_millis(100), client.get(url).send()).await;
        assert!(answer.is_err(), "{answer:?}");
        assert!(end.await.is_err(), "nothing is sent");
        server.join().unwrap();
    }
}
