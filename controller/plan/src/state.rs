//! The state of an allocation.
//!
//! [`Durable`] is written to the state database. [`Parts`] is not: an inspection recovers it, so after a start every
//! part is [`PartState::Unknown`] and the plan is to inspect it.

mod checks;
mod first;
mod notice;
pub(crate) mod pairs;
mod part;
mod plugin;
mod restart;
mod services;
mod stage;
mod task;
mod tracked;

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
};
use serde::{Deserialize, Serialize};

pub use self::{
    checks::ChecksMemory,
    notice::{LaterNotice, Notice, NoticeInFlight},
    part::{Doing, FinishedOperation, LastValue, Noticed, PartState, Parts},
    plugin::PluginState,
    restart::{GroupRestart, RestartPhase},
    stage::Stage,
    task::{AfterStop, Failures, PermanentFailure, Run, StopStep, TaskState},
    tracked::Tracked,
};
use crate::{
    facts::{AllFacts, Fact, Facts, Input},
    launch::Launch,
    network::AllocNetwork,
    op::{Part, TaskIndex, TaskPart, TemplateIndex},
    policy::HealthTerms,
    time::{BootId, Deadline, Now},
};

/// The state of one allocation.
#[derive(Debug, Clone, Default)]
pub struct AllocState {
    /// The stored state.
    pub durable: Tracked<Durable>,
    /// The state of its parts, which is not stored.
    pub parts: Parts,
    /// The results of its checks.
    pub checks: ChecksMemory,
    /// Since when the allocation has been healthy without interruption, by `CLOCK_BOOTTIME`.
    pub healthy_since_ns: Option<u64>,
    /// Signals and scripts in flight that notify tasks of changes, by operation.
    pub notices_in_flight: BTreeMap<u64, NoticeInFlight>,
    /// Notifications that became necessary while others of the same part were in flight, or that have to be repeated:
    /// what is left once those have ended.
    pub later_notices: BTreeMap<(TaskIndex, TaskPart), LaterNotice>,
    /// Since when scripts of templates can't be run because the driver is away, by `CLOCK_BOOTTIME`.
    pub delayed_scripts: BTreeMap<(TaskIndex, TemplateIndex), u64>,
    /// The facts that its parts have produced.
    pub facts: AllFacts,
    /// Parts whose data has changed since they were made, with the number of the last operation at that time: a later
    /// one reads the new data.
    pub changed_sources: BTreeMap<Part, u64>,
    /// Why its parts are not up to date, as last recorded in the tasks' events.
    pub recorded: BTreeMap<Part, String>,
    /// Tasks whose first attempt a previous agent may have begun in this boot.
    pub maybe_begun: BTreeSet<u16>,
    /// How far the starts of tasks are whose drivers report it.
    pub progress: BTreeMap<u16, Progress>,
}

/// How far the start of a task is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// What is being done, for instance `pulling image redis:7`.
    pub what: String,
    /// Since when, by `CLOCK_BOOTTIME`.
    pub since_ns: u64,
}

/// The stored part of an allocation's state. Fields are only ever added.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durable {
    /// The agent may own resources of this allocation. Stored before the first effect, removed once the last part is
    /// confirmed gone.
    pub adopted: bool,
    /// The boot in which it was adopted. `None` if the adopting agent stored first attempts before they began, or if
    /// this state was rebuilt.
    #[serde(default)]
    pub boot: Option<BootId>,
    /// The stage of the lifecycle.
    pub stage: Stage,
    /// Tasks in the group's order.
    pub tasks: Vec<TaskState>,
    /// Why its tasks are being stopped, or were.
    pub stop: Option<Stop>,
    /// A group-wide restart whose tasks have not all been stopped yet.
    pub restart: Option<GroupRestart>,
    /// The status last reported.
    pub status: ClientStatus,
    /// The reason for it, in one sentence.
    pub description: Cow<'static, str>,
    /// When `status` or a task last changed.
    pub modify_time: UnixNanos,
    /// The commit in which it last changed.
    pub modify_index: u64,
    /// Verdict of the roll-out's health watch; `None` while undecided or without `update`.
    pub health: Option<Health>,
    /// The verdict is unhealthy, and describes the past: the allocation has been healthy for `min_healthy_time` since,
    /// or a user has restarted it. The verdict itself is final, and a running deployment counts it.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub verdict_outdated: bool,
    /// The deadline to become healthy, or, once it has been, to become healthy again.
    pub healthy_by: Option<Deadline>,
    /// What follows the failed allocation; `None` until decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub followed: Option<Followed>,
    /// It has ended, and its directory was removed to free disk space.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub collected: bool,
    /// A request asked that what ends of it does so without a `shutdown_delay`.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub no_shutdown_delay: bool,
    /// A request asked that poststop tasks end, and that none begins.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub no_poststop: bool,
    /// Services of an older version of the job that the current version does not have: they are deregistered.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub retired: BTreeSet<Part>,
    /// Parts that a catalogue may hold, added before they are sent; services in Consul only once a Consul has answered.
    /// `None` if the adopting agent did not store this, or if this state was rebuilt: then a catalogue may hold all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered: Option<BTreeSet<Part>>,
    /// Check results as of their last change of status, by check id. They are valid until the checks run again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub checks: BTreeMap<String, CheckResult>,
    /// The facts of parts that no inspection recovers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", with = "pairs")]
    pub facts: BTreeMap<Part, Arc<Facts>>,
    /// The last network that its tasks shared. It is reported until the allocation is forgotten, as by Nomad.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<AllocNetwork>,
    /// A task restarts because its templates have changed, in its turn: others of its group wait until the allocation
    /// has been healthy again for `min_healthy_time`. An allocation that replaces it takes over the turn.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub takes_turn: bool,
    /// Why planning it panicked. It is left alone until an operator acts.
    pub quarantine: Option<String>,
}

impl AllocState {
    /// What is known of a part's facts. A part that is up and has produced none has none.
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

    /// The facts that a part reads, as far as they are known, and what it has produced before, if that is stored.
    pub(crate) fn inputs(&self, part: Part) -> Vec<Input> {
        let sources = part.row().reads.iter().filter_map(|read| read.source.part(part.task()));
        let own = part.row().is_stored().then_some(part);
        sources
            .chain(own)
            .filter_map(|part| Some(Input { part, facts: self.facts.get(part)?.clone() }))
            .collect()
    }

    /// Whether the task's present attempt is being notified of a change of this part.
    pub(crate) fn is_notice_in_flight(&self, task: TaskIndex, part: TaskPart) -> bool {
        let known = self.durable.tasks.get(usize::from(task));
        let Some(attempt) = known.and_then(TaskState::signalled_attempt) else { return false };
        let mut notices = self.notices_in_flight.values();
        notices.any(|notice| (notice.task, notice.attempt, notice.part) == (task, attempt, part))
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
            Part::Dir | Part::Network | Part::Services | Part::Checks | Part::Task(..) => None,
        }
    }

    /// When a part is due for renewal.
    pub(crate) fn renewal(&self, part: Part) -> Option<Deadline> {
        self.facts.get(part)?.renew_at
    }
}

/// What follows a failed allocation. Decided once per version of its job, from the history of its slot at that time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Followed {
    /// A replacement, at that time.
    At(Deadline),
    /// Nothing.
    Never,
}

/// The deadline to become healthy, counted from now.
pub(crate) fn healthy_by(now: Now, spec: &Allocation) -> Option<Deadline> {
    HealthTerms::of(spec).map(|terms| Deadline::after(now, terms.healthy_deadline))
}

impl Durable {
    /// When a replacement is due, if it has failed and one follows.
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

    /// Whether the roll-out's health watch has found it healthy. It may no longer be.
    pub fn is_judged_healthy(&self) -> bool {
        self.health.is_some_and(|verdict| verdict.healthy)
    }

    /// Whether the roll-out's health watch has found it unhealthy, and this still describes it.
    pub fn is_unhealthy(&self) -> bool {
        self.health.is_some_and(|verdict| !verdict.healthy) && !self.verdict_outdated
    }

    /// Whether its first deadline to become healthy no longer counts: if it loses its health, it gets another one.
    pub(crate) fn has_passed_rollout(&self) -> bool {
        self.is_judged_healthy() || self.verdict_outdated
    }

    /// Rebuilds the state of an allocation whose stored state is lost, from the newest attempt of each task (by index)
    /// that has a record. The plan then finds out what became of these attempts. The time to become healthy starts
    /// again: without that deadline, a roll-out would wait forever.
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
    /// The reason.
    pub reason: StopReason,
    /// When it was decided.
    pub decided_at: UnixNanos,
    /// End of the group's `shutdown_delay`, counted from the decision: an unreachable catalogue doesn't extend it.
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
    /// Its `max_run_duration` has passed since its creation.
    Outlived,
}

/// Verdict of the roll-out's health watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Healthy; otherwise not healthy within its deadline.
    pub healthy: bool,
    /// When it was decided.
    pub at: UnixNanos,
}
