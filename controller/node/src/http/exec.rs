//! Commands in tasks over a websocket, for an allocation of this node or, through a server, of another one.
//!
//! In: JSON frames (see [`herdlet_api::alloc_ops::exec`]). Out: the same. Both are carried by the streaming call
//! `Allocations.Exec`: its messages hold the input, and its payloads are the JSON of the output. Browsers cannot send a token with the
//! request: with `ws_handshake` the first frame holds it.
//!
//! Facts: `hashicorp/nomad:command/agent/alloc_endpoint.go` (`execStream`), `command/agent/http.go` (`wrapWebsocketHandler`).

use std::{sync::Arc, time::Duration};

use axum::{
    RequestExt as _,
    extract::{
        Request, WebSocketUpgrade,
        ws::{CloseFrame, Message, Utf8Bytes, WebSocket},
    },
    response::Response,
};
use futures_util::{SinkExt as _, StreamExt as _, stream::SplitStream};
use herdlet_api::{
    alloc_ops::exec::FRAME_BYTES_MAX,
    http::{
        Guess, LateToken, TOO_MANY, TokenVerdict,
        exec::{CLOSE_ERROR, CLOSE_NORMAL, CLOSE_POLICY, fitting, typed},
    },
};
use herdlet_driver::ExecInput;
use herdlet_nomad::wire::Secret;
use herdlet_rpc::{
    codec::{self, Limits, Value},
    framed::{FrameWriter, Framed},
    mux::Io,
};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::{HttpError, NodeApi, piece::payload, request::RequestParams};
use crate::acl::Denied;

/// Time limit for a browser to send its token.
const HANDSHAKE_WAIT_MAX: Duration = Duration::from_secs(10);

/// The first frame from a browser.
#[derive(Deserialize)]
struct Handshake {
    version: i64,
    #[serde(default)]
    auth_token: String,
}

/// The command or action to execute.
pub(super) enum Executed {
    /// A command in this allocation.
    Command(String),
    /// An action of this job.
    Action(String),
}

/// Handles a request to execute a command in a task.
pub(super) async fn open(
    api: &Arc<NodeApi>,
    executed: Executed,
    params: &RequestParams,
    request: &mut Request,
) -> Result<Response, HttpError> {
    let terminal = params.flag("tty").map_err(|why| HttpError(400, why))?.unwrap_or_default();
    let parameter = |name: &str| params.parameter(name).unwrap_or_default().to_owned();
    let mut fields = vec![("Task", Value::Text(parameter("task"))), ("Tty", Value::Bool(terminal))];
    let id = match executed {
        Executed::Command(id) => {
            let command: Vec<String> = serde_json::from_str(&parameter("command"))
                .map_err(|error| HttpError(400, format!("command is not a JSON list of strings: {error}")))?;
            fields.push(("Cmd", Value::List(command.into_iter().map(Value::Text).collect())));
            id
        }
        Executed::Action(job) => {
            fields.push(("JobID", Value::Text(job)));
            fields.push(("Action", Value::Text(parameter("action"))));
            parameter("allocID")
        }
    };
    fields.push(("AllocID", Value::Text(id.clone())));
    // Refuse before the upgrade, so that it is counted like any other wrong token.
    if api.judge(&params.token).await == TokenVerdict::Wrong {
        return Err(Denied::Unknown.into());
    }
    let upgrade = request.extract_parts::<WebSocketUpgrade>().await;
    let upgrade =
        upgrade.map_err(|error| HttpError(400, format!("this endpoint requires a websocket: {error}")))?;
    let upgrade = upgrade.max_message_size(FRAME_BYTES_MAX);
    let closing = api.shared.closing.clone();
    let is_browser = params.flag("ws_handshake").ok().flatten().unwrap_or_default();
    let late = request.extensions().get::<LateToken>().cloned();
    let (api, mut params) = (Arc::clone(api), params.clone());
    Ok(upgrade.on_upgrade(move |mut socket| async move {
        if is_browser {
            match handshake(&mut socket).await {
                Ok(token) => {
                    params.token = token.as_str().into();
                    if let Some(why) = api.check_late_token(&params.token, late).await {
                        return close(socket, CLOSE_POLICY, why).await;
                    }
                }
                Err(why) => return close(socket, CLOSE_POLICY, why.to_owned()).await,
            }
        }
        match api.begin("Allocations.Exec", Some(&id), &params, fields).await {
            Ok(stream) => session(socket, stream, closing).await,
            Err(HttpError(code, why)) => close(socket, of_status(code), why).await,
        }
    }))
}

impl NodeApi {
    /// Why a token in the first frame is refused. It is counted like one in a request header.
    async fn check_late_token(&self, token: &Secret, late: Option<LateToken>) -> Option<String> {
        if self.judge(token).await != TokenVerdict::Wrong {
            return None;
        }
        let guess = match late {
            Some(late) => late.count_guess().await,
            None => Guess::Forgiven,
        };
        Some(match guess {
            Guess::Forgiven => Denied::Unknown.to_string(),
            Guess::TooMany => TOO_MANY.to_owned(),
        })
    }
}

async fn handshake(socket: &mut WebSocket) -> Result<String, &'static str> {
    let first = tokio::time::timeout(HANDSHAKE_WAIT_MAX, socket.recv()).await;
    let Ok(Some(Ok(Message::Text(text)))) = first else { return Err("no handshake message arrived") };
    let read =
        serde_json::from_str::<Handshake>(&text).map_err(|_| "the handshake message is not valid JSON")?;
    if read.version == 1 { Ok(read.auth_token) } else { Err("the version of the handshake is not supported") }
}

async fn session(socket: WebSocket, mut stream: Framed<Box<dyn Io>>, closing: CancellationToken) {
    let (mut sink, source) = socket.split();
    let (reader, mut writer) = stream.halves();
    let relay = async {
        loop {
            match reader.next(Limits::FRAME).await.map(|next| next.map(|next| codec::decode(&next))) {
                Ok(Some(Err(error))) => return Some((CLOSE_ERROR, format!("failed to {error}"))),
                Ok(Some(Ok(message))) => match payload(message) {
                    Ok(payload) if payload.is_empty() => {}
                    Ok(payload) => {
                        let text = Utf8Bytes::try_from(payload).unwrap_or_default();
                        if sink.send(Message::Text(text)).await.is_err() {
                            return None;
                        }
                    }
                    Err((code, why)) => return Some((of_status(code), why)),
                },
                Ok(None) => return Some((CLOSE_NORMAL, String::new())),
                Err(error) => return Some((CLOSE_ERROR, format!("failed to {error}"))),
            }
        }
    };
    let closed = tokio::select! {
        closed = relay => closed,
        // Dropping the stream ends the command.
        () = forward_input(source, &mut writer) => None,
        () = closing.cancelled() => Some((CLOSE_ERROR, "the agent is shutting down".to_owned())),
    };
    if let Some((code, reason)) = closed {
        let _ = sink.send(Message::Close(Some(CloseFrame { code, reason: fitting(reason).into() }))).await;
    }
}

/// Forwards input until the websocket closes.
async fn forward_input(mut source: SplitStream<WebSocket>, writer: &mut FrameWriter<'_, Box<dyn Io>>) {
    while let Some(Ok(message)) = source.next().await {
        let Some(inputs) = typed(&message) else { return };
        let frames = if inputs.is_empty() {
            // A keepalive.
            vec![Value::Map(Vec::new())]
        } else {
            inputs.into_iter().map(message_of).collect()
        };
        for frame in frames {
            if writer.send(&frame).await.is_err() {
                // The other side's last messages are still forwarded.
                return std::future::pending().await;
            }
        }
    }
}

fn message_of(input: ExecInput) -> Value {
    let map = |fields: Vec<(&str, Value)>| {
        Value::Map(fields.into_iter().map(|(name, value)| (Value::Text(name.to_owned()), value)).collect())
    };
    match input {
        ExecInput::Stdin(data) => {
            map(vec![("Stdin", map(vec![("Data", Value::Bytes(data)), ("Close", Value::Bool(false))]))])
        }
        ExecInput::StdinEnd => {
            map(vec![("Stdin", map(vec![("Data", Value::Nil), ("Close", Value::Bool(true))]))])
        }
        ExecInput::Resize(size) => map(vec![(
            "TtySize",
            map(vec![("Height", Value::Int(size.height.into())), ("Width", Value::Int(size.width.into()))]),
        )]),
    }
}

/// The websocket close code for an HTTP status code.
fn of_status(code: u16) -> u16 {
    if code == 500 { CLOSE_ERROR } else { CLOSE_POLICY }
}

async fn close(mut socket: WebSocket, code: u16, reason: String) {
    let _ = socket.send(Message::Close(Some(CloseFrame { code, reason: fitting(reason).into() }))).await;
}
