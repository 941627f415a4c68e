//! What the parts of the engine share.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use herdlet_api_types::driver::DOCKER;
use herdlet_driver::{AttemptId, DriverError, DriverResult, Outlet, TaskConfig, TaskEvent};
use herdlet_images::{
    digest::Digest,
    store::{Claims, Image, Store},
};
use herdlet_process::exec::Roots;
use tokio::sync::Notify;

use super::{
    calls::CallFilters,
    dirs::{ContainerDirs, ContainerRecord},
    network_plan::ContainerNetworks,
};
use crate::{
    config::{self, ContainerConfig, FieldError},
    create::{self, Compute, Material, Request},
    engine::About,
    policy::Policy,
};

/// Attempts that share a lock wait for each other's record, some milliseconds.
pub(super) const RECORDERS: usize = 64;

/// The engine's state. All of it is found again by the next agent.
#[derive(Debug)]
pub(super) struct BuiltinState {
    pub(super) policy: Policy,
    pub(super) compute: Compute,
    /// The id of the agent's instance.
    pub(super) instance: String,
    pub(super) store: Store,
    pub(super) dirs: ContainerDirs,
    pub(super) roots: Arc<Roots>,
    pub(super) filters: CallFilters,
    pub(super) events: Outlet<TaskEvent>,
    /// A container has been removed, so that its image may be unused.
    pub(super) removed: Notify,
    pub(super) networks: ContainerNetworks,
    /// A network has been made, which has to be inspected from now on.
    pub(super) connected: Notify,
    /// A container with a limit has been recorded, whose size has to be measured from now on.
    pub(super) limited: Notify,
    /// Held while containers are recorded, each of some attempts: one attempt may be started twice at the same time.
    pub(super) recording: [Mutex<()>; RECORDERS],
    /// Held while networks are removed or repaired.
    pub(super) network_turn: Mutex<()>,
}

impl BuiltinState {
    /// Reads a task's config, and refuses what can't be done.
    pub(super) fn read(&self, task: &TaskConfig) -> DriverResult<(ContainerConfig, Request)> {
        let config = config::read(DOCKER, &task.config)?;
        if let Some(refused) = super::refuse::refusals(&config).into_iter().next() {
            return Err(refused.into());
        }
        for device in &task.devices {
            device.require_all_rights()?;
        }
        let request = create::request(&Material {
            task,
            config: &config,
            policy: &self.policy,
            about: &About::builtin(),
            compute: self.compute,
            labels: Default::default(),
            pins: Some(self.dirs.pins(&task.id)),
            pause: String::new(),
        })?;
        super::refuse::logging(&request.logs)?;
        super::process::capabilities(&request.body.host_config.clone().unwrap_or_default())?;
        Ok((config, request))
    }

    /// What was recorded when the attempt was about to start.
    pub(super) fn record(&self, id: &AttemptId) -> DriverResult<ContainerRecord> {
        let missing = || DriverError::recoverable(format!("find the record of {id}: it does not exist"));
        self.recorded(id)?.ok_or_else(missing)
    }

    /// The lock of an attempt's record.
    pub(super) fn recording_of(&self, id: &AttemptId) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        let recording = &self.recording[hasher.finish() as usize % RECORDERS];
        recording.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn recorded(&self, id: &AttemptId) -> DriverResult<Option<ContainerRecord>> {
        let read = self.dirs.read(id);
        read.map_err(|error| DriverError::retry(format!("read the record of {id}: {error}")))
    }

    /// The image of a container.
    pub(super) fn image(&self, record: &ContainerRecord) -> DriverResult<Image> {
        let failed = |error: String| DriverError::retry(format!("find the image {}: {error}", record.name));
        let id = Digest::parse(&record.image).map_err(|error| failed(error.to_string()))?;
        let found = self.store.find_id(&id).map_err(|error| failed(error.to_string()))?;
        found.ok_or_else(|| {
            DriverError::recoverable(format!(
                "find the image {}: it was removed since the task was prepared",
                record.name
            ))
        })
    }

    /// The images of containers that exist.
    pub(super) fn claims(&self) -> DriverResult<Claims> {
        let failed = |error| DriverError::retry(format!("list the containers: {error}"));
        let mut images = BTreeSet::new();
        for id in self.dirs.list().map_err(failed)? {
            let record = self.recorded(&id)?;
            images.extend(record.and_then(|record| Digest::parse(&record.image).ok()));
        }
        Ok(Claims { owner: self.instance.clone(), images })
    }

    pub(super) fn message(&self, id: &AttemptId, message: String) {
        if !self.events.try_send(TaskEvent::Message { id: id.clone(), message }) {
            tracing::debug!(%id, "a message about a task was dropped: too many are waiting");
        }
    }

    /// Reports what is being done for a start; empty when that is over.
    pub(super) fn progress(&self, id: &AttemptId, what: String) {
        if !self.events.try_send(TaskEvent::Progress { id: id.clone(), what }) {
            tracing::debug!(%id, "the progress of a task was dropped: too many reports are waiting");
        }
    }
}

/// A field that names a file of the task's directory.
pub(super) fn load_refused(why: String) -> DriverError {
    FieldError::new("load", why).into()
}
