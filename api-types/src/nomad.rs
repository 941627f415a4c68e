//! Nomad's JSON: allocations and jobs under the names of Nomad's HTTP API, so that its CLI and dashboards can read
//! ours. The conversions are total: unknown values are null, empty or zero, as in Nomad itself.
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

use crate::{
    AllocId,
    alloc::{Allocation as Spec, AssignedPort, DRAINED, Desired, Ports, RescheduleEvent},
    job::{Lifecycle, PortRequest},
    rfc3339::rfc3339,
    view::{AllocView, TaskView, Unplaced},
};

mod annotate;
mod children;
mod deployment;
mod diff;
mod evaluation;
mod event;
mod file;
mod job;
mod legacy;
mod node;
mod pool;
mod scale;
mod statuses;
mod summary;
mod template;

pub use annotate::{GroupChange, annotate};
pub use children::Children;
pub use deployment::deployment;
pub use diff::{Updates, job_diff};
pub use evaluation::{
    EvalProgress, Evaluated, blocked_eval_id, eval_id, evaluation, failed_groups, scaling_policy_id,
};
pub use event::task_event;
pub use file::FileInfo;
pub use job::{job, job_status, job_stub, job_version, whole_job};
pub use node::{Capacity, Inclusion, Machine, node, node_stub};
pub use pool::{ALL_POOLS, node_pool};
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
    fn one_node() -> Self {
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

/// The resources of an allocation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct AllocatedResources {
    pub tasks: BTreeMap<String, AllocatedTask>,
    pub task_lifecycles: BTreeMap<String, Option<TaskLifecycle>>,
    pub shared: AllocatedShared,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct AllocatedTask {
    pub cpu: AllocatedCpu,
    pub memory: AllocatedMemory,
    pub networks: Option<Vec<Network>>,
    pub devices: Option<Vec<Value>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct AllocatedCpu {
    pub cpu_shares: u64,
    pub reserved_cores: Option<Vec<u16>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct AllocatedMemory {
    #[serde(rename = "MemoryMB")]
    pub memory_mb: u64,
    #[serde(rename = "MemoryMaxMB")]
    pub memory_max_mb: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct TaskLifecycle {
    pub hook: String,
    pub sidecar: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct AllocatedShared {
    pub networks: Option<Vec<Network>>,
    #[serde(rename = "DiskMB")]
    pub disk_mb: u64,
    pub ports: Option<Vec<PortMapping>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct Network {
    pub mode: String,
    pub device: String,
    #[serde(rename = "CIDR")]
    pub cidr: String,
    #[serde(rename = "IP")]
    pub ip: String,
    #[serde(rename = "DNS")]
    pub dns: Option<Value>,
    #[serde(rename = "MBits")]
    pub mbits: u64,
    pub reserved_ports: Option<Vec<Port>>,
    pub dynamic_ports: Option<Vec<Port>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct Port {
    pub label: String,
    pub value: u16,
    pub to: u16,
    pub host_network: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct PortMapping {
    pub label: String,
    pub value: u16,
    pub to: u16,
    #[serde(rename = "HostIP")]
    pub host_ip: String,
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

/// An entry of a task's history: the current form (`Details`, `DisplayMessage`) and the fields for old clients.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct TaskEvent {
    #[serde(rename = "Type")]
    pub kind: String,
    pub time: i64,
    pub message: String,
    pub display_message: String,
    pub details: BTreeMap<String, String>,
    pub fails_task: bool,
    pub restart_reason: String,
    pub setup_error: String,
    pub driver_error: String,
    pub exit_code: i64,
    pub signal: i64,
    pub kill_timeout: i64,
    pub kill_error: String,
    pub kill_reason: String,
    pub start_delay: i64,
    pub download_error: String,
    pub validation_error: String,
    pub disk_limit: i64,
    pub failed_sibling: String,
    pub vault_error: String,
    pub task_signal_reason: String,
    pub task_signal: String,
    pub driver_message: String,
    pub generic_source: String,
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
        network_status: None,
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

fn resources(spec: &Spec) -> AllocatedResources {
    let Some(group) = spec.group() else { return AllocatedResources::default() };
    let ports: Vec<_> = spec
        .ports
        .iter()
        .map(|(label, port)| PortMapping {
            label: label.clone(),
            value: port.value,
            to: port.to,
            host_ip: port.host_ip.clone(),
        })
        .collect();
    let network = group.network.as_ref().map(|network| Vec::from([network_of(&spec.ports, &network.ports)]));
    AllocatedResources {
        tasks: group.tasks.iter().map(|task| (task.name.clone(), task_resources(spec, task))).collect(),
        task_lifecycles: group
            .tasks
            .iter()
            .map(|task| (task.name.clone(), lifecycle(task.lifecycle)))
            .collect(),
        shared: AllocatedShared { networks: network, disk_mb: group.disk_mib, ports: non_empty(ports) },
    }
}

fn non_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    if list.is_empty() { None } else { Some(list) }
}

fn task_resources(spec: &Spec, task: &crate::job::Task) -> AllocatedTask {
    AllocatedTask {
        cpu: AllocatedCpu { cpu_shares: task.resources.cpu_mhz.unwrap_or_default(), reserved_cores: None },
        memory: AllocatedMemory {
            memory_mb: task.resources.memory_mib.unwrap_or_default(),
            memory_max_mb: task.resources.memory_max_mb(),
        },
        networks: spec.task_ports.get(&task.name).map(|ports| Vec::from([network_of(ports, &task.ports)])),
        devices: None,
    }
}

/// The network of a group or of a task; the requests distinguish static ports from dynamic ones.
fn network_of(ports: &Ports, requests: &BTreeMap<String, PortRequest>) -> Network {
    let port = |(label, port): (&String, &AssignedPort)| Port {
        label: label.clone(),
        value: port.value,
        to: port.to,
        host_network: "default".to_owned(),
    };
    let is_fixed = |port: &Port| requests.get(&port.label).is_some_and(|request| request.fixed.is_some());
    let (reserved, dynamic): (Vec<_>, Vec<_>) = ports.iter().map(port).partition(is_fixed);
    Network {
        mode: "host".to_owned(),
        ip: ports.values().next().map(|port| port.host_ip.clone()).unwrap_or_default(),
        reserved_ports: non_empty(reserved),
        dynamic_ports: non_empty(dynamic),
        ..Network::default()
    }
}

/// Nomad's hook for a lifecycle; `None` for main tasks.
fn lifecycle(lifecycle: Lifecycle) -> Option<TaskLifecycle> {
    let hook = match lifecycle {
        Lifecycle::Main => return None,
        Lifecycle::Prestart | Lifecycle::PrestartSidecar => "prestart",
        Lifecycle::Poststart | Lifecycle::PoststartSidecar => "poststart",
        Lifecycle::Poststop => "poststop",
    };
    Some(TaskLifecycle { hook: hook.to_owned(), sidecar: lifecycle.is_sidecar() })
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

/// Nomad writes an empty map as null.
fn map(entries: &BTreeMap<String, String>) -> Value {
    if entries.is_empty() { Value::Null } else { to_value(entries) }
}

/// Plain data always has a JSON form.
fn to_value<T: Serialize>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}
