//! Artifacts: what is fetched by http(s) into a task's directory before the task starts.
//!
//! In: artifacts with their variables replaced, the task's directories, its user. Out: files, whole or not at all, and a mark that tells of
//! each that has been fetched: what is marked is not fetched again. Whatever is interrupted leaves nothing that is taken for done, and what
//! it leaves goes with the next try. Errors, logs and `Debug` tell no secrets: of an address neither user nor query, of headers no value.
//!
//! - [`source`]: addresses, in the form of go-getter; [`format`]: what is taken for an archive; [`checksum`].
//! - [`place`]: where it goes; [`staging`]: where it is made ready, and how files come to stand in their places; [`marker`]: what has been
//!   fetched.
//! - [`download`]: http. [`unpack`]: archives, in a process of its own.
//!
//! Facts: `hashicorp/go-getter:client.go`; `hashicorp/nomad:client/allocrunner/taskrunner/artifact_hook.go`, `getter/`.

pub mod download;
pub mod marker;
pub mod staging;
pub mod unpack;

#[cfg(test)]
pub(crate) mod tests;

use std::{collections::BTreeSet, fs::File, sync::Arc, time::Duration};

use aws_lc_rs::digest;
use futures_util::{StreamExt as _, stream};
use herdlet_api_types::job::{Artifact, ArtifactMode};
use herdlet_base::{
    artifact::{
        checksum::{self, Checksum, Written},
        format::Format,
        place::{Base, Dirs, Outside, Place},
        source::{self, Source, SourceError},
    },
    http_client::{self, Tls},
};
use herdlet_base::{
    safe_fs::{Dir, FileOwner, FsError},
    user::Credentials,
};
use herdlet_config::artifact::Limits;
use reqwest::{Client, Url, redirect};
use tokio::sync::{Mutex, Semaphore};
use tokio_util::sync::CancellationToken;

use self::{
    download::{DownloadError, Wanted},
    staging::Staging,
    unpack::{Order, UnpackError, Unpacker},
};

/// Fetches artifacts.
#[derive(Debug)]
pub struct Fetcher {
    limits: Limits,
    unpacker: Unpacker,
    unpacking: Semaphore,
}

/// An artifact whose variables are replaced.
pub struct Resolved {
    /// Tells this specification from all others, as it is written.
    pub digest: String,
    /// What it says now.
    pub artifact: Artifact,
}

/// For whom something is fetched.
#[derive(Debug, Clone)]
pub struct Recipient {
    pub dirs: Dirs,
    /// The task's user, where files can be given to it.
    pub user: Option<Credentials>,
}

impl Recipient {
    fn file_owner(&self) -> Option<FileOwner> {
        let Credentials { uid, gid, groups, .. } = self.user.as_ref()?;
        Some(FileOwner { uid: *uid, gid: *gid, groups: groups.clone() })
    }
}

/// Why an artifact can't be had.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// Its address makes no sense.
    #[error("fetch an artifact: its source {0}")]
    Source(#[from] SourceError),
    /// Its destination is none of the task's.
    #[error("fetch an artifact: {0}")]
    Outside(#[from] Outside),
    /// It was not given.
    #[error("fetch {what}: {source}")]
    Download {
        /// Its address, as others may know it.
        what: String,
        source: DownloadError,
    },
    /// It takes too long.
    #[error("fetch {what}: it takes longer than {} s", limit.as_secs())]
    Slow {
        /// Its address, as others may know it.
        what: String,
        /// How long it may take.
        limit: Duration,
    },
    /// It is not what it should be.
    #[error("fetch {what}: {why}")]
    Checksum {
        /// Its address, as others may know it.
        what: String,
        why: String,
    },
    /// It is no archive, or a bad one.
    #[error("fetch {what}: {source}")]
    Unpack {
        /// Its address, as others may know it.
        what: String,
        source: UnpackError,
    },
    /// `mode = "dir"` wants an archive.
    #[error(
        "fetch {what}: mode `dir` is for archives, which this is not by its name; name its format by `archive`"
    )]
    NoArchive {
        /// Its address, as others may know it.
        what: String,
    },
    /// It can't be put where it belongs.
    #[error("fetch an artifact: {0}")]
    Fs(#[from] FsError),
    /// No client can be made.
    #[error("fetch an artifact: prepare for https: {0}")]
    Client(String),
    /// The machine lacks something.
    #[error("fetch an artifact: {0}")]
    Machine(String),
    /// Nobody wants it any more.
    #[error("fetch an artifact: it was taken back")]
    Cancelled,
}

/// What may follow a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It was not the artifact's fault.
    TryAgain,
    /// Whether it is tried again is for the task's restart policy to say.
    Failed,
    /// It never works.
    Never,
}

impl ArtifactError {
    /// What may follow.
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

/// So many of a task are fetched at the same time, as in Nomad.
const AT_ONCE: usize = 3;

/// So many are unpacked at the same time, of all tasks: that takes processors, which downloads don't.
const UNPACKED_AT_ONCE: usize = 4;

/// A list of checksums.
const LIST_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// More than the ten of Go's client would be a circle.
const REDIRECTS_MAX: usize = 10;

/// Tells a specification from all others.
pub fn digest_of(artifact: &Artifact) -> String {
    // Plain data always has a JSON form.
    let text = serde_json::to_vec(artifact).unwrap_or_default();
    checksum::hex(digest::digest(&digest::SHA256, &text).as_ref())
}

/// Whether all of them have been fetched.
///
/// # Errors
/// When it can't be told.
pub fn look(artifacts: &[Resolved], dirs: &Dirs) -> Result<bool, ArtifactError> {
    Ok(missing(artifacts, dirs)?.is_empty())
}

/// Those that have not been fetched, each once.
fn missing<'a>(artifacts: &'a [Resolved], dirs: &Dirs) -> Result<Vec<(&'a Resolved, Place)>, ArtifactError> {
    let places =
        artifacts.iter().map(|resolved| Ok((resolved, Place::of(&resolved.artifact.destination, dirs)?)));
    let places: Vec<(&Resolved, Place)> = places.collect::<Result<_, Outside>>()?;
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

/// Where the mark of an artifact is: where it goes when the artifact goes.
fn marked_in(place: &Place) -> Base {
    match place.base() {
        Base::Secrets => Base::Secrets,
        Base::Task | Base::Shared => Base::Task,
    }
}

impl Fetcher {
    /// Keeps to these limits.
    pub fn new(limits: Limits) -> Self {
        Self::with(limits, Unpacker::default())
    }

    /// Unpacks by another program.
    pub fn with(limits: Limits, unpacker: Unpacker) -> Self {
        Self { limits, unpacker, unpacking: Semaphore::new(UNPACKED_AT_ONCE) }
    }

    /// Fetches those that have not been fetched yet. One that fails does not keep the others from being fetched. When this returns, also
    /// because it was cancelled, nothing of it is under way.
    ///
    /// # Errors
    /// The first failure, which was told before any other that came after it.
    pub async fn up(
        self: &Arc<Self>,
        artifacts: Vec<Resolved>,
        recipient: Recipient,
        cancelled: &CancellationToken,
    ) -> Result<(), ArtifactError> {
        let (artifacts, recipient) = (Arc::new(artifacts), Arc::new(recipient));
        let looked_at = (Arc::clone(&artifacts), Arc::clone(&recipient));
        let missing: Vec<(usize, Place)> = blocking(move || {
            let (artifacts, recipient) = looked_at;
            let digests: Vec<&str> = artifacts.iter().map(|resolved| &*resolved.digest).collect();
            let at = |(resolved, place): (&Resolved, Place)| {
                Some((digests.iter().position(|digest| *digest == resolved.digest)?, place))
            };
            let missing: Vec<_> = missing(&artifacts, &recipient.dirs)?.into_iter().filter_map(at).collect();
            if !missing.is_empty() {
                // What an agent left that was killed.
                staging::clear(&recipient.dirs)?;
            }
            Ok(missing)
        })
        .await?;
        if missing.is_empty() {
            return Ok(());
        }
        // One at a time puts its files in their places.
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
        place: Place,
        recipient: Arc<Recipient>,
        turn: &Mutex<()>,
        cancelled: &CancellationToken,
    ) -> Result<(), ArtifactError> {
        if cancelled.is_cancelled() {
            return Err(ArtifactError::Cancelled);
        }
        let source = Source::parse(&resolved.artifact.source, &resolved.artifact.options)?;
        if resolved.artifact.mode == ArtifactMode::Dir && source.format.is_none() {
            return Err(ArtifactError::NoArchive { what: source.told() });
        }
        let owner = recipient.file_owner();
        let target = Target { place, mode: resolved.artifact.mode, name: source.file_name.clone() };
        let id: String = resolved.digest.chars().take(16).collect();
        let (dirs, staged, staged_for) = (recipient.dirs.clone(), target.clone(), owner.clone());
        let (staging, body) = blocking(move || {
            // Told before anything is fetched: that it can't go there.
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

    /// Fetches it, verifies it, unpacks it.
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
                fetched.map_err(|_| ArtifactError::Slow { what: source.told(), limit })??
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
            | UnpackError::Slow { .. }) => {
                ArtifactError::Unpack { what: source.told(), source: source_error }
            }
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
        let failed = |source_error| ArtifactError::Download { what: source.told(), source: source_error };
        let headers = headers.iter().map(|(name, value)| (name, value.clone()));
        let headers = download::header_fields(headers).map_err(failed)?;
        let wrong = |why: String| ArtifactError::Checksum { what: source.told(), why };
        let written = source.checksum.as_deref().map(Written::parse).transpose();
        let checksum = match written.map_err(|error| wrong(format!("its checksum {error}")))? {
            None => None,
            Some(Written::Value(checksum)) => Some(checksum),
            Some(Written::List(url)) => {
                let url = source::check_scheme(&url)
                    .and_then(|url| {
                        Url::parse(url).map_err(|error| SourceError::Invalid { why: error.to_string() })
                    })
                    .map_err(|error| wrong(format!("the address of its checksums {error}")))?;
                let (client, bytes_max) = (client(&url)?, LIST_BYTES_MAX);
                let wanted = Wanted { client: &client, url: &url, headers: &headers, bytes_max };
                let list = download::text(&wanted)
                    .await
                    .map_err(|error| ArtifactError::Download { what: source::told(&url), source: error })?;
                let of_file = Checksum::in_list(&list, &source.remote_name);
                Some(of_file.map_err(|error| wrong(error.to_string()))?)
            }
        };
        let (url, bytes_max) = (&source.url, self.limits.http_bytes_max);
        let wanted = Wanted { client: &client(url)?, url, headers: &headers, bytes_max };
        let hasher = checksum.as_ref().map(Checksum::begin);
        let (body, computed) = download::into_file(&wanted, body, hasher).await.map_err(failed)?;
        match (checksum, computed) {
            (Some(checksum), Some(computed)) if !checksum.is(&computed) => {
                Err(wrong(format!("its {} is {computed}, which is not as written", checksum.name())))
            }
            (Some(_) | None, _) => Ok(body),
        }
    }

    /// A client of its own for each: connections are not kept, and what the system trusts is read when it is needed.
    fn client(&self, url: &Url, insecure: bool) -> Result<Client, ArtifactError> {
        let build =
            |tls| http_client::builder(tls).redirect(redirect::Policy::limited(REDIRECTS_MAX)).build();
        let built = match (insecure, Tls::of(url.as_str())) {
            (true, _) => build(Tls::Unverified),
            (false, Tls::Verified | Tls::Unverified) => build(Tls::Verified),
            // It may be sent on to https, where this machine trusts anybody.
            (false, Tls::None) => build(Tls::Verified).or_else(|_| build(Tls::None)),
        };
        built.map_err(|error| ArtifactError::Client(herdlet_base::error::in_full(&error.without_url())))
    }
}

/// Where it goes.
#[derive(Debug, Clone)]
struct Target {
    place: Place,
    mode: ArtifactMode,
    name: String,
}

impl Target {
    /// The directory in which something comes to stand, and the name of a file there.
    fn open(&self, dirs: &Dirs, owner: Option<&FileOwner>) -> Result<(Dir, std::ffi::OsString), FsError> {
        match self.mode {
            ArtifactMode::File => self.place.file(dirs, owner),
            ArtifactMode::Any | ArtifactMode::Dir => {
                Ok((self.place.directory(dirs, owner)?, self.name.clone().into()))
            }
        }
    }
}

/// What was fetched, ready to be put in its place.
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
