//! `GET /v1/client/allocation/ALLOC/exec`: a command in a running task, over a websocket with Nomad's JSON frames.
//!
//! In: `{"stdin":{"data":…}}`, `{"stdin":{"close":true}}`, `{"tty_size":{"height":…,"width":…}}`, `{}`. Out: the same for
//! stdout and stderr, then `{"exited":true,"result":{"exit_code":…}}`. The session ends with the socket. Where it fails,
//! `{"error":{"message":…}}` comes before the close frame, whose reason has room for 123 bytes only; Nomad's clients pass it
//! over and show the reason.

use std::sync::Arc;

use axum::{
    extract::{
        Path, State, WebSocketUpgrade,
        ws::{CloseFrame, Message, Utf8Bytes, WebSocket},
    },
    response::Response,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use futures_util::{
    SinkExt, StreamExt,
    stream::{self, BoxStream, SplitStream},
};
use herdlet_api_types::task::TaskStatus;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::{
    Shared,
    error::{ApiError, ApiResult},
    query::{Params, flag},
    target::TaskTarget,
};
use crate::drivers::task::{ExecInput, ExecOutput, ExecRequest, TerminalSize};

/// Sessions at the same time: each has a process, a terminal and buffers.
const SESSIONS_MAX: usize = 128;
static SESSIONS: Semaphore = Semaphore::const_new(SESSIONS_MAX);

/// A frame of input larger than this is no keyboard and no pipe.
const FRAME_BYTES_MAX: usize = 1024 * 1024;

/// Output frames between the session and the socket.
const FRAMES_LEN: usize = 16;

/// Policy violation (RFC 6455 §7.4.1): Nomad's code for the caller's mistakes.
const CLOSE_POLICY: u16 = 1008;
/// Internal error (RFC 6455 §7.4.1).
const CLOSE_ERROR: u16 = 1011;
/// All is well (RFC 6455 §7.4.1).
const CLOSE_NORMAL: u16 = 1000;

/// What to execute.
#[derive(Debug, Deserialize)]
pub(super) struct Wanted {
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
    Params(wanted): Params<Wanted>,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> ApiResult<Response> {
    let alloc = shared.alloc(&id)?;
    if wanted.task.is_empty() {
        return Err(ApiError::bad("must provide task name"));
    }
    let command: Vec<String> = serde_json::from_str(&wanted.command)
        .map_err(|error| ApiError::bad(format!("command is not a JSON list of strings: {error}")))?;
    if command.first().is_none_or(String::is_empty) {
        return Err(ApiError::bad("command is not present"));
    }
    let target = shared.task(&alloc, &wanted.task)?;
    if target.task.state != TaskStatus::Running {
        return Err(ApiError::NotFound(format!("task {:?} is not running.", wanted.task)));
    }
    let upgrade = upgrade.map_err(|error| ApiError::bad(format!("a websocket is expected here: {error}")))?;
    let place = SESSIONS
        .try_acquire()
        .map_err(|_| ApiError::Unavailable(format!("{SESSIONS_MAX} sessions are open already")))?;
    let request = ExecRequest { command, terminal: wanted.tty.then(TerminalSize::default) };
    tracing::info!(attempt = %target.attempt, program = request.command.first(), "a command is executed in a task");
    Ok(upgrade.max_message_size(FRAME_BYTES_MAX).on_upgrade(move |socket| async move {
        tokio::select! {
            () = session(socket, target, request) => {}
            () = shared.closing.cancelled() => {}
        }
        drop(place);
    }))
}

async fn session(socket: WebSocket, target: TaskTarget, request: ExecRequest) {
    let (mut sink, source) = socket.split();
    let (sender, mut output) = mpsc::channel(FRAMES_LEN);
    let hung_up = CancellationToken::new();
    let input = input(source, hung_up.clone());
    let executing = target.driver.exec_frames(&target.attempt, request, input, sender);
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
        // Nobody is there any more: dropping the session ends the command.
        () = hung_up.cancelled() => {}
    }
}

fn close_code(error: &crate::drivers::task::DriverError) -> u16 {
    use crate::drivers::task::Class;
    match error.class() {
        Class::Gone | Class::Fatal | Class::NoProgram => CLOSE_POLICY,
        Class::Retry | Class::Recoverable => CLOSE_ERROR,
    }
}

fn error_text(message: &str) -> Value {
    json!({ "error": { "message": message } })
}

/// The reason of a close frame has room for 123 bytes.
fn fitting(mut reason: String) -> String {
    if reason.len() > 123 {
        let end = (0..=120).rev().find(|at| reason.is_char_boundary(*at)).unwrap_or_default();
        reason.truncate(end);
        reason.push('…');
    }
    reason
}

/// What comes from the socket, as long as it is open; then `hung_up` is cancelled. (That the stream is dropped means
/// something else: the command has ended.)
fn input(source: SplitStream<WebSocket>, hung_up: CancellationToken) -> BoxStream<'static, ExecInput> {
    let frames = stream::unfold((source, hung_up), |(mut source, hung_up)| async move {
        while let Some(Ok(message)) = source.next().await {
            let text = match &message {
                Message::Text(text) => text.as_bytes(),
                Message::Binary(bytes) => bytes,
                Message::Ping(_) | Message::Pong(_) => continue,
                Message::Close(_) => break,
            };
            let frames = input_frames(text);
            if !frames.is_empty() {
                return Some((stream::iter(frames), (source, hung_up)));
            }
        }
        hung_up.cancel();
        None
    });
    frames.flatten().boxed()
}

/// What one message says. Rubbish and heartbeats say nothing.
pub(crate) fn input_frames(text: &[u8]) -> Vec<ExecInput> {
    #[derive(Deserialize)]
    struct Frame {
        stdin: Option<Stdin>,
        tty_size: Option<Size>,
    }
    #[derive(Deserialize)]
    struct Stdin {
        #[serde(default)]
        data: String,
        #[serde(default)]
        close: bool,
    }
    #[derive(Deserialize)]
    struct Size {
        #[serde(default)]
        height: u16,
        #[serde(default)]
        width: u16,
    }
    let Ok(frame) = serde_json::from_slice::<Frame>(text) else { return Vec::new() };
    let mut frames = Vec::new();
    if let Some(Size { height, width }) = frame.tty_size {
        frames.push(ExecInput::Resize(TerminalSize { height, width }));
    }
    if let Some(stdin) = frame.stdin {
        if let Ok(bytes) = STANDARD.decode(stdin.data)
            && !bytes.is_empty()
        {
            frames.push(ExecInput::Stdin(bytes));
        }
        if stdin.close {
            frames.push(ExecInput::StdinEnd);
        }
    }
    frames
}

fn frame_text(frame: &ExecOutput) -> Value {
    match frame {
        ExecOutput::Stdout(bytes) => json!({ "stdout": { "data": STANDARD.encode(bytes) } }),
        ExecOutput::StdoutEnd => json!({ "stdout": { "close": true } }),
        ExecOutput::Stderr(bytes) => json!({ "stderr": { "data": STANDARD.encode(bytes) } }),
        ExecOutput::StderrEnd => json!({ "stderr": { "close": true } }),
        ExecOutput::Exited(exit) => {
            let code = if exit.signal > 0 { 128 + exit.signal } else { exit.code };
            let result = if code == 0 { json!({}) } else { json!({ "exit_code": code }) };
            json!({ "exited": true, "result": result })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_and_rubbish_is_passed_over() {
        assert_eq!(input_frames(b"{}"), []);
        assert_eq!(input_frames(b"[1"), []);
        assert_eq!(input_frames(br#"{"stdin":{"data":"%%"}}"#), []);
        assert_eq!(
            input_frames(br#"{"stdin":{"data":"aGk=","close":true},"tty_size":{"height":3,"width":9}}"#),
            [
                ExecInput::Resize(TerminalSize { height: 3, width: 9 }),
                ExecInput::Stdin(b"hi".to_vec()),
                ExecInput::StdinEnd
            ]
        );
        assert!(fitting("ü".repeat(100)).len() <= 123);
    }
}
