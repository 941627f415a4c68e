//! The one screen: how far everything is, a row for each job. Behind `herdlet status`, `herdlet top` and the page at `/ui`.

use std_alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

use serde::{Deserialize, Serialize};

use crate::{AllocId, Duration, JobKey, UnixNanos, view::ConvergenceState};

/// Answer of `GET /v1/herdlet/overview`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overview {
    /// The commit that it shows.
    pub index: u64,
    /// Jobs that are as wanted.
    pub converged: u64,
    /// Age of the oldest wanted change that is still being made true; 0 when none is.
    pub lag: Duration,
    /// Objects that are not as wanted past the deadline that their own plan declared.
    pub overdue: u64,
    /// Differences from what is wanted that were repaired within the last 24 hours, while this agent ran.
    pub drift_repaired: u64,
    /// How much of these 24 hours the agent has seen.
    #[serde(default)]
    pub drift_known: Duration,
    /// All jobs but children that are complete; those that are not as wanted come first.
    pub jobs: Vec<JobRow>,
    /// Jobs that have no row: children that are complete, counted with their parent.
    #[serde(default)]
    pub complete_children: u64,
}

impl Overview {
    /// How many jobs there are, with a row or not.
    pub fn job_count(&self) -> u64 {
        self.jobs.len() as u64 + self.complete_children
    }

    /// How many differences were repaired, and in what time: a day, or less where the agent has not run for one.
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

/// A job on that screen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRow {
    /// Which.
    pub key: JobKey,
    /// The current version, from 0.
    pub version: u64,
    /// The oldest version of which something still runs; none where that is the current one.
    pub from_version: Option<u64>,
    /// It is being stopped and will be forgotten.
    pub deleting: bool,
    /// It is to stop and is kept.
    #[serde(default)]
    pub stopped: bool,
    /// Servers have placed it here (node mode): only as much of it is counted as is on this machine.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub placed: bool,
    /// How far it has come.
    pub state: ConvergenceState,
    /// Since when.
    pub since: UnixNanos,
    /// Allocations that are healthy now.
    pub healthy: u64,
    /// Allocations that are wanted.
    pub wanted: u64,
    /// What happens next, or what is waited for; empty where nothing is.
    pub next: String,
    /// The allocation that this is about; none where it is about the job itself.
    pub next_alloc: Option<AllocId>,
    /// When that is to be over by its own plan.
    pub due: Option<UnixNanos>,
}

impl JobRow {
    /// The version for people: `7→8` while something of version 7 still runs.
    pub fn versions(&self) -> String {
        self.from_version.map_or_else(|| self.version.to_string(), |from| format!("{from}→{}", self.version))
    }

    /// How far it has come for people, after what is to become of it.
    pub fn standing(&self) -> String {
        format!("{}{}", fate(self.deleting, self.stopped), self.state.as_str())
    }

    /// What happens next for people, and how long that may still take.
    pub fn outlook(&self, now: UnixNanos) -> String {
        let left =
            self.due.map(|due| Duration(due.0.saturating_sub(now.0))).filter(|left| *left > Duration::ZERO);
        match left {
            Some(left) if !self.next.is_empty() => format!("{} (at most {})", self.next, left.rounded()),
            Some(_) | None => self.next.clone(),
        }
    }
}

/// What is to become of a job, before the word for how far that has come; empty of one that is to run.
pub fn fate(deleting: bool, stopped: bool) -> &'static str {
    match (deleting, stopped) {
        (true, _) => "deleting, ",
        (false, true) => "stopped, ",
        (false, false) => "",
    }
}

/// Something that was not as it was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drift {
    /// When that was found.
    pub at: UnixNanos,
    /// Whose it is.
    pub job: JobKey,
    /// Its allocation, as `job.group[index]`.
    pub name: String,
    /// The allocation's id.
    pub alloc: AllocId,
    /// Its task; none where it is the allocation's own.
    pub task: Option<String>,
    /// What it is: `alloc_dir`, `task_dir`, `mount`, `process`, `identity`, `service`, `check`, `cgroup`, `record`.
    pub kind: String,
    /// How it was noticed: `event`, `look`.
    pub by: String,
    /// What has become of it.
    pub state: DriftState,
    /// How long it took until it was repaired; none where it was not.
    pub took: Option<Duration>,
}

/// What has become of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DriftState {
    /// It is there.
    Open,
    /// It was repaired.
    Repaired,
    /// What differed is no longer wanted.
    Dropped,
}

impl DriftState {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Repaired => "repaired",
            Self::Dropped => "dropped",
        }
    }
}

/// An allocation whose verdict has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    /// When.
    pub at: UnixNanos,
    /// Whose allocation it is.
    pub job: JobKey,
    /// `job.group[index]`.
    pub name: String,
    /// Its id.
    pub alloc: AllocId,
    /// The verdict from then on.
    pub state: TransitionState,
    /// Why, in a sentence.
    pub cause: String,
}

/// What an allocation is from then on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransitionState {
    /// All is as wanted.
    Converged,
    /// Work is going on.
    Progressing,
    /// It waits for something.
    Waiting,
    /// It failed for good.
    Failed,
    /// Nothing of it is left.
    Gone,
}

impl TransitionState {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Converged => ConvergenceState::Converged.as_str(),
            Self::Progressing => ConvergenceState::Progressing.as_str(),
            Self::Waiting => ConvergenceState::Waiting.as_str(),
            Self::Failed => ConvergenceState::Failed.as_str(),
            Self::Gone => "gone",
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
