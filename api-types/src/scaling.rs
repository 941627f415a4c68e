//! Scaling: changes of groups' counts, and their reasons.
//!
//! Source of the terms: Nomad's `nomad/structs/structs.go` (`ScalingEvent`).

use std_alloc::{
    collections::{BTreeMap, VecDeque},
    string::String,
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::UnixNanos;

/// A note about a scaling, from the client.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalingNote {
    /// For people.
    #[serde(default)]
    pub message: String,
    /// Whether it reports a failure to scale.
    #[serde(default)]
    pub error: bool,
    /// For programs.
    #[serde(default)]
    pub meta: Map<String, Value>,
}

/// A change of a group's count, or a note without a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalingEvent {
    /// The time.
    pub time: UnixNanos,
    /// The requested count; `None` if it should not change.
    pub count: Option<u32>,
    /// The previous count.
    pub previous_count: u32,
    /// The client's note.
    pub note: ScalingNote,
    /// The commit in which it was accepted.
    pub create_index: u64,
}

/// The latest scaling events by group, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ScalingEvents(pub BTreeMap<String, VecDeque<ScalingEvent>>);

impl ScalingEvents {
    /// Adds an event to a group and keeps at most `kept_max`.
    pub fn remember(&mut self, group: &str, event: ScalingEvent, kept_max: usize) {
        let events = self.0.entry(String::from(group)).or_default();
        events.push_back(event);
        let surplus = events.len().saturating_sub(kept_max);
        events.drain(..surplus);
    }

    /// The events of a group, newest first.
    pub fn newest_first(&self, group: &str) -> impl Iterator<Item = &ScalingEvent> {
        self.0.get(group).into_iter().flat_map(|events| events.iter().rev())
    }
}
