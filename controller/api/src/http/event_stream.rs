//! `GET /v1/event/stream`: changes as Nomad's events; each line is an object with an index and its events.
//!
//! `topic=TOPIC:KEY` (repeatable; `*` matches any) and `namespace` filter. `index=N` resumes: the stream repeats the changes
//! since commit N, with each object in its present state. If they are no longer known, or a reader is too slow, the stream sends
//! all objects. An idle stream sends `{}`. [`topics`] lists the topics, [`news`] decides which changes are events.

mod news;
mod topics;

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{RawQuery, State},
    response::Response,
};
use herdlet_agent::publish::{Changed, Object};
use serde_json::{Value, json};
use tokio::sync::broadcast::{self, error::RecvError};

use super::{
    Shared,
    error::ApiResult,
    query::{Params, Read},
    stream::{Gone, Pieces, streamed},
};
use news::{Known, Reader};
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
    let seen = Seen {
        changes: shared.model.changes(),
        services: shared.catalog.version(),
        evaluations: shared.evaluations.made(),
    };
    let known = if read.index == 0 { Known::now(&shared) } else { Known::default() };
    let reader = Reader { shared: Arc::clone(&shared), topics, read, known };
    Ok(streamed(&shared, "application/json", |pieces| tell(reader, seen, pieces)))
}

/// The position from which a reader gets events.
struct Seen {
    changes: broadcast::Receiver<Changed>,
    services: u64,
    evaluations: u64,
}

/// Sends events to one reader until it disconnects.
async fn tell(mut reader: Reader, seen: Seen, pieces: Pieces) -> Result<(), Gone> {
    let shared = Arc::clone(&reader.shared);
    let Seen { mut changes, mut services, mut evaluations } = seen;
    match reader.read.index {
        0 => {}
        index => match shared.model.since(index) {
            Some(missed) => {
                reader.known = Known::before(&shared, index);
                for change in missed {
                    say(&pieces, change.index, changed(&mut reader, &change)).await?;
                }
                say(&pieces, shared.model.index(), reader.evaluations()).await?;
                say(&pieces, shared.model.index(), reader.services()).await?;
            }
            None => tell_all(&mut reader, &pieces).await?,
        },
    }
    loop {
        tokio::select! {
            biased;
            change = changes.recv() => match change {
                Ok(change) => say(&pieces, change.index, changed(&mut reader, &change)).await?,
                Err(RecvError::Lagged(_)) => tell_all(&mut reader, &pieces).await?,
                Err(RecvError::Closed) => return Ok(()),
            },
            () = shared.evaluations.changed(evaluations) => {
                evaluations = shared.evaluations.made();
                say(&pieces, shared.model.index(), reader.evaluations()).await?;
            }
            () = shared.catalog.changed(services) => {
                services = shared.catalog.version();
                say(&pieces, shared.model.index(), reader.services()).await?;
            }
            () = tokio::time::sleep(IDLE) => pieces.send(b"{}\n".to_vec()).await?,
        }
    }
}

async fn tell_all(reader: &mut Reader, pieces: &Pieces) -> Result<(), Gone> {
    let shared = Arc::clone(&reader.shared);
    reader.known = Known::default();
    let index = shared.model.index();
    say(pieces, index, reader.node(index).into_iter().collect()).await?;
    for view in shared.model.jobs() {
        say(pieces, index, reader.job(&view.key, index)).await?;
    }
    for view in shared.model.allocs() {
        say(pieces, index, reader.alloc(view.spec.id, index).into_iter().collect()).await?;
    }
    say(pieces, index, reader.evaluations()).await?;
    say(pieces, index, reader.services()).await
}

/// The events of a change.
fn changed(reader: &mut Reader, change: &Changed) -> Vec<Value> {
    let index = change.index;
    match &change.object {
        Object::Job(key) => reader.job(key, index),
        // The results of its checks may have changed.
        Object::Alloc(id) => reader.alloc(*id, index).into_iter().chain(reader.services()).collect(),
        // The node has another host volume.
        Object::Volume(_) => reader.node(index).into_iter().collect(),
    }
}

async fn say(pieces: &Pieces, index: u64, events: Vec<Value>) -> Result<(), Gone> {
    if events.is_empty() {
        return Ok(());
    }
    let frame = json!({ "Index": index, "Events": events });
    Ok(pieces.send(format!("{frame}\n").into_bytes()).await?)
}
