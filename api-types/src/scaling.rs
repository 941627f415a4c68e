//! Scaling: what a group's count was asked to be, and by whom.
//!
//! Source of the words: Nomad's `nomad/structs/structs.go` (`ScalingEvent`).

use std_alloc::{
    collections::{BTreeMap, VecDeque},
    string::String,
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::UnixNanos;

/// What whoever scales says about it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalingNote {
    /// For people.
    #[serde(default)]
    pub message: String,
    /// It tells of a failure to scale.
    #[serde(default)]
    pub error: bool,
    /// For programs.
    #[serde(default)]
    pub meta: Map<String, Value>,
}

/// Somebody has scaled a group, or had something to say about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalingEvent {
    /// When.
    pub time: UnixNanos,
    /// The count asked for; none where nothing was to change.
    pub count: Option<u32>,
    /// The count before.
    pub previous_count: u32,
    /// What was said.
    pub note: ScalingNote,
    /// Commit in which it was accepted.
    pub create_index: u64,
}

/// By group, the newest scaling events, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ScalingEvents(pub BTreeMap<String, VecDeque<ScalingEvent>>);

impl ScalingEvents {
    /// One more of a group; of more than `kept_max` the oldest goes.
    pub fn remember(&mut self, group: &str, event: ScalingEvent, kept_max: usize) {
        let events = self.0.entry(String::from(group)).or_default();
        events.push_back(event);
        let surplus = events.len().saturating_sub(kept_max);
        events.drain(..surplus);
    }

    /// Those of a group, newest first.
    pub fn newest_first(&self, group: &str) -> impl Iterator<Item = &ScalingEvent> {
        self.0.get(group).into_iter().flat_map(|events| events.iter().rev())
    }
}
