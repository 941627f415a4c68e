//! `topic=TOPIC:KEY` of the event stream: which events a reader wants.

use axum::{extract::Query, http::Uri};

use crate::http::error::{ApiError, ApiResult};

/// A longer list is a mistake.
const TOPICS_LEN_MAX: usize = 64;

/// The topics that have events.
const BUILT: [&str; 6] = ["Allocation", "Deployment", "Evaluation", "Job", "Node", "Service"];

/// Nomad's topics about objects that herdlet does not have.
const NOT_BUILT: [&str; 9] = [
    "ACLPolicy",
    "ACLRole",
    "ACLToken",
    "CSIPlugin",
    "CSIVolume",
    "HostVolume",
    "NodeDrain",
    "NodePool",
    "Operator",
];

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Topics(Vec<(String, String)>);

impl Topics {
    /// Parses every `topic` parameter of a query.
    pub(super) fn read(query: &str) -> ApiResult<Self> {
        let mut topics = Vec::new();
        for (name, value) in pairs(query)? {
            if name != "topic" {
                continue;
            }
            let (topic, key) = value.split_once(':').unwrap_or((&value, "*"));
            match topic {
                topic if topic == "*" || BUILT.contains(&topic) => {
                    topics.push((topic.to_owned(), key.to_owned()));
                }
                topic if NOT_BUILT.contains(&topic) => {
                    return Err(ApiError::NotBuilt(format!(
                        "topic {topic} is not built; available topics: {}",
                        BUILT.join(", ")
                    )));
                }
                topic => {
                    return Err(ApiError::bad(format!(
                        "unknown topic {topic:?}; available topics: {}, *",
                        BUILT.join(", ")
                    )));
                }
            }
            if topics.len() > TOPICS_LEN_MAX {
                return Err(ApiError::bad(format!("the query has more than {TOPICS_LEN_MAX} topics")));
            }
        }
        if topics.is_empty() {
            topics.push(("*".to_owned(), "*".to_owned()));
        }
        Ok(Self(topics))
    }

    /// Whether the reader wants any event of this topic.
    pub(super) fn want_any(&self, topic: &str) -> bool {
        self.0.iter().any(|(wanted, _)| wanted == "*" || wanted == topic)
    }

    pub(super) fn want(&self, topic: &str, keys: &[&str]) -> bool {
        self.0.iter().any(|(wanted, key)| {
            (wanted == "*" || wanted == topic) && (key == "*" || keys.contains(&key.as_str()))
        })
    }
}

/// The parameters of a query, in which a name may occur several times.
fn pairs(query: &str) -> ApiResult<Vec<(String, String)>> {
    let uri = Uri::try_from(format!("/?{query}"))
        .map_err(|error| ApiError::bad(format!("query parameters: {error}")))?;
    match Query::try_from_uri(&uri) {
        Ok(Query(pairs)) => Ok(pairs),
        Err(error) => Err(ApiError::bad(format!("query parameters: {error}"))),
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
        let choice = Topics::read("topic=Job:web").unwrap();
        assert!(choice.want_any("Job") && !choice.want_any("Service"));
        for (query, status) in [("topic=NodePool", 501), ("topic=job", 400)] {
            assert_eq!(Topics::read(query).unwrap_err().status().as_u16(), status);
        }
        assert!(Topics::read(&"topic=Job&".repeat(TOPICS_LEN_MAX + 1)).is_err());
    }
}
