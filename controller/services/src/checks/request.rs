//! One request of a check: HTTP/1, or HTTP/2 for gRPC, with or without TLS.
//!
//! In: the request. Out: the head of its response, and the beginning of its body. Each request uses a new connection: a
//! check that reuses one would not notice that no new ones are accepted, and would keep a file open. This module does
//! not interpret responses; the caller enforces the timeout.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Mutex, OnceLock, PoisonError},
};

use herdlet_base::http_client::{self, Tls, innermost};
use hyper::{
    client::conn::http1,
    header::{ACCEPT, LOCATION, USER_AGENT},
};
use hyper_util::rt::TokioIo;
use reqwest::{
    Body, Client, Method, Response, StatusCode, Url,
    header::{HOST, HeaderMap, HeaderValue},
    redirect,
};
use tokio::net::TcpStream;

use super::shortage::NoResult;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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

/// Clients for all requests, each created when a check first needs it.
#[derive(Debug, Default)]
pub(super) struct Requests {
    shared: [OnceLock<Client>; 6],
    /// Clients for checks that expect a certificate with a different name than the address.
    named: Mutex<BTreeMap<Named, Client>>,
}

/// The key of a client for a single peer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Named {
    server_name: String,
    address: SocketAddr,
    is_verified: bool,
    speaks: Speaks,
}

/// Limit for cached clients of this kind.
const NAMED_MAX: usize = 64;

impl Requests {
    /// Sends a request, follows redirects, and reads the response.
    pub(super) async fn send(&self, request: Request<'_>) -> Result<Answer, NoResult> {
        let url = Url::parse(&request.url);
        let url = url.map_err(|error| NoResult::Failure(format!("{}: {error}", request.url)))?;
        if url.scheme() == "http" && request.speaks == Speaks::Http && request.method.is_safe() {
            let answer = plain(&request, &url).await?;
            // A client follows the redirect, repeating the first request: safe methods may be repeated.
            if !(answer.status.is_redirection() && answer.headers.contains_key(LOCATION)) {
                return Ok(answer);
            }
        }
        let response = self.by_client(&request, url).await?;
        Ok(read(response, &request).await)
    }

    /// A plain request that is redirected to TLS is sent again.
    async fn by_client(&self, request: &Request<'_>, url: Url) -> Result<Response, NoResult> {
        let tls = if request.tls_skip_verify { Tls::Unverified } else { Tls::of(&request.url) };
        let failure =
            |error: reqwest::Error| NoResult::of(&error, format!("{}: {}", request.url, failure_of(&error)));
        if tls != Tls::None && !request.tls_server_name.is_empty() {
            let (client, request) = self.by_name(request, url, tls).await?;
            return client.execute(request).await.map_err(failure);
        }
        match self.client(request.speaks, tls).map_err(failure)?.execute(request.to(url.clone())).await {
            Err(error) if needs_tls(&error) => {
                let client = self.client(request.speaks, Tls::Verified).map_err(failure)?;
                client.execute(request.to(url)).await.map_err(failure)
            }
            answer => answer.map_err(failure),
        }
    }

    fn client(&self, speaks: Speaks, tls: Tls) -> Result<&Client, reqwest::Error> {
        let place = match (speaks, tls) {
            (Speaks::Http, Tls::None) => &self.shared[0],
            (Speaks::Http, Tls::Verified) => &self.shared[1],
            (Speaks::Http, Tls::Unverified) => &self.shared[2],
            (Speaks::Grpc, Tls::None) => &self.shared[3],
            (Speaks::Grpc, Tls::Verified) => &self.shared[4],
            (Speaks::Grpc, Tls::Unverified) => &self.shared[5],
        };
        if let Some(client) = place.get() {
            return Ok(client);
        }
        let client = builder(speaks, tls).build()?;
        Ok(place.get_or_init(|| client))
    }

    /// A client that resolves the certificate's name to the check's address, and the request to that name. The `Host`
    /// header still contains the address.
    async fn by_name(
        &self,
        request: &Request<'_>,
        mut url: Url,
        tls: Tls,
    ) -> Result<(Client, reqwest::Request), NoResult> {
        let failure = |why: &str| NoResult::Failure(format!("{}: {why}", request.url));
        let host = url.host_str().unwrap_or_default().to_owned();
        let port = peer(&url).1;
        let found = tokio::net::lookup_host(peer(&url)).await.map(|mut found| found.next());
        let found = found.map_err(|error| request.failure(&error))?;
        let address = found.ok_or_else(|| failure("it has no address"))?;
        let server_name = request.tls_server_name;
        url.set_host(Some(server_name))
            .map_err(|_| failure(&format!("tls_server_name {server_name:?} is not a valid host name")))?;
        let mut to_name = request.to(url);
        if !to_name.headers().contains_key(HOST)
            && let Ok(host) = HeaderValue::from_str(&format!("{host}:{port}"))
            && request.speaks == Speaks::Http
        {
            to_name.headers_mut().insert(HOST, host);
        }
        let named = Named {
            server_name: server_name.to_owned(),
            address,
            is_verified: tls == Tls::Verified,
            speaks: request.speaks,
        };
        let known = self.named.lock().unwrap_or_else(PoisonError::into_inner).get(&named).cloned();
        if let Some(client) = known {
            return Ok((client, to_name));
        }
        let client = builder(request.speaks, tls).resolve(server_name, address).build();
        let client = client.map_err(|error| request.failure(&error))?;
        let mut clients = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if clients.len() >= NAMED_MAX {
            clients.clear();
        }
        clients.insert(named, client.clone());
        Ok((client, to_name))
    }
}

impl Request<'_> {
    fn failure(&self, error: &(dyn std::error::Error + 'static)) -> NoResult {
        NoResult::of(error, format!("{}: {}", self.url, innermost(error)))
    }

    fn to(&self, url: Url) -> reqwest::Request {
        let mut request = reqwest::Request::new(self.method.clone(), url);
        request.headers_mut().clone_from(&self.headers);
        if !self.body.is_empty() {
            *request.body_mut() = Some(self.body.clone().into());
        }
        request
    }
}

/// Most requests are of this kind. Without a client's pool, background tasks and name resolution they need half the CPU
/// time. Redirects are not followed.
async fn plain(request: &Request<'_>, url: &Url) -> Result<Answer, NoResult> {
    let stream = TcpStream::connect(peer(url)).await.map_err(|error| request.failure(&error))?;
    let asked = plain_request(request, url).map_err(|error| request.failure(&error))?;
    let failure = |error: hyper::Error| request.failure(&error);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failure)?;
    let answer = async {
        let response = sender.send_request(asked).await.map_err(failure)?;
        Ok(read(response.map(Body::wrap).into(), request).await)
    };
    let driven = async {
        // Its failure is reported by the request, too.
        let _: hyper::Result<()> = connection.await;
        std::future::pending().await
    };
    tokio::select! {
        answer = answer => answer,
        never = driven => never,
    }
}

/// The peer in a URL: a host, an IPv6 address without brackets, and a port.
fn peer(url: &Url) -> (&str, u16) {
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    (host, url.port_or_known_default().unwrap_or_default())
}

/// Adds the headers that a client would add.
fn plain_request(request: &Request<'_>, url: &Url) -> Result<hyper::Request<Body>, hyper::http::Error> {
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

async fn read(mut response: Response, request: &Request<'_>) -> Answer {
    let status = response.status();
    // The body of a healthy response is not shown, and may take long.
    let is_shown = status != StatusCode::OK || request.speaks == Speaks::Grpc;
    let mut body = Vec::new();
    while is_shown
        && body.len() < request.answer_bytes_max
        && let Ok(Some(chunk)) = response.chunk().await
    {
        body.extend_from_slice(&chunk);
    }
    body.truncate(request.answer_bytes_max);
    Answer { status, headers: std::mem::take(response.headers_mut()), body }
}

fn builder(speaks: Speaks, tls: Tls) -> reqwest::ClientBuilder {
    let builder = http_client::builder(tls)
        // A check that reuses a connection would not notice that no new ones are accepted, and would keep a file open.
        .pool_max_idle_per_host(0)
        .redirect(redirect::Policy::custom(move |attempt| {
            if attempt.previous().len() > REDIRECTS_MAX {
                attempt.error("too many redirects")
            } else if tls == Tls::None && attempt.url().scheme() == "https" {
                attempt.error(NeedsTls)
            } else {
                attempt.follow()
            }
        }));
    match speaks {
        Speaks::Http => builder,
        Speaks::Grpc => builder.http2_prior_knowledge(),
    }
}

/// A plain request was redirected to `https://`.
#[derive(Debug, thiserror::Error)]
#[error("redirected to https")]
struct NeedsTls;

fn needs_tls(error: &reqwest::Error) -> bool {
    std::error::Error::source(error).is_some_and(|why| why.is::<NeedsTls>())
}

/// The innermost cause; for an untrusted certificate with advice.
fn failure_of(error: &reqwest::Error) -> String {
    let cause = innermost(error);
    match cause.strip_prefix("invalid peer certificate: ") {
        Some(why) => format!(
            "its certificate is not one that this machine trusts ({why}); `tls_skip_verify: true` accepts any"
        ),
        None => cause,
    }
}

/// The same limit as in Nomad.
const REDIRECTS_MAX: usize = 10;
