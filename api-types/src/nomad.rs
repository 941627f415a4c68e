//! Nomad's JSON: allocations and jobs under the names of Nomad's HTTP API, so that its CLI and dashboards can read
//! ours. The conversions are total: unknown values are null, empty or zero, as in Nomad itself.
//!
//! Source of the names: Nomad's `nomad/structs/structs.go` and `api/allocations.go`.

use std_alloc::{collections::BTreeMap, string::String};

use serde::Serialize;
use serde_json::Value;

mod alloc;
mod annotate;
mod children;
mod deployment;
mod diff;
mod dns;
mod evaluation;
mod event;
mod file;
mod job;
mod legacy;
mod metric;
mod node;
mod pool;
mod resources;
mod scale;
mod statuses;
mod summary;
mod template;

pub use alloc::{
    Allocation, DeploymentStatus, DesiredTransition, TaskState, allocation, allocation_stub, eval_id_after,
    followup_eval_id,
};
pub use annotate::{GroupChange, annotate};
pub use children::Children;
pub use deployment::deployment;
pub use diff::{Updates, job_diff};
pub use evaluation::{
    EvalProgress, Evaluated, blocked_eval_id, eval_id, evaluation, failed_groups, scaling_policy_id,
};
pub use event::{TaskEvent, task_event};
pub use file::FileInfo;
pub use job::{actions, job, job_status, job_stub, job_version, whole_job};
pub use metric::AllocMetric;
pub use node::{Capacity, Inclusion, Machine, node, node_stub};
pub use pool::{ALL_POOLS, node_pool};
pub use resources::{
    AllocatedCpu, AllocatedMemory, AllocatedResources, AllocatedShared, AllocatedTask, Network, Port,
    PortMapping, TaskLifecycle,
};
pub use scale::scale_status;
pub use statuses::job_statuses;
pub use summary::job_summary;

/// The node of an allocation, which the allocation itself does not contain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// Node id.
    pub id: String,
    /// Node name.
    pub name: String,
}

/// Nomad writes an empty map as null.
fn map(entries: &BTreeMap<String, String>) -> Value {
    if entries.is_empty() { Value::Null } else { to_value(entries) }
}

/// Plain data always has a JSON form.
fn to_value<T: Serialize>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}
