//! Deployments in Nomad's JSON, as in `GET /v1/deployment/ID`.

use std_alloc::{collections::BTreeMap, string::String};

use serde_json::{Value, json};

use crate::{
    deployment::{Deployment, DeploymentGroup},
    rfc3339::rfc3339,
    view::JobView,
};

/// Converts a deployment. `job` is the current state of its job.
pub fn deployment(deployment: &Deployment, job: &JobView) -> Value {
    let groups: BTreeMap<&String, Value> =
        deployment.groups.iter().map(|(name, known)| (name, group(known))).collect();
    json!({
        "ID": deployment.id, "Namespace": deployment.job_key.namespace, "JobID": deployment.job_key.id,
        "JobVersion": deployment.job_version, "JobModifyIndex": job.modify_index,
        "JobSpecModifyIndex": job.modify_index, "JobCreateIndex": job.create_index, "IsMultiregion": false,
        "TaskGroups": groups, "Status": deployment.status_name(),
        "StatusDescription": deployment.description, "EvalPriority": job.job.priority,
        "CreateIndex": deployment.create_index, "ModifyIndex": deployment.modify_index,
        "CreateTime": deployment.create_time.0, "ModifyTime": deployment.modify_time.0,
    })
}

fn group(group: &DeploymentGroup) -> Value {
    let by = group.require_progress_by.unwrap_or_default();
    // Nomad's representation of an unset time.
    let by = rfc3339(by).unwrap_or_else(|| String::from("0001-01-01T00:00:00Z"));
    json!({
        "AutoRevert": group.auto_revert, "AutoPromote": group.auto_promote, "Promoted": group.promoted,
        "ProgressDeadline": group.progress_deadline, "RequireProgressBy": by,
        "DesiredCanaries": group.desired_canaries, "DesiredTotal": group.desired_total,
        "PlacedCanaries": group.placed_canaries, "PlacedAllocs": group.placed_allocs,
        "HealthyAllocs": group.healthy_allocs, "UnhealthyAllocs": group.unhealthy_allocs,
    })
}
