//! Inputs of the planner: desired state, outcomes of operations, observations, requests.

use std_alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};

use herdlet_api_types::{
    AllocId, DeploymentId, JobKey, alloc::Allocation, job::Job, scaling::ScalingNote, service::CheckResult,
    task::ExitResult, view::VersionTag, volume::Volume,
};

use crate::{
    action::Outcome,
    env::NodeFacts,
    explain::Explanation,
    job::{Source, children::Dispatch, ports::HostNetwork},
    node::DrainRequest,
    op::{Op, Part},
};
pub use crate::{refusal::Refusal, state::Noticed};

/// An event.
#[derive(Debug, Clone)]
pub enum Event {
    /// A source changed the desired state.
    Desired(DesiredChange),
    /// An operation ended.
    Outcome(Op, Outcome),
    /// A task's main process ended, or its supervisor died.
    Exited {
        /// Allocation.
        alloc: AllocId,
        /// Task name.
        task: String,
        /// Attempt number.
        attempt: u32,
        /// Its exit status.
        result: ExitResult,
    },
    /// A check's status or output changed.
    Check {
        /// Allocation.
        alloc: AllocId,
        /// Result.
        result: CheckResult,
    },
    /// A part of an allocation is not as it should be, or may not be: inspect it.
    Drift {
        /// Allocation.
        alloc: AllocId,
        /// The part.
        part: Part,
        /// How it was noticed.
        by: Noticed,
    },
    /// The data that a part is made from has changed, and may change more: [`Event::SourceChanged`] follows once it is
    /// quiet.
    SourceChanging {
        /// Allocation.
        alloc: AllocId,
        /// The part.
        part: Part,
    },
    /// The data that a part is made from may have changed: bring it up again.
    SourceChanged {
        /// Allocation.
        alloc: AllocId,
        /// The part.
        part: Part,
    },
    /// A driver's message about a task.
    Driver {
        /// Allocation.
        alloc: AllocId,
        /// Task name.
        task: String,
        /// Message.
        message: String,
    },
    /// The health of a task that is a CSI plugin.
    Plugin {
        /// Allocation.
        alloc: AllocId,
        /// Task name.
        task: String,
        /// Attempt number.
        attempt: u32,
        /// Its health.
        health: PluginHealth,
    },
    /// How far the preparation of a task's start is.
    Progress {
        /// Allocation.
        alloc: AllocId,
        /// Task name.
        task: String,
        /// What is being done; empty when it is over.
        what: String,
    },
    /// The facts of this machine have changed, or which task drivers are away.
    Node {
        /// The facts now.
        facts: Box<NodeFacts>,
        /// The drivers that tasks have to wait for, and why.
        away: BTreeMap<String, String>,
        /// The drivers that the agent's config disables: their tasks can't be started.
        disabled: BTreeSet<String>,
    },
    /// The ports of this machine on which something listens: new allocations get others.
    Listening(BTreeSet<u16>),
    /// The machine's networks on which ports can be, by name, with the addresses that it has now.
    HostNetworks(BTreeMap<String, HostNetwork>),
    /// The wall clock was set: waits for a time of day change.
    ClockSet,
    /// A request; answered after the turn's commit.
    Command {
        /// Id for the reply.
        request: u64,
        /// The request.
        command: Command,
    },
    /// A real object of this instance was found at start: an attempt's record or cgroup.
    Found {
        /// Allocation.
        alloc: AllocId,
        /// Task name.
        task: String,
        /// Attempt number.
        attempt: u32,
    },
}

/// The health of a CSI plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PluginHealth {
    /// It is ready.
    Healthy {
        /// Its id.
        plugin: String,
    },
    /// It was ready, and is not any more.
    Unhealthy {
        /// The reason.
        why: String,
    },
    /// It was not ready in time after its start, or that of the agent.
    Overdue {
        /// The reason.
        why: String,
    },
}

/// A change of desired state from a source.
#[derive(Debug, Clone)]
pub enum DesiredChange {
    /// This volume should exist.
    Volume(Box<Volume>),
    /// This volume is no longer wanted; its data stays.
    VolumeGone(String),
    /// This job should run as written.
    Job(Box<Job>),
    /// This job is no longer wanted.
    JobGone(JobKey),
    /// A server wants this allocation to be as specified (node mode).
    Alloc(Box<Allocation>),
    /// No server knows this allocation any more: it is stopped and removed.
    AllocGone(AllocId),
    /// Servers had marked this allocation as lost with its node, and have corrected that.
    AllocReconnected(AllocId),
    /// Servers were unreachable for longer than this allocation may run without them: it is stopped.
    AllocOutOfContact(AllocId),
    /// This allocation, which is or was on another node, has ended: its successor may begin.
    EndedElsewhere(AllocId),
    /// Servers have sent their desired state since this agent started.
    Contact,
    /// The source has sent everything: from now on objects that it did not name may be removed.
    Complete,
}

/// A request.
#[derive(Debug, Clone)]
pub enum Command {
    /// Make these jobs and volumes the desired state. All or nothing.
    Apply {
        /// Jobs.
        jobs: Vec<Job>,
        /// Volumes.
        volumes: Vec<Volume>,
    },
    /// Make what a folder of manifests defines the desired state. A job that was reverted stays so until its
    /// definition changes.
    ApplyFolder {
        /// Jobs with their files.
        jobs: Vec<(Job, Source)>,
        /// Volumes.
        volumes: Vec<Volume>,
    },
    /// Stop a job and keep it, as a new version without other changes.
    Stop {
        /// The job.
        job: JobKey,
    },
    /// Start a stopped job, as a new version without other changes.
    Start {
        /// The job.
        job: JobKey,
    },
    /// Stop a job and remove it.
    Delete {
        /// The job.
        job: JobKey,
    },
    /// The same, if this is still the job's version, as the caller has seen it.
    DeleteVersion {
        /// The job.
        job: JobKey,
        /// The version that the caller has seen.
        version: u64,
    },
    /// Create a child of a parameterized job.
    Dispatch {
        /// The parent.
        job: JobKey,
        /// The dispatch request.
        dispatch: Box<Dispatch>,
    },
    /// Create a child of a periodic job now.
    ForceLaunch {
        /// The parent.
        job: JobKey,
    },
    /// Make the specification of an older version the newest version.
    Revert {
        /// The job.
        job: JobKey,
        /// The older version.
        to: u64,
        /// Only if this is the current version.
        prior: Option<u64>,
    },
    /// Make this job the desired state, on conditions.
    Register {
        /// The job.
        job: Box<Job>,
        /// The counts of groups that exist.
        counts: Counts,
        /// Only if the job was last changed at this index; 0 means that there is no such job.
        enforced_index: Option<u64>,
    },
    /// Change the count of a group, as a new version of its job.
    Scale {
        /// The job.
        job: JobKey,
        /// The group.
        group: String,
        /// The count; if absent, only the note is stored.
        count: Option<u32>,
        /// The note.
        note: ScalingNote,
    },
    /// Replace the old allocations by the canaries of a deployment.
    PromoteDeployment {
        /// The deployment.
        id: DeploymentId,
        /// The groups.
        scope: PromoteScope,
    },
    /// Mark a deployment as failed.
    FailDeployment {
        /// The deployment.
        id: DeploymentId,
    },
    /// Set the health of allocations of a deployment. An unhealthy one fails it.
    SetAllocHealth {
        /// The deployment.
        id: DeploymentId,
        /// Healthy allocations.
        healthy: Vec<AllocId>,
        /// Unhealthy allocations.
        unhealthy: Vec<AllocId>,
    },
    /// Remove a volume; with `purge` also its data.
    DeleteVolume {
        /// The volume.
        name: String,
        /// Whether to keep its data.
        data: VolumeData,
    },
    /// Stop an allocation; its job creates a replacement.
    StopAlloc {
        /// The allocation.
        alloc: AllocId,
    },
    /// Skip the rest of the `shutdown_delay` of stopping allocations. Allocations that are gone are no error.
    SkipShutdownDelay {
        /// The job or allocation.
        of: Ending,
    },
    /// End the poststop tasks of stopping allocations, within their `kill_timeout`, and start no more of them.
    EndPoststop {
        /// The job or allocation.
        of: Ending,
    },
    /// A stop, and what it skips, as one change: no task begins between them.
    StopFast {
        /// Stops a job or an allocation. If it is refused, nothing is skipped.
        stop: Box<Self>,
        /// What to skip.
        skips: Vec<Self>,
    },
    /// Remove jobs that have ended, with all their allocations, and directories of ended allocations. Others are left
    /// alone.
    Collect {
        /// Jobs.
        jobs: Vec<JobKey>,
        /// Allocations.
        allocs: Vec<AllocId>,
    },
    /// Restart tasks of an allocation.
    Restart {
        /// The allocation.
        alloc: AllocId,
        /// The tasks.
        scope: RestartScope,
    },
    /// Send a signal to one task, or to all running ones.
    Signal {
        /// The allocation.
        alloc: AllocId,
        /// One task; all running ones if absent.
        task: Option<String>,
        /// Signal name such as `SIGHUP`.
        signal: String,
    },
    /// Set whether this node takes new allocations.
    SetEligibility {
        /// Whether it does.
        eligible: bool,
    },
    /// Drain this node, or end its drain.
    Drain {
        /// The drain; `None` ends it.
        drain: Option<DrainRequest>,
        /// After the end, take new allocations again.
        mark_eligible: bool,
        /// Notes of the request.
        meta: BTreeMap<String, String>,
    },
    /// Pause or resume a deployment.
    PauseDeployment {
        /// The deployment.
        id: DeploymentId,
        /// Whether it is paused.
        paused: bool,
    },
    /// Name a version of a job. It is kept while it has a name.
    TagVersion {
        /// The job.
        job: JobKey,
        /// The version; the current one if absent.
        version: Option<u64>,
        /// The name.
        tag: VersionTag,
    },
    /// Remove the name of a version.
    UntagVersion {
        /// The job.
        job: JobKey,
        /// The name.
        name: String,
    },
    /// Explain what an allocation is waiting for.
    Explain {
        /// The allocation.
        alloc: AllocId,
    },
}

/// The counts of existing groups when a job is registered again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    /// Those of the new job.
    Replace,
    /// Those of the current job.
    Keep,
}

/// Something that is being stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// All stopping allocations of a job.
    Job(JobKey),
    /// One allocation.
    Alloc(AllocId),
}

/// Which groups of a deployment are promoted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromoteScope {
    /// All groups with canaries.
    All,
    /// These groups.
    Groups(Vec<String>),
}

/// What to do with a deleted volume's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeData {
    /// Keep it.
    Keep,
    /// Remove it.
    Purge,
}

/// The tasks that a restart request covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestartScope {
    /// All running tasks of the group: services are deregistered, `shutdown_delay` passes, they are registered again.
    Running,
    /// One running task; group services stay.
    Task(String),
    /// All tasks except poststop ones, including dead ones, in lifecycle order.
    All,
}

/// Reply to a [`Command`].
#[derive(Debug, Clone)]
pub enum Reply {
    /// Accepted and durable.
    Accepted {
        /// The commit's index.
        index: u64,
    },
    /// Result of an apply, in the order of the request.
    Applied {
        /// The commit's index.
        index: u64,
        /// Result for each job.
        jobs: Vec<AppliedJob>,
        /// Names of volumes that were created or changed.
        volumes: Vec<String>,
    },
    /// Reply to `Dispatch` and `ForceLaunch`.
    Dispatched {
        /// The commit's index.
        index: u64,
        /// The child.
        job: JobKey,
    },
    /// Reply to `FailDeployment`.
    DeploymentFailed {
        /// The commit's index.
        index: u64,
        /// The version whose specification is now the newest version; `None` if the job did not change.
        reverted: Option<u64>,
    },
    /// Reply to `Collect`: what had ended.
    Collected {
        /// The commit's index.
        index: u64,
        /// Jobs that are being removed.
        jobs: Vec<JobKey>,
        /// Allocations whose directory is being removed.
        allocs: Vec<AllocId>,
    },
    /// Reply to `Explain`.
    Explanation(Box<Explanation>),
    /// The request was refused; nothing was changed.
    Refused(Refusal),
}

impl Reply {
    /// The same reply at this index, if it is that of a change.
    #[must_use]
    pub fn at(mut self, newest: u64) -> Self {
        match &mut self {
            Self::Accepted { index }
            | Self::Applied { index, .. }
            | Self::Dispatched { index, .. }
            | Self::DeploymentFailed { index, .. }
            | Self::Collected { index, .. } => *index = newest,
            Self::Explanation(_) | Self::Refused(_) => {}
        }
        self
    }
}

/// Result of an apply for one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedJob {
    /// The job.
    pub job: JobKey,
    /// Its version now.
    pub version: u64,
    /// The change.
    pub change: JobChange,
}

/// Change of a job by an apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobChange {
    /// It is new.
    Created,
    /// It has a new version.
    Updated,
    /// It was already equal.
    Unchanged,
}
