//! The engine in the agent: containers without a daemon, as processes of the agent's own supervisors.
//!
//! In: attempts of the driver `docker`. Out: what the contract of drivers asks for. Starts, exits, stops, logs, commands and statistics
//! are those of the process engine ([`herdlet_process::engine`]); here are images, roots, and rights as other engines give them. A
//! request is made as for these, so that a job has the same meaning; what can't be done is refused by its key.
//!
//! | part | contents |
//! | --- | --- |
//! | `tasks` | a task as a process |
//! | `process`, `program`, `users`, `calls` | its environment, rights and limits; its command; its user; its system calls |
//! | `root`, `machine_devices` | its root |
//! | `network_plan`, `networks`, `network_repair`, `files` | its network, if it has one of its own; files about it |
//! | `pull` | its image |
//! | `store` | all images, for people |
//! | `dirs` | its directory, with what it changes |
//! | `storage_options`, `size_limit` | the limit of what it changes |
//! | `refuse` | what is refused |
//! | `shared` | what these parts share |

mod calls;
mod dirs;
mod files;
mod machine_devices;
mod network_plan;
mod network_repair;
mod networks;
mod process;
mod program;
mod pull;
mod refuse;
mod root;
mod shared;
mod size_limit;
mod storage_options;
mod store;
mod tasks;
mod users;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::stream::{self, BoxStream, StreamExt as _};
use herdlet_api_types::{
    AllocId, UnixNanos,
    driver::{DOCKER, DriverInfo, DriverNetwork, ImageUse, ImageView},
    job::Task,
};
use herdlet_base::error::in_full;
use herdlet_driver::{
    AttemptId, DriverError, DriverResult, ImageStore, Leftover, Outlet, Recovered, Recovery, Started,
    StopRequest, TaskConfig, TaskDriver, TaskEvent,
};
use herdlet_images::{
    Reference,
    store::{Claims, Extent, PruneOrder, RemovalReport, Store},
};
use herdlet_process::{
    engine::{Engine, Setup},
    exec::Roots,
};
use tokio::{sync::Notify, time};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use self::network_plan::ContainerNetworks;
use self::{
    calls::CallFilters,
    dirs::{ContainerDirs, ContainerRecord},
    shared::BuiltinState,
    store::OperatedStore,
    tasks::ContainerTasks,
};
use crate::{
    config::{self, FieldError},
    create::Compute,
    policy::Policy,
};

/// The stop signal of images that name none.
const STOP_SIGNAL: &str = "SIGTERM";
/// After a removal, more containers may be removed: images are collected once for all of them.
const COLLECT_DELAY: Duration = Duration::from_secs(1);

/// What the engine needs besides the driver's options.
#[derive(Debug)]
pub struct ContainerSetup {
    /// How tasks run as processes.
    pub setup: Setup,
    /// How roots are made.
    pub roots: Arc<Roots>,
    /// The directory of the store of images.
    pub images: std::path::PathBuf,
    /// Where networks are made.
    pub networks: ContainerNetworks,
}

/// The engine.
#[derive(Debug)]
pub(crate) struct Builtin {
    pub(crate) engine: Engine,
    shared: Arc<BuiltinState>,
    _tasks: DropGuard,
}

/// How to open it.
pub(crate) struct Opening<'o> {
    pub(crate) policy: Policy,
    pub(crate) compute: Compute,
    pub(crate) instance: String,
    pub(crate) info: DriverInfo,
    /// The directory of its containers.
    pub(crate) dir: &'o Path,
}

impl Builtin {
    /// Opens it. Must be called within a tokio runtime.
    pub(crate) fn open(opening: Opening<'_>, isolated: ContainerSetup) -> Result<Self, std::io::Error> {
        let Opening { policy, compute, instance, info, dir } = opening;
        let ContainerSetup { setup, roots, images, networks } = isolated;
        let store = Store::open(&images).map_err(std::io::Error::other)?;
        let shared = Arc::new(BuiltinState {
            policy,
            compute,
            instance,
            store,
            dirs: ContainerDirs::open(dir)?,
            roots,
            filters: CallFilters::default(),
            events: Outlet::default(),
            removed: Notify::new(),
            networks,
            connected: Notify::new(),
            limited: Notify::new(),
            recording: std::array::from_fn(|_| Mutex::default()),
            network_turn: Mutex::default(),
        });
        let ended = CancellationToken::new();
        tokio::spawn(ended.clone().run_until_cancelled_owned(collect(Arc::clone(&shared))));
        let engine = Engine::new(info, ContainerTasks(Arc::clone(&shared)), setup);
        let repairs = network_repair::keep_repaired(Arc::clone(&shared), engine.clone());
        tokio::spawn(ended.clone().run_until_cancelled_owned(repairs));
        let limits = size_limit::enforce(Arc::clone(&shared), engine.clone());
        tokio::spawn(ended.clone().run_until_cancelled_owned(limits));
        Ok(Self { engine, shared, _tasks: ended.drop_guard() })
    }

    /// Whether an attempt is one of this engine.
    ///
    /// # Errors
    /// If the records can't be read.
    pub(crate) fn has(&self, id: &AttemptId) -> DriverResult<bool> {
        // Its directory is removed before the record of its process: an agent may have ended in between.
        Ok(self.shared.dirs.exists(id) || self.engine.has_record(id)?)
    }

    /// Whether an allocation has an attempt here.
    pub(crate) fn has_alloc(&self, alloc: AllocId) -> DriverResult<bool> {
        let found = self.shared.dirs.has_alloc(alloc);
        found.map_err(|error| DriverError::retry(format!("list the containers: {error}")))
    }

    pub(crate) fn events(&self) -> BoxStream<'static, TaskEvent> {
        stream::select(self.engine.events(), self.shared.events.stream()).boxed()
    }

    pub(crate) async fn prepare(&self, task: &TaskConfig, cancel: &CancellationToken) -> DriverResult<()> {
        let (config, _) = self.shared.read(task)?;
        let fetched = pull::fetch(&self.shared, task, &config.docker, cancel).await;
        self.shared.progress(&task.id, String::new());
        fetched
    }

    /// Starts an attempt. Its record comes first: it keeps the image, and makes the attempt one of this engine.
    pub(crate) async fn start(&self, task: TaskConfig) -> DriverResult<Started> {
        let id = task.id.clone();
        if self.shared.recorded(&id)?.is_none() {
            let (config, request) = self.shared.read(&task)?;
            let image = Reference::parse(&config.docker.image).map_err(DriverError::fatal)?;
            let found = pull::find(&self.shared, &image).await?.ok_or_else(|| {
                DriverError::recoverable(format!(
                    "find the image {image}: it was removed since it was pulled"
                ))
            })?;
            let mut record = ContainerRecord::new(&config.docker.image, found.id.as_str(), &found.config);
            let (shared, own) = (Arc::clone(&self.shared), id.clone());
            let claimed = herdlet_runtime::off_thread(move || {
                let _turn = shared.recording_of(&own);
                if shared.recorded(&own)?.is_some() {
                    return Ok(());
                }
                record.network = shared.plan_network(own.alloc, &request)?;
                record.changes_bytes_max = storage_options::of_options(request.storage_options())?;
                let written = shared.dirs.write(&own, &record);
                written.map_err(|error| DriverError::retry(format!("record {own}: {error}")))?;
                if record.changes_bytes_max.is_some() {
                    shared.limited.notify_one();
                }
                let failed = |error| DriverError::retry(in_full(&error));
                // Most containers have an image that another one of this agent has.
                if shared.store.is_claimed(&shared.instance, &found.id).map_err(failed)? {
                    return Ok(());
                }
                shared.store.claim(&shared.claims()?).map_err(failed)
            });
            claimed.await.map_err(|error| DriverError::retry(format!("record {id}: {error}")))??;
        }
        let started = self.engine.start(task).await?;
        Ok(Started { network: self.network(&id).await?, ..started })
    }

    pub(crate) async fn recover(&self, recovery: Recovery) -> DriverResult<Recovered> {
        let (id, known) = (recovery.id.clone(), recovery.network.clone());
        let recovered = self.engine.recover(recovery).await?;
        let Recovered::Running(started) = recovered else { return Ok(recovered) };
        let network = self.network(&id).await.unwrap_or_else(|error| {
            tracing::warn!(%id, error = error.why(), "failed to inspect the network of a container");
            known
        });
        Ok(Recovered::Running(Started { network, ..started }))
    }

    /// The network that was made for a running container.
    async fn network(&self, id: &AttemptId) -> DriverResult<Option<DriverNetwork>> {
        let (shared, engine, own) = (Arc::clone(&self.shared), self.engine.clone(), id.clone());
        let found = herdlet_runtime::off_thread(move || shared.driver_network(&engine, &own)).await;
        found.map_err(|error| DriverError::retry(format!("inspect the network of {id}: {error}")))?
    }

    /// Stops an attempt, by the signal of its image if neither the task nor the request names one.
    pub(crate) async fn stop(&self, id: &AttemptId, how: StopRequest) -> DriverResult<()> {
        let of_image = || {
            let record = self.shared.recorded(id).ok().flatten();
            let signal = record.map(|record| record.stop_signal).filter(|signal| !signal.is_empty());
            // An image may contain anything.
            let known = signal.filter(|signal| herdlet_base::signal::parse(signal).is_ok());
            known.unwrap_or_else(|| STOP_SIGNAL.to_owned())
        };
        let signal = how.signal.clone().unwrap_or_else(of_image);
        self.engine.stop(id, StopRequest { signal: Some(signal), ..how }).await
    }

    pub(crate) async fn destroy(&self, id: &AttemptId, leftover: Leftover) -> DriverResult<()> {
        self.engine.destroy(id, leftover).await
    }

    /// The attempts that have left anything. An interrupted start may have left only a directory.
    pub(crate) async fn list(&self) -> DriverResult<Vec<AttemptId>> {
        let mut found = self.engine.list_attempts().await?;
        let shared = Arc::clone(&self.shared);
        let listed = herdlet_runtime::off_thread(move || shared.dirs.list()).await;
        let failed = |error: String| DriverError::retry(format!("list the containers: {error}"));
        found.extend(
            listed.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))?,
        );
        found.sort();
        found.dedup();
        Ok(found)
    }

    /// Its images, for people.
    pub(crate) fn image_store(&self) -> Arc<dyn ImageStore> {
        Arc::new(OperatedStore(Arc::clone(&self.shared)))
    }

    pub(crate) async fn images(&self, driver: &str) -> DriverResult<Vec<ImageView>> {
        let (shared, driver) = (Arc::clone(&self.shared), driver.to_owned());
        let views = herdlet_runtime::off_thread(move || views(&shared, &driver)).await;
        views.map_err(|error| DriverError::retry(format!("list the images: {error}")))?
    }
}

/// Why each start of a task would be refused. Values with variables are known at the start.
pub(crate) fn refusal(task: &Task) -> Option<String> {
    let config = config::read(DOCKER, &task.config).ok()?;
    refuse::refusals(&config).iter().find(|refused| refused.is_of_text()).map(FieldError::to_string)
}

/// The images of the store, each with the tasks that use it.
fn views(shared: &BuiltinState, driver: &str) -> DriverResult<Vec<ImageView>> {
    let failed = |error: String| DriverError::retry(format!("list the images: {error}"));
    let mut users: BTreeMap<String, Vec<ImageUse>> = BTreeMap::new();
    for id in shared.dirs.list().map_err(|error| failed(error.to_string()))? {
        let Some(record) = shared.recorded(&id)? else { continue };
        let user = ImageUse {
            alloc: id.alloc,
            alloc_name: String::new(),
            task: id.task.clone(),
            writable_bytes: shared.dirs.written_bytes(&id),
        };
        users.entry(record.image).or_default().push(user);
    }
    let listed = shared.store.list().map_err(|error| failed(in_full(&error)))?;
    let others = |owners: Vec<String>| owners.into_iter().filter(|owner| *owner != shared.instance).collect();
    let views = listed.into_iter().map(|listed| {
        let age = listed.used_at.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let id = listed.image.id.as_str().to_owned();
        ImageView {
            driver: driver.to_owned(),
            name: listed.image.names.first().cloned().unwrap_or_else(|| id.clone()),
            digest: listed.image.digest.map_or_else(|| id.clone(), |digest| digest.as_str().to_owned()),
            size_bytes: listed.image.bytes,
            last_used: UnixNanos(i64::try_from(age.as_nanos()).unwrap_or(i64::MAX)),
            used_by: users.remove(&id).unwrap_or_default(),
            claimed_by: others(listed.claimed_by),
        }
    });
    Ok(views.collect())
}

/// Removes unused images some time after the agent's start, and after a container was removed.
async fn collect(shared: Arc<BuiltinState>) {
    let Some(delay) = shared.policy.image_delay else { return };
    loop {
        time::sleep(delay + COLLECT_DELAY).await;
        let own = Arc::clone(&shared);
        match herdlet_runtime::off_thread(move || prune(&own, delay)).await {
            Ok(Ok(removed)) if removed.images.is_empty() => {}
            Ok(Ok(removed)) => {
                tracing::info!(images = removed.images.len(), bytes = removed.bytes, "removed unused images");
            }
            Ok(Err(error)) => tracing::warn!(error = error.why(), "failed to remove unused images"),
            Err(error) => tracing::warn!(%error, "failed to remove unused images"),
        }
        shared.removed.notified().await;
    }
}

fn prune(shared: &BuiltinState, unused_for: Duration) -> DriverResult<RemovalReport> {
    let claims: Claims = shared.claims()?;
    let disk = rustix::fs::statvfs(shared.store.dir());
    let disk = disk.map_err(|errno| DriverError::retry(format!("measure the disk of images: {errno}")))?;
    let percent = u64::from(shared.policy.image_free_percent);
    let free_bytes_min = disk.f_blocks.saturating_mul(disk.f_frsize) / 100 * percent;
    let removed = shared.store.prune(&PruneOrder { claims, unused_for, free_bytes_min, extent: Extent::Due });
    removed.map_err(|error| DriverError::retry(in_full(&error)))
}
