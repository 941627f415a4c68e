//! One request of a check: HTTP/1, or HTTP/2 for gRPC, with or without TLS.
//!
//! In: the request. Out: the head of its response, and the beginning of its body. Each request uses a new connection: a
//! check that reuses one would not notice that no new ones are accepted, and would keep a file open. The task of the
//! check drives the connection, so nothing of it outlives the check's timeout, which the caller enforces. This module
//! does not interpret responses.
//!
//! A task chooses its responses. So the bytes of a connection are limited ([`connection`]), and a redirect is followed
//! to the same service only ([`redirect`]): the agent reaches services that the task cannot.
//!
//! - `connection`: TCP, TLS, and the limit.
//! - `tls`: how a check verifies its peer.
//! - `redirect`: which redirects are followed.

use std::{error::Error, net::SocketAddr};

use herdlet_base::http_client::{self, innermost};
use hyper::{
    body::Bytes,
    client::conn::http1,
    header::{ACCEPT, USER_AGENT},
};
use hyper_util::rt::TokioIo;
use reqwest::{
    Body, Method, Response, StatusCode, Url,
    header::{HOST, HeaderMap},
};

mod connection;
mod redirect;
mod tls;

use super::shortage::NoResult;
use connection::Connection;
use redirect::REDIRECTS_MAX;
use tls::TlsConfigs;

pub(super) struct Request<'a> {
    pub(super) speaks: Speaks,
    pub(super) url: String,
    pub(super) tls_skip_verify: bool,
    /// The name on the certificate; the URL's host if empty.
    pub(super) tls_server_name: &'a str,
    pub(super) method: Method,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
    /// The maximum length of the response body to read.
    pub(super) answer_bytes_max: usize,
}

/// The protocol of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speaks {
    Http,
    Grpc,
}

/// A response.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// The beginning of the body.
    pub(super) body: Vec<u8>,
}

/// What all requests share.
#[derive(Debug, Default)]
pub(super) struct Requests {
    tls: TlsConfigs,
}

impl Requests {
    /// Sends a request, follows redirects, and reads the response.
    pub(super) async fn send(&self, mut request: Request<'_>) -> Result<Answer, NoResult> {
        let mut url = Url::parse(&request.url).map_err(|error| request.failure(&error))?;
        // The addresses of the host, which a redirect does not change.
        let found = tokio::net::lookup_host((host(&url), port(&url))).await;
        let found = found.map_err(|error| request.failure(&error))?;
        let mut addresses: Vec<SocketAddr> = found.collect();
        for _ in 0..=REDIRECTS_MAX {
            let answer = self.send_once(&request, &url, &addresses).await?;
            let Some(next) = redirect::followed(&answer, &url) else { return Ok(answer) };
            request.redirect(answer.status, &url, &next);
            addresses.iter_mut().for_each(|address| address.set_port(port(&next)));
            url = next;
        }
        Err(NoResult::Failure(format!("{}: too many redirects", request.url)))
    }

    async fn send_once(
        &self,
        request: &Request<'_>,
        url: &Url,
        addresses: &[SocketAddr],
    ) -> Result<Answer, NoResult> {
        let connection = Connection::open(addresses).await.map_err(|error| request.failure(&error))?;
        let connection = if url.scheme() == "https" {
            let (config, name) =
                self.tls.select(request, host(url)).map_err(|error| request.failure(&error))?;
            let encrypted = connection.encrypt(config, name).await;
            encrypted.map_err(|error| request.failure(&error))?
        } else {
            connection
        };
        match request.speaks {
            Speaks::Http => by_http1(request, url, connection).await,
            Speaks::Grpc => by_http2(request, url, connection).await,
        }
    }
}

impl Request<'_> {
    fn failure(&self, error: &(dyn Error + 'static)) -> NoResult {
        let cause = innermost(error);
        let cause = match cause.strip_prefix("invalid peer certificate: ") {
            Some(why) => format!(
                "its certificate is not one that this machine trusts ({why}); `tls_skip_verify: true` accepts any"
            ),
            None => cause,
        };
        NoResult::of(error, format!("{}: {cause}", self.url))
    }
}

async fn by_http1(request: &Request<'_>, url: &Url, connection: Connection) -> Result<Answer, NoResult> {
    let asked = http1_request(request, url).map_err(|error| request.failure(&error))?;
    let failure = |error: hyper::Error| request.failure(&error);
    let (mut sender, connection) = http1::handshake(TokioIo::new(connection)).await.map_err(failure)?;
    let answer = async {
        let response = sender.send_request(asked).await.map_err(failure)?;
        Ok(read(response.map(Body::wrap).into(), request).await)
    };
    driven(answer, connection).await
}

/// Limit for the headers of an HTTP/2 response, which may be far longer than what is received: they are compressed.
const HEADERS_BYTES_MAX: u32 = 16 * 1024;

async fn by_http2(request: &Request<'_>, url: &Url, connection: Connection) -> Result<Answer, NoResult> {
    let asked = http2_request(request, url)?;
    let failure = |error: h2::Error| match error.get_io() {
        Some(io) => request.failure(io),
        None => request.failure(&error),
    };
    let mut settings = h2::client::Builder::new();
    settings.enable_push(false).max_header_list_size(HEADERS_BYTES_MAX);
    let (sender, connection) = settings.handshake::<_, Bytes>(connection).await.map_err(failure)?;
    let answer = async {
        let mut sender = sender.ready().await.map_err(failure)?;
        let (response, mut body) = sender.send_request(asked, false).map_err(failure)?;
        body.send_data(request.body.clone().into(), true).map_err(failure)?;
        let (head, mut incoming) = response.await.map_err(failure)?.into_parts();
        let mut body = Vec::new();
        // The first window of a stream is longer than any body that is read.
        while body.len() < request.answer_bytes_max
            && let Some(Ok(chunk)) = incoming.data().await
        {
            body.extend_from_slice(&chunk);
        }
        body.truncate(request.answer_bytes_max);
        Ok(Answer { status: head.status, headers: head.headers, body })
    };
    driven(answer, connection).await
}

/// Awaits the answer, and drives its connection meanwhile.
async fn driven<T>(answer: impl Future<Output = T>, connection: impl Future) -> T {
    let connection = async {
        // Its failure is reported by the request, too.
        let _ = connection.await;
        std::future::pending().await
    };
    tokio::select! {
        answer = answer => answer,
        never = connection => never,
    }
}

/// The host of a URL, an IPv6 address without brackets.
fn host(url: &Url) -> &str {
    url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']')
}

fn port(url: &Url) -> u16 {
    url.port_or_known_default().unwrap_or_default()
}

/// Adds the headers that a client would add.
fn http1_request(request: &Request<'_>, url: &Url) -> Result<hyper::Request<Body>, hyper::http::Error> {
    let target = match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    };
    let host = match (url.host_str().unwrap_or_default(), url.port()) {
        (host, Some(port)) => format!("{host}:{port}"),
        (host, None) => host.to_owned(),
    };
    let mut asked = hyper::Request::builder()
        .method(&request.method)
        .uri(target)
        .header(HOST, host)
        .header(USER_AGENT, http_client::USER_AGENT)
        .header(ACCEPT, "*/*")
        .body(if request.body.is_empty() { Body::default() } else { request.body.clone().into() })?;
    // Given headers replace those with the same name.
    asked.headers_mut().extend(request.headers.clone());
    Ok(asked)
}

/// The authority is the name on the certificate, as in gRPC's own clients.
fn http2_request(request: &Request<'_>, url: &Url) -> Result<hyper::Request<()>, NoResult> {
    let mut url = url.clone();
    let name = request.tls_server_name;
    if url.scheme() == "https" && !name.is_empty() {
        url.set_host(Some(name)).map_err(|error| request.failure(&error))?;
    }
    let asked = hyper::Request::builder().method(&request.method).uri(url.as_str());
    let asked = asked.header(USER_AGENT, http_client::USER_AGENT).body(());
    let mut asked = asked.map_err(|error| request.failure(&error))?;
    asked.headers_mut().extend(request.headers.clone());
    Ok(asked)
}

async fn read(mut response: Response, request: &Request<'_>) -> Answer {
    let status = response.status();
    let mut body = Vec::new();
    // The body of a healthy response is not shown, and may take long.
    if status != StatusCode::OK {
        let headers = std::mem::take(response.headers_mut());
        http_client::read_start(response, &mut body, request.answer_bytes_max).await;
        body.truncate(request.answer_bytes_max);
        return Answer { status, headers, body };
    }
    Answer { status, headers: std::mem::take(response.headers_mut()), body }
}
