//! Nomad's paths: what answers each of them, on the local API and on the API of a node.
//!
//! Each row is one verb of one path. Its column `local` names the handler on the local API, or the part of Nomad that is not
//! built. Its column `node` names what answers on a node of a cluster: the node itself, a server, or either of them depending on
//! the request, with the inputs of the call. `router` builds axum's routes from the first column; the crate `herdlet-node` reads
//! the second one through [`find`]. Rows are data: this module calls nothing and knows no server.
//!
//! A row with [`Verb::Any`] refuses its path and every path below it, so one row covers a family of paths such as `acl`. Three
//! things are not rows: herdlet's own paths (`/v1/herdlet/…`, `/ui`, probes), which are axum's routes; the exemptions of
//! `admission` and `restoring`, which depend on the beginning of a path before it is looked up; and CORS preflights.
//!
//! Facts: `hashicorp/nomad:command/agent/http.go` (`registerHandlers`) and its endpoints.

mod call;
mod pattern;
mod table;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::{
    Router,
    handler::Handler,
    http::Method,
    routing::{self, MethodRouter},
};

pub use self::{
    call::{AnswerPart, Call, CallBody, FieldSource, JobUse, RequestRule, ResponseRule},
    pattern::{PathParam, PathParams, percent_decoded},
};
use super::{Shared, error::ApiError};

#[derive(Debug)]
pub struct Route {
    pub verb: Verb,
    /// Below `/v1/`, or below `/` if it begins with `.well-known/`. A segment `{Name}` matches any segment and sets the field of
    /// that name. `{Name*}` matches several segments on a node, and one on the local API, where slashes are encoded. `{Name[]}`
    /// sets a list with one element. `?name=value` is a required query parameter.
    pub path: &'static str,
    /// What answers on the local API.
    local: Local,
    /// What answers on the API of a node.
    pub node: OnNode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// GET or HEAD.
    Get,
    /// PUT or POST.
    Put,
    Delete,
    /// Any method.
    Any,
}

/// Builds axum's route for a verb of a path.
type LocalHandler = fn(Verb) -> MethodRouter<Arc<Shared>>;

/// What answers on the local API.
#[derive(Debug, Clone, Copy)]
enum Local {
    Served(LocalHandler),
    /// 501: this part of Nomad is not built.
    NotBuilt(&'static str),
}

/// What answers on the API of a node.
#[derive(Debug, Clone, Copy)]
pub enum OnNode {
    Itself(NodeAnswer),
    /// A streaming call to this node or a server, chosen as for [`OnNode::Either`].
    Stream(StreamKind),
    Servers(Call),
    /// This node, by its own method of that name, if the request is about this node or one of its allocations; otherwise a
    /// server.
    Either(&'static str, Call),
    /// 404: only servers have this path, and no agent forwards it to them.
    ServersOnly,
    /// 404.
    Nobody,
}

/// Requests that a node answers itself, even if they name another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeAnswer {
    /// The metrics page, as Nomad's JSON or in Prometheus' format.
    Metrics,
    /// A parsed job file, as on the local API.
    ParsedJob,
    /// The snapshot of an allocation's disk.
    Snapshot,
    /// The agent's identity.
    Agent,
    /// The agent's health.
    Health,
    /// The servers that the agent knows.
    KnownServers,
    /// Replaces the servers that the agent knows.
    SetServers,
}

/// Streaming answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    /// A command in a task, over a websocket.
    Exec,
    /// An action of a job, over a websocket.
    Action,
    /// The output of a task.
    Logs,
    Cat,
    /// A part of a file.
    ReadAt,
    /// A file that grows, in frames.
    File,
    /// The agent's log from now on.
    Monitor,
    /// Earlier lines of the agent's log.
    MonitorExport,
    /// Changes in the cluster.
    Events,
}

/// Why a node has no route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// The path exists for another verb.
    Verb,
    /// The path does not exist.
    Path,
}

impl Verb {
    fn of(method: &Method) -> Option<Self> {
        match *method {
            Method::GET | Method::HEAD => Some(Self::Get),
            Method::PUT | Method::POST => Some(Self::Put),
            Method::DELETE => Some(Self::Delete),
            _ => None,
        }
    }

    fn serve<H, T>(self, handler: H) -> MethodRouter<Arc<Shared>>
    where
        H: Handler<T, Arc<Shared>>,
        T: 'static,
    {
        match self {
            Self::Get => routing::get(handler),
            Self::Put => routing::post(handler.clone()).put(handler),
            Self::Delete => routing::delete(handler),
            Self::Any => routing::any(handler),
        }
    }
}

impl Route {
    /// Whether the verb includes the method. A node answers no HEAD itself.
    fn takes(&self, method: &Method) -> bool {
        let is_head_of_node = *method == Method::HEAD && !self.is_call();
        self.verb == Verb::Any || (Verb::of(method) == Some(self.verb) && !is_head_of_node)
    }

    /// Whether a node forwards the path to servers, or refuses to. Only for these paths a wrong verb is 405.
    fn is_call(&self) -> bool {
        match self.node {
            OnNode::Servers(_) | OnNode::Either(..) | OnNode::ServersOnly => true,
            OnNode::Itself(_) | OnNode::Stream(_) | OnNode::Nobody => false,
        }
    }

    /// The path parameters if this row matches the target.
    fn params(&self, target: Target<'_>) -> Option<PathParams> {
        let (pattern, query) = self.path.split_once('?').unwrap_or((self.path, ""));
        let has_query = query.split_once('=').is_none_or(|(name, value)| (target.query)(name) == Some(value));
        match self.node {
            OnNode::Nobody => None,
            OnNode::ServersOnly => pattern::covers(pattern, target.path).then(PathParams::new),
            OnNode::Itself(_) | OnNode::Stream(_) | OnNode::Servers(_) | OnNode::Either(..) => {
                has_query.then(|| pattern::params(pattern, target.path)).flatten()
            }
        }
    }
}

/// The target of a request to a node.
#[derive(Clone, Copy)]
pub struct Target<'t> {
    /// The path, relative as in a [`Route`].
    pub path: &'t str,
    /// Returns a query parameter by name.
    pub query: &'t dyn Fn(&str) -> Option<&'t str>,
}

/// Finds the row for a request to a node, and its path parameters. The first matching pattern wins.
///
/// # Errors
/// If no row has that path, or none has it with that verb.
pub fn find(method: &Method, target: Target<'_>) -> Result<(&'static Route, PathParams), Missing> {
    let rows = || all().filter(|route| !matches!(route.node, OnNode::Nobody));
    let is_candidate =
        |route: &&Route| (route.is_call() || route.takes(method)) && route.params(target).is_some();
    let missing = if Verb::of(method).is_some() { Missing::Path } else { Missing::Verb };
    let first = rows().find(is_candidate).ok_or(missing)?;
    let is_same = |route: &&Route| route.takes(method) && pattern::has_shape(first.path, route.path);
    let route = rows().find(is_same).ok_or(Missing::Verb)?;
    Ok((route, route.params(target).ok_or(Missing::Path)?))
}

pub fn all() -> impl Iterator<Item = &'static Route> {
    table::SECTIONS.iter().copied().flatten()
}

/// What may follow a job's id in a path: the segments of each row, and none.
pub(super) fn tails_of_jobs() -> impl Iterator<Item = &'static str> {
    all().filter_map(|route| route.path.strip_prefix("job/{JobID*}"))
}

/// The part of Nomad that a path of the local API belongs to, if it is not built. The longest row that covers the path wins.
pub(super) fn missing_feature(path: &str) -> Option<&'static str> {
    let path = path.strip_prefix("/v1/")?;
    let covering = all().filter_map(|route| match route.local {
        Local::NotBuilt(feature) if pattern::covers(route.path, path) => Some((route.path.len(), feature)),
        Local::NotBuilt(_) | Local::Served(_) => None,
    });
    covering.max_by_key(|(length, _)| *length).map(|(_, feature)| feature)
}

/// The routes of the rows. Rows for whole subtrees have none: [`missing_feature`] finds them.
pub(super) fn router() -> Router<Arc<Shared>> {
    all().fold(Router::new(), |router, route| match route.local {
        Local::Served(handler) => router.route(&pattern::axum_path(route.path), handler(route.verb)),
        Local::NotBuilt(_) if route.verb == Verb::Any => router,
        Local::NotBuilt(feature) => {
            let answer = move || async move { ApiError::not_built(feature) };
            router.route(&pattern::axum_path(route.path), route.verb.serve(answer))
        }
    })
}
