//! Fetches a disk from another node for the allocation that replaces the one there.
//!
//! In: the predecessor as servers know it, and the migrate token. Out: `.came-<id>` beside the allocations' directories, complete or
//! absent; the directory of the allocation takes it over ([`herdlet_storage::alloc_dir::migration`]). The archive is untrusted: the same confined process that unpacks
//! artifacts unpacks it. Each disk is requested once. If that fails, the allocation starts with an empty disk, and the log has the reason.
//!
//! Facts: `hashicorp/nomad:client/allocwatcher/alloc_watcher.go` (`remotePrevAlloc.Migrate`).

use std::{
    ffi::{OsStr, OsString},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use herdlet_agent::server_tokens::ServerTokens;
use herdlet_api_types::AllocId;
use herdlet_base::{
    artifact::format::{Codec, Format},
    http_client::{self, Credentials, Tls},
    paths::Paths,
    safe_fs::{Dir, FsError, Rights},
};
use herdlet_config::RpcTls;
use herdlet_nomad::wire::{Node, NodeId, Secret};
use herdlet_runtime::off_thread;
use herdlet_storage::{
    alloc_dir::migration::{came_name, coming_name},
    artifact::download::{self, DownloadError, DownloadRequest},
};
use herdlet_unpack::{Order, UnpackError, Unpacker};
use reqwest::{Client, Url, header::HeaderMap, redirect};
use rustix::fs::{Mode, OFlags};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use crate::snapshot::error_name;

/// Fetches snapshots from other nodes.
pub struct Mover {
    /// Where the disks are stored.
    pub paths: Paths,
    pub tokens: Arc<ServerTokens>,
    /// This node; its own disks are taken over without the mover.
    pub node: NodeId,
    /// The region, part of the certificate names of nodes with TLS.
    pub region: String,
    /// Certificates for nodes with TLS; `None` if those cannot be contacted.
    pub tls: Option<RpcTls>,
    /// The process that unpacks archives.
    pub unpacker: Unpacker,
    /// Permits for concurrent transfers.
    pub turns: Semaphore,
}

/// Why a disk could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// The node's address is unknown.
    #[error("find its node: {0}")]
    Node(String),
    /// The certificates cannot be used.
    #[error("set up HTTPS: {0}")]
    Tls(String),
    /// The download failed or is incomplete.
    #[error("fetch it from {address}: {source}")]
    Download {
        /// The node's HTTP API.
        address: String,
        source: DownloadError,
    },
    /// The archive is invalid or too large.
    #[error("{0}")]
    Unpack(#[from] UnpackError),
    /// The other node could not read the disk.
    #[error("fetch it: its node failed to create the snapshot: {0:?}")]
    There(String),
    /// The disk cannot be stored.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// The local machine failed.
    #[error("store it: {0}")]
    Machine(String),
    /// The disk is no longer wanted.
    #[error("fetch it: it is no longer needed")]
    Unwanted,
}

/// Maximum number of concurrent transfers.
pub const AT_ONCE: usize = 4;

/// Maximum number of files, directories and links in a disk.
const ENTRIES_MAX: u64 = 1_000_000;

/// Time limit for the transfer, and for unpacking.
const TIME_MAX: Duration = Duration::from_secs(6 * 60 * 60);

/// Maximum size of the other node's error text.
const WHY_BYTES_MAX: u64 = 4096;

const BODY: &str = "body";
const TREE: &str = "tree";

impl Mover {
    /// Fetches the disk of `previous` from its node, for `successor`. Nothing is in progress any more when this returns.
    ///
    /// # Errors
    /// [`MoveError`]; nothing of the disk is left then.
    pub async fn fetch(
        &self,
        previous: AllocId,
        node: &Node,
        successor: AllocId,
        token: &Secret,
        unwanted: &CancellationToken,
    ) -> Result<(), MoveError> {
        let came = came_name(successor);
        let paths = self.paths.clone();
        let is_here = {
            let came = came.clone();
            blocking(move || Ok(open(&paths)?.stat_name(&came)?.is_some())).await?
        };
        if is_here {
            return Ok(());
        }
        let fetched = self.fetch_into(previous, node, successor, token, unwanted).await;
        let paths = self.paths.clone();
        let is_good = fetched.is_ok() && !unwanted.is_cancelled();
        blocking(move || {
            let (allocs, coming) = (open(&paths)?, coming_name(successor));
            if is_good && let Some(coming) = allocs.find(&coming)? {
                // Sync the disk before the rename marks it as complete.
                rustix::fs::syncfs(&coming).map_err(|errno| FsError::io("sync", coming.path(), errno))?;
                coming.rename_into(OsStr::new(TREE), &allocs, &came)?;
            }
            Ok(allocs.remove_tree(&coming)?)
        })
        .await?;
        fetched
    }

    async fn fetch_into(
        &self,
        previous: AllocId,
        node: &Node,
        successor: AllocId,
        token: &Secret,
        unwanted: &CancellationToken,
    ) -> Result<(), MoveError> {
        let _turn = tokio::select! {
            () = unwanted.cancelled() => return Err(MoveError::Unwanted),
            turn = self.turns.acquire() => turn.map_err(|_| MoveError::Unwanted)?,
        };
        let (client, url) = self.client(node, previous).await?;
        let paths = self.paths.clone();
        let (coming, file, bytes_max) = blocking(move || {
            let (allocs, name) = (open(&paths)?, coming_name(successor));
            allocs.remove_tree(&name)?;
            let coming = allocs.make(&name, Rights::Exact { mode: 0o700, owner: None })?;
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&coming, BODY, flags, Mode::from_raw_mode(0o600))
                .map_err(|errno| FsError::io("create", coming.path().join(BODY), errno))?;
            let free = rustix::fs::fstatvfs(&coming)
                .map_err(|errno| FsError::io("examine", coming.path(), errno))?;
            // The archive and the unpacked tree exist at the same time, and other writers need space too.
            let bytes_max = free.f_bavail.saturating_mul(free.f_frsize) / 3;
            Ok((coming, std::fs::File::from(file), bytes_max))
        })
        .await?;
        let mut headers = HeaderMap::new();
        if !token.is_empty() {
            let mut value = token
                .reveal()
                .parse::<reqwest::header::HeaderValue>()
                .map_err(|_| MoveError::Node("the migrate token from the servers is invalid".to_owned()))?;
            value.set_sensitive(true);
            headers.insert("x-nomad-token", value);
        }
        let address = node.http_addr.clone();
        let wanted = DownloadRequest { client: &client, url: &url, headers: &headers, bytes_max };
        let file = tokio::select! {
            biased;
            () = unwanted.cancelled() => return Err(MoveError::Unwanted),
            fetched = tokio::time::timeout(TIME_MAX, download::into_file(&wanted, file, None)) => {
                let fetched = fetched.unwrap_or(Err(DownloadError::Silent(TIME_MAX)));
                fetched.map_err(|source| MoveError::Download { address, source })?.0
            }
        };
        let order = Order {
            format: Format::Tar(Codec::Plain),
            name: String::new(),
            folder: PathBuf::new(),
            bytes_max,
            entries_max: ENTRIES_MAX,
            user: None,
            seconds_max: TIME_MAX.as_secs(),
            keep_owners: true,
        };
        let tree =
            blocking(move || Ok(coming.make(OsStr::new(TREE), Rights::Exact { mode: 0o700, owner: None })?))
                .await?;
        self.unpacker.unpack(file, &tree, &order, unwanted).await?;
        blocking(move || {
            let error = tree.read_file(&OsString::from(error_name(&previous.to_string())), WHY_BYTES_MAX)?;
            match error {
                Some(error) => Err(MoveError::There(String::from_utf8_lossy(&error).into_owned())),
                None => Ok(()),
            }
        })
        .await
    }

    /// A client for this node only, without redirects: the token must not reach another host.
    async fn client(&self, node: &Node, previous: AllocId) -> Result<(Client, Url), MoveError> {
        let path = format!("/v1/client/allocation/{previous}/snapshot");
        let nowhere = |why: &str| MoveError::Node(format!("its address is {:?}, {why}", node.http_addr));
        if node.http_addr.is_empty() {
            return Err(nowhere("which is invalid"));
        }
        let plain = format!("http://{}", node.http_addr).parse::<Url>();
        let plain = plain.map_err(|_| nowhere("which is invalid"))?;
        let is_bare = plain.path() == "/" && plain.query().is_none() && plain.username().is_empty();
        let (Some(host), true) = (plain.host_str(), is_bare) else { return Err(nowhere("which is invalid")) };
        let tls = |error: reqwest::Error| MoveError::Tls(herdlet_base::error::in_full(&error.without_url()));
        if !node.tls_enabled {
            let client = http_client::builder(Tls::None).redirect(redirect::Policy::none()).build();
            let url = plain.join(&path).map_err(|_| nowhere("which is invalid"))?;
            return Ok((client.map_err(tls)?, url));
        }
        let Some(files) = self.tls.clone() else {
            return Err(MoveError::Tls("the node uses TLS, and this node has no certificates".to_owned()));
        };
        let port = plain.port_or_known_default().unwrap_or(443);
        let mut found = tokio::net::lookup_host((host.trim_matches(['[', ']']), port))
            .await
            .map_err(|error| MoveError::Node(error.to_string()))?;
        let address = found.next().ok_or_else(|| nowhere("which does not resolve"))?;
        // The certificate is for the role of a client in the region, not for its address.
        let name = format!("client.{}.nomad", self.region);
        let credentials = blocking(move || {
            let read = |path: &Path| {
                std::fs::read(path)
                    .map_err(|error| MoveError::Tls(format!("read {}: {error}", path.display())))
            };
            let mut identity = Zeroizing::new(read(&files.certificate)?);
            identity.push(b'\n');
            identity.extend_from_slice(&Zeroizing::new(read(&files.key)?));
            Ok(Credentials { authorities: Some(read(&files.authority)?), identity: Some(identity) })
        })
        .await?;
        let builder = http_client::builder(Tls::Verified).redirect(redirect::Policy::none());
        let builder = credentials.give(builder).map_err(tls)?.resolve(&name, address);
        let url = format!("https://{name}:{port}{path}").parse().map_err(|_| nowhere("which is invalid"))?;
        Ok((builder.build().map_err(tls)?, url))
    }
}

fn open(paths: &Paths) -> Result<Dir, FsError> {
    Dir::open_or_make(&paths.allocs(), 0o711)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, MoveError> + Send + 'static,
) -> Result<T, MoveError> {
    off_thread(work)
        .await
        .map_err(|error: tokio::task::JoinError| MoveError::Machine(io::Error::other(error).to_string()))
        .flatten()
}
