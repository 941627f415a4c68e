//! Admission: one rule for every listener: the sockets of this machine, the API on TCP, a node's API, metrics, the port of
//! `herdlet ui`.
//!
//! In: requests, with who sent them. Out: the same, or why not.
//!
//! ```text
//!   unix socket ─────────────────────────────► served: the kernel says who it is
//!   right token ─────────────────────────────► served: no page of a stranger knows it
//!   public keys ─────────────────────────────► served
//!   no token where one is needed, a wrong one ► 401, 403; too many wrong ones: 429
//!   a stranger's name, a stranger's page ─────► 421, 403   (`names`)
//!   all else ────────────────────────────────► served
//! ```

mod guesses;
mod names;
mod reports;

use std::{net::SocketAddr, sync::Arc, time::Duration};

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
    names::{Naming, Stranger},
    reports::Reports,
};
use super::{JWKS_PATH, auth::Token};
use crate::peer::Peer;

/// What anybody may read under any name: keys that say whether a task's token is genuine, and where a cluster has them.
const PUBLIC_PATHS: [&str; 2] = [JWKS_PATH, "/.well-known/openid-configuration"];

/// So long a peer waits for the answer to a wrong token after too many of them: a guess for each second of a connection.
const PENALTY: Duration = Duration::from_secs(1);

/// Who may use what a listener serves.
#[derive(Clone)]
pub enum Access {
    /// Any caller.
    Open,
    /// Callers with the token.
    Token(Token),
    /// Callers that the router accepts by tokens of the cluster.
    Cluster(Arc<dyn Tokens>),
}

/// Knows tokens of a cluster.
pub trait Tokens: Send + Sync {
    /// What the cluster knows about the token of a request.
    fn verdict<'a>(&'a self, headers: &'a HeaderMap) -> BoxFuture<'a, TokenVerdict>;
}

/// What a cluster knows about the token of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenVerdict {
    /// The token is valid.
    Known,
    /// The cluster does not know it: a guess.
    Wrong,
    /// There is no token, it has expired, no server answers, or the cluster has no ACLs: then a token proves nothing.
    None,
}

/// What all listeners of an agent share.
pub struct Admission {
    names: Names,
    guesses: Guesses,
    reports: Reports,
    telemetry: Telemetry,
}

impl Admission {
    /// Admits requests that use these names.
    #[must_use]
    pub fn new(names: Names, telemetry: Telemetry) -> Arc<Self> {
        Arc::new(Self { names, guesses: Guesses::default(), reports: Reports::default(), telemetry })
    }
}

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caller {
    /// The agent's own user or root, on the unix socket.
    Local,
    /// Somebody on TCP.
    Remote(Peer),
    /// Somebody on TLS who has shown a certificate that is trusted.
    Certified(Peer),
}

/// The rule for one connection.
#[derive(Clone)]
pub(super) struct Gate {
    pub(super) access: Access,
    pub(super) admission: Arc<Admission>,
    pub(super) caller: Caller,
    /// The address of the listener; none for the unix socket.
    pub(super) listener: Option<SocketAddr>,
}

/// On a response: the request's token was wrong. Set by routers that know tokens themselves.
#[derive(Debug, Clone, Copy)]
pub struct WrongToken;

/// On a request: the config names the origin of the page that sends it.
#[derive(Debug, Clone, Copy)]
pub struct AllowedPage;

/// On a request: where a router counts a wrong token that comes after the head, such as the first frame of a websocket.
#[derive(Clone)]
pub struct LateToken {
    gate: Gate,
    peer: Peer,
}

/// The answer to one guess too many.
pub const TOO_MANY: &str =
    "too many wrong tokens came from this address; a right one is answered at any time";

/// Passes a request on, or returns the refusal.
pub(super) async fn admit(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    let (peer, naming) = match gate.caller {
        Caller::Local => return next.run(request).await,
        Caller::Remote(peer) => (peer, Naming::Unknown),
        Caller::Certified(peer) => (peer, Naming::Verified),
    };
    if PUBLIC_PATHS.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let given = given(request.headers());
    match (&gate.access, given) {
        (Access::Token(token), Some(given)) if token.is(given) => return next.run(request).await,
        (Access::Token(_), Some(_)) => {
            let refused = (StatusCode::FORBIDDEN, "Permission denied: wrong token");
            return gate.wrong(peer, refused.into_response()).await;
        }
        (Access::Token(_), None) => {
            gate.admission.telemetry.authentication_failed(Unknown::Missing);
            let ask = [(header::WWW_AUTHENTICATE, "Bearer")];
            let why = "a token is needed: Authorization: Bearer TOKEN";
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
            TokenVerdict::Wrong => return gate.wrong(peer, refused()).await,
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
        Some(WrongToken) => gate.wrong(peer, response).await,
        None => response,
    }
}

impl Gate {
    /// Logs a refusal. A name is logged once, so that whoever has given this machine a name learns why nobody is served under it.
    fn report(&self, peer: Peer, stranger: &Stranger) {
        tracing::debug!(%peer, %stranger, "a request was refused");
        let Admission { names, reports, .. } = &*self.admission;
        let Stranger::Host { name, .. } = stranger else { return };
        if names.can_be_extended() && reports.is_due(name) {
            tracing::warn!(
                name, listener = self.listener.map(tracing::field::display), %peer,
                hint = "add the name to http.allowed_hosts in the config if it is one of this machine",
                "requests under an unknown name are refused (421)"
            );
        }
    }

    /// What the sender of a refused request can do: no listener offers a way that it does not have.
    fn remedy(&self, stranger: &Stranger) -> String {
        let names = &self.admission.names;
        let Stranger::Host { .. } = stranger else { return String::new() };
        let mut ways = vec!["Use an IP address, localhost or the machine's host name"];
        if names.can_be_extended() {
            ways.push("add the name to http.allowed_hosts in the agent's config");
        }
        match self.access {
            Access::Cluster(_) => ways.push("send a token, where the cluster has ACLs"),
            // Without it the request is refused before its name is judged.
            Access::Token(_) => {}
            // No token is known here: metrics, and the port of `herdlet ui`.
            Access::Open => {}
        }
        format!(" {}.", ways.join(", or "))
    }

    /// Counts a wrong token. The answer to it, which comes late where there were too many.
    async fn wrong(&self, peer: Peer, refused: Response) -> Response {
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

    /// Counts and logs a wrong token, and delays the caller where there were too many.
    async fn count_guess(&self, peer: Peer) -> Guess {
        let Admission { guesses, telemetry, .. } = &*self.admission;
        telemetry.authentication_failed(Unknown::Wrong);
        let is_too_many = guesses.is_too_many(peer);
        if guesses.may_be_logged() {
            tracing::warn!(
                %peer, is_slowed = is_too_many,
                "a request had a wrong token; herdlet_authentication_failures_total counts those that are not logged"
            );
        }
        if !is_too_many {
            return Guess::Forgiven;
        }
        tokio::time::sleep(PENALTY).await;
        Guess::TooMany
    }
}

/// What a wrong token leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guess {
    /// The router's own refusal.
    Forgiven,
    /// A late refusal.
    TooMany,
}

impl LateToken {
    /// Counts it as wrong, and delays the caller where there were too many.
    pub async fn count_guess(&self) -> Guess {
        self.gate.count_guess(self.peer).await
    }
}

fn plain(code: StatusCode, text: String) -> Response {
    let headers: [(HeaderName, &str); 2] =
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (code, headers, text).into_response()
}

fn given(headers: &HeaderMap) -> Option<&[u8]> {
    if let Some(token) = headers.get("x-nomad-token") {
        return Some(token.as_bytes());
    }
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}
