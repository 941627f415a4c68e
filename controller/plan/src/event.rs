//! What reaches the planner: desired state, ends of operations, things seen, requests of people.

use std_alloc::{boxed::Box, collections::BTreeMap, string::String, vec::Vec};

use herdlet_api_types::{
    AllocId, DeploymentId, JobKey, alloc::Allocation, job::Job, scaling::ScalingNote, service::CheckResult,
    task::ExitResult, volume::Volume,
};

use crate::{
    action::Outcome,
    env::NodeFacts,
    explain::Explanation,
    job::children::Dispatch,
    op::{Op, Part},
};
pub use crate::{refusal::Refusal, state::Noticed};

/// Something happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// A source says what should be.
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
        /// How.
        result: ExitResult,
    },
    /// A check's status or output changed.
    Check {
        /// Allocation.
        alloc: AllocId,
        /// Result.
        result: CheckResult,
    },
    /// A part of an allocation no longer is as it should be, or may not be: look.
    Drift {
        /// Allocation.
        alloc: AllocId,
        /// Which part.
        part: Part,
        /// How it was noticed.
        by: Noticed,
    },
    /// Word from a driver about a task.
    Driver {
        /// Allocation.
        alloc: AllocId,
        /// Task name.
        task: String,
        /// Message.
        message: String,
    },
    /// What this machine is has changed, or which task drivers are away.
    Node {
        /// What it is now.
        facts: Box<NodeFacts>,
        /// The drivers that tasks have to wait for, and why.
        away: BTreeMap<String, String>,
    },
    /// Somebody has set the wall clock: what waits for a time of day waits differently long.
    ClockSet,
    /// Somebody asks for something; answered after the turn's commit.
    Command {
        /// Under which the reply comes back.
        request: u64,
        /// What is asked.
        command: Command,
    },
    /// A real thing of this instance was found at start: an attempt's record or cgroup.
    Found {
        /// Allocation.
        alloc: AllocId,
        /// Task name.
        task: String,
        /// Attempt number.
        attempt: u32,
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
    /// A server wants this allocation to be as written (node mode).
    Alloc(Box<Allocation>),
    /// No server knows this allocation any more: it is stopped, and nothing of it stays.
    AllocGone(AllocId),
    /// Servers had taken this allocation for lost with its node, and know better now.
    AllocReconnected(AllocId),
    /// Servers have not been in reach for as long as this allocation may run without them: it is stopped.
    AllocOutOfContact(AllocId),
    /// This allocation, which is or was on another node, has ended: what takes its place may begin.
    EndedElsewhere(AllocId),
    /// Servers have said what they want since this agent began.
    Contact,
    /// The source has said all it knows: from now on what it did not name may be removed.
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
    /// Stop a job and keep it, as a new version that differs in nothing else.
    Stop {
        /// Which.
        job: JobKey,
    },
    /// Start a job that was stopped, as a new version that differs in nothing else.
    Start {
        /// Which.
        job: JobKey,
    },
    /// Stop a job and forget it.
    Delete {
        /// Which.
        job: JobKey,
    },
    /// The same, if this is the job's version still: whoever asks has seen it.
    DeleteVersion {
        /// Which.
        job: JobKey,
        /// Its version, as seen.
        version: u64,
    },
    /// Make a child of a parameterized job.
    Dispatch {
        /// Of which job.
        job: JobKey,
        /// With what.
        dispatch: Box<Dispatch>,
    },
    /// Make a child of a periodic job now.
    ForceLaunch {
        /// Of which job.
        job: JobKey,
    },
    /// Make the text of an older version the newest version.
    Revert {
        /// Of which job.
        job: JobKey,
        /// To which version.
        to: u64,
        /// Only if this is the current version.
        prior: Option<u64>,
    },
    /// Make this job the desired state, but for the counts that its groups have.
    ApplyWithCounts {
        /// Which.
        job: Box<Job>,
    },
    /// Give a group another count, as a new version of its job.
    Scale {
        /// Of which job.
        job: JobKey,
        /// Which group.
        group: String,
        /// The count; where absent only what is said is noted.
        count: Option<u32>,
        /// What is said about it.
        note: ScalingNote,
    },
    /// Let the canaries of a deployment take the place of the old allocations.
    PromoteDeployment {
        /// Which.
        id: DeploymentId,
        /// Of which groups.
        scope: PromoteScope,
    },
    /// Say that a deployment has failed.
    FailDeployment {
        /// Which.
        id: DeploymentId,
    },
    /// Say of allocations of a deployment whether they are healthy. An unhealthy one fails it.
    SetAllocHealth {
        /// Of which deployment.
        id: DeploymentId,
        /// These are.
        healthy: Vec<AllocId>,
        /// These are not.
        unhealthy: Vec<AllocId>,
    },
    /// Forget a volume; with `purge` remove its data.
    DeleteVolume {
        /// Which.
        name: String,
        /// What becomes of its data.
        data: VolumeData,
    },
    /// Stop an allocation; its job makes another in its place.
    StopAlloc {
        /// Which.
        alloc: AllocId,
    },
    /// End what is being stopped without the rest of its `shutdown_delay`. What is gone already needs nothing.
    SkipShutdownDelay {
        /// Of what.
        of: Ending,
    },
    /// Give up what has ended: jobs with all they have, and directories of allocations. What has not ended stays.
    Collect {
        /// Jobs.
        jobs: Vec<JobKey>,
        /// Allocations.
        allocs: Vec<AllocId>,
    },
    /// Restart tasks of an allocation.
    Restart {
        /// Which.
        alloc: AllocId,
        /// What.
        scope: RestartScope,
    },
    /// Send a signal to one task, or to all running ones.
    Signal {
        /// Which.
        alloc: AllocId,
        /// One task; all running where absent.
        task: Option<String>,
        /// Signal name such as `SIGHUP`.
        signal: String,
    },
    /// Say what an allocation is waiting for.
    Explain {
        /// Which.
        alloc: AllocId,
    },
}

/// What is being stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// All allocations of a job that are.
    Job(JobKey),
    /// One allocation.
    Alloc(AllocId),
}

/// Which groups of a deployment are promoted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromoteScope {
    /// All that have canaries.
    All,
    /// These.
    Groups(Vec<String>),
}

/// What becomes of a deleted volume's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeData {
    /// It stays.
    Keep,
    /// It is removed.
    Purge,
}

/// What a restart request covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestartScope {
    /// All running tasks, group-wide: services are taken back, `shutdown_delay` passes, they are registered again.
    Running,
    /// One running task; group services stay.
    Task(String),
    /// All tasks but poststop ones, dead ones too, in lifecycle order.
    All,
}

/// Answer to a [`Command`].
#[derive(Debug, Clone)]
pub enum Reply {
    /// Accepted; it is durable.
    Accepted {
        /// The commit's index.
        index: u64,
    },
    /// What an apply did, in the order given.
    Applied {
        /// The commit's index.
        index: u64,
        /// Per job.
        jobs: Vec<AppliedJob>,
        /// Names of volumes that were made or changed.
        volumes: Vec<String>,
    },
    /// Answer to `Dispatch` and `ForceLaunch`.
    Dispatched {
        /// The commit's index.
        index: u64,
        /// The child.
        job: JobKey,
    },
    /// Answer to `FailDeployment`.
    DeploymentFailed {
        /// The commit's index.
        index: u64,
        /// The version whose text is the newest version now; none where the job stays as it is.
        reverted: Option<u64>,
    },
    /// Answer to `Collect`: what had ended.
    Collected {
        /// The commit's index.
        index: u64,
        /// Jobs that are being forgotten.
        jobs: Vec<JobKey>,
        /// Allocations whose directory goes.
        allocs: Vec<AllocId>,
    },
    /// Answer to `Explain`.
    Explanation(Box<Explanation>),
    /// It can't be done; nothing was changed.
    Refused(Refusal),
}

/// What an apply did to one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedJob {
    /// Which.
    pub job: JobKey,
    /// Its version now.
    pub version: u64,
    /// What happened.
    pub change: JobChange,
}

/// What an apply did to one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobChange {
    /// It is new.
    Created,
    /// It has a new version.
    Updated,
    /// It was equal already.
    Unchanged,
}
