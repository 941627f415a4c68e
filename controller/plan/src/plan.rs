//! A plan: changes, waits, and when to plan again. [`crate::alloc::plan`] makes it from a state that it does not
//! change; [`crate::alloc::apply`] carries it out.

use std_alloc::{string::String, vec::Vec};

use herdlet_api_types::{AllocId, DeploymentId, Duration, task::TaskStatus};

use crate::{
    action::Verb,
    op::{Part, TaskIndex, TaskPart},
    state::{AfterStop, Doing, GroupRestart, Health, Stage, Stop, StopStep},
    time::Deadline,
};

/// The result of planning an allocation once. A converged allocation's plan is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Carried out in order; then the allocation is planned again, until a plan has no changes.
    pub changes: Vec<Change>,
    /// What is not as wanted, in the order of the tables.
    pub waits: Vec<Waiting>,
    /// When to plan again without an event, by `CLOCK_BOOTTIME`.
    pub wake_ns: Option<u64>,
}

impl Plan {
    /// Empties it and keeps its memory.
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
    /// The lifecycle enters this stage.
    Stage(Stage),
    /// All tasks have to stop.
    Stop(Stop),
    /// Start an operation.
    Issue {
        /// The part.
        part: Part,
        /// What it does to the part.
        doing: Doing,
        /// The action.
        verb: Verb,
        /// Timeout, after which it is overdue.
        timeout: Duration,
    },
    /// A group-wide restart starts to stop its tasks.
    RestartTasks(GroupRestart),
    /// A group-wide restart has stopped all of its tasks.
    EndRestart,
    /// A check has failed for too long: restart this task, or all running ones.
    Unhealthy {
        /// `None` for all running ones.
        task: Option<TaskIndex>,
        /// Name of the check.
        check: String,
        /// Its output, in one line.
        output: String,
    },
    /// Tasks that wait to start fail permanently, as something that they need isn't here.
    Fail(String),
    /// Change a task.
    Task(TaskIndex, TaskChange),
    /// The allocation is healthy from now on, or no longer.
    Healthy(bool),
    /// The verdict of the health watch.
    Verdict(Health, String),
    /// It is healthy again after a restart in its turn.
    EndTurn,
    /// It has been healthy for `min_healthy_time` after the verdict that it is unhealthy.
    OutdateVerdict,
    /// Nothing of it is left: remove it.
    Forget,
}

/// One change of a task's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskChange {
    /// A new attempt begins.
    Begin,
    /// Its delay is over.
    Wait,
    /// It has to stop.
    Stop {
        /// First step.
        step: StopStep,
        /// What follows.
        then: AfterStop,
    },
    /// The stop continues with this step.
    Step(StopStep),
    /// It has run longer than the previous attempt, which failed.
    Prove,
    /// Carry out the owed restart or signal, as this part has changed.
    Settle(TaskPart),
    /// It has to restart: the allocation has another network than the one in which it was started.
    ChangeNetwork,
    /// It ends without having a process.
    Die,
}

/// What a plan waits for: small values, rendered as sentences by [`crate::explain`] on request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiting {
    /// An operation on the part, or the delay before its next try; the part's state shows which.
    Part(Part),
    /// The task's place in the lifecycle.
    Gate(TaskIndex),
    /// Another task of the group.
    Dependency(TaskIndex, String),
    /// Contact to the servers: until then a replacement may run elsewhere.
    Contact(TaskIndex),
    /// The task's driver, which is away for this reason.
    Driver(TaskIndex, String),
    /// The same for a task that runs, as far as is known: until its driver is back, its state is old.
    Stale(TaskIndex, String),
    /// The end of the allocation that this one replaces.
    Previous(TaskIndex, AllocId),
    /// A volume that is not ready, and why if it is not being prepared; of the group if no task mounts it.
    Volume(Option<TaskIndex>, String, Option<String>),
    /// The delay before the next start.
    Backoff(TaskIndex, Deadline),
    /// How long a task that has failed before has to run, by `CLOCK_BOOTTIME`.
    Proof(TaskIndex, u64),
    /// A `shutdown_delay`; of the group if there is no task.
    Delay(Option<TaskIndex>, Deadline),
    /// The random delay before the task is notified of a change of this part.
    Splay(TaskIndex, TaskPart),
    /// Data of this part that has changed: until it is quiet, and the part is made from it.
    Source(TaskIndex, TaskPart),
    /// Its turn to restart because its templates have changed: this allocation of its group restarts, or is not healthy
    /// again.
    Turn(TaskIndex, String),
    /// Other tasks that have to end first.
    StopOrder(TaskIndex),
    /// The task's own exit after its kill signal.
    Exit(TaskIndex, Deadline),
    /// The task is pending, running or ending as it should, but has not got there yet.
    Task(TaskIndex, TaskStatus),
    /// The end of a poststop task: only its own exit or a request ends it.
    Poststop(TaskIndex),
    /// Passing checks.
    Checks(Option<Deadline>),
    /// A failing check: its owner restarts unless it passes before.
    CheckRestart {
        /// Its id.
        check: String,
        /// When the restart is due.
        at_ns: u64,
    },
    /// The verdict of the roll-out: enough time in health.
    Health(Option<Deadline>),
    /// A manual decision on its health, for this deployment.
    Judgement(DeploymentId),
}
