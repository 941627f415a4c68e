//! An API for tests: a read model without a planner.

#![expect(clippy::unwrap_used, reason = "only tests see this")]

use std::{path::PathBuf, sync::Arc};

use axum::Router;
use herdlet_agent::{
    gc::Collector, identity_keys::IdentityKeys, publish::ReadModel, requests::Requests, telemetry::Telemetry,
};
use herdlet_api_types::{
    UnixNanos,
    view::{AllocView, JobView},
};
use herdlet_base::paths::Paths;
use herdlet_config::gc::Rules;
use herdlet_driver::Registry;
use herdlet_manifest::manifests::Drivers;
use herdlet_plan::{env::NodeFacts, turn::View};
use herdlet_runtime::{CommitIndex, Gate, Inbox, Publisher, StoreHealth};
use herdlet_services::catalog::{BuiltIn, ConsulClusters};
use herdlet_variables::{KeySource, Store, Variables};
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Access, Admission, Evaluations, Facts, Frontend, Limits, Listener, Names, Shared, Submissions, Token,
    Vitals, serve,
};
use crate::alloc_ops::{bounds::Bounds, host::HostSampler};

pub struct ApiFixture {
    pub dir: tempfile::TempDir,
    pub shared: Arc<Shared>,
    pub telemetry: Telemetry,
    pub admission: Arc<Admission>,
    pub tasks: TaskTracker,
    pub store: watch::Sender<StoreHealth>,
}

impl Default for ApiFixture {
    fn default() -> Self {
        Self::new()
    }
}

impl ApiFixture {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("api")).unwrap();
        // The inbox has no reader: each request fails because the agent shuts down.
        let (inbox, _) = Inbox::with_capacity(1);
        let store = watch::Sender::new(StoreHealth::Ok);
        let requests = Requests::to(inbox, store.subscribe(), dir.path().join("state"));
        let model = Arc::new(ReadModel::default());
        let gc = Collector {
            rules: Rules::default(),
            model: Arc::clone(&model),
            requests: requests.clone(),
            alloc_dirs: dir.path().join("state/alloc"),
            telemetry: Telemetry::new(),
        };
        let state = dir.path().join("state");
        let variables = Store::open(&state, KeySource::choose(None, None, &state.join("keys"))).unwrap();
        let identity_keys = Arc::new(IdentityKeys::new(state.join("keys"), Arc::clone(&model), None));
        let shared = Shared {
            requests,
            model,
            gc: Arc::new(gc),
            restored: Gate::opened_before(),
            drivers: Registry::new(),
            manifests: watch::channel(Drivers::built_in()).1,
            bounds: Bounds::default(),
            host: HostSampler::default(),
            paths: Paths { state: dir.path().join("state"), runtime: dir.path().join("run") },
            catalog: Arc::new(BuiltIn::default()),
            published: Box::new(|_| None),
            plugins: Box::new(Vec::new),
            consuls: Arc::new(ConsulClusters::absent()),
            variables: Arc::new(Variables::new(variables)),
            template_users: Box::new(|_| Default::default()),
            evaluations: Evaluations::default(),
            submissions: Submissions::below(&dir.path().join("state")),
            facts: Facts {
                node: NodeFacts { id: "n1".to_owned(), name: "box".to_owned(), ..NodeFacts::default() },
                started_at: UnixNanos(1),
                ..Facts::default()
            },
            vitals: Box::new(Vitals::default),
            read_inputs: Box::new(|| Box::pin(async {})),
            revoke_vault_tokens: Box::new(|| Box::pin(async { Vec::new() })),
            identity_keys,
            metrics: Box::new(|format, _| format!("{format:?}\n")),
            measuring: tokio::sync::Mutex::default(),
            publish_allocation_metrics: false,
            closing: CancellationToken::new(),
        };
        let names = Names::default().allowing(&["ui.example:8443".to_owned()]);
        let telemetry = Telemetry::new();
        let admission = Admission::new(names, telemetry.clone());
        Self { dir, shared: Arc::new(shared), telemetry, admission, tasks: TaskTracker::new(), store }
    }

    pub fn show(&self, index: u64, jobs: &[JobView], allocs: &[AllocView]) {
        let jobs = jobs.iter().map(|view| View::Job(Arc::new(view.clone())));
        let allocs = allocs.iter().map(|view| View::Alloc(Arc::new(view.clone())));
        self.shared.model.publisher().offer(CommitIndex(index), jobs.chain(allocs).collect());
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("api/sock")
    }

    pub async fn tcp(&self, routes: Router, token: Option<Token>) -> String {
        self.tcp_for(routes, token.map_or(Access::Open, Access::Token)).await
    }

    pub async fn tcp_for(&self, routes: Router, access: Access) -> String {
        let listener = Listener::tcp("127.0.0.1:0").await.unwrap();
        let address = listener.address().unwrap();
        self.serve_for(listener, routes, access, Limits::default());
        format!("http://{address}")
    }

    pub fn serve(&self, listener: Listener, routes: Router, token: Option<Token>, limits: Limits) {
        self.serve_for(listener, routes, token.map_or(Access::Open, Access::Token), limits);
    }

    pub fn serve_for(&self, listener: Listener, router: Router, access: Access, limits: Limits) {
        let frontend = Frontend { router, access, admission: Arc::clone(&self.admission), limits };
        self.tasks.spawn(serve(listener, frontend, self.shared.closing.clone()));
    }
}
