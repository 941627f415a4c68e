//! The HTTP API of a node: answers requests about the node itself, and forwards all others to the cluster's servers.
//!
//! In: requests to the address that the node advertises, with tokens of the cluster (`X-Nomad-Token`, or a bearer). Out: Nomad's JSON. Each
//! request becomes an RPC, either to this node's own [`NodeService`] or to a server; the one called checks the permissions. Long-running
//! requests (logs, files, commands, the agent's log, events) become streaming calls.
//!
//! ```text
//!   request ──► gate ──► row of the table ─┬─► handled by this node without a call
//!                                          ├─► streaming call ─┬──► NodeService      this node, its allocations
//!                                          └─► unary call ─────┴──► Servers          everything else
//! ```

mod exec;
mod fields;
mod itself;
mod job;
mod json;
mod keys;
mod piece;
mod question;
mod request;
mod response;
mod stream;
mod stream_call;
mod task_api;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use futures_util::{FutureExt as _, future::BoxFuture};
use herdlet_api::http::{
    AllowedPage, Shared, TokenVerdict, Tokens, WrongToken,
    routes::{self, Call, CallBody, Missing, OnNode, PathParam, PathParams, Target, Verb},
};
use herdlet_nomad::wire::Secret;
use herdlet_rpc::{
    codec::{self, Value},
    error::{CallError, ErrorKind, Refusal, ServerError},
};
use serde_json::Value as Json;

use self::{
    question::CallInputs,
    request::RequestParams,
    response::{refusal, render_response},
    stream_call::Streamed,
};
pub use task_api::task_api;

use super::{
    acl::{Acl, Denied},
    cluster_client::{Answer, Servers},
    serve::NodeService,
    snapshot::Snapshots,
};

/// The node's contact with its servers, for display.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerContact {
    /// Time since the last answered heartbeat; `None` before the first.
    pub last_heartbeat: Option<Duration>,
    /// How long after it the next one was due.
    pub ttl: Duration,
}

/// The node's HTTP API.
pub struct NodeApi {
    /// The local API.
    pub shared: Arc<Shared>,
    /// Handles the calls of servers.
    pub service: Arc<NodeService>,
    /// The cluster's servers.
    pub servers: Arc<dyn Servers>,
    /// Serves disks to other nodes.
    pub snapshots: Snapshots,
    /// The current contact with the servers.
    pub standing: Box<dyn Fn() -> ServerContact + Send + Sync>,
}

/// Why a request failed: a status code and a text.
struct HttpError(u16, String);

/// Maximum size of a request body.
const BODY_BYTES_MAX: usize = 8 << 20;

/// Ends of error texts from servers that imply a status code: these errors carry no code.
const CODES: [(&str, u16); 2] = [
    ("Job registration, dispatch, and scale are disabled by the scheduler configuration", 403),
    ("Filter expression cannot be used with other filter parameters", 400),
];

/// Requests whose responses pages of other origins may read, if they present a token that the cluster knows, or if the config allows their
/// origin: those of a user interface served by the servers. Without either, the interface asks the servers, which call this node.
const OF_OTHER_ORIGINS: [&str; 7] = [
    "/v1/client/fs/",
    "/v1/client/allocation/",
    "/v1/client/stats",
    "/v1/client/metadata",
    "/v1/client/identity",
    "/v1/vars",
    "/v1/var/",
];

/// How long a request waits for the registration of this node, before which servers refuse all calls.
const REGISTRATION_WAIT_MAX: Duration = Duration::from_secs(10);

/// Time limit for receiving a request body.
const BODY_WAIT_MAX: Duration = Duration::from_secs(30);

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        let code = StatusCode::from_u16(self.0).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (code, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], self.1).into_response()
    }
}

impl From<Denied> for HttpError {
    fn from(denied: Denied) -> Self {
        Self(denied.code(), denied.to_string())
    }
}

impl From<ServerError> for HttpError {
    fn from(error: ServerError) -> Self {
        if let Some(code) = error.code() {
            return Self(code, error.message().to_owned());
        }
        let text = error.text();
        if let Some((end, code)) = CODES.into_iter().find(|(end, _)| text.ends_with(end)) {
            return Self(code, end.to_owned());
        }
        // An error about a file or a node.
        if text.contains("no such file or directory") || text.contains("Unknown node") {
            return Self(404, text.to_owned());
        }
        match error.kind() {
            ErrorKind::PermissionDenied => Self(403, "Permission denied".to_owned()),
            ErrorKind::Token => Self(403, text.trim_start_matches("rpc error: ").to_owned()),
            ErrorKind::UnknownAllocation | ErrorKind::NoPathToNode => Self(404, text.to_owned()),
            ErrorKind::NoLeader
            | ErrorKind::NotReady
            | ErrorKind::Region
            | ErrorKind::NodeNotFound
            | ErrorKind::NodeSecret
            | ErrorKind::UnknownMethod
            | ErrorKind::Transport
            | ErrorKind::Other => Self(500, text.to_owned()),
        }
    }
}

impl From<CallError> for HttpError {
    fn from(error: CallError) -> Self {
        if let CallError::Server(error) = error {
            error.into()
        } else {
            Self(500, format!("failed to {error}"))
        }
    }
}

/// The router with all endpoints.
pub fn router(api: Arc<NodeApi>) -> Router {
    herdlet_api::http::router(Arc::clone(&api.shared)).layer(middleware::from_fn_with_state(api, gate))
}

async fn gate(State(api): State<Arc<NodeApi>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_shared = OF_OTHER_ORIGINS.iter().any(|begin| path.starts_with(begin));
    let is_foreign = is_shared && request.headers().contains_key(header::ORIGIN);
    if is_foreign && request.method() == Method::OPTIONS {
        return of_other_origin(preflight(request.headers()));
    }
    let is_allowed = request.extensions().get::<AllowedPage>().is_some();
    let token = request::token(request.headers());
    let mut verdict = TokenVerdict::None;
    if is_foreign && !is_allowed {
        verdict = api.judge(&token).await;
    }
    let mut response = match api.answer(request).await {
        Ok(Dispatch::Answer(response)) => response,
        Ok(Dispatch::On(request)) => next.run(*request).await,
        Err(refused) => {
            // A server's refusal does not reveal whether the token is unknown or lacks the permission.
            if refused.0 == Denied::Refused.code() && verdict == TokenVerdict::None {
                verdict = api.judge(&token).await;
            }
            refused.into_response()
        }
    };
    if verdict == TokenVerdict::Wrong {
        response.extensions_mut().insert(WrongToken);
    }
    let may_read = is_foreign && (is_allowed || verdict == TokenVerdict::Known);
    if may_read { of_other_origin(response) } else { response }
}

/// The response to a preflight request from a page of another origin.
fn preflight(asked: &HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static("HEAD, GET, PUT, POST, DELETE"),
    );
    if let Some(wanted) = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    response
}

fn of_other_origin(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    let exposed = "X-Nomad-Index, X-Nomad-KnownLeader, X-Nomad-LastContact, X-Nomad-NextToken";
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(exposed));
    headers.insert(header::VARY, HeaderValue::from_static("Origin"));
    response
}

impl Tokens for NodeApi {
    fn verdict<'a>(&'a self, headers: &'a HeaderMap) -> BoxFuture<'a, TokenVerdict> {
        async move { self.judge(&request::token(headers)).await }.boxed()
    }
}

/// The result of a request at this layer.
enum Dispatch {
    /// A response.
    Answer(Response),
    /// The request, to be passed on to the local API.
    On(Box<Request>),
}

/// A request that matches a row of the table.
struct Incoming {
    path: PathParams,
    params: RequestParams,
    request: Request,
}

/// A call with the relevant properties of its row.
#[derive(Clone, Copy)]
struct RoutedCall<'r> {
    verb: Verb,
    /// The equivalent method of this node.
    own: Option<&'static str>,
    call: &'r Call,
}

/// A single-valued parameter of a path.
fn path_param<'p>(path: &'p PathParams, wanted: &str) -> Option<&'p str> {
    path.iter().find_map(|(name, value)| match value {
        PathParam::One(value) if *name == wanted => Some(value.as_str()),
        PathParam::One(_) | PathParam::Listed(_) => None,
    })
}

impl NodeApi {
    /// Whether the cluster knows a token. The resolver caches the answer, so a repeated token costs no call.
    async fn judge(&self, token: &Secret) -> TokenVerdict {
        // Anybody can use the anonymous token, including pages of other origins.
        if token.is_empty() {
            return TokenVerdict::None;
        }
        match self.service.acl(token).await {
            Ok(acl) if *acl == Acl::Disabled => TokenVerdict::None,
            Ok(_) => TokenVerdict::Known,
            // Servers deny a forged task identity without reporting it as unknown.
            Err(Denied::Unknown | Denied::Refused) => TokenVerdict::Wrong,
            Err(Denied::Expired | Denied::Unsaid(_)) => TokenVerdict::None,
        }
    }

    async fn answer(self: &Arc<Self>, mut request: Request) -> Result<Dispatch, HttpError> {
        let missing = || HttpError(404, "resource not found".to_owned());
        let path = request.uri().path();
        match path {
            "/healthz" | "/readyz" => return Ok(Dispatch::On(Box::new(request))),
            "/" => {
                let answer = (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, "/ui/")]);
                return Ok(Dispatch::Answer(answer.into_response()));
            }
            path if path.starts_with("/ui/") => {
                let page = "<html><p>The user interface is on the cluster's servers</p></html>";
                return Ok(Dispatch::Answer(
                    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], page).into_response(),
                ));
            }
            _ => {}
        }
        let well_known = || path.strip_prefix('/').filter(|path| path.starts_with(".well-known/"));
        let path = path.strip_prefix("/v1/").or_else(well_known).ok_or_else(missing)?.to_owned();
        let params = RequestParams::read(request.uri().query().unwrap_or_default(), request.headers())?;
        let target = Target { path: &path, query: &|name| params.non_empty(name) };
        let found = routes::find(request.method(), target).map_err(|missing| match missing {
            Missing::Verb => HttpError(405, "Invalid method".to_owned()),
            Missing::Path => HttpError(404, "resource not found".to_owned()),
        });
        let (route, path) = found?;
        let routed = |own, call| RoutedCall { verb: route.verb, own, call };
        match &route.node {
            OnNode::Itself(what) => self.answer_itself(*what, Incoming { path, params, request }).await,
            OnNode::Stream(kind) => {
                let what = Streamed::of(*kind, &path);
                self.stream(what, &params, &mut request).await.map(Dispatch::Answer)
            }
            OnNode::Servers(call) => self
                .forward(routed(None, call), Incoming { path, params, request })
                .await
                .map(Dispatch::Answer),
            OnNode::Either(own, call) => {
                let routed = routed(Some(*own), call);
                self.forward(routed, Incoming { path, params, request }).await.map(Dispatch::Answer)
            }
            OnNode::ServersOnly => Err(HttpError(501, "Invalid method".to_owned())),
            OnNode::Nobody => Err(missing()),
        }
    }

    /// Whether a call concerns this node, or an allocation on it.
    fn is_here(&self, alloc: Option<&str>, params: &RequestParams) -> bool {
        match alloc {
            Some(id) => self.service.has(id),
            None => {
                params.non_empty("server_id").is_none()
                    && params.node().is_none_or(|node| node == self.shared.facts.node.id)
            }
        }
    }

    /// Makes the call of a request at this node or at a server.
    async fn forward(&self, routed: RoutedCall<'_>, incoming: Incoming) -> Result<Response, HttpError> {
        let Incoming { path, params, request } = incoming;
        let call = routed.call;
        let raw =
            if call.body == CallBody::Ignored { Bytes::new() } else { read(request.into_body()).await? };
        let is_json = !matches!(call.body, CallBody::Raw(_)) && !raw.is_empty();
        let body = if is_json {
            serde_json::from_slice(&raw)
                .map_err(|error| HttpError(400, format!("the body is not valid JSON: {error}")))?
        } else {
            Json::Null
        };
        let alloc = path_param(&path, "AllocID").map(str::to_owned);
        let region = &self.shared.facts.node.region;
        let inputs = CallInputs { path, body: &body, raw: raw.to_vec(), region };
        let question = params.request_of(routed, inputs).map_err(|why| HttpError(400, why))?;
        // A body may name the node, too.
        let node = question.fields.get("NodeID").and_then(Value::as_text).filter(|node| !node.is_empty());
        let is_here = self.is_here(alloc.as_deref(), &params)
            && (alloc.is_some() || node.is_none_or(|node| node == self.shared.facts.node.id));
        let answer = match routed.own.filter(|_| is_here) {
            Some(own) => {
                let answer = self.service.ask(own, &question.body(region, Duration::ZERO)).await;
                let answer = answer.map_err(|refusal: Refusal| ServerError::new(refusal.text(own)))?;
                codec::decode(&answer).map_err(|error| HttpError(500, format!("failed to {error}")))?
            }
            None => {
                self.await_servers().await?;
                match self.servers.ask(question).await {
                    Ok(Answer(answer)) => answer,
                    Err(error) => return Err(refusal(call.response, error)),
                }
            }
        };
        render_response(routed, answer, &params)
    }

    /// Waits until servers accept calls of this node. The calls themselves have time limits.
    async fn await_servers(&self) -> Result<(), HttpError> {
        let registered = tokio::time::timeout(REGISTRATION_WAIT_MAX, self.servers.registered()).await;
        registered.map_err(|_| {
            HttpError(500, format!("no server answered within {} s", REGISTRATION_WAIT_MAX.as_secs()))
        })
    }
}

/// Reads a request body, which may be empty.
async fn read(body: Body) -> Result<Bytes, HttpError> {
    let read = tokio::time::timeout(BODY_WAIT_MAX, axum::body::to_bytes(body, BODY_BYTES_MAX)).await;
    read.map_err(|_| HttpError(408, format!("the body did not arrive within {} s", BODY_WAIT_MAX.as_secs())))?
        .map_err(|error| HttpError(400, format!("the body could not be read: {error}")))
}

#[cfg(test)]
mod tests;
