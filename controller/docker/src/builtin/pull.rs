//! Images before a start: found, pulled or loaded.
//!
//! In: a task's config. Out: an image in the store, or why there is none. The rules are those of the other engines: the tag `latest`
//! and `force_pull` always pull, and a pull that fails uses the image that is there if the options allow it.

use std::{path::Path, sync::Arc, time::Duration};

use herdlet_api_types::manifest::driver::DockerConfig;
use herdlet_base::{error::in_full, observation::Class};
use herdlet_driver::{AttemptId, DriverError, DriverResult, TaskConfig};
use herdlet_images::{
    Reference,
    credentials::{Credentials, Secret},
    platform::Platforms,
    progress::Progress,
    registry::Pace,
    store::{Image, PullError, PullOrder},
};
use tokio::{
    sync::watch,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;

use super::{
    shared::{BuiltinState, load_refused},
    store,
};
use crate::{files, policy::PullFallback};

/// How often a pull that lasts is an event of its task, and how often its progress is.
const EVENT_PERIOD: Duration = Duration::from_secs(20);
const REPORT_PERIOD: Duration = Duration::from_secs(1);

/// Makes sure that the image of a task is in the store.
pub(super) async fn fetch(
    shared: &Arc<BuiltinState>,
    task: &TaskConfig,
    docker: &DockerConfig,
    cancel: &CancellationToken,
) -> DriverResult<()> {
    let image = Reference::parse(&docker.image).map_err(DriverError::fatal)?;
    let limit = docker.image_pull_timeout.map_or(shared.policy.pull_timeout, |timeout| timeout.0.to_std());
    let late =
        |what: &str| DriverError::recoverable(format!("{what}: it did not end in time (image_pull_timeout)"));
    if let Some(archive) = docker.load.as_deref().filter(|archive| !archive.is_empty()) {
        shared.progress(&task.id, format!("loading the image archive {archive}"));
        let loading = load(shared, task, (archive, &image), cancel);
        return time::timeout(limit, loading)
            .await
            .map_err(|_| late(&format!("load the archive {archive}")))?;
    }
    let known = find(shared, &image).await?;
    if known.is_some() && !docker.force_pull && !image.is_latest() {
        return Ok(());
    }
    let pulling = pull_with_space(shared, &task.id, (docker, &image), cancel);
    let pulled =
        time::timeout(limit, pulling).await.unwrap_or_else(|_| Err(late(&format!("pull image {image}"))));
    match (pulled, known) {
        (Ok(pulled), _) => {
            let digest = pulled.digest.as_ref().unwrap_or(&pulled.id);
            shared.message(&task.id, format!("Downloaded image {}: {digest}", docker.image));
            Ok(())
        }
        (Err(error), Some(known))
            if shared.policy.pull_fallback == PullFallback::UseLocal && !cancel.is_cancelled() =>
        {
            let digest = known.digest.as_ref().unwrap_or(&known.id);
            let message =
                format!("failed to {}; the task starts with the image that is there: {digest}", error.why());
            tracing::warn!(id = %task.id, "{message}");
            shared.message(&task.id, message);
            Ok(())
        }
        (Err(error), _) => Err(error),
    }
}

/// Finds an image in the store.
pub(super) async fn find(shared: &Arc<BuiltinState>, image: &Reference) -> DriverResult<Option<Image>> {
    let (store, name) = (shared.store.clone(), image.clone());
    let found = herdlet_runtime::off_thread(move || store.find(&name)).await;
    let found = found.map_err(|error| DriverError::retry(format!("find the image {image}: {error}")))?;
    found.map_err(|error| DriverError::retry(format!("find the image {image}: {}", in_full(&error))))
}

/// Pulls an image; on a full disk again, after the images that nobody uses were removed.
async fn pull_with_space(
    shared: &Arc<BuiltinState>,
    id: &AttemptId,
    (docker, image): (&DockerConfig, &Reference),
    cancel: &CancellationToken,
) -> DriverResult<Image> {
    let order = order(shared, id, (docker, image)).await?;
    let pulled = match pull(shared, (id, &docker.image), order.clone(), cancel).await {
        Err(error @ PullError::Full { .. }) => match store::make_room(shared).await {
            Ok(removed) if removed.bytes > 0 => {
                let removed_bytes = removed.bytes >> 20;
                let message = format!(
                    "the disk is full: removed unused images with {removed_bytes} MiB, pulling again"
                );
                shared.message(id, message);
                pull(shared, (id, &docker.image), order, cancel).await
            }
            Ok(_) | Err(_) => Err(error),
        },
        pulled => pulled,
    };
    pulled.map_err(|error| failed(image, &error))
}

async fn order(
    shared: &Arc<BuiltinState>,
    id: &AttemptId,
    (docker, image): (&DockerConfig, &Reference),
) -> DriverResult<PullOrder> {
    let credentials = match credentials(shared, docker, image).await {
        Ok(credentials) => credentials,
        Err(error) if docker.auth_soft_fail => {
            shared.message(id, format!("failed to {error}; pulling without credentials (auth_soft_fail)"));
            None
        }
        Err(error) => return Err(DriverError::recoverable(error)),
    };
    let policy = &shared.policy;
    let endpoints =
        policy.registries.endpoints(image, credentials.as_ref(), policy.credential_sources()).await;
    let endpoints = endpoints.map_err(|error| failed(image, &PullError::from(error)))?;
    shared.message(id, format!("Downloading image {}", docker.image));
    Ok(PullOrder {
        image: image.clone(),
        endpoints,
        pace: Pace { silence_max: shared.policy.pull_activity_timeout, ..Pace::default() },
        platforms: Platforms::of_machine(),
    })
}

async fn pull(
    shared: &Arc<BuiltinState>,
    (id, name): (&AttemptId, &str),
    order: PullOrder,
    cancel: &CancellationToken,
) -> Result<Image, PullError> {
    let progress = watch::Sender::new(Progress::default());
    let reporting = report(shared, (id, name), progress.subscribe());
    tokio::select! {
        pulled = shared.store.pull(order, &progress, cancel) => pulled,
        // It ends only with the progress, which lives as long as the pull.
        () = reporting => Err(PullError::Cancelled),
    }
}

/// Reports the progress, as long as there is any.
async fn report(
    shared: &BuiltinState,
    (id, name): (&AttemptId, &str),
    mut progress: watch::Receiver<Progress>,
) {
    let mut event_at = Instant::now() + EVENT_PERIOD;
    loop {
        let now = progress.borrow_and_update().to_string();
        let separator = if now.is_empty() { "" } else { ": " };
        shared.progress(id, format!("pulling image {name}{separator}{now}"));
        if Instant::now() >= event_at && !now.is_empty() {
            event_at = Instant::now() + EVENT_PERIOD;
            shared.message(id, format!("Docker image pull progress: {now}"));
        }
        time::sleep(REPORT_PERIOD).await;
        if progress.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

fn failed(image: &Reference, error: &PullError) -> DriverError {
    let why = format!("pull image {image}: {}", in_full(error));
    match error.class() {
        _ if matches!(error, PullError::Cancelled) => DriverError::retry(why),
        Class::Retry => DriverError::recoverable(why),
        Class::Fatal => DriverError::fatal(why),
    }
}

/// The task's own credentials, otherwise those that the driver's options name.
async fn credentials(
    shared: &BuiltinState,
    docker: &DockerConfig,
    image: &Reference,
) -> Result<Option<Credentials>, herdlet_images::credentials::AuthError> {
    if let Some(auth) = docker.auth.as_ref().map(|auth| &auth.0).filter(|auth| !auth.username.0.is_empty()) {
        let secret = Secret::Password(auth.password.0.clone());
        return Ok(Some(Credentials { username: auth.username.0.clone(), secret }));
    }
    shared.policy.credential_sources().find(image).await
}

/// Loads an archive in the task's directory.
async fn load(
    shared: &Arc<BuiltinState>,
    task: &TaskConfig,
    (archive, image): (&str, &Reference),
    cancel: &CancellationToken,
) -> DriverResult<()> {
    // Nomad's archives are in `local`.
    let named = Path::new(archive).strip_prefix(&task.dirs.task).unwrap_or(Path::new(archive));
    let file = [Path::new("local").join(named), named.to_owned()]
        .iter()
        .find_map(|path| files::open(&task.dirs.task, path).transpose());
    let missing = || load_refused(format!("the archive {archive:?} does not exist in the task directory"));
    let file = file.ok_or_else(missing)?.map_err(|error| load_refused(format!("failed to {error}")))?;
    let loaded = shared.store.load(file, &Platforms::of_machine(), cancel).await;
    loaded.map_err(|error| {
        DriverError::recoverable(format!("load the image archive {archive}: {}", in_full(&error)))
    })?;
    match find(shared, image).await? {
        Some(_) => Ok(()),
        None => Err(load_refused(format!("the archive {archive:?} has no image {:?}", image.to_string()))),
    }
}
