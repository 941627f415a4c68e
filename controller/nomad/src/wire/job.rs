//! An allocation's job, unparsed: the runner interprets it. This module reads only the fields that a node client needs.

use std::sync::Arc;

use herdlet_rpc::codec::Value;
use serde::{Deserialize, Deserializer, Serialize};

mod shared;

/// A whole job. Clones share it, and so do equal jobs that this process decodes: each allocation comes with a copy.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(transparent)]
pub struct Job(Arc<Value>);

impl PartialEq for Job {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl<'de> Deserialize<'de> for Job {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(shared::share(Value::deserialize(deserializer)?)))
    }
}

impl Job {
    /// Wraps an already decoded job.
    #[must_use]
    pub fn new(value: Value) -> Self {
        Self(Arc::new(value))
    }

    /// The whole job.
    #[must_use]
    pub fn value(&self) -> &Value {
        &self.0
    }

    /// Its id; empty if missing.
    #[must_use]
    pub fn id(&self) -> &str {
        self.text("ID")
    }

    /// `service`, `batch`, `system` or `sysbatch`.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.text("Type")
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.number("Version")
    }

    /// The index of its last change by a user.
    #[must_use]
    pub fn modify_index(&self) -> u64 {
        self.number("JobModifyIndex")
    }

    /// The group with this name.
    #[must_use]
    pub fn group(&self, name: &str) -> Option<&Value> {
        let Some(Value::List(groups)) = self.0.get("TaskGroups") else { return None };
        groups.iter().find(|group| name_of(group) == Some(name))
    }

    /// The names of a group's tasks, in order.
    pub fn tasks(&self, group: &str) -> impl Iterator<Item = &str> {
        let tasks = self.group(group).and_then(|group| group.get("Tasks"));
        let tasks = if let Some(Value::List(tasks)) = tasks { &tasks[..] } else { &[] };
        tasks.iter().filter_map(name_of)
    }

    /// Whether both share one copy.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn text(&self, field: &str) -> &str {
        self.0.get(field).and_then(Value::as_text).unwrap_or_default()
    }

    fn number(&self, field: &str) -> u64 {
        self.0.get(field).and_then(Value::as_u64).unwrap_or_default()
    }
}

fn name_of(value: &Value) -> Option<&str> {
    value.get("Name")?.as_text()
}

#[cfg(test)]
mod tests {
    use herdlet_rpc::codec;

    use super::*;

    fn map(entries: &[(&str, Value)]) -> Value {
        Value::Map(entries.iter().map(|(key, value)| (text(key), value.clone())).collect())
    }

    fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    #[test]
    fn job_fields_used_by_clients_are_found() {
        let tasks = Value::List(["a", "b"].map(|name| map(&[("Name", text(name))])).into());
        let group = map(&[("Name", text("web")), ("Tasks", tasks)]);
        let job = Job::new(map(&[
            ("ID", text("shop")),
            ("Type", text("service")),
            ("Version", Value::Int(3)),
            ("TaskGroups", Value::List(vec![group])),
        ]));
        assert_eq!((job.id(), job.kind(), job.version(), job.modify_index()), ("shop", "service", 3, 0));
        assert_eq!(job.tasks("web").collect::<Vec<_>>(), ["a", "b"]);
        assert!(job.group("db").is_none() && job.tasks("db").next().is_none());
    }

    #[test]
    fn jobs_that_say_the_same_are_one() {
        let job = |version| Job::new(map(&[("ID", text("shop")), ("Version", Value::Int(version))]));
        let read = |job: &Job| -> Job { codec::decode(&codec::encode(job).unwrap()).unwrap() };
        let (one, other, changed) = (read(&job(1)), read(&job(1)), read(&job(2)));
        assert!(Arc::ptr_eq(&one.0, &other.0) && !Arc::ptr_eq(&one.0, &changed.0));
        assert!(one == other && one != changed && one == job(1));
    }
}
