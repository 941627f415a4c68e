//! Allocations in Nomad's JSON, as in `GET /v1/allocation/ID` and in Nomad's lists.
//!
//! In: an allocation's view, and the node that runs it. Out: [`Allocation`], or its short form for lists.
//!
//! Source of the names: Nomad's `nomad/structs/structs.go` and `api/allocations.go`.

use std_alloc::{
    borrow::ToOwned,
    collections::BTreeMap,
    string::{String, ToString},
    vec::Vec,
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    AllocMetric, AllocatedResources, Node, TaskEvent, dns::dns, job, legacy, resources::resources,
    task_event, to_value,
};
use crate::{
    AllocId,
    alloc::{AllocNetwork, Allocation as Spec, DRAINED, Desired, RescheduleEvent},
    rfc3339::rfc3339,
    view::{AllocView, TaskView},
};

/// An allocation as in `GET /v1/allocation/ID`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct Allocation {
    #[serde(rename = "ID")]
    pub id: String,
    pub namespace: String,
    #[serde(rename = "EvalID")]
    pub eval_id: String,
    pub name: String,
    #[serde(rename = "NodeID")]
    pub node_id: String,
    pub node_name: String,
    #[serde(rename = "JobID")]
    pub job_id: String,
    pub job: Option<Value>,
    pub job_version: u64,
    pub task_group: String,
    pub resources: Option<Value>,
    pub shared_resources: Option<Value>,
    pub task_resources: Option<Value>,
    pub allocated_resources: AllocatedResources,
    pub metrics: AllocMetric,
    pub desired_status: String,
    pub desired_description: String,
    pub desired_transition: DesiredTransition,
    pub client_status: String,
    pub client_description: String,
    pub task_states: BTreeMap<String, TaskState>,
    pub alloc_states: Option<Value>,
    pub previous_allocation: String,
    pub next_allocation: String,
    #[serde(rename = "DeploymentID")]
    pub deployment_id: String,
    pub deployment_status: Option<DeploymentStatus>,
    pub reschedule_tracker: Option<Value>,
    pub network_status: Option<Value>,
    #[serde(rename = "FollowupEvalID")]
    pub followup_eval_id: String,
    pub preempted_allocations: Option<Vec<String>>,
    pub preempted_by_allocation: String,
    pub signed_identities: Option<BTreeMap<String, String>>,
    #[serde(rename = "SigningKeyID")]
    pub signing_key_id: String,
    pub create_index: u64,
    pub modify_index: u64,
    pub alloc_modify_index: u64,
    pub create_time: i64,
    pub modify_time: i64,
}

/// Requests of servers for an allocation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct DesiredTransition {
    pub migrate: Option<bool>,
    pub reschedule: Option<bool>,
    pub force_reschedule: Option<bool>,
    pub no_shutdown_delay: Option<bool>,
    pub migrate_disable_placement: Option<bool>,
}

/// The verdict of the deployment's health watch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct DeploymentStatus {
    pub healthy: Option<bool>,
    pub timestamp: Option<String>,
    pub canary: bool,
    pub modify_index: u64,
}

/// The state of a task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct TaskState {
    pub state: String,
    pub failed: bool,
    pub restarts: u64,
    pub last_restart: Option<String>,
    pub started_at: Option<String>,
    pub finished_at: Option<String>,
    pub events: Vec<TaskEvent>,
    pub task_handle: Option<Value>,
}

/// Converts an allocation to Nomad's form.
pub fn allocation(view: &AllocView, node: &Node) -> Allocation {
    let spec = &view.spec;
    let (desired_status, desired_description) = desired(spec);
    let allocated_resources = resources(spec);
    let [all, shared, of_tasks] = legacy::of_alloc(&allocated_resources);
    Allocation {
        id: spec.id.to_string(),
        namespace: spec.job_key.namespace.to_string(),
        eval_id: String::new(),
        name: spec.name(),
        node_id: node.id.clone(),
        node_name: node.name.clone(),
        job_id: spec.job_key.id.to_string(),
        job: (!spec.job.id.is_empty()).then(|| job(&spec.job, spec.job_version)),
        job_version: spec.job_version,
        task_group: spec.group.clone(),
        resources: Some(all),
        shared_resources: Some(shared),
        task_resources: Some(of_tasks),
        allocated_resources,
        metrics: AllocMetric::one_node(),
        desired_status,
        desired_description,
        desired_transition: DesiredTransition {
            migrate: (spec.desired_description == DRAINED).then_some(true),
            reschedule: reschedules(view),
            no_shutdown_delay: view.no_shutdown_delay.then_some(true),
            ..DesiredTransition::default()
        },
        client_status: view.status.as_str().to_owned(),
        client_description: view.description.clone().into_owned(),
        task_states: view.tasks.iter().map(|task| (task.name.to_string(), task_state(task))).collect(),
        alloc_states: None,
        previous_allocation: spec.previous.map(|id| id.to_string()).unwrap_or_default(),
        next_allocation: spec.next.map(|id| id.to_string()).unwrap_or_default(),
        deployment_id: spec.deployment.map(|of| of.id.to_string()).unwrap_or_default(),
        deployment_status: deployment_status(view),
        reschedule_tracker: reschedule_tracker(spec, node),
        network_status: view.network.as_ref().map(network_status),
        followup_eval_id: followup_eval_id(view).unwrap_or_default(),
        preempted_allocations: None,
        preempted_by_allocation: String::new(),
        signed_identities: None,
        signing_key_id: String::new(),
        create_index: spec.create_index,
        modify_index: view.modify_index,
        alloc_modify_index: view.modify_index,
        create_time: spec.create_time.0,
        modify_time: view.modify_time.0,
    }
}

fn network_status(network: &AllocNetwork) -> Value {
    json!({
        "InterfaceName": network.interface,
        "Address": network.address,
        "AddressIPv6": network.address6.clone().unwrap_or_default(),
        "DNS": dns(&network.dns),
    })
}

/// An allocation in Nomad's lists: without its job and the details.
pub fn allocation_stub(view: &AllocView, node: &Node) -> Value {
    let whole = allocation(view, node);
    let kind = view.spec.job.kind.as_str();
    serde_json::json!({
        "ID": whole.id, "EvalID": whole.eval_id, "Name": whole.name, "Namespace": whole.namespace,
        "NodeID": whole.node_id, "NodeName": whole.node_name, "JobID": whole.job_id, "JobType": kind,
        "JobVersion": whole.job_version, "TaskGroup": whole.task_group,
        "AllocatedResources": Value::Null,
        "DesiredStatus": whole.desired_status, "DesiredDescription": whole.desired_description,
        "ClientStatus": whole.client_status, "ClientDescription": whole.client_description,
        "DesiredTransition": to_value(&whole.desired_transition), "TaskStates": to_value(&whole.task_states),
        "DeploymentStatus": to_value(&whole.deployment_status),
        "FollowupEvalID": whole.followup_eval_id, "NextAllocation": whole.next_allocation, "RescheduleTracker": Value::Null,
        "PreemptedAllocations": Value::Null, "PreemptedByAllocation": "",
        "CreateIndex": whole.create_index, "ModifyIndex": whole.modify_index,
        "CreateTime": whole.create_time, "ModifyTime": whole.modify_time,
    })
}

/// The id of the evaluation that will replace this failed allocation.
pub fn followup_eval_id(view: &AllocView) -> Option<String> {
    view.reschedule_at.map(|_| eval_id_after(view.spec.id))
}

/// The id of the evaluation that replaces a failed allocation: the id of that with the bytes reversed.
pub fn eval_id_after(failed: AllocId) -> String {
    let mut bytes = *failed.0.as_bytes();
    bytes.reverse();
    AllocId::from_hash(bytes).to_string()
}

/// Its status in its deployment; `None` while there is none.
fn deployment_status(view: &AllocView) -> Option<DeploymentStatus> {
    let canary = view.spec.deployment.is_some_and(|of| of.canary);
    (view.verdict.is_some() || canary).then(|| DeploymentStatus {
        healthy: view.verdict,
        timestamp: rfc3339(view.verdict_at),
        canary,
        modify_index: view.modify_index,
    })
}

/// In a running deployment it is replaced only if this is set.
fn reschedules(view: &AllocView) -> Option<bool> {
    (view.reschedule_at.is_some() && view.spec.deployment.is_some()).then_some(true)
}

/// The failed allocations before it; `None` if there were none.
fn reschedule_tracker(spec: &Spec, node: &Node) -> Option<Value> {
    let event = |event: &RescheduleEvent| {
        json!({
            "RescheduleTime": event.time.0, "PrevAllocID": event.previous.to_string(), "PrevNodeID": node.id,
            "Delay": event.delay,
        })
    };
    let events: Vec<Value> = spec.rescheduled.iter().map(event).collect();
    (!events.is_empty()).then(|| json!({ "Events": events, "LastReschedule": "ok" }))
}

fn desired(spec: &Spec) -> (String, String) {
    let status = match spec.desired {
        Desired::Run => "run",
        Desired::Stop | Desired::Gone => "stop",
    };
    (status.to_owned(), spec.desired_description.clone())
}

fn task_state(task: &TaskView) -> TaskState {
    TaskState {
        state: task.state.as_str().to_owned(),
        failed: task.failed,
        restarts: u64::from(task.restarts),
        last_restart: rfc3339(task.last_restart),
        started_at: rfc3339(task.started_at),
        finished_at: rfc3339(task.finished_at),
        events: task.events.iter().map(task_event).collect(),
        task_handle: None,
    }
}
