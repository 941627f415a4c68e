//! Evaluations: the results of job changes, as in `GET /v1/evaluation/ID`.

use std_alloc::string::{String, ToString};

use serde_json::{Map, Value, json};

use super::AllocMetric;
use crate::{
    AllocId, JobKey, UnixNanos,
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
    /// The version of the job that it is about; `None` if the job was removed.
    pub version: Option<u64>,
    /// Its progress.
    pub progress: EvalProgress,
}

/// The progress of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvalProgress {
    /// Everything that it could place is placed.
    Complete,
    /// It takes effect at this time.
    Delayed(UnixNanos),
    /// It places the remaining allocations once the node can take them.
    Blocked,
}

/// The id of the evaluation of the commit `index` for a job: the same before and after a restart.
pub fn eval_id(job: &JobKey, index: u64) -> String {
    hashed("eval", job, index)
}

/// The id of the evaluation that waits until the node can take the allocations of a version accepted at `index`.
pub fn blocked_eval_id(job: &JobKey, index: u64) -> String {
    hashed("blocked", job, index)
}

/// The id of the scaling policy of a group.
pub fn scaling_policy_id(job: &JobKey, group: &str) -> String {
    hashed(&std_alloc::format!("scaling/{group}"), job, 0)
}

/// A UUID from the 128-bit FNV-1a hash of its fields. It names an object for clients; nothing is decided by it.
fn hashed(kind: &str, job: &JobKey, index: u64) -> String {
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    };
    for text in [kind, &job.namespace, &job.id] {
        add(&(text.len() as u64).to_le_bytes());
        add(text.as_bytes());
    }
    add(&index.to_le_bytes());
    AllocId::from_hash(hash.to_le_bytes()).to_string()
}

/// Converts an evaluation. Nearly all are complete: clients that wait for one then check the job.
pub fn evaluation(of: &Evaluated<'_>) -> Value {
    let (status, why, wait_until) = match of.progress {
        EvalProgress::Complete => ("complete", "", None),
        EvalProgress::Delayed(until) => ("pending", "created for delayed rescheduling", rfc3339(until)),
        EvalProgress::Blocked => ("blocked", "created to place remaining allocations", None),
    };
    let deployments = of.view.into_iter().flat_map(|view| &view.deployments);
    let deployment = deployments.into_iter().find(|known| Some(known.job_version) == of.version);
    // Only the evaluation of the current version can have unplaced allocations.
    let unplaced = of.view.filter(|view| {
        of.progress == EvalProgress::Complete && Some(view.version) == of.version && !view.unplaced.is_empty()
    });
    json!({
        "ID": of.id, "Namespace": of.job.namespace, "Priority": of.view.map(|view| view.job.priority),
        "Type": of.view.map(|view| view.job.kind.as_str()), "TriggeredBy": of.trigger, "JobID": of.job.id,
        "JobModifyIndex": of.view.map(|view| view.modify_index), "NodeID": "", "NodeModifyIndex": 0,
        "DeploymentID": deployment.map(|known| known.id.to_string()).unwrap_or_default(),
        "Status": status, "StatusDescription": why, "Wait": 0, "WaitUntil": wait_until, "NextEval": "", "PreviousEval": "",
        "BlockedEval": unplaced.map(|view| blocked_eval_id(&view.key, view.modify_index)).unwrap_or_default(),
        "RelatedEvals": null, "FailedTGAllocs": unplaced.map(of_job),
        "PlanAnnotations": null, "ClassEligibility": null, "QuotaLimitReached": "",
        "MissingNonNodeResources": null, "EscapedComputedClass": false, "AnnotatePlan": false,
        "QueuedAllocations": queued(of.view), "SnapshotIndex": of.index, "CreateIndex": of.index, "ModifyIndex": of.index,
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

/// The number of allocations of each group that could not be placed.
fn queued(view: Option<&JobView>) -> Value {
    let groups = view.into_iter().flat_map(|view| view.job.groups.iter().map(move |group| (view, group)));
    let counts: Map<String, Value> = groups
        .map(|(view, group)| {
            let count = if view.unplaced.contains_key(&group.name) { view.desired_count(group) } else { 0 };
            (group.name.clone(), count.into())
        })
        .collect();
    Value::Object(counts)
}

fn of_job(view: &JobView) -> Value {
    failed_groups(view.unplaced.iter().map(|(group, why)| {
        let wanted = view.job.group(group).map_or(1, |group| u64::from(group.count));
        (group, why, wanted)
    }))
}
