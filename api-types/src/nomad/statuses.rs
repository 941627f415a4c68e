//! A job with its allocations and its last deployment in short, as in `GET /v1/jobs/statuses`.

use std_alloc::{string::ToString, sync::Arc, vec::Vec};

use serde_json::{Value, json};

use super::{followup_eval_id, job_status};
use crate::{
    deployment::Deployment,
    view::{AllocView, JobView},
};

/// Converts a job. `allocs` are its allocations; `children` the statuses of its children, if it makes some.
pub fn job_statuses(view: &JobView, allocs: &[Arc<AllocView>], children: Option<Vec<&str>>) -> Value {
    let wanted: u64 = view.job.groups.iter().map(|group| u64::from(group.count)).sum();
    json!({
        "ID": view.key.id, "Namespace": view.key.namespace, "Name": view.job.name, "Type": view.job.kind.as_str(),
        "NodePool": view.job.node_pool, "Datacenters": view.job.datacenters, "Priority": view.job.priority,
        "Version": view.version, "SubmitTime": view.submit_time.0, "CreateIndex": view.create_index,
        "ModifyIndex": view.modify_index, "Stop": view.is_stopped(), "Status": job_status(view), "IsPack": false,
        "ParentID": view.job.parent_id().unwrap_or_default(), "GroupCountSum": wanted,
        "Allocs": allocs.iter().map(|alloc| shown(alloc)).collect::<Vec<_>>(),
        "ChildStatuses": children, "LatestDeployment": view.deployments.first().map(|latest| deployment(latest)),
    })
}

fn shown(view: &AllocView) -> Value {
    let spec = &view.spec;
    let canary = spec.deployment.is_some_and(|of| of.canary);
    let health =
        (view.verdict.is_some() || canary).then(|| json!({ "Canary": canary, "Healthy": view.verdict }));
    json!({
        "ID": spec.id, "Group": spec.group, "ClientStatus": view.status.as_str(), "NodeID": "",
        "DeploymentStatus": health, "JobVersion": spec.job_version, "HasPausedTask": false,
        "FollowupEvalID": followup_eval_id(view).unwrap_or_default(),
    })
}

fn deployment(latest: &Deployment) -> Value {
    json!({
        "ID": latest.id.to_string(), "IsActive": latest.is_running(), "JobVersion": latest.job_version,
        "Status": latest.status_name(), "StatusDescription": latest.description,
        "AllAutoPromote": latest.groups.values().all(|group| group.auto_promote),
        "RequiresPromotion": latest.is_running() && latest.requires_promotion(),
    })
}
