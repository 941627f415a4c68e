//! The scheduler's metrics for a placement, in Nomad's form.
//!
//! Source of the names: Nomad's `nomad/structs/structs.go`.

use std_alloc::{borrow::ToOwned, collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::view::Unplaced;

/// The scheduler's metrics for a placement; here there is only one node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct AllocMetric {
    pub nodes_evaluated: u64,
    pub nodes_filtered: u64,
    pub nodes_in_pool: u64,
    pub node_pool: String,
    pub nodes_available: Option<BTreeMap<String, u64>>,
    pub class_filtered: Option<BTreeMap<String, u64>>,
    pub constraint_filtered: Option<BTreeMap<String, u64>>,
    pub nodes_exhausted: u64,
    pub class_exhausted: Option<BTreeMap<String, u64>>,
    pub dimension_exhausted: Option<BTreeMap<String, u64>>,
    pub quota_exhausted: Option<Vec<String>>,
    pub resources_exhausted: Option<Value>,
    pub scores: Option<Value>,
    #[serde(rename = "ScoreMetaData")]
    pub score_meta_data: Option<Value>,
    pub allocation_time: i64,
    pub coalesced_failures: u64,
}

impl AllocMetric {
    /// Sets the node's affinity score: the weights of matching affinities, relative to all.
    pub fn set_affinity_score(&mut self, node: &str, score: f64) {
        self.score_meta_data =
            Some(json!([{ "NodeID": node, "Scores": { "node-affinity": score }, "NormScore": score }]));
    }

    /// The only node was evaluated and chosen.
    pub(super) fn one_node() -> Self {
        Self { nodes_evaluated: 1, nodes_in_pool: 1, node_pool: "default".to_owned(), ..Self::default() }
    }

    /// The only node was evaluated and could not take this many allocations.
    pub fn unplaced(why: &Unplaced, allocations: u64) -> Self {
        let once = |what: &String| (what.clone(), 1);
        let coalesced_failures = allocations.saturating_sub(1);
        match (why.filtered_by.as_slice(), why.exhausted.as_slice()) {
            ([], []) => Self { coalesced_failures, ..Self::default() },
            ([], exhausted) => Self {
                nodes_exhausted: 1,
                dimension_exhausted: Some(exhausted.iter().map(once).collect()),
                coalesced_failures,
                ..Self::one_node()
            },
            (constraints, _) => Self {
                nodes_filtered: 1,
                constraint_filtered: Some(constraints.iter().map(once).collect()),
                coalesced_failures,
                ..Self::one_node()
            },
        }
    }
}
