//! The HTTP API of a node: what is about the node itself is answered here, everything else by the cluster's servers.
//!
//! In: requests, on the address that the node advertises, with tokens of the cluster (`X-Nomad-Token`, or a bearer). Out: Nomad's JSON.
//! Each request becomes the call that a server would be asked too ([`routes`]), to this node's own [`NodeService`] or to a server; only what
//! goes on for long (logs, files, commands, the agent's log) goes on to the local API, once the token is known to be allowed to. So who may
//! do what is decided in one place.
//!
//! ```text
//!   request ──► gate ─┬─ streams ──► ACLs ──► local API
//!                     └─ table ──► call ─┬──► NodeService      this node, its allocations
//!                                        └──► Servers          all else
//! ```
//!
//! Jobs are not registered, planned or validated here: what the API takes for a job is not what servers take.

mod json;
mod request;
mod routes;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use herdlet_api_types::AllocId;
use herdlet_rpc::{
    codec::{self, Value},
    error::{CallError, ErrorKind, Refusal, ServerError},
};
use serde_json::{Value as Json, json};

use self::{
    request::Asked,
    routes::{Missing, Part, Route, Verb},
};
use super::{
    acl::{Capability, Denied},
    asking::{Answer, Servers},
    serve::NodeService,
    snapshot::Snapshots,
};
use crate::http::Shared;

/// How the node stands with its servers, for people.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// When a heartbeat was answered last, as a duration until now; none before the first.
    pub last_heartbeat: Option<Duration>,
    /// When the next one was due after that.
    pub ttl: Duration,
}

/// What answers the node's HTTP API.
pub struct NodeApi {
    /// The local API.
    pub shared: Arc<Shared>,
    /// What servers can call.
    pub service: Arc<NodeService>,
    /// The cluster.
    pub servers: Arc<dyn Servers>,
    /// Disks, for other nodes.
    pub snapshots: Snapshots,
    /// How the node stands with it, asked anew for each answer.
    pub standing: Box<dyn Fn() -> Standing + Send + Sync>,
}

/// Why a request is not answered: a status code, and what is said.
struct Refused(u16, String);

/// Of bodies.
const BODY_BYTES_MAX: usize = 8 << 20;

/// How long a body may take.
const BODY_WAIT_MAX: Duration = Duration::from_secs(30);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let code = StatusCode::from_u16(self.0).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (code, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], self.1).into_response()
    }
}

impl From<Denied> for Refused {
    fn from(denied: Denied) -> Self {
        Self(denied.code(), denied.to_string())
    }
}

impl From<ServerError> for Refused {
    fn from(error: ServerError) -> Self {
        if let Some(code) = error.code() {
            return Self(code, error.message().to_owned());
        }
        let text = error.text();
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

impl From<CallError> for Refused {
    fn from(error: CallError) -> Self {
        if let CallError::Server(error) = error {
            error.into()
        } else {
            Self(500, format!("failed to {error}"))
        }
    }
}

/// Every endpoint.
pub fn router(api: Arc<NodeApi>) -> Router {
    crate::http::router(Arc::clone(&api.shared)).layer(middleware::from_fn_with_state(api, gate))
}

async fn gate(State(api): State<Arc<NodeApi>>, request: Request, next: Next) -> Response {
    match api.answer(request).await {
        Ok(Passed::Answer(response)) => response,
        Ok(Passed::On(request)) => next.run(*request).await,
        Err(refused) => refused.into_response(),
    }
}

/// What becomes of a request here.
enum Passed {
    /// It is answered.
    Answer(Response),
    /// The local API answers it.
    On(Box<Request>),
}

impl NodeApi {
    async fn answer(&self, request: Request) -> Result<Passed, Refused> {
        let missing = || Refused(404, "resource not found".to_owned());
        let path = request.uri().path();
        if matches!(path, "/healthz" | "/readyz") {
            return Ok(Passed::On(Box::new(request)));
        }
        let path = path.strip_prefix("/v1/").ok_or_else(missing)?.to_owned();
        let asked = Asked::of(request.uri().query().unwrap_or_default(), request.headers())?;
        let is_get = request.method() == Method::GET;
        let parts: Vec<&str> = path.split('/').collect();
        match (is_get, parts.as_slice()) {
            (true, ["client", "fs", "logs", id]) => {
                self.here(id, &asked, &[Capability::ReadLogs, Capability::ReadFs]).await?;
            }
            (true, ["client", "fs", "cat" | "readat" | "stream", id]) => {
                self.here(id, &asked, &[Capability::ReadFs]).await?;
            }
            (true, ["client", "allocation", id, "exec"]) => {
                self.here(id, &asked, &[Capability::AllocExec]).await?;
                let task = asked.parameter("task").unwrap_or_default();
                self.service.allows_exec(id, task, &asked.token).await?;
            }
            (true, ["client", "allocation", id, "snapshot"]) => {
                return self.snapshot(id, &asked).await.map(Passed::Answer);
            }
            (true, ["agent", "monitor"]) => self.service.allows_agent(&asked.token).await?,
            (true, ["metrics"]) => {}
            (true, ["agent", "self"]) => {
                self.service.allows_agent(&asked.token).await?;
                return Ok(Passed::Answer(axum::Json(self.this()).into_response()));
            }
            (true, ["agent", "health"]) => return self.health(&asked).map(Passed::Answer),
            (true, ["agent", "servers"]) => {
                self.service.allows_agent(&asked.token).await?;
                let mut addresses = self.servers.addresses();
                addresses.sort();
                return Ok(Passed::Answer(axum::Json(addresses).into_response()));
            }
            (_, ["jobs" | "validate", ..] | ["job", _] | ["job", _, "plan"])
                if !is_get && request.method() != Method::DELETE =>
            {
                let why = "a node takes no jobs: ask a server (nomad -address=…)";
                return Err(Refused(501, why.to_owned()));
            }
            _ => return self.forward(&path, request, asked).await.map(Passed::Answer),
        }
        Ok(Passed::On(Box::new(request)))
    }

    /// What goes on for long is only told of allocations that are here.
    async fn here(&self, id: &str, asked: &Asked, one_of: &[Capability]) -> Result<(), Refused> {
        if !self.service.has(id) {
            return Err(Refused(404, format!("Unknown allocation {id:?}")));
        }
        Ok(self.service.allows(id, &asked.token, one_of).await?)
    }

    /// For the node on which another allocation takes the place of this one, and for whoever may read all of its files.
    async fn snapshot(&self, id: &str, asked: &Asked) -> Result<Response, Refused> {
        if !self.snapshots.is_token(id, &asked.token) {
            self.here(id, asked, &[Capability::ReadFs]).await?;
        }
        let alloc = id.parse().ok().and_then(|id| self.shared.model.alloc(&AllocId(id)));
        let alloc = alloc.ok_or_else(|| Refused(404, format!("Unknown allocation {id:?}")))?;
        Ok(self.snapshots.answer(&alloc.spec).await)
    }

    async fn forward(&self, path: &str, request: Request, asked: Asked) -> Result<Response, Refused> {
        let verb = match *request.method() {
            Method::GET => Verb::Get,
            Method::PUT | Method::POST => Verb::Put,
            Method::DELETE => Verb::Delete,
            _ => return Err(Refused(405, "Invalid method".to_owned())),
        };
        let (route, named) = routes::find(verb, path).map_err(|missing| match missing {
            Missing::Verb => Refused(405, "Invalid method".to_owned()),
            Missing::Path => Refused(404, "resource not found".to_owned()),
        })?;
        let body = if route.body.is_empty() { Json::Null } else { read(request.into_body()).await? };
        let question = asked.question(route, &named, &body).map_err(|why| Refused(400, why))?;
        let is_here = match named.iter().find(|(name, _)| *name == "AllocID") {
            Some((_, id)) => self.service.has(id),
            None => asked.node().is_none_or(|node| node == self.shared.facts.node.id),
        };
        let answer = match route.own.filter(|_| is_here) {
            Some(own) => {
                let region = &self.shared.facts.node.region;
                let told = self.service.ask(own, &question.body(region, Duration::ZERO)).await;
                let told = told.map_err(|refusal: Refusal| ServerError::new(refusal.text(own)))?;
                let told = codec::decode(&told);
                Answer(told.map_err(|error| Refused(500, format!("failed to {error}")))?)
            }
            None => self.servers.ask(question).await?,
        };
        told(route, answer.0, &asked)
    }

    /// `GET /v1/agent/self`, as far as Nomad's clients look at it.
    fn this(&self) -> Json {
        let (facts, node) = (&self.shared.facts, &self.shared.facts.node);
        let (standing, version) = ((self.standing)(), crate::http::VERSION);
        let last = standing.last_heartbeat.unwrap_or_default();
        json!({
            "config": {
                "Datacenter": node.datacenter, "Region": node.region, "NodeName": node.name,
                "Version": { "Version": version, "VersionPrerelease": "", "VersionMetadata": "herdlet" },
                "Client": { "Enabled": true }, "Server": { "Enabled": false },
            },
            "member": { "Name": "", "Addr": null, "Port": 0, "Tags": null, "Status": "" },
            "stats": {
                "client": {
                    "node_id": node.id, "known_servers": self.servers.addresses().join(","),
                    "num_allocations": self.shared.model.allocs().len().to_string(),
                    "last_heartbeat": format!("{last:?}"), "heartbeat_ttl": format!("{:?}", standing.ttl),
                },
                "herdlet": { "version": version, "instance": facts.instance, "isolation": facts.isolation },
            },
        })
    }

    fn health(&self, asked: &Asked) -> Result<Response, Refused> {
        if asked.parameter("type") == Some("server") {
            return Err(Refused(500, "server not enabled".to_owned()));
        }
        let is_ok = !self.servers.addresses().is_empty();
        let code = if is_ok { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
        let message = if is_ok { "ok" } else { "no known servers" };
        Ok((code, axum::Json(json!({ "client": { "ok": is_ok, "message": message } }))).into_response())
    }
}

/// A body, which may be empty.
async fn read(body: Body) -> Result<Json, Refused> {
    let read = tokio::time::timeout(BODY_WAIT_MAX, axum::body::to_bytes(body, BODY_BYTES_MAX)).await;
    let bytes = read
        .map_err(|_| Refused(408, format!("the body did not come within {} s", BODY_WAIT_MAX.as_secs())))?
        .map_err(|error| Refused(400, format!("the body could not be read: {error}")))?;
    if bytes.is_empty() {
        return Ok(Json::Null);
    }
    serde_json::from_slice(&bytes).map_err(|error| Refused(400, format!("the body is no JSON: {error}")))
}

/// An answer as the API gives it.
fn told(route: &Route, answer: Value, asked: &Asked) -> Result<Response, Refused> {
    let number = |name: &str| answer.get(name).and_then(Value::as_u64);
    let mut headers = Vec::new();
    if let (Verb::Get, Some(Value::Bool(leader)), Some(index)) =
        (route.verb, answer.get("KnownLeader"), number("Index"))
    {
        // Nomad's clients would not wait for what is newer than 0.
        headers.push(("x-nomad-index", index.max(1).to_string()));
        headers.push(("x-nomad-knownleader", leader.to_string()));
        let contact = number("LastContact").unwrap_or_default() / 1_000_000;
        headers.push(("x-nomad-lastcontact", contact.to_string()));
        let next = answer.get("NextToken").and_then(Value::as_text).filter(|next| !next.is_empty());
        headers.extend(next.map(|next| ("x-nomad-nexttoken", next.to_owned())));
    }
    let shown = match route.answer {
        Part::Whole => json::shown(&answer, ""),
        Part::Nothing => return Ok(StatusCode::OK.into_response()),
        Part::Field(field) => answer.get(field).map_or(Json::Null, |value| json::shown(value, field)),
        Part::Found(field, missing) => match answer.get(field) {
            Some(Value::Nil) | None => return Err(Refused(404, missing.to_owned())),
            Some(value) => json::shown(value, field),
        },
    };
    let shown = match (route.answer, shown) {
        (Part::Found("Node", _), Json::Object(mut node)) => {
            json::of_node(&mut node);
            Json::Object(node)
        }
        (_, shown) => shown,
    };
    let text =
        if asked.is_pretty() { serde_json::to_string_pretty(&shown) } else { serde_json::to_string(&shown) };
    let text = text.map_err(|error| Refused(500, format!("failed to write the answer: {error}")))?;
    let mut response = ([(header::CONTENT_TYPE, "application/json")], text).into_response();
    for (name, value) in headers {
        if let Ok(value) = value.parse() {
            response.headers_mut().insert(name, value);
        }
    }
    Ok(response)
}

#[cfg(test)]
mod tests;
