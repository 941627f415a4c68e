//! Images before a start.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bollard::Docker;
use herdlet_api_types::manifest::driver::DockerConfig;
use herdlet_driver::{AttemptId, DriverError, DriverResult, TaskConfig, TaskEvent};
use herdlet_images::Reference;
use tokio::time::{self, Instant};
use tokio_util::sync::CancellationToken;

use super::{Shared, collect};
use crate::{
    auth,
    config::{self, ContainerConfig, FieldError},
    engine::{Engine, Place},
    failure, files,
    images::{self, LocalImage},
    policy::PullFallback,
    pulls::{Order, Patience},
};

/// A disk on which a pull has failed for lack of space is full if less is free: what was fetched is removed by then.
const FULL_PERCENT: u8 = 10;

/// How much later the client gives up than the driver, whose error names the option.
const CLIENT_LATER: Duration = Duration::from_secs(10);

impl Shared {
    /// Pulls the image of a task, if needed, and keeps it until the task starts.
    pub(super) async fn prepare(
        self: &Arc<Self>,
        task: &TaskConfig,
        cancel: &CancellationToken,
    ) -> DriverResult<()> {
        let prepared = self.fetch(task, cancel).await;
        self.progress(&task.id, String::new());
        if prepared.is_err() {
            self.release_image(&task.id);
        }
        prepared
    }

    async fn fetch(self: &Arc<Self>, task: &TaskConfig, cancel: &CancellationToken) -> DriverResult<()> {
        let config = config::read(&self.info.name, &task.config)?;
        let engine = self.engine_of(&task.id, self.record(&task.id)?.as_ref())?;
        let client = &engine.reach().await.map_err(DriverError::retry)?;
        let about = match engine.about() {
            Some(about) => about,
            None => engine.probe().await.map_err(DriverError::retry)?,
        };
        // What can't be used is refused before anything is fetched.
        self.request(task, &config, &about)?;
        let image = Reference::parse(&config.docker.image).map_err(DriverError::fatal)?;
        self.claim_image(&task.id, &config.docker.image, &engine.place);
        if let Some(archive) = config.docker.load.as_deref().filter(|archive| !archive.is_empty()) {
            let patience = self.patience(&config.docker);
            self.progress(&task.id, format!("loading the image archive {archive}"));
            // The engine answers once it has stored the whole archive.
            let client = client.clone().with_timeout(patience.total + CLIENT_LATER);
            let loading = time::timeout(patience.total, load(&client, task, archive, &config));
            let withdrawn =
                || DriverError::retry(format!("load the image archive {archive}: it was withdrawn"));
            let loaded = cancel.run_until_cancelled(loading).await.ok_or_else(withdrawn)?;
            let loaded = loaded.map_err(|_| {
                DriverError::recoverable(format!(
                    "load the image archive {archive}: it did not end in time (image_pull_timeout)"
                ))
            })??;
            self.note_fetched(&config.docker.image, &engine.place, Some(loaded.id));
            return Ok(());
        }
        let failed = |error| failure::retry(&format!("find the image {}", config.docker.image), &error);
        let known = match images::local(client, &config.docker.image).await.map_err(failed)? {
            Some(known) => Some(known),
            None => images::local(client, &image.to_string()).await.map_err(failed)?,
        };
        let name = &config.docker.image;
        self.note_image(name, &engine.place);
        if known.is_some() && !config.docker.force_pull && !image.is_latest() {
            return Ok(());
        }
        let pulling = async {
            let pulled = self.pull(&task.id, &engine, &config, image.clone()).await;
            match self.has_made_room(&task.id, &engine.place, &pulled).await {
                true => self.pull(&task.id, &engine, &config, image.clone()).await,
                false => pulled,
            }
        };
        let result = cancel.run_until_cancelled(pulling).await;
        match (result, known) {
            (None, _) => Err(DriverError::retry(format!("pull image {image}: it was withdrawn"))),
            (Some(Ok(pulled)), known) => {
                self.note_pulled(name, &engine.place, known, &pulled);
                self.message(&task.id, format!("Downloaded image {name}: {}", pulled.digest));
                Ok(())
            }
            (Some(Err(error)), Some(known)) if self.policy.pull_fallback == PullFallback::UseLocal => {
                let message = format!(
                    "failed to {}; the task starts with the image that is there: {}",
                    error.why(),
                    known.digest
                );
                tracing::warn!(id = %task.id, "{message}");
                self.message(&task.id, message);
                Ok(())
            }
            (Some(Err(error)), _) => Err(error),
        }
    }

    /// Reports what is being done for a start; empty when that is over.
    fn progress(&self, id: &AttemptId, what: String) {
        if !self.events.try_send(TaskEvent::Progress { id: id.clone(), what }) {
            tracing::debug!(%id, "the progress of a task was dropped: too many reports are waiting");
        }
    }

    fn patience(&self, docker: &DockerConfig) -> Patience {
        Patience {
            total: docker.image_pull_timeout.map_or(self.policy.pull_timeout, |timeout| timeout.0.to_std()),
            activity: self.policy.pull_activity_timeout,
        }
    }

    /// Whether another pull may succeed: the disk of the engine was full, and unused images were removed. The error alone does not
    /// prove that it was full: a registry may have written it.
    async fn has_made_room(
        self: &Arc<Self>,
        id: &AttemptId,
        place: &Place,
        pulled: &DriverResult<LocalImage>,
    ) -> bool {
        let is_full = pulled.as_ref().is_err_and(|error| failure::says_full(&error.why()));
        let Some(delay) = self.policy.image_delay.filter(|_| is_full) else { return false };
        let is_short = collect::is_short(self.policy.image_free_percent.max(FULL_PERCENT));
        match self.make_room(Some(place), collect::early(delay), is_short).await {
            Ok(removed @ 1..) => {
                self.message(
                    id,
                    format!("the disk of the engine is full: removed {removed} unused images, pulling again"),
                );
                true
            }
            Ok(0) | Err(_) => false,
        }
    }

    async fn pull(
        &self,
        id: &AttemptId,
        engine: &Arc<Engine>,
        config: &ContainerConfig,
        image: Reference,
    ) -> DriverResult<LocalImage> {
        let docker = &config.docker;
        let credentials = match auth::find(docker, &self.policy, &image).await {
            Ok(credentials) => credentials,
            Err(error) if docker.auth_soft_fail => {
                self.message(id, format!("failed to {error}; pulling without credentials (auth_soft_fail)"));
                None
            }
            Err(error) => return Err(DriverError::recoverable(error)),
        };
        self.message(id, format!("Downloading image {}", docker.image));
        let client = &engine.reach().await.map_err(DriverError::retry)?;
        let patience = self.patience(docker);
        let name = image.to_string();
        let order = Order {
            engine: engine.socket().to_owned(),
            // The first answer may take as long as the registry does.
            client: client.clone().with_timeout(patience.total + CLIENT_LATER),
            image,
            credentials,
            patience,
        };
        let event_at = Mutex::new(Instant::now() + self.pull_event_period);
        let report = |progress: String| {
            let separator = if progress.is_empty() { "" } else { ": " };
            self.progress(id, format!("pulling image {}{separator}{progress}", docker.image));
            let mut event_at = event_at.lock().unwrap_or_else(PoisonError::into_inner);
            if Instant::now() >= *event_at && !progress.is_empty() {
                *event_at = Instant::now() + self.pull_event_period;
                self.message(id, format!("Docker image pull progress: {progress}"));
            }
        };
        let pulled = self.pulls.pull(order, &report).await;
        pulled.map_err(|error| match error.is_missing {
            true => DriverError::fatal(error),
            false => DriverError::recoverable(error),
        })?;
        let found = images::local(client, &name).await;
        let found = found.map_err(|error| failure::retry(&format!("find the image {name}"), &error))?;
        found.ok_or_else(|| {
            DriverError::recoverable(format!(
                "find the image {name}: the engine does not have it after the pull"
            ))
        })
    }
}

/// Loads an archive in the task directory.
async fn load(
    client: &Docker,
    task: &TaskConfig,
    archive: &str,
    config: &ContainerConfig,
) -> DriverResult<LocalImage> {
    let refused = |why: String| DriverError::from(FieldError::new("load", why));
    // Nomad's archives are in `local`.
    let named = Path::new(archive).strip_prefix(&task.dirs.task).unwrap_or(Path::new(archive));
    let file = [Path::new("local").join(named), named.to_owned()]
        .iter()
        .find_map(|path| files::open(&task.dirs.task, path).transpose());
    let Some(file) = file else {
        return Err(refused(format!("the archive {archive:?} does not exist in the task directory")));
    };
    let file = file.map_err(|error| refused(format!("failed to {error}")))?;
    images::load(client, file)
        .await
        .map_err(|why| DriverError::recoverable(format!("load the image archive {archive}: {why}")))?;
    let image = &config.docker.image;
    match images::local(client, image).await {
        Ok(Some(loaded)) => Ok(loaded),
        Ok(None) => Err(refused(format!("the archive {archive:?} has no image {image:?}"))),
        Err(error) => Err(failure::retry(&format!("find the image {image}"), &error)),
    }
}
