//! The drivers `docker` and `podman`: the contract of drivers over an engine's API.
//!
//! In: attempts. Out: containers and their results. The ledger has two parts: a record, created before the container and turned into a
//! fence without any engine, and the container's unique name. An engine that does not answer fails no running task: calls return
//! errors that are retried, and exits are determined once it answers.

mod collect;
mod follow;
mod group_network;
mod launch;
mod locate;
mod prepare;
mod recover;
mod start;
mod stop;
mod sweep;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use bollard::{models::ContainerSummary, query_parameters::KillContainerOptionsBuilder};
use futures_util::{
    FutureExt as _, StreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use herdlet_api_types::{
    driver::{DOCKER, DockerOptions, DriverInfo, PODMAN, REMAPS_USERS},
    job::Task,
};
use herdlet_base::signal;
use herdlet_driver::{
    AttemptId, DriverError, DriverResult, Earlier, ExecRequest, ExecSession, Exited, Fingerprint, Health,
    ImageView, Leftover, Outlet, Recovered, Recovery, Started, StopRequest, TaskConfig, TaskDriver,
    TaskEvent, Usage,
};
use tokio::{sync::watch, time};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    check::checked,
    config,
    create::{self, Compute},
    engine::{About, Engine, Engines, Place, State, candidates, uses_builtin},
    exec, failure,
    names::{Naming, Owner},
    policy::{Mode, Policy},
    pulls::Pulls,
    records::Records,
    runs::{Run, Runs},
    stats,
    used::UsedImages,
};

/// How often an engine is looked for on a machine that has none.
const SEARCH_PERIOD: Duration = Duration::from_secs(60);

/// How often a pull that lasts is an event of its task. Few tasks have more events than are kept.
const PULL_EVENT_PERIOD: Duration = Duration::from_secs(20);

/// How to open a driver.
#[derive(Debug, Clone)]
pub struct Setup {
    /// `docker` or `podman`.
    pub driver: String,
    /// The directory of its records, in the agent's state.
    pub dir: PathBuf,
    /// The agent's instance, which owns the containers.
    pub instance: String,
    /// Its options in the agent's config.
    pub options: DockerOptions,
    /// Whether the agent is a node of a cluster.
    pub mode: Mode,
    /// The clock rate of all cores of this machine in MHz, and their number; 0 if unknown.
    pub compute: (u64, u64),
}

impl Setup {
    pub(crate) fn compute(&self) -> Compute {
        let (mhz, cores) = self.compute;
        Compute { mhz, cores }
    }
}

/// A driver that can't be opened. Continues "failed to".
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An option can't be honoured.
    #[error("use the options of driver {driver}: {why}")]
    Options { driver: String, why: String },
    /// Its records can't be read.
    #[error("open the records in {dir}")]
    Records { dir: PathBuf, source: std::io::Error },
}

/// The driver `docker` or `podman`.
pub struct Containers {
    shared: Arc<Shared>,
    /// Ends its tasks.
    _tasks: DropGuard,
}

struct Shared {
    info: Arc<DriverInfo>,
    owner: Owner,
    naming: Naming,
    policy: Policy,
    compute: Compute,
    records: Records,
    used: UsedImages,
    preparing: collect::Preparing,
    pause_locks: group_network::PauseLocks,
    runs: Runs,
    earlier: Earlier,
    /// The containers of this instance when their engine was last connected to, by socket; an attempt is removed when it changes.
    listed: Mutex<HashMap<PathBuf, BTreeMap<AttemptId, ContainerSummary>>>,
    /// The attempts of the first of these lists, by socket; none once they were used, or have changed.
    first_lists: watch::Sender<HashMap<PathBuf, Option<locate::FirstList>>>,
    /// Sockets of engines that were restarted while no agent ran.
    restarted: Mutex<BTreeSet<PathBuf>>,
    engines: Mutex<Engines>,
    pulls: Pulls,
    pull_event_period: Duration,
    exits: Outlet<Exited>,
    events: Outlet<TaskEvent>,
    /// Set once unused containers and images are looked for.
    cleaning: OnceLock<()>,
    /// Whether this agent may mount anything.
    can_mount: OnceLock<bool>,
    ended: CancellationToken,
}

impl Containers {
    /// Opens the driver. Connects to nothing before the first call. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If an option can't be honoured, or the records can't be read.
    pub fn open(setup: Setup) -> Result<Self, OpenError> {
        let compute = setup.compute();
        let Setup { driver, dir, instance, options, mode, compute: _ } = setup;
        let policy =
            Policy::of(&options, mode).map_err(|why| OpenError::Options { driver: driver.clone(), why })?;
        let opened =
            Records::open(&dir).and_then(|records| Ok((records, UsedImages::open(&dir.join("images"))?)));
        let (records, used) = opened.map_err(|source| OpenError::Records { dir, source })?;
        let info = checked(if driver == PODMAN { DriverInfo::podman() } else { DriverInfo::docker() });
        let ended = CancellationToken::new();
        let naming = match mode {
            Mode::Node => Naming::Nomad,
            Mode::Standalone => Naming::Own,
        };
        let shared = Shared {
            info: Arc::new(info),
            owner: Owner { instance, driver },
            naming,
            policy,
            compute,
            records,
            used,
            preparing: Default::default(),
            pause_locks: Default::default(),
            runs: Runs::default(),
            earlier: Earlier::default(),
            listed: Mutex::default(),
            first_lists: watch::Sender::default(),
            restarted: Mutex::default(),
            engines: Mutex::default(),
            pulls: Pulls::default(),
            pull_event_period: PULL_EVENT_PERIOD,
            exits: Outlet::default(),
            events: Outlet::default(),
            cleaning: OnceLock::new(),
            can_mount: OnceLock::new(),
            ended: ended.clone(),
        };
        Ok(Self { shared: Arc::new(shared), _tasks: ended.drop_guard() })
    }
}

impl Containers {
    pub(crate) fn policy(&self) -> &Policy {
        &self.shared.policy
    }

    /// Whether there is a record of an attempt, or its allocation has an engine.
    pub(crate) fn has(&self, id: &AttemptId) -> DriverResult<bool> {
        if self.shared.record(id)?.is_some() {
            return Ok(true);
        }
        let of_alloc = self.shared.records.engine_of(id);
        let of_alloc =
            of_alloc.map_err(|error| DriverError::retry(format!("read the records of {id}: {error}")));
        Ok(of_alloc?.is_some())
    }

    /// Whether no attempt has a record.
    pub(crate) fn is_unused(&self) -> bool {
        self.shared.recorded().is_ok_and(|recorded| recorded.is_empty())
    }
}

impl TaskDriver for Containers {
    fn info(&self) -> Arc<DriverInfo> {
        Arc::clone(&self.shared.info)
    }

    fn fingerprint(&self) -> BoxStream<'static, Fingerprint> {
        let shared = Arc::clone(&self.shared);
        let changes = stream::unfold((shared, None::<State>), |(shared, last)| async move {
            loop {
                let engine = shared.current();
                let mut state = engine.watch();
                let now = state.borrow_and_update().clone();
                if now != State::New && last.as_ref() != Some(&now) {
                    let fingerprint = shared.fingerprint(&now);
                    return Some((fingerprint, (shared, Some(now))));
                }
                tokio::select! {
                    changed = state.changed() => changed.ok()?,
                    () = shared.ended.cancelled() => return None,
                    // Another engine may be installed meanwhile.
                    () = time::sleep(SEARCH_PERIOD), if engine.about().is_none() => {}
                }
            }
        });
        changes.chain(stream::pending()).boxed()
    }

    fn exits(&self) -> BoxStream<'static, Exited> {
        self.shared.exits.stream()
    }

    fn events(&self) -> BoxStream<'static, TaskEvent> {
        self.shared.events.stream()
    }

    fn set_earlier(&self, known: &BTreeSet<AttemptId>) {
        self.shared.earlier.set(known);
        // Called again before each attempt to list: there is one loop of each kind.
        if self.shared.cleaning.set(()).is_ok() {
            tokio::spawn(sweep::run(Arc::clone(&self.shared)));
            tokio::spawn(collect::run(Arc::clone(&self.shared)));
        }
    }

    fn refusal(&self, task: &Task) -> Option<String> {
        let config = config::read(&self.shared.info.name, &task.config).ok()?;
        create::denial(&config, &self.shared.policy)
    }

    fn prepare<'a>(
        &'a self,
        config: &'a TaskConfig,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, DriverResult<()>> {
        self.shared.prepare(config, cancel).boxed()
    }

    fn start(&self, config: TaskConfig) -> BoxFuture<'_, DriverResult<Started>> {
        self.shared.start(config).boxed()
    }

    fn recover(&self, recovery: Recovery) -> BoxFuture<'_, DriverResult<Recovered>> {
        async move { self.shared.recover(&recovery.id).await }.boxed()
    }

    fn stop<'a>(&'a self, id: &'a AttemptId, how: StopRequest) -> BoxFuture<'a, DriverResult<()>> {
        self.shared.stop(id, how).boxed()
    }

    fn destroy<'a>(&'a self, id: &'a AttemptId, leftover: Leftover) -> BoxFuture<'a, DriverResult<()>> {
        self.shared.destroy(id, leftover).boxed()
    }

    fn list_attempts(&self) -> BoxFuture<'_, DriverResult<Vec<AttemptId>>> {
        self.shared.list().boxed()
    }

    fn images(&self) -> BoxFuture<'_, DriverResult<Vec<ImageView>>> {
        self.shared.images().boxed()
    }

    fn stats<'a>(
        &'a self,
        id: &'a AttemptId,
        interval: Duration,
    ) -> BoxFuture<'a, DriverResult<BoxStream<'static, DriverResult<Usage>>>> {
        async move {
            let run = self.shared.running(id)?;
            let client = &run.engine.reach().await.map_err(DriverError::retry)?;
            Ok(stats::follow(client, &run.container, interval, Arc::clone(&run.times)))
        }
        .boxed()
    }

    fn signal<'a>(&'a self, id: &'a AttemptId, name: &'a str) -> BoxFuture<'a, DriverResult<()>> {
        async move {
            signal::parse(name).map_err(DriverError::fatal)?;
            let run = self.shared.running(id)?;
            let client = &run.engine.reach().await.map_err(DriverError::retry)?;
            let options = KillContainerOptionsBuilder::new().signal(name).build();
            let sent = client.kill_container(&run.container, Some(options)).await;
            sent.map_err(|error| failure::retry(&format!("send {name} to {id}"), &error))
        }
        .boxed()
    }

    fn exec_streaming<'a>(
        &'a self,
        id: &'a AttemptId,
        request: ExecRequest,
    ) -> BoxFuture<'a, DriverResult<ExecSession>> {
        async move {
            let run = self.shared.running(id)?;
            let client = &run.engine.reach().await.map_err(DriverError::retry)?;
            exec::session((client, run.engine.socket()), &run.container, request).await
        }
        .boxed()
    }
}

impl Shared {
    /// The engine for new allocations.
    fn current(self: &Arc<Self>) -> Arc<Engine> {
        self.engine(candidates(&self.info.name, &self.policy))
    }

    /// Whether new allocations use the engine in the agent instead.
    fn is_replaced(&self) -> bool {
        self.info.name == DOCKER && uses_builtin(&self.policy)
    }

    /// The engine at a place. Follows it from now on.
    fn engine(self: &Arc<Self>, place: Place) -> Arc<Engine> {
        let mut engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
        let known = engines.entry(place.socket.clone()).or_insert_with(|| {
            let engine = Engine::new(place, self.policy.call_timeout);
            let memory = self.records.daemon(engine.socket());
            let listener = Arc::new(follow::DriverListener(Arc::clone(self)));
            let following = Arc::clone(&engine).follow(self.owner.clone(), listener, memory);
            let ended = self.ended.clone();
            tokio::spawn(async move { ended.run_until_cancelled(following).await });
            engine
        });
        Arc::clone(known)
    }

    fn running(&self, id: &AttemptId) -> DriverResult<Arc<Run>> {
        match self.runs.get(id) {
            Some(run) if run.exit().is_none() => Ok(run),
            Some(_) => Err(DriverError::fatal(format!("reach {id}: it is not running"))),
            None => Err(DriverError::Gone(id.clone())),
        }
    }

    fn message(&self, id: &AttemptId, message: String) {
        if !self.events.try_send(TaskEvent::Message { id: id.clone(), message }) {
            tracing::debug!(%id, "a message about a task was dropped: too many are waiting");
        }
    }

    fn fingerprint(&self, state: &State) -> Fingerprint {
        let nothing = |health, why: &str| Fingerprint {
            health,
            description: why.to_owned(),
            attributes: BTreeMap::new(),
        };
        match state {
            State::New => nothing(Health::Undetected, "it has not answered yet"),
            State::Down { why, was: None } => nothing(Health::Undetected, &format!("failed to {why}")),
            State::Down { why, was: Some(_) } => nothing(Health::Unhealthy, &format!("failed to {why}")),
            State::Up(about) if about.rootless => nothing(
                Health::Unhealthy,
                "the engine is rootless: it can't mount the directories of tasks, which belong to root; use one that runs as root",
            ),
            State::Up(about) => Fingerprint {
                health: Health::Healthy,
                description: "Healthy".to_owned(),
                attributes: self.attributes(about),
            },
        }
    }

    /// Nomad's attributes.
    fn attributes(&self, about: &About) -> BTreeMap<String, String> {
        let name = &self.info.name;
        let mut all = BTreeMap::from([
            ("version", about.version.clone()),
            ("os_type", about.os_type.clone()),
            ("engine", if about.is_docker() { "docker" } else { "podman" }.to_owned()),
        ]);
        if let Some(ip) = &about.bridge_ip {
            all.insert("bridge_ip", ip.clone());
        }
        if !about.runtimes.is_empty() {
            all.insert("runtimes", about.runtimes.join(","));
        }
        if self.policy.allow_privileged {
            all.insert("privileged.enabled", "true".to_owned());
        }
        if self.policy.host_paths {
            all.insert("volumes.enabled", "true".to_owned());
        }
        if about.remaps_users {
            all.insert(REMAPS_USERS, "true".to_owned());
        }
        if !about.is_docker() {
            all.insert("rootless", about.rootless.to_string());
            all.insert("cgroupVersion", format!("v{}", about.cgroup_version));
        }
        all.into_iter().map(|(key, value)| (format!("driver.{name}.{key}"), value)).collect()
    }
}

#[cfg(test)]
mod tests;
