//! Admission: one rule for every listener: the unix socket, the API on TCP, a node's API, metrics, and the port of
//! `herdlet ui`.
//!
//! In: requests and their callers. Out: the request, or a refusal.
//!
//! ```text
//!   unix socket ────────────────────────► served: the kernel identifies the caller
//!   right token ────────────────────────► served: a foreign web page can't know it
//!   public keys ────────────────────────► served
//!   token missing or wrong ─────────────► 401, 403; after too many wrong tokens: 429
//!   unknown host name, foreign web page ► 421, 403   (`names`)
//!   all else ───────────────────────────► served
//! ```

mod guesses;
mod names;
mod reports;

use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures_util::future::BoxFuture;
use herdlet_agent::telemetry::{Telemetry, Unknown};

pub use names::Names;

use self::{
    guesses::Guesses,
    names::{HostRefusal, Naming},
    reports::Reports,
};
use super::{DISCOVERY_PATH, JWKS_PATH, auth::Token};
use crate::peer::Peer;

/// Paths that need no token and accept any host name: the keys that verify tasks' tokens, and where a cluster publishes
/// them.
const PUBLIC_PATHS: [&str; 2] = [JWKS_PATH, DISCOVERY_PATH];

/// Delay of the answer to a wrong token after too many of them: each connection can guess once per second.
const PENALTY: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub enum Access {
    /// Any caller.
    Open,
    /// Callers with the token.
    Token(Token),
    /// Callers that the router accepts by tokens of the cluster.
    Cluster(Arc<dyn Tokens>),
}

/// Checks tokens of a cluster.
pub trait Tokens: Send + Sync {
    /// Checks the token of a request.
    fn verdict<'a>(&'a self, headers: &'a HeaderMap) -> BoxFuture<'a, TokenVerdict>;
}

/// The result of checking the token of a request with the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenVerdict {
    /// The token is valid.
    Known,
    /// The cluster does not know the token: it was guessed.
    Wrong,
    /// There is no token, it has expired, no server answers, or the cluster has no ACLs, so that a token proves nothing.
    None,
}

/// Admission state that all listeners of an agent share.
pub struct Admission {
    names: Names,
    guesses: Guesses,
    reports: Reports,
    telemetry: Telemetry,
}

impl Admission {
    /// Admits requests with one of these host names.
    #[must_use]
    pub fn new(names: Names, telemetry: Telemetry) -> Arc<Self> {
        Arc::new(Self { names, guesses: Guesses::default(), reports: Reports::default(), telemetry })
    }
}

/// The peer of a connection. A request extension, for the audit of variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caller {
    /// The agent's own user or root, on the unix socket; its user id.
    Local(u32),
    /// A TCP client.
    Remote(Peer),
    /// A TLS client with a trusted certificate.
    Certified(Peer),
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(uid) => write!(f, "uid {uid} on the socket"),
            Self::Remote(peer) | Self::Certified(peer) => peer.fmt(f),
        }
    }
}

/// Admission for one connection.
#[derive(Clone)]
pub(super) struct Gate {
    pub(super) access: Access,
    pub(super) admission: Arc<Admission>,
    pub(super) caller: Caller,
    /// The address of the listener; none for the unix socket.
    pub(super) listener: Option<SocketAddr>,
}

/// Response extension: the request's token was wrong. Set by routers that check tokens themselves.
#[derive(Debug, Clone, Copy)]
pub struct WrongToken;

/// Request extension: the request comes from a web page whose origin the config allows.
#[derive(Debug, Clone, Copy)]
pub struct AllowedPage;

/// Request extension: for routers that receive a token after the head, such as in the first frame of a websocket, to count
/// a wrong one.
#[derive(Clone)]
pub struct LateToken {
    gate: Gate,
    peer: Peer,
}

/// The body of a 429 response.
pub const TOO_MANY: &str =
    "too many wrong tokens came from this address; try again later (a valid token is never delayed)";

/// Passes the request on, or returns the refusal.
pub(super) async fn admit(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(gate.caller);
    let (peer, naming) = match gate.caller {
        Caller::Local(_) => return next.run(request).await,
        Caller::Remote(peer) => (peer, Naming::Unknown),
        Caller::Certified(peer) => (peer, Naming::Verified),
    };
    if PUBLIC_PATHS.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let given = token_in(request.headers());
    match (&gate.access, given) {
        (Access::Token(token), Some(given)) if token.is(given) => return next.run(request).await,
        (Access::Token(_), Some(_)) => {
            let refused = (StatusCode::FORBIDDEN, "Permission denied: wrong token");
            return gate.refuse_token(peer, refused.into_response()).await;
        }
        (Access::Token(_), None) => {
            gate.admission.telemetry.authentication_failed(Unknown::Missing);
            let ask = [(header::WWW_AUTHENTICATE, "Bearer")];
            let why = "a token is required: send the header Authorization: Bearer TOKEN";
            return (StatusCode::UNAUTHORIZED, ask, why).into_response();
        }
        (Access::Open | Access::Cluster(_), _) => {}
    }
    let (head, body) = request.into_parts();
    if let Err(stranger) = gate.admission.names.judge(&head, naming) {
        let verdict = match &gate.access {
            Access::Cluster(tokens) => tokens.verdict(&head.headers).await,
            Access::Open | Access::Token(_) => TokenVerdict::None,
        };
        let refused = || {
            gate.report(peer, &stranger);
            plain(stranger.code(), format!("{stranger}{}\n", gate.remedy(&stranger)))
        };
        match verdict {
            TokenVerdict::Known => {}
            TokenVerdict::Wrong => return gate.refuse_token(peer, refused()).await,
            TokenVerdict::None => return refused(),
        }
    }
    request = Request::from_parts(head, body);
    if gate.admission.names.allows_pages_of(request.headers()) {
        request.extensions_mut().insert(AllowedPage);
    }
    request.extensions_mut().insert(LateToken { gate: gate.clone(), peer });
    let response = next.run(request).await;
    match response.extensions().get::<WrongToken>() {
        Some(WrongToken) => gate.refuse_token(peer, response).await,
        None => response,
    }
}

impl Gate {
    /// Logs a refusal. Each host name is logged once, so that the admin who gave this machine that name learns why
    /// requests fail.
    fn report(&self, peer: Peer, stranger: &HostRefusal) {
        tracing::debug!(%peer, %stranger, "a request was refused");
        let Admission { names, reports, .. } = &*self.admission;
        let HostRefusal::Host { name, .. } = stranger else { return };
        if names.can_be_extended() && reports.is_due(name) {
            tracing::warn!(
                name, listener = self.listener.map(tracing::field::display), %peer,
                hint = "if this name belongs to this machine, add it to http.allowed_hosts in the config",
                "requests with an unknown host name are refused (421)"
            );
        }
    }

    /// What the sender can do about a refusal. Only lists remedies that this listener supports.
    fn remedy(&self, stranger: &HostRefusal) -> String {
        let names = &self.admission.names;
        let HostRefusal::Host { .. } = stranger else { return String::new() };
        let mut ways = vec!["Use an IP address, localhost or the machine's host name"];
        if names.can_be_extended() {
            ways.push("add the name to http.allowed_hosts in the agent's config");
        }
        match self.access {
            Access::Cluster(_) => ways.push("send a token if the cluster has ACLs"),
            // A request without the token was refused before its name was checked.
            Access::Token(_) => {}
            // These listeners know no token: metrics, and the port of `herdlet ui`.
            Access::Open => {}
        }
        format!(" {}.", ways.join(", or "))
    }

    /// Counts a wrong token. Returns the refusal, or after too many a delayed 429.
    async fn refuse_token(&self, peer: Peer, refused: Response) -> Response {
        match self.count_guess(peer).await {
            Guess::Forgiven => refused,
            Guess::TooMany => {
                let mut slowed = plain(StatusCode::TOO_MANY_REQUESTS, format!("{TOO_MANY}\n"));
                let headers = slowed.headers_mut();
                headers.insert(header::RETRY_AFTER, HeaderValue::from(PENALTY.as_secs()));
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
                slowed
            }
        }
    }

    /// Counts and logs a wrong token. After too many, delays the caller.
    async fn count_guess(&self, peer: Peer) -> Guess {
        let Admission { guesses, telemetry, .. } = &*self.admission;
        telemetry.authentication_failed(Unknown::Wrong);
        let is_too_many = guesses.is_too_many(peer);
        if guesses.may_be_logged() {
            let slowed = if is_too_many { ", and further ones from there are delayed" } else { "" };
            tracing::warn!(
                %peer,
                "refused a request with a wrong token{slowed}: give that client the token in `token_file`, or find out who it is; \
                 herdlet_authentication_failures_total counts all such requests, the log names some"
            );
        }
        if !is_too_many {
            return Guess::Forgiven;
        }
        tokio::time::sleep(PENALTY).await;
        Guess::TooMany
    }
}

/// The consequence of a wrong token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guess {
    /// The caller gets the router's own refusal.
    Forgiven,
    /// The caller gets a delayed 429.
    TooMany,
}

impl LateToken {
    /// Counts the token as wrong. After too many, delays the caller.
    pub async fn count_guess(&self) -> Guess {
        self.gate.count_guess(self.peer).await
    }
}

fn plain(code: StatusCode, text: String) -> Response {
    let headers: [(HeaderName, &str); 2] =
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (code, headers, text).into_response()
}

fn token_in(headers: &HeaderMap) -> Option<&[u8]> {
    if let Some(token) = headers.get("x-nomad-token") {
        return Some(token.as_bytes());
    }
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}
