//! One run of a check: an HTTP request, a TCP connection, a question of gRPC's health protocol, or a command in a task.
//!
//! In: the check. Out: whether it passed and what was said, at most 3 KiB. The texts are Nomad's, for tools that read them, but that
//! the body of an answer comes below its status.
//! It must not know when or how often it runs; whoever calls it enforces the timeout.

use std::{
    collections::BTreeMap,
    net::{Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use futures_util::future::BoxFuture;
use herdlet_api_types::{
    AllocId,
    job::{CheckKind, InitialStatus},
    service::{CheckStatus, RegisteredCheck},
};
use reqwest::{
    Client, Method, Request, Response, StatusCode, Url,
    header::{HOST, HeaderMap, HeaderName, HeaderValue},
    redirect,
};

use super::grpc;
use crate::{
    drivers::task::ExecOutcome,
    http_client::{self, Tls, innermost},
};

/// Runs commands in running tasks.
pub trait Scripts: std::fmt::Debug + Send + Sync {
    /// Runs one to its end, or ends it when its time is over. Fails with a sentence where it could not be run.
    fn run<'a>(
        &'a self,
        alloc: AllocId,
        task: &'a str,
        command: Vec<String>,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<ExecOutcome, String>>;
}

/// What runs of checks share.
#[derive(Debug)]
pub(super) struct Probe {
    scripts: Arc<dyn Scripts>,
    /// Clients by what they are for, made when a check first needs them.
    shared: [OnceLock<Client>; 6],
    /// Those that expect a certificate for another name than the address.
    named: Mutex<BTreeMap<Named, Client>>,
}

/// What a client is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Speaks {
    Http,
    Grpc,
}

/// For whom a client is that knows one peer only.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Named {
    server_name: String,
    address: SocketAddr,
    is_verified: bool,
    speaks: Speaks,
}

/// More peers with a name of their own than that are not remembered.
const NAMED_MAX: usize = 64;

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProbeResult {
    pub(super) status: CheckStatus,
    pub(super) output: String,
    /// What an HTTP server answered with.
    pub(super) code: Option<StatusCode>,
    /// It took all the time it was given.
    pub(super) timed_out: bool,
}

impl ProbeResult {
    fn new(status: CheckStatus, output: String) -> Self {
        Self { status, output, code: None, timed_out: false }
    }

    pub(super) fn failure(output: String) -> Self {
        Self::new(CheckStatus::Failure, output)
    }

    fn success(output: String) -> Self {
        Self::new(CheckStatus::Success, output)
    }

    pub(super) fn timed_out(timeout: Duration) -> Self {
        Self { timed_out: true, ..Self::failure(format!("nomad: no answer within {timeout:?}")) }
    }

    /// What counts until the first run.
    pub(super) fn initial(status: InitialStatus) -> Self {
        let status = match status {
            InitialStatus::Passing => CheckStatus::Success,
            InitialStatus::Warning => CheckStatus::Warning,
            InitialStatus::Critical => CheckStatus::Failure,
        };
        Self::new(status, "nomad: waiting to run".to_owned())
    }
}

impl Probe {
    pub(super) fn new(scripts: Arc<dyn Scripts>) -> Self {
        Self { scripts, shared: Default::default(), named: Mutex::default() }
    }

    pub(super) async fn run(
        &self,
        alloc: AllocId,
        check: &RegisteredCheck,
        timeout: Duration,
    ) -> ProbeResult {
        let target = host_port(&check.address, check.port);
        match &check.kind {
            CheckKind::Tcp => match tokio::net::TcpStream::connect(&target).await {
                Ok(_) => ProbeResult::success("nomad: tcp ok".to_owned()),
                Err(error) => ProbeResult::failure(format!("nomad: connect to {target}: {error}")),
            },
            CheckKind::Http { path, method, protocol, header, body, tls_skip_verify, tls_server_name } => {
                let method = match Method::from_bytes(method.as_bytes()) {
                    Ok(method) => method,
                    Err(error) => return ProbeResult::failure(format!("nomad: method {method:?}: {error}")),
                };
                let headers = match headers(header) {
                    Ok(headers) => headers,
                    Err(why) => return ProbeResult::failure(format!("nomad: {why}")),
                };
                let ask = Ask {
                    speaks: Speaks::Http,
                    url: format!("{protocol}://{target}{path}"),
                    tls_skip_verify: *tls_skip_verify,
                    tls_server_name,
                    method,
                    headers,
                    body: body.clone().into_bytes(),
                };
                match self.ask(ask).await {
                    Ok(response) => judge(response).await,
                    Err(why) => ProbeResult::failure(format!("nomad: {why}")),
                }
            }
            CheckKind::Grpc { service, tls, tls_skip_verify, tls_server_name } => {
                let scheme = if *tls { "https" } else { "http" };
                let ask = Ask {
                    speaks: Speaks::Grpc,
                    url: format!("{scheme}://{target}{}", grpc::PATH),
                    tls_skip_verify: *tls_skip_verify,
                    tls_server_name,
                    method: Method::POST,
                    headers: grpc::headers(),
                    body: grpc::question(service),
                };
                let verdict = match self.ask(ask).await {
                    Ok(response) => judge_grpc(response).await,
                    Err(why) => Err(why),
                };
                match verdict {
                    Ok(()) => ProbeResult::success("nomad: grpc ok".to_owned()),
                    Err(why) => ProbeResult::failure(format!("nomad: {why}")),
                }
            }
            CheckKind::Script { command, args, task } => {
                let command = [command].into_iter().chain(args).cloned().collect();
                match self.scripts.run(alloc, task, command, timeout).await {
                    Ok(outcome) => judge_script(&outcome),
                    Err(why) => ProbeResult::failure(format!("nomad: {why}")),
                }
            }
        }
    }

    /// Sends a request and waits for the head of its answer. A plain one that is redirected to TLS is sent anew.
    async fn ask(&self, ask: Ask<'_>) -> Result<Response, String> {
        let tls = if ask.tls_skip_verify { Tls::Unverified } else { Tls::of(&ask.url) };
        let told = |error: reqwest::Error| format!("{}: {}", ask.url, failure_of(&error));
        if tls != Tls::None && !ask.tls_server_name.is_empty() {
            let (client, request) = self.by_name(&ask, tls).await?;
            return client.execute(request).await.map_err(told);
        }
        let url = Url::parse(&ask.url).map_err(|error| format!("{}: {error}", ask.url))?;
        match self.client(ask.speaks, tls).map_err(told)?.execute(ask.request(url.clone())).await {
            Err(error) if needs_tls(&error) => {
                let client = self.client(ask.speaks, Tls::Verified).map_err(told)?;
                client.execute(ask.request(url)).await.map_err(told)
            }
            answer => answer.map_err(told),
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

    /// A client for which the name on the certificate stands at the check's address, and the request to that name. Whom it asks is
    /// told as if it were the address.
    async fn by_name(&self, ask: &Ask<'_>, tls: Tls) -> Result<(Client, Request), String> {
        let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", ask.url);
        let mut url = Url::parse(&ask.url).map_err(|error| wrong(&error))?;
        let host = url.host_str().unwrap_or_default().to_owned();
        let port = url.port_or_known_default().unwrap_or_default();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let mut found = tokio::net::lookup_host((bare, port)).await.map_err(|error| wrong(&error))?;
        let address = found.next().ok_or_else(|| wrong(&"it has no address"))?;
        url.set_host(Some(ask.tls_server_name))
            .map_err(|_| wrong(&format!("tls_server_name {:?} is no name of a host", ask.tls_server_name)))?;
        let mut request = ask.request(url);
        if !request.headers().contains_key(HOST)
            && let Ok(host) = HeaderValue::from_str(&format!("{host}:{port}"))
            && ask.speaks == Speaks::Http
        {
            request.headers_mut().insert(HOST, host);
        }
        let named = Named {
            server_name: ask.tls_server_name.to_owned(),
            address,
            is_verified: tls == Tls::Verified,
            speaks: ask.speaks,
        };
        let known = self.named.lock().unwrap_or_else(PoisonError::into_inner).get(&named).cloned();
        if let Some(client) = known {
            return Ok((client, request));
        }
        let client = builder(ask.speaks, tls).resolve(ask.tls_server_name, address).build();
        let client = client.map_err(|error| wrong(&innermost(&error)))?;
        let mut clients = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if clients.len() >= NAMED_MAX {
            clients.clear();
        }
        clients.insert(named, client.clone());
        Ok((client, request))
    }
}

/// A request of a check.
struct Ask<'a> {
    speaks: Speaks,
    url: String,
    tls_skip_verify: bool,
    tls_server_name: &'a str,
    method: Method,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Ask<'_> {
    fn request(&self, url: Url) -> Request {
        let mut request = Request::new(self.method.clone(), url);
        request.headers_mut().clone_from(&self.headers);
        if !self.body.is_empty() {
            *request.body_mut() = Some(self.body.clone().into());
        }
        request
    }
}

fn builder(speaks: Speaks, tls: Tls) -> reqwest::ClientBuilder {
    let builder = http_client::builder(tls)
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

/// The innermost cause; of a certificate that is not trusted also what can be done.
fn failure_of(error: &reqwest::Error) -> String {
    let cause = innermost(error);
    match cause.strip_prefix("invalid peer certificate: ") {
        Some(why) => format!(
            "its certificate is not one that this machine trusts ({why}); `tls_skip_verify: true` accepts any"
        ),
        None => cause,
    }
}

/// As many as Nomad follows.
const REDIRECTS_MAX: usize = 10;

/// As much as the API shows of what a check said.
const OUTPUT_BYTES_MAX: usize = 3 * 1024;

/// The beginning of a body.
async fn body(response: &mut Response, bytes_max: usize) -> Vec<u8> {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        body.extend_from_slice(&chunk);
        if body.len() >= bytes_max {
            break;
        }
    }
    body.truncate(bytes_max);
    body
}

/// At most as much as is shown.
fn cut(mut output: String) -> String {
    output.truncate(output.floor_char_boundary(OUTPUT_BYTES_MAX));
    output.truncate(output.trim_end().len());
    output
}

async fn judge_grpc(mut response: Response) -> Result<(), String> {
    if response.status() != StatusCode::OK {
        return Err(format!("http {} where gRPC was expected", response.status()));
    }
    let body = body(&mut response, grpc::ANSWER_BYTES_MAX).await;
    grpc::verdict(response.headers(), &body)
}

/// As Consul's checks by commands.
fn judge_script(outcome: &ExecOutcome) -> ProbeResult {
    let said = [&outcome.stdout, &outcome.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    let output = cut(said.concat());
    let exit = &outcome.exit;
    let status = match (exit.code, exit.signal) {
        (0, 0) => CheckStatus::Success,
        (1, 0) => CheckStatus::Warning,
        _ => CheckStatus::Failure,
    };
    if status != CheckStatus::Failure {
        return ProbeResult::new(status, output);
    }
    let how = match exit.signal {
        0 => format!("exit code {}", exit.code),
        signal => format!("ended by signal {signal}"),
    };
    let colon = if output.is_empty() { "" } else { ": " };
    ProbeResult::failure(cut(format!("{how}{colon}{output}")))
}

async fn judge(mut response: Response) -> ProbeResult {
    let status = response.status();
    if status == StatusCode::OK {
        return ProbeResult { code: Some(status), ..ProbeResult::success("nomad: http ok".to_owned()) };
    }
    let body = body(&mut response, OUTPUT_BYTES_MAX).await;
    let output = cut(format!("nomad: http {status}\n{}", String::from_utf8_lossy(&body)));
    let result =
        if status.as_u16() < 400 { ProbeResult::success(output) } else { ProbeResult::failure(output) };
    ProbeResult { code: Some(status), ..result }
}

fn headers(fields: &BTreeMap<String, Vec<String>>) -> Result<HeaderMap, String> {
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
