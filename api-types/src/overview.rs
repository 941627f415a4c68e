//! The overview: the state of everything, a row for each job. Used by `herdlet status`, `herdlet top` and the page at
//! `/ui`.

use std_alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

use serde::{Deserialize, Serialize};

use crate::{
    AllocId, Duration, JobKey, UnixNanos,
    view::{ConvergenceState, HELD},
};

/// Response of `GET /v1/herdlet/overview`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overview {
    /// The commit that it shows.
    pub index: u64,
    /// The number of converged jobs.
    pub converged: u64,
    /// Age of the oldest change still in progress; 0 if there is none.
    pub lag: Duration,
    /// The number of objects past the deadline of their plan.
    pub overdue: u64,
    /// Differences repaired within the last 24 hours, while this agent ran.
    pub drift_repaired: u64,
    /// The part of these 24 hours that this agent has observed.
    #[serde(default)]
    pub drift_known: Duration,
    /// All jobs except complete children; those that have not converged come first.
    pub jobs: Vec<JobRow>,
    /// The number of complete children, which have no row and are counted with their parent.
    #[serde(default)]
    pub complete_children: u64,
}

impl Overview {
    /// The number of jobs, including those without a row.
    pub fn job_count(&self) -> u64 {
        self.jobs.len() as u64 + self.complete_children
    }

    /// The number of repaired differences and the period: a day, or the agent's running time if that is less.
    pub fn drift(&self) -> String {
        const MINUTE_NS: i64 = 60_000_000_000;
        let minutes = self.drift_known.as_nanos() / MINUTE_NS;
        let time = match minutes {
            60.. => format!("{}h", minutes / 60),
            _ => format!("{}m", minutes.max(1)),
        };
        format!("drift {} repaired ({time})", self.drift_repaired)
    }
}

/// A job in the overview.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRow {
    /// The job.
    pub key: JobKey,
    /// The current version, from 0.
    pub version: u64,
    /// The oldest version that is still running; `None` if it is the current one.
    pub from_version: Option<u64>,
    /// Whether it is being stopped and removed.
    pub deleting: bool,
    /// Whether it is stopped but kept.
    #[serde(default)]
    pub stopped: bool,
    /// The file that defines another version than the one that a revert put in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
    /// Whether servers have placed it here (node mode): then only its part on this machine is counted.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub placed: bool,
    /// Its progress.
    pub state: ConvergenceState,
    /// Since when.
    pub since: UnixNanos,
    /// The number of healthy allocations.
    pub healthy: u64,
    /// The number of wanted allocations.
    pub wanted: u64,
    /// The next step, or what the job waits for; empty if there is nothing.
    pub next: String,
    /// The allocation that `next` is about; `None` for the job itself.
    pub next_alloc: Option<AllocId>,
    /// The deadline of the next step, by its plan.
    pub due: Option<UnixNanos>,
}

impl JobRow {
    /// The version for people: `7→8` while something of version 7 still runs.
    pub fn versions(&self) -> String {
        self.from_version.map_or_else(|| self.version.to_string(), |from| format!("{from}→{}", self.version))
    }

    /// The state for people, including the intention to stop or delete it.
    pub fn progress_text(&self) -> String {
        format!("{}{}", fate(self.deleting, self.stopped), self.state_text())
    }

    /// The state: `held` where a converged job is not what its file defines.
    pub fn state_text(&self) -> &'static str {
        let is_held = self.held.is_some() && self.state == ConvergenceState::Converged;
        if is_held { HELD } else { self.state.as_str() }
    }

    /// The next step for people, with the remaining time.
    pub fn outlook(&self, now: UnixNanos) -> String {
        let left =
            self.due.map(|due| Duration(due.0.saturating_sub(now.0))).filter(|left| *left > Duration::ZERO);
        match left {
            Some(left) if !self.next.is_empty() => format!("{} (at most {})", self.next, left.rounded()),
            Some(_) | None => self.next.clone(),
        }
    }
}

/// The intention as a prefix of the state; empty if the job should run.
pub fn fate(deleting: bool, stopped: bool) -> &'static str {
    match (deleting, stopped) {
        (true, _) => "deleting, ",
        (false, true) => "stopped, ",
        (false, false) => "",
    }
}

/// A difference between a part and its wanted state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drift {
    /// The time it was found.
    pub at: UnixNanos,
    /// The job.
    pub job: JobKey,
    /// The allocation as `job.group[index]`.
    pub name: String,
    /// The allocation's id.
    pub alloc: AllocId,
    /// The task; `None` for a part of the allocation.
    pub task: Option<String>,
    /// The kind of part: `alloc_dir`, `task_dir`, `mount`, `process`, `identity`, `service`, `check`, `cgroup`,
    /// `record`.
    pub kind: String,
    /// How it was found: `event`, `look`.
    pub by: String,
    /// What differed; `None` from an agent that does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Its state.
    pub state: DriftState,
    /// The time until the repair; `None` if it was not repaired.
    pub took: Option<Duration>,
}

/// The state of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DriftState {
    /// It still exists.
    Open,
    /// It was repaired.
    Repaired,
    /// The part is no longer wanted.
    Dropped,
}

impl DriftState {
    /// The name in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Repaired => "repaired",
            Self::Dropped => "dropped",
        }
    }
}

/// A change of an allocation's verdict, or of whether a job is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    /// The time.
    pub at: UnixNanos,
    /// The job.
    pub job: JobKey,
    /// `job.group[index]`, or the job.
    pub name: String,
    /// The allocation's id; `None` for an event of a job.
    pub alloc: Option<AllocId>,
    /// The new verdict.
    pub state: TransitionState,
    /// The cause in a sentence.
    pub cause: String,
}

/// The verdict on an allocation or its removal, or that a job is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransitionState {
    /// Everything is as wanted.
    Converged,
    /// Work is in progress.
    Progressing,
    /// It waits for something.
    Waiting,
    /// It failed permanently.
    Failed,
    /// It was removed completely.
    Gone,
    /// The job was rolled back: its file is not in force.
    Held,
}

impl TransitionState {
    /// The name in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Converged => ConvergenceState::Converged.as_str(),
            Self::Progressing => ConvergenceState::Progressing.as_str(),
            Self::Waiting => ConvergenceState::Waiting.as_str(),
            Self::Failed => ConvergenceState::Failed.as_str(),
            Self::Gone => "gone",
            Self::Held => HELD,
        }
    }
}

impl From<ConvergenceState> for TransitionState {
    fn from(state: ConvergenceState) -> Self {
        match state {
            ConvergenceState::Converged => Self::Converged,
            ConvergenceState::Progressing => Self::Progressing,
            ConvergenceState::Waiting => Self::Waiting,
            ConvergenceState::Failed => Self::Failed,
        }
    }
}
