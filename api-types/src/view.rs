//! The agent's read model of its objects, for the API, the CLI and the metrics.
//!
//! Views are built from committed state only.

use std_alloc::{borrow::Cow, collections::BTreeMap, format, string::String, sync::Arc, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{
    AllocId, Duration, JobKey, Moment, UnixNanos,
    alloc::{AllocNetwork, Allocation, ClientStatus, Desired},
    deployment::{Deployment, DeploymentStatus},
    job::{Group, Job},
    rfc3339::rfc3339,
    scaling::ScalingEvents,
    service::CheckResult,
    task::{ExitResult, History, TaskPhase, TaskStatus},
    volume::{Volume, VolumeStatus},
};

/// A job as shown.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobView {
    /// The job's key.
    pub key: JobKey,
    /// The current version's number, from 0.
    pub version: u64,
    /// The current version.
    pub job: Arc<Job>,
    /// Whether it is being stopped and removed.
    pub deleting: bool,
    /// The commit that created it.
    pub create_index: u64,
    /// The commit of the last change.
    pub modify_index: u64,
    /// The time when the current version was accepted.
    pub submit_time: UnixNanos,
    /// Allocations of the current version and relevant older ones, ordered by group and index.
    pub allocs: Vec<AllocId>,
    /// Its progress.
    pub convergence: Convergence,
    /// Planning it panicked, so it is no longer planned.
    #[serde(default)]
    pub quarantined: bool,
    /// Its deployments, newest first.
    #[serde(default)]
    pub deployments: Vec<Arc<Deployment>>,
    /// Why allocations of groups can't be placed now, by group.
    #[serde(default)]
    pub unplaced: BTreeMap<String, Unplaced>,
    /// The next launch of a periodic job.
    #[serde(default)]
    pub next_launch: Option<UnixNanos>,
    /// The name of the current version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<VersionTag>,
    /// The versions that can be restored, oldest first. They have a separate endpoint.
    #[serde(skip)]
    pub past: Vec<Arc<JobVersion>>,
    /// Its scaling events. They have a separate endpoint.
    #[serde(skip)]
    pub scaled: Arc<ScalingEvents>,
    /// Whether servers have placed it here (node mode): then it is only the part of their job on this machine.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub placed: bool,
    /// The file of a folder of manifests that defines another version. A revert put this one in force, and it stays
    /// until the file's definition changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
}

impl JobView {
    /// Whether the version in force has converged although a file defines another one.
    pub fn is_held(&self) -> bool {
        self.held.is_some() && self.convergence.state == ConvergenceState::Converged
    }

    /// The job's current activity; if it has converged, why it is held, which version it was reverted from, or its next
    /// launch.
    pub fn message(&self) -> String {
        let message = &self.convergence.message;
        if let Some(file) = self.held.as_ref().filter(|_| message.is_empty()) {
            return held_message(file);
        }
        if let Some(failed) = self.reverted().filter(|_| message.is_empty()) {
            return format!("{}; see: herdlet explain {}", failed.revert_message(), self.key.argument());
        }
        match self.next_launch.and_then(rfc3339) {
            Some(at) if message.is_empty() => format!("next launch: {at}"),
            Some(_) | None => message.clone(),
        }
    }

    /// The failed deployment whose failure has put the current version in force.
    pub fn reverted(&self) -> Option<&Deployment> {
        self.deployments.iter().map(|known| &**known).find(|known| {
            let has_reverted = known.status == DeploymentStatus::Failed && known.reverted_to.is_some();
            has_reverted && known.job_version + 1 == self.version
        })
    }

    /// Whether nothing of it should run any more, whether it is kept or not.
    pub fn is_stopped(&self) -> bool {
        self.deleting || self.job.stop
    }

    /// The wanted number of allocations of a group.
    pub fn desired_count(&self, group: &Group) -> u32 {
        if self.deleting { 0 } else { self.job.desired_count(group) }
    }

    /// Whether the last deployment of this version failed.
    pub fn has_failed(&self, version: u64) -> bool {
        let last = self.deployments.iter().find(|known| known.job_version == version);
        last.is_some_and(|known| known.status == DeploymentStatus::Failed)
    }

    /// Whether a deployment of this version was successful, so that a later failing one may return to it.
    pub fn is_stable(&self, version: u64) -> bool {
        let mut of_it = self.deployments.iter().filter(|known| known.job_version == version);
        of_it.any(|known| known.status == DeploymentStatus::Successful)
    }
}

/// The state of a job that is held, in output and metrics.
pub const HELD: &str = "held";

/// Why a job is held, for people.
pub fn held_message(file: &str) -> String {
    format!("rolled back; {file} defines another version and takes effect when its definition changes")
}

/// Why an allocation can't be placed on this node now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unplaced {
    /// The reason in a word.
    pub reason: Reason,
    /// The reason in a sentence: what the node has, and what is required.
    pub message: String,
    /// The constraints that the node does not meet, in Nomad's notation.
    pub filtered_by: Vec<String>,
    /// The exhausted resources of the node, in Nomad's terms.
    pub exhausted: Vec<String>,
}

impl Unplaced {
    /// Adds a subject to the message.
    #[must_use]
    pub fn of(self, subject: &str) -> Self {
        Self { message: format!("{subject} {}", self.message), ..self }
    }
}

/// A version of a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobVersion {
    /// Its number, from 0.
    pub version: u64,
    /// The commit in which it was accepted; 0 if unknown.
    pub index: u64,
    /// The time when it was accepted; 0 if unknown.
    pub submit_time: UnixNanos,
    /// Its content.
    pub job: Arc<Job>,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<VersionTag>,
}

/// The name of a version of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionTag {
    /// The name, unique in the job.
    pub name: String,
    /// A description; may be empty.
    #[serde(default)]
    pub description: String,
    /// When it was given.
    pub tagged_at: UnixNanos,
}

/// An allocation as shown.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AllocView {
    /// Its specification; the reader attaches `job` by `job_key` and `job_version`.
    pub spec: Arc<Allocation>,
    /// Coarse status.
    pub status: ClientStatus,
    /// The reason for the status in a sentence.
    pub description: Cow<'static, str>,
    /// Tasks in the group's order.
    pub tasks: Vec<TaskView>,
    /// The last results of its checks in the built-in catalogue.
    pub checks: Vec<CheckResult>,
    /// Whether it is healthy now: its tasks run as they should and its checks pass, or its work is done. `None` if it
    /// should end.
    pub healthy: Option<bool>,
    /// The verdict of the deployment's health watch, set once. It may be outdated.
    #[serde(default)]
    pub verdict: Option<bool>,
    /// The time of the verdict.
    #[serde(default)]
    pub verdict_at: UnixNanos,
    /// When a replacement will be created, if it has failed.
    #[serde(default)]
    pub reschedule_at: Option<UnixNanos>,
    /// Whether its directory was removed after its end to free space: logs and files are gone.
    #[serde(default)]
    pub collected: bool,
    /// Planning it panicked, so it is no longer planned.
    #[serde(default)]
    pub quarantined: bool,
    /// Whether its parts end without a `shutdown_delay`.
    #[serde(default)]
    pub no_shutdown_delay: bool,
    /// The last network that its tasks shared; none if they use the machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<AllocNetwork>,
    /// The commit of the last change.
    pub modify_index: u64,
    /// When it last changed.
    pub modify_time: UnixNanos,
    /// Its progress.
    pub convergence: Convergence,
}

impl AllocView {
    /// Whether it counts as healthy.
    pub fn is_healthy(&self) -> bool {
        self.healthy == Some(true)
    }

    /// Whether it counts towards its group's count: it should run and is no canary.
    pub fn fills_a_place(&self) -> bool {
        self.spec.desired == Desired::Run && !self.spec.deployment.is_some_and(|of| of.canary)
    }

    /// A notice about its removed logs and files.
    pub fn loss(&self) -> Option<&'static str> {
        self.collected.then_some("was collected: its logs and files are gone")
    }
}

/// A task as shown.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TaskView {
    /// Task name.
    pub name: Arc<str>,
    /// Coarse state.
    pub state: TaskStatus,
    /// What it is currently doing.
    pub phase: TaskPhase,
    /// The number of the last attempt; 0 before the first.
    pub attempt: u32,
    /// Whether it failed permanently.
    pub failed: bool,
    /// Restarts so far.
    pub restarts: u32,
    /// When it last restarted.
    pub last_restart: UnixNanos,
    /// When its process last started.
    pub started_at: UnixNanos,
    /// When it ended permanently.
    pub finished_at: UnixNanos,
    /// The result of the last attempt.
    pub exit: Option<ExitResult>,
    /// Its last ten events, oldest first.
    pub events: History,
}

impl TaskView {
    /// No attempt of it has ever begun, as far as is known.
    pub fn never_ran(&self) -> bool {
        self.started_at == UnixNanos::default() && self.exit.is_none()
    }
}

/// A volume as shown.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VolumeView {
    /// Its specification.
    pub spec: Arc<Volume>,
    /// Its status.
    pub status: VolumeStatus,
    /// Allocations that use it.
    pub claims: Vec<AllocId>,
}

/// This node as shown: whether it takes new allocations, and its drain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    /// Whether it takes new allocations.
    pub eligible: bool,
    /// The drain in progress.
    pub drain: Option<DrainView>,
    /// The last drain, which may be the one in progress.
    pub last_drain: Option<LastDrain>,
    /// The commit of the last change; 0 if there was none.
    pub modify_index: u64,
}

impl Default for NodeView {
    fn default() -> Self {
        Self { eligible: true, drain: None, last_drain: None, modify_index: 0 }
    }
}

/// A drain in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainView {
    /// The deadline as requested: negative for at once, 0 for none.
    pub deadline: Duration,
    /// When all remaining allocations are stopped.
    pub force_at: Option<UnixNanos>,
    /// Whether allocations of system jobs continue.
    pub ignore_system: bool,
    /// When it began.
    pub started_at: UnixNanos,
}

/// The last drain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastDrain {
    /// When it began.
    pub started_at: UnixNanos,
    /// When it last changed.
    pub updated_at: UnixNanos,
    /// Its result.
    pub status: DrainStatus,
    /// What the requests noted.
    #[serde(default)]
    pub meta: BTreeMap<String, String>,
}

/// The result of a drain, in Nomad's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DrainStatus {
    /// In progress.
    Draining,
    /// Everything was stopped.
    Complete,
    /// A request ended it before that.
    Canceled,
}

impl DrainStatus {
    /// Nomad's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Draining => "draining",
            Self::Complete => "complete",
            Self::Canceled => "canceled",
        }
    }
}

/// The progress of an object towards its wanted state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Convergence {
    /// The verdict.
    pub state: ConvergenceState,
    /// What it waits for; `None` if it has converged.
    pub reason: Option<Reason>,
    /// The reason in a sentence; empty if it has converged.
    pub message: String,
    /// Since when it has been converged, or not.
    pub since: Moment,
    /// The deadline after which it is overdue; `None` if its plan has none.
    pub overdue_at: Option<Moment>,
}

/// The verdict on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConvergenceState {
    /// Everything is as wanted.
    Converged,
    /// Work is in progress.
    Progressing,
    /// It waits for something, given in the reason.
    Waiting,
    /// It failed permanently.
    Failed,
}

impl ConvergenceState {
    /// The name in output and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Converged => "converged",
            Self::Progressing => "progressing",
            Self::Waiting => "waiting",
            Self::Failed => "failed",
        }
    }
}

/// What an object waits for: a closed list, used as a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reason {
    /// Another task, volume or allocation.
    Dependency,
    /// Resources of this machine.
    Capacity,
    /// A machine that meets its constraints.
    Constraint,
    /// A port that another allocation holds.
    Port,
    /// The delay before the next try.
    Backoff,
    /// Checks, or the minimum time in health.
    Health,
    /// The promotion of the canaries.
    Promotion,
    /// A running operation.
    Operation,
    /// A delay in the specification.
    Delay,
    /// A manifest that can't be read.
    Manifest,
    /// A failure.
    Error,
}

impl Reason {
    /// The name in output and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dependency => "dependency",
            Self::Capacity => "capacity",
            Self::Constraint => "constraint",
            Self::Port => "port",
            Self::Backoff => "backoff",
            Self::Health => "health",
            Self::Promotion => "promotion",
            Self::Operation => "operation",
            Self::Delay => "delay",
            Self::Manifest => "manifest",
            Self::Error => "error",
        }
    }
}

/// What an allocation's plan waits for, for `herdlet explain`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// `job.group[index]`.
    pub name: String,
    /// Allocation id.
    pub alloc: String,
    /// The goal in a word: `run`, `stop`, `remove`.
    pub goal: String,
    /// Coarse status.
    pub status: ClientStatus,
    /// Every part that is not as wanted, in the plan's order.
    pub waits: Vec<Wait>,
    /// When it is planned next without an event; `None` if nothing is timed.
    pub wake_at: Option<UnixNanos>,
}

/// One part that is not as wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// The part, for instance `task httpd: mounts`.
    pub part: String,
    /// What it waits for.
    pub reason: Reason,
    /// The reason in a sentence, with the last error if there is one.
    pub message: String,
    /// Since when, if known.
    pub since: Option<UnixNanos>,
    /// The deadline, or the time of the next try.
    pub until: Option<UnixNanos>,
}
