//! One run of a check: an HTTP request or a TCP connection.
//!
//! In: the check. Out: whether it passed and what was said, at most 3 KiB. The texts are Nomad's, for tools that read them, but that
//! the body of an answer comes below its status.
//! It must not know when or how often it runs; whoever calls it enforces the timeout.

use std::{net::Ipv6Addr, sync::OnceLock};

use herdlet_api_types::{
    job::CheckKind,
    service::{CheckStatus, RegisteredCheck},
};
use reqwest::{
    Client, Method, StatusCode,
    header::{HOST, HeaderMap, HeaderName, HeaderValue},
    redirect,
};

use crate::http_client::{self, Tls, innermost};

/// Clients that all checks share, made when the first check needs them.
#[derive(Debug, Default)]
pub(super) struct Probe {
    plain: OnceLock<Client>,
    verified: OnceLock<Client>,
    /// For `tls_skip_verify`.
    unverified: OnceLock<Client>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProbeResult {
    pub(super) status: CheckStatus,
    pub(super) output: String,
    /// What an HTTP server answered with.
    pub(super) code: Option<StatusCode>,
}

impl ProbeResult {
    pub(super) fn failure(output: String) -> Self {
        Self { status: CheckStatus::Failure, output, code: None }
    }

    fn success(output: String) -> Self {
        Self { status: CheckStatus::Success, output, code: None }
    }
}

impl Probe {
    fn client(&self, tls: Tls) -> Result<&Client, reqwest::Error> {
        let place = match tls {
            Tls::None => &self.plain,
            Tls::Verified => &self.verified,
            Tls::Unverified => &self.unverified,
        };
        if let Some(client) = place.get() {
            return Ok(client);
        }
        let client = http_client::builder(tls)
            // A check that reuses a connection would not see that nobody accepts new ones, and would keep a file open.
            .pool_max_idle_per_host(0)
            .redirect(redirect::Policy::custom(move |attempt| {
                if attempt.previous().len() > REDIRECTS_MAX {
                    attempt.error("too many redirects")
                } else if tls == Tls::None && attempt.url().scheme() == "https" {
                    attempt.error(NeedsTls)
                } else {
                    attempt.follow()
                }
            }))
            .build()?;
        Ok(place.get_or_init(|| client))
    }

    pub(super) async fn run(&self, check: &RegisteredCheck) -> ProbeResult {
        let target = host_port(&check.address, check.port);
        match &check.kind {
            CheckKind::Tcp => match tokio::net::TcpStream::connect(&target).await {
                Ok(_) => ProbeResult::success("nomad: tcp ok".to_owned()),
                Err(error) => ProbeResult::failure(format!("nomad: connect to {target}: {error}")),
            },
            CheckKind::Http { path, method, protocol, header, body, tls_skip_verify } => {
                let method = match Method::from_bytes(method.as_bytes()) {
                    Ok(method) => method,
                    Err(error) => return ProbeResult::failure(format!("nomad: method {method:?}: {error}")),
                };
                let headers = match headers(header) {
                    Ok(headers) => headers,
                    Err(why) => return ProbeResult::failure(format!("nomad: {why}")),
                };
                let url = format!("{protocol}://{target}{path}");
                let tls = if *tls_skip_verify { Tls::Unverified } else { Tls::of(&url) };
                let send = async |tls| {
                    let request = self.client(tls)?.request(method.clone(), &url).headers(headers.clone());
                    request.body(body.clone()).send().await
                };
                let answer = match send(tls).await {
                    Err(error) if needs_tls(&error) => send(Tls::Verified).await,
                    answer => answer,
                };
                match answer {
                    Ok(response) => judge(response).await,
                    Err(error) => ProbeResult::failure(format!("nomad: {url}: {}", innermost(&error))),
                }
            }
        }
    }
}

/// A plain request was redirected to `https://`.
#[derive(Debug, thiserror::Error)]
#[error("redirected to https")]
struct NeedsTls;

fn needs_tls(error: &reqwest::Error) -> bool {
    std::error::Error::source(error).is_some_and(|why| why.is::<NeedsTls>())
}

/// As many as Nomad follows.
const REDIRECTS_MAX: usize = 10;

/// As much as the API shows of what a check said.
const OUTPUT_BYTES_MAX: usize = 3 * 1024;

async fn judge(mut response: reqwest::Response) -> ProbeResult {
    let status = response.status();
    if status == StatusCode::OK {
        return ProbeResult { code: Some(status), ..ProbeResult::success("nomad: http ok".to_owned()) };
    }
    let mut output = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        output.extend_from_slice(&chunk);
        if output.len() >= OUTPUT_BYTES_MAX {
            break;
        }
    }
    output.truncate(OUTPUT_BYTES_MAX);
    let mut output = format!("nomad: http {status}\n{}", String::from_utf8_lossy(&output));
    output.truncate(output.floor_char_boundary(OUTPUT_BYTES_MAX));
    let output = output.trim_end().to_owned();
    let result =
        if status.as_u16() < 400 { ProbeResult::success(output) } else { ProbeResult::failure(output) };
    ProbeResult { code: Some(status), ..result }
}

fn headers(fields: &std::collections::BTreeMap<String, Vec<String>>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, values) in fields {
        let name: HeaderName = name.parse().map_err(|_| format!("header {name:?} is no valid name"))?;
        for value in values {
            let value: HeaderValue =
                value.parse().map_err(|_| format!("header {name:?} has an invalid value"))?;
            // There can be only one Host.
            if name == HOST {
                headers.insert(name.clone(), value);
            } else {
                headers.append(name.clone(), value);
            }
        }
    }
    Ok(headers)
}

/// `host:port`, with brackets around an IPv6 address. An empty address is this machine.
pub(in crate::drivers) fn host_port(address: &str, port: u16) -> String {
    match address {
        "" => format!("127.0.0.1:{port}"),
        address if address.parse::<Ipv6Addr>().is_ok() => format!("[{address}]:{port}"),
        address => format!("{address}:{port}"),
    }
}
