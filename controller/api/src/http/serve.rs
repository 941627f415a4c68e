//! Listeners and connections: who may connect, how many, how slow clients may be, and shutdown.
//!
//! A listener is the unix socket (peers must be our user or root), or TCP. Every limit is in [`Limits`];
//! [`admission`](super::admission) decides which requests are answered. Shutdown stops accepting, ends streams through
//! [`Shared::closing`](super::Shared::closing), and waits a moment for the other requests.

pub(super) mod connections;
mod refusal;
mod socket_path;

use std::{
    fs::Permissions,
    io,
    net::SocketAddr,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::Router;
use herdlet_base::ownership::{self, OwnershipError};
use herdlet_config::http::PER_PEER_MAX;
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

use self::{connections::Connections, socket_path::SocketPath};
use super::{
    admission::{Access, Admission},
    tls::Tls,
};
use crate::{listen::when_free, peer::Peer};

#[cfg(test)]
pub(super) use connections::REFUSALS_MAX;
#[cfg(any(test, fuzzing, feature = "fixture"))]
pub use connections::connection;

/// Limits of a listener.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at the same time. Further ones get an error and are closed.
    pub connections_max: usize,
    /// Connections of one address on TCP; 0 means no limit.
    pub per_peer_max: usize,
    /// How long a request's header may take, and how long an idle connection stays open.
    pub header_max: Duration,
    /// Header fields of a request.
    pub fields_max: usize,
    /// Bytes of a request's header.
    pub header_bytes_max: usize,
    /// How long requests in progress may take when the agent shuts down.
    pub shutdown_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: connections_max(),
            per_peer_max: PER_PEER_MAX,
            header_max: Duration::from_secs(15),
            fields_max: 64,
            header_bytes_max: 64 * 1024,
            shutdown_max: Duration::from_secs(3),
        }
    }
}

/// A higher limit would serve no purpose.
const CONNECTIONS_MAX: usize = 512;

/// An eighth of the process's file limit, for each of four listeners. So clients can occupy half of the limit at most,
/// and starting tasks needs the rest.
fn connections_max() -> usize {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let share = files.map_or(CONNECTIONS_MAX, |files| usize::try_from(files / 8).unwrap_or(CONNECTIONS_MAX));
    share.clamp(8, CONNECTIONS_MAX)
}

#[derive(Debug)]
pub enum Listener {
    /// The unix socket; removed at the end.
    Unix {
        socket: UnixListener,
        path: PathBuf,
    },
    Tcp(TcpListener),
    Tls(TcpListener, Arc<Tls>),
}

/// Why the API can't listen. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The unix socket can't be created.
    #[error("listen on socket {path}")]
    Socket {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Another user could replace the socket.
    #[error(transparent)]
    Exposed(#[from] OwnershipError),
    /// Another agent listens on it.
    #[error("listen on socket {path}: another agent answers there")]
    Taken { path: PathBuf },
    /// The path exists and is not a socket.
    #[error("listen on socket {path}: the path exists and is not a socket")]
    Occupied { path: PathBuf },
    /// The address can't be bound.
    #[error("listen on {address}")]
    Tcp {
        address: String,
        #[source]
        source: io::Error,
    },
}

impl Listener {
    /// Creates the unix socket with mode 0600. Replaces a socket that a dead agent has left.
    ///
    /// # Errors
    /// When another agent listens there, or the socket can't be created.
    pub async fn unix(path: &Path) -> Result<Self, ServeError> {
        let failed = |source| ServeError::Socket { path: path.to_owned(), source };
        ownership::check_way(path)?;
        match std::fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(ServeError::Occupied { path: path.to_owned() });
            }
            Ok(_) => {
                if tokio::net::UnixStream::connect(path).await.is_ok() {
                    return Err(ServeError::Taken { path: path.to_owned() });
                }
                std::fs::remove_file(path).map_err(failed)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        // Until the mode is set, only the check of peer credentials keeps others out.
        let socket = UnixListener::bind(path).map_err(failed)?;
        std::fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed)?;
        Ok(Self::Unix { socket, path: path.to_owned() })
    }

    /// Listens on a TCP address, for instance `127.0.0.1:4646`. Retries for a while if it is in use: an agent that was
    /// killed may not have ended yet.
    ///
    /// # Errors
    /// When the address can't be bound.
    pub async fn tcp(address: &str) -> Result<Self, ServeError> {
        let failed = |source| ServeError::Tcp { address: address.to_owned(), source };
        Ok(Self::Tcp(when_free(address, || TcpListener::bind(address)).await.map_err(failed)?))
    }

    /// The same listener with TLS. The unix socket is unchanged.
    #[must_use]
    pub fn with_tls(self, tls: impl Into<Arc<Tls>>) -> Self {
        match self {
            Self::Tcp(listener) | Self::Tls(listener, _) => Self::Tls(listener, tls.into()),
            Self::Unix { .. } => self,
        }
    }

    /// The address of a TCP listener.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Unix { .. } => None,
            Self::Tcp(listener) | Self::Tls(listener, _) => listener.local_addr().ok(),
        }
    }
}

/// What a listener serves, and to whom.
pub struct Frontend {
    pub router: Router,
    pub access: Access,
    /// Shared by all listeners of an agent.
    pub admission: Arc<Admission>,
    pub limits: Limits,
}

/// Serves a frontend until `closing` is cancelled. The unix socket needs no token, even if the frontend does.
pub async fn serve(mut listener: Listener, frontend: Frontend, closing: CancellationToken) {
    let limits = frontend.limits;
    let connections = Connections::new(frontend, listener.address(), closing.clone());
    let mut place = match &listener {
        Listener::Unix { path, .. } => Some(SocketPath::new(path)),
        Listener::Tcp(_) | Listener::Tls(..) => None,
    };
    loop {
        let accepted = tokio::select! {
            () = closing.cancelled() => break,
            again = again(&mut place) => {
                if let Some(made) = again {
                    listener = made;
                }
                continue;
            }
            accepted = accept(&listener) => accepted,
        };
        match accepted {
            Ok(accepted) => connections.take(accepted),
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection");
                // Out of file descriptors: without a pause this would be a busy loop.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    connections.end(limits.shutdown_max).await;
    if let Listener::Unix { path, .. } = &listener
        && place.is_some_and(|place| place.is_ours())
        && let Err(error) = std::fs::remove_file(path)
    {
        tracing::warn!(path = %path.display(), %error, "failed to remove the socket");
    }
}

/// Waits until the unix socket is gone, then creates it again. Never returns for TCP. Cancel-safe.
async fn again(place: &mut Option<SocketPath>) -> Option<Listener> {
    match place {
        Some(place) => {
            place.lost().await;
            place.make_again().await
        }
        None => std::future::pending().await,
    }
}

enum Accepted {
    /// With the user id of the peer.
    Unix(tokio::net::UnixStream, u32),
    Tcp(tokio::net::TcpStream, Peer),
    Tls(tokio::net::TcpStream, Peer, Arc<Tls>),
    /// Another user, on the unix socket.
    Stranger(tokio::net::UnixStream),
}

async fn accept(listener: &Listener) -> io::Result<Accepted> {
    match listener {
        Listener::Unix { socket, .. } => {
            let (stream, _) = socket.accept().await?;
            let uid = stream.peer_cred()?.uid();
            let ours = rustix::process::geteuid().as_raw();
            Ok(if uid == 0 || uid == ours { Accepted::Unix(stream, uid) } else { Accepted::Stranger(stream) })
        }
        Listener::Tcp(listener) => {
            let (stream, address) = listener.accept().await?;
            stream.set_nodelay(true)?;
            Ok(Accepted::Tcp(stream, address.ip().into()))
        }
        Listener::Tls(listener, tls) => {
            let (stream, address) = listener.accept().await?;
            stream.set_nodelay(true)?;
            Ok(Accepted::Tls(stream, address.ip().into(), Arc::clone(tls)))
        }
    }
}
