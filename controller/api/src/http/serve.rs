//! Listeners and connections: who is let in, how many, how slow they may be, and how all of it ends.
//!
//! One listener: the unix socket (peers must be our user or root), or TCP. Every bound is in [`Limits`];
//! [`admission`](super::admission) decides which requests are answered. Shutdown stops accepting, ends streams through
//! [`Shared::closing`](super::Shared::closing), and
//! gives the rest a moment.

mod connections;
mod place;
mod refusal;

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

use self::{connections::Connections, place::Place};
use super::{
    admission::{Access, Admission},
    tls::Tls,
};
use crate::{listen::when_free, peer::Peer};

#[cfg(test)]
pub(super) use connections::REFUSALS_MAX;
#[cfg(any(test, fuzzing, feature = "fixture"))]
pub use connections::connection;

/// Bounds of a listener.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at the same time; more are told so and closed.
    pub connections_max: usize,
    /// Of one address on TCP; 0 for no bound.
    pub per_peer_max: usize,
    /// How long a request's header may take; also how long an idle connection stays open.
    pub header_max: Duration,
    /// Header fields of a request.
    pub fields_max: usize,
    /// Bytes of a request's header.
    pub header_bytes_max: usize,
    /// How long requests under way may take when the agent shuts down.
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

/// More serve nobody.
const CONNECTIONS_MAX: usize = 512;

/// An eighth of the files that this process may open, for each of four listeners: whoever can connect takes at most so much,
/// and tasks are started with the rest.
fn connections_max() -> usize {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let share = files.map_or(CONNECTIONS_MAX, |files| usize::try_from(files / 8).unwrap_or(CONNECTIONS_MAX));
    share.clamp(8, CONNECTIONS_MAX)
}

/// Where the API listens.
#[derive(Debug)]
pub enum Listener {
    /// The unix socket; removed at the end.
    Unix {
        /// The socket.
        socket: UnixListener,
        /// Its path.
        path: PathBuf,
    },
    /// TCP.
    Tcp(TcpListener),
    /// TCP with TLS.
    Tls(TcpListener, Arc<Tls>),
}

/// Why the API can't listen. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The unix socket can't be made.
    #[error("listen on socket {path}")]
    Socket {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Somebody else could put a socket in its place.
    #[error(transparent)]
    Exposed(#[from] OwnershipError),
    /// An agent listens on it.
    #[error("listen on socket {path}: another agent answers there")]
    Taken {
        /// Which.
        path: PathBuf,
    },
    /// Something that is no socket is in its place.
    #[error("listen on socket {path}: there is something else in its place")]
    Occupied {
        /// Which.
        path: PathBuf,
    },
    /// The address can't be had.
    #[error("listen on {address}")]
    Tcp {
        /// Which.
        address: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl Listener {
    /// Makes the unix socket, 0600. One that a dead agent left is replaced.
    ///
    /// # Errors
    /// When another agent listens there, or the socket can't be made.
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
        // Until its mode is set, peer credentials are what keeps others out.
        let socket = UnixListener::bind(path).map_err(failed)?;
        std::fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed)?;
        Ok(Self::Unix { socket, path: path.to_owned() })
    }

    /// Listens on a TCP address, for instance `127.0.0.1:4646`. An agent that was killed may hold it until it has ended.
    ///
    /// # Errors
    /// When the address can't be had.
    pub async fn tcp(address: &str) -> Result<Self, ServeError> {
        let failed = |source| ServeError::Tcp { address: address.to_owned(), source };
        Ok(Self::Tcp(when_free(address, || TcpListener::bind(address)).await.map_err(failed)?))
    }

    /// The same, speaking TLS; the unix socket stays as it is.
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

/// What is served on a listener, and to whom.
pub struct Face {
    /// What answers.
    pub router: Router,
    /// Who may ask.
    pub access: Access,
    /// What the listeners of an agent share.
    pub admission: Arc<Admission>,
    /// Bounds.
    pub limits: Limits,
}

/// Serves a face until `closing` is cancelled. The unix socket needs no token, whatever the face says.
pub async fn serve(mut listener: Listener, face: Face, closing: CancellationToken) {
    let limits = face.limits;
    let connections = Connections::new(face, listener.address(), closing.clone());
    let mut place = match &listener {
        Listener::Unix { path, .. } => Some(Place::new(path)),
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
                // Out of file descriptors: trying again at once would be a tight loop.
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

/// Waits until the unix socket is gone, then makes it again; for ever where there is none. May be dropped while waiting.
async fn again(place: &mut Option<Place>) -> Option<Listener> {
    match place {
        Some(place) => {
            place.lost().await;
            place.make_again().await
        }
        None => std::future::pending().await,
    }
}

enum Accepted {
    Unix(tokio::net::UnixStream),
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
            Ok(if uid == 0 || uid == ours { Accepted::Unix(stream) } else { Accepted::Stranger(stream) })
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
