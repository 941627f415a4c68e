//! The number of allocations of each group by state, as in `GET /v1/job/ID/summary`.

use std_alloc::{string::String, sync::Arc};

use serde_json::{Map, Value, json};

use crate::{
    alloc::{ClientStatus, Desired},
    view::{AllocView, JobView},
};

use super::Children;

/// A job's summary. `allocs` are its allocations, including older versions; `children` the counts of its children.
pub fn job_summary(view: &JobView, allocs: &[Arc<AllocView>], children: &Children) -> Value {
    let groups: Map<String, Value> = view
        .job
        .groups
        .iter()
        .map(|group| {
            let of_group = || allocs.iter().filter(|alloc| alloc.spec.group == group.name);
            let count = |status: ClientStatus| of_group().filter(|alloc| alloc.status == status).count();
            let placed = of_group().filter(|alloc| alloc.spec.desired == Desired::Run).count();
            let wanted = usize::try_from(view.desired_count(group)).unwrap_or(usize::MAX);
            let counts = json!({
                "Queued": wanted.saturating_sub(placed), "Complete": count(ClientStatus::Complete),
                "Failed": count(ClientStatus::Failed), "Running": count(ClientStatus::Running),
                "Starting": count(ClientStatus::Pending), "Lost": 0, "Unknown": 0,
            });
            (group.name.clone(), counts)
        })
        .collect();
    json!({
        "JobID": view.key.id, "Namespace": view.key.namespace, "Summary": groups,
        "Children": { "Pending": children.pending, "Running": children.running, "Dead": children.dead },
        "CreateIndex": view.create_index, "ModifyIndex": view.modify_index,
    })
}
