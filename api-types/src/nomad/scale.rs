//! The scaling state of a job, as in `GET /v1/job/ID/scale`.

use std_alloc::{string::String, sync::Arc, vec::Vec};

use serde_json::{Map, Value, json};

use crate::{
    alloc::{ClientStatus, Desired},
    job::Group,
    scaling::ScalingEvent,
    view::{AllocView, JobView},
};

/// The wanted and actual counts of each group. `allocs` are the job's allocations, including older versions.
pub fn scale_status(view: &JobView, allocs: &[Arc<AllocView>]) -> Value {
    let groups: Map<String, Value> =
        view.job.groups.iter().map(|group| (group.name.clone(), of_group(group, view, allocs))).collect();
    json!({
        "JobID": view.key.id, "Namespace": view.key.namespace, "JobCreateIndex": view.create_index,
        "JobModifyIndex": view.modify_index, "JobStopped": view.is_stopped(), "TaskGroups": groups,
    })
}

fn of_group(group: &Group, view: &JobView, allocs: &[Arc<AllocView>]) -> Value {
    let is_placed = |alloc: &&Arc<AllocView>| {
        alloc.spec.group == group.name && alloc.spec.desired == Desired::Run && !alloc.status.is_terminal()
    };
    let placed: Vec<&Arc<AllocView>> = allocs.iter().filter(is_placed).collect();
    let count = |is: fn(&AllocView) -> bool| placed.iter().filter(|alloc| is(alloc)).count();
    let events: Vec<Value> = view.scaled.newest_first(&group.name).map(event).collect();
    json!({
        "Desired": view.desired_count(group), "Placed": placed.len(),
        "Running": count(|alloc| alloc.status == ClientStatus::Running),
        "Healthy": count(|alloc| alloc.verdict == Some(true)),
        "Unhealthy": count(|alloc| alloc.verdict == Some(false)),
        "Events": events,
    })
}

fn event(event: &ScalingEvent) -> Value {
    let ScalingEvent { time, count, previous_count, note, create_index } = event;
    json!({
        "Time": time.0, "Count": count, "PreviousCount": previous_count, "Message": note.message,
        "Error": note.error, "Meta": if note.meta.is_empty() { None } else { Some(&note.meta) },
        "EvalID": Value::Null, "CreateIndex": create_index,
    })
}
