//! Request bodies that nobody read: the answer arrives all the same.
//!
//! Closing a connection with unread data resets it: a client that still sends its body gets an error instead of the answer, although
//! what it asked for was done. So what is left of a body is read here and thrown away if it is small and comes soon. Otherwise the answer
//! says that the connection closes, and what still comes is read for a moment before it does
//! ([`Lingering`](super::lingering::Lingering)).

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

/// Bytes of a rest that are read so that the connection can go on.
const DRAINED_BYTES_MAX: u64 = 64 * 1024;

/// How long that may take. The usual rest is here already, or on its way.
const DRAINED_WITHIN: Duration = Duration::from_secs(1);

/// Answers a request, and sees to what its handler has left of the body.
pub(super) async fn finish(request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    if body.is_end_stream() {
        return next.run(Request::from_parts(head, body)).await;
    }
    // A client that expects 100-continue has not sent the body yet, and need not.
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

/// Whether a body was read to its end within bounds.
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

/// What a handler has left of a body.
#[derive(Default)]
enum Left {
    /// It has not given it back, or could not read it.
    #[default]
    Unknown,
    /// It has read all.
    Nothing,
    /// This.
    Rest(Body),
}

/// A body that comes back where it is not read to its end.
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
