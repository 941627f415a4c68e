//! The canonical job: every default resolved, every name checked. The only shape of a job that the planner sees.
//!
//! Goes in: a manifest (YAML) or Nomad's JSON, through total conversions that live beside those shapes.
//! Names follow Nomad's job specification; plurals are lists. Units: durations in nanoseconds ([`Duration`]), cpu in MHz,
//! memory and disk in MiB.

use std_alloc::{collections::BTreeMap, format, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{
    Duration, JobKey,
    constraint::{Affinity, Constraint, Spread},
};

mod artifact;
mod children;
mod policy;
mod service;

pub use artifact::{Artifact, ArtifactMode};
pub use children::{Child, Origin, Parameterized, PayloadRule, Periodic};
pub use policy::{
    DelayFunction, HealthCheck, Migrate, ReschedulePolicy, RestartMode, RestartPolicy, Scaling, Update,
};
pub use service::{
    AddressMode, Check, CheckKind, CheckRestart, InitialStatus, OnUpdate, Provider, Service, Thresholds,
    Weights,
};

/// `node_pool` where none is written.
pub const NODE_POOL: &str = "default";

/// A job: what its author wants to run, with all defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Nomad namespace, `default` unless written.
    pub namespace: String,
    /// Job id; for a manifest `metadata.name`.
    pub id: String,
    /// Display name; equals the id unless a Nomad job says otherwise.
    pub name: String,
    /// `metadata.labels` of the manifest.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// What ending means for this job.
    pub kind: JobType,
    /// Nothing of it is to run, and it makes no children: it is kept with what it has had.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub stop: bool,
    /// 1 to 100, 50 unless written.
    pub priority: u8,
    /// Region name, `global` unless written.
    pub region: String,
    /// Datacenters this job may run in; `["*"]` unless written.
    pub datacenters: Vec<String>,
    /// Node pool this job may run in, `default` unless written.
    #[serde(default = "default_pool", skip_serializing_if = "is_default_pool")]
    pub node_pool: String,
    /// What must hold on the node for all groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub constraints: Vec<Constraint>,
    /// What is preferred of the node for all groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub affinities: Vec<Affinity>,
    /// How the allocations of all groups are shared out among nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spreads: Vec<Spread>,
    /// Job meta, the lowest layer of `NOMAD_META_*`.
    #[serde(default)]
    pub meta: BTreeMap<String, String>,
    /// It runs nothing by itself; each dispatch makes a child of it. A child keeps it, for the names of its meta.
    #[serde(default)]
    pub parameterized: Option<Parameterized>,
    /// It runs nothing by itself; at moments that it names a child of it is made.
    #[serde(default)]
    pub periodic: Option<Periodic>,
    /// It was made of another job.
    #[serde(default)]
    pub child: Option<Child>,
    /// Groups in file order; names are unique.
    pub groups: Vec<Group>,
}

/// Allocations of a job: all of its counts together.
pub const ALLOCATIONS_MAX: u64 = 10_000;
/// Tasks of all allocations of a job.
pub const RUNNING_TASKS_MAX: u64 = 100_000;

impl Job {
    /// Why there may not be as many allocations as the counts of its groups make; none where there may.
    pub fn too_many(&self) -> Option<String> {
        let allocations: u64 = self.groups.iter().map(|group| u64::from(group.count)).sum();
        let tasks: u64 =
            self.groups.iter().map(|group| u64::from(group.count) * group.tasks.len() as u64).sum();
        if allocations > ALLOCATIONS_MAX {
            Some(format!("a job has at most {ALLOCATIONS_MAX} allocations, these counts make {allocations}"))
        } else if tasks > RUNNING_TASKS_MAX {
            Some(format!(
                "the allocations of a job have at most {RUNNING_TASKS_MAX} tasks, these make {tasks}"
            ))
        } else {
            None
        }
    }

    /// The key that identifies this job.
    pub fn key(&self) -> JobKey {
        JobKey { namespace: self.namespace.as_str().into(), id: self.id.as_str().into() }
    }

    /// The group of that name.
    pub fn group(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|group| group.name == name)
    }

    /// How many allocations of one of its groups are wanted: none of what is stopped, or runs nothing by itself.
    pub fn wanted(&self, group: &Group) -> u32 {
        if self.stop || self.makes_children() { 0 } else { group.count }
    }

    /// Whether any of its services is registered there.
    pub fn has_services_in(&self, provider: Provider) -> bool {
        self.groups.iter().flat_map(Group::all_services).any(|(_, service)| service.provider == provider)
    }

    /// Each dispatch makes a child of it.
    pub fn takes_dispatches(&self) -> bool {
        self.parameterized.is_some() && self.dispatched().is_none()
    }

    /// It runs nothing by itself: its children do.
    pub fn makes_children(&self) -> bool {
        self.takes_dispatches() || self.periodic.is_some()
    }

    /// It can have done all that it ever will: what is to run for ever, or makes children, only once it is stopped.
    pub fn ends(&self) -> bool {
        self.stop || self.kind.completes() && !self.makes_children()
    }

    /// What launches it; nothing of a parameterized job, whose dispatched children are launched.
    pub fn launches(&self) -> Option<&Periodic> {
        self.periodic.as_ref().filter(|_| !self.takes_dispatches())
    }

    /// Id of the job that it was made of.
    pub fn parent_id(&self) -> Option<&str> {
        self.child.as_ref().map(|child| child.parent.as_str())
    }

    /// Payload and idempotency token, where somebody has dispatched it.
    pub fn dispatched(&self) -> Option<(&str, &str)> {
        match &self.child.as_ref()?.origin {
            Origin::Dispatch { payload, idempotency_token } => Some((payload, idempotency_token)),
            Origin::Launch => None,
        }
    }
}

fn default_pool() -> String {
    String::from(NODE_POOL)
}

fn is_default_pool(pool: &str) -> bool {
    pool == NODE_POOL
}

/// What ending means for a job, and whether its copies are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum JobType {
    /// Runs until stopped; an exit of a task, even with code 0, is followed by a restart.
    Service,
    /// Runs until its tasks end with code 0.
    Batch,
    /// Like a service, once on each machine.
    System,
    /// Like a batch job, once on each machine.
    Sysbatch,
}

impl JobType {
    /// Nomad's word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Batch => "batch",
            Self::System => "system",
            Self::Sysbatch => "sysbatch",
        }
    }

    /// Its allocations are over once their tasks have ended with code 0.
    pub const fn completes(self) -> bool {
        match self {
            Self::Batch | Self::Sysbatch => true,
            Self::Service | Self::System => false,
        }
    }

    /// Each group has one allocation on each machine.
    pub const fn is_on_each_machine(self) -> bool {
        match self {
            Self::System | Self::Sysbatch => true,
            Self::Service | Self::Batch => false,
        }
    }
}

/// A group: tasks that live and die together on one machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Unique in the job.
    pub name: String,
    /// How many allocations of this group should exist.
    pub count: u32,
    /// Between which counts it may be scaled; absent where the manifest has no `scaling` (then any count may be asked for).
    #[serde(default)]
    pub scaling: Option<Scaling>,
    /// When another allocation follows one that has failed.
    #[serde(default)]
    pub reschedule: ReschedulePolicy,
    /// Roll-out rules; absent where the manifest has no `update` (then all change at once and health is not awaited).
    pub update: Option<Update>,
    /// Ports; absent where the group has no `network`.
    pub network: Option<Network>,
    /// Volumes by the name that tasks mount them by.
    #[serde(default)]
    pub volumes: BTreeMap<String, VolumeRequest>,
    /// Group services.
    #[serde(default)]
    pub services: Vec<Service>,
    /// Tasks in file order; names are unique.
    pub tasks: Vec<Task>,
    /// How long to wait between deregistering the services and stopping the tasks.
    #[serde(default)]
    pub shutdown_delay: Duration,
    /// Group meta, above the job's.
    #[serde(default)]
    pub meta: BTreeMap<String, String>,
    /// `ephemeral_disk.size` in MiB; a scheduling number, not enforced.
    pub disk_mib: u64,
    /// What must hold on the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub constraints: Vec<Constraint>,
    /// What is preferred of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub affinities: Vec<Affinity>,
    /// How allocations are shared out among nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spreads: Vec<Spread>,
}

impl Group {
    /// The task of that name.
    pub fn task(&self, name: &str) -> Option<&Task> {
        self.tasks.iter().find(|task| task.name == name)
    }

    /// The host ports that each of its allocations takes.
    pub fn fixed_ports(&self) -> impl Iterator<Item = u16> {
        let requests = self.network.iter().flat_map(|network| network.ports.values());
        requests.filter_map(|request| request.fixed)
    }

    /// Group services and the services of all tasks, each with the task it belongs to.
    pub fn all_services(&self) -> impl Iterator<Item = (Option<&Task>, &Service)> {
        let of_tasks =
            self.tasks.iter().flat_map(|task| task.services.iter().map(move |service| (Some(task), service)));
        self.services.iter().map(|service| (None, service)).chain(of_tasks)
    }
}

/// `network` of a group, in mode `host`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Ports by label.
    pub ports: BTreeMap<String, PortRequest>,
}

/// One port of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRequest {
    /// The host port to take; a dynamic one (20000–32000) where absent.
    pub fixed: Option<u16>,
    /// The port the task listens on where it differs from the host's (`NOMAD_PORT_<label>`).
    pub to: Option<u16>,
}

/// `volumes.<name>` of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRequest {
    /// Name of a host volume; with `per_alloc` the allocation's index is appended as `[n]`.
    pub source: String,
    /// No task of the group may write.
    pub read_only: bool,
    /// One volume per allocation index.
    pub per_alloc: bool,
}

/// A task: one program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Unique in the group.
    pub name: String,
    /// Task driver, for instance `raw_exec`.
    pub driver: String,
    /// User to run as; the agent's own where absent.
    pub user: Option<String>,
    /// The driver's own configuration, checked against its schema; strings in it may hold `${…}`.
    pub config: serde_json::Value,
    /// Environment; values may hold `${…}`.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Task meta, above the group's and the job's.
    #[serde(default)]
    pub meta: BTreeMap<String, String>,
    /// When this task ends, the others are stopped.
    #[serde(default)]
    pub leader: bool,
    /// When the task runs relative to the main tasks.
    #[serde(default)]
    pub lifecycle: Lifecycle,
    /// Tasks of the same group that this one waits for before it starts; it is stopped before them.
    #[serde(default)]
    pub depends_on: Vec<Dependency>,
    /// Runs inside the task before its kill signal.
    pub prestop: Option<Prestop>,
    /// Restart policy, resolved from task, group and job type.
    pub restart: RestartPolicy,
    /// Task services, registered while the process runs.
    #[serde(default)]
    pub services: Vec<Service>,
    /// Where the group's volumes appear.
    #[serde(default)]
    pub volume_mounts: Vec<VolumeMount>,
    /// What is fetched before it starts, in this order or at the same time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
    /// The file below its `local` that gets the payload of a dispatch.
    #[serde(default)]
    pub dispatch_payload: Option<String>,
    /// Identities beyond the default one.
    #[serde(default)]
    pub identities: Vec<Identity>,
    /// Limits and admission.
    #[serde(default)]
    pub resources: Resources,
    /// Log collection.
    pub logs: Logs,
    /// Signal that asks the task to end; the driver's default (SIGINT) where absent.
    pub kill_signal: Option<String>,
    /// Time between that signal and SIGKILL; the agent caps it by `max_kill_timeout`.
    pub kill_timeout: Duration,
    /// Wait between deregistering the task's services and the kill signal.
    #[serde(default)]
    pub shutdown_delay: Duration,
    /// What must hold on the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub constraints: Vec<Constraint>,
    /// What is preferred of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub affinities: Vec<Affinity>,
}

/// When a task runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lifecycle {
    /// Before the main tasks, to its end.
    Prestart,
    /// Before the main tasks and beside them.
    PrestartSidecar,
    /// The work itself.
    #[default]
    Main,
    /// Once the main tasks run, to its end.
    Poststart,
    /// Once the main tasks run and beside them.
    PoststartSidecar,
    /// After all others ended.
    Poststop,
}

impl Lifecycle {
    /// Runs beside the main tasks and is stopped after them.
    pub fn is_sidecar(self) -> bool {
        matches!(self, Self::PrestartSidecar | Self::PoststartSidecar)
    }
}

/// One entry of `depends_on`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependency {
    /// A task of the same group.
    pub task: String,
    /// What that task must have reached.
    pub condition: DependencyCondition,
}

/// What `depends_on` waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum DependencyCondition {
    /// Its process was started.
    Started,
    /// It runs and the checks of its services pass.
    Healthy,
    /// It ended with code 0.
    Completed,
}

/// `prestop`: a command run inside the task before its kill signal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prestop {
    /// Program.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// After this the stop goes on without it.
    pub timeout: Duration,
}

/// `volume_mounts[]` of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    /// Name of a volume of the group.
    pub volume: String,
    /// Where it appears; relative to the task directory for drivers without filesystem isolation.
    pub destination: String,
    /// This task may not write.
    pub read_only: bool,
}

/// `identities[]` of a task: a signed token that says who the task is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// `default`, or a name of `[A-Za-z0-9-_]{1,128}`.
    pub name: String,
    /// Audiences; empty only for the default identity, which has `nomadproject.io`.
    pub aud: Vec<String>,
    /// Lifetime; without it the token does not expire.
    pub ttl: Option<Duration>,
    /// Export as `NOMAD_TOKEN` (default) or `NOMAD_TOKEN_<name>`.
    pub env: bool,
    /// Write to `secrets/nomad_token` (default) or `secrets/nomad_<name>.jwt`.
    pub file: bool,
    /// Write to this file instead, relative to the task's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filepath: Option<String>,
    /// What happens to the task when the token was renewed.
    pub change_mode: ChangeMode,
    /// Signal for [`ChangeMode::Signal`].
    pub change_signal: Option<String>,
}

/// What a changed file does to a running task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ChangeMode {
    /// Nothing.
    Noop,
    /// A signal.
    Signal,
    /// A restart that does not count as an attempt.
    Restart,
}

/// `resources` of a task. What is not written is neither limited nor admitted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// CPU share in MHz.
    pub cpu_mhz: Option<u64>,
    /// Memory in MiB.
    pub memory_mib: Option<u64>,
    /// Memory the task may use beyond `memory_mib` when the machine has it, in MiB; [`Resources::ALL_MEMORY`] is without a bound.
    pub memory_max_mib: Option<u64>,
}

impl Resources {
    /// As much memory as there is. Only servers say so.
    pub const ALL_MEMORY: u64 = u64::MAX;

    /// `memory_max_mib` in Nomad's numbers: 0 where it isn't written, -1 without a bound.
    pub fn memory_max_mb(&self) -> i64 {
        match self.memory_max_mib {
            None => 0,
            Some(Self::ALL_MEMORY) => -1,
            Some(most) => i64::try_from(most).unwrap_or(i64::MAX),
        }
    }
}

/// `logs` of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Logs {
    /// Files kept per stream.
    pub max_files: u32,
    /// Size of one file in MiB.
    pub max_file_size_mib: u64,
    /// No collection: output goes to `/dev/null`.
    pub disabled: bool,
    /// What happens when the disk can't keep up.
    pub mode: LogMode,
}

/// What happens when log output comes faster than the disk takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LogMode {
    /// Output is dropped and counted; the task is never held up.
    Drop,
    /// The task waits.
    Block,
}
