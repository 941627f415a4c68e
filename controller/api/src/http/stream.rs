//! Streaming answers over HTTP: a producer writes pieces as they come, and the connection sends them at its own pace.
//!
//! Producer and answer end together: when either is done, when the client disconnects, or when the agent shuts down. In the last
//! case the answer is cut off, so that the client does not mistake it for a complete one.

use std::{future::Future, io, sync::Arc};

use axum::{
    body::{Body, Bytes},
    http::header,
    response::{IntoResponse, Response},
};
use futures_util::stream;
use tokio::sync::{mpsc, oneshot};

use super::Shared;
use crate::alloc_ops::stream::PIECES_LEN;
pub(super) use crate::alloc_ops::stream::{Form, Gone, Pieces};

/// An answer with the pieces that `produce` sends.
pub(super) fn streamed<F>(
    shared: &Arc<Shared>,
    content_type: &'static str,
    produce: impl FnOnce(Pieces) -> F,
) -> Response
where
    F: Future<Output = Result<(), Gone>> + Send + 'static,
{
    let (pieces, receiver) = mpsc::channel::<Vec<u8>>(PIECES_LEN);
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
        loop {
            match receiver.recv().await {
                // An empty piece only checks that the client is connected.
                Some(piece) if piece.is_empty() => {}
                Some(piece) => return Some((Ok(Bytes::from(piece)), Some((receiver, is_cut)))),
                None => {
                    is_cut.await.ok()?;
                    return Some((Err(io::Error::other("the agent is shutting down")), None));
                }
            }
        }
    });
    ([(header::CONTENT_TYPE, content_type)], Body::from_stream(pieces)).into_response()
}

impl Form {
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Plain => "text/plain; charset=utf-8",
            Self::Frames => "application/json",
        }
    }
}
