//! Stand-in servers and a node, for the stories.

use std::{sync::Arc, time::Duration};

use herdlet_nomad::{
    identity::Identity,
    session::{Contact, Options, Reports, Session},
    wire::{
        AllocId, AllocReport, ClientStatus, Node, NodeId, NodeStatus, Secret,
        resources::{NodeCpu, NodeResources, ReservedResources},
    },
};
use herdlet_nomad_server::{Cluster, Lan, Settings};
use herdlet_rpc::{
    Service,
    connect::Dial,
    pool::{Chance, Pool},
    serve::Unserved,
};
use tokio::{sync::watch, task::JoinHandle, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::runner::Bench;

/// A running node.
pub(crate) struct Living {
    pub(crate) id: NodeId,
    pub(crate) bench: Bench,
    pub(crate) node: watch::Sender<Arc<Node>>,
    pub(crate) contact: watch::Receiver<Contact>,
    pub(crate) reports: Reports,
    pub(crate) cancel: CancellationToken,
    pub(crate) task: JoinHandle<()>,
    /// Size of its task in bytes.
    pub(crate) size: usize,
}

impl Living {
    /// Ends the session; the bench can be passed to the next one.
    pub(crate) async fn end(self) -> Bench {
        self.cancel.cancel();
        self.task.await.unwrap();
        self.bench
    }

    pub(crate) fn report(&self, id: &AllocId, client_status: ClientStatus, text: &str) {
        let client_description = text.to_owned();
        self.reports.report(AllocReport {
            id: id.clone(),
            client_status,
            client_description,
            ..AllocReport::default()
        });
    }
}

pub(crate) fn described() -> Node {
    let cpu = NodeCpu { cpu_shares: 4_000, total_cpu_cores: 4, reservable_cpu_cores: vec![0, 1, 2, 3] };
    Node {
        datacenter: "dc1".to_owned(),
        name: "node".to_owned(),
        attributes: [("nomad.version".to_owned(), "1.6.5".to_owned())].into(),
        node_resources: Some(NodeResources { cpu, ..NodeResources::default() }),
        reserved_resources: Some(ReservedResources::default()),
        ..Node::default()
    }
}

pub(crate) fn identity(number: usize) -> Identity {
    Identity {
        id: NodeId::from(format!("{number:08x}-1111-4000-8000-000000000000")),
        secret: Secret::from(format!("{number:08x}-2222-4000-8000-000000000000")),
    }
}

pub(crate) fn pool<D: Dial>(lan: D, servers: &[&str]) -> Arc<Pool<Unserved, D>> {
    let servers = servers.iter().map(|server| server.parse().unwrap()).collect();
    Arc::new(Pool::new(Arc::new(Unserved), "global".to_owned(), servers, lan, Chance::of(5)))
}

/// Starts a node's session.
pub(crate) fn live<S: Service, D: Dial>(pool: Arc<Pool<S, D>>, identity: Identity, bench: Bench) -> Living {
    let (node, description) = watch::channel(Arc::new(described()));
    let options = Options { chance: Chance::of(9), ..Options::default() };
    let id = identity.id.clone();
    let session = Session::new(pool, identity, description, options);
    let (contact, reports) = (session.contact(), session.reports());
    let cancel = CancellationToken::new();
    let run = session.run(bench.clone(), cancel.clone());
    let size = std::mem::size_of_val(&run);
    let task = tokio::spawn(run);
    Living { id, bench, node, contact, reports, cancel, task, size }
}

/// Stand-in servers with these settings, and a node that is ready.
pub(crate) async fn world(settings: Settings) -> (Cluster, Living) {
    let cluster = Cluster::start(settings);
    let living = live(pool(Lan::new(&cluster), &["s0"]), identity(1), Bench::default());
    ready(&cluster, &living.id).await;
    (cluster, living)
}

pub(crate) async fn ready(cluster: &Cluster, node: &NodeId) {
    let is_ready = |node: &NodeId| cluster.status(node) == Some(NodeStatus::Ready);
    within(60, "the node is ready", || is_ready(node)).await;
}

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn within(seconds: u64, what: &str, is_so: impl Fn() -> bool) -> impl Future<Output = ()> {
    let place = std::panic::Location::caller();
    let what = what.to_owned();
    async move {
        for _ in 0..seconds * 100 {
            if is_so() {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("{place}: not within {seconds} s: {what}");
    }
}

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) async fn runs(cluster: &Cluster, id: &AllocId) {
    within(30, "the allocation runs", || cluster.client_status(id) == ClientStatus::Running).await;
}
