//! Counters, fed by the planner's notes and by published changes.
//!
//! Notes come from the loop, so the lock is held only for an insertion into a map.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use herdlet_api_types::{
    AllocId, JobKey,
    gc::{CollectableKind, Due},
    task::TaskPhase,
    view::{AllocView, ConvergenceState, JobView},
};
use herdlet_plan::turn::{Drifted, Note};
use herdlet_runtime::metrics::Histogram;

/// The number of series of jobs up to which forgotten jobs keep theirs.
const JOB_SERIES_MAX: usize = 4_096;

/// Everything that may drift: the planner's names for parts, and cgroups and records. The counters start at zero, so
/// that a rate over them is correct from the first drift on.
pub(super) const DRIFT_KINDS: [&str; 11] = [
    "alloc_dir",
    "cgroup",
    "check",
    "consul",
    "identity",
    "mount",
    "process",
    "record",
    "service",
    "task_dir",
    "vault",
];

#[derive(Debug)]
pub(super) struct Counts {
    pub(super) reconciled: BTreeMap<(&'static str, &'static str), u64>,
    pub(super) drift_detected: BTreeMap<(&'static str, &'static str), u64>,
    pub(super) drift_repaired: BTreeMap<&'static str, u64>,
    pub(super) drift_repair: BTreeMap<&'static str, Histogram>,
    pub(super) converged: BTreeMap<&'static str, Histogram>,
    pub(super) disruptions: BTreeMap<(JobKey, &'static str), u64>,
    pub(super) restarts: BTreeMap<(JobKey, String, &'static str), u64>,
    pub(super) ooms: BTreeMap<(JobKey, String), u64>,
    pub(super) starts: BTreeMap<String, Histogram>,
    pub(super) orphans: BTreeMap<&'static str, u64>,
    pub(super) orphans_removed: BTreeMap<&'static str, u64>,
    pub(super) collected: BTreeMap<(&'static str, &'static str), u64>,
    pub(super) authentication_failures: BTreeMap<&'static str, u64>,
    pub(super) converged_versions: BTreeMap<JobKey, u64>,
    starting: BTreeMap<(AllocId, String), Starting>,
}

/// An attempt that was seen starting.
#[derive(Debug)]
struct Starting {
    attempt: u32,
    since: Instant,
}

impl Default for Counts {
    fn default() -> Self {
        let mut reconciled = BTreeMap::new();
        for kind in ["job", "alloc", "volume"] {
            for result in ["unchanged", "changed", "waiting"] {
                reconciled.insert((kind, result), 0);
            }
        }
        let mut drift_detected = BTreeMap::new();
        for kind in DRIFT_KINDS {
            for by in ["event", "look"] {
                drift_detected.insert((kind, by), 0);
            }
        }
        let mut collected = BTreeMap::new();
        for kind in [CollectableKind::Job, CollectableKind::Alloc] {
            for why in Due::ALL {
                collected.insert((kind.as_str(), why.as_str()), 0);
            }
        }
        Self {
            reconciled,
            drift_detected,
            drift_repaired: DRIFT_KINDS.into_iter().map(|kind| (kind, 0)).collect(),
            drift_repair: DRIFT_KINDS.into_iter().map(|kind| (kind, Histogram::default())).collect(),
            converged: ["apply", "boot"].into_iter().map(|cause| (cause, Histogram::default())).collect(),
            disruptions: BTreeMap::new(),
            restarts: BTreeMap::new(),
            ooms: BTreeMap::new(),
            starts: BTreeMap::new(),
            orphans: BTreeMap::new(),
            orphans_removed: BTreeMap::new(),
            collected,
            authentication_failures: Unknown::ALL.map(|why| (why.as_str(), 0)).into(),
            converged_versions: BTreeMap::new(),
            starting: BTreeMap::new(),
        }
    }
}

impl Counts {
    /// Counts a note of the planner.
    pub(super) fn note(&mut self, note: &Note) {
        match note {
            Note::DriftDetected { of: Drifted { kind, .. }, by, why: _ } => {
                *self.drift_detected.entry((kind, by.as_str())).or_default() += 1;
            }
            Note::DriftDropped { .. } => {}
            Note::DriftRepaired { of: Drifted { kind, .. }, took_ns } => {
                *self.drift_repaired.entry(kind).or_default() += 1;
                if let Some(took_ns) = took_ns {
                    self.drift_repair.entry(kind).or_default().observe(Duration::from_nanos(*took_ns));
                }
            }
            Note::TaskRestart { job, task, reason } => {
                *self.restarts.entry((job.clone(), task.clone(), reason)).or_default() += 1;
            }
            Note::OutOfMemory { job, task } => {
                *self.ooms.entry((job.clone(), task.clone())).or_default() += 1;
            }
            Note::Disruption { job, cause } => {
                *self.disruptions.entry((job.clone(), cause)).or_default() += 1;
            }
            // A job's time includes those of its allocations, so counting both would count twice.
            Note::Converged { kind: "job", took_ns, cause } => {
                self.converged.entry(cause).or_default().observe(Duration::from_nanos(*took_ns));
            }
            Note::Converged { .. } => {}
            Note::Reconciled { kind, result } => *self.reconciled.entry((kind, result)).or_default() += 1,
        }
    }

    /// Updates the counts for a published job.
    pub(super) fn job(&mut self, view: &JobView) {
        if view.convergence.state == ConvergenceState::Converged {
            self.converged_versions.insert(view.key.clone(), view.version);
        }
    }

    /// Updates the counts for a published allocation.
    pub(super) fn alloc(&mut self, view: &AllocView) {
        for task in &view.tasks {
            let key = (view.spec.id, String::from(&*task.name));
            match task.phase {
                TaskPhase::Starting => {
                    let known = self.starting.get(&key).is_some_and(|known| known.attempt == task.attempt);
                    if !known {
                        let starting = Starting { attempt: task.attempt, since: Instant::now() };
                        self.starting.insert(key.clone(), starting);
                    }
                }
                TaskPhase::Waiting
                | TaskPhase::BackingOff
                | TaskPhase::Running
                | TaskPhase::Stopping
                | TaskPhase::Dead => {
                    let began = self.starting.remove(&key).filter(|known| known.attempt == task.attempt);
                    let driver = view.spec.task(&task.name).map(|task| task.driver.clone());
                    if let (Some(began), Some(driver), TaskPhase::Running) = (began, driver, task.phase) {
                        self.starts.entry(driver).or_default().observe(began.since.elapsed());
                    }
                }
            }
        }
    }

    /// Drops the state of a forgotten allocation.
    pub(super) fn alloc_gone(&mut self, id: AllocId) {
        self.starting.retain(|(alloc, _), _| *alloc != id);
    }

    /// Drops the state of a forgotten job. Its counters stay for the next scrape, unless there are too many.
    pub(super) fn job_gone(&mut self, key: &JobKey) {
        self.converged_versions.remove(key);
        self.bound(|job| job != key);
    }

    /// Drops the state of all objects except these, as [`Counts::alloc_gone`] and [`Counts::job_gone`] do.
    pub(super) fn prune(&mut self, jobs: &BTreeSet<JobKey>, allocs: &BTreeSet<AllocId>) {
        self.starting.retain(|(alloc, _), _| allocs.contains(alloc));
        self.converged_versions.retain(|job, _| jobs.contains(job));
        self.bound(|job| jobs.contains(job));
    }

    fn bound(&mut self, keep: impl Fn(&JobKey) -> bool) {
        if self.restarts.len() + self.disruptions.len() + self.ooms.len() > JOB_SERIES_MAX {
            self.restarts.retain(|(job, _, _), _| keep(job));
            self.disruptions.retain(|(job, _), _| keep(job));
            self.ooms.retain(|(job, _), _| keep(job));
        }
    }
}

/// Why a caller is rejected; the labels of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// A token is required, and the request has none.
    Missing,
    /// The token is wrong.
    Wrong,
}

impl Unknown {
    pub const ALL: [Self; 2] = [Self::Missing, Self::Wrong];

    /// The label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Wrong => "wrong",
        }
    }
}
