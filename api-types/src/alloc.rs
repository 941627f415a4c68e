//! The allocation: one placed instance of a group, as its source wants it and as this node reports it.

use std_alloc::{collections::BTreeMap, string::String, sync::Arc, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{
    AllocId, DeploymentId, Duration, JobKey, UnixNanos,
    job::{Group, Job, Migrate, Task},
};

/// A wanted allocation. Immutable but for what is wanted of it, and the version it stands for where a newer one leaves its work as
/// it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// Unique for ever.
    pub id: AllocId,
    /// The job it belongs to.
    pub job_key: JobKey,
    /// Version of the job it was made from.
    pub job_version: u64,
    /// That version. Shared between allocations; stored once per version, not with each allocation.
    #[serde(skip, default = "no_job")]
    pub job: Arc<Job>,
    /// Name of its group.
    pub group: String,
    /// Index within the group, from 0.
    pub index: u32,
    /// Host ports by label.
    pub ports: Ports,
    /// What its source wants.
    pub desired: Desired,
    /// Why, in a sentence; empty while it runs.
    #[serde(default)]
    pub desired_description: String,
    /// Commit in which it was made.
    pub create_index: u64,
    /// When it was made.
    pub create_time: UnixNanos,
    /// The allocation it replaces.
    pub previous: Option<AllocId>,
    /// The deployment that it was made for, or that took it over; none where there is none.
    #[serde(default)]
    pub deployment: Option<AllocDeployment>,
    /// The allocation that has replaced it.
    #[serde(default)]
    pub next: Option<AllocId>,
    /// The allocations of its slot that had failed before it, oldest first.
    #[serde(default)]
    pub rescheduled: Vec<RescheduleEvent>,
    /// The server's side of it, where a server has placed it here (node mode).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<Arc<ServerSide>>,
}

/// What only a server knows of an allocation that it has placed on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSide {
    /// Grows with each change that a server makes (`AllocModifyIndex`). Never to be compared with a commit of this machine.
    pub modify_index: u64,
    /// The server's index when it made the allocation.
    pub create_index: u64,
    /// The job as of this allocation, stored with it: a version's number is no key, as a job that was purged and registered anew begins
    /// at 0 again.
    pub job: Arc<Job>,
    /// Its tasks end without any `shutdown_delay`.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub no_shutdown_delay: bool,
    /// Why it can't run here: its job can't be read, or asks for what isn't built. Its tasks fail at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// How its health is judged outside of deployments; none where nobody asks for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrate: Option<Migrate>,
    /// It is stopped once no server was in reach for so long (`disconnect.stop_on_client_after`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_on_client_after: Option<Duration>,
    /// It is stopped, and has completed, once it was made so long ago (`max_run_duration`, 2.0 and later).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_run_duration: Option<Duration>,
    /// What it takes over of the disk of the one before it.
    #[serde(default, skip_serializing_if = "Heritage::is_none")]
    pub heritage: Heritage,
    /// Allocations that were stopped to make room for it. It begins once they have ended, as it does with the one before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preempted: Vec<AllocId>,
    /// Ports that single tasks have, by task (`resources.network` of old jobs).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub task_ports: BTreeMap<String, Ports>,
    /// Commands that people may have executed in its tasks, by task (`action`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub actions: BTreeMap<String, Vec<TaskAction>>,
}

/// A command that people may have executed in a task, by its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskAction {
    /// Unique in its task.
    pub name: String,
    /// The program.
    pub command: String,
    /// Its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
}

/// What an allocation takes over of the disk of the one before it (`ephemeral_disk`): what its tasks share (`alloc/data`), and what each
/// of its tasks has in `local`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Heritage {
    /// Nothing: it begins with an empty disk.
    #[default]
    None,
    /// All of it, where that one was on the same node (`sticky`).
    SameNode,
    /// All of it, wherever it was (`migrate`).
    AnyNode,
}

impl Heritage {
    /// Whether there is none.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// An allocation had failed, and another one was made in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RescheduleEvent {
    /// When.
    pub time: UnixNanos,
    /// The one that had failed.
    pub previous: AllocId,
    /// How long that was waited for.
    pub delay: Duration,
}

/// An allocation's part in a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocDeployment {
    /// Which.
    pub id: DeploymentId,
    /// It stands beside the old allocation of its slot and is not promoted.
    pub canary: bool,
}

impl Allocation {
    /// `job.group[index]`, Nomad's allocation name.
    pub fn name(&self) -> String {
        std_alloc::format!("{}.{}[{}]", self.job_key.id, self.group, self.index)
    }

    /// Its name as people are shown it: a canary is told from what it stands beside, which has the same name.
    pub fn title(&self) -> String {
        std_alloc::format!("{}{}", self.name(), self.mark())
    }

    /// The same of one of its tasks: `job.group[index]/task`.
    pub fn task_title(&self, task: &str) -> String {
        std_alloc::format!("{}/{task}{}", self.name(), self.mark())
    }

    fn mark(&self) -> &'static str {
        if self.deployment.is_some_and(|of| of.canary) { " (canary)" } else { "" }
    }

    /// Its group. Every stored allocation has one; a damaged record has not.
    pub fn group(&self) -> Option<&Group> {
        self.job.group(&self.group)
    }

    /// The allocations whose ends it waits for, where a server has placed it: the one before it, and those that made room for it.
    pub fn awaited(&self) -> impl Iterator<Item = AllocId> {
        let preempted = self.server.iter().flat_map(|server| server.preempted.iter().copied());
        self.previous.filter(|_| self.server.is_some()).into_iter().chain(preempted)
    }

    /// The allocation whose disk it takes over, where that was on the same node.
    pub fn predecessor(&self) -> Option<AllocId> {
        self.previous.filter(|_| self.server.as_ref().is_some_and(|server| !server.heritage.is_none()))
    }

    /// Ports of one of its tasks alone, where a server has placed it: beside the group's, and of the same labels as other tasks' perhaps.
    pub fn task_ports(&self, task: &str) -> Option<&Ports> {
        self.server.as_ref()?.task_ports.get(task)
    }

    /// All ports that it holds on the machine.
    pub fn host_ports(&self) -> impl Iterator<Item = &AssignedPort> {
        let of_tasks = self.server.iter().flat_map(|server| server.task_ports.values());
        core::iter::once(&self.ports).chain(of_tasks).flat_map(BTreeMap::values)
    }

    /// A task of its group.
    pub fn task(&self, name: &str) -> Option<&Task> {
        self.group()?.task(name)
    }
}

/// The stand-in while an allocation is read back and its job version is not attached yet.
fn no_job() -> Arc<Job> {
    Arc::new(Job {
        namespace: String::new(),
        id: String::new(),
        name: String::new(),
        labels: BTreeMap::new(),
        kind: crate::job::JobType::Service,
        stop: false,
        priority: 50,
        region: String::new(),
        datacenters: Default::default(),
        node_pool: String::new(),
        constraints: Default::default(),
        affinities: Default::default(),
        spreads: Default::default(),
        meta: BTreeMap::new(),
        parameterized: None,
        periodic: None,
        child: None,
        groups: Default::default(),
    })
}

/// What the source of an allocation wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Desired {
    /// It should run.
    Run,
    /// It should be stopped; its directory stays.
    Stop,
    /// It should be stopped and nothing of it should stay.
    Gone,
}

/// Ports by label.
pub type Ports = BTreeMap<String, AssignedPort>;

/// A port as given to an allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignedPort {
    /// Host address, for instance `127.0.0.1`.
    pub host_ip: String,
    /// Host port.
    pub value: u16,
    /// Port the task listens on, 0 for the same as `value`.
    pub to: u16,
}

/// What this node says of an allocation, in Nomad's coarse words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientStatus {
    /// No task runs yet, or one waits to run again.
    #[default]
    Pending,
    /// A task runs.
    Running,
    /// All tasks ended well.
    Complete,
    /// A task failed for good.
    Failed,
}

impl ClientStatus {
    /// Never left again.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Pending | Self::Running => false,
            Self::Complete | Self::Failed => true,
        }
    }

    /// Nomad's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Complete => "complete",
            Self::Failed => "failed",
        }
    }
}
