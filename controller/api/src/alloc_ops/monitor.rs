//! Streams the agent's own log lines.

use std::sync::Arc;

use herdlet_agent::telemetry::monitor::{self, Line};
use serde_json::json;
use tokio::sync::{
    OwnedSemaphorePermit,
    broadcast::{Receiver, error::RecvError},
};
use tracing::Level;

use super::{
    bounds::Bounds,
    error::{ApiError, ApiResult},
    stream::{Form, Gone, HEARTBEAT, Pieces},
};

/// A subscriber of the log.
pub struct Listener {
    lines: Receiver<Arc<Line>>,
    lowest: Level,
    as_json: bool,
    _place: OwnedSemaphorePermit,
}

/// Subscribes to lines of at least this level (default `info`).
pub fn listen(bounds: &Bounds, level_name: &str, as_json: bool) -> ApiResult<Listener> {
    let lowest = level(level_name)?;
    let place = bounds.listener()?;
    Ok(Listener { lines: monitor::listen(), lowest, as_json, _place: place })
}

impl Listener {
    /// Sends the lines until the reader disconnects.
    ///
    /// # Errors
    /// When the reader disconnects.
    pub async fn run(mut self, form: Form, pieces: Pieces) -> Result<(), Gone> {
        loop {
            let text = tokio::select! {
                line = self.lines.recv() => match line {
                    Ok(line) if line.level <= self.lowest => written(&line, self.as_json),
                    Ok(_) => continue,
                    Err(RecvError::Lagged(count)) => {
                        format!("[WARN] {count} lines were dropped: the reader is too slow\n")
                    }
                    Err(RecvError::Closed) => return Ok(()),
                },
                () = tokio::time::sleep(HEARTBEAT) => {
                    pieces.send(form.heartbeat()).await?;
                    continue;
                }
            };
            pieces.send(form.line(text)).await?;
        }
    }
}

fn level(name: &str) -> ApiResult<Level> {
    let name = if name.is_empty() { "info" } else { name };
    match name.parse::<Level>() {
        Ok(level) if level <= monitor::LOWEST => Ok(level),
        Ok(_) => Err(ApiError::NotBuilt(format!("log_level {name}: the lowest level is debug"))),
        Err(_) => Err(ApiError::bad(format!("Unknown log level: {name}"))),
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
