//! `GET /v1/event/stream`: changes of jobs and allocations as Nomad's events, a line of JSON for each.
//!
//! `topic=TOPIC:KEY` (several times; `*` is all of either) chooses, `namespace` too. `index=N` resumes: changes since commit N are told
//! again, each object as it is now. Where they are no longer known, and when a reader is too slow, everything is told as it is
//! now. An idle stream says `{}`.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Bytes,
    extract::{Query, RawQuery, State},
    http::Uri,
    response::Response,
};
use herdlet_api_types::nomad;
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;

use super::{
    Shared, allocs,
    error::{ApiError, ApiResult},
    query::{Params, Read},
    stream::{Gone, Pieces, streamed},
};
use crate::publish::{Changed, Object};

/// Between two empty objects of a stream without news, as in Nomad.
const IDLE: Duration = Duration::from_secs(10);

/// More choices are a slip.
const TOPICS_LEN_MAX: usize = 64;

/// Topics of Nomad of which nothing is told yet.
const NOT_BUILT: [&str; 13] = [
    "ACLPolicy",
    "ACLRole",
    "ACLToken",
    "CSIPlugin",
    "CSIVolume",
    "Deployment",
    "Evaluation",
    "HostVolume",
    "Node",
    "NodeDrain",
    "NodePool",
    "Operator",
    "Service",
];

pub(super) async fn follow(
    State(shared): State<Arc<Shared>>,
    RawQuery(query): RawQuery,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let topics = Topics::read(query.as_deref().unwrap_or_default())?;
    let telling = Telling { shared: Arc::clone(&shared), topics, read };
    Ok(streamed(&shared, "application/json", |pieces| telling.run(pieces)))
}

/// What a reader wants to hear of.
#[derive(Debug, PartialEq, Eq)]
struct Topics(Vec<(String, String)>);

impl Topics {
    /// Reads every `topic` of a query.
    fn read(query: &str) -> ApiResult<Self> {
        let mut topics = Vec::new();
        for (name, value) in pairs(query)? {
            if name != "topic" {
                continue;
            }
            let (topic, key) = value.split_once(':').unwrap_or((&value, "*"));
            match topic {
                "Job" | "Allocation" | "*" => topics.push((topic.to_owned(), key.to_owned())),
                topic if NOT_BUILT.contains(&topic) => {
                    return Err(ApiError::NotBuilt(format!(
                        "topic {topic}: its events are not built; Job and Allocation are"
                    )));
                }
                topic => {
                    return Err(ApiError::bad(format!(
                        "topic: {topic:?} is none; Job, Allocation and * are"
                    )));
                }
            }
            if topics.len() > TOPICS_LEN_MAX {
                return Err(ApiError::bad(format!("there are more than {TOPICS_LEN_MAX} topics")));
            }
        }
        if topics.is_empty() {
            topics.push(("*".to_owned(), "*".to_owned()));
        }
        Ok(Self(topics))
    }

    fn want(&self, topic: &str, keys: &[&str]) -> bool {
        self.0.iter().any(|(wanted, key)| {
            (wanted == "*" || wanted == topic) && (key == "*" || keys.contains(&key.as_str()))
        })
    }
}

/// Names and values of a query, in which a name may stand several times.
fn pairs(query: &str) -> ApiResult<Vec<(String, String)>> {
    let uri = Uri::try_from(format!("/?{query}"))
        .map_err(|error| ApiError::bad(format!("query parameters: {error}")))?;
    match Query::try_from_uri(&uri) {
        Ok(Query(pairs)) => Ok(pairs),
        Err(error) => Err(ApiError::bad(format!("query parameters: {error}"))),
    }
}

/// A reader being told.
struct Telling {
    shared: Arc<Shared>,
    topics: Topics,
    read: Read,
}

impl Telling {
    async fn run(self, pieces: Pieces) -> Result<(), Gone> {
        let model = &self.shared.model;
        // Subscribed before anything is read: what changes meanwhile is told twice rather than not at all.
        let mut changes = model.changes();
        if self.read.index > 0 {
            match model.since(self.read.index) {
                Some(missed) => {
                    for change in missed {
                        self.tell(&change, &pieces).await?;
                    }
                }
                None => self.tell_all(&pieces).await?,
            }
        }
        loop {
            match tokio::time::timeout(IDLE, changes.recv()).await {
                Err(_) => pieces.send(Bytes::from_static(b"{}\n")).await?,
                Ok(Ok(change)) => self.tell(&change, &pieces).await?,
                Ok(Err(RecvError::Lagged(_))) => self.tell_all(&pieces).await?,
                Ok(Err(RecvError::Closed)) => return Ok(()),
            }
        }
    }

    async fn tell_all(&self, pieces: &Pieces) -> Result<(), Gone> {
        let model = &self.shared.model;
        let jobs = model.jobs().into_iter().map(|view| Object::Job(view.key.clone()));
        let allocs = model.allocs().into_iter().map(|view| Object::Alloc(view.spec.id));
        let index = model.index();
        for object in jobs.chain(allocs) {
            self.tell(&Changed { object, index }, pieces).await?;
        }
        Ok(())
    }

    async fn tell(&self, change: &Changed, pieces: &Pieces) -> Result<(), Gone> {
        let Some(event) = self.event(change) else { return Ok(()) };
        let frame = json!({ "Index": change.index, "Events": [event] });
        Ok(pieces.send(Bytes::from(format!("{frame}\n"))).await?)
    }

    /// A change as an event; none where it is of no interest here. Nomad says nothing of allocations that are forgotten.
    fn event(&self, change: &Changed) -> Option<Value> {
        let shared = &self.shared;
        match &change.object {
            Object::Job(key) => {
                let wanted = self.read.covers(&key.namespace) && self.topics.want("Job", &[&key.id]);
                let view = shared.model.job(key);
                let kind = if view.is_some() { "JobRegistered" } else { "JobDeregistered" };
                wanted.then(|| {
                    json!({
                        "Topic": "Job", "Type": kind, "Key": key.id, "Namespace": key.namespace,
                        "FilterKeys": null, "Index": change.index,
                        "Payload": { "Job": view.map(|view| nomad::whole_job(&view)) },
                    })
                })
            }
            Object::Alloc(id) => {
                let view = shared.model.alloc(id)?;
                let (key, job) = (id.to_string(), &view.spec.job_key);
                let wanted =
                    self.read.covers(&job.namespace) && self.topics.want("Allocation", &[&key, &job.id]);
                wanted.then(|| {
                    // Without its job, as Nomad does.
                    let payload = nomad::Allocation { job: None, ..allocs::whole(shared, &view) };
                    json!({
                        "Topic": "Allocation", "Type": "AllocationUpdated", "Key": key,
                        "Namespace": job.namespace, "FilterKeys": [job.id], "Index": change.index,
                        "Payload": { "Allocation": payload },
                    })
                })
            }
            Object::Volume(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_choose_by_kind_and_key() {
        let wants = |query: &str, topic, keys: &[&str]| Topics::read(query).unwrap().want(topic, keys);
        assert!(wants("", "Job", &["web"]));
        assert!(wants("topic=*", "Allocation", &["1"]));
        assert!(wants("topic=Job:web&topic=Allocation", "Job", &["web"]));
        assert!(!wants("topic=Job:web", "Job", &["db"]));
        assert!(!wants("topic=Job", "Allocation", &["1"]));
        assert!(wants("index=4&topic=*%3Aweb", "Allocation", &["1", "web"]));
        for (query, status) in [("topic=Node", 501), ("topic=job", 400)] {
            assert_eq!(Topics::read(query).unwrap_err().status().as_u16(), status);
        }
        assert!(Topics::read(&"topic=Job&".repeat(TOPICS_LEN_MAX + 1)).is_err());
    }
}
