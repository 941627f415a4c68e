//! `GET /v1/herdlet/events`: all objects, then every change, as one JSON value per line.
//!
//! `index=N` resumes: if N is the present index, the reader gets only later changes. Otherwise, and when a reader is too
//! slow, a `reset` precedes all objects.

use std::{sync::Arc, time::Duration};

use axum::{extract::State, response::Response};
use herdlet_agent::publish::{Object, ObjectChange};
use herdlet_api_types::api::Change;
use serde::Deserialize;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

use super::{
    Shared,
    error::ApiResult,
    query::{Params, from_text},
    stream::{Gone, Pieces, streamed},
};

/// An idle stream sends its index this often, to detect a reader that has disconnected.
const IDLE: Duration = Duration::from_secs(15);

#[derive(Debug, Deserialize)]
pub(super) struct Resume {
    #[serde(default, deserialize_with = "from_text")]
    index: u64,
}

pub(super) async fn follow(
    State(shared): State<Arc<Shared>>,
    Params(resume): Params<Resume>,
) -> ApiResult<Response> {
    let model = Arc::clone(&shared);
    Ok(streamed(&shared, "application/x-ndjson", |pieces| serve_reader(model, resume.index, pieces)))
}

async fn serve_reader(shared: Arc<Shared>, resume: u64, pieces: Pieces) -> Result<(), Gone> {
    // Subscribes before the state is read: a concurrent change is sent twice rather than not at all.
    let mut changes = shared.model.changes();
    let mut index = shared.model.index();
    if resume != index || index == 0 {
        index = send_pending(&shared, &pieces).await?;
    }
    send(&pieces, &Change::Index(index)).await?;
    loop {
        let changed = match tokio::time::timeout(IDLE, changes.recv()).await {
            Err(_) => {
                send(&pieces, &Change::Index(index)).await?;
                continue;
            }
            Ok(Ok(changed)) => changed,
            Ok(Err(RecvError::Lagged(_))) => {
                index = send_pending(&shared, &pieces).await?;
                send(&pieces, &Change::Index(index)).await?;
                continue;
            }
            Ok(Err(RecvError::Closed)) => return Ok(()),
        };
        index = index.max(changed.index);
        send(&pieces, &now(&shared, changed)).await?;
        // All changes of a commit, then its index, so that a reader can process a commit as a whole.
        loop {
            match changes.try_recv() {
                Ok(changed) => {
                    index = index.max(changed.index);
                    send(&pieces, &now(&shared, changed)).await?;
                }
                Err(TryRecvError::Lagged(_)) => index = send_pending(&shared, &pieces).await?,
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        send(&pieces, &Change::Index(index)).await?;
    }
}

async fn send_pending(shared: &Shared, pieces: &Pieces) -> Result<u64, Gone> {
    let index = shared.model.index();
    send(pieces, &Change::Reset).await?;
    for job in shared.model.jobs() {
        send(pieces, &Change::Job(job)).await?;
    }
    for volume in shared.model.volumes() {
        send(pieces, &Change::Volume(volume)).await?;
    }
    for alloc in shared.model.allocs() {
        send(pieces, &Change::Alloc(alloc)).await?;
    }
    Ok(index)
}

/// The present state of the object, which may be newer than the change.
fn now(shared: &Shared, changed: ObjectChange) -> Change {
    match changed.object {
        Object::Job(key) => shared.model.job(&key).map_or(Change::JobGone(key), Change::Job),
        Object::Alloc(id) => shared.model.alloc(&id).map_or(Change::AllocGone(id), Change::Alloc),
        Object::Volume(name) => {
            let volumes = shared.model.volumes().into_iter();
            let found = volumes.into_iter().find(|view| view.spec.name == name);
            found.map_or(Change::VolumeGone(name), Change::Volume)
        }
        // Readers that need it ask for the node.
        Object::Node => Change::Index(changed.index),
    }
}

async fn send(pieces: &Pieces, change: &Change) -> Result<(), Gone> {
    let Ok(mut line) = serde_json::to_vec(change) else { return Ok(()) };
    line.push(b'\n');
    Ok(pieces.send(line).await?)
}
