//! Images before a start.

use std::sync::Arc;

use bollard::Docker;
use herdlet_driver::{AttemptId, DriverError, DriverResult, TaskConfig};
use tokio_util::sync::CancellationToken;

use super::Shared;
use crate::{
    auth,
    config::{self, ContainerConfig, FieldError},
    engine::Engine,
    failure,
    images::{self, LocalImage, Order, Patience},
    policy::PullFallback,
    reference::Reference,
};

impl Shared {
    /// Pulls the image of a task, if needed, and keeps it until the task starts.
    pub(super) async fn prepare(
        self: &Arc<Self>,
        task: &TaskConfig,
        cancel: &CancellationToken,
    ) -> DriverResult<()> {
        let prepared = self.fetch(task, cancel).await;
        if prepared.is_err() {
            self.release_image(&task.id);
        }
        prepared
    }

    async fn fetch(self: &Arc<Self>, task: &TaskConfig, cancel: &CancellationToken) -> DriverResult<()> {
        let config = config::read(&self.info.name, &task.config)?;
        let engine = self.engine_of(&task.id, self.record(&task.id)?.as_ref())?;
        let client = engine.reach().await.map_err(DriverError::retry)?;
        let about = match engine.about() {
            Some(about) => about,
            None => engine.probe().await.map_err(DriverError::retry)?,
        };
        // What can't be used is refused before anything is fetched.
        self.request(task, &config, &about)?;
        let image = Reference::parse(&config.docker.image).map_err(DriverError::fatal)?;
        self.claim_image(&task.id, &config.docker.image, &engine.place);
        if let Some(archive) = config.docker.load.as_deref().filter(|archive| !archive.is_empty()) {
            let loaded = load(client, task, archive, &config).await?;
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
        let pulling = self.pull(&task.id, &engine, &config, image.clone());
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
        let client = engine.reach().await.map_err(DriverError::retry)?;
        let patience = Patience {
            total: docker.image_pull_timeout.map_or(self.policy.pull_timeout, |timeout| timeout.0.to_std()),
            activity: self.policy.pull_activity_timeout,
        };
        let name = image.to_string();
        let order = Order {
            engine: engine.socket().to_owned(),
            client: client.clone(),
            image,
            credentials,
            patience,
        };
        let report = |progress: String| self.message(id, format!("Docker image pull progress: {progress}"));
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
    let local = task.dirs.task.join("local");
    let found = [local.join(archive), task.dirs.task.join(archive)]
        .into_iter()
        .find_map(|path| std::fs::canonicalize(path).ok());
    let Some(path) = found else {
        return Err(refused(format!("the archive {archive:?} does not exist in the task directory")));
    };
    let task_dir = std::fs::canonicalize(&task.dirs.task).map_err(|error| refused(error.to_string()))?;
    if !path.starts_with(&task_dir) {
        return Err(refused(format!("the archive {archive:?} is not in the task directory")));
    }
    images::load(client, &path)
        .await
        .map_err(|why| DriverError::recoverable(format!("load the image archive {archive}: {why}")))?;
    let image = &config.docker.image;
    match images::local(client, image).await {
        Ok(Some(loaded)) => Ok(loaded),
        Ok(None) => Err(refused(format!("the archive {archive:?} has no image {image:?}"))),
        Err(error) => Err(failure::retry(&format!("find the image {image}"), &error)),
    }
}
