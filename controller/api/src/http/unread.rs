//! Request bodies that no handler reads: the answer must still arrive.
//!
//! Closing a connection with unread data resets it: a client that is still sending its body would get an error instead of the
//! answer, although the request was carried out. So a rest that is small and comes soon is read and discarded here. Otherwise the
//! answer announces that the connection closes, and [`Lingering`](super::lingering::Lingering) reads for a moment before it does.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
    http::{HeaderValue, header},
    middleware::Next,
    response::Response,
};
use futures_util::StreamExt as _;
use hyper::body::{Frame, SizeHint};

/// Bytes of a rest that are read to keep the connection open.
const DRAINED_BYTES_MAX: u64 = 64 * 1024;

/// How long that may take. Usually the rest has already arrived.
const DRAINED_WITHIN: Duration = Duration::from_secs(1);

/// Answers a request, and handles the rest of its body.
pub(super) async fn finish(request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    if body.is_end_stream() {
        return next.run(Request::from_parts(head, body)).await;
    }
    // A client that sent `Expect: 100-continue` has not sent the body yet, and won't.
    let is_sent = !head.headers.contains_key(header::EXPECT);
    let left = Arc::new(Mutex::new(Left::Unknown));
    let watched = Watched { body: Some(body), left: Arc::clone(&left) };
    let mut response = next.run(Request::from_parts(head, Body::new(watched))).await;
    let left = std::mem::take(&mut *left.lock().unwrap_or_else(PoisonError::into_inner));
    let is_read = match left {
        Left::Nothing => true,
        Left::Rest(body) => is_sent && drain(body).await,
        Left::Unknown => false,
    };
    if !is_read {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Reads a body within the limits. Returns whether it is complete.
async fn drain(body: Body) -> bool {
    if body.size_hint().lower() > DRAINED_BYTES_MAX {
        return false;
    }
    let reading = async {
        let mut pieces = body.into_data_stream();
        let mut bytes = 0;
        while let Some(piece) = pieces.next().await {
            let Ok(piece) = piece else { return false };
            bytes += piece.len() as u64;
            if bytes > DRAINED_BYTES_MAX {
                return false;
            }
        }
        true
    };
    tokio::time::timeout(DRAINED_WITHIN, reading).await.unwrap_or(false)
}

/// The part of a body that a handler has not read.
#[derive(Default)]
enum Left {
    /// The handler has not dropped the body, or failed to read it.
    #[default]
    Unknown,
    Nothing,
    Rest(Body),
}

/// A body that returns its rest when it is dropped.
struct Watched {
    body: Option<Body>,
    left: Arc<Mutex<Left>>,
}

impl Watched {
    fn leave(&mut self, left: Left) {
        self.body = None;
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = left;
    }
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let polled = Pin::new(body).poll_frame(context);
        match &polled {
            Poll::Ready(None) => self.leave(Left::Nothing),
            Poll::Ready(Some(Err(_))) => self.leave(Left::Unknown),
            Poll::Ready(Some(Ok(_))) | Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, HttpBody::size_hint)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(body) = self.body.take() {
            let left = if body.is_end_stream() { Left::Nothing } else { Left::Rest(body) };
            self.leave(left);
        }
    }
}
