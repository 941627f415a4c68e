//! Servers and whole agents for the tests.

use std::{path::PathBuf, sync::Arc, time::Duration};

use herdlet_agent::{
    agent::{self, Agent},
    instance::{self, Instance},
    present,
    state_db::{StateDb, StateDir},
};
use herdlet_api_types::{InstanceId, UnixNanos, view::AllocView};
use herdlet_base::paths::Paths;
use herdlet_config::DriverSettings;
use herdlet_config::{START_PRESSURE_LIMIT, artifact::Limits};
use herdlet_driver::Availability;
use herdlet_e2e::host;
use herdlet_manifest::manifests::Drivers;
use herdlet_node::{acknowledged, join::join, predecessor::mover::Mover, report};
use herdlet_nomad::{
    identity::Identity,
    session::{Contact, Options, Session},
    wire::{
        AllocId, Allocation, ClientStatus, Job, Node, NodeId, NodeStatus,
        resources::{NodeResources, ReservedResources},
    },
};
use herdlet_nomad_server::{
    Cluster, Lan, Settings,
    state::{Key, State},
};
use herdlet_plan::time::Now;
use herdlet_rpc::{
    pool::{Chance, Pool},
    serve::Unserved,
};
use herdlet_runtime::{BootClock, Clock as _, TokioClock};
use herdlet_services::catalog::ConsulConfig;
use herdlet_unpack::Unpacker;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    sync::{Semaphore, watch},
    time::{sleep, timeout},
};

/// Servers, a network, and a machine for each node.
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    pub(crate) lan: Lan,
    servers: usize,
    clock: TokioClock,
    ground: TempDir,
}

/// A running node.
pub(crate) struct Living {
    pub(crate) id: NodeId,
    pub(crate) contact: watch::Receiver<Contact>,
    pub(crate) paths: Paths,
    pub(crate) agent: Agent,
    pub(crate) number: usize,
}

impl World {
    pub(crate) fn new(settings: Settings) -> Self {
        let servers = settings.servers;
        let cluster = Cluster::start(settings);
        let lan = Lan::new(&cluster);
        // All agents share one clock, so that stored times keep their meaning for the next one.
        let clock = TokioClock::starting_at(BootClock.now());
        Self { cluster, lan, servers, clock, ground: temp_dir() }
    }

    /// Starts a node and waits until it is ready.
    pub(crate) async fn ready_node(&self, number: usize) -> Living {
        let living = self.node(number).await;
        self.ready(&living).await;
        living
    }

    /// Starts a node, or restarts it with its directory.
    pub(crate) async fn node(&self, number: usize) -> Living {
        let path = self.dir(number);
        let dir = StateDir::claim(&path).unwrap();
        let paths = Paths { runtime: path.join("run"), state: path.clone() };
        let instance = Instance::open(instance::Options {
            instance: dir.instance().clone(),
            paths: paths.clone(),
            cgroup_parent: "herdlet-node-test".to_owned(),
            drivers: DriverSettings::all().with("raw_exec", Availability::Disabled),
            host: instance::Host::standalone(),
            network: herdlet_config::network::Network::default(),
            leash: None,
        })
        .unwrap();
        let now = self.clock.now();
        let now = Now { boot: present::now().boot, boot_ns: now.boot_ns, wall: UnixNanos(now.wall_ns) };
        let state = StateDb::open(dir, &paths, now).unwrap();
        let node = agent::node_facts(&instance);
        let settings = agent::planner_settings(InstanceId(node.id.clone()));
        let parts = agent::Parts {
            instance,
            state,
            node,
            settings,
            volumes: Vec::new(),
            consuls: [(
                "default".to_owned(),
                (ConsulConfig::resolve(None, None, |_| None).unwrap(), Default::default()),
            )]
            .into(),
            start_pressure_limit: START_PRESSURE_LIMIT,
            task_dir_users: Vec::new(),
            artifacts: Limits::default(),
            variables: agent::variables_in(&paths).unwrap(),
            issuer: Default::default(),
            secrets_plugins: path.join("common_plugins/secrets"),
            templates: herdlet_config::template::Template::default(),
            network: herdlet_config::network::Network::default(),
            vault: Default::default(),
            notes: Arc::new(|_| {}),
        };
        let mut agent = Agent::start_by(parts, self.clock).await.unwrap();
        agent.complete_after(std::future::ready(()));
        let identity = Identity::load_or_create(&paths.node(), None).unwrap();
        let id = identity.id.clone();
        let servers = (0..self.servers).map(|server| format!("s{server}:4647").parse().unwrap());
        let pool = Pool::new(
            Arc::new(Unserved),
            "global".to_owned(),
            servers.collect(),
            self.lan.clone(),
            Chance::of(5 + number as u64),
        );
        let (_, described) = watch::channel(Arc::new(described(number)));
        let options = Options {
            acknowledged: acknowledged::load(&paths.node()),
            chance: Chance::of(9 + number as u64),
            ..Options::default()
        };
        let session = Session::new(Arc::new(pool), identity, described, options);
        let contact = session.contact();
        let mover = Mover {
            paths: paths.clone(),
            tokens: Arc::clone(&agent.context.server_tokens),
            node: id.clone(),
            region: "global".to_owned(),
            tls: None,
            unpacker: Unpacker::default(),
            turns: Semaphore::new(1),
        };
        join(&mut agent, session, watch::channel(Drivers::built_in()).1, mover, std::future::ready(()));
        Living { id, contact, paths, agent, number }
    }

    /// Ends the agent and starts another one with the same directory.
    pub(crate) async fn again(&self, living: Living) -> Living {
        let number = living.end().await;
        self.node(number).await
    }

    /// Returns the current time of the agents.
    pub(crate) fn now(&self) -> UnixNanos {
        UnixNanos(self.clock.now().wall_ns)
    }

    fn dir(&self, number: usize) -> PathBuf {
        self.ground.path().join(format!("n{number}"))
    }

    pub(crate) async fn ready(&self, living: &Living) {
        self.until(60, "the node is ready", |state| status(state, &living.id) == Some(NodeStatus::Ready))
            .await;
    }

    /// Waits until the servers' state satisfies a predicate.
    #[track_caller]
    pub(crate) fn until(
        &self,
        seconds: u64,
        what: impl Into<String>,
        is_so: impl Fn(&State) -> bool,
    ) -> impl Future<Output = ()> {
        let (place, what) = (std::panic::Location::caller(), what.into());
        let cluster = self.cluster.clone();
        async move {
            if timeout(Duration::from_secs(seconds), cluster.until(is_so)).await.is_err() {
                panic!("{place}: not within {seconds} s: {what}\n{}", state_text(&cluster));
            }
        }
    }

    #[track_caller]
    pub(crate) fn reaches(&self, id: &AllocId, status: ClientStatus) -> impl Future<Output = ()> {
        let id = id.clone();
        self.until(90, format!("{id} is {status}"), move |state| {
            state.allocs.get(&id).is_some_and(|known| known.client_status == status)
        })
    }

    /// Returns a job's allocations that are wanted to run, as the servers know them.
    pub(crate) fn desired_allocs(&self, key: &Key) -> Vec<Allocation> {
        let all = self.cluster.allocs_of(key).into_iter();
        all.filter(|alloc| !alloc.desired_status.is_terminal() && !alloc.client_status.is_terminal())
            .collect()
    }

    /// Places an allocation of a job that was not submitted on a node.
    pub(crate) fn place(&self, node: &Living, job: &Value) -> AllocId {
        let job = Job::new(herdlet_nomad_server::jobs::value(job).unwrap());
        self.cluster.write(|state| state.place(&node.id, &job, "group"))
    }

    pub(crate) fn submit(&self, job: &Value) -> Key {
        self.cluster.submit(job).unwrap()
    }
}

impl Drop for World {
    /// Mounts for tasks outlive agents, as the tasks do.
    fn drop(&mut self) {
        for mount in host::mounts_below(self.ground.path()) {
            let _ = rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

impl Living {
    /// Ends the agent, whose tasks keep running. Returns the number of the node.
    pub(crate) async fn end(self) -> usize {
        self.agent.stop().await;
        self.number
    }

    pub(crate) fn view(&self, id: &AllocId) -> Option<Arc<AllocView>> {
        self.agent.model.alloc(&id.as_str().parse().ok().map(herdlet_api_types::AllocId)?)
    }

    /// Returns the node's status of an allocation, in the servers' terms.
    pub(crate) fn status(&self, id: &AllocId) -> Option<ClientStatus> {
        self.view(id).and_then(|view| report::of(&view)).map(|report| report.client_status)
    }

    /// Returns how often the task `main` of an allocation was started, counted from its log.
    pub(crate) fn starts(&self, id: &AllocId) -> usize {
        let id = herdlet_api_types::AllocId(id.as_str().parse().unwrap());
        let log = self.paths.logs(&id).join("main.stdout.0");
        std::fs::read_to_string(log).map_or(0, |output| output.lines().count())
    }
}

/// Creates a directory in memory if possible: these tests don't cover power losses.
fn temp_dir() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Waits until a predicate is true.
#[track_caller]
pub(crate) fn within(seconds: u64, what: &str, is_so: impl Fn() -> bool) -> impl Future<Output = ()> {
    let (place, what) = (std::panic::Location::caller(), what.to_owned());
    async move {
        for _ in 0..seconds * 20 {
            if is_so() {
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
        panic!("{place}: not within {seconds} s: {what}");
    }
}

pub(crate) fn status(state: &State, node: &NodeId) -> Option<NodeStatus> {
    state.nodes.get(node).map(|known| known.node.status.clone())
}

/// Formats the servers' state for failures.
pub(crate) fn state_text(cluster: &Cluster) -> String {
    cluster.read(|state| {
        let nodes =
            state.nodes.values().map(|known| format!("node {} {}\n", known.node.id, known.node.status));
        let alloc = |alloc: &Allocation| {
            let events = alloc.task_states.values().flat_map(|task| &task.events);
            let messages: Vec<&str> = events.map(|event| event.display_message.as_str()).collect();
            format!(
                "alloc {} {} on {}: wanted {}, is {} ({}): {}\n",
                alloc.id,
                alloc.name,
                alloc.node_id,
                alloc.desired_status,
                alloc.client_status,
                alloc.client_description,
                messages.join("; ")
            )
        };
        let is_shown = |alloc: &&Allocation| {
            !alloc.client_status.is_terminal() || alloc.client_status == ClientStatus::Failed
        };
        nodes.chain(state.allocs.values().filter(is_shown).take(40).map(alloc)).collect()
    })
}

fn described(number: usize) -> Node {
    Node {
        datacenter: "dc1".to_owned(),
        name: format!("node{number}"),
        attributes: [("nomad.version".to_owned(), "1.6.5".to_owned())].into(),
        node_resources: Some(NodeResources::default()),
        reserved_resources: Some(ReservedResources::default()),
        ..Node::default()
    }
}

/// Returns a job whose only task logs its start and runs `config`. `group` has additional fields of the
/// group.
pub(crate) fn job(id: &str, kind: &str, mut config: Value, group: Value) -> Value {
    config["stdout_string"] = "started\n".into();
    let task = json!({ "Name": "main", "Driver": "mock", "Config": config });
    let mut whole = json!({
        "Name": "group", "Count": 1, "Tasks": [task],
        "RestartPolicy": { "Attempts": 0, "Mode": "fail", "Interval": 60_000_000_000_i64, "Delay": 1_000_000_000 },
    });
    if let (Some(whole), Value::Object(group)) = (whole.as_object_mut(), group) {
        whole.extend(group);
    }
    json!({ "ID": id, "Type": kind, "TaskGroups": [whole] })
}

pub(crate) const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Converts to nanoseconds, as in jobs.
pub(crate) const fn nanos(seconds: i64) -> i64 {
    seconds * 1_000_000_000
}
