//! What the agent shows of its objects: the read model behind the API, the CLI and the metrics.
//!
//! Views are made from committed state; they never claim more than is so.

use std_alloc::{borrow::Cow, collections::BTreeMap, format, string::String, sync::Arc, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{
    AllocId, JobKey, Moment, UnixNanos,
    alloc::{Allocation, ClientStatus, Desired},
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
    /// Which.
    pub key: JobKey,
    /// The current version's number, from 0.
    pub version: u64,
    /// The current version.
    pub job: Arc<Job>,
    /// It is being stopped and will be forgotten.
    pub deleting: bool,
    /// Commit in which it was made.
    pub create_index: u64,
    /// Commit in which it last changed.
    pub modify_index: u64,
    /// When the current version was accepted.
    pub submit_time: UnixNanos,
    /// Allocations of the current version and of older ones that still matter, in order of group and index.
    pub allocs: Vec<AllocId>,
    /// How far it has come.
    pub convergence: Convergence,
    /// Planning it panicked: it is left alone.
    #[serde(default)]
    pub quarantined: bool,
    /// Its deployments, newest first.
    #[serde(default)]
    pub deployments: Vec<Arc<Deployment>>,
    /// Why groups have allocations that can't be placed now, by group.
    #[serde(default)]
    pub unplaced: BTreeMap<String, Unplaced>,
    /// When a periodic job is launched next; none of others.
    #[serde(default)]
    pub next_launch: Option<UnixNanos>,
    /// The versions that can be gone back to, oldest first. They have an endpoint of their own.
    #[serde(skip)]
    pub past: Vec<Arc<JobVersion>>,
    /// Who has scaled it. It has an endpoint of its own.
    #[serde(skip)]
    pub scaled: Arc<ScalingEvents>,
    /// Servers have placed it here (node mode): it is as much of their job as is on this machine.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub placed: bool,
}

impl JobView {
    /// What the job is doing; of one that has converged, when it is launched next.
    pub fn message(&self) -> String {
        let message = &self.convergence.message;
        match self.next_launch.and_then(rfc3339) {
            Some(at) if message.is_empty() => format!("launched next at {at}"),
            Some(_) | None => message.clone(),
        }
    }

    /// Nothing of it is to run any more, whether it is kept or not.
    pub fn is_stopped(&self) -> bool {
        self.deleting || self.job.stop
    }

    /// How many allocations of one of its groups are wanted.
    pub fn wanted(&self, group: &Group) -> u32 {
        if self.deleting { 0 } else { self.job.wanted(group) }
    }

    /// The last deployment of this version has failed.
    pub fn has_failed(&self, version: u64) -> bool {
        let last = self.deployments.iter().find(|known| known.job_version == version);
        last.is_some_and(|known| known.status == DeploymentStatus::Failed)
    }

    /// A deployment of this version was successful: a later one that fails may take the job back to it.
    pub fn is_stable(&self, version: u64) -> bool {
        let mut of_it = self.deployments.iter().filter(|known| known.job_version == version);
        of_it.any(|known| known.status == DeploymentStatus::Successful)
    }
}

/// Why an allocation can't be placed on this node now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unplaced {
    /// The same in a word.
    pub reason: Reason,
    /// In a sentence: what the node has, and what would be right.
    pub message: String,
    /// The constraints that the node does not meet, as Nomad writes them.
    pub filtered_by: Vec<String>,
    /// What of the node is used up, in Nomad's words.
    pub exhausted: Vec<String>,
}

impl Unplaced {
    /// The same, said of this.
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
    /// Commit in which it was accepted; 0 where that is no longer known.
    pub index: u64,
    /// When it was accepted; 0 where that is no longer known.
    pub submit_time: UnixNanos,
    /// What it says.
    pub job: Arc<Job>,
}

/// An allocation as shown.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AllocView {
    /// Its specification; `job` is attached by the reader from `job_key` and `job_version`.
    pub spec: Arc<Allocation>,
    /// Coarse status.
    pub status: ClientStatus,
    /// Why, in a sentence.
    pub description: Cow<'static, str>,
    /// Tasks in the group's order.
    pub tasks: Vec<TaskView>,
    /// Last results of its checks in the built-in catalogue.
    pub checks: Vec<CheckResult>,
    /// Whether it is healthy now: its tasks run as they should and its checks pass, or its work is done. None of what is to end.
    pub healthy: Option<bool>,
    /// Verdict of the roll-out's health watch, given once. It may not be so any more.
    #[serde(default)]
    pub verdict: Option<bool>,
    /// When it was given.
    #[serde(default)]
    pub verdict_at: UnixNanos,
    /// When another one takes its place, since it has failed.
    #[serde(default)]
    pub reschedule_at: Option<UnixNanos>,
    /// It has ended, and its directory was given up to make room: its logs and files are gone.
    #[serde(default)]
    pub collected: bool,
    /// Planning it panicked: it is left alone.
    #[serde(default)]
    pub quarantined: bool,
    /// What ends of it does so without a `shutdown_delay`.
    #[serde(default)]
    pub no_shutdown_delay: bool,
    /// Commit in which it last changed.
    pub modify_index: u64,
    /// When it last changed.
    pub modify_time: UnixNanos,
    /// How far it has come.
    pub convergence: Convergence,
}

impl AllocView {
    /// It counts as healthy, wherever allocations are counted.
    pub fn is_healthy(&self) -> bool {
        self.healthy == Some(true)
    }

    /// It is one of those that its group is to have: no canary, and nothing that is on its way out.
    pub fn fills_a_place(&self) -> bool {
        self.spec.desired == Desired::Run && !self.spec.deployment.is_some_and(|of| of.canary)
    }

    /// What became of its logs and files, where they were given up.
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
    /// What it is doing.
    pub phase: TaskPhase,
    /// The last attempt number given out; 0 before the first.
    pub attempt: u32,
    /// It failed for good.
    pub failed: bool,
    /// Restarts so far.
    pub restarts: u32,
    /// When it last restarted.
    pub last_restart: UnixNanos,
    /// When its process last started.
    pub started_at: UnixNanos,
    /// When it ended for good.
    pub finished_at: UnixNanos,
    /// How the last attempt ended.
    pub exit: Option<ExitResult>,
    /// Its last ten events, oldest first.
    pub events: History,
}

/// A volume as shown.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VolumeView {
    /// Its specification.
    pub spec: Arc<Volume>,
    /// What is known of it.
    pub status: VolumeStatus,
    /// Allocations that claim it.
    pub claims: Vec<AllocId>,
}

/// How far an object has come towards what is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Convergence {
    /// The verdict.
    pub state: ConvergenceState,
    /// What it waits for; none when converged.
    pub reason: Option<Reason>,
    /// The same in a sentence; empty when converged.
    pub message: String,
    /// Since when it has not been converged (or since when it has).
    pub since: Moment,
    /// Past this it is overdue by its own plan; none where the plan declares no deadline.
    pub overdue_at: Option<Moment>,
}

/// The verdict on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConvergenceState {
    /// All is as wanted.
    Converged,
    /// Work is going on.
    Progressing,
    /// It waits for something and says for what.
    Waiting,
    /// It failed for good.
    Failed,
}

impl ConvergenceState {
    /// The word for it in output and metrics.
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
    /// Room on this machine.
    Capacity,
    /// A machine that meets its constraints.
    Constraint,
    /// A port that another allocation holds.
    Port,
    /// The delay before the next try.
    Backoff,
    /// Checks, or time in health.
    Health,
    /// Somebody who promotes the canaries.
    Promotion,
    /// An operation that is under way.
    Operation,
    /// A delay that the specification asks for.
    Delay,
    /// A manifest that can't be read.
    Manifest,
    /// Something failed.
    Error,
}

impl Reason {
    /// The word for it in output and metrics.
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

/// What the plan of an allocation waits for, for `herdlet explain`.
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
    /// Every part that is not as wanted, in the order of the plan.
    pub waits: Vec<Wait>,
    /// Next time the plan looks at it by itself; none when nothing is timed.
    pub wake_at: Option<UnixNanos>,
}

/// One part that is not as wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// Which part, for instance `task httpd: mounts`.
    pub part: String,
    /// What it waits for.
    pub reason: Reason,
    /// The same in a sentence, with the last error if there is one.
    pub message: String,
    /// Since when, if known.
    pub since: Option<UnixNanos>,
    /// Until when at the latest, or when the next try is.
    pub until: Option<UnixNanos>,
}
