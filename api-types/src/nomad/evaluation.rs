//! Evaluations: the results of job changes, as in `GET /v1/evaluation/ID`.

use std_alloc::string::String;

use serde_json::{Map, Value, json};

use super::AllocMetric;
use crate::{
    JobKey, UnixNanos,
    rfc3339::rfc3339,
    view::{JobView, Unplaced},
};

/// An accepted and planned change.
#[derive(Debug, Clone, Copy)]
pub struct Evaluated<'e> {
    /// Its id.
    pub id: &'e str,
    /// The job that was changed.
    pub job: &'e JobKey,
    /// The current job; `None` if it was removed.
    pub view: Option<&'e JobView>,
    /// Nomad's name for the cause.
    pub trigger: &'e str,
    /// The commit in which it was accepted.
    pub index: u64,
    /// The time it was accepted.
    pub at: UnixNanos,
    /// The time it waits for; `None` if it is complete.
    pub waits_until: Option<UnixNanos>,
}

/// Converts an evaluation. Nearly all are complete: clients that wait for one then check the job.
pub fn evaluation(of: &Evaluated<'_>) -> Value {
    let (status, why) = match of.waits_until {
        Some(_) => ("pending", "created for delayed rescheduling"),
        None => ("complete", ""),
    };
    json!({
        "ID": of.id, "Namespace": of.job.namespace, "Priority": of.view.map(|view| view.job.priority),
        "Type": of.view.map(|view| view.job.kind.as_str()), "TriggeredBy": of.trigger, "JobID": of.job.id,
        "JobModifyIndex": of.view.map(|view| view.modify_index), "NodeID": "", "NodeModifyIndex": 0,
        "DeploymentID": "", "Status": status, "StatusDescription": why, "Wait": 0, "WaitUntil": of.waits_until.and_then(rfc3339),
        "NextEval": "", "PreviousEval": "", "BlockedEval": "", "RelatedEvals": null, "FailedTGAllocs": of.view.map(of_job),
        "PlanAnnotations": null, "ClassEligibility": null, "QuotaLimitReached": "",
        "MissingNonNodeResources": null, "EscapedComputedClass": false, "AnnotatePlan": false,
        "QueuedAllocations": null, "SnapshotIndex": of.index, "CreateIndex": of.index, "ModifyIndex": of.index,
        "CreateTime": of.at.0, "ModifyTime": of.at.0,
    })
}

/// Why and how many allocations were not placed, as `FailedTGAllocs` by group; null if all were placed.
pub fn failed_groups<'u>(unplaced: impl IntoIterator<Item = (&'u String, &'u Unplaced, u64)>) -> Value {
    let unplaced = unplaced.into_iter();
    let failed: Map<String, Value> = unplaced
        .map(|(group, why, count)| (group.clone(), json!(AllocMetric::unplaced(why, count))))
        .collect();
    if failed.is_empty() { Value::Null } else { Value::Object(failed) }
}

fn of_job(view: &JobView) -> Value {
    failed_groups(view.unplaced.iter().map(|(group, why)| {
        let wanted = view.job.group(group).map_or(1, |group| u64::from(group.count));
        (group, why, wanted)
    }))
}
