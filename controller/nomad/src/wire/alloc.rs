//! Allocations: as servers give them out, and as nodes report on them.

use std::{collections::BTreeMap, time::Duration};

use herdlet_rpc::codec::{self, Time};
use serde::{Deserialize, Serialize};

use super::{
    AllocId, ClientStatus, DesiredStatus, Job, NodeId, Secret, TaskState, assigned::AllocatedResources,
    omit_empty, resources::Dns,
};

omit_empty! {
    /// An allocation as servers give it out. Without what only servers read: metrics, forms of before 0.9.
    pub struct Allocation {
        /// A UUID.
        #[serde(rename = "ID")]
        pub id: AllocId,
        /// Its namespace.
        pub namespace: String,
        /// The evaluation that made it.
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
        /// The job, as it was when the allocation was made or changed.
        pub job: Job,
        /// The group that is to run.
        pub task_group: String,
        /// What it has.
        pub allocated_resources: Option<AllocatedResources>,
        /// What is wanted of it.
        pub desired_status: DesiredStatus,
        /// Why.
        pub desired_description: String,
        /// More that is wanted.
        pub desired_transition: DesiredTransition,
        /// How it is, as far as servers know.
        pub client_status: ClientStatus,
        /// Likewise.
        pub client_description: String,
        /// Likewise.
        pub task_states: BTreeMap<String, TaskState>,
        /// The one that it replaces: it waits for that one's end, and may get its disk.
        pub previous_allocation: String,
        /// The one that replaces it.
        pub next_allocation: String,
        /// The deployment to which it reports its health; empty: none.
        #[serde(rename = "DeploymentID")]
        pub deployment_id: String,
        /// Its health.
        pub deployment_status: Option<DeploymentStatus>,
        /// What its slot has been through.
        pub reschedule_tracker: Option<RescheduleTracker>,
        /// Its network.
        pub network_status: Option<NetworkStatus>,
        /// The evaluation that follows.
        #[serde(rename = "FollowupEvalID")]
        pub followup_eval_id: String,
        /// Those that were stopped to make room: it waits for their ends.
        pub preempted_allocations: Vec<String>,
        /// The one for which it was stopped.
        pub preempted_by_allocation: String,
        /// Each task's default identity (1.4 and later).
        pub signed_identities: BTreeMap<String, Secret>,
        /// By which key they are signed.
        #[serde(rename = "SigningKeyID")]
        pub signing_key_id: String,
        /// When it was made, as an index.
        pub create_index: u64,
        /// When anything of it has changed.
        pub modify_index: u64,
        /// When servers have changed it.
        pub alloc_modify_index: u64,
        /// Nanoseconds since 1970.
        pub create_time: i64,
        /// Nanoseconds since 1970.
        pub modify_time: i64,
    }
}

omit_empty! {
    /// What a node reports of an allocation: all that servers take over.
    pub struct AllocReport {
        /// The allocation.
        #[serde(rename = "ID")]
        pub id: AllocId,
        /// The node; set by a session.
        #[serde(rename = "NodeID")]
        pub node_id: NodeId,
        /// Pending, running, complete or failed.
        pub client_status: ClientStatus,
        /// Why.
        pub client_description: String,
        /// Every task.
        pub task_states: BTreeMap<String, TaskState>,
        /// Its health, once that is known. Told once for each deployment.
        pub deployment_status: Option<DeploymentStatus>,
        /// Its network.
        pub network_status: Option<NetworkStatus>,
    }
}

/// What is wanted of an allocation beside its status. None: nothing is said.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DesiredTransition {
    /// Its node is being drained.
    pub migrate: Option<bool>,
    /// It is to be replaced if it has failed.
    pub reschedule: Option<bool>,
    /// Likewise, whatever its policy says.
    pub force_reschedule: Option<bool>,
    /// It is stopped without delay (1.2 and later).
    pub no_shutdown_delay: Option<bool>,
    /// It is not replaced (1.11 and later).
    pub migrate_disable_placement: Option<bool>,
}

/// An allocation's health.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DeploymentStatus {
    /// None: not known yet.
    pub healthy: Option<bool>,
    /// Since when.
    pub timestamp: Time,
    /// It is a canary. Servers only.
    pub canary: bool,
    /// Servers only.
    pub modify_index: u64,
}

/// An allocation's network.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NetworkStatus {
    /// Within its namespace.
    pub interface_name: String,
    /// Its address.
    pub address: String,
    /// 1.9 and later.
    #[serde(rename = "AddressIPv6")]
    pub address_ipv6: String,
    /// Name servers.
    #[serde(rename = "DNS")]
    pub dns: Option<Dns>,
}

/// Which allocations a slot has had.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RescheduleTracker {
    /// Each time.
    pub events: Vec<RescheduleEvent>,
    /// How the last time went (1.8 and later).
    pub last_reschedule: String,
}

/// A slot got another allocation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RescheduleEvent {
    /// Nanoseconds since 1970.
    pub reschedule_time: i64,
    /// Which it had before.
    #[serde(rename = "PrevAllocID")]
    pub prev_alloc_id: String,
    /// Where.
    #[serde(rename = "PrevNodeID")]
    pub prev_node_id: String,
    /// How long was waited.
    #[serde(with = "codec::duration")]
    pub delay: Duration,
}
