//! Listeners and connections: who is let in, how many, how slow they may be, and how all of it ends.
//!
//! One listener: the unix socket (peers must be our user or root), TCP with a token, or TCP for metrics. Every bound is in
//! [`Limits`]. Shutdown stops accepting, ends streams through [`Shared::closing`], and gives the rest a moment.

mod place;

use std::{
    fs::Permissions,
    io,
    net::SocketAddr,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::{Router, middleware};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, UnixListener},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::place::Place;
use super::{
    auth::{Token, require_token},
    tls::Tls,
};
use crate::listen::when_free;

/// Bounds of a listener.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at the same time; more are told so and closed.
    pub connections_max: usize,
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

/// Serves `router` until `closing` is cancelled. With a token only those who know it are served; the unix socket needs none.
pub async fn serve(
    mut listener: Listener,
    router: Router,
    token: Option<Token>,
    limits: Limits,
    closing: CancellationToken,
) {
    let router = match token {
        Some(token) => router.layer(middleware::from_fn_with_state(token, require_token)),
        None => router,
    };
    let server = Server {
        router,
        limits,
        closing: closing.clone(),
        connections: TaskTracker::new(),
        refusals: Arc::new(Semaphore::new(REFUSALS_MAX)),
    };
    let places = Arc::new(Semaphore::new(limits.connections_max));
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
        let peer = match accepted {
            Ok(peer) => peer,
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection");
                // Out of file descriptors: trying again at once would be a tight loop.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let place = Arc::clone(&places).try_acquire_owned().ok();
        match peer {
            Peer::Unix(stream) => server.take(stream, place),
            Peer::Tcp(stream) => server.take(stream, place),
            Peer::Tls(stream, tls) => server.take_tls(stream, tls, place),
            Peer::Stranger(stream) => server.refuse(stream, FORBIDDEN),
        }
    }
    server.connections.close();
    if tokio::time::timeout(limits.shutdown_max, server.connections.wait()).await.is_err() {
        tracing::warn!(left = server.connections.len(), "closing connections with requests under way");
    }
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

enum Peer {
    Unix(tokio::net::UnixStream),
    Tcp(tokio::net::TcpStream),
    Tls(tokio::net::TcpStream, Arc<Tls>),
    Stranger(tokio::net::UnixStream),
}

async fn accept(listener: &Listener) -> io::Result<Peer> {
    match listener {
        Listener::Unix { socket, .. } => {
            let (stream, _) = socket.accept().await?;
            let uid = stream.peer_cred()?.uid();
            let ours = rustix::process::geteuid().as_raw();
            Ok(if uid == 0 || uid == ours { Peer::Unix(stream) } else { Peer::Stranger(stream) })
        }
        Listener::Tcp(listener) => {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            Ok(Peer::Tcp(stream))
        }
        Listener::Tls(listener, tls) => {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            Ok(Peer::Tls(stream, Arc::clone(tls)))
        }
    }
}

const FORBIDDEN: Refusal = Refusal {
    status: "403 Forbidden",
    why: "Permission denied: this socket is for the agent's user and root",
};
const FULL: Refusal = Refusal {
    status: "503 Service Unavailable",
    why: "there are as many connections to this agent as it allows; try again later",
};

/// How long a peer may take to hear why it is not served.
const REFUSAL_MAX: Duration = Duration::from_secs(1);

/// Peers that are being told so at the same time. More are hung up on: who opens connections faster than they are refused
/// must not take all files.
pub(super) const REFUSALS_MAX: usize = 16;

/// Why a connection is not served.
struct Refusal {
    status: &'static str,
    why: &'static str,
}

impl Refusal {
    fn text(&self) -> String {
        let Self { status, why } = self;
        let length = why.len();
        format!(
            "HTTP/1.1 {status}\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{why}"
        )
    }
}

struct Server {
    router: Router,
    limits: Limits,
    closing: CancellationToken,
    connections: TaskTracker,
    refusals: Arc<Semaphore>,
}

impl Server {
    fn take<S>(&self, stream: S, place: Option<OwnedSemaphorePermit>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Some(place) = place else { return self.refuse(stream, FULL) };
        let connection = connection(stream, self.router.clone(), self.limits, self.closing.clone());
        self.connections.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
            drop(place);
        });
    }

    /// A handshake takes no longer than a request's header may. Who finds all places taken is hung up on: nothing can be said
    /// before the handshake.
    fn take_tls(&self, stream: tokio::net::TcpStream, tls: Arc<Tls>, place: Option<OwnedSemaphorePermit>) {
        let Some(place) = place else { return };
        let (router, limits, closing) = (self.router.clone(), self.limits, self.closing.clone());
        self.connections.spawn(async move {
            match tokio::time::timeout(limits.header_max, tls.accept(stream)).await {
                Ok(Ok(stream)) => {
                    if let Err(error) = connection(stream, router, limits, closing).await {
                        tracing::debug!(%error, "a connection ended early");
                    }
                }
                Ok(Err(error)) => tracing::debug!(%error, "a handshake failed"),
                Err(_) => tracing::debug!("a handshake took too long"),
            }
            drop(place);
        });
    }

    /// Says why not, as far as the peer's buffer takes it, and hangs up.
    fn refuse<S>(&self, mut stream: S, refusal: Refusal)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Ok(place) = Arc::clone(&self.refusals).try_acquire_owned() else { return };
        self.connections.spawn(async move {
            let telling = async {
                // A connection closed with something unread is reset, and the peer never sees why.
                let _ = stream.read(&mut [0; 4_096]).await?;
                stream.write_all(refusal.text().as_bytes()).await?;
                stream.shutdown().await
            };
            let _ = tokio::time::timeout(REFUSAL_MAX, telling).await;
            drop(place);
        });
    }
}

/// Serves one connection to its end; once `closing` is cancelled, only the request under way.
pub(crate) async fn connection<S>(
    stream: S,
    router: Router,
    limits: Limits,
    closing: CancellationToken,
) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_max)
        .max_headers(limits.fields_max)
        .max_buf_size(limits.header_bytes_max)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        ended = &mut connection => ended,
        () = closing.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}
