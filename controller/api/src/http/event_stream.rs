//! `GET /v1/event/stream`: changes as Nomad's events; each line is an object with an index and its events.
//!
//! `topic=TOPIC:KEY` (repeatable; `*` matches any) and `namespace` filter. `index=N` resumes: the stream repeats the changes
//! since commit N, with each object in its present state. If they are no longer known, or a reader is too slow, the stream sends
//! all objects. An idle stream sends `{}`. [`topics`] lists the topics, [`changes`] decides which changes are events.

mod changes;
mod topics;

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{RawQuery, State},
    response::Response,
};
use herdlet_agent::publish::{Object, ObjectChange};
use serde_json::{Value, json};
use tokio::sync::broadcast::{self, error::RecvError};

use super::{
    Shared,
    error::ApiResult,
    query::{Params, Read},
    stream::{Gone, Pieces, streamed},
};
use changes::{KnownObjects, Reader};
use topics::Topics;

/// Interval of the empty objects on an idle stream, as in Nomad.
const IDLE: Duration = Duration::from_secs(10);

pub(super) async fn follow(
    State(shared): State<Arc<Shared>>,
    RawQuery(query): RawQuery,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let topics = Topics::read(query.as_deref().unwrap_or_default())?;
    // Subscribes before the response begins, so that a client that lists objects after it misses no change, and before the state
    // is read, so that a concurrent change is sent twice rather than not at all.
    let seen = StreamCursor {
        changes: shared.model.changes(),
        services: shared.catalog.version(),
        evaluations: shared.evaluations.made(),
    };
    let known = if read.index == 0 { KnownObjects::now(&shared) } else { KnownObjects::default() };
    let reader = Reader { shared: Arc::clone(&shared), topics, read, known };
    Ok(streamed(&shared, "application/json", |pieces| serve_reader(reader, seen, pieces)))
}

/// The position from which a reader gets events.
struct StreamCursor {
    changes: broadcast::Receiver<ObjectChange>,
    services: u64,
    evaluations: u64,
}

/// Sends events to one reader until it disconnects.
async fn serve_reader(mut reader: Reader, seen: StreamCursor, pieces: Pieces) -> Result<(), Gone> {
    let shared = Arc::clone(&reader.shared);
    let StreamCursor { mut changes, mut services, mut evaluations } = seen;
    match reader.read.index {
        0 => {}
        index => match shared.model.since(index) {
            Some(missed) => {
                reader.known = KnownObjects::before(&shared, index);
                for change in missed {
                    send(&pieces, change.index, changed(&mut reader, &change)).await?;
                }
                send(&pieces, shared.model.index(), reader.evaluations()).await?;
                send(&pieces, shared.model.index(), reader.services()).await?;
            }
            None => send_pending(&mut reader, &pieces).await?,
        },
    }
    loop {
        tokio::select! {
            biased;
            change = changes.recv() => match change {
                Ok(change) => send(&pieces, change.index, changed(&mut reader, &change)).await?,
                Err(RecvError::Lagged(_)) => send_pending(&mut reader, &pieces).await?,
                Err(RecvError::Closed) => return Ok(()),
            },
            () = shared.evaluations.changed(evaluations) => {
                evaluations = shared.evaluations.made();
                send(&pieces, shared.model.index(), reader.evaluations()).await?;
            }
            () = shared.catalog.changed(services) => {
                services = shared.catalog.version();
                send(&pieces, shared.model.index(), reader.services()).await?;
            }
            () = tokio::time::sleep(IDLE) => pieces.send(b"{}\n".to_vec()).await?,
        }
    }
}

async fn send_pending(reader: &mut Reader, pieces: &Pieces) -> Result<(), Gone> {
    let shared = Arc::clone(&reader.shared);
    reader.known = KnownObjects::default();
    let index = shared.model.index();
    send(pieces, index, reader.node(index).into_iter().collect()).await?;
    for view in shared.model.jobs() {
        send(pieces, index, reader.job(&view.key, index)).await?;
    }
    for view in shared.model.allocs() {
        send(pieces, index, reader.alloc(view.spec.id, index).into_iter().collect()).await?;
    }
    send(pieces, index, reader.evaluations()).await?;
    send(pieces, index, reader.services()).await
}

/// The events of a change.
fn changed(reader: &mut Reader, change: &ObjectChange) -> Vec<Value> {
    let index = change.index;
    match &change.object {
        Object::Job(key) => reader.job(key, index),
        // The results of its checks may have changed.
        Object::Alloc(id) => reader.alloc(*id, index).into_iter().chain(reader.services()).collect(),
        // The node has another host volume.
        Object::Volume(_) | Object::Node => reader.node(index).into_iter().collect(),
    }
}

async fn send(pieces: &Pieces, index: u64, events: Vec<Value>) -> Result<(), Gone> {
    if events.is_empty() {
        return Ok(());
    }
    let frame = json!({ "Index": index, "Events": events });
    Ok(pieces.send(format!("{frame}\n").into_bytes()).await?)
}
