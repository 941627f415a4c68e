//! Fetches artifacts by http(s) into a task's directory before the task starts.
//!
//! In: artifacts with their variables replaced, the task's directories, its user. Out: files, complete or absent, and a
//! mark for each artifact fetched: marked ones are not fetched again. An interrupted fetch leaves nothing that counts
//! as done, and the next try removes its remains. Errors, logs and `Debug` contain no secrets: neither user nor query
//! of an address, and no header values.
//!
//! - [`source`]: addresses in go-getter's form; [`format`]: archive formats; [`checksum`].
//! - [`herdlet_base::artifact::destination`]: destinations; [`staging`]: preparing and publishing files; [`marker`]: which artifacts have been
//!   fetched.
//! - [`download`]: http. [`herdlet_unpack`]: archives, in a separate process.
//!
//! Sources: `hashicorp/nomad:client/allocrunner/taskrunner/artifact_hook.go`, `getter/`;
//! `hashicorp/go-getter:client.go`.

pub mod download;
pub mod marker;
pub mod staging;

#[cfg(test)]
pub(crate) mod tests;

use std::{collections::BTreeSet, fs::File, sync::Arc, time::Duration};

use aws_lc_rs::digest;
use futures_util::{StreamExt as _, stream};
use herdlet_api_types::job::{Artifact, ArtifactMode};
use herdlet_base::{
    artifact::{
        checksum::{self, Checksum, ChecksumSource},
        destination::{Base, Destination, Dirs, Outside},
        format::Format,
        source::{self, Source, SourceError},
    },
    http_client::{self, Tls},
};
use herdlet_base::{
    safe_fs::{Dir, FileOwner, FsError},
    user::Credentials,
};
use herdlet_config::artifact::Limits;
use herdlet_unpack::{Order, UnpackError, Unpacker};
use reqwest::{Client, Url, redirect};
use tokio::sync::{Mutex, Semaphore};
use tokio_util::sync::CancellationToken;

use self::{
    download::{DownloadError, DownloadRequest},
    staging::Staging,
};

#[derive(Debug)]
pub struct Fetcher {
    limits: Limits,
    unpacker: Unpacker,
    unpacking: Semaphore,
}

/// An artifact with its variables replaced.
pub struct Resolved {
    /// Digest of the specification as written; identifies it.
    pub digest: String,
    /// The artifact with current values.
    pub artifact: Artifact,
}

/// The task that an artifact is fetched for.
#[derive(Debug, Clone)]
pub struct Recipient {
    pub dirs: Dirs,
    /// The task's user, if files can be given to it.
    pub user: Option<Credentials>,
}

impl Recipient {
    fn file_owner(&self) -> Option<FileOwner> {
        let Credentials { uid, gid, groups, .. } = self.user.as_ref()?;
        Some(FileOwner { uid: *uid, gid: *gid, groups: groups.clone() })
    }
}

/// Errors of artifacts.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// The address is invalid.
    #[error("fetch an artifact: its source {0}")]
    Source(#[from] SourceError),
    /// The destination is outside the task's directories.
    #[error("fetch an artifact: {0}")]
    Outside(#[from] Outside),
    /// The download failed.
    #[error("fetch {what}: {source}")]
    Download {
        /// The address without secrets.
        what: String,
        source: DownloadError,
    },
    #[error("fetch {what}: it took longer than {} s", limit.as_secs())]
    Slow {
        /// The address without secrets.
        what: String,
        /// The time limit.
        limit: Duration,
    },
    /// The checksum does not match.
    #[error("fetch {what}: {why}")]
    Checksum {
        /// The address without secrets.
        what: String,
        why: String,
    },
    /// The archive is invalid or was refused.
    #[error("fetch {what}: {source}")]
    Unpack {
        /// The address without secrets.
        what: String,
        source: UnpackError,
    },
    /// `mode = "dir"` requires an archive.
    #[error(
        "fetch {what}: mode `dir` requires an archive, but the name has no archive extension; set its format with the option `archive`"
    )]
    NoArchive {
        /// The address without secrets.
        what: String,
    },
    /// The files can't be written.
    #[error("fetch an artifact: {0}")]
    Fs(#[from] FsError),
    #[error("fetch an artifact: prepare for https: {0}")]
    Client(String),
    /// A resource of the machine is missing.
    #[error("fetch an artifact: {0}")]
    Machine(String),
    /// The fetch was cancelled.
    #[error("fetch an artifact: it was cancelled")]
    Cancelled,
}

/// How to react to a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The artifact is not the cause: retry.
    TryAgain,
    /// The task's restart policy decides about another try.
    Failed,
    /// No retry can help.
    Never,
}

impl ArtifactError {
    /// How to react.
    pub fn verdict(&self) -> Verdict {
        match self {
            Self::Source(_) | Self::Outside(_) | Self::Fs(FsError::Escapes { .. }) => Verdict::Never,
            Self::Cancelled
            | Self::Machine(_)
            | Self::Unpack { source: UnpackError::Start(_) | UnpackError::Cancelled, .. } => {
                Verdict::TryAgain
            }
            Self::Fs(error) if error.is_missing() => Verdict::TryAgain,
            Self::Download { .. }
            | Self::Slow { .. }
            | Self::Checksum { .. }
            | Self::Unpack { .. }
            | Self::NoArchive { .. }
            | Self::Client(_)
            | Self::Fs(_) => Verdict::Failed,
        }
    }
}

/// Concurrent downloads per task, as in Nomad.
const AT_ONCE: usize = 3;

/// Concurrent unpacking processes of all tasks: unlike downloads they use the CPU.
const UNPACKED_AT_ONCE: usize = 4;

/// The maximum size of a checksum list.
const LIST_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The limit of Go's client.
const REDIRECTS_MAX: usize = 10;

/// Identifies a specification.
pub fn digest_of(artifact: &Artifact) -> String {
    // Plain data always has a JSON form.
    let text = serde_json::to_vec(artifact).unwrap_or_default();
    checksum::hex(digest::digest(&digest::SHA256, &text).as_ref())
}

/// Whether all of them have been fetched.
///
/// # Errors
/// If the marks can't be read.
pub fn is_fetched(artifacts: &[Resolved], dirs: &Dirs) -> Result<bool, ArtifactError> {
    Ok(missing(artifacts, dirs)?.is_empty())
}

/// The artifacts that have not been fetched, without duplicates.
fn missing<'a>(
    artifacts: &'a [Resolved],
    dirs: &Dirs,
) -> Result<Vec<(&'a Resolved, Destination)>, ArtifactError> {
    let places = artifacts
        .iter()
        .map(|resolved| Ok((resolved, Destination::of(&resolved.artifact.destination, dirs)?)));
    let places: Vec<(&Resolved, Destination)> = places.collect::<Result<_, Outside>>()?;
    let mut done = BTreeSet::new();
    for base in [Base::Task, Base::Secrets] {
        if places.iter().any(|(_, place)| marked_in(place) == base) {
            match base.open(dirs).and_then(|dir| marker::read(&dir)) {
                Ok(known) => done.extend(known),
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(places.into_iter().filter(|(resolved, _)| done.insert(resolved.digest.clone())).collect())
}

/// The place of an artifact's mark: it disappears together with the artifact.
fn marked_in(place: &Destination) -> Base {
    match place.base() {
        Base::Secrets => Base::Secrets,
        Base::Task | Base::Shared => Base::Task,
    }
}

impl Fetcher {
    /// A fetcher with these limits.
    pub fn new(limits: Limits) -> Self {
        Self::with(limits, Unpacker::default())
    }

    /// A fetcher with another unpacking program.
    pub fn with(limits: Limits, unpacker: Unpacker) -> Self {
        Self { limits, unpacker, unpacking: Semaphore::new(UNPACKED_AT_ONCE) }
    }

    /// Fetches the missing artifacts. A failure does not keep the others from being fetched. When this returns, also
    /// after cancellation, nothing is in progress any more.
    ///
    /// # Errors
    /// The first failure in time.
    pub async fn up(
        self: &Arc<Self>,
        artifacts: Vec<Resolved>,
        recipient: Recipient,
        cancelled: &CancellationToken,
    ) -> Result<(), ArtifactError> {
        let (artifacts, recipient) = (Arc::new(artifacts), Arc::new(recipient));
        let looked_at = (Arc::clone(&artifacts), Arc::clone(&recipient));
        let missing: Vec<(usize, Destination)> = blocking(move || {
            let (artifacts, recipient) = looked_at;
            let digests: Vec<&str> = artifacts.iter().map(|resolved| &*resolved.digest).collect();
            let at = |(resolved, place): (&Resolved, Destination)| {
                Some((digests.iter().position(|digest| *digest == resolved.digest)?, place))
            };
            let missing: Vec<_> = missing(&artifacts, &recipient.dirs)?.into_iter().filter_map(at).collect();
            if !missing.is_empty() {
                // The remains of a killed agent.
                staging::clear(&recipient.dirs)?;
            }
            Ok(missing)
        })
        .await?;
        if missing.is_empty() {
            return Ok(());
        }
        // Artifacts are published one at a time.
        let turn = Mutex::new(());
        let fetches = missing.into_iter().filter_map(|(index, place)| {
            let resolved = artifacts.get(index)?;
            Some(self.fetch(resolved, place, Arc::clone(&recipient), &turn, cancelled))
        });
        let ended: Vec<Result<(), ArtifactError>> =
            stream::iter(fetches.collect::<Vec<_>>()).buffer_unordered(AT_ONCE).collect().await;
        let cleared = blocking(move || Ok(staging::clear(&recipient.dirs)?)).await;
        ended.into_iter().chain([cleared]).collect()
    }

    async fn fetch(
        &self,
        resolved: &Resolved,
        place: Destination,
        recipient: Arc<Recipient>,
        turn: &Mutex<()>,
        cancelled: &CancellationToken,
    ) -> Result<(), ArtifactError> {
        if cancelled.is_cancelled() {
            return Err(ArtifactError::Cancelled);
        }
        let source = Source::parse(&resolved.artifact.source, &resolved.artifact.options)?;
        if resolved.artifact.mode == ArtifactMode::Dir && source.format.is_none() {
            return Err(ArtifactError::NoArchive { what: source.redacted() });
        }
        let owner = recipient.file_owner();
        let target = Target { place, mode: resolved.artifact.mode, name: source.file_name.clone() };
        let id: String = resolved.digest.chars().take(16).collect();
        let (dirs, staged, staged_for) = (recipient.dirs.clone(), target.clone(), owner.clone());
        let (staging, body) = blocking(move || {
            // Fails before the download if the destination is not possible.
            staged.open(&dirs, staged_for.as_ref())?;
            let staging = Staging::make(staged.place.base(), &dirs, &id, staged_for)?;
            let body = staging.body()?;
            Ok((Arc::new(staging), body))
        })
        .await?;
        let made = self.make(resolved, &source, &staging, body, &recipient, cancelled).await;
        let _turn = turn.lock().await;
        let (dirs, digest) = (recipient.dirs.clone(), resolved.digest.clone());
        let folder = source.folder.clone();
        blocking(move || {
            let Some(staging) = Arc::into_inner(staging) else {
                return Err(ArtifactError::Machine("its directory is in use".to_owned()));
            };
            let published = made.and_then(|made| {
                let (place, name) = target.open(&dirs, owner.as_ref())?;
                match made {
                    Made::File(file) => staging.publish_body(&file, &place, &name)?,
                    Made::Tree(tree, Format::Tar(_) | Format::Zip) if target.mode != ArtifactMode::File => {
                        staging.publish_tree(&tree, &folder, &place)?;
                    }
                    Made::Tree(tree, _) => staging.publish_only(&tree, &folder, (&place, &name))?,
                }
                Ok(place)
            });
            match published {
                Ok(place) => staging.finish(&place)?,
                Err(error) => {
                    staging.discard()?;
                    return Err(error);
                }
            }
            Ok(marker::add(&marked_in(&target.place).open(&dirs)?, &digest)?)
        })
        .await
    }

    /// Downloads, verifies and unpacks an artifact.
    async fn make(
        &self,
        resolved: &Resolved,
        source: &Source,
        staging: &Arc<Staging>,
        body: File,
        recipient: &Recipient,
        cancelled: &CancellationToken,
    ) -> Result<Made, ArtifactError> {
        let limit = self.limits.http_time_max;
        let body = tokio::select! {
            biased;
            () = cancelled.cancelled() => return Err(ArtifactError::Cancelled),
            fetched = tokio::time::timeout(limit, self.download(resolved, source, body)) => {
                fetched.map_err(|_| ArtifactError::Slow { what: source.redacted(), limit })??
            }
        };
        let Some(format) = source.format else { return Ok(Made::File(body)) };
        let order = Order {
            format,
            name: source.file_name.clone(),
            folder: source.folder.clone(),
            bytes_max: self.limits.unpacked_bytes_max,
            entries_max: self.limits.entries_max,
            user: recipient.user.as_ref().map(|user| (user.uid, user.gid, user.groups.clone())),
            seconds_max: limit.as_secs().max(1),
            keep_owners: false,
        };
        let staged = Arc::clone(staging);
        let tree = blocking(move || Ok(staged.tree()?)).await?;
        let _turn = tokio::select! {
            biased;
            () = cancelled.cancelled() => return Err(ArtifactError::Cancelled),
            turn = self.unpacking.acquire() => turn.map_err(|_| ArtifactError::Cancelled)?,
        };
        let unpacked = self.unpacker.unpack(body, &tree, &order, cancelled).await;
        unpacked.map_err(|error| match error {
            UnpackError::Cancelled => ArtifactError::Cancelled,
            source_error @ (UnpackError::Start(_)
            | UnpackError::Refused { .. }
            | UnpackError::Slow { .. }
            | UnpackError::Full { .. }
            | UnpackError::TooLarge { .. }
            | UnpackError::Fault { .. }
            | UnpackError::Fs(_)) => ArtifactError::Unpack { what: source.redacted(), source: source_error },
        })?;
        Ok(Made::Tree(tree, format))
    }

    async fn download(
        &self,
        resolved: &Resolved,
        source: &Source,
        body: File,
    ) -> Result<File, ArtifactError> {
        let Artifact { headers, insecure, .. } = &resolved.artifact;
        let client = |url: &Url| self.client(url, *insecure);
        let failed = |source_error| ArtifactError::Download { what: source.redacted(), source: source_error };
        let headers = headers.iter().map(|(name, value)| (name, value.clone()));
        let headers = download::header_fields(headers).map_err(failed)?;
        let checksum_error = |why: String| ArtifactError::Checksum { what: source.redacted(), why };
        let written = source.checksum.as_deref().map(ChecksumSource::parse).transpose();
        let checksum = match written.map_err(|error| checksum_error(format!("its checksum {error}")))? {
            None => None,
            Some(ChecksumSource::Value(checksum)) => Some(checksum),
            Some(ChecksumSource::List(url)) => {
                let url = source::check_scheme(&url)
                    .and_then(|url| {
                        Url::parse(url).map_err(|error| SourceError::Invalid { why: error.to_string() })
                    })
                    .map_err(|error| checksum_error(format!("the address of its checksum list {error}")))?;
                let (client, bytes_max) = (client(&url)?, LIST_BYTES_MAX);
                let wanted = DownloadRequest { client: &client, url: &url, headers: &headers, bytes_max };
                let list = download::text(&wanted).await.map_err(|error| ArtifactError::Download {
                    what: source::redacted_url(&url),
                    source: error,
                })?;
                let of_file = Checksum::in_list(&list, &source.remote_name);
                Some(of_file.map_err(|error| checksum_error(error.to_string()))?)
            }
        };
        let (url, bytes_max) = (&source.url, self.limits.http_bytes_max);
        let wanted = DownloadRequest { client: &client(url)?, url, headers: &headers, bytes_max };
        let hasher = checksum.as_ref().map(Checksum::begin);
        let (body, computed) = download::into_file(&wanted, body, hasher).await.map_err(failed)?;
        match (checksum, computed) {
            (Some(checksum), Some(computed)) if !checksum.is(&computed) => Err(checksum_error(format!(
                "its {} is {computed}, which is not the expected one",
                checksum.name()
            ))),
            (Some(_) | None, _) => Ok(body),
        }
    }

    /// A new client for each request: no connections are kept, and trusted certificates are loaded only when needed.
    fn client(&self, url: &Url, insecure: bool) -> Result<Client, ArtifactError> {
        let build =
            |tls| http_client::builder(tls).redirect(redirect::Policy::limited(REDIRECTS_MAX)).build();
        let built = match (insecure, Tls::of(url.as_str())) {
            (true, _) => build(Tls::Unverified),
            (false, Tls::Verified | Tls::Unverified) => build(Tls::Verified),
            // It may redirect to https, so certificates are loaded if this machine has any.
            (false, Tls::None) => build(Tls::Verified).or_else(|_| build(Tls::None)),
        };
        built.map_err(|error| ArtifactError::Client(herdlet_base::error::in_full(&error.without_url())))
    }
}

/// The destination of an artifact.
#[derive(Debug, Clone)]
struct Target {
    place: Destination,
    mode: ArtifactMode,
    name: String,
}

impl Target {
    /// The directory for the files, and the name for a single file there.
    fn open(&self, dirs: &Dirs, owner: Option<&FileOwner>) -> Result<(Dir, std::ffi::OsString), FsError> {
        match self.mode {
            ArtifactMode::File => self.place.file(dirs, owner),
            ArtifactMode::Any | ArtifactMode::Dir => {
                Ok((self.place.directory(dirs, owner)?, self.name.clone().into()))
            }
        }
    }
}

/// A fetched artifact, ready to be published.
enum Made {
    File(File),
    Tree(Dir, Format),
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ArtifactError> + Send + 'static,
) -> Result<T, ArtifactError> {
    herdlet_runtime::off_thread(work)
        .await
        .map_err(|error| ArtifactError::Machine(error.to_string()))
        .flatten()
}
