//! Long-running responses: logs, files, the agent's log, events. Each is a streaming call, to this node's own service or to a server; its
//! payloads form the response body, at the reader's pace.
//!
//! The response starts after the first message, since that may be an error with a status code. If the stream breaks off later, the response
//! is aborted, so that it does not look complete.
//!
//! Facts: `hashicorp/nomad:command/agent/fs_endpoint.go`, `agent_endpoint.go`, `event_endpoint.go`.

use std::{io, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::Request,
    http::{HeaderName, HeaderValue, header},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use herdlet_rpc::{
    codec::{Limits, Value},
    error::{CallError, MessageError},
    framed::Framed,
    mux::Io,
};
use tokio_util::sync::CancellationToken;

use super::{
    HttpError, NodeApi, exec,
    piece::{Piece, piece},
    request::RequestParams,
    stream_call::{FileStream, Streamed, events_call, export_call, file_call, monitor_call},
};
use crate::cluster_client::Question;

/// Headers with the content of a file, as in stock agents.
const OF_TASKS: [(HeaderName, &str); 4] = [
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; style-src 'unsafe-inline'; sandbox"),
    (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_XSS_PROTECTION, "1; mode=block"),
];

/// Limits for an event, which may hold a whole job or allocation.
const EVENT: Limits = Limits { bytes: 16 << 20, depth: 8, values: 64 };

impl NodeApi {
    /// Answers with a stream.
    pub(super) async fn stream(
        self: &Arc<Self>,
        what: Streamed<'_>,
        params: &RequestParams,
        request: &mut Request,
    ) -> Result<Response, HttpError> {
        let is_of_task = matches!(what, Streamed::File(FileStream::Cat | FileStream::ReadAt, _));
        let has_lines = matches!(what, Streamed::Events);
        let call = match what {
            Streamed::Exec(executed) => return exec::open(self, executed, params, request).await,
            Streamed::File(how, alloc) => file_call(how, alloc, params)?,
            Streamed::Monitor => monitor_call(params)?,
            Streamed::MonitorExport => export_call(params)?,
            Streamed::Events => events_call(params)?,
        };
        let stream = self.begin(call.method, call.alloc, params, call.fields).await?;
        let streamed = StreamedResponse { stream, closing: self.shared.closing.clone(), has_lines };
        let response = streamed.answer(if call.is_plain { "text/plain" } else { "application/json" }).await?;
        Ok(if is_of_task { untrusted(response) } else { response })
    }

    /// Starts a streaming call at this node or at a server.
    pub(super) async fn begin(
        &self,
        method: &str,
        alloc: Option<&str>,
        params: &RequestParams,
        fields: Vec<(&str, Value)>,
    ) -> Result<Framed<Box<dyn Io>>, HttpError> {
        let fields = fields.into_iter().map(|(name, value)| (Value::Text(name.to_owned()), value));
        // Only event streams have an index, which is one of their fields.
        let question = params.plain(method, true).map_err(|why| HttpError(400, why))?;
        let question = Question { fields: Value::Map(fields.collect()), ..question };
        if method != "Event.Stream" && self.is_here(alloc, params) {
            let arguments = question.body(&self.shared.facts.node.region, Duration::ZERO);
            let begun = self.service.clone().begin(method.to_owned(), &arguments).await;
            return begun.map_err(|error| HttpError(500, format!("failed to {error}")));
        }
        self.await_servers().await?;
        self.servers.stream(question).await.map_err(HttpError::from)
    }
}

/// Prevents browsers from interpreting a task's file as a page of this origin.
fn untrusted(mut response: Response) -> Response {
    for (name, value) in OF_TASKS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// The messages of a streaming call as a response body.
struct StreamedResponse {
    stream: Framed<Box<dyn Io>>,
    closing: CancellationToken,
    /// Whether each message becomes a line.
    has_lines: bool,
}

impl StreamedResponse {
    async fn answer(mut self, content_type: &'static str) -> Result<Response, HttpError> {
        let first = match self.next().await.map_err(|error| HttpError::from(CallError::from(error)))? {
            Some(Piece::Failed(code, why)) => return Err(HttpError(code, why)),
            Some(Piece::Payload(payload)) => Some(payload),
            None => return Ok(([(header::CONTENT_TYPE, content_type)], Body::empty()).into_response()),
        };
        let pieces = stream::unfold(Some((self, first)), |state| async {
            let (mut stream, first) = state?;
            if let Some(first) = first {
                return Some((Ok(Bytes::from(first)), Some((stream, None))));
            }
            match stream.next().await {
                Ok(Some(Piece::Payload(payload))) => Some((Ok(Bytes::from(payload)), Some((stream, None)))),
                Ok(Some(Piece::Failed(_, why))) => Some((Err(io::Error::other(why)), None)),
                Ok(None) => None,
                Err(error) => Some((Err(io::Error::other(error)), None)),
            }
        });
        Ok(([(header::CONTENT_TYPE, content_type)], Body::from_stream(pieces)).into_response())
    }

    /// The next non-empty message; `None` at the end.
    async fn next(&mut self) -> Result<Option<Piece>, MessageError> {
        let limits = if self.has_lines { EVENT } else { Limits::FRAME };
        loop {
            let message = tokio::select! {
                message = self.stream.receive_within::<Value>(limits) => message?,
                () = self.closing.cancelled() => return Err(MessageError::Ended),
            };
            let Some(message) = message else { return Ok(None) };
            return Ok(Some(match piece(message) {
                Piece::Payload(payload) if payload.is_empty() => continue,
                Piece::Payload(mut payload) => {
                    if self.has_lines {
                        payload.push(b'\n');
                    }
                    Piece::Payload(payload)
                }
                failed @ Piece::Failed(..) => failed,
            }));
        }
    }
}
