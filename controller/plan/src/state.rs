//! What is remembered of an allocation.
//!
//! [`Durable`] is written to the state database; [`Parts`] is not: what a look can tell is not stored, so after a start
//! every part is [`PartState::Unknown`] and the plan is to look.

mod checks;
mod first;
pub(crate) mod pairs;
mod part;
mod services;
mod stage;

use std_alloc::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    string::String,
    sync::Arc,
    vec::Vec,
};

use herdlet_api_types::{
    UnixNanos,
    alloc::{Allocation, ClientStatus},
    job::Task,
    service::CheckResult,
    task::{ExitResult, History, TaskEvent, TaskEventKind, TaskStatus},
};
use serde::{Deserialize, Serialize};

pub use self::{
    checks::ChecksMemory,
    part::{Doing, Ended, Noticed, PartState, Parts},
    stage::Stage,
};
use crate::{
    facts::{AllFacts, Fact, Facts, Input, Owed, Revision},
    launch::Launch,
    limits::EVENTS_MAX,
    op::{Part, TaskIndex, TaskPart},
    policy::HealthTerms,
    time::{BootId, Deadline, Now},
};

/// All that is remembered of one allocation.
#[derive(Debug, Clone, Default)]
pub struct AllocState {
    /// What is stored.
    pub durable: Tracked<Durable>,
    /// What is not.
    pub parts: Parts,
    /// What is known of its checks.
    pub checks: ChecksMemory,
    /// Since when the allocation is healthy without a break, by `CLOCK_BOOTTIME`.
    pub healthy_since_ns: Option<u64>,
    /// Signals under way that tell tasks of changes, by operation.
    pub telling: BTreeMap<u64, Told>,
    /// What parts have produced.
    pub facts: AllFacts,
    /// Tasks whose first attempt an agent before this one may have begun in this boot.
    pub maybe_begun: BTreeSet<u16>,
}

/// The stored part of an allocation's state. Fields are only ever added.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durable {
    /// From now on we may own things in its name. Written before the first effect, gone when the last part is seen gone.
    pub adopted: bool,
    /// Boot in which it was adopted. None where an agent adopted it that stored first attempts before they began, and where
    /// this was rebuilt.
    #[serde(default)]
    pub boot: Option<BootId>,
    /// How far the lifecycle has come.
    pub stage: Stage,
    /// Tasks in the group's order.
    pub tasks: Vec<TaskState>,
    /// Its tasks are being stopped, or were.
    pub stop: Option<Stop>,
    /// A group-wide restart that has been accepted and not carried out.
    pub restart: Option<GroupRestart>,
    /// What was last reported.
    pub status: ClientStatus,
    /// Why, in a sentence.
    pub description: Cow<'static, str>,
    /// When `status` or a task last changed.
    pub modify_time: UnixNanos,
    /// Commit in which it last changed.
    pub modify_index: u64,
    /// Verdict of the roll-out's health watch; none while undecided or where there is no `update`.
    pub health: Option<Health>,
    /// Until when the allocation may take to become healthy; once it was judged healthy, to become so again.
    pub healthy_by: Option<Deadline>,
    /// What follows it, once it has failed and that was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub followed: Option<Followed>,
    /// It has ended, and its directory was given up to make room.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub collected: bool,
    /// Somebody asked that what ends of it does so without a `shutdown_delay`.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub no_shutdown_delay: bool,
    /// Services of an older version of the job, where this one has none: they are taken back.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub retired: BTreeSet<Part>,
    /// Services that a Consul may hold: one that has answered, before they were sent. None where an agent adopted it that did not
    /// store this, and where this was rebuilt: it may hold them all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered: Option<BTreeSet<Part>>,
    /// What the checks said when their status last changed, by check id: until they are made again it holds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub checks: BTreeMap<String, CheckResult>,
    /// What parts have produced that no look finds again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", with = "pairs")]
    pub facts: BTreeMap<Part, Arc<Facts>>,
    /// Planning it panicked; it is left alone until an operator acts.
    pub quarantine: Option<String>,
}

impl AllocState {
    /// What is known of a part's facts. One that is up and has told none has none.
    pub fn fact(&self, part: Part) -> Fact<'_> {
        match (self.facts.get(part), self.parts.get(part)) {
            (Some(facts), _) => Fact::Known(facts),
            (None, PartState::Up) => Fact::NONE,
            (
                None,
                PartState::Unknown
                | PartState::Suspect(_)
                | PartState::Absent
                | PartState::Busy { .. }
                | PartState::Pending { .. }
                | PartState::Failed { .. },
            ) => Fact::Unknown,
        }
    }

    /// What a part reads, as far as it is known.
    pub(crate) fn inputs(&self, part: Part) -> Vec<Input> {
        let sources = part.row().reads.iter().filter_map(|read| read.source.part(part.task()));
        sources.filter_map(|part| Some(Input { part, facts: self.facts.get(part)?.clone() })).collect()
    }

    /// The launch record of the attempt that the part belongs to.
    pub(crate) fn launch(&self, part: Part) -> Option<&Arc<Launch>> {
        match part {
            Part::Task(
                index,
                TaskPart::Process | TaskPart::Prestop | TaskPart::Services | TaskPart::Checks,
            ) => {
                let known = self.durable.tasks.get(usize::from(index))?;
                known.launch_of(known.newest())
            }
            Part::Dir | Part::Services | Part::Checks | Part::Task(..) => None,
        }
    }

    /// When a part falls due for renewal.
    pub(crate) fn renewal(&self, part: Part) -> Option<Deadline> {
        self.facts.get(part)?.renew_at
    }
}

/// What follows an allocation that has failed. Decided once for each version of its job, by what its slot had been through then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Followed {
    /// Another one, at that time.
    At(Deadline),
    /// Nothing.
    Never,
}

/// Until when the allocation may take to become healthy, from now on.
pub(crate) fn healthy_by(now: Now, spec: &Allocation) -> Option<Deadline> {
    HealthTerms::of(spec).map(|terms| Deadline::after(now, terms.healthy_deadline))
}

impl Durable {
    /// When another allocation takes its place, since it has failed; none where none does.
    pub fn reschedule(&self) -> Option<Deadline> {
        match self.followed {
            Some(Followed::At(due)) => Some(due),
            Some(Followed::Never) | None => None,
        }
    }

    /// Whether it was stopped because of its `max_run_duration`.
    pub fn is_outlived(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.reason == StopReason::Outlived)
    }

    /// Whether the roll-out's health watch has found it healthy. It may not be any more.
    pub fn is_judged_healthy(&self) -> bool {
        self.health.is_some_and(|verdict| verdict.healthy)
    }

    /// What is remembered of an allocation whose memory is lost: of each task, by its index, the newest attempt that has a record,
    /// of which the plan will be to see what became. It has its time to become healthy anew: without an end of that a roll-out
    /// would wait for ever.
    pub fn rebuilt(spec: &Allocation, newest: impl Fn(usize, &Task) -> Option<u32>, now: Now) -> Self {
        let task = |(index, task): (usize, &Task)| {
            let attempt = newest(index, task);
            TaskState {
                name: Arc::from(&*task.name),
                run: attempt.map_or(Run::Waiting, |attempt| Run::Starting { attempt, boot: now.boot }),
                attempt: attempt.unwrap_or(0),
                ..TaskState::default()
            }
        };
        let tasks = spec.group().map_or(&[][..], |group| &group.tasks);
        let tasks: Vec<TaskState> = tasks.iter().enumerate().map(task).collect();
        let stage = if tasks.iter().any(|task| task.attempt > 0) { Stage::UNTOLD } else { Stage::Init };
        let healthy_by = healthy_by(now, spec);
        Self { adopted: true, stage, tasks, healthy_by, ..Self::default() }
    }
}

/// Why and since when the tasks of an allocation are being stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// Why.
    pub reason: StopReason,
    /// When it was decided.
    pub decided_at: UnixNanos,
    /// End of the group's `shutdown_delay`, counted from the decision: a catalogue that is down doesn't stretch it.
    pub delay: Deadline,
}

/// Why all tasks of an allocation are stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// Its source wants it stopped.
    Desired,
    /// The leader ended.
    LeaderDead,
    /// This task failed.
    SiblingFailed(String),
    /// Only sidecars are left.
    MainDead,
    /// It was made too long ago (`max_run_duration`).
    Outlived,
}

/// An accepted restart of the whole group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRestart {
    /// Dead tasks too, in lifecycle order.
    pub all: bool,
    /// End of the group's `shutdown_delay`; the services are down until then.
    pub delay: Deadline,
    /// A check asked for it: each task's restart policy counts it.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub unhealthy: bool,
}

/// Verdict of the roll-out's health watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Healthy, or not within its deadline.
    pub healthy: bool,
    /// When it was decided.
    pub at: UnixNanos,
}

/// What is remembered of a task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskState {
    /// Task name.
    pub name: Arc<str>,
    /// Where its machine stands.
    pub run: Run,
    /// The last attempt that is known to have begun; 0 before the first.
    pub attempt: u32,
    /// Boot in which it began.
    #[serde(default)]
    pub begun_in: Option<BootId>,
    /// Attempt numbers up to this one are not given out any more, though none of them may ever have begun.
    #[serde(default)]
    pub used: u32,
    /// It failed for good in this incarnation.
    pub failed: bool,
    /// Restarts so far.
    pub restarts: u32,
    /// When it last restarted.
    pub last_restart: UnixNanos,
    /// When its process last started.
    pub started_at: UnixNanos,
    /// The same by the `CLOCK_BOOTTIME` of that boot.
    #[serde(default)]
    pub started_ns: u64,
    /// When it ended for good.
    pub finished_at: UnixNanos,
    /// Restart policy: end of the current window.
    pub window: Option<Deadline>,
    /// Restart policy: attempts counted in the current window.
    pub counted: u32,
    /// How the last attempt ended.
    pub exit: Option<ExitResult>,
    /// Its last ten events, oldest first.
    pub events: History,
    /// An accepted restart of this task that has not been carried out.
    pub restart_requested: bool,
    /// A check asked for it: the restart policy counts it.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub unhealthy: bool,
    /// It can't go on: it is stopped if it runs, then it has failed.
    pub doom: Option<Doom>,
    /// What is to be known of its newest attempt beside its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<Arc<Launch>>,
    /// An agent that did not store [`TaskState::changing`] was renewing its tokens.
    #[serde(default)]
    pub token_news: bool,
    /// Parts that are being renewed where it may be owed something then. Stored before the renewal begins.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub changing: BTreeSet<TaskPart>,
    /// What it is owed, by the part that has changed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", with = "pairs")]
    pub owed: BTreeMap<TaskPart, Owed>,
}

/// What a task is told of by a signal under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// Which task.
    pub task: TaskIndex,
    /// Which of its parts has changed.
    pub part: TaskPart,
    /// What the part's value is.
    pub revision: Revision,
}

/// Why a task can't go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doom {
    /// Nomad's event for it.
    pub kind: TaskEventKind,
    /// A sentence.
    pub message: String,
}

/// The machine of a task.
///
/// ```text
///            gate open, parts up          process runs
///  Waiting ───────────────────► Starting ─────────────► Running ──exit──► restart policy
///    ▲  ▲                          │ failed to start       │                │      │
///    │  └──────── delay over ── BackingOff ◄───────────────┼────────────────┘      │
///    │                                                     │ stop, restart         ▼
///    └───────────────────── restart ◄── Stopping ◄─────────┘                     Dead
///                                          └────────────── killed ─────────────────▲
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Run {
    /// The planner brings its parts up once its gate opens, then starts it.
    #[default]
    Waiting,
    /// The planner waits until the deadline, then it is `Waiting`.
    BackingOff {
        /// Until when.
        until: Deadline,
    },
    /// The attempt is committed, unless it is the first; the planner starts it, again after a crash.
    Starting {
        /// Attempt number.
        attempt: u32,
        /// Boot in which it was begun.
        boot: BootId,
    },
    /// The planner keeps it, and looks where it doesn't know.
    Running {
        /// Attempt number.
        attempt: u32,
        /// Boot in which it was begun.
        boot: BootId,
    },
    /// The planner goes on with the step.
    Stopping {
        /// Attempt number.
        attempt: u32,
        /// Boot in which it was begun.
        boot: BootId,
        /// It was seen to run; else its start is only being fenced, and nobody was ever started because of it.
        #[serde(default)]
        ran: bool,
        /// How far the stop has come.
        step: StopStep,
        /// What follows.
        then: AfterStop,
    },
    /// The planner does nothing but remove what is left of it.
    Dead,
}

/// Steps of stopping one task, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopStep {
    /// The task's `shutdown_delay` runs.
    Delay {
        /// Until when.
        until: Deadline,
    },
    /// The `prestop` command runs.
    Prestop {
        /// Until when at the latest.
        until: Deadline,
    },
    /// The kill signal was decided; SIGKILL follows at the deadline.
    Kill {
        /// When SIGKILL follows.
        until: Deadline,
    },
}

/// What follows when a stopped task has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AfterStop {
    /// It is dead.
    Dead,
    /// It starts again at once; not counted as an attempt.
    Restart,
    /// A check asked for it: what follows is for the restart policy to say, as if it had failed.
    RestartUnhealthy,
}

impl TaskState {
    /// No restart is asked for any more.
    pub fn withdraw_restart(&mut self) {
        self.restart_requested = false;
        self.unhealthy = false;
    }

    /// Nomad's coarse state.
    pub fn status(&self) -> TaskStatus {
        match &self.run {
            Run::Waiting | Run::BackingOff { .. } | Run::Starting { .. } => TaskStatus::Pending,
            Run::Stopping { ran: false, .. } | Run::Stopping { step: StopStep::Delay { .. }, .. } => {
                TaskStatus::Pending
            }
            Run::Running { .. }
            | Run::Stopping { step: StopStep::Prestop { .. } | StopStep::Kill { .. }, .. } => {
                TaskStatus::Running
            }
            Run::Dead => TaskStatus::Dead,
        }
    }

    /// It is not dead.
    pub fn status_live(&self) -> bool {
        self.status() != TaskStatus::Dead
    }

    /// The newest attempt of which anything can be left; 0 where there never was one.
    pub fn newest(&self) -> u32 {
        self.attempt.max(self.used)
    }

    /// The attempt whose process may live, if any.
    pub fn live_attempt(&self) -> Option<u32> {
        match &self.run {
            Run::Starting { attempt, .. } | Run::Running { attempt, .. } | Run::Stopping { attempt, .. } => {
                Some(*attempt)
            }
            Run::Waiting | Run::BackingOff { .. } | Run::Dead => None,
        }
    }

    /// It starts with what is there, or never again: nothing is owed to it.
    pub(crate) fn forget_owed(&mut self) {
        self.changing.clear();
        self.owed.clear();
    }

    /// The launch record of an attempt.
    pub fn launch_of(&self, attempt: u32) -> Option<&Arc<Launch>> {
        self.launch.as_ref().filter(|launch| launch.attempt == attempt)
    }

    /// The attempt whose process gets signals: one that runs and was not asked to end yet.
    pub fn signalled_attempt(&self) -> Option<u32> {
        match &self.run {
            Run::Running { attempt, .. }
            | Run::Stopping { attempt, step: StopStep::Delay { .. } | StopStep::Prestop { .. }, .. } => {
                Some(*attempt)
            }
            Run::Waiting
            | Run::BackingOff { .. }
            | Run::Starting { .. }
            | Run::Stopping { step: StopStep::Kill { .. }, .. }
            | Run::Dead => None,
        }
    }

    /// Remembers an event; the oldest of more than ten goes.
    pub fn remember(&mut self, event: TaskEvent) {
        self.events.remember(event, EVENTS_MAX);
    }
}

/// A value that remembers being changed, so that a turn writes exactly what it changed.
#[derive(Debug, Clone, Default)]
pub struct Tracked<T> {
    value: T,
    touched: bool,
}

impl<T> Tracked<T> {
    /// A value that must be written.
    pub fn new(value: T) -> Self {
        Self { value, touched: true }
    }

    /// A value as it was read back.
    pub fn stored(value: T) -> Self {
        Self { value, touched: false }
    }

    /// Whether it changed since the last call.
    pub fn take_touched(&mut self) -> bool {
        core::mem::take(&mut self.touched)
    }

    /// For a change that needs no writing of its own: it is written with the next that does.
    pub fn unnoticed(&mut self) -> &mut T {
        &mut self.value
    }

    /// Whether it changed and was not taken.
    pub fn is_touched(&self) -> bool {
        self.touched
    }
}

impl<T> core::ops::Deref for Tracked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> core::ops::DerefMut for Tracked<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.touched = true;
        &mut self.value
    }
}
