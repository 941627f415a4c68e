//! The agent: starts and stops its sources, planner, executor, watchers and front ends, in this order.
//!
//! ```text
//!  start   lock ─► directories, drivers ─► database ─► world ─► loop ─► watchers ─► API ─► sources ─► complete ─► READY=1
//!  stop    API ─► sources, watchers ─► loop (flushes its commits) ─► database. Tasks run on.
//! ```

mod closing;
mod consul;
pub mod drivers;
pub mod folder;
mod orphans;
mod parts;
mod published;
mod templates;
mod watchers;

use std::{
    collections::BTreeSet,
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::Context as _;
use herdlet_api_types::{
    InstanceId, UnixNanos, alloc::Allocation, job::ConsulAccess, manifest::defaults::NODE_POOL,
    volume::Volume,
};
use herdlet_base::paths::Paths;
use herdlet_config::{MAX_KILL_TIMEOUT, consul::ConsulLogins};
use herdlet_driver::AttemptId;
use herdlet_plan::{
    context::Settings,
    env::NodeFacts,
    event::{Command, DesiredChange, Event, Refusal, Reply},
    job::{capacity::Room, cores::OfferedCores},
    state::AllocState,
    turn::Note,
    world::World,
};
use herdlet_process::cgroup::{self, Isolation};
use herdlet_render::{Renderer, sources::NodeNames};
use herdlet_runtime::{self as runtime, BootClock, Clock, Inbox, Pace, Runtime, Shell};
use herdlet_services::catalog::ConsulConfig;
use herdlet_storage::artifact::Fetcher;
use herdlet_variables::{KeySource, Store, Variables};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    consul::{ConsulSettings, Consuls, owed::OwedTokens},
    csi_plugins::CsiPlugins,
    current_node::CurrentNode,
    executor::{
        self, Executor, pressure,
        scripts::InTasks,
        services::{self, Services, sweep_consuls},
    },
    identity_keys::IdentityKeys,
    instance::Instance,
    malloc,
    networks::{AllocNetworks, Machine},
    planner::{Answer, Input, NoteSink, Planner},
    present,
    publish::ReadModel,
    published::Places,
    requests::Requests,
    server_tokens::ServerTokens,
    service_tokens::ServiceTokens,
    state_db::{Opened, ReserveUse, SetAside},
    task_sockets::TaskSockets,
    vault::{Vaults, attributes},
    watch::{addresses::watch as watch_addresses, clock, drift, networks::watch as watch_networks},
};
use consul::ConsulAttributes;
use orphans::{Extent, Memory, reconcile_found};
use watchers::Watchers;

pub use closing::close_left_open;
pub use orphans::{Orphans, Tally};
pub use parts::Parts;

/// Capacity of the inbox. When it is full, senders wait; the loop never does.
const INBOX_LEN: usize = 4_096;

/// Capacity for reports of drivers. They wait while the loop is behind.
const DRIVER_NEWS_LEN: usize = 64;

/// Capacity for tasks whose templates have new data. They wait while the loop is behind.
const TEMPLATE_CHANGES_LEN: usize = 64;

/// A running agent.
pub struct Agent {
    /// Sends events and requests to the loop.
    pub inbox: Inbox<Input>,
    /// Makes requests, subject to admission.
    pub requests: Requests,
    /// The agent's read model.
    pub model: Arc<ReadModel>,
    /// Observes and stops the loop.
    pub handle: runtime::Handle,
    /// The shared environment of operations.
    pub context: Arc<executor::Context>,
    /// How its tasks are isolated.
    pub isolation: Isolation,
    /// Objects found at the start that belong to no allocation.
    pub orphans: Orphans,
    /// Whether the reserve of disk space is released.
    pub reserve: ReserveUse,
    /// Live operations and their metrics.
    pub operations: runtime::Operations<executor::OpKey, executor::WorkKind, herdlet_plan::action::Outcome>,
    watchers: Watchers,
    /// Cancelled when the loop has ended, including by a panic.
    ended: CancellationToken,
}

impl Agent {
    /// Starts the loop and the watchers. The caller then sends the desired state through the inbox, and reports with
    /// [`Agent::complete_after`] that it is complete.
    ///
    /// # Errors
    /// If keys or catalogues can't be prepared.
    pub async fn start(parts: Parts) -> anyhow::Result<Self> {
        Self::start_by(parts, BootClock).await
    }

    /// Like [`Agent::start`], with another clock for the planner's decisions.
    ///
    /// # Errors
    /// As [`Agent::start`].
    pub async fn start_by(parts: Parts, clock: impl Clock) -> anyhow::Result<Self> {
        let Parts {
            instance,
            state,
            node,
            mut settings,
            volumes,
            consuls,
            start_pressure_limit,
            task_dir_users,
            artifacts,
            variables,
            secrets_plugins,
            templates,
            network,
            issuer,
            vault,
            notes,
        } = parts;
        let bare = node.clone();
        let node = drivers::described(node, &instance.drivers).await;
        settings.node = node.clone();
        let current = CurrentNode::new(node);
        let host_ip = settings.host_ip.clone();
        let places = Places { host_ip: host_ip.clone(), networks: settings.host_networks.clone() };
        let Opened { store, records, damaged, rebuilt, incomplete, forgotten } = state;
        for SetAside { what, path, why } in &damaged {
            tracing::error!(why, "stored state ({what}) cannot be read: it was moved to {}", path.display());
        }
        if rebuilt {
            tracing::warn!(
                path = %store.path().display(), records = records.len(),
                "the state database was missing or damaged, and was rebuilt from the plain files beside it; an ended \
                 batch job whose directory was collected runs again"
            );
        }
        let reserve = store.reserve_use();
        let now = present::by(clock.now());
        let (mut world, unusable) = World::restore(settings, now, records);
        let earlier = begun_earlier(&world);
        let found = drivers::attach_all(&instance.drivers, &earlier).await;
        let known = drivers::Reported::of(&instance.drivers);
        known.apply(now, &bare, &mut world);
        for unusable in &unusable {
            tracing::error!(?unusable, "ignoring a stored object without its counterpart");
        }
        let extent = if incomplete || !unusable.is_empty() { Extent::Part } else { Extent::Whole };
        let memory = Memory::new(&world, forgotten, extent);
        let of_machine = network.clone();
        let networks = Arc::new(AllocNetworks::new(
            Arc::clone(&instance.bridge),
            network,
            &instance.paths,
            Machine::new(&host_ip, current.clone()),
        ));
        let (found, orphans) = reconcile_found((&instance, &networks), &memory, found).await;
        let (inbox, arrivals) = Inbox::with_capacity(INBOX_LEN);
        let model = Arc::new(ReadModel::default());
        let identity_keys =
            Arc::new(IdentityKeys::new(instance.paths.keys(), Arc::clone(&model), issuer.url.clone()));
        // Tasks without identities don't need them.
        if let Err(error) = identity_keys.signer().check() {
            tracing::error!("failed to {error}; until then, tasks with identities wait");
        }
        let scripts = InTasks { drivers: instance.drivers.clone(), model: Arc::clone(&model) };
        let service_tokens = Arc::new(ServiceTokens::new(instance.paths.service_tokens()));
        let configs = consuls.iter().map(|(name, (config, _))| (name.clone(), config.clone())).collect();
        let (consul_attributes, of_consul) = ConsulAttributes::new(&configs)?;
        let (services, news) =
            Services::new(instance.id.clone(), &configs, Arc::new(scripts), Arc::clone(&service_tokens))?;
        let consuls = Arc::new(Consuls::new(consuls)?);
        let owed_tokens = Arc::new(OwedTokens::new(instance.paths.owed_tokens()));
        let vaults = Arc::new(Vaults::new(vault));
        let (vault_attributes, of_vault) = watch::channel(attributes::Attributes::new());
        let renderer = Arc::new(Renderer::new(
            herdlet_render::Sources {
                variables,
                catalogue: Arc::clone(&services.catalogs.built_in),
                node: NodeNames { id: bare.id.clone(), datacenter: bare.datacenter.clone() },
                consuls: templates::consuls(&configs)?,
            },
            templates::settings(templates),
        ));
        let cgroups = instance.isolation.cgroups();
        let context = Arc::new(executor::Context {
            instance: instance.id.clone(),
            paths: instance.paths.clone(),
            node: current.clone(),
            host_ip,
            privileges: instance.privileges,
            task_dir_users,
            drivers: instance.drivers.clone(),
            signer: identity_keys.signer(),
            identity_keys,
            issuer,
            vaults: Arc::clone(&vaults),
            consuls: Arc::clone(&consuls),
            owed_tokens: Arc::clone(&owed_tokens),
            service_tokens,
            server_tokens: Arc::new(ServerTokens::new(instance.paths.clone())),
            cluster: OnceLock::new(),
            published: published::open(&instance, places, &services.catalogs, &model),
            services,
            artifacts: Arc::new(Fetcher::new(artifacts)),
            renderer: Arc::clone(&renderer),
            secrets_plugins,
            networks: Arc::clone(&networks),
            csi_plugins: CsiPlugins::new(&instance.paths, inbox.clone()),
            task_sockets: TaskSockets::default(),
            host_env: executor::inheritable(std::env::vars()),
            cgroup_parent: cgroups.map(|_| cgroup::reported_parent(&instance.cgroup_parent)),
        });
        executor::api_socket::sweep(&context);
        services::restore_built_in(&context, now.boot, world.allocations());
        model.history().begin(BootClock.now().boot_ns);
        model.history().adopt(world.allocations().map(|(spec, _)| spec.id));
        let notes = remembered(notes, &model);
        let pace = Pace::new(move || pressure::is_above(start_pressure_limit));
        let executor = Executor::new(Arc::clone(&context), inbox.clone(), pace);
        let operations = executor.operations();
        let (runtime, handle) = Runtime::new(Shell {
            world: Planner::new(world, now.boot, Arc::clone(&notes)),
            arrivals,
            store,
            executor,
            publisher: model.publisher(),
            clock,
            settings: runtime::Settings::default(),
        });
        let requests =
            Requests::new(inbox.clone(), &handle, context.paths.state.clone(), Arc::clone(&networks));
        let ended = CancellationToken::new();
        let end_guard = ended.clone().drop_guard();
        tokio::spawn(async move {
            runtime.run().await;
            drop(end_guard);
        });
        for event in found.into_iter().chain(volumes.into_iter().map(declare_volume)) {
            inbox.send(Input::Event(event)).await.context("reach the loop")?;
        }
        let mut watchers = Watchers::default();
        watchers.open(news.follow(Arc::clone(&model), inbox.clone()));
        let (news_of_drivers, drivers_news) = mpsc::channel(DRIVER_NEWS_LEN);
        let recorded = drivers::recorded(earlier, &model);
        watchers.open(instance.drivers.clone().follow(recorded, news_of_drivers));
        let reports = drivers::Reports {
            drivers: instance.drivers.clone(),
            model: Arc::clone(&model),
            inbox: inbox.clone(),
            notes: Arc::clone(&notes),
            paths: instance.paths.clone(),
            extent,
        };
        watchers.open(reports.pass_on(drivers_news));
        watchers.open(known.follow_changes(
            instance.drivers.clone(),
            drivers::Described { bare, current, consul: of_consul, vault: of_vault },
            inbox.clone(),
        ));
        watchers.open(consul_attributes.follow(Arc::clone(&model)));
        watchers.open(owed_tokens.follow(consuls));
        watchers.open(attributes::follow(vaults, vault_attributes));
        watchers.open(drift::watch_mounts(instance.paths.clone(), Arc::clone(&model), inbox.clone()));
        watchers.open(drift::watch_directories(instance.paths.clone(), Arc::clone(&model), inbox.clone()));
        let (changed, data_changes) = mpsc::channel(TEMPLATE_CHANGES_LEN);
        watchers.open(async move { renderer.follow(changed).await });
        watchers.open(templates::report_changes(data_changes, inbox.clone()));
        watchers.open(watch_networks(networks, Arc::clone(&model), inbox.clone(), notes));
        watchers.open(watch_addresses(of_machine, inbox.clone()));
        watchers.open(Arc::clone(&context.published).follow(handle.first_turn.clone()));
        watchers.open(clock::watch(inbox.clone()));
        watchers.open(Arc::clone(&context.identity_keys).maintain(handle.first_turn.clone()));
        if let Some(ports) = requests.ports() {
            watchers.open(async move { ports.follow().await });
        }
        watchers.open(malloc::give_back_after_changes(Arc::clone(&model)));
        Ok(Self {
            inbox,
            requests,
            model,
            handle,
            context,
            isolation: instance.isolation,
            orphans,
            reserve,
            operations,
            watchers,
            ended,
        })
    }

    /// When `all_said` resolves, every source has reported its complete desired state. From then on, objects that no source named
    /// may be removed.
    pub fn complete_after(&mut self, all_said: impl Future<Output = ()> + Send + 'static) {
        let (context, model, inbox) =
            (Arc::clone(&self.context), Arc::clone(&self.model), self.inbox.clone());
        self.watch(async move {
            all_said.await;
            let complete = Event::Desired(DesiredChange::Complete);
            if inbox.send(Input::Event(complete)).await.is_err() {
                return;
            }
            // A request is answered after all events sent before it, so the read model then holds the complete desired state.
            let nothing = Command::Apply { jobs: Vec::new(), volumes: Vec::new() };
            if request(&inbox, nothing).await.is_ok() {
                sweep_consuls(context, model).await;
            }
        });
    }

    /// Resolves when a component has ended without which the agent can't continue, and returns an error that names it. The agent
    /// then has to be stopped and restarted. Cancel-safe.
    pub async fn failed(&mut self) -> anyhow::Error {
        tokio::select! {
            biased;
            () = self.ended.cancelled() => anyhow::anyhow!("continue: the main loop has ended unexpectedly"),
            how = self.watchers.panicked() => anyhow::anyhow!("continue: a part of the agent has panicked: {how}"),
        }
    }

    /// Runs a future alongside the agent and stops it with the agent.
    pub fn watch(&mut self, watcher: impl Future<Output = ()> + Send + 'static) {
        self.watchers.open(watcher);
    }

    /// Stops the agent; its tasks keep running.
    pub async fn stop(self) {
        self.watchers.close().await;
        self.handle.shutdown.cancel();
        // The loop flushes its commits within its own time limit.
        if tokio::time::timeout(Duration::from_secs(15), self.ended.cancelled()).await.is_err() {
            tracing::error!("the main loop did not end in time; unanswered requests may be lost");
        }
        let networks = Arc::clone(&self.context.networks);
        // The async runtime may be shutting down already.
        let _ = runtime::off_thread(move || networks.remove_unused()).await;
    }
}

/// The variables of a state directory, with the key that is kept in it.
///
/// # Errors
/// If they can't be opened.
pub fn variables_in(paths: &Paths) -> anyhow::Result<Arc<Variables>> {
    let keys = KeySource::choose(None, None, &paths.state.join("keys"));
    let store = Store::open(&paths.state, keys).context("open the variables")?;
    Ok(Arc::new(Variables::new(store)))
}

/// Sends a request to the planner and waits until it is durable.
///
/// # Errors
/// If the loop ended before the request was committed.
pub async fn request(inbox: &Inbox<Input>, command: Command) -> anyhow::Result<Answer> {
    let (sender, answer) = oneshot::channel();
    inbox.send(Input::Request(command, sender)).await.context("the agent is shutting down")?;
    answer.await.context("the agent ended before the request was durable")
}

/// Converts a refusal to an error.
///
/// # Errors
/// If the request was refused.
pub fn accepted(answer: Answer) -> anyhow::Result<Reply> {
    if let Reply::Refused(Refusal::NotFound(why) | Refusal::Conflict(why)) = answer.reply {
        anyhow::bail!("{why}");
    }
    Ok(answer.reply)
}

/// The attempts that an earlier agent may have started.
fn begun_earlier(world: &World) -> drivers::Earlier {
    let mut all = drivers::Earlier::default();
    let of_alloc = |(spec, state): (&Arc<Allocation>, &AllocState)| {
        for (index, task) in (0..).zip(&state.durable.tasks) {
            let first = state.maybe_begun.contains(&index).then_some(1);
            let (Some(attempt), Some(of)) = (task.live_attempt().or(first), spec.task(&task.name)) else {
                continue;
            };
            let id = AttemptId { alloc: spec.id, task: task.name.to_string(), attempt };
            all.entry(of.driver.clone()).or_default().insert(id);
        }
    };
    world.allocations().for_each(of_alloc);
    all
}

fn declare_volume(volume: Volume) -> Event {
    Event::Desired(DesiredChange::Volume(Box::new(volume)))
}

/// Keeps drift notes in the history for a while, and passes all notes on.
fn remembered(notes: NoteSink, model: &Arc<ReadModel>) -> NoteSink {
    let model = Arc::clone(model);
    Arc::new(move |note| {
        match note {
            Note::DriftDetected { of, by, why } => {
                model.history().drift_found(UnixNanos(BootClock.now().wall_ns), of, (*by, why));
            }
            Note::DriftRepaired { of, took_ns } => {
                let now_ns = BootClock.now().boot_ns;
                model.history().drift_repaired(now_ns, of, took_ns.unwrap_or_default());
            }
            Note::DriftDropped { of } => model.history().drift_dropped(of),
            Note::TaskRestart { .. }
            | Note::OutOfMemory { .. }
            | Note::Disruption { .. }
            | Note::Converged { .. }
            | Note::Reconciled { .. } => {}
        }
        notes(note);
    })
}

/// The planner's settings where the config sets nothing.
pub fn planner_settings(instance: InstanceId) -> Settings {
    Settings {
        instance,
        max_kill_timeout: MAX_KILL_TIMEOUT,
        dynamic_ports: herdlet_plan::limits::DYNAMIC_PORTS,
        host_ip: "127.0.0.1".to_owned(),
        host_networks: std::collections::BTreeMap::new(),
        node: NodeFacts::default(),
        room: Room::ENDLESS,
        cores: OfferedCores::Unsupported { why: "this agent offers none".to_owned() },
        reserved_ports: BTreeSet::new(),
        start_offline: false,
    }
}

/// Facts about this machine for jobs that are run here without a cluster. The node's id is the instance's.
pub fn node_facts(instance: &Instance) -> NodeFacts {
    NodeFacts {
        id: instance.id.0.clone(),
        name: "local".to_owned(),
        datacenter: "dc1".to_owned(),
        region: "global".to_owned(),
        pool: NODE_POOL.to_owned(),
        attributes: herdlet_fingerprint::attributes(herdlet_fingerprint::room(&instance.paths.state)),
        ..NodeFacts::default()
    }
}

/// The Consul agent specified by the environment, by its name.
///
/// # Errors
/// If the address is invalid.
pub fn consul_from_env() -> anyhow::Result<ConsulSettings> {
    let variable = |name: &str| std::env::var(name).ok();
    let config = ConsulConfig::resolve(None, None, variable).context("read CONSUL_HTTP_ADDR")?;
    Ok([(ConsulAccess::DEFAULT_CLUSTER.to_owned(), (config, ConsulLogins::default()))].into())
}
