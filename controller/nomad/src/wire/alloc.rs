//! Allocations as servers send them, and nodes' reports on them.

use std::{collections::BTreeMap, time::Duration};

use herdlet_rpc::codec::{self, Time};
use serde::{Deserialize, Serialize};

use super::{
    AllocId, ClientStatus, DesiredStatus, Job, NodeId, Secret, TaskState, assigned::AllocatedResources,
    omit_empty, resources::Dns,
};

omit_empty! {
    /// An allocation as servers send it, without fields that only servers read: metrics, and formats from before 0.9.
    pub struct Allocation {
        /// A UUID.
        #[serde(rename = "ID")]
        pub id: AllocId,
        /// Its namespace.
        pub namespace: String,
        /// The evaluation that created it.
        #[serde(rename = "EvalID")]
        pub eval_id: String,
        /// `job.group[index]`.
        pub name: String,
        /// Its node.
        #[serde(rename = "NodeID")]
        pub node_id: NodeId,
        /// The node's name.
        pub node_name: String,
        /// Its job.
        #[serde(rename = "JobID")]
        pub job_id: String,
        /// The job, as of the allocation's creation or last change.
        pub job: Job,
        /// The task group to run.
        pub task_group: String,
        /// Its resources.
        pub allocated_resources: Option<AllocatedResources>,
        /// The status that servers want.
        pub desired_status: DesiredStatus,
        /// The reason for it.
        pub desired_description: String,
        /// Further transitions that servers want.
        pub desired_transition: DesiredTransition,
        /// The status as known to servers.
        pub client_status: ClientStatus,
        /// The reason for it.
        pub client_description: String,
        /// The state of each task, as known to servers.
        pub task_states: BTreeMap<String, TaskState>,
        /// The allocation that it replaces: it waits for its end, and may take over its disk.
        pub previous_allocation: String,
        /// The allocation that replaces it.
        pub next_allocation: String,
        /// The deployment that it belongs to; empty if none.
        #[serde(rename = "DeploymentID")]
        pub deployment_id: String,
        /// Its health.
        pub deployment_status: Option<DeploymentStatus>,
        /// Earlier allocations of its slot.
        pub reschedule_tracker: Option<RescheduleTracker>,
        /// Its network.
        pub network_status: Option<NetworkStatus>,
        /// The follow-up evaluation.
        #[serde(rename = "FollowupEvalID")]
        pub followup_eval_id: String,
        /// Allocations that were preempted for it: it waits for their ends.
        pub preempted_allocations: Vec<String>,
        /// The allocation that preempted it.
        pub preempted_by_allocation: String,
        /// Each task's default identity (1.4 and later).
        pub signed_identities: BTreeMap<String, Secret>,
        /// The key that signed the identities.
        #[serde(rename = "SigningKeyID")]
        pub signing_key_id: String,
        /// The index of its creation.
        pub create_index: u64,
        /// The index of its last change of any kind.
        pub modify_index: u64,
        /// The index of its last change by servers.
        pub alloc_modify_index: u64,
        /// Nanoseconds since 1970.
        pub create_time: i64,
        /// Nanoseconds since 1970.
        pub modify_time: i64,
    }
}

omit_empty! {
    /// A node's report on an allocation: all the fields that servers take from it.
    pub struct AllocReport {
        /// The allocation.
        #[serde(rename = "ID")]
        pub id: AllocId,
        /// The node; the session sets it.
        #[serde(rename = "NodeID")]
        pub node_id: NodeId,
        /// Pending, running, complete or failed.
        pub client_status: ClientStatus,
        /// The reason for it.
        pub client_description: String,
        /// The state of every task.
        pub task_states: BTreeMap<String, TaskState>,
        /// Its health, once known. Reported once per deployment.
        pub deployment_status: Option<DeploymentStatus>,
        /// Its network.
        pub network_status: Option<NetworkStatus>,
    }
}

/// Transitions that servers want, besides the desired status. `None` means unset.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DesiredTransition {
    /// The node is being drained.
    pub migrate: Option<bool>,
    /// Replace the allocation if it has failed.
    pub reschedule: Option<bool>,
    /// Replace it whatever its reschedule policy says.
    pub force_reschedule: Option<bool>,
    /// Stop it without a shutdown delay (1.2 and later).
    pub no_shutdown_delay: Option<bool>,
    /// Do not replace it (1.11 and later).
    pub migrate_disable_placement: Option<bool>,
}

/// An allocation's health.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DeploymentStatus {
    /// `None` if not known yet.
    pub healthy: Option<bool>,
    /// When the health was determined.
    pub timestamp: Time,
    /// Whether it is a canary. Set only by servers.
    pub canary: bool,
    /// Set only by servers.
    pub modify_index: u64,
}

/// An allocation's network.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NetworkStatus {
    /// The interface within its network namespace.
    pub interface_name: String,
    /// Its address.
    pub address: String,
    /// The IPv6 address (1.9 and later).
    #[serde(rename = "AddressIPv6")]
    pub address_ipv6: String,
    /// Name servers.
    #[serde(rename = "DNS")]
    pub dns: Option<Dns>,
}

/// The reschedule history of a slot.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RescheduleTracker {
    /// Each rescheduling.
    pub events: Vec<RescheduleEvent>,
    /// The result of the last rescheduling (1.8 and later).
    pub last_reschedule: String,
}

/// One rescheduling.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RescheduleEvent {
    /// Nanoseconds since 1970.
    pub reschedule_time: i64,
    /// The previous allocation.
    #[serde(rename = "PrevAllocID")]
    pub prev_alloc_id: String,
    /// The previous allocation's node.
    #[serde(rename = "PrevNodeID")]
    pub prev_node_id: String,
    /// The delay before the rescheduling.
    #[serde(with = "codec::duration")]
    pub delay: Duration,
}
