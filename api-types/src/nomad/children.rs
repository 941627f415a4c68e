//! Parameterized and periodic jobs and their children in Nomad's JSON.

use serde_json::{Value, json};

use super::job_status;
use crate::{
    job::{Parameterized, Periodic},
    view::JobView,
};

/// The number of a job's children by state: `JobChildrenSummary`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Children {
    /// Children without running tasks so far.
    pub pending: u64,
    /// Running children.
    pub running: u64,
    /// Ended children.
    pub dead: u64,
}

impl Children {
    /// Counts the children.
    pub fn of<'a>(children: impl Iterator<Item = &'a JobView>) -> Self {
        let mut counted = Self::default();
        for child in children {
            *match job_status(child) {
                "pending" => &mut counted.pending,
                "dead" => &mut counted.dead,
                _ => &mut counted.running,
            } += 1;
        }
        counted
    }
}

/// `ParameterizedJob`.
pub(super) fn parameterized(block: &Parameterized) -> Value {
    let Parameterized { payload, meta_required, meta_optional } = block;
    json!({ "Payload": payload.as_str(), "MetaRequired": meta_required, "MetaOptional": meta_optional })
}

/// `Periodic`.
pub(super) fn periodic(block: &Periodic) -> Value {
    let (spec, specs) = match block.crons.as_slice() {
        [one] => (one.as_str(), None),
        several => ("", Some(several)),
    };
    json!({
        "Enabled": block.enabled, "Spec": spec, "Specs": specs, "SpecType": "cron",
        "ProhibitOverlap": block.prohibit_overlap, "TimeZone": block.time_zone,
    })
}
