//! Endpoints about the agent itself: status, health, identity, metrics.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Query, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use herdlet_agent::telemetry::Format;
use herdlet_api_types::{
    AllocId,
    alloc::Desired,
    api::{AgentStatus, COMMIT, ManifestProblem, Unconverged, VERSION},
    view::{AllocView, Convergence, ConvergenceState, NodeView},
};
use herdlet_manifest::yaml::Problem;
use herdlet_runtime::{BootClock, Clock as _};
use serde_json::{Value, json};

use super::{
    Shared,
    error::ApiResult,
    metrics,
    query::{Params, Read, Source},
};
use crate::alloc_ops::{host, stats};

/// Longer than a folder may take before its status has a problem.
const READING_TIME_MAX: Duration = Duration::from_secs(15);
/// At most this many objects are listed; the counts include all.
const UNCONVERGED_LEN_MAX: usize = 1_000;

pub(super) async fn status(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    shared.answer(&read, |shared| Ok(status_of(shared))).await
}

/// The data of the status page.
pub(super) async fn overview(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    shared
        .answer(&read, |shared| Ok(herdlet_agent::overview::overview(&shared.model, BootClock.now().boot_ns)))
        .await
}

/// The latest changes of allocations' convergence, newest first.
pub(super) async fn transitions(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    shared.filtered(Source::Model, &read, |shared| Ok(shared.model.history().transitions())).await
}

fn is_current(shared: &Shared, id: &AllocId) -> bool {
    let wanted = |view: &AllocView| view.spec.desired == Desired::Run && !view.status.is_terminal();
    shared.model.alloc(id).is_some_and(|view| wanted(&view))
}

/// The latest drift, newest first.
pub(super) async fn drift(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let drifts = |shared: &Shared| Ok(shared.model.history().drifts(|id| is_current(shared, id)));
    shared.filtered(Source::Model, &read, drifts).await
}

/// The present index, services included. With `index`, a blocking query that waits for the next change.
pub(super) async fn index(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let index = |shared: &Shared| Ok(json!({ "Index": shared.index(Source::Services) }));
    shared.answer_from(Source::Services, &read, index).await
}

/// Reads the agent's folders and the data of templates as they are now, and answers with the index of a commit that includes
/// them. A folder that can't be read in time is a problem in the status.
pub(super) async fn current(State(shared): State<Arc<Shared>>) -> ApiResult<Json<Value>> {
    let read = async {
        (shared.read_inputs)().await;
        // If the planner can't answer, other requests report it.
        let _ = shared.requests.settled().await;
    };
    let _ = tokio::time::timeout(READING_TIME_MAX, read).await;
    Ok(Json(json!({ "Index": shared.model.index() })))
}

fn status_of(shared: &Shared) -> AgentStatus {
    let vitals = (shared.vitals)();
    let (jobs, allocs) = (shared.model.jobs(), shared.model.allocs());
    let of_jobs = jobs.iter().map(|view| Unconverged {
        name: view.key.to_string(),
        alloc: None,
        convergence: view.convergence.clone(),
    });
    let of_allocs = allocs.iter().map(|view| Unconverged {
        name: view.spec.name(),
        alloc: Some(view.spec.id),
        convergence: view.convergence.clone(),
    });
    let facts = shared.facts.clone();
    let in_cluster = vitals.seen.is_some();
    let of_node = if !in_cluster { drained_text(&shared.model.node()) } else { None };
    AgentStatus {
        version: VERSION.to_owned(),
        node_id: facts.node.id,
        node_name: facts.node.name,
        commit: COMMIT.map(str::to_owned),
        instance: facts.instance,
        isolation: facts.isolation,
        missing_controllers: facts.ineffective.names(),
        max_kill_timeout: facts.ineffective.max_kill_timeout(),
        in_cluster,
        state_dir: shared.paths.state.to_string_lossy().into_owned(),
        started_at: facts.started_at,
        not_ready: vitals.not_ready,
        degraded: vitals.degraded,
        disk_full: vitals.disk_full,
        warnings: vitals.warnings.into_iter().chain(of_node).collect(),
        manifest_problems: vitals.manifest_problems.into_iter().map(problem_json).collect(),
        index: shared.model.index(),
        jobs: counts(jobs.iter().map(|view| &view.convergence)),
        allocs: counts(allocs.iter().map(|view| &view.convergence)),
        unconverged: of_jobs
            .chain(of_allocs)
            .filter(|one| one.convergence.state != ConvergenceState::Converged)
            .take(UNCONVERGED_LEN_MAX)
            .collect(),
    }
}

/// Why this machine takes no allocations; `None` if it does.
fn drained_text(node: &NodeView) -> Option<String> {
    let why = match (&node.drain, node.eligible) {
        (Some(_), _) => {
            "this machine is being drained: allocations are stopped, and none is created; to end the drain: herdlet drain --disable"
        }
        (None, false) => {
            "this machine is ineligible: no allocation is created; to end this: herdlet eligibility --enable"
        }
        (None, true) => return None,
    };
    Some(why.to_owned())
}

fn problem_json(problem: Problem) -> ManifestProblem {
    let Problem { source, line, column, path, message } = problem;
    ManifestProblem { source, line, column, path, message }
}

fn counts<'c>(of: impl Iterator<Item = &'c Convergence>) -> BTreeMap<String, usize> {
    use ConvergenceState as C;
    let mut counts: BTreeMap<String, usize> = [C::Converged, C::Progressing, C::Waiting, C::Failed]
        .map(|state| (state.as_str().to_owned(), 0))
        .into();
    for convergence in of {
        *counts.entry(convergence.state.as_str().to_owned()).or_default() += 1;
    }
    counts
}

/// `GET /v1/agent/self`: the fields that Nomad's clients read.
pub(super) async fn this(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let (facts, node) = (&shared.facts, &shared.facts.node);
    Json(json!({
        "config": {
            "Datacenter": node.datacenter, "Region": node.region, "NodeName": node.name,
            "Version": { "Version": VERSION, "VersionPrerelease": "", "VersionMetadata": "herdlet" },
            "Client": { "Enabled": true }, "Server": { "Enabled": false }, "ACL": { "Enabled": false },
        },
        "member": { "Name": node.name, "Addr": "", "Port": 0, "Tags": null, "Status": "alive" },
        "stats": {
            "client": {
                "node_id": node.id, "known_servers": "", "last_heartbeat": "0", "heartbeat_ttl": "0",
                "num_allocations": shared.model.allocs().len().to_string(),
            },
            "herdlet": { "version": VERSION, "instance": facts.instance, "isolation": facts.isolation },
        },
    }))
}

pub(super) async fn health(
    State(shared): State<Arc<Shared>>,
    Query(asked): Query<BTreeMap<String, String>>,
) -> Response {
    if asked.get("type").is_some_and(|kind| kind == "server") {
        return (StatusCode::INTERNAL_SERVER_ERROR, "server not enabled").into_response();
    }
    let vitals = (shared.vitals)();
    let problem = vitals.not_ready.or(vitals.degraded);
    let code = if problem.is_none() { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    let body = json!({ "client": { "ok": problem.is_none(), "message": problem.unwrap_or_else(|| "ok".to_owned()) } });
    (code, Json(body)).into_response()
}

pub(super) async fn alive() -> &'static str {
    "ok\n"
}

/// Whether the agent accepts changes: the state was restored, every folder of manifests was read, and the state can be
/// written. A failing job never makes it fail.
pub(super) async fn ready(State(shared): State<Arc<Shared>>) -> (StatusCode, String) {
    match (shared.vitals)().not_ready.or_else(|| shared.requests.degraded()) {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

/// `GET /v1/metrics`: Nomad's JSON, or the metrics page for Prometheus.
pub(super) async fn metrics_of_nomad(
    State(shared): State<Arc<Shared>>,
    Query(asked): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
) -> Response {
    let format = asked.get("format").map_or("", String::as_str);
    if !metrics::wants_json(format, &headers) {
        return self::metrics(State(shared), headers).await.into_response();
    }
    let page = shared.page_of_metrics(Format::Text).await;
    Json(metrics::summary(&page, herdlet_base::clock::wall_now())).into_response()
}

/// `GET /v1/agent/host`: the configuration of the machine, for support.
pub(super) async fn host(State(shared): State<Arc<Shared>>) -> ApiResult<Json<Value>> {
    Ok(Json(json!({ "AgentID": shared.facts.node.name, "HostData": host::data().await? })))
}

/// `GET /v1/client/metadata`: the node's metadata, all of it from the agent's config.
pub(super) async fn metadata(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let meta = &shared.facts.node.meta;
    Json(json!({ "Meta": meta, "Dynamic": {}, "Static": meta }))
}

/// The metrics page: in OpenMetrics if the caller accepts it, else in Prometheus' text format.
pub(super) async fn metrics(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> impl IntoResponse {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = Format::negotiate(accept);
    let headers = [(header::CONTENT_TYPE, format.content_type()), (header::VARY, "accept")];
    (headers, shared.page_of_metrics(format).await)
}

impl Shared {
    /// Measures the tasks and renders the metrics page.
    pub async fn page_of_metrics(&self, format: Format) -> String {
        let _alone = self.measuring.lock().await;
        let measured = if self.publish_allocation_metrics {
            stats::measure_all(&self.reach()).await
        } else {
            Vec::new()
        };
        (self.metrics)(format, measured)
    }
}
