//! Creating and starting containers.

use std::{sync::Arc, time::Duration};

use bollard::{
    Docker,
    models::{ContainerCreateBody, ContainerInspectResponse, ContainerSummaryStateEnum},
    query_parameters::{CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder, StartContainerOptions},
};
use herdlet_base::clock::wall_now;
use herdlet_driver::{AttemptId, DriverError, DriverResult, Started, TaskConfig};
use herdlet_images::Reference;
use tokio_util::bytes::Bytes;

use super::{Shared, follow::Notice, locate::inspect};
use crate::{
    config::{self, ContainerConfig},
    create::{self, LogSource, Material, Request},
    engine::{About, Engine},
    failure::{self, Meaning},
    images,
    logs::{LogCopy, LogJob},
    names, processes,
    records::{Launch, LogTarget, Record, RecordClaim},
    runs::{self, Run, Seen},
};

/// How often a name that is taken by a container of ours is freed.
const TRIES: u32 = 3;

/// How often a container is created again after an error of an engine that is about to end or has just begun. These tries use no
/// attempt of the task.
const REPEATS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The repeats that are left, each after twice the pause of the one before.
struct Repeats {
    left: u32,
    pause: Duration,
}

impl Repeats {
    fn new() -> Self {
        Self { left: REPEATS, pause: FIRST_PAUSE }
    }

    /// Waits before the next try; false if there is none.
    async fn wait(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        tokio::time::sleep(self.pause).await;
        self.pause *= 2;
        true
    }
}

/// The container of an attempt.
enum Created {
    /// It has to be started; by its id.
    New(String),
    /// It was started by an earlier call.
    Started(Box<ContainerInspectResponse>),
}

impl Shared {
    pub(super) fn request(
        &self,
        task: &TaskConfig,
        config: &ContainerConfig,
        about: &About,
    ) -> DriverResult<Request> {
        create::request(&Material {
            task,
            config,
            policy: &self.policy,
            about,
            compute: self.compute,
            labels: names::labels(task, &self.owner, self.naming, &self.policy.extra_labels),
            pins: self.pins(&task.id),
            pause: names::pause(task.id.alloc, &self.owner.instance, self.naming),
        })
    }

    /// Starts an attempt, or adopts it if it has already started.
    pub(super) async fn start(self: &Arc<Self>, task: TaskConfig) -> DriverResult<Started> {
        let lock = self.runs.lock(&task.id);
        let _held = lock.lock().await;
        if let Some(run) = self.runs.get(&task.id) {
            return Ok(run.started());
        }
        let sharing = self.pause_locks.lock_of(task.id.alloc);
        let started = {
            let _shared = if task.network.is_some() { Some(sharing.read().await) } else { None };
            self.start_in_turn(&task).await
        };
        if started.is_err() && task.network.is_some() {
            let _alone = sharing.write().await;
            // It has a record unless the engine has refused it.
            if let Err(error) = self.release_network(task.id.alloc, None).await {
                tracing::debug!(id = %task.id, error = error.why(), "a pause container remains until the next sweep");
            }
        }
        started
    }

    /// Starts an attempt that has no run; the caller has its locks.
    async fn start_in_turn(self: &Arc<Self>, task: &TaskConfig) -> DriverResult<Started> {
        let id = &task.id;
        let config = config::read(&self.info.name, &task.config)?;
        let engine = self.engine_of(id, self.record(id)?.as_ref())?;
        let client = &engine.reach().await.map_err(DriverError::retry)?;
        let about = match engine.about() {
            Some(about) => about,
            None => engine.probe().await.map_err(DriverError::retry)?,
        };
        let mut request = self.request(task, &config, &about)?;
        self.add_hosts(id, &mut request)?;
        self.join(client, id, &mut request).await?;
        if !about.is_docker() {
            request.body.image = Some(podman_name(client, &config.docker.image).await?);
            self.store_profiles(id, &mut request)?;
        }
        let hash = request.hash();
        request.body.labels.get_or_insert_default().insert(names::REQUEST.to_owned(), hash.clone());
        let record = Record {
            claim: RecordClaim::Taken,
            engine: Some(engine.place.clone()),
            container: names::container(id, &self.owner.instance, self.naming),
            logs: (request.logs == LogSource::Files).then(|| LogTarget::of(task)),
            image: config.docker.image.clone(),
            port_map: request.port_map.clone(),
            advertise_ipv6: config.docker.advertise_ipv6_address,
            request: hash,
            launch: Launch::Unrequested,
        };
        let noted = self.records.note_engine(id.alloc, &engine.place);
        noted.map_err(|error| DriverError::retry(format!("record the engine of {id}: {error}")))?;
        let claimed = self.records.claim(id, &record);
        let claimed = claimed.map_err(|error| DriverError::retry(format!("record {id}: {error}")))?;
        if claimed.claim == RecordClaim::Fenced {
            return Err(DriverError::fatal(format!("start {id}: it was cancelled earlier")));
        }
        // From now on the record keeps the image.
        self.release_image(id);
        if let LogSource::Elsewhere(driver) = &request.logs {
            self.message(
                id,
                format!("it has no logs here: its log driver is {driver}; herdlet reads those of json-file"),
            );
        }
        for note in &request.notes {
            self.message(id, note.clone());
        }
        let ready = match self.share_network(&engine, id, &request).await {
            Ok(()) => self.pin(id, &engine, &request.pins).await,
            Err(error) => Err(error),
        };
        let launched = match ready {
            Ok(()) => self.launch(&engine, id, request, &record).await,
            Err(error) => {
                let _ = self.records.remove(id);
                return Err(error);
            }
        };
        self.unpin(id).await;
        launched
    }

    /// Creates and starts the container of a claimed attempt.
    async fn launch(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        id: &AttemptId,
        request: Request,
        record: &Record,
    ) -> DriverResult<Started> {
        let client = &engine.reach().await.map_err(DriverError::retry)?;
        self.outdate_lists(wall_now());
        let namespace = request.network.as_ref().map(|network| network.namespace.clone());
        let container = match self.create(client, id, &request, &record.request).await {
            Ok(Created::New(container)) => container,
            // An earlier call of this attempt: a container that has ended must not run a second time.
            Ok(Created::Started(about)) => return Ok(self.adopt(id, engine, record, &about).started()),
            Err(error) => {
                // If the engine has answered, it has not created anything.
                if !matches!(error, DriverError::Retry(_)) {
                    let _ = self.records.remove(id);
                }
                return Err(error);
            }
        };
        self.note_launch(id, record, Launch::Requested)?;
        match client.start_container(&container, None::<StartContainerOptions>).await {
            Ok(()) => {}
            Err(error) if failure::meaning(&error) == Meaning::Unchanged => {}
            Err(error) => {
                let failed = failure::start(&format!("start container {}", record.container), &error);
                if failure::meaning(&error) != Meaning::Unreachable {
                    // Its program may run nevertheless, or run on since an earlier start, so it counts as an attempt.
                    self.remove_forgotten(client, &container).await?;
                    // Without a record an agent that is killed now would start the attempt again.
                    self.fence(id)?;
                }
                return Err(failed);
            }
        }
        let Some(about) = inspect(client, &container).await? else {
            return Err(DriverError::recoverable(format!("start {id}: its container was removed")));
        };
        if let Err(error) = self.verify_network(&about, namespace.as_deref()) {
            self.remove(client, &container).await?;
            let _ = self.records.remove(id);
            return Err(error);
        }
        self.note_image(&record.image, &engine.place);
        let digest = about.image.clone().unwrap_or_default();
        self.message(
            id,
            format!("Created container {} from {}, which is {digest}", record.container, record.image),
        );
        Ok(self.adopt(id, engine, record, &about).started())
    }

    fn note_launch(&self, id: &AttemptId, record: &Record, launch: Launch) -> DriverResult<()> {
        let noted = self.records.note_launch(id, record, launch);
        noted.map_err(|error| DriverError::retry(format!("record the start of {id}: {error}")))
    }

    /// Podman takes a seccomp profile for the path of one.
    fn store_profiles(&self, id: &AttemptId, request: &mut Request) -> DriverResult<()> {
        let host = request.body.host_config.as_mut();
        for option in host.into_iter().flat_map(|host| host.security_opt.iter_mut().flatten()) {
            if let Some(profile) = option.strip_prefix("seccomp=").filter(|value| value.starts_with('{')) {
                let stored = self.records.store_file(id, profile);
                let path = stored
                    .map_err(|error| DriverError::retry(format!("store a seccomp profile: {error}")))?;
                *option = format!("seccomp={}", path.display());
            }
        }
        Ok(())
    }

    /// Creates the container of an attempt, or returns the one that it already has by the same request. One by another request, of a
    /// state that was restored from a copy, is removed.
    async fn create(
        &self,
        client: &Docker,
        id: &AttemptId,
        request: &Request,
        hash: &str,
    ) -> DriverResult<Created> {
        let name = names::container(id, &self.owner.instance, self.naming);
        let options = CreateContainerOptionsBuilder::new().name(&name).build();
        let what = format!("create container {name}");
        let creating = with_mac_address(client, &request.body);
        let (mut taken, mut repeats) = (0, Repeats::new());
        while taken < TRIES {
            let error = match creating.create_container(Some(options.clone()), request.body.clone()).await {
                Ok(created) => return Ok(Created::New(created.id)),
                Err(error) => error,
            };
            match failure::meaning(&error) {
                Meaning::Conflict => taken += 1,
                // Its image was removed since the task was prepared.
                Meaning::Missing => {
                    return Err(DriverError::recoverable(format!("{what}: {}", failure::sentence(&error))));
                }
                Meaning::Failed if repeats.wait().await => continue,
                Meaning::Failed | Meaning::Unreachable | Meaning::Unchanged | Meaning::Refused => {
                    return Err(failure::start(&what, &error));
                }
            }
            let Some(about) = inspect(client, &name).await? else { continue };
            let container = about.id.clone().unwrap_or_else(|| name.clone());
            match self.attempt_of(&about) {
                Some(owner) if owner == *id => {
                    if names::request_of(&about) == Some(hash) {
                        return Ok(match runs::seen(&about) {
                            Seen::Created => Created::New(container),
                            Seen::Running | Seen::Exited(_) => Created::Started(Box::new(about)),
                        });
                    }
                    self.remove_found(client, &about).await?;
                }
                Some(owner) if runs::seen(&about) == Seen::Running => {
                    return Err(DriverError::retry(format!(
                        "{what}: the attempt {owner} with the same name still runs"
                    )));
                }
                Some(_) => self.remove_found(client, &about).await?,
                None => {
                    return Err(DriverError::recoverable(format!(
                        "{what}: a container of this name exists that is not this agent's; remove it, or the agent that created it"
                    )));
                }
            }
        }
        Err(DriverError::retry(format!("{what}: its name is taken again and again")))
    }

    /// Supervises a container from now on. An exit since it was inspected found no run, so it is inspected once more.
    pub(super) fn adopt(
        self: &Arc<Self>,
        id: &AttemptId,
        engine: &Arc<Engine>,
        record: &Record,
        about: &ContainerInspectResponse,
    ) -> Arc<Run> {
        let run = self.supervise(id, engine, record, about);
        self.finish_soon(Arc::clone(&run), Notice::Request);
        run
    }

    /// Supervises a container whose exit is seen from now on.
    pub(super) fn supervise(
        self: &Arc<Self>,
        id: &AttemptId,
        engine: &Arc<Engine>,
        record: &Record,
        about: &ContainerInspectResponse,
    ) -> Arc<Run> {
        let container = about.id.clone().unwrap_or_default();
        let run = Run::new(id.clone(), container, Arc::clone(engine), record.clone());
        let _ = run.network.set(runs::network(about, record));
        self.copy_logs(&run, about.log_path.clone());
        self.runs.insert(Arc::clone(&run));
        run
    }

    /// Copies the container's output, if its log driver writes files.
    pub(super) fn copy_logs(self: &Arc<Self>, run: &Run, source: Option<String>) {
        let Some(target) = run.record.logs.clone() else { return };
        let id = run.id.clone();
        let Some(source) = source.filter(|path| path.starts_with('/')) else {
            return self
                .message(&id, "it has no logs: the engine does not report where it stores them".to_owned());
        };
        let job = LogJob { source: source.into(), target, position: self.records.position(&id) };
        let events = Arc::downgrade(self);
        let complain = move |why: String| {
            tracing::warn!(%id, why, "the output of a container is not copied");
            if let Some(shared) = events.upgrade() {
                shared.message(&id, why);
            }
        };
        let _ = run.logs.set(LogCopy::start(job, Box::new(complain)));
    }

    /// Removes a container that was inspected.
    pub(super) async fn remove_found(
        &self,
        client: &Docker,
        about: &ContainerInspectResponse,
    ) -> DriverResult<()> {
        let container = about.id.as_deref().unwrap_or_default();
        match runs::seen(about) {
            Seen::Created => self.remove_forgotten(client, container).await,
            Seen::Running | Seen::Exited(_) => self.remove(client, container).await,
        }
    }

    /// Removes a container that was listed.
    pub(super) async fn remove_listed(
        &self,
        client: &Docker,
        container: &str,
        state: Option<ContainerSummaryStateEnum>,
    ) -> DriverResult<()> {
        match state {
            Some(ContainerSummaryStateEnum::CREATED) => self.remove_forgotten(client, container).await,
            _ => self.remove(client, container).await,
        }
    }

    /// Removes a container that has not started as far as its engine knows, with the processes that it has nevertheless.
    pub(super) async fn remove_forgotten(&self, client: &Docker, container: &str) -> DriverResult<()> {
        processes::end(container).await?;
        self.remove(client, container).await
    }

    /// Removes a container with its anonymous volumes, whatever its state.
    pub(super) async fn remove(&self, client: &Docker, container: &str) -> DriverResult<()> {
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        match client.remove_container(container, Some(options)).await {
            Ok(()) => Ok(()),
            Err(error) if failure::meaning(&error) == Meaning::Missing => Ok(()),
            Err(error) if failure::sentence(&error).contains("already in progress") => {
                for _ in 0..100 {
                    if inspect(client, container).await?.is_none() {
                        return Ok(());
                    }
                    tokio::time::sleep(FIRST_PAUSE).await;
                }
                Err(failure::retry(&format!("remove the container {container}"), &error))
            }
            Err(error) => Err(failure::retry(&format!("remove the container {container}"), &error)),
        }
    }
}

/// A client whose next request creates a container. Before version 1.44 of its API, Docker reads the hardware address of a container at
/// a place that bollard's types lack.
fn with_mac_address(client: &Docker, body: &ContainerCreateBody) -> Docker {
    let endpoints = body.networking_config.as_ref().and_then(|config| config.endpoints_config.as_ref());
    let address = endpoints.into_iter().flatten().find_map(|(_, endpoint)| endpoint.mac_address.clone());
    let body = serde_json::to_value(body).ok();
    let Some((address, mut body)) = address.zip(body) else { return client.clone() };
    if let Some(fields) = body.as_object_mut() {
        fields.insert("MacAddress".to_owned(), address.into());
    }
    let bytes = Bytes::from(body.to_string());
    client.clone().with_request_modifier(move |request| request.map(|_| bollard::body_full(bytes.clone())))
}

/// Podman does not complete short names without a config of registries.
async fn podman_name(client: &Docker, name: &str) -> DriverResult<String> {
    let failed = |error| failure::retry(&format!("find the image {name}"), &error);
    if images::local(client, name).await.map_err(failed)?.is_some() {
        return Ok(name.to_owned());
    }
    Ok(Reference::parse(name).map_err(DriverError::fatal)?.to_string())
}
