//! `GET /v1/agent/monitor`: the agent's log lines as they come, from `log_level` (`info` unless said) up.
//!
//! With `plain` the lines themselves, else Nomad's frames: JSON objects with `Data`, one after the other, and an empty one each
//! second. `log_json` makes each line an object.

use std::sync::Arc;

use axum::{body::Bytes, extract::State, response::Response};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{Semaphore, broadcast::error::RecvError};
use tracing::Level;

use super::{
    Shared,
    error::{ApiError, ApiResult},
    query::{Params, flag},
    stream::{Gone, HEARTBEAT, Pieces, streamed},
};
use crate::telemetry::monitor::{self, Line};

/// Listeners at the same time: each line is copied for each of them.
const LISTENERS_MAX: usize = 16;
static LISTENERS: Semaphore = Semaphore::const_new(LISTENERS_MAX);

/// What to tell, and how.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Wanted {
    log_level: String,
    #[serde(deserialize_with = "flag")]
    log_json: bool,
    #[serde(deserialize_with = "flag")]
    plain: bool,
    node_id: String,
    server_id: String,
}

pub(super) async fn follow(
    State(shared): State<Arc<Shared>>,
    Params(wanted): Params<Wanted>,
) -> ApiResult<Response> {
    let lowest = level(&wanted.log_level)?;
    if !matches!(wanted.server_id.as_str(), "" | "leader") {
        return Err(ApiError::bad(format!("unknown server {:?}", wanted.server_id)));
    }
    if !wanted.node_id.is_empty() && wanted.node_id != shared.facts.node.id {
        return Err(ApiError::NotFound(format!("unknown node {:?}", wanted.node_id)));
    }
    let place = LISTENERS
        .try_acquire()
        .map_err(|_| ApiError::Unavailable(format!("{LISTENERS_MAX} listen to the log already")))?;
    let content_type = if wanted.plain { "text/plain; charset=utf-8" } else { "application/json" };
    // Before the answer: whoever has it hears everything from then on.
    let lines = monitor::listen();
    Ok(streamed(&shared, content_type, |pieces| async move {
        let _place = place;
        tell(lines, lowest, wanted, pieces).await
    }))
}

fn level(name: &str) -> ApiResult<Level> {
    let name = if name.is_empty() { "info" } else { name };
    match name.parse::<Level>() {
        Ok(level) if level <= monitor::LOWEST => Ok(level),
        Ok(_) => Err(ApiError::NotBuilt(format!("log_level {name}: only lines down to debug are told"))),
        Err(_) => Err(ApiError::bad(format!("Unknown log level: {name}"))),
    }
}

async fn tell(
    mut lines: tokio::sync::broadcast::Receiver<Arc<Line>>,
    lowest: Level,
    wanted: Wanted,
    pieces: Pieces,
) -> Result<(), Gone> {
    loop {
        let text = tokio::select! {
            line = lines.recv() => match line {
                Ok(line) if line.level <= lowest => written(&line, wanted.log_json),
                Ok(_) => continue,
                Err(RecvError::Lagged(count)) => format!("[WARN] {count} lines were dropped: the reader is too slow\n"),
                Err(RecvError::Closed) => return Ok(()),
            },
            () = tokio::time::sleep(HEARTBEAT) => {
                if !wanted.plain {
                    pieces.send(Bytes::from_static(b"{}")).await?;
                }
                continue;
            }
        };
        let piece = if wanted.plain {
            text
        } else {
            json!({ "Data": STANDARD.encode(text), "FileEvent": "log" }).to_string()
        };
        pieces.send(Bytes::from(piece)).await?;
    }
}

fn written(line: &Line, as_json: bool) -> String {
    if as_json {
        let level = line.level.as_str().to_ascii_lowercase();
        let line = json!({
            "@level": level, "@message": line.text, "@module": line.target, "@timestamp": line.time,
        });
        format!("{line}\n")
    } else {
        format!("{line}\n")
    }
}
