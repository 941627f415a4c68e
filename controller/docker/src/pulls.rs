//! Pulls of images: one for all that wait for the same image, its progress, and why it failed.
//!
//! In: an image's name, credentials, an engine. Out: the result of the pull; progress as messages. A pull is ended by its own
//! timeouts, or when nobody waits for it any more.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bollard::{
    Docker, auth::DockerCredentials, models::CreateImageInfo, query_parameters::CreateImageOptionsBuilder,
};
use futures_util::StreamExt as _;
use herdlet_images::{Reference, progress::Progress};
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::watch,
    time::{self, Instant},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::failure::{self, Meaning};

/// How often a pull reports its progress at most.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Why a pull failed. Continues "failed to".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("pull image {image}: {why}")]
pub(crate) struct PullError {
    image: String,
    why: String,
    /// Whether the registry has no such image, so that a retry won't help.
    pub(crate) is_missing: bool,
}

/// How long a pull may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) total: Duration,
    /// Without any progress.
    pub(crate) activity: Duration,
}

/// The state of a pull.
#[derive(Debug, Clone)]
enum Pull {
    Running { progress: String },
    Ended(Result<(), PullError>),
}

/// The pulls that are running, by engine, image and credentials.
#[derive(Debug, Default)]
pub(crate) struct Pulls(Mutex<BTreeMap<[u8; 32], Shared>>);

#[derive(Debug)]
struct Shared {
    state: watch::Receiver<Pull>,
    /// Cancels the pull once nobody holds it.
    guard: std::sync::Weak<DropGuard>,
}

/// A pull to start or join.
pub(crate) struct Order {
    /// Identifies the engine.
    pub(crate) engine: PathBuf,
    pub(crate) client: Docker,
    pub(crate) image: Reference,
    pub(crate) credentials: Option<DockerCredentials>,
    pub(crate) patience: Patience,
}

impl Order {
    /// Identifies the pull: one with other credentials may have another result. A hash, because it contains a password.
    fn key(&self) -> [u8; 32] {
        let text = format!("{:?} {} {:?}", self.engine, self.image, self.credentials);
        Sha256::digest(text.as_bytes()).into()
    }
}

impl Pulls {
    /// Pulls an image, or waits for a pull of it that is already running. Calls `report` with the progress when it begins and as it
    /// changes, each second at most. The progress is empty until it is known how much is to be fetched.
    ///
    /// # Errors
    /// If the pull fails.
    pub(crate) async fn pull(
        &self,
        order: Order,
        report: &(dyn Fn(String) + Send + Sync),
    ) -> Result<(), PullError> {
        let name = order.image.to_string();
        let (mut state, _guard) = self.join(order);
        loop {
            let now = state.borrow_and_update().clone();
            match now {
                Pull::Ended(result) => return result,
                Pull::Running { progress } => report(progress),
            }
            // Another receiver: what changes during the pause is reported after it.
            let mut end = state.clone();
            let ended = end.wait_for(|pull| matches!(pull, Pull::Ended(_)));
            let is_pausing = time::timeout(REPORT_EVERY, ended).await.is_err();
            if is_pausing && state.changed().await.is_ok() {
                continue;
            }
            return match &*state.borrow() {
                Pull::Ended(result) => result.clone(),
                Pull::Running { .. } => {
                    Err(PullError { image: name, why: "it was interrupted".to_owned(), is_missing: false })
                }
            };
        }
    }

    /// How many wait for pulls.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        let pulls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pulls.values().map(|pull| pull.guard.strong_count()).sum()
    }

    fn join(&self, order: Order) -> (watch::Receiver<Pull>, Arc<DropGuard>) {
        let key = order.key();
        let mut pulls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pulls.retain(|_, pull| {
            pull.guard.strong_count() > 0 && matches!(&*pull.state.borrow(), Pull::Running { .. })
        });
        if let Some(pull) = pulls.get(&key)
            && let Some(guard) = pull.guard.upgrade()
        {
            return (pull.state.clone(), guard);
        }
        let cancel = CancellationToken::new();
        let (sender, state) = watch::channel(Pull::Running { progress: String::new() });
        let guard = Arc::new(cancel.clone().drop_guard());
        tokio::spawn(async move {
            if let Some(result) = cancel.run_until_cancelled(run(order, &sender)).await {
                sender.send_replace(Pull::Ended(result));
            }
        });
        pulls.insert(key, Shared { state: state.clone(), guard: Arc::downgrade(&guard) });
        (state, guard)
    }
}

async fn run(order: Order, state: &watch::Sender<Pull>) -> Result<(), PullError> {
    let Order { client, image, credentials, patience, .. } = order;
    let failed = |why: String, is_missing| PullError { image: image.to_string(), why, is_missing };
    let name = image.name();
    let options = CreateImageOptionsBuilder::new().from_image(&name).tag(image.version()).build();
    let mut answers = std::pin::pin!(client.create_image(Some(options), None, credentials));
    let deadline = Instant::now() + patience.total;
    let mut layers = Layers::default();
    loop {
        let next = time::timeout(patience.activity, answers.next());
        let answer = match time::timeout_at(deadline, next).await {
            Err(_) => {
                return Err(failed(
                    format!("it did not end within {} (image_pull_timeout)", seconds(patience.total)),
                    false,
                ));
            }
            Ok(Err(_)) => {
                return Err(failed(
                    format!("it made no progress for {} (pull_activity_timeout)", seconds(patience.activity)),
                    false,
                ));
            }
            Ok(Ok(answer)) => answer,
        };
        match answer {
            None => return Ok(()),
            Some(Err(error)) => {
                let why = failure::sentence(&error);
                let is_missing = failure::meaning(&error) == Meaning::Missing && !says_denied(&why);
                let is_missing = is_missing || says_missing(&why);
                return Err(failed(why, is_missing));
            }
            Some(Ok(info)) => {
                if let Some(why) = info.error_detail.as_ref().and_then(|detail| detail.message.clone()) {
                    let is_missing = says_missing(&why);
                    return Err(failed(why, is_missing));
                }
                layers.note(&info);
                state.send_replace(Pull::Running { progress: layers.text() });
            }
        }
    }
}

/// Whether the registry has no such image. One that denies access does not say that there is none: credentials may have expired.
fn says_missing(why: &str) -> bool {
    let parts = ["manifest unknown", "not found: manifest", "repository does not exist", "name unknown"];
    parts.iter().any(|part| why.contains(part)) && !says_denied(why)
}

fn says_denied(why: &str) -> bool {
    let why = why.to_ascii_lowercase();
    ["denied", "docker login", "unauthorized", "authentication required"]
        .iter()
        .any(|part| why.contains(part))
}

fn seconds(length: Duration) -> String {
    herdlet_api_types::format_duration(i64::try_from(length.as_nanos()).unwrap_or(i64::MAX))
}

/// What a pull has fetched so far.
#[derive(Debug, Default)]
struct Layers(HashMap<String, (i64, i64)>);

impl Layers {
    fn note(&mut self, info: &CreateImageInfo) {
        let Some(id) = &info.id else { return };
        let layer = self.0.entry(id.clone()).or_default();
        if let Some(detail) = &info.progress_detail
            && info.status.as_deref() == Some("Downloading")
        {
            *layer = (detail.current.unwrap_or(layer.0), detail.total.unwrap_or(layer.1));
        }
        let is_there =
            |status: &str| ["Download complete", "Pull complete", "Already exists"].contains(&status);
        if info.status.as_deref().is_some_and(is_there) {
            layer.0 = layer.1;
        }
    }

    fn text(&self) -> String {
        let bytes = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
        let start = Progress { layers: self.0.len(), ..Progress::default() };
        let sum = self.0.values().fold(start, |sum, (done, total)| Progress {
            done_bytes: sum.done_bytes.saturating_add(bytes(*done)),
            total_bytes: sum.total_bytes.saturating_add(bytes(*total)),
            ..sum
        });
        sum.to_string()
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::ProgressDetail;

    use super::*;

    /// A token of a registry that had expired ended a task for good.
    #[test]
    fn what_registries_say_of_missing_images() {
        for (why, is_missing) in [
            ("manifest for redis:none not found: manifest unknown: manifest unknown", true),
            ("manifest unknown: Requested image not found", true),
            ("repository docker.io/library/nosuch not found: does not exist or no pull access", false),
            (
                "pull access denied for x, repository does not exist or may require 'docker login': denied: requested access to the resource is denied",
                false,
            ),
            ("unauthorized: authentication required", false),
            ("denied: Your authorization token has expired. Reauthenticate and try again.", false),
            ("name unknown: The repository with name 'x' does not exist in the registry", true),
        ] {
            assert_eq!(says_missing(why), is_missing, "{why}");
        }
    }

    #[test]
    fn progress_counts_layers() {
        let mut layers = Layers::default();
        let info = |id: &str, status: &str, done, total| CreateImageInfo {
            id: Some(id.to_owned()),
            status: Some(status.to_owned()),
            progress_detail: Some(ProgressDetail { current: done, total }),
            ..CreateImageInfo::default()
        };
        assert_eq!(layers.text(), "");
        layers.note(&info("a", "Downloading", Some(1 << 20), Some(4 << 20)));
        layers.note(&info("b", "Downloading", Some(2 << 20), Some(2 << 20)));
        layers.note(&info("b", "Pull complete", None, None));
        assert_eq!(layers.text(), "3 of 6 MiB (50 %) in 2 layers");
    }
}
