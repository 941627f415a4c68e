//! `GET /v1/event/stream`: what happens, as Nomad's events: an object with an index and its events on each line.
//!
//! `topic=TOPIC:KEY` (several times; `*` is all of either) chooses, `namespace` too. `index=N` resumes: changes since commit N are told
//! again, each object as it is now. Where they are no longer known, and when a reader is too slow, everything is told as it is
//! now. An idle stream says `{}`. Which topics there are is in [`topics`], what is news in [`news`].

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

/// Between two empty objects of a stream without news, as in Nomad.
const IDLE: Duration = Duration::from_secs(10);

pub(super) async fn follow(
    State(shared): State<Arc<Shared>>,
    RawQuery(query): RawQuery,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let topics = Topics::read(query.as_deref().unwrap_or_default())?;
    // Subscribed before the answer begins: whoever reads a list once it has, is told of all that changes after that. And before
    // anything is read: what changes meanwhile is told twice rather than not at all.
    let seen = Seen {
        changes: shared.model.changes(),
        services: shared.catalog.version(),
        evaluations: shared.evaluations.made(),
    };
    let known = if read.index == 0 { Known::now(&shared) } else { Known::default() };
    let reader = Reader { shared: Arc::clone(&shared), topics, read, known };
    Ok(streamed(&shared, "application/json", |pieces| tell(reader, seen, pieces)))
}

/// What a reader's news come after.
struct Seen {
    changes: broadcast::Receiver<Changed>,
    services: u64,
    evaluations: u64,
}

/// Tells one reader until it goes away.
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

/// What is told of a change.
fn changed(reader: &mut Reader, change: &Changed) -> Vec<Value> {
    let index = change.index;
    match &change.object {
        Object::Job(key) => reader.job(key, index),
        // What its checks say may have changed.
        Object::Alloc(id) => reader.alloc(*id, index).into_iter().chain(reader.services()).collect(),
        // The machine offers another one.
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
