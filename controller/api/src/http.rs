//! The local HTTP API: Nomad's paths and JSON where Nomad has them, `/v1/herdlet/…` for the rest.
//!
//! In: requests, from the unix socket or (with a token) from TCP. Out: what the read model shows, and requests to the planner,
//! answered once they are durable. It decides nothing and knows no driver but by its trait.
//!
//! ```text
//! reads ──► ReadModel          writes ──► Inbox ──► planner ──► commit ──► reply
//! logs  ──► files              exec, stats ──► driver
//! ```

mod admission;
mod agent;
mod allocs;
mod apply;
mod auth;
mod body;
mod child_paths;
mod deployments;
mod dispatch;
mod error;
mod evaluations;
mod event_stream;
mod events;
pub mod exec;
mod filter;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
mod fs;
mod gc;
mod jobs;
mod lingering;
mod list;
mod logs;
mod monitor;
mod namespaces;
mod nodes;
mod not_built;
mod payload;
mod query;
mod register;
mod restoring;
pub mod routes;
mod scale;
mod search;
mod serve;
mod services;
mod stats;
mod stream;
mod target;
mod tls;
mod trigger;
mod ui;
mod unread;
mod versions;
mod volumes;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use axum::{
    Router,
    extract::DefaultBodyLimit,
    middleware,
    routing::{delete, get, post},
};
use herdlet_agent::{
    gc::Collector,
    publish::ReadModel,
    requests::Requests,
    telemetry::{Format, Measured},
};
use herdlet_api_types::UnixNanos;
use herdlet_base::paths::Paths;
use herdlet_driver::{Registry, limits::Ineffective};
use herdlet_manifest::{manifests::Drivers, yaml::Problem};
use herdlet_plan::{env::NodeFacts, job::capacity::Room};
use herdlet_runtime::Gate;
use herdlet_services::catalog::{BuiltIn, Consul};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::reach::bounds::Bounds;

pub use admission::{Access, Admission, Names, TokenVerdict, Tokens};
pub use admission::{AllowedPage, Guess, LateToken, TOO_MANY, WrongToken};
pub use auth::{Token, TokenError};
pub use evaluations::Evaluations;
#[cfg(any(test, fuzzing, feature = "fixture"))]
pub use exec::input_frames as exec_input_frames;
#[cfg(any(test, fuzzing, feature = "fixture"))]
pub use serve::connection;
pub use serve::{Face, Limits, Listener, ServeError, serve};
pub(crate) use services::is_listed;
pub use tls::{Tls, TlsError, Validity};

/// Writes the page of metrics, with what tasks were measured to use.
pub type MetricsPage = Box<dyn Fn(Format, Vec<Measured>) -> String + Send + Sync>;

/// What the API works with.
pub struct Shared {
    /// Where requests go.
    pub requests: Requests,
    /// What is shown.
    pub model: Arc<ReadModel>,
    /// Opens once what was stored is shown.
    pub restored: Gate,
    /// Task drivers: commands executed in tasks, and statistics.
    pub drivers: Registry,
    /// What manifests must obey.
    pub manifests: watch::Receiver<Drivers>,
    /// How much callers may occupy.
    pub bounds: Bounds,
    /// Where log files are.
    pub paths: Paths,
    /// Services registered in the built-in catalogue.
    pub catalog: Arc<BuiltIn>,
    /// The Consul agent that services are registered in where they ask for it.
    pub consul: Arc<Consul>,
    /// What became of changes, for those who look after them.
    pub evaluations: Evaluations,
    /// Collects what has ended.
    pub gc: Arc<Collector>,
    /// What is said of the agent itself.
    pub facts: Facts,
    /// How the agent is, asked anew for each answer.
    pub vitals: Box<dyn Fn() -> Vitals + Send + Sync>,
    /// The public keys that check workload identities, as a JWK set (RFC 7517).
    pub jwks: serde_json::Value,
    /// The page of metrics, with what tasks were measured to use.
    pub metrics: MetricsPage,
    /// Held while a page is made: however many ask, the rest of the agent has a processor left.
    pub measuring: tokio::sync::Mutex<()>,
    /// Whether tasks are measured for it.
    pub publish_allocation_metrics: bool,
    /// Cancelled when the agent shuts down; ends every stream.
    pub closing: CancellationToken,
}

/// What is said of the agent itself.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// This machine.
    pub node: NodeFacts,
    /// Instance id.
    pub instance: String,
    /// How tasks are held, for people.
    pub isolation: String,
    /// Limits of tasks that have no effect.
    pub ineffective: Ineffective,
    /// When the agent started.
    pub started_at: UnixNanos,
    /// The first and the last dynamic port.
    pub dynamic_ports: (u16, u16),
    /// Ports that no allocation gets, as Nomad writes them.
    pub reserved_ports: String,
    /// What the machine has, and what of it is kept from allocations.
    pub room: (Room, Room),
}

/// How the agent is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vitals {
    /// Why it is not ready; none when it is.
    pub not_ready: Option<String>,
    /// Why it is degraded; none when it is not.
    pub degraded: Option<String>,
    /// What somebody should see to before it hurts.
    pub warnings: Vec<String>,
    /// What is wrong with the manifests of followed folders.
    pub manifest_problems: Vec<Problem>,
    /// How servers see this machine, where it is a node of their cluster.
    pub seen: Option<SeenByServers>,
}

/// How servers see a node, in Nomad's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenByServers {
    /// `initializing` until it is registered, `ready`, or `disconnected`.
    pub status: &'static str,
    /// `eligible` for new work, or `ineligible`.
    pub eligibility: &'static str,
}

/// Where the public keys of workload identities are. Nobody needs a token for it, as in Nomad: whoever is shown a task's
/// token must be able to check it.
const JWKS_PATH: &str = "/.well-known/jwks.json";

impl Shared {
    /// The drivers that manifests may name now.
    fn drivers_in_manifests(&self) -> Drivers {
        self.manifests.borrow().clone()
    }
}

/// Every endpoint. Whether a caller may use it was settled before: see [`serve`].
pub fn router(shared: Arc<Shared>) -> Router {
    let routes = Router::new()
        .route("/v1/herdlet/apply", post(apply::apply).put(apply::apply))
        .route("/v1/herdlet/plan", post(apply::plan).put(apply::plan))
        .route("/v1/herdlet/jobs", get(jobs::views))
        .route("/v1/herdlet/job/{job}/versions", get(versions::views))
        .route("/v1/herdlet/job/{job}/start", post(jobs::start).put(jobs::start))
        .route("/v1/herdlet/allocs", get(allocs::views))
        .route("/v1/herdlet/volumes", get(volumes::views))
        .route("/v1/herdlet/volume/{name}", delete(volumes::remove))
        .route("/v1/herdlet/services", get(services::registrations))
        .route("/v1/herdlet/status", get(agent::status))
        .route("/v1/herdlet/overview", get(agent::overview))
        .route("/v1/herdlet/explain/{alloc}", get(allocs::explain))
        .route("/v1/herdlet/transitions", get(agent::transitions))
        .route("/v1/herdlet/drift", get(agent::drift))
        .route("/v1/herdlet/index", get(agent::index))
        .route("/v1/herdlet/events", get(events::follow))
        .route("/v1/herdlet/gc", get(gc::ended).post(gc::collect).put(gc::collect))
        .merge(routes::router())
        .merge(ui::pages())
        .merge(probes())
        .fallback(not_built::answer)
        .method_not_allowed_fallback(error::no_such_method)
        .layer(DefaultBodyLimit::max(body::BODY_BYTES_MAX))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), restoring::wait))
        .with_state(shared);
    // Outside of the routes: what it makes of a path is what they see.
    Router::new().fallback_service(routes).layer(middleware::map_request(child_paths::join))
}

/// `/metrics`, `/healthz`, `/readyz` and nothing else, for a listener that needs no token.
pub fn metrics_router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/metrics", get(agent::metrics))
        .merge(probes())
        .fallback(error::no_such_resource)
        .method_not_allowed_fallback(error::no_such_method)
        .with_state(shared)
}

fn probes() -> Router<Arc<Shared>> {
    Router::new().route("/healthz", get(agent::alive)).route("/readyz", get(agent::ready))
}
