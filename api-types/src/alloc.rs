//! Allocations: placed instances of a group, as their source wants them and as this node reports them.

mod cores;
mod network;

use std_alloc::{collections::BTreeMap, string::String, sync::Arc, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{
    AllocId, DeploymentId, Duration, JobKey, UnixNanos,
    job::{Group, Job, Migrate, Resources, Task, TaskAction},
};

pub use cores::{AssignedCores, CoreSet};
pub use network::AllocNetwork;

/// The reason to stop an allocation of a drained node, in Nomad's words.
pub const DRAINED: &str = "alloc is being migrated";

/// A wanted allocation. Only its desired status changes, and its job version if a newer version leaves its work
/// unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// Never reused.
    pub id: AllocId,
    /// Its job.
    pub job_key: JobKey,
    /// The version of the job that it belongs to.
    pub job_version: u64,
    /// That version. Shared between allocations; stored once per version, not with each allocation.
    #[serde(skip, default = "no_job")]
    pub job: Arc<Job>,
    /// The name of its group.
    pub group: String,
    /// Index within the group, from 0.
    pub index: u32,
    /// Host ports of the group by label.
    pub ports: Ports,
    /// Host ports of single tasks, by task. They are separate from the group's, and tasks may use the same labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub task_ports: BTreeMap<String, Ports>,
    /// Cores that single tasks alone use, by task.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub task_cores: BTreeMap<String, AssignedCores>,
    /// The status that its source wants.
    pub desired: Desired,
    /// The reason in a sentence; empty while it runs.
    #[serde(default)]
    pub desired_description: String,
    /// The commit that created it.
    pub create_index: u64,
    /// The creation time.
    pub create_time: UnixNanos,
    /// The allocation it replaces.
    pub previous: Option<AllocId>,
    /// The deployment that it was created for, or that took it over.
    #[serde(default)]
    pub deployment: Option<AllocDeployment>,
    /// The allocation that replaces it.
    #[serde(default)]
    pub next: Option<AllocId>,
    /// The failed allocations before it in its slot, oldest first.
    #[serde(default)]
    pub rescheduled: Vec<RescheduleEvent>,
    /// The server's data about it, if a server has placed it here (node mode).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<Arc<ServerSide>>,
}

/// The data that a server has about an allocation placed on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSide {
    /// Increases with each change by a server (`AllocModifyIndex`). Not comparable with commits of this machine.
    pub modify_index: u64,
    /// The server's index at which it was created.
    pub create_index: u64,
    /// The job of this allocation, stored with it: the version is no key, because a job that is purged and registered
    /// again restarts at 0.
    pub job: Arc<Job>,
    /// Skip every `shutdown_delay` when its tasks end.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub no_shutdown_delay: bool,
    /// Why it can't run here: its job can't be read, or requires an unsupported feature. Its tasks fail at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// How its health is judged outside of deployments; `None` if it isn't.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrate: Option<Migrate>,
    /// Stop it after no server has been reachable for this long (`disconnect.stop_on_client_after`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_on_client_after: Option<Duration>,
    /// Stop it as complete this long after its creation (`max_run_duration`, 2.0 and later).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_run_duration: Option<Duration>,
    /// The data it takes over from its predecessor's disk.
    #[serde(default, skip_serializing_if = "DiskMigration::is_none")]
    pub heritage: DiskMigration,
    /// Allocations stopped to make room for it. It starts after they and its predecessor have ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preempted: Vec<AllocId>,
    /// The place of [`Allocation::task_ports`] in records of earlier builds: read, and never written.
    #[serde(default, skip_serializing)]
    pub task_ports: BTreeMap<String, Ports>,
    /// The place of `Task::actions` in records of earlier builds: read, and never written.
    #[serde(default, skip_serializing)]
    pub actions: BTreeMap<String, Vec<TaskAction>>,
}

/// The data that an allocation takes over from its predecessor's disk (`ephemeral_disk`): the shared `alloc/data`, and
/// `local` of each of its tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskMigration {
    /// Nothing: it starts with an empty disk.
    #[default]
    None,
    /// Everything, if the predecessor was on the same node (`sticky`).
    SameNode,
    /// Everything, from any node (`migrate`).
    AnyNode,
}

impl DiskMigration {
    /// Whether nothing is taken over.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// The replacement of a failed allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RescheduleEvent {
    /// The time of the replacement.
    pub time: UnixNanos,
    /// The failed allocation.
    pub previous: AllocId,
    /// The delay before the replacement.
    pub delay: Duration,
}

/// The deployment of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocDeployment {
    /// The deployment.
    pub id: DeploymentId,
    /// Whether it is a canary beside the old allocation of its slot, and not promoted.
    pub canary: bool,
}

impl Allocation {
    /// `job.group[index]`, Nomad's allocation name.
    pub fn name(&self) -> String {
        std_alloc::format!("{}.{}[{}]", self.job_key.id, self.group, self.index)
    }

    /// The name for people: it distinguishes a canary from the allocation beside it, which has the same name.
    pub fn title(&self) -> String {
        std_alloc::format!("{}{}", self.name(), self.mark())
    }

    /// The name of one of its tasks for people: `job.group[index]/task`.
    pub fn task_title(&self, task: &str) -> String {
        std_alloc::format!("{}/{task}{}", self.name(), self.mark())
    }

    fn mark(&self) -> &'static str {
        if self.deployment.is_some_and(|of| of.canary) { " (canary)" } else { "" }
    }

    /// Its group. `None` only for a damaged record.
    pub fn group(&self) -> Option<&Group> {
        self.job.group(&self.group)
    }

    /// The allocations that must end first: the predecessor whose disk it takes over and, if a server has placed it, any
    /// predecessor and those stopped to make room.
    pub fn awaited(&self) -> impl Iterator<Item = AllocId> {
        let preempted = self.server.iter().flat_map(|server| server.preempted.iter().copied());
        let previous = if self.server.is_some() { self.previous } else { self.predecessor() };
        previous.into_iter().chain(preempted)
    }

    /// The predecessor whose disk it takes over, if that is on the same node. A canary runs beside its predecessor, so
    /// it begins with an empty disk.
    pub fn predecessor(&self) -> Option<AllocId> {
        let keeps = match &self.server {
            Some(server) => !server.heritage.is_none(),
            None => {
                let is_canary = self.deployment.is_some_and(|deployment| deployment.canary);
                !is_canary && self.group().is_some_and(|group| !group.kept_disk.is_none())
            }
        };
        self.previous.filter(|_| keeps)
    }

    /// All its ports on the machine.
    pub fn host_ports(&self) -> impl Iterator<Item = &AssignedPort> {
        core::iter::once(&self.ports).chain(self.task_ports.values()).flat_map(BTreeMap::values)
    }

    /// The machine's ports that its services publish.
    pub fn published_ports(&self) -> impl Iterator<Item = u16> {
        self.group().into_iter().flat_map(Group::published_ports).map(|publish| publish.port)
    }

    /// All its ports on the machine with their names for people: `label`, or `task/label` for a port of a single task.
    pub fn named_ports(&self) -> impl Iterator<Item = (String, &AssignedPort)> {
        let of_group = self.ports.iter().map(|(label, port)| (label.clone(), port));
        let of_tasks = self.task_ports.iter().flat_map(|(task, ports)| {
            ports.iter().map(move |(label, port)| (std_alloc::format!("{task}/{label}"), port))
        });
        of_group.chain(of_tasks)
    }

    /// What one of its tasks is given: what it asks for, and the clock rate of its cores.
    pub fn resources_of(&self, task: &Task) -> Resources {
        let cores = self.task_cores.get(&task.name).filter(|cores| cores.cpu_mhz != 0);
        let cpu_mhz = cores.map(|cores| cores.cpu_mhz).or(task.resources.cpu_mhz);
        Resources { cpu_mhz, ..task.resources.clone() }
    }

    /// Moves data of a record of an earlier release to its present place.
    pub fn take_over_old_record(&mut self) {
        if let Some(server) = self.server.as_mut().filter(|server| !server.task_ports.is_empty()) {
            self.task_ports = core::mem::take(&mut Arc::make_mut(server).task_ports);
        }
    }

    /// A task of its group.
    pub fn task(&self, name: &str) -> Option<&Task> {
        self.group()?.task(name)
    }

    /// An action of one of its tasks.
    pub fn action(&self, task: &str, name: &str) -> Option<&TaskAction> {
        let recorded = self.server.iter().filter_map(|server| server.actions.get(task)).flatten();
        let mut actions = self.task(task).into_iter().flat_map(|task| &task.actions).chain(recorded);
        actions.find(|action| action.name == name)
    }
}

/// A placeholder until the job version is attached to an allocation that was read back.
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
        ui: None,
        meta: BTreeMap::new(),
        parameterized: None,
        periodic: None,
        child: None,
        groups: Default::default(),
    })
}

/// The status that the source of an allocation wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Desired {
    /// It should run.
    Run,
    /// It should be stopped; its directory stays.
    Stop,
    /// It should be stopped and removed completely.
    Gone,
}

/// Ports by label.
pub type Ports = BTreeMap<String, AssignedPort>;

/// A port assigned to an allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignedPort {
    /// Host address, for instance `127.0.0.1`.
    pub host_ip: String,
    /// Host port.
    pub value: u16,
    /// Port the task listens on, 0 for the same as `value`.
    pub to: u16,
}

/// The status that this node reports of an allocation, in Nomad's terms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientStatus {
    /// No task runs yet, or one waits for a restart.
    #[default]
    Pending,
    /// At least one task runs.
    Running,
    /// All tasks ended successfully.
    Complete,
    /// A task failed permanently.
    Failed,
}

impl ClientStatus {
    /// Whether the status is final.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Pending | Self::Running => false,
            Self::Complete | Self::Failed => true,
        }
    }

    /// Nomad's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Complete => "complete",
            Self::Failed => "failed",
        }
    }
}
