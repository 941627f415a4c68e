//! Variables in the JSON of Nomad's API (`/v1/vars`, `/v1/var/PATH`).
//!
//! Items are secrets: no type here shows them in `Debug` output.

use std_alloc::{
    collections::BTreeMap,
    string::{String, ToString as _},
    vec::Vec,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{AllocId, format_duration, parse_duration};

/// The namespace that is meant when none is named.
pub const DEFAULT_NAMESPACE: &str = "default";

/// A variable is identified by its namespace and its path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VariableKey {
    /// The namespace.
    pub namespace: String,
    /// The path, such as `nomad/jobs/web`.
    pub path: String,
}

impl core::fmt::Display for VariableKey {
    /// The path; in other namespaces than the default, after the namespace and an `@`, which no path contains.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.namespace == DEFAULT_NAMESPACE {
            f.write_str(&self.path)
        } else {
            write!(f, "{}@{}", self.path, self.namespace)
        }
    }
}

/// What is known about a variable without decrypting it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct VariableMetadata {
    /// The namespace; empty in a request that leaves it to the query.
    pub namespace: String,
    /// The path; empty in a request that leaves it to the URL.
    pub path: String,
    /// The index of the change that created it.
    pub create_index: u64,
    /// The index of its last change.
    pub modify_index: u64,
    /// Nanoseconds since 1970.
    pub create_time: i64,
    /// Nanoseconds since 1970.
    pub modify_time: i64,
    /// The lock, if it is held.
    pub lock: Option<VariableLock>,
}

/// A task whose templates use a variable, and what a change of the variable does to it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct VariableUser {
    /// The allocation, as `job.group[index]`.
    pub name: String,
    /// The id of the allocation.
    pub alloc: AllocId,
    /// The name of the task.
    pub task: String,
    /// The effect, if the change makes a difference to an output.
    pub effect: VariableEffect,
    /// Signals that the task gets.
    pub signals: Vec<String>,
    /// Commands that run in the task.
    pub scripts: Vec<String>,
    /// Destinations of the templates that use the variable; none if it is not known yet which do.
    pub files: Vec<String>,
}

/// The effect of a change of a variable on a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VariableEffect {
    /// The task restarts.
    Restart,
    /// The task gets signals, or scripts run in it.
    Notify,
    /// Files are rendered, and nothing else happens.
    Render,
    /// The task does not run: files are rendered for its start, which may wait for the variable.
    Start,
}

impl VariableEffect {
    /// Its name in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::Notify => "notify",
            Self::Render => "render",
            Self::Start => "start",
        }
    }
}

/// A lock on a variable. Only its holder knows the id.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct VariableLock {
    /// Proves that a request comes from the holder; empty where others read it.
    #[serde(rename = "ID", skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// How long the lock is held without a renewal.
    #[serde(rename = "TTL", serialize_with = "write_span", deserialize_with = "read_span")]
    pub ttl_ns: i64,
    /// How long a lost lock is not given to another holder.
    #[serde(rename = "LockDelay", serialize_with = "write_span", deserialize_with = "read_span")]
    pub delay_ns: i64,
}

impl core::fmt::Debug for VariableLock {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("VariableLock")
            .field("ttl_ns", &self.ttl_ns)
            .field("delay_ns", &self.delay_ns)
            .finish_non_exhaustive()
    }
}

/// The names and secret values of a variable.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VariableItems(pub BTreeMap<String, String>);

impl core::fmt::Debug for VariableItems {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "VariableItems({} items)", self.0.len())
    }
}

/// A variable with its items.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Variable {
    /// Everything but the items.
    #[serde(flatten)]
    pub metadata: VariableMetadata,
    /// None if the answer leaves them out, as after a change of a lock.
    pub items: Option<VariableItems>,
}

impl VariableMetadata {
    /// The namespace and the path.
    pub fn key(&self) -> VariableKey {
        VariableKey { namespace: self.namespace.clone(), path: self.path.clone() }
    }

    /// The same without the id of the lock, for readers.
    #[must_use]
    pub fn without_lock_id(mut self) -> Self {
        if let Some(lock) = &mut self.lock {
            lock.id.clear();
        }
        self
    }
}

fn write_span<S: Serializer>(nanos: &i64, to: S) -> Result<S::Ok, S::Error> {
    format_duration(*nanos).serialize(to)
}

/// A duration as text (`15s`), or a number of nanoseconds.
fn read_span<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Span {
        Nanos(i64),
        Text(String),
    }
    match Span::deserialize(from)? {
        Span::Nanos(nanos) => Ok(nanos),
        Span::Text(text) if text.is_empty() => Ok(0),
        Span::Text(text) => parse_duration(&text).map_err(|error| de::Error::custom(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use std_alloc::{format, vec::Vec};

    use super::*;

    #[test]
    fn a_variable_has_the_fields_of_nomads_api() {
        let text = r#"{"Namespace":"prod","Path":"a/b","CreateIndex":5,"ModifyIndex":7,"CreateTime":1,"ModifyTime":2,"Lock":{"ID":"x","TTL":"15s","LockDelay":"1m0s"},"Items":{"user":"me"}}"#;
        let read: Variable = serde_json::from_str(text).unwrap();
        assert_eq!(read.metadata.lock.as_ref().unwrap().ttl_ns, 15_000_000_000);
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        let read: Variable = serde_json::from_str(r#"{"Lock":{"TTL":15000000000}}"#).unwrap();
        assert_eq!(read.metadata.lock.unwrap().ttl_ns, 15_000_000_000);
        assert!(read.items.is_none());
    }

    #[test]
    fn debug_output_has_no_secret() {
        let items = [("user".into(), "hunter2".into())].into_iter().collect();
        let lock = VariableLock { id: "hunter2".into(), ..VariableLock::default() };
        let metadata = VariableMetadata { lock: Some(lock), ..VariableMetadata::default() };
        let variable = Variable { metadata, items: Some(VariableItems(items)) };
        let shown = format!("{variable:?}");
        assert!(!shown.contains("hunter2"), "{shown}");
        assert_eq!(shown.matches("VariableItems(1 items)").collect::<Vec<_>>().len(), 1);
    }
}
