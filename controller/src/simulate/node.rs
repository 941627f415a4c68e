//! One simulated node: a session and a planner's loop, with a simulated executor and a store that keeps nothing.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use herdlet_agent::{agent, planner::Planner, present, publish::ReadModel};
use herdlet_api_types::{InstanceId, alloc::ClientStatus};
use herdlet_base::error::in_full;
use herdlet_node::{predecessor, runner, server_alloc::Reading};
use herdlet_nomad::{
    identity::Identity,
    session::{self, Contact, Session},
    wire::{
        Node, QueryOptions,
        node::DriverInfo,
        resources::{
            LegacyResources, NetworkResource, NodeAddress, NodeCpu, NodeDisk, NodeMemory, NodeNetwork,
            NodeResources, ReservedResources,
        },
    },
};
use herdlet_plan::{context::Settings, env::NodeFacts, record::Record, world::World};
use herdlet_rpc::{
    connect::Network,
    error::CallError,
    pool::{Chance, Pool},
    serve::Unserved,
};
use herdlet_runtime::{self as runtime, BootClock, CommitIndex, Inbox, Runtime, Shell, Store};
use tokio::{
    sync::{mpsc, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::{Figures, Options, behaviour::AttemptScript, executor::SimulatedExecutor};

/// Interval of pings.
const PING: Duration = Duration::from_secs(1);

/// Limit of events that wait for a node's loop.
const INBOX_LEN: usize = 64;

/// Changes that a node's follower may lag behind; after more, it reads its few allocations again.
const CHANGES_LEN: usize = 16;

/// State that all nodes share.
pub(super) struct Fleet {
    pub(super) options: Options,
    /// The registration of each node, except for its name.
    described: watch::Sender<Arc<Node>>,
    fate: Arc<AttemptScript>,
    seen: Mutex<Vec<NodeProbe>>,
    /// The latency of the last ping, or why it failed; none before the first.
    ping: Mutex<Option<Result<Duration, String>>>,
    cancel: CancellationToken,
}

/// Observes a node from outside.
struct NodeProbe {
    model: Arc<ReadModel>,
    contact: watch::Receiver<Contact>,
    calls: watch::Receiver<u64>,
}

impl Fleet {
    pub(super) fn new(options: Options, cancel: CancellationToken) -> Self {
        let fate = Arc::new(AttemptScript::new(options.behaviour.clone()));
        let described = watch::Sender::new(Arc::new(described(&options)));
        Self { options, described, fate, seen: Mutex::default(), ping: Mutex::default(), cancel }
    }

    pub(super) fn figures(&self, since: Duration, last: &Figures) -> Figures {
        let mut figures = Figures { seconds: since.as_secs_f64(), ..Figures::default() };
        for seen in self.seen().iter() {
            figures.nodes += 1;
            let contact = seen.contact.borrow();
            figures.ready += u64::from(contact.is_registered && contact.is_in_reach);
            for view in seen.model.allocs() {
                figures.allocations += 1;
                figures.running += u64::from(view.status == ClientStatus::Running);
            }
            figures.updates += seen.model.version();
            figures.calls += *seen.calls.borrow();
            figures.late_heartbeats += contact.losses;
        }
        match &*self.ping.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(Ok(took)) => figures.latency_ms = Some(took.as_secs_f64() * 1_000.0),
            Some(Err(why)) => figures.ping_error = Some(why.clone()),
            None => {}
        }
        figures.after(last)
    }

    fn seen(&self) -> MutexGuard<'_, Vec<NodeProbe>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pool(&self) -> Pool<Unserved, Network> {
        let Options { region, servers, tls, .. } = &self.options;
        let network = Network::new(tls.clone());
        Pool::new(Arc::new(Unserved), region.clone(), servers.clone(), network, Chance::new())
    }
}

/// The disk of each node, in MiB.
const DISK_MIB: i64 = 100 * 1024;

/// The address of each node's ports. Servers place nothing on a node without a network, not even jobs that need none.
const ADDRESS: &str = "127.0.0.1";

/// The registration that all nodes have in common.
fn described(options: &Options) -> Node {
    let Options { datacenter, node_class, node_pool, cpu_mhz, memory_mib, drivers, .. } = options;
    let driver = |name: &String| {
        let attributes = [(format!("driver.{name}"), "1".to_owned())].into();
        let health_description = "Healthy".to_owned();
        let info = DriverInfo {
            attributes,
            detected: true,
            healthy: true,
            health_description,
            ..DriverInfo::default()
        };
        (name.clone(), info)
    };
    let cpu = NodeCpu { cpu_shares: i64::from(*cpu_mhz), ..NodeCpu::default() };
    let memory = NodeMemory { memory_mb: i64::from(*memory_mib) };
    let disk = NodeDisk { disk_mb: DISK_MIB };
    let (mode, device) = ("host".to_owned(), "lo".to_owned());
    let (family, alias, address) = ("ipv4".to_owned(), "default".to_owned(), ADDRESS.to_owned());
    let networks = vec![NetworkResource {
        mode: mode.clone(),
        device: device.clone(),
        cidr: format!("{ADDRESS}/32"),
        ip: address.clone(),
        mbits: 1_000,
        ..NetworkResource::default()
    }];
    let addresses = vec![NodeAddress { family, alias, address, ..NodeAddress::default() }];
    let node_networks = vec![NodeNetwork { mode, device, addresses, ..NodeNetwork::default() }];
    let drivers: std::collections::BTreeMap<String, DriverInfo> = drivers.iter().map(driver).collect();
    let mut attributes: std::collections::BTreeMap<String, String> =
        drivers.values().flat_map(|info| info.attributes.clone()).collect();
    let own = [
        ("nomad.version", herdlet_fingerprint::NOMAD_VERSION),
        ("kernel.name", "linux"),
        ("cpu.arch", "amd64"),
        ("simulated", "true"),
    ];
    attributes.extend(own.map(|(name, value)| (name.to_owned(), value.to_owned())));
    Node {
        datacenter: datacenter.clone(),
        node_class: node_class.clone(),
        node_pool: node_pool.clone(),
        attributes,
        drivers,
        node_resources: Some(NodeResources {
            cpu,
            memory,
            disk,
            networks,
            node_networks,
            ..NodeResources::default()
        }),
        reserved_resources: Some(ReservedResources::default()),
        // Stock command lines crash without it.
        resources: Some(LegacyResources {
            cpu: i64::from(*cpu_mhz),
            memory_mb: i64::from(*memory_mib),
            disk_mb: DISK_MIB,
            ..LegacyResources::default()
        }),
        reserved: Some(LegacyResources::default()),
        ..Node::default()
    }
}

/// Runs the node until the simulation ends.
pub(super) async fn live(ground: Arc<Fleet>, number: u32, identity: Identity) {
    let id = identity.id.to_string();
    let settings = Settings {
        node: NodeFacts { id: id.clone(), ..NodeFacts::default() },
        ..agent::planner_settings(InstanceId(id))
    };
    let (inbox, arrivals) = Inbox::with_capacity(INBOX_LEN);
    let model = Arc::new(ReadModel::with_room_for(CHANGES_LEN));
    let hands = SimulatedExecutor::new(inbox.clone(), Arc::clone(&ground.fate));
    let (runtime, handle) = Runtime::new(Shell {
        world: Planner::new(World::new(settings), present::now().boot, Arc::new(|_| {})),
        arrivals,
        store: Nowhere(0),
        executor: hands.clone(),
        publisher: model.publisher(),
        clock: BootClock,
        settings: runtime::Settings::default(),
    });
    let looping = tokio::spawn(runtime.run());
    let pool = Arc::new(ground.pool());
    let options = session::Options {
        region: ground.options.region.clone(),
        name: Some(format!("{}{number:05}", ground.options.name)),
        ..session::Options::default()
    };
    let session = Session::new(Arc::clone(&pool), identity, ground.described.subscribe(), options);
    ground.seen().push(NodeProbe {
        model: Arc::clone(&model),
        contact: session.contact(),
        calls: pool.successes(),
    });
    let (previous, asked) = mpsc::channel(predecessor::WAITING_MAX);
    let follower = tokio::spawn(predecessor::follow(asked, session.queries(), inbox.clone(), None));
    let parts = runner::Parts {
        inbox,
        model,
        tokens: None,
        reading: Reading::Pretended,
        previous,
        told_again: watch::Sender::new(0),
    };
    tokio::join!(session.run(parts, ground.cancel.clone()), async {
        if number == 0 {
            ping(&ground, &pool).await;
        }
    });
    handle.shutdown.cancel();
    hands.let_go();
    follower.abort();
    let _ = looping.await;
}

/// One node pings its server every second.
async fn ping(ground: &Fleet, pool: &Pool<Unserved, Network>) {
    let pinging = async {
        loop {
            sleep(PING).await;
            let began = Instant::now();
            // Among the calls without effect, this one needs the region and a leader, like those of nodes.
            let question = QueryOptions { region: ground.options.region.clone(), ..QueryOptions::default() };
            let answered = pool.once("Status.Leader", &question, Duration::from_secs(5)).await;
            let answered = answered.map(|_| began.elapsed()).map_err(|error| {
                if let CallError::Server(message) = &error {
                    message.to_string()
                } else {
                    format!("failed to {}", in_full(&error))
                }
            });
            *ground.ping.lock().unwrap_or_else(PoisonError::into_inner) = Some(answered);
        }
    };
    tokio::select! {
        () = ground.cancel.cancelled() => {}
        () = pinging => {}
    }
}

/// A store that accepts everything and keeps nothing.
struct Nowhere(u64);

impl Store for Nowhere {
    type Record = Record;
    type Error = Infallible;

    fn commit(&mut self, _: &[Record]) -> Result<CommitIndex, Infallible> {
        self.0 += 1;
        Ok(CommitIndex(self.0))
    }

    fn index(&self) -> CommitIndex {
        CommitIndex(self.0)
    }
}
