//! The API over real sockets, with a read model that the test writes and nobody behind the inbox.

mod admission;
mod bodies;
mod bounds;
mod files;
mod lists;
mod placed;
mod reads;
mod services;
mod shapes;
mod streams;
mod tls;
mod ui;

use std::{path::PathBuf, sync::Arc, time::Duration};

use axum::Router;
use herdlet_api_types::{
    UnixNanos,
    view::{AllocView, JobView},
};
use herdlet_plan::{env::NodeFacts, turn::View};
use herdlet_runtime::{CommitIndex, Gate, Inbox, Publisher, StoreHealth};
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Access, Admission, Evaluations, Face, Facts, Limits, Listener, Names, Shared, Token, Vitals,
    metrics_router, router, serve,
};
use crate::{
    cli::{Address, Client},
    config::gc::Rules,
    desired::manifests::Drivers,
    drivers::{
        catalog::{BuiltIn, Consul},
        task::Registry,
    },
    gc::Collector,
    paths::Paths,
    publish::ReadModel,
    requests::Requests,
    telemetry::Telemetry,
};

/// What takes longer does not come: on a quiet machine all of it takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(180);

/// An API in front of a read model.
pub(crate) struct Ground {
    dir: tempfile::TempDir,
    pub(crate) shared: Arc<Shared>,
    pub(crate) telemetry: Telemetry,
    admission: Arc<Admission>,
    tasks: TaskTracker,
    store: watch::Sender<StoreHealth>,
}

impl Ground {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("api")).unwrap();
        // Nobody answers requests: each is told that the agent shuts down.
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
        let shared = Shared {
            requests,
            model,
            gc: Arc::new(gc),
            restored: Gate::opened_before(),
            drivers: Registry::new(),
            manifests: Drivers::built_in(),
            paths: Paths { state: dir.path().join("state"), runtime: dir.path().join("run") },
            catalog: Arc::new(BuiltIn::default()),
            consul: Arc::new(Consul::absent()),
            evaluations: Evaluations::default(),
            facts: Facts {
                node: NodeFacts { id: "n1".to_owned(), name: "box".to_owned(), ..NodeFacts::default() },
                started_at: UnixNanos(1),
                ..Facts::default()
            },
            vitals: Box::new(Vitals::default),
            jwks: serde_json::json!({ "keys": [{ "kid": "k1" }] }),
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

    pub(crate) fn show(&self, index: u64, jobs: &[JobView], allocs: &[AllocView]) {
        let jobs = jobs.iter().map(|view| View::Job(Arc::new(view.clone())));
        let allocs = allocs.iter().map(|view| View::Alloc(Arc::new(view.clone())));
        self.shared.model.publisher().offer(CommitIndex(index), jobs.chain(allocs).collect());
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("api/sock")
    }

    async fn unix(&self, limits: Limits) -> Client {
        let listener = Listener::unix(&self.socket()).await.unwrap();
        self.serve(listener, router(Arc::clone(&self.shared)), None, limits);
        Client::new(Address::Unix(self.socket()), None).unwrap()
    }

    pub(crate) async fn tcp(&self, routes: Router, token: Option<Token>) -> String {
        self.tcp_for(routes, token.map_or(Access::Open, Access::Token)).await
    }

    pub(crate) async fn tcp_for(&self, routes: Router, access: Access) -> String {
        let listener = Listener::tcp("127.0.0.1:0").await.unwrap();
        let address = listener.address().unwrap();
        self.serve_for(listener, routes, access, Limits::default());
        format!("http://{address}")
    }

    fn serve(&self, listener: Listener, routes: Router, token: Option<Token>, limits: Limits) {
        self.serve_for(listener, routes, token.map_or(Access::Open, Access::Token), limits);
    }

    fn serve_for(&self, listener: Listener, router: Router, access: Access, limits: Limits) {
        let face = Face { router, access, admission: Arc::clone(&self.admission), limits };
        self.tasks.spawn(serve(listener, face, self.shared.closing.clone()));
    }

    fn http(&self) -> reqwest::Client {
        reqwest::Client::builder().unix_socket(self.socket()).build().unwrap()
    }

    /// Status and body of a GET on the unix socket.
    async fn get(&self, path: &str) -> (u16, String) {
        let answer = self.http().get(format!("http://localhost{path}")).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }
}

#[tokio::test]
async fn nobody_is_told_that_there_is_nothing_before_the_state_is_restored() {
    let mut agent = Ground::new();
    let (opener, gate) = Gate::closed();
    Arc::get_mut(&mut agent.shared).unwrap().restored = gate;
    let _client = agent.unix(Limits::default()).await;
    assert_eq!(agent.get("/healthz").await.0, 200);
    let asked = agent.get("/v1/jobs");
    tokio::pin!(asked);
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut asked).await.is_err());
    opener.open();
    assert_eq!(asked.await.0, 200);
}
