//! Joining the network of a group: the pause container of an allocation, for engines that join only networks of containers.
//!
//! In: attempts, the file of their network's namespace. Out: a pause container whose process is in this namespace, until no attempt of
//! the allocation is left. It is found by its name, of which an engine has one. A note is written before it is created and removed after
//! it, and while it exists there is the record of an attempt: the container is removed before the last record.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bollard::{
    Docker,
    models::ContainerInspectResponse,
    query_parameters::{CreateContainerOptionsBuilder, CreateImageOptionsBuilder, StartContainerOptions},
};
use futures_util::StreamExt as _;
use herdlet_api_types::{AllocId, UnixNanos};
use herdlet_base::clock::wall_now;
use herdlet_driver::{AttemptId, DriverError, DriverResult};
use herdlet_runtime::off_thread;
use tokio::{
    sync::RwLock,
    time::{self, Instant},
};

use super::{Shared, locate::inspect};
use crate::{
    create::{self, GroupNetwork, Request},
    engine::{Engine, Place},
    failure::{self, Meaning},
    images, names, pause,
    runs::{self, Seen},
};

/// How often the pause container is looked for or created.
const TRIES: u32 = 4;
/// How long its process may take to enter the namespace, on a busy machine. It does so at once.
const ENTER_MAX: Duration = Duration::from_secs(10);
/// How often to look whether it has. No event reports it.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// The file system of namespaces.
const NSFS: rustix::fs::FsWord = 0x6e73_6673;
/// Where containers have their names of machines.
const HOSTS: &str = "/etc/hosts";

/// A lock for each allocation: starts of its attempts share it, the removal of its pause container has it alone.
#[derive(Default)]
pub(super) struct PauseLocks(Mutex<BTreeMap<AllocId, Arc<RwLock<()>>>>);

impl PauseLocks {
    pub(super) fn lock_of(&self, alloc: AllocId) -> Arc<RwLock<()>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(locks.entry(alloc).or_default())
    }
}

/// Where the process of a container is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Location {
    Inside,
    Outside,
    /// There is no such process.
    Unknown,
}

impl Shared {
    /// Makes what a container needs to join the network of its group.
    pub(super) async fn share_network(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        id: &AttemptId,
        request: &Request,
    ) -> DriverResult<()> {
        let Some(network) = &request.network else { return Ok(()) };
        if !is_namespace(&network.namespace) {
            return Err(gone());
        }
        let mode = request.body.host_config.as_ref().and_then(|host| host.network_mode.as_deref());
        match create::joined(mode) {
            Some(_) => self.ensure_pause(engine, id.alloc, network).await,
            None => Ok(()),
        }
    }

    /// Adds the names that a task asks for to the names of its group's network, in a file of its own.
    pub(super) fn add_hosts(&self, id: &AttemptId, request: &mut Request) -> DriverResult<()> {
        let Some(network) = request.network.as_ref().filter(|network| !network.hosts.is_empty()) else {
            return Ok(());
        };
        let mounts = request.body.host_config.as_mut().and_then(|host| host.mounts.as_mut());
        let mut mounts = mounts.into_iter().flatten();
        // A task that brings its own file along has no such mount.
        let Some(mount) = mounts.find(|mount| mount.target.as_deref() == Some(HOSTS)) else { return Ok(()) };
        let shared = mount.source.clone().unwrap_or_default();
        let failed = |error| DriverError::retry(format!("add extra_hosts to {shared}: {error}"));
        let text = fs::read_to_string(&shared).map_err(failed)?;
        let stored = self.records.store_file(id, &format!("{text}{}\n", network.hosts.join("\n")));
        mount.source = Some(stored.map_err(failed)?.display().to_string());
        Ok(())
    }

    /// Verifies that a container which has started is in the network of its group.
    ///
    /// # Errors
    /// If it runs in another one.
    pub(super) fn verify_network(
        &self,
        about: &ContainerInspectResponse,
        request_network: Option<&Path>,
    ) -> DriverResult<()> {
        let Some(namespace) = request_network else { return Ok(()) };
        match location(about, namespace) {
            // It may have ended by now.
            Location::Inside | Location::Unknown => Ok(()),
            Location::Outside => Err(DriverError::recoverable(
                "start the container in the network of its group: the engine has put it into another one",
            )),
        }
    }

    /// Whether an allocation may have a pause container.
    pub(super) fn may_have_pause(&self, alloc: AllocId) -> DriverResult<bool> {
        Ok(self.noted_pause(alloc)?.is_some())
    }

    fn noted_pause(&self, alloc: AllocId) -> DriverResult<Option<Place>> {
        let noted = self.records.pause_of(alloc);
        noted.map_err(|error| DriverError::retry(format!("read the records of {alloc}: {error}")))
    }

    /// Removes the pause container of an allocation, unless another attempt of it has a record. The caller has the lock.
    pub(super) async fn release_network(
        self: &Arc<Self>,
        alloc: AllocId,
        except: Option<&AttemptId>,
    ) -> DriverResult<()> {
        let Some(place) = self.noted_pause(alloc)? else { return Ok(()) };
        let is_used = self.recorded()?.iter().any(|id| id.alloc == alloc && Some(id) != except);
        let engine = self.engine(place);
        if is_used {
            return Ok(());
        }
        if !self.is_forgotten(&engine) {
            let client = &engine.reach().await.map_err(DriverError::retry)?;
            let name = names::pause(alloc, &self.owner.instance, self.naming);
            if let Some(about) = inspect(client, &name).await?
                && self.is_own_pause(&about, alloc)
            {
                self.outdate_lists(wall_now());
                self.remove_found(client, &about).await?;
                self.note_image(&pause::image(), &engine.place);
            }
        }
        let forgotten = self.records.forget_pause(alloc);
        forgotten
            .map_err(|error| DriverError::retry(format!("forget the pause container of {alloc}: {error}")))
    }

    /// Removes pause containers whose allocations have no attempts: requests to create them were under way when their agent was killed,
    /// or their attempts never started.
    pub(super) async fn sweep_pauses(self: &Arc<Self>, grace: Duration) -> DriverResult<()> {
        let failed = |error| DriverError::retry(format!("list the records: {error}"));
        for alloc in self.records.pauses().map_err(failed)? {
            let lock = self.pause_locks.lock_of(alloc);
            let _held = lock.write().await;
            self.release_network(alloc, None).await?;
        }
        let engines: Vec<Arc<Engine>> = {
            let engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
            engines.values().map(Arc::clone).collect()
        };
        for engine in engines.iter().filter(|engine| engine.about().is_some_and(|about| about.is_docker())) {
            self.sweep_unknown_pauses(engine, grace).await?;
        }
        Ok(())
    }

    /// Without a note a container is in no use, or only its name is.
    async fn sweep_unknown_pauses(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        grace: Duration,
    ) -> DriverResult<()> {
        for container in engine.containers(&self.owner).await.map_err(DriverError::retry)? {
            let (Some(alloc), Some(id)) = (names::owned_pause(&container, &self.owner), &container.id) else {
                continue;
            };
            let lock = self.pause_locks.lock_of(alloc);
            let _held = lock.write().await;
            let is_new = age_of(container.created.unwrap_or(i64::MAX), wall_now()) < grace;
            if self.may_have_pause(alloc)? || is_new {
                continue;
            }
            tracing::warn!(container = id, %alloc, "removing a pause container that belongs to no task");
            let client = &engine.reach().await.map_err(DriverError::retry)?;
            self.outdate_lists(wall_now());
            self.remove_listed(client, id, container.state).await?;
        }
        Ok(())
    }

    /// Returns once the pause container of an allocation is in this namespace.
    async fn ensure_pause(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        alloc: AllocId,
        network: &GroupNetwork,
    ) -> DriverResult<()> {
        let namespace = &network.namespace;
        let client = &engine.reach().await.map_err(DriverError::retry)?;
        let noted = self.records.note_pause(alloc, &engine.place);
        noted
            .map_err(|error| DriverError::retry(format!("record the pause container of {alloc}: {error}")))?;
        let name = names::pause(alloc, &self.owner.instance, self.naming);
        let mut why = "it ends again and again".to_owned();
        for _ in 0..TRIES {
            let Some(about) = inspect(client, &name).await? else {
                self.create_pause(engine, client, (alloc, &name), network).await?;
                continue;
            };
            if !self.is_own_pause(&about, alloc) {
                return Err(DriverError::recoverable(format!(
                    "create container {name}: a container of this name exists that is not this agent's; remove it, or the agent \
                     that created it"
                )));
            }
            match runs::seen(&about) {
                Seen::Running => match enters(&about, namespace).await? {
                    Location::Inside => return Ok(()),
                    // That of a network that was made again.
                    Location::Outside => "it does not enter the network".clone_into(&mut why),
                    Location::Unknown => {
                        let ended = inspect(client, &name).await?.map(|about| runs::seen(&about));
                        why = match ended {
                            Some(Seen::Exited(exit)) => refusal(exit.code, &engine.place.to_string()),
                            Some(Seen::Created | Seen::Running) | None => {
                                "the agent does not see its process".to_owned()
                            }
                        };
                    }
                },
                Seen::Created => match start(client, &name).await {
                    Ok(()) => continue,
                    // Docker may have started it before, and have no record of that.
                    Err(error) if !matches!(error, DriverError::Retry(_)) => error.why().clone_into(&mut why),
                    Err(error) => return Err(error),
                },
                Seen::Exited(exit) => why = refusal(exit.code, &engine.place.to_string()),
            }
            self.outdate_lists(wall_now());
            self.remove_found(client, &about).await?;
        }
        Err(DriverError::recoverable(format!("join the network of the group with container {name}: {why}")))
    }

    fn is_own_pause(&self, about: &ContainerInspectResponse, alloc: AllocId) -> bool {
        let labels = about.config.as_ref().and_then(|config| config.labels.as_ref());
        labels.and_then(|labels| names::pause_of(labels, &self.owner)) == Some(alloc)
    }

    /// Creates it, and its image if the engine lacks that. Another start may have created it meanwhile.
    async fn create_pause(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        client: &Docker,
        pause: (AllocId, &str),
        network: &GroupNetwork,
    ) -> DriverResult<()> {
        let (alloc, name) = pause;
        let labels = names::labels_of_pause(alloc, &self.owner, self.naming);
        let machine = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        let hostname = network.hostname.clone().unwrap_or_else(machine);
        let body = pause::body(&network.namespace, labels, hostname);
        let options = CreateContainerOptionsBuilder::new().name(name).build();
        self.outdate_lists(wall_now());
        let mut created = client.create_container(Some(options.clone()), body.clone()).await;
        if created.as_ref().is_err_and(|error| failure::meaning(error) == Meaning::Missing) {
            self.make_pause_image(engine, client).await?;
            created = client.create_container(Some(options), body).await;
        }
        match created {
            Ok(_) => Ok(()),
            Err(error) if failure::meaning(&error) == Meaning::Conflict => Ok(()),
            Err(error) => Err(failure::start(&format!("create container {name}"), &error)),
        }
    }

    /// The image has one small program: it is made rather than pulled.
    async fn make_pause_image(&self, engine: &Engine, client: &Docker) -> DriverResult<()> {
        let image = pause::image();
        let failed = |why: String| DriverError::recoverable(format!("make the image {image}: {why}"));
        let root = pause::root().map_err(|error| failed(error.to_string()))?;
        let tag = pause::tag();
        let options =
            CreateImageOptionsBuilder::new().from_src("-").repo(pause::REPOSITORY).tag(&tag).build();
        let body = bollard::body_full(root.into());
        let mut answers = std::pin::pin!(client.create_image(Some(options), Some(body), None));
        while let Some(answer) = answers.next().await {
            let answer =
                answer.map_err(|error| failure::retry(&format!("make the image {image}"), &error))?;
            if let Some(message) = answer.error_detail.and_then(|detail| detail.message) {
                return Err(failed(message));
            }
        }
        let made = images::local(client, &image).await;
        let made = made.map_err(|error| failure::retry(&format!("find the image {image}"), &error))?;
        self.note_fetched(&image, &engine.place, made.map(|made| made.id));
        Ok(())
    }
}

async fn start(client: &Docker, name: &str) -> DriverResult<()> {
    match client.start_container(name, None::<StartContainerOptions>).await {
        Ok(()) => Ok(()),
        Err(error) if matches!(failure::meaning(&error), Meaning::Unchanged | Meaning::Missing) => Ok(()),
        Err(error) => Err(failure::start(&format!("start container {name}"), &error)),
    }
}

/// Waits until the process of a running container is in a namespace. Returns where it is.
///
/// # Errors
/// If there is no such namespace.
async fn enters(about: &ContainerInspectResponse, namespace: &Path) -> DriverResult<Location> {
    let (about, namespace) = (about.clone(), namespace.to_owned());
    let deadline = Instant::now() + ENTER_MAX;
    loop {
        let (asked, path) = (about.clone(), namespace.clone());
        let looked = off_thread(move || {
            // First: it drops its capabilities after it has entered.
            let has_settled = pid_of(&asked).is_some_and(has_no_capability);
            (is_namespace(&path), has_settled, location(&asked, &path))
        });
        let looked = looked.await;
        let (is_there, has_settled, location) =
            looked.map_err(|error| DriverError::retry(format!("find a namespace: {error}")))?;
        if !is_there {
            return Err(gone());
        }
        match location {
            Location::Outside if !has_settled && Instant::now() < deadline => time::sleep(LOOK_EVERY).await,
            Location::Inside | Location::Outside | Location::Unknown => return Ok(location),
        }
    }
}

/// Whether the main process of a container is in a namespace.
fn location(about: &ContainerInspectResponse, namespace: &Path) -> Location {
    let own = pid_of(about).and_then(|pid| identity(Path::new(&format!("/proc/{pid}/ns/net"))));
    match own {
        None => Location::Unknown,
        own if own == identity(namespace) => Location::Inside,
        Some(_) => Location::Outside,
    }
}

fn pid_of(about: &ContainerInspectResponse) -> Option<i64> {
    about.state.as_ref().and_then(|state| state.pid).filter(|pid| *pid > 0)
}

fn has_no_capability(pid: i64) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.is_some_and(|set| set.trim().bytes().all(|digit| digit == b'0'))
}

/// Whether a file keeps a namespace.
fn is_namespace(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|about| about.f_type == NSFS)
}

/// The agent makes it again.
fn gone() -> DriverError {
    DriverError::retry("join the network of the group: it is gone".to_owned())
}

/// What identifies a file.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|about| (about.dev(), about.ino()))
}

/// Why a pause container has ended.
fn refusal(code: i32, place: &str) -> String {
    if u32::try_from(code) == Ok(herdlet_shim::EXIT_NO_NAMESPACE) {
        format!(
            "{place} does not see the mounts of this agent, or forbids to enter namespaces; run both in one mount namespace, without \
             PrivateTmp=, ProtectSystem= and the like in the agent's unit"
        )
    } else {
        format!("its process has ended with code {code}")
    }
}

fn age_of(created_s: i64, now: UnixNanos) -> Duration {
    let age_s = (now.0 / 1_000_000_000).saturating_sub(created_s);
    Duration::from_secs(u64::try_from(age_s).unwrap_or(0))
}
