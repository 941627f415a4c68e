//! The local HTTP API: Nomad's paths and JSON where Nomad has them, `/v1/herdlet/…` for the rest.
//!
//! In: requests from the unix socket or (with a token) from TCP. Out: the contents of the read model, and requests to
//! the planner, answered once they are durable. It decides nothing and knows drivers only by their trait.
//!
//! ```text
//! reads ──► ReadModel          writes ──► Inbox ──► planner ──► commit ──► reply
//! logs  ──► files              exec, stats ──► driver
//! ```

mod actions;
mod admission;
mod agent;
mod allocs;
mod apply;
mod auth;
mod body;
mod depends;
mod deployments;
mod dispatch;
mod drain;
mod environment;
mod error;
mod evaluations;
mod event_stream;
mod events;
pub mod exec;
mod filter;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
mod fs;
mod fuzzy;
mod gc;
mod hold;
mod identity_keys;
mod images;
mod job_paths;
mod jobs;
mod keyring;
mod lingering;
mod list;
mod logs;
mod metrics;
mod monitor;
mod namespaces;
mod networks;
mod no_route;
mod nodes;
mod payload;
mod plugins;
mod policies;
mod query;
mod region;
mod register;
mod restoring;
pub mod routes;
mod scale;
mod search;
mod serve;
mod services;
mod stats;
mod statuses;
mod stream;
mod submission;
mod tags;
mod target;
mod task_api;
mod tls;
mod trigger;
mod ui;
mod unread;
mod variable_users;
mod variables;
mod vault;
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
use futures_util::future::BoxFuture;
use herdlet_agent::{
    gc::Collector,
    identity_keys::IdentityKeys,
    publish::ReadModel,
    requests::Requests,
    telemetry::{Format, Measured},
};
use herdlet_api_types::{
    UnixNanos,
    csi::CsiPluginView,
    service::{PublishedView, Registration},
    vault::RevokedToken,
};
use herdlet_base::paths::Paths;
use herdlet_driver::{Registry, limits::Ineffective};
use herdlet_manifest::{manifests::Drivers, yaml::Problem};
use herdlet_plan::{env::NodeFacts, job::capacity::Room};
use herdlet_runtime::Gate;
use herdlet_services::catalog::{BuiltIn, ConsulClusters};
use herdlet_variables::Variables;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::alloc_ops::{bounds::Bounds, host::HostSampler};

pub use admission::{Access, Admission, Names, TokenVerdict, Tokens};
pub use admission::{AllowedPage, Guess, LateToken, TOO_MANY, WrongToken};
pub use auth::{Token, TokenError};
pub use evaluations::Evaluations;
#[cfg(any(test, fuzzing, feature = "fixture"))]
pub use exec::input_frames as exec_input_frames;
#[cfg(any(test, fuzzing, feature = "fixture"))]
pub use serve::connection;
pub use serve::{Frontend, Limits, Listener, ServeError, serve};
pub use submission::{Submissions, prune_sources};
pub use task_api::{Authority, LocalAuthority, Principal, TaskApiServer, TokenCache, Unidentified, Verifier};
pub use tls::{Tls, TlsError, Validity};
pub use variable_users::TemplateUsers;

/// Finds the published port of a service, for one of its instances.
pub type Publications = Box<dyn Fn(&Registration) -> Option<PublishedView> + Send + Sync>;

/// Renders the metrics page, with the measured usage of tasks.
pub type MetricsPage = Box<dyn Fn(Format, Vec<Measured>) -> String + Send + Sync>;

/// The state that all handlers share.
pub struct Shared {
    pub requests: Requests,
    pub model: Arc<ReadModel>,
    /// Opens once the read model has the stored state.
    pub restored: Gate,
    /// Task drivers, for exec and statistics.
    pub drivers: Registry,
    /// The drivers that manifests are validated against.
    pub manifests: watch::Receiver<Drivers>,
    /// Limits on what callers may occupy.
    pub bounds: Bounds,
    /// Measures the machine.
    pub host: HostSampler,
    pub paths: Paths,
    /// Services registered in the built-in catalogue.
    pub catalog: Arc<BuiltIn>,
    pub published: Publications,
    /// The CSI plugins among the tasks.
    pub plugins: Box<dyn Fn() -> Vec<CsiPluginView> + Send + Sync>,
    /// The Consul agents for services with `provider = "consul"`.
    pub consuls: Arc<ConsulClusters>,
    pub variables: Arc<Variables>,
    /// Finds the templates that use a variable.
    pub template_users: TemplateUsers,
    /// Evaluations of recent changes.
    pub evaluations: Evaluations,
    /// The source texts of jobs.
    pub submissions: Submissions,
    pub gc: Arc<Collector>,
    pub facts: Facts,
    /// The health of the agent, determined for each answer.
    pub vitals: Box<dyn Fn() -> Vitals + Send + Sync>,
    /// Reads what the desired state and the files of tasks are made from, as it is now.
    pub read_inputs: Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
    /// Revokes the tokens of Vault that tasks have.
    pub revoke_vault_tokens: Box<dyn Fn() -> BoxFuture<'static, Vec<RevokedToken>> + Send + Sync>,
    /// The keys that sign workload identities.
    pub identity_keys: Arc<IdentityKeys>,
    pub metrics: MetricsPage,
    /// Held while the metrics page is rendered: concurrent scrapes use one processor at most.
    pub measuring: tokio::sync::Mutex<()>,
    /// Whether the metrics page includes the usage of tasks.
    pub publish_allocation_metrics: bool,
    /// Cancelled when the agent shuts down; ends every stream.
    pub closing: CancellationToken,
}

/// Facts about the agent that don't change while it runs.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    pub node: NodeFacts,
    pub instance: String,
    /// The isolation of tasks, as text for people.
    pub isolation: String,
    /// The resource limits that this machine can't enforce.
    pub ineffective: Ineffective,
    pub started_at: UnixNanos,
    /// The address of ports, outside a cluster.
    pub host_ip: Option<std::net::IpAddr>,
    /// The first and the last dynamic port.
    pub dynamic_ports: (u16, u16),
    /// Ports that no allocation gets, in Nomad's notation.
    pub reserved_ports: String,
    /// The machine's resources, and those reserved from allocations.
    pub room: (Room, Room),
    /// Why this agent can't publish ports of services; `None` if it can.
    pub unpublishable: Option<&'static str>,
}

/// The health of the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vitals {
    /// Why the agent is not ready; none if it is.
    pub not_ready: Option<String>,
    /// Why the agent is degraded; none if it is not.
    pub degraded: Option<String>,
    /// That the disk is full, and what to do; none if it is not. The state can still be written.
    pub disk_full: Option<String>,
    /// Problems that need attention but have no effect yet.
    pub warnings: Vec<String>,
    /// Errors in the manifests of followed folders.
    pub manifest_problems: Vec<Problem>,
    /// The state of this node in the cluster; none outside of a cluster.
    pub seen: Option<SeenByServers>,
}

/// The state of a node in the cluster, in Nomad's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenByServers {
    /// `initializing` until it is registered, `ready`, or `disconnected`.
    pub status: &'static str,
    /// `eligible` for new work, or `ineligible`.
    pub eligibility: &'static str,
}

/// The path of the public keys of workload identities. It needs no token, as in Nomad: a service that receives a task's
/// token must be able to verify it.
const JWKS_PATH: &str = "/.well-known/jwks.json";

/// The path of the OpenID Connect discovery document, which names the keys' path.
const DISCOVERY_PATH: &str = "/.well-known/openid-configuration";

impl Shared {
    /// The drivers that manifests may name now.
    fn drivers_in_manifests(&self) -> Drivers {
        self.manifests.borrow().clone()
    }
}

/// All endpoints. [`serve()`] has already decided whether the caller may use them.
pub fn router(shared: Arc<Shared>) -> Router {
    let routes = Router::new()
        .route("/v1/herdlet/apply", post(apply::apply).put(apply::apply))
        .route("/v1/herdlet/plan", post(apply::plan).put(apply::plan))
        .route("/v1/herdlet/jobs", get(jobs::views))
        .route("/v1/herdlet/job/{job}/versions", get(versions::views))
        .route("/v1/herdlet/job/{job}/start", post(jobs::start).put(jobs::start))
        .route("/v1/herdlet/job/{job}/hold", post(hold::hold).put(hold::hold))
        .route("/v1/herdlet/allocs", get(allocs::views))
        .route("/v1/herdlet/images", get(images::views))
        .route("/v1/herdlet/images/pull", post(images::pull).put(images::pull))
        .route("/v1/herdlet/images/load", post(images::load).put(images::load))
        .route("/v1/herdlet/images/prune", post(images::prune).put(images::prune))
        .route("/v1/herdlet/images/verify", post(images::verify).put(images::verify))
        .route("/v1/herdlet/networks", get(networks::views))
        .route("/v1/herdlet/plugins", get(plugins::views))
        .route("/v1/herdlet/volumes", get(volumes::views))
        .route("/v1/herdlet/volume/{name}", delete(volumes::remove))
        .route("/v1/herdlet/services", get(services::registrations))
        .route("/v1/herdlet/status", get(agent::status))
        .route("/v1/herdlet/overview", get(agent::overview))
        .route("/v1/herdlet/explain/{alloc}", get(allocs::explain))
        .route("/v1/herdlet/environment/{alloc}", get(environment::environment))
        .route("/v1/herdlet/variable/users", get(variable_users::users))
        .route("/v1/herdlet/transitions", get(agent::transitions))
        .route("/v1/herdlet/drift", get(agent::drift))
        .route("/v1/herdlet/index", get(agent::index))
        .route("/v1/herdlet/current", get(agent::current))
        .route("/v1/herdlet/events", get(events::follow))
        .route("/v1/herdlet/vault/revoke-all", post(vault::revoke_all).put(vault::revoke_all))
        .route("/v1/herdlet/gc", get(gc::ended).post(gc::collect).put(gc::collect))
        .merge(routes::router())
        .merge(ui::pages())
        .merge(probes())
        .fallback(no_route::answer)
        .method_not_allowed_fallback(error::no_such_method)
        .layer(DefaultBodyLimit::max(body::BODY_BYTES_MAX))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), restoring::wait))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), region::check))
        .with_state(shared);
    // Around the routes, because it changes the path before they match.
    Router::new().fallback_service(routes).layer(middleware::map_request(job_paths::join))
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
