//! `Allocations.Exec`: a command in a task, with its streams.
//!
//! Frames from the server are maps with at most one of `Stdin` and `TtySize`; an empty map is a keepalive. The command ends with the
//! stream, whichever side ends it.

use std::{collections::VecDeque, fmt};

use futures_util::{StreamExt as _, stream};
use herdlet_api::{
    alloc_ops::{
        error::ApiError,
        exec::{self, FRAMES_LEN, Session, frame_text},
    },
    http::exec::fitting,
};
use herdlet_api_types::view::AllocView;
use herdlet_driver::{ExecInput, TerminalSize};
use herdlet_nomad::wire::Secret;
use herdlet_rpc::{
    codec::{self, Limits},
    error::MessageError,
    framed::StreamFrame,
};
use serde::Deserialize;
use tokio::sync::mpsc;

use super::{
    NodeService,
    failure::{Failure, StreamEnd, last_frame},
    files::{arguments, code},
    stream_answer::ToServer,
};
use crate::acl::{Capability, Denied};

/// Input frames buffered between the stream and the command.
const INPUT_LEN: usize = 4;

/// Maximum number of input bytes waiting for the command; reading pauses at this limit.
const INPUT_BYTES_MAX: usize = 1 << 20;

/// The arguments of the call.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct ExecCall {
    #[serde(rename = "AllocID")]
    alloc_id: String,
    #[serde(rename = "JobID")]
    job_id: String,
    task: String,
    tty: bool,
    cmd: Vec<String>,
    action: String,
    auth_token: Secret,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Frame {
    stdin: Option<Stdin>,
    tty_size: Option<Size>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Stdin {
    #[serde(with = "codec::bytes")]
    data: Vec<u8>,
    close: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Size {
    height: i64,
    width: i64,
}

impl Frame {
    fn inputs(self) -> impl Iterator<Item = ExecInput> {
        let number = |number| u16::try_from(number).unwrap_or_default();
        let resize = self.tty_size.map(|Size { height, width }| {
            ExecInput::Resize(TerminalSize { height: number(height), width: number(width) })
        });
        let (data, close) = self.stdin.map(|stdin| (stdin.data, stdin.close)).unwrap_or_default();
        let bytes = (!data.is_empty()).then_some(ExecInput::Stdin(data));
        resize.into_iter().chain(bytes).chain(close.then_some(ExecInput::StdinEnd))
    }
}

/// The command of a task's action.
fn command(alloc: &AllocView, task: &str, action: &str) -> Result<Vec<String>, ApiError> {
    if !alloc.tasks.iter().any(|known| *known.name == *task) {
        return Err(ApiError::bad(format!("task {task} not found in allocation {}", alloc.spec.id)));
    }
    let found = alloc.spec.action(task, action);
    let found = found.ok_or_else(|| ApiError::bad(format!("action {action} not found in task {task}")))?;
    Ok(found.to_command())
}

/// Servers put this text into a websocket's close frame, and close without a reason if it does not fit (`command/agent/alloc_endpoint.go`,
/// `execStreamHandleError`).
fn failed(message: impl fmt::Display, code: Option<u16>) -> StreamFrame {
    last_frame(fitting(message.to_string()), code)
}

/// The size of a waiting input.
fn size(input: &ExecInput) -> usize {
    match input {
        ExecInput::Stdin(bytes) => 64 + bytes.len(),
        ExecInput::StdinEnd | ExecInput::Resize(_) => 64,
    }
}

impl NodeService {
    pub(super) async fn exec(&self, stream: &mut ToServer) -> Result<(), StreamEnd> {
        let Some(wanted) = arguments::<ExecCall>(stream).await? else { return Ok(()) };
        match self.open_exec(wanted).await {
            Ok(session) => self.session(stream, session).await,
            // Stock clients send no code if access is denied.
            Err(Failure::Denied(denied)) => Ok(stream.send(&failed(denied, None)).await?),
            Err(failure) => Ok(stream.send(&failed(&failure, Some(code(&failure)))).await?),
        }
    }

    /// Checks in the order of stock clients: a token without permission learns nothing about tasks.
    async fn open_exec(&self, mut wanted: ExecCall) -> Result<Session, Failure> {
        if !self.parts.remote_exec {
            return Err(Denied::Refused.into());
        }
        if wanted.alloc_id.is_empty() {
            return Err(ApiError::bad("must provide a valid alloc id").into());
        }
        let reach = &self.parts.reach;
        let alloc = reach.alloc(&wanted.alloc_id)?;
        let acl = self.may(&alloc, &wanted.auth_token, &[Capability::AllocExec]).await?;
        if !wanted.job_id.is_empty() && *wanted.job_id != *alloc.spec.job_key.id {
            let why = format!("job {} does not have allocation {}", wanted.job_id, wanted.alloc_id);
            return Err(ApiError::bad(why).into());
        }
        if !wanted.action.is_empty() && !wanted.task.is_empty() {
            wanted.cmd = command(&alloc, &wanted.task, &wanted.action)?;
        }
        let names_nothing = wanted.task.is_empty() || wanted.cmd.is_empty();
        if !names_nothing && !alloc.tasks.iter().any(|task| *task.name == *wanted.task) {
            return Err(Failure::Arguments("task not found".to_owned()));
        }
        let namespace = &alloc.spec.job_key.namespace;
        if reach.sees_machine(&alloc, &wanted.task) && !acl.allows(namespace, Capability::AllocNodeExec) {
            return Err(Denied::Refused.into());
        }
        let wanted = exec::ExecSpec { task: wanted.task, command: wanted.cmd, terminal: wanted.tty };
        Ok(reach.open_exec(&alloc, wanted)?)
    }

    async fn session(&self, stream: &mut ToServer, session: Session) -> Result<(), StreamEnd> {
        let (to_command, input) = mpsc::channel(INPUT_LEN);
        let input = stream::unfold(input, |mut input| async move { Some((input.recv().await?, input)) });
        let (sender, mut output) = mpsc::channel(FRAMES_LEN);
        let executing = session.run(input.boxed(), sender);
        let (reader, mut writer) = stream.halves();
        let reading = async {
            // Input that the command has not taken yet. Reading ahead detects the end of the stream even while the command reads nothing.
            let (mut waiting, mut bytes) = (VecDeque::new(), 0);
            loop {
                tokio::select! {
                    frame = reader.next(Limits::FRAME), if bytes < INPUT_BYTES_MAX => {
                        let Ok(Some(frame)) = frame else { return };
                        // Ignore frames that cannot be decoded.
                        let Ok(frame) = codec::decode_within::<Frame>(&frame, Limits::FRAME) else { continue };
                        for input in frame.inputs() {
                            bytes += size(&input);
                            waiting.push_back(input);
                        }
                    }
                    room = to_command.reserve(), if !waiting.is_empty() => match (room, waiting.pop_front()) {
                        (Ok(room), Some(input)) => {
                            bytes -= size(&input);
                            room.send(input);
                        }
                        // The command reads no more input, but may still write.
                        (Err(_), _) | (_, None) => {
                            waiting.clear();
                            bytes = 0;
                        }
                    },
                }
            }
        };
        let writing = async {
            while let Some(frame) = output.recv().await {
                let payload = frame_text(&frame).to_string().into_bytes();
                writer.send(&StreamFrame { error: None, payload }).await?;
            }
            Ok::<_, MessageError>(writer)
        };
        tokio::select! {
            (executed, written) = async { tokio::join!(executing, writing) } => {
                let mut writer = written?;
                if let Err(error) = executed {
                    writer.send(&failed(format!("failed to {}", error.why()), Some(500))).await?;
                }
                Ok(())
            }
            () = reading => Ok(()),
            () = self.parts.closing.cancelled() => Ok(()),
        }
    }
}
