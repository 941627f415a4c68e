//! The state of a task, and the machine of its attempts.

use std_alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    sync::Arc,
};

use herdlet_api_types::{
    Duration, UnixNanos,
    task::{ExitResult, History, TaskEvent, TaskEventKind, TaskStatus},
};
use serde::{Deserialize, Serialize};

use super::{pairs, plugin::PluginState};
use crate::{
    facts::Owed,
    launch::Launch,
    limits::EVENTS_MAX,
    op::TaskPart,
    time::{BootId, Deadline, Now},
};

/// The state of a task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskState {
    /// Task name.
    pub name: Arc<str>,
    /// The state of its machine.
    pub run: Run,
    /// The last attempt known to have begun; 0 before the first.
    pub attempt: u32,
    /// Boot in which it began.
    #[serde(default)]
    pub begun_in: Option<BootId>,
    /// Attempt numbers up to this one are not assigned again, even if none of these attempts ever began.
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
    /// The same, by the `CLOCK_BOOTTIME` of that boot.
    #[serde(default)]
    pub started_ns: u64,
    /// When it ended for good.
    pub finished_at: UnixNanos,
    /// Restart policy: end of the current window.
    pub window: Option<Deadline>,
    /// Restart policy: attempts counted in the current window.
    pub counted: u32,
    /// The longest lifetime of the attempts that failed in a row, until an attempt counts: see [`TaskState::failures`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_after: Option<Duration>,
    /// How long attempts have lived since the last failure that were ended by request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub survived: Option<Duration>,
    /// The last failures in a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<Failures>,
    /// When the attempt after the first of these failures would have counted. It failed before that, so the task is
    /// late from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_at: Option<Deadline>,
    /// How the last attempt ended.
    pub exit: Option<ExitResult>,
    /// Its last ten events, oldest first.
    pub events: History,
    /// An accepted restart of this task that has not been carried out.
    pub restart_requested: bool,
    /// It was found unhealthy, which requested the restart: the restart policy counts it.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub unhealthy: bool,
    /// If it is a CSI plugin: the last report about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin: Option<PluginState>,
    /// It can't go on: it is stopped if it runs, then it has failed.
    #[serde(rename = "doom")]
    pub permanent_failure: Option<PermanentFailure>,
    /// The launch record of its newest attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<Arc<Launch>>,
    /// An agent that did not store [`TaskState::changing`] was renewing its tokens.
    #[serde(default)]
    pub token_news: bool,
    /// Parts whose renewal in progress may require a notification. Stored before the renewal begins.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub changing: BTreeSet<TaskPart>,
    /// Notifications that it must still get, by the part that has changed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", with = "pairs")]
    pub owed: BTreeMap<TaskPart, Owed>,
}

/// Attempts of a task that failed one after the other, without one between them that lived much longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failures {
    /// Their number.
    pub count: u32,
    /// The longest lifetime.
    pub longest: Duration,
}

/// Why a task can't go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermanentFailure {
    /// Nomad's event for it.
    pub kind: TaskEventKind,
    /// The reason, in one sentence.
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
    /// The attempt is committed, unless it is the first. The planner starts it, again after a crash.
    Starting {
        /// Attempt number.
        attempt: u32,
        /// Boot in which it was begun.
        boot: BootId,
    },
    /// The planner keeps it running, and inspects it if its state is unknown.
    Running {
        /// Attempt number.
        attempt: u32,
        /// Boot in which it was begun.
        boot: BootId,
    },
    /// The planner carries out the step.
    Stopping {
        /// Attempt number.
        attempt: u32,
        /// Boot in which it was begun.
        boot: BootId,
        /// The process was observed running. Otherwise only its start is being fenced, and no dependent task was
        /// started because of it.
        #[serde(default)]
        ran: bool,
        /// The current step of the stop.
        step: StopStep,
        /// What follows.
        then: AfterStop,
    },
    /// The planner only removes what is left of it.
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

/// What happens once a stopped task has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AfterStop {
    /// It is dead.
    Dead,
    /// It starts again at once; not counted as an attempt.
    Restart,
    /// It was found unhealthy: the restart policy decides, as if the task had failed.
    RestartUnhealthy,
}

impl TaskState {
    /// Whether it is to be stopped, or is being stopped, in order to start again.
    pub fn is_restarting(&self) -> bool {
        match &self.run {
            Run::Starting { .. } | Run::Running { .. } => self.restart_requested,
            Run::Stopping { then, .. } => *then != AfterStop::Dead,
            Run::Waiting | Run::BackingOff { .. } | Run::Dead => false,
        }
    }

    /// No failure counts against the task any more.
    pub(crate) fn forgive(&mut self) {
        (self.failed_after, self.late_at, self.survived) = (None, None, None);
    }

    /// How long the task has lived since its last failure, over requested restarts.
    pub(crate) fn lived_since_failure(&self, now: Now) -> Duration {
        let earlier = self.survived.unwrap_or(Duration::ZERO);
        Duration(earlier.as_nanos().saturating_add(self.lived(now).as_nanos()))
    }

    /// How long the attempt that runs or is being stopped has lived; zero unless it began in this boot.
    pub(crate) fn lived(&self, now: Now) -> Duration {
        match self.run {
            Run::Running { boot, .. } | Run::Stopping { boot, ran: true, .. } if boot == now.boot => {
                let lived_ns = now.boot_ns.saturating_sub(self.started_ns);
                Duration(i64::try_from(lived_ns).unwrap_or(i64::MAX))
            }
            Run::Running { .. }
            | Run::Stopping { .. }
            | Run::Starting { .. }
            | Run::Waiting
            | Run::BackingOff { .. }
            | Run::Dead => Duration::ZERO,
        }
    }

    /// Cancels a requested restart.
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

    /// Whether it is not dead.
    pub fn status_live(&self) -> bool {
        self.status() != TaskStatus::Dead
    }

    /// The newest attempt that can have left anything; 0 if there never was one.
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

    /// It starts with the current facts, or never again: drops all pending notifications.
    pub(crate) fn clear_owed(&mut self) {
        self.changing.clear();
        self.owed.clear();
    }

    /// The launch record of an attempt.
    pub fn launch_of(&self, attempt: u32) -> Option<&Arc<Launch>> {
        self.launch.as_ref().filter(|launch| launch.attempt == attempt)
    }

    /// The attempt whose process gets signals: it runs, and has not been asked to end.
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

    /// Records an event; keeps at most ten, dropping the oldest.
    pub fn remember(&mut self, event: TaskEvent) {
        self.events.remember(event, EVENTS_MAX);
    }
}
