//! The canonical job: all defaults resolved, all names checked. The only form of a job that the planner uses.
//!
//! Manifests (YAML) and Nomad's JSON are converted to it by total functions beside those types. Names follow Nomad's
//! job specification; plurals are lists. Units: durations in nanoseconds ([`Duration`]), cpu in MHz, memory and disk in
//! MiB.

use std_alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};

use serde::{Deserialize, Serialize};

use crate::{
    Duration, JobKey,
    constraint::{Affinity, Constraint, Spread},
};

mod artifact;
mod children;
mod consul;
mod csi;
mod limits;
mod network;
mod policy;
mod secret;
mod service;
mod template;
mod vault;
mod volume;

pub use artifact::{Artifact, ArtifactMode};
pub use children::{Child, Origin, Parameterized, PayloadRule, Periodic};
pub use consul::ConsulAccess;
pub use csi::{CsiPlugin, CsiPluginType};
pub use limits::{LogMode, Logs, Resources};
pub use network::{Dns, Network, NetworkMode, PortRequest};
pub use policy::{
    DelayFunction, HealthCheck, Migrate, ReschedulePolicy, RestartMode, RestartPolicy, Scaling, Update,
};
pub use secret::Secret;
pub use service::{
    AddressMode, Check, CheckKind, CheckRestart, InitialStatus, OnUpdate, Provider, Publish, Service,
    Thresholds, Weights,
};
pub use template::{ChangeScript, Template, TemplateChange, TemplateSource, TemplateWait};
pub use vault::VaultAccess;
pub use volume::{MountPropagation, VolumeMount, VolumeRequest};

/// The default of `node_pool`.
pub const NODE_POOL: &str = "default";

/// A job with all defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Nomad namespace; default `default`.
    pub namespace: String,
    /// Job id; in a manifest `metadata.name`.
    pub id: String,
    /// Display name; equals the id unless a Nomad job sets it.
    pub name: String,
    /// `metadata.labels` of the manifest.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// How the job's tasks end and how many copies it has.
    pub kind: JobType,
    /// Whether the job is stopped: it runs nothing and creates no children, but is kept with its history.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub stop: bool,
    /// 1 to 100; default 50.
    pub priority: u8,
    /// Region name; default `global`.
    pub region: String,
    /// Datacenters the job may run in; default `["*"]`.
    pub datacenters: Vec<String>,
    /// Node pool the job may run in; default `default`.
    #[serde(default = "default_pool", skip_serializing_if = "is_default_pool")]
    pub node_pool: String,
    /// Node requirements of all groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub constraints: Vec<Constraint>,
    /// Node preferences of all groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub affinities: Vec<Affinity>,
    /// Distribution of all groups' allocations over nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spreads: Vec<Spread>,
    /// Description and links for user interfaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ui: Option<Ui>,
    /// Job meta, the lowest layer of `NOMAD_META_*`.
    #[serde(default)]
    pub meta: BTreeMap<String, String>,
    /// Parameterized job: it runs nothing itself; each dispatch creates a child. A child keeps this for the names of
    /// its meta.
    #[serde(default)]
    pub parameterized: Option<Parameterized>,
    /// Periodic job: it runs nothing itself; each scheduled time creates a child.
    #[serde(default)]
    pub periodic: Option<Periodic>,
    /// Set if another job created it.
    #[serde(default)]
    pub child: Option<Child>,
    /// Groups in file order; names are unique.
    pub groups: Vec<Group>,
}

/// Maximum number of allocations of a job, over all groups.
pub const ALLOCATIONS_MAX: u64 = 10_000;
/// Maximum number of tasks in all allocations of a job.
pub const RUNNING_TASKS_MAX: u64 = 100_000;

/// The label of a job for one command: the job that it was made of.
pub const RUN_OF: &str = "herdlet/run-of";

impl Job {
    /// Why the groups' counts are too high; `None` if they are not.
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

    /// Whether it runs one command, for as long as its client is connected.
    pub fn is_one_off(&self) -> bool {
        self.labels.contains_key(RUN_OF)
    }

    /// The other job that its workload identities name, whose variables its tasks may read: its parent, or the job that it
    /// runs one command of.
    pub fn identity_owner(&self) -> Option<&str> {
        self.parent_id().or_else(|| self.labels.get(RUN_OF).map(String::as_str))
    }

    /// The job's key.
    pub fn key(&self) -> JobKey {
        JobKey { namespace: self.namespace.as_str().into(), id: self.id.as_str().into() }
    }

    /// The group with this name.
    pub fn group(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|group| group.name == name)
    }

    /// The wanted number of allocations of a group: 0 if the job is stopped or runs nothing itself.
    pub fn desired_count(&self, group: &Group) -> u32 {
        if self.stop || self.makes_children() { 0 } else { group.count }
    }

    /// Whether any of its services is registered in this catalogue.
    pub fn has_services_in(&self, provider: Provider) -> bool {
        self.groups.iter().flat_map(Group::all_services).any(|(_, service)| service.provider == provider)
    }

    /// The names of the Consuls that have its services.
    pub fn consul_clusters(&self) -> BTreeSet<&str> {
        let services = self.groups.iter().flat_map(Group::all_services);
        services.filter_map(|(_, service)| service.consul_cluster()).collect()
    }

    /// Whether each dispatch creates a child.
    pub fn takes_dispatches(&self) -> bool {
        self.parameterized.is_some() && self.dispatched().is_none()
    }

    /// Whether it runs nothing itself, only its children do.
    pub fn makes_children(&self) -> bool {
        self.takes_dispatches() || self.periodic.is_some()
    }

    /// Whether it can finish. Jobs that run forever or create children finish only when they are stopped.
    pub fn ends(&self) -> bool {
        self.stop || self.kind.completes() && !self.makes_children()
    }

    /// Its launch schedule; `None` for a parameterized job, whose dispatched children are launched.
    pub fn launches(&self) -> Option<&Periodic> {
        self.periodic.as_ref().filter(|_| !self.takes_dispatches())
    }

    /// Id of the job that created it.
    pub fn parent_id(&self) -> Option<&str> {
        self.child.as_ref().map(|child| child.parent.as_str())
    }

    /// Payload and idempotency token, if it was dispatched.
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

/// `ui`: a description and links for user interfaces, without effect.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ui {
    /// Markdown.
    pub description: String,
    /// Links in file order.
    pub links: Vec<UiLink>,
}

/// A link of [`Ui`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UiLink {
    /// Its text.
    pub label: String,
    /// Its address.
    pub url: String,
}

/// How a job's tasks end, and how many copies it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum JobType {
    /// Runs until stopped; exited tasks are restarted, even after code 0.
    Service,
    /// Runs until its tasks end with code 0.
    Batch,
    /// Like a service, once on each machine.
    System,
    /// Like a batch job, once on each machine.
    Sysbatch,
}

impl JobType {
    /// Nomad's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Batch => "batch",
            Self::System => "system",
            Self::Sysbatch => "sysbatch",
        }
    }

    /// Whether its allocations are done when their tasks end with code 0.
    pub const fn completes(self) -> bool {
        match self {
            Self::Batch | Self::Sysbatch => true,
            Self::Service | Self::System => false,
        }
    }

    /// Whether each group has one allocation on each machine.
    pub const fn is_on_each_machine(self) -> bool {
        match self {
            Self::System | Self::Sysbatch => true,
            Self::Service | Self::Batch => false,
        }
    }
}

/// A group: tasks that start, run and stop together on one machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Unique in the job.
    pub name: String,
    /// The wanted number of allocations.
    pub count: u32,
    /// The range for scaling; `None` without a `scaling` block (any count is allowed then).
    #[serde(default)]
    pub scaling: Option<Scaling>,
    /// Rules for replacing a failed allocation.
    #[serde(default)]
    pub reschedule: ReschedulePolicy,
    /// Roll-out rules; `None` without an `update` block (all allocations change at once then, without waiting for
    /// health).
    pub update: Option<Update>,
    /// Ports; `None` without a `network` block.
    pub network: Option<Network>,
    /// Volumes by the name under which tasks mount them.
    #[serde(default)]
    pub volumes: BTreeMap<String, VolumeRequest>,
    /// Group services.
    #[serde(default)]
    pub services: Vec<Service>,
    /// Tasks in file order; names are unique.
    pub tasks: Vec<Task>,
    /// Delay between deregistering the services and stopping the tasks.
    #[serde(default)]
    pub shutdown_delay: Duration,
    /// Stop an allocation this long after its creation, as complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_run_duration: Option<Duration>,
    /// Group meta, above the job's.
    #[serde(default)]
    pub meta: BTreeMap<String, String>,
    /// `ephemeral_disk.size` in MiB; used for placement, not enforced.
    pub disk_mib: u64,
    /// Whether an allocation takes over the data of the one that it replaces (`ephemeral_disk`).
    #[serde(default, skip_serializing_if = "KeptDisk::is_none")]
    pub kept_disk: KeptDisk,
    /// Node requirements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub constraints: Vec<Constraint>,
    /// Node preferences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub affinities: Vec<Affinity>,
    /// Distribution of allocations over nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spreads: Vec<Spread>,
    /// Groups and jobs to wait for before its first allocations are created.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<GroupDependency>,
}

impl Group {
    /// The task with this name.
    pub fn task(&self, name: &str) -> Option<&Task> {
        self.tasks.iter().find(|task| task.name == name)
    }

    /// Whether the tasks of an allocation share a network of their own, instead of the machine's.
    pub fn has_own_network(&self) -> bool {
        self.network.as_ref().is_some_and(|network| !network.mode.is_host())
    }

    /// Whether its tasks resolve names in another way than the machine.
    pub fn has_own_dns(&self) -> bool {
        self.network.as_ref().is_some_and(|network| !network.dns.is_empty())
    }

    /// All ports that each allocation requests, by label: those of the group, then those of single tasks, each with its
    /// task.
    pub fn port_requests(&self) -> impl Iterator<Item = (Option<&Task>, &String, &PortRequest)> {
        let own = self.network.iter().flat_map(|network| &network.ports);
        let of_tasks =
            self.tasks.iter().flat_map(|task| task.ports.iter().map(move |port| (Some(task), port)));
        own.map(|port| (None, port)).chain(of_tasks).map(|(task, (label, request))| (task, label, request))
    }

    /// The static host ports of each allocation.
    pub fn fixed_ports(&self) -> impl Iterator<Item = u16> {
        self.port_requests().filter_map(|(_, _, request)| request.fixed)
    }

    /// Whether it needs ports of certain numbers.
    pub fn needs_fixed_ports(&self) -> bool {
        self.fixed_ports().next().is_some() || self.published_ports().next().is_some()
    }

    /// The machine's ports that lead to its healthy instances.
    pub fn published_ports(&self) -> impl Iterator<Item = &Publish> {
        self.all_services().filter_map(|(_, service)| service.publish.as_ref())
    }

    /// The block `consul` of the group that names the namespace or partition of its services, if one does.
    pub fn consul_scope(&self) -> Option<&ConsulAccess> {
        let mut blocks = self.services.iter().filter_map(|service| service.consul.as_ref());
        blocks.find(|access| access.namespace.is_some() || access.partition.is_some())
    }

    /// Services of the group and of all tasks, each with its task.
    pub fn all_services(&self) -> impl Iterator<Item = (Option<&Task>, &Service)> {
        let of_tasks =
            self.tasks.iter().flat_map(|task| task.services.iter().map(move |service| (Some(task), service)));
        self.services.iter().map(|service| (None, service)).chain(of_tasks)
    }
}

/// `sticky` and `migrate` of `ephemeral_disk`. On one machine both keep the data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptDisk {
    /// On the same machine.
    pub sticky: bool,
    /// From any machine.
    pub migrate: bool,
}

impl KeptDisk {
    /// Whether each allocation begins with an empty disk.
    pub fn is_none(&self) -> bool {
        !self.sticky && !self.migrate
    }
}

/// A task: one program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Unique in the group.
    pub name: String,
    /// Task driver, for instance `raw_exec`.
    pub driver: String,
    /// User to run as; the agent's if absent.
    pub user: Option<String>,
    /// The driver's configuration, checked against its schema; strings may contain `${…}`.
    pub config: serde_json::Value,
    /// Environment; values may contain `${…}`.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Task meta, above the group's and the job's.
    #[serde(default)]
    pub meta: BTreeMap<String, String>,
    /// Whether the other tasks are stopped when this one ends.
    #[serde(default)]
    pub leader: bool,
    /// When the task runs relative to the main tasks.
    #[serde(default)]
    pub lifecycle: Lifecycle,
    /// Tasks of the same group to wait for before the start; they are stopped after this one.
    #[serde(default)]
    pub depends_on: Vec<Dependency>,
    /// A command to run inside the task before its kill signal.
    pub prestop: Option<Prestop>,
    /// Commands that users may run in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<TaskAction>,
    /// Restart policy, resolved from task, group and job type.
    pub restart: RestartPolicy,
    /// Task services, registered while the process runs.
    #[serde(default)]
    pub services: Vec<Service>,
    /// Mounts of the group's volumes.
    #[serde(default)]
    pub volume_mounts: Vec<VolumeMount>,
    /// Artifacts to fetch before it starts, possibly concurrently.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
    /// Files to render before it starts, and whenever their data changes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub templates: Vec<Template>,
    /// Values to fetch before it starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<Secret>,
    /// Its token of Vault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vault: Option<VaultAccess>,
    /// Its Consul.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consul: Option<ConsulAccess>,
    /// The plugin that the task is, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csi_plugin: Option<CsiPlugin>,
    /// The file below `local` that receives the payload of a dispatch.
    #[serde(default)]
    pub dispatch_payload: Option<String>,
    /// Identities in addition to the default one.
    #[serde(default)]
    pub identities: Vec<Identity>,
    /// Resource limits, also used for placement.
    #[serde(default)]
    pub resources: Resources,
    /// Ports of this task alone, by label (`resources.network`, from before groups had networks).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ports: BTreeMap<String, PortRequest>,
    /// Log collection.
    pub logs: Logs,
    /// Signal that asks the task to end; the driver's default (SIGINT) if absent.
    pub kill_signal: Option<String>,
    /// Time between that signal and SIGKILL; the agent limits it by `max_kill_timeout`.
    pub kill_timeout: Duration,
    /// Delay between deregistering the task's services and the kill signal.
    #[serde(default)]
    pub shutdown_delay: Duration,
    /// Node requirements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub constraints: Vec<Constraint>,
    /// Node preferences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub affinities: Vec<Affinity>,
}

/// When a task runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lifecycle {
    /// Before the main tasks, to completion.
    Prestart,
    /// From before the main tasks, then beside them.
    PrestartSidecar,
    /// A main task.
    #[default]
    Main,
    /// After the main tasks have started, to completion.
    Poststart,
    /// After the main tasks have started, then beside them.
    PoststartSidecar,
    /// After all other tasks have ended.
    Poststop,
}

impl Lifecycle {
    /// Whether it runs beside the main tasks and is stopped after them.
    pub fn is_sidecar(self) -> bool {
        matches!(self, Self::PrestartSidecar | Self::PoststartSidecar)
    }
}

/// One entry of `depends_on`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependency {
    /// A task of the same group.
    pub task: String,
    /// The condition to wait for.
    pub condition: DependencyCondition,
}

/// One entry of a group's `depends_on`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupDependency {
    /// Another job of the namespace; the group's own if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// A group of that job; all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The condition to wait for.
    pub condition: DependencyCondition,
}

/// A condition of `depends_on`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum DependencyCondition {
    /// Its process has started.
    Started,
    /// It is running and the checks of its services pass.
    Healthy,
    /// It has ended with code 0.
    Completed,
}

/// `actions[]`: a named command that users may run in the task.
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

impl TaskAction {
    /// The program and its arguments.
    pub fn to_command(&self) -> Vec<String> {
        core::iter::once(&self.command).chain(&self.args).cloned().collect()
    }
}

/// `prestop`: a command to run inside the task before its kill signal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prestop {
    /// Program.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// After this time the task is stopped anyway.
    pub timeout: Duration,
}

/// `identities[]` of a task: a signed token that identifies the task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// `default`, or a name of `[A-Za-z0-9-_]{1,128}`.
    pub name: String,
    /// Audiences. The default identity has none here; its token has `nomadproject.io`.
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
    /// What to do with the task after a renewal.
    pub change_mode: ChangeMode,
    /// Signal for [`ChangeMode::Signal`].
    pub change_signal: Option<String>,
    /// Names of claims that the operator offers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra_claims: Vec<String>,
}

/// The effect of a changed file on a running task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ChangeMode {
    /// No effect.
    Noop,
    /// Sends a signal.
    Signal,
    /// Restarts the task; this does not count as an attempt.
    Restart,
}
