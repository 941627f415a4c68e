//! Answers that go on: a producer writes pieces as they come, the connection takes them at its own pace.
//!
//! A slow reader slows its producer down and nobody else. Producer and answer end together: when either is done, when the
//! reader goes away, or when the agent shuts down. Then the answer is cut off, so that nobody takes it for a whole one.

use std::{future::Future, io, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::header,
    response::{IntoResponse, Response},
};
use futures_util::stream;
use tokio::sync::{Semaphore, SemaphorePermit, mpsc, oneshot};

use super::{
    Shared,
    error::{ApiError, ApiResult},
};

/// Pieces between producer and connection: a few, so that a stalled reader holds little memory.
const PIECES_LEN: usize = 8;

/// Between two empty frames of a stream without news, as Nomad's clients expect them.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(1);

/// Files followed at the same time: each takes a connection and an open file, of which a process usually has 1,024 and of
/// which every task needs one too.
const FOLLOWED_MAX: usize = 256;
static FOLLOWED: Semaphore = Semaphore::const_new(FOLLOWED_MAX);

/// A place among those who follow a file, as long as it is held.
pub(super) fn follow() -> ApiResult<SemaphorePermit<'static>> {
    FOLLOWED
        .try_acquire()
        .map_err(|_| ApiError::Unavailable(format!("{FOLLOWED_MAX} files are being followed already")))
}

/// Works on files where a slow disk holds up nobody else.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    herdlet_runtime::off_thread(work).await.map_err(io::Error::other)?
}

/// Where a producer writes.
pub(super) type Pieces = mpsc::Sender<Bytes>;

/// The reader has gone away.
#[derive(Debug)]
pub(super) struct Gone;

impl<T> From<mpsc::error::SendError<T>> for Gone {
    fn from(_: mpsc::error::SendError<T>) -> Self {
        Self
    }
}

/// An answer that `produce` writes.
pub(super) fn streamed<F>(
    shared: &Arc<Shared>,
    content_type: &'static str,
    produce: impl FnOnce(Pieces) -> F,
) -> Response
where
    F: Future<Output = Result<(), Gone>> + Send + 'static,
{
    let (pieces, receiver) = mpsc::channel::<Bytes>(PIECES_LEN);
    let closing = shared.closing.clone();
    let gone = pieces.clone();
    let producing = produce(pieces);
    let (cut, is_cut) = oneshot::channel();
    tokio::spawn(async move {
        tokio::select! {
            _ = producing => {}
            () = gone.closed() => {}
            () = closing.cancelled() => { let _ = cut.send(()); }
        }
    });
    let pieces = stream::unfold(Some((receiver, is_cut)), |reading| async move {
        let (mut receiver, is_cut) = reading?;
        match receiver.recv().await {
            Some(piece) => Some((Ok(piece), Some((receiver, is_cut)))),
            None => {
                is_cut.await.ok()?;
                Some((Err(io::Error::other("the agent is shutting down")), None))
            }
        }
    });
    ([(header::CONTENT_TYPE, content_type)], Body::from_stream(pieces)).into_response()
}
