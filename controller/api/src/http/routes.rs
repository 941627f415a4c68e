//! Nomad's paths: who answers each of them, on the local API and on the API of a node.
//!
//! One row is one verb of one path. Its column `local` says which handler answers here, or which part of Nomad is not built; its column
//! `node` says who answers where the agent is a node of a cluster: the node itself, a server, or whichever of them a request means, with
//! what the call needs. `router` makes axum's routes from the first column; the crate `herdlet-node` reads the second one through [`find`].
//! Rows are data: this module asks nobody and knows no server.
//!
//! What a row refuses it refuses with everything below its path, so one row with [`Verb::Any`] stands for a family of paths, such as
//! `acl`. Three things are not rows: paths of herdlet's own (`/v1/herdlet/…`, `/ui`, probes), which are axum's routes; the exemptions
//! of `admission` and `restoring`, which are decided before a path is looked up and by its beginning; and the preflight of a page.
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
use super::Shared;

/// One verb of one path.
#[derive(Debug)]
pub struct Route {
    /// What is done with it.
    pub verb: Verb,
    /// Below `/v1/`, or below `/` where it begins with `.well-known/`. A part `{Name}` is any part, and the field of that name; `{Name*}` is
    /// several parts on a node and one here, where slashes are encoded; `{Name[]}` is a list of one. `?name=value` is a parameter
    /// that the query must have.
    pub path: &'static str,
    /// Who answers on the local API.
    local: Local,
    /// Who answers on the API of a node.
    pub node: OnNode,
}

/// What is done with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// GET, or HEAD.
    Get,
    /// PUT, or POST.
    Put,
    /// DELETE.
    Delete,
    /// Whatever it is.
    Any,
}

/// Makes axum's route for a verb of a path.
type LocalHandler = fn(Verb) -> MethodRouter<Arc<Shared>>;

/// Who answers on the local API.
#[derive(Debug, Clone, Copy)]
enum Local {
    /// This handler.
    Served(LocalHandler),
    /// Nobody, as this part of Nomad is not built: 501.
    NotBuilt(&'static str),
    /// Nobody: 405 where the path has another verb, otherwise 404.
    Nobody,
}

/// Who answers on the API of a node.
#[derive(Debug, Clone, Copy)]
pub enum OnNode {
    /// This node.
    Itself(NodeAnswer),
    /// A streaming call, by this node or by a server: as for [`OnNode::Either`].
    Stream(StreamKind),
    /// A server.
    Servers(Call),
    /// This node, by its own method of that name, where the request is about this node or about an allocation that it has; else a
    /// server.
    Either(&'static str, Call),
    /// Nobody: only servers have this, and no agent passes it on to them.
    ServersOnly,
    /// Nobody.
    Nobody,
}

/// What a node answers by itself, whomever a request names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeAnswer {
    /// The page of metrics, as Nomad's JSON or in Prometheus' format.
    Metrics,
    /// A job file is read, as by the local API.
    ParsedJob,
    /// The disk of an allocation.
    Snapshot,
    /// What the agent is.
    Agent,
    /// How the agent is.
    Health,
    /// The servers that it knows.
    KnownServers,
    /// Other servers are given to it.
    SetServers,
}

/// Answers that go on for long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    /// A command in a task, over a websocket.
    Exec,
    /// An action of a job, over a websocket.
    Action,
    /// The output of a task.
    Logs,
    /// A file.
    Cat,
    /// A part of a file.
    ReadAt,
    /// A file that grows, in frames.
    File,
    /// The agent's log from now on.
    Monitor,
    /// The agent's log of before.
    MonitorExport,
    /// What changes in the cluster.
    Events,
}

/// Why a node has no route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// There is one for another verb.
    Verb,
    /// There is none at all.
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
    /// Whether the method is one of the verb's. What a node answers itself it answers to no HEAD.
    fn takes(&self, method: &Method) -> bool {
        let is_head_of_node = *method == Method::HEAD && !self.is_call();
        self.verb == Verb::Any || (Verb::of(method) == Some(self.verb) && !is_head_of_node)
    }

    /// Whether a node passes it on to servers, or says that it doesn't. Only of such paths it tells that they have other verbs.
    fn is_call(&self) -> bool {
        match self.node {
            OnNode::Servers(_) | OnNode::Either(..) | OnNode::ServersOnly => true,
            OnNode::Itself(_) | OnNode::Stream(_) | OnNode::Nobody => false,
        }
    }

    /// The parameters of a path that this row is for.
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

/// What a request to a node is sent to.
#[derive(Clone, Copy)]
pub struct Target<'t> {
    /// Its path, as that of a [`Route`].
    pub path: &'t str,
    /// The value of a parameter of its query.
    pub query: &'t dyn Fn(&str) -> Option<&'t str>,
}

/// The row by which a node answers a request, and the parameters of its path. The first pattern that fits a path counts.
///
/// # Errors
/// Where no row is for that path, or none with that verb.
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

/// All rows.
pub fn all() -> impl Iterator<Item = &'static Route> {
    table::SECTIONS.iter().copied().flatten()
}

/// The part of Nomad that a path of the local API belongs to and that is not built. The longest row that covers it counts.
pub(super) fn missing_feature(path: &str) -> Option<&'static str> {
    let path = path.strip_prefix("/v1/")?;
    let covering = all().filter_map(|route| match route.local {
        Local::NotBuilt(feature) if pattern::covers(route.path, path) => Some((route.path.len(), feature)),
        Local::NotBuilt(_) | Local::Served(_) | Local::Nobody => None,
    });
    covering.max_by_key(|(length, _)| *length).map(|(_, feature)| feature)
}

/// The routes of all rows that are served here.
pub(super) fn router() -> Router<Arc<Shared>> {
    all().fold(Router::new(), |router, route| match route.local {
        Local::Served(handler) => router.route(&pattern::axum_path(route.path), handler(route.verb)),
        Local::NotBuilt(_) | Local::Nobody => router,
    })
}
