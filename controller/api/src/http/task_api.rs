//! The Task API: the HTTP API on the sockets in the directories of tasks, always with a token, ACLs on or off.
//!
//! In: listening sockets, from the executor, and an [`Authority`]. Out: answers of the router to callers whose token the
//! authority accepts; a task's identity is limited to what [`scope`] permits. Limits apply to each socket, so that a task
//! that floods its own slows no other. A socket without connections costs a descriptor and no thread or timer.
//!
//! | caller | answer |
//! | --- | --- |
//! | no token | 401 |
//! | token that is unknown, forged, expired, or of an allocation that has ended; anonymous | 403 |
//! | too many unknown tokens | 429 |
//! | the authority can't tell | 500 |
//!
//! Facts: `hashicorp/nomad:command/agent/http.go`, `client/allocrunner/taskrunner/api_hook.go`.

mod authority;
mod connections;
mod scope;

use std::{fmt, num::NonZeroU32, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use herdlet_agent::task_sockets::{TaskApi, TaskSocket};
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

pub use self::authority::{Authority, LocalAuthority, Principal, TokenCache, Unidentified, Verifier};
use self::connections::Connections;
pub(super) use self::scope::{Requester, Scope, forbidden};
use super::{Limits, serve::connections::connection, unread};

/// Connections of one socket. Further ones wait in the kernel's queue until one ends.
const CONNECTIONS_MAX: usize = 32;

/// Look-ups of tokens that are not cached, per socket: this many at once,
const LOOKUP_BURST: NonZeroU32 = NonZeroU32::new(20).expect("it is not zero");
/// and then one per period. A task has few tokens; a caller that needs more guesses.
const LOOKUP_PERIOD: Duration = Duration::from_millis(200);

/// Pause after a failed accept: without descriptors, this would be a busy loop.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Serves the sockets of tasks.
pub struct TaskApiServer {
    /// What callers with a valid token reach.
    pub router: Router,
    pub authority: Arc<dyn Authority>,
    /// Cancelled when the agent shuts down.
    pub closing: CancellationToken,
}

/// The entrance of one socket.
struct Door {
    authority: Arc<dyn Authority>,
    /// The task, for logs and the audit.
    owner: String,
    lookups: DefaultDirectRateLimiter,
}

impl TaskApi for TaskApiServer {
    fn open(&self, socket: TaskSocket) {
        let TaskSocket { alloc, task, listener, closed } = socket;
        let owner = format!("task {task} of allocation {alloc}");
        let listener = listener.set_nonblocking(true).and_then(|()| UnixListener::from_std(listener));
        let listener = match listener {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!(%alloc, task, %error, "failed to serve the Task API of a task");
                return;
            }
        };
        let door = Arc::new(Door::new(Arc::clone(&self.authority), owner));
        let router = Router::new()
            .fallback_service(self.router.clone())
            .layer(middleware::from_fn_with_state(door, admit))
            .layer(middleware::from_fn(unread::finish));
        tokio::spawn(serve(listener, router, self.closing.child_token(), closed));
    }
}

/// Accepts connections until the socket or the API closes. Those with a request in progress finish it.
///
/// All connections of a socket are one future, so that the scheduler gives each socket the same turn, however many clients
/// it has.
async fn serve(listener: UnixListener, router: Router, ended: CancellationToken, closed: CancellationToken) {
    let mut connections = Connections::default();
    loop {
        let accepted = tokio::select! {
            () = ended.cancelled() => break,
            () = closed.cancelled() => break,
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => accepted,
            () = connections.turn(), if connections.len() > 0 => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                connections.add(connection(stream, router.clone(), Limits::default(), ended.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection to the Task API");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
    ended.cancel();
    while connections.len() > 0 {
        connections.turn().await;
    }
}

impl Door {
    fn new(authority: Arc<dyn Authority>, owner: String) -> Self {
        // None only for a period of zero.
        let quota = Quota::with_period(LOOKUP_PERIOD).unwrap_or_else(|| Quota::per_second(LOOKUP_BURST));
        Self { authority, owner, lookups: RateLimiter::direct(quota.allow_burst(LOOKUP_BURST)) }
    }

    async fn identify(&self, token: &str) -> Result<Principal, Refusal> {
        if let Some(known) = self.authority.known(token) {
            return Ok(known);
        }
        if self.lookups.check().is_err() {
            return Err(Refusal::TooMany);
        }
        Ok(self.authority.identify(token).await?)
    }
}

/// Why a request is not served.
#[derive(Debug)]
enum Refusal {
    Malformed,
    NoToken,
    TooMany,
    Unidentified(Unidentified),
    /// The task may not do this.
    Forbidden,
}

impl From<Unidentified> for Refusal {
    fn from(unidentified: Unidentified) -> Self {
        Self::Unidentified(unidentified)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("the token is not valid text"),
            Self::NoToken => f.write_str(
                "a token is required: send the header X-Nomad-Token or Authorization: Bearer TOKEN; a task finds its \
                 token in NOMAD_TOKEN or in secrets/nomad_token if its identity sets env or file",
            ),
            Self::TooMany => f.write_str("this task has sent too many unknown tokens; try again in a second"),
            Self::Unidentified(Unidentified::Rejected) | Self::Forbidden => f.write_str("Permission denied"),
            Self::Unidentified(Unidentified::Failed(why)) => write!(f, "failed to check the token: {why}"),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let code = match self {
            Self::Malformed => StatusCode::BAD_REQUEST,
            Self::NoToken => StatusCode::UNAUTHORIZED,
            Self::TooMany => StatusCode::TOO_MANY_REQUESTS,
            Self::Unidentified(Unidentified::Rejected) | Self::Forbidden => StatusCode::FORBIDDEN,
            Self::Unidentified(Unidentified::Failed(_)) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (code, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], self.to_string()).into_response()
    }
}

/// Passes a request with a valid token on.
async fn admit(State(door): State<Arc<Door>>, mut request: Request, next: Next) -> Response {
    let principal = match token_in(request.headers()) {
        Ok(token) => door.identify(token).await,
        Err(refusal) => Err(refusal),
    };
    let checked = principal.and_then(|principal| {
        let requester = Requester::new(principal, &door.owner);
        if requester.may_call(request.method(), request.uri().path()) {
            Ok(requester)
        } else {
            Err(Refusal::Forbidden)
        }
    });
    match checked {
        Ok(requester) => {
            request.extensions_mut().insert(requester);
            next.run(request).await
        }
        Err(refusal) => {
            tracing::debug!(
                owner = door.owner,
                path = request.uri().path(),
                ?refusal,
                "the Task API refused a request"
            );
            refusal.into_response()
        }
    }
}

/// The token of a request. As in Nomad, an empty one is none.
fn token_in(headers: &HeaderMap) -> Result<&str, Refusal> {
    let own = headers.get("x-nomad-token").map(|value| value.to_str().map_err(|_| Refusal::Malformed));
    if let Some(own) = own.transpose()?.map(str::trim).filter(|own| !own.is_empty()) {
        return Ok(own);
    }
    let value = headers.get(header::AUTHORIZATION).ok_or(Refusal::NoToken)?;
    let value = value.to_str().map_err(|_| Refusal::Malformed)?.trim();
    let (scheme, token) = value.split_once(' ').ok_or(Refusal::NoToken)?;
    let token = token.trim();
    if scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() { Ok(token) } else { Err(Refusal::NoToken) }
}
