//! The connections of a listener: their number, and what each serves.
//!
//! In: accepted streams. Out: answers to their requests, each through [`admission`](crate::http::admission). Streams beyond the
//! limits get an error, if that is cheap.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Accepted, Frontend, Limits,
    refusal::{FORBIDDEN, FULL, PEER_FULL, Refusal},
};
use crate::{
    http::lingering::Lingering,
    http::{
        admission::{Caller, Gate, admit},
        tls::Tls,
        unread,
    },
    peer::{Peer, PeerPlace, PerPeer},
};

/// How long a peer may take to read a refusal.
const REFUSAL_MAX: Duration = Duration::from_secs(1);

/// Refusals sent at the same time. Further connections are closed without an answer, because a client that connects faster than
/// it is refused must not use up all file descriptors.
pub(crate) const REFUSALS_MAX: usize = 16;

pub(super) struct Connections {
    frontend: Frontend,
    /// The address of the listener.
    listener: Option<SocketAddr>,
    closing: CancellationToken,
    tasks: TaskTracker,
    places: Arc<Semaphore>,
    per_peer: Arc<PerPeer>,
    refusals: Arc<Semaphore>,
}

/// Slots that a connection holds until it ends.
struct Taken {
    _place: OwnedSemaphorePermit,
    _of_peer: Option<PeerPlace>,
}

impl Connections {
    pub(super) fn new(frontend: Frontend, listener: Option<SocketAddr>, closing: CancellationToken) -> Self {
        let Limits { connections_max, per_peer_max, .. } = frontend.limits;
        Self {
            frontend,
            listener,
            closing,
            tasks: TaskTracker::new(),
            places: Arc::new(Semaphore::new(connections_max)),
            per_peer: PerPeer::new(per_peer_max, connections_max),
            refusals: Arc::new(Semaphore::new(REFUSALS_MAX)),
        }
    }

    pub(super) fn take(&self, accepted: Accepted) {
        match accepted {
            Accepted::Unix(stream, uid) => match self.place(None) {
                Ok(taken) => self.serve(stream, taken, Caller::Local(uid)),
                Err(refusal) => self.refuse(stream, refusal),
            },
            Accepted::Tcp(stream, peer) => match self.place(Some(peer)) {
                Ok(taken) => self.serve(stream, taken, Caller::Remote(peer)),
                Err(refusal) => self.refuse(stream, refusal),
            },
            // No answer is possible before the handshake: without a free slot the connection is closed.
            Accepted::Tls(stream, peer, tls) => {
                if let Ok(taken) = self.place(Some(peer)) {
                    self.serve_tls(stream, taken, (peer, tls));
                }
            }
            Accepted::Stranger(stream) => self.refuse(stream, FORBIDDEN),
        }
    }

    /// Closes idle connections, and waits for the others.
    pub(super) async fn end(&self, within: Duration) {
        self.tasks.close();
        if tokio::time::timeout(within, self.tasks.wait()).await.is_err() {
            tracing::warn!(left = self.tasks.len(), "closing connections with requests in progress");
        }
    }

    fn place(&self, peer: Option<Peer>) -> Result<Taken, Refusal> {
        let of_peer = match peer {
            Some(peer) => Some(self.per_peer.take(peer).ok_or(PEER_FULL)?),
            None => None,
        };
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| FULL)?;
        Ok(Taken { _place: place, _of_peer: of_peer })
    }

    fn serve<S>(&self, stream: S, taken: Taken, caller: Caller)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let connection = connection(stream, self.router(caller), self.frontend.limits, self.closing.clone());
        self.tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
            drop(taken);
        });
    }

    /// A handshake may take as long as a request's header.
    fn serve_tls(&self, stream: TcpStream, taken: Taken, (peer, tls): (Peer, Arc<Tls>)) {
        let caller = if tls.verifies_clients() { Caller::Certified(peer) } else { Caller::Remote(peer) };
        let (router, limits, closing) = (self.router(caller), self.frontend.limits, self.closing.clone());
        self.tasks.spawn(async move {
            match tokio::time::timeout(limits.header_max, tls.accept(stream)).await {
                Ok(Ok(stream)) => {
                    if let Err(error) = connection(stream, router, limits, closing).await {
                        tracing::debug!(%error, "a connection ended early");
                    }
                }
                Ok(Err(error)) => tracing::debug!(%error, "a handshake failed"),
                Err(_) => tracing::debug!("a handshake took too long"),
            }
            drop(taken);
        });
    }

    /// The router of one connection. Layers around a router with a single service cost little.
    fn router(&self, caller: Caller) -> Router {
        let Frontend { router, access, admission, .. } = &self.frontend;
        let gate = Gate {
            access: access.clone(),
            admission: Arc::clone(admission),
            caller,
            listener: self.listener,
        };
        Router::new()
            .fallback_service(router.clone())
            .layer(middleware::from_fn_with_state(gate, admit))
            .layer(middleware::from_fn(unread::finish))
    }

    fn refuse<S>(&self, stream: S, refusal: Refusal)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Ok(place) = Arc::clone(&self.refusals).try_acquire_owned() else { return };
        self.tasks.spawn(async move {
            let _ = tokio::time::timeout(REFUSAL_MAX, refusal.send(Lingering::new(stream))).await;
            drop(place);
        });
    }
}

/// Serves one connection to its end. Once `closing` is cancelled, only the request in progress is finished.
#[cfg_attr(
    not(any(test, fuzzing, feature = "fixture")),
    expect(unreachable_pub, reason = "only fuzzing and tests call it from outside")
)]
pub async fn connection<S>(
    stream: S,
    router: Router,
    limits: Limits,
    closing: CancellationToken,
) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // The buffer alone bounds a header to almost twice its size.
    let router = Router::new()
        .fallback_service(router)
        .layer(middleware::from_fn_with_state(limits.header_bytes_max, with_bounded_head));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_max)
        .max_headers(limits.fields_max)
        .max_buf_size(limits.header_bytes_max)
        .serve_connection(TokioIo::new(Lingering::new(stream)), TowerToHyperService::new(router))
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

/// Refuses a request whose header is too long.
async fn with_bounded_head(State(bytes_max): State<usize>, request: Request, next: Next) -> Response {
    // Each field has a colon, usually a space, and the end of a line.
    let fields = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    if fields.sum::<usize>() + target <= bytes_max {
        return next.run(request).await;
    }
    let message = format!("the header of the request has more than {bytes_max} bytes");
    (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, [(header::CONNECTION, "close")], message).into_response()
}
