//! `GET /v1/client/allocation/ALLOC/exec`: a command in a running task, over a websocket with Nomad's JSON frames.
//!
//! In: `{"stdin":{"data":…}}`, `{"stdin":{"close":true}}`, `{"tty_size":{"height":…,"width":…}}`, `{}`. Out: the same for
//! stdout and stderr, then `{"exited":true,"result":{"exit_code":…}}`. The session ends with the socket. On failure,
//! `{"error":{"message":…}}` precedes the close frame, whose reason is limited to 123 bytes. Nomad's clients ignore that
//! message and show the reason.

use std::sync::Arc;

use axum::{
    extract::{
        Path, State, WebSocketUpgrade,
        ws::{CloseFrame, Message, Utf8Bytes, WebSocket},
    },
    response::Response,
};
use futures_util::{
    SinkExt, StreamExt,
    stream::{self, BoxStream, SplitStream},
};
use herdlet_driver::ExecInput;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    Shared,
    error::{ApiError, ApiResult},
    query::{Params, flag},
};
pub use crate::alloc_ops::exec::input_frames;
use crate::alloc_ops::exec::{self, FRAME_BYTES_MAX, FRAMES_LEN, Session, frame_text};

/// Policy violation (RFC 6455 §7.4.1): Nomad's code for errors of the caller.
pub const CLOSE_POLICY: u16 = 1008;
/// Internal error (RFC 6455 §7.4.1).
pub const CLOSE_ERROR: u16 = 1011;
/// Normal closure (RFC 6455 §7.4.1).
pub const CLOSE_NORMAL: u16 = 1000;

/// Query parameters.
#[derive(Debug, Deserialize)]
pub(super) struct ExecQuery {
    #[serde(default)]
    task: String,
    /// JSON list of program and arguments.
    #[serde(default)]
    command: String,
    #[serde(default, deserialize_with = "flag")]
    tty: bool,
}

pub(super) async fn open(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(wanted): Params<ExecQuery>,
    upgrade: Upgrade,
) -> ApiResult<Response> {
    let reach = shared.reach();
    let alloc = reach.alloc(&id)?;
    if wanted.task.is_empty() {
        return Err(ApiError::bad("must provide task name"));
    }
    let command: Vec<String> = serde_json::from_str(&wanted.command)
        .map_err(|error| ApiError::bad(format!("command is not a JSON list of strings: {error}")))?;
    let wanted = exec::ExecSpec { task: wanted.task, command, terminal: wanted.tty };
    serve(shared, reach.open_exec(&alloc, wanted)?, upgrade)
}

/// The outcome of a request for a websocket.
pub(super) type Upgrade = Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>;

/// Runs a command over the websocket of this request.
pub(super) fn serve(shared: Arc<Shared>, to_execute: Session, upgrade: Upgrade) -> ApiResult<Response> {
    let upgrade =
        upgrade.map_err(|error| ApiError::bad(format!("this endpoint requires a websocket: {error}")))?;
    Ok(upgrade.max_message_size(FRAME_BYTES_MAX).on_upgrade(move |socket| async move {
        tokio::select! {
            () = session(socket, to_execute) => {}
            () = shared.closing.cancelled() => {}
        }
    }))
}

async fn session(socket: WebSocket, to_execute: Session) {
    let (mut sink, source) = socket.split();
    let (sender, mut output) = mpsc::channel(FRAMES_LEN);
    let hung_up = CancellationToken::new();
    let input = input(source, hung_up.clone());
    let executing = to_execute.run(input, sender);
    let writing = async {
        while let Some(frame) = output.recv().await {
            sink.send(Message::Text(Utf8Bytes::from(frame_text(&frame).to_string()))).await?;
        }
        Ok::<_, axum::Error>(sink)
    };
    let both = async { tokio::join!(executing, writing) };
    tokio::select! {
        (executed, written) = both => {
            let Ok(mut sink) = written else { return };
            let (code, reason) = match executed {
                Ok(()) => (CLOSE_NORMAL, String::new()),
                Err(error) => (close_code(&error), format!("failed to {}", error.why())),
            };
            if !reason.is_empty() {
                let _ = sink.send(Message::Text(Utf8Bytes::from(error_text(&reason).to_string()))).await;
            }
            let _ = sink.send(Message::Close(Some(CloseFrame { code, reason: fitting(reason).into() }))).await;
        }
        // The client has disconnected: dropping the session ends the command.
        () = hung_up.cancelled() => {}
    }
}

fn close_code(error: &herdlet_driver::DriverError) -> u16 {
    use herdlet_driver::FailureClass;
    match error.class() {
        FailureClass::Fatal | FailureClass::NoProgram => CLOSE_POLICY,
        FailureClass::Retry | FailureClass::Recoverable => CLOSE_ERROR,
    }
}

fn error_text(message: &str) -> Value {
    json!({ "error": { "message": message } })
}

/// Truncates the reason of a close frame to its limit of 123 bytes.
pub fn fitting(mut reason: String) -> String {
    if reason.len() > 123 {
        let end = (0..=120).rev().find(|at| reason.is_char_boundary(*at)).unwrap_or_default();
        reason.truncate(end);
        reason.push('…');
    }
    reason
}

/// The input frames of the socket. When the socket closes, `hung_up` is cancelled. (Dropping the stream has another meaning:
/// the command has ended.)
fn input(source: SplitStream<WebSocket>, hung_up: CancellationToken) -> BoxStream<'static, ExecInput> {
    let frames = stream::unfold((source, hung_up), |(mut source, hung_up)| async move {
        while let Some(Ok(message)) = source.next().await {
            let Some(frames) = typed(&message) else { break };
            if !frames.is_empty() {
                return Some((stream::iter(frames), (source, hung_up)));
            }
        }
        hung_up.cancel();
        None
    });
    frames.flatten().boxed()
}

/// The input frames in a websocket message; none if it closes the socket.
pub fn typed(message: &Message) -> Option<Vec<ExecInput>> {
    match message {
        Message::Text(text) => Some(input_frames(text.as_bytes())),
        Message::Binary(bytes) => Some(input_frames(bytes)),
        Message::Ping(_) | Message::Pong(_) => Some(Vec::new()),
        Message::Close(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_a_close_frame_fits() {
        assert!(fitting("ü".repeat(100)).len() <= 123);
    }
}
