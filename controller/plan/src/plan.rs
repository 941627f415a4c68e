//! A plan: what should change, what is waited for, when to look again. Made by [`crate::alloc::plan`] from a state it may
//! not touch; carried out by [`crate::alloc::apply`].

use std_alloc::{string::String, vec::Vec};

use herdlet_api_types::{AllocId, DeploymentId, Duration, task::TaskStatus};

use crate::{
    action::Verb,
    op::{Part, TaskIndex, TaskPart},
    state::{AfterStop, Doing, GroupRestart, Health, Stage, Stop, StopStep},
    time::Deadline,
};

/// What planning an allocation once comes to. A converged allocation's plan is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Carried out in order; then the allocation is planned again, until a plan has none.
    pub changes: Vec<Change>,
    /// What is not as wanted, in the order of the tables.
    pub waits: Vec<Waiting>,
    /// When to plan again by itself, by `CLOCK_BOOTTIME`.
    pub wake_ns: Option<u64>,
}

impl Plan {
    /// Makes it empty and keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.changes.clear();
        self.waits.clear();
        self.wake_ns = None;
    }
}

/// One change of an allocation's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// From now on we may own things in its name.
    Adopt,
    /// The lifecycle moves on.
    Stage(Stage),
    /// All tasks are to be stopped.
    Stop(Stop),
    /// An operation is started.
    Issue {
        /// On which part.
        part: Part,
        /// What it does to the part.
        doing: Doing,
        /// The action.
        verb: Verb,
        /// After this it is overdue.
        timeout: Duration,
    },
    /// A group-wide restart begins to stop its tasks.
    RestartTasks(GroupRestart),
    /// A check has failed for too long: this task is restarted, or all that run.
    Unhealthy {
        /// None for all that run.
        task: Option<TaskIndex>,
        /// Name of the check.
        check: String,
        /// What it said, in a line.
        said: String,
    },
    /// What waits to start will not: what it needs isn't here.
    Doom(String),
    /// A task moves.
    Task(TaskIndex, TaskChange),
    /// The allocation is healthy from now on, or no longer.
    Healthy(bool),
    /// The verdict of the health watch.
    Verdict(Health, String),
    /// Nothing of it is left: it is forgotten.
    Forget,
}

/// One change of a task's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskChange {
    /// A new attempt is begun.
    Begin,
    /// Its delay is over.
    Wait,
    /// It is being stopped.
    Stop {
        /// First step.
        step: StopStep,
        /// What follows.
        then: AfterStop,
    },
    /// The stop goes on.
    Step(StopStep),
    /// It gets what it is owed, as this part has changed.
    Settle(TaskPart),
    /// It ends without having a process.
    Die,
}

/// What a plan waits for: small values, made into sentences by [`crate::explain`] when somebody asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiting {
    /// An operation on the part, or the delay before its next try; the part's state tells which.
    Part(Part),
    /// The task's place in the lifecycle.
    Gate(TaskIndex),
    /// Another task of the group.
    Dependency(TaskIndex, String),
    /// Word from servers: until then another may run in its place elsewhere.
    Contact(TaskIndex),
    /// The task's driver, which is away for this reason.
    Driver(TaskIndex, String),
    /// The end of the allocation whose place this one takes.
    Previous(TaskIndex, AllocId),
    /// A volume that is not ready; of the group where no task mounts it.
    Volume(Option<TaskIndex>, String),
    /// The delay before the next start.
    Backoff(TaskIndex, Deadline),
    /// A `shutdown_delay`; of the group where no task is given.
    Delay(Option<TaskIndex>, Deadline),
    /// Other tasks that end first.
    StopOrder(TaskIndex),
    /// The task's own end after its kill signal.
    Exit(TaskIndex, Deadline),
    /// The task is pending, running or ending as it should and has simply not got there.
    Task(TaskIndex, TaskStatus),
    /// Passing checks.
    Checks(Option<Deadline>),
    /// A failing check to pass before it restarts what it checks.
    CheckRestart {
        /// Its id.
        check: String,
        /// When it restarts.
        at_ns: u64,
    },
    /// The verdict of the roll-out: time in health.
    Health(Option<Deadline>),
    /// Somebody's word on its health, for this deployment.
    Judgement(DeploymentId),
}
