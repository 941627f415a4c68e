//! Gauges of the read model, computed on request.
//!
//! So a stuck node still ages, an idle one stays idle, and no gauge is updated between scrapes.

use std::collections::{BTreeMap, BTreeSet};

use herdlet_api_types::{
    alloc::{ClientStatus, Desired},
    service::CheckStatus,
    task::TaskStatus,
    view::{AllocView, Convergence, ConvergenceState, Reason},
    volume::VolumeStatus,
};

use herdlet_plan::job::capacity::Room;

use crate::publish::ReadModel;

const STATES: [ConvergenceState; 4] = [
    ConvergenceState::Converged,
    ConvergenceState::Progressing,
    ConvergenceState::Waiting,
    ConvergenceState::Failed,
];

const REASONS: [Reason; 11] = [
    Reason::Dependency,
    Reason::Capacity,
    Reason::Constraint,
    Reason::Port,
    Reason::Backoff,
    Reason::Health,
    Reason::Promotion,
    Reason::Operation,
    Reason::Delay,
    Reason::Manifest,
    Reason::Error,
];

/// A deadline that passes wakes the loop, whose turn takes a moment; anything open after this time is late.
const OVERDUE_GRACE_NS: u64 = 1_000_000_000;

/// The gauges at one moment.
#[derive(Debug, Default)]
pub struct Gauges {
    pub(super) objects: BTreeMap<(&'static str, &'static str), u64>,
    pub(super) unconverged: BTreeMap<(&'static str, &'static str), u64>,
    pub overdue: BTreeMap<&'static str, u64>,
    /// In nanoseconds.
    pub(crate) lag_ns: u64,
    pub(super) versions: BTreeMap<(String, String), u64>,
    /// Jobs that are held at another version than their file's.
    pub(super) held: BTreeSet<(String, String)>,
    pub(super) allocations: BTreeMap<&'static str, u64>,
    pub(super) tasks: BTreeMap<&'static str, u64>,
    /// The resources that live allocations use.
    pub(super) allocated: Room,
    pub(super) checks: BTreeMap<(String, String, String, String, &'static str), u64>,
}

impl Gauges {
    /// Reads the model at `now_ns` of the boot clock; the wall clock may have been set in the meantime.
    pub fn of(model: &ReadModel, now_ns: u64) -> Self {
        let mut gauges = Self::default();
        for kind in ["job", "alloc", "volume"] {
            STATES.iter().for_each(|state| {
                gauges.objects.insert((kind, state.as_str()), 0);
            });
            REASONS.iter().for_each(|reason| {
                gauges.unconverged.insert((kind, reason.as_str()), 0);
            });
            gauges.overdue.insert(kind, 0);
        }
        for job in model.jobs() {
            gauges.count("job", &job.convergence, now_ns);
            let labels = (job.key.namespace.to_string(), job.key.id.to_string());
            if job.held.is_some() {
                gauges.held.insert(labels.clone());
            }
            gauges.versions.insert(labels, job.version);
        }
        for status in
            [ClientStatus::Pending, ClientStatus::Running, ClientStatus::Complete, ClientStatus::Failed]
        {
            gauges.allocations.insert(status.as_str(), 0);
        }
        for state in [TaskStatus::Pending, TaskStatus::Running, TaskStatus::Dead] {
            gauges.tasks.insert(state.as_str(), 0);
        }
        for alloc in model.allocs() {
            if counts(&alloc) {
                gauges.count("alloc", &alloc.convergence, now_ns);
            }
            *gauges.allocations.entry(alloc.status.as_str()).or_default() += 1;
            if let Some(group) = alloc.spec.group().filter(|_| !alloc.status.is_terminal()) {
                gauges.allocated = gauges.allocated.plus(Room::of(group));
                let of_cores = alloc.spec.task_cores.values().map(|assigned| assigned.cpu_mhz);
                gauges.allocated.cpu_mhz = of_cores.fold(gauges.allocated.cpu_mhz, u64::saturating_add);
            }
            for task in &alloc.tasks {
                *gauges.tasks.entry(task.state.as_str()).or_default() += 1;
            }
            for check in &alloc.checks {
                let job = &alloc.spec.job_key;
                for status in CheckStatus::ALL {
                    let labels = (
                        job.namespace.to_string(),
                        job.id.to_string(),
                        check.service.clone(),
                        check.check.clone(),
                        status.as_str(),
                    );
                    *gauges.checks.entry(labels).or_default() += u64::from(check.status == status);
                }
            }
        }
        for volume in model.volumes() {
            gauges.volume(&volume.status);
        }
        gauges
    }

    /// The number of converged jobs, and of all jobs.
    pub fn jobs(&self) -> (u64, u64) {
        let jobs = || self.objects.iter().filter(|((kind, _), _)| *kind == "job");
        let converged = ConvergenceState::Converged.as_str();
        (
            jobs().filter(|((_, state), _)| *state == converged).map(|(_, n)| n).sum(),
            jobs().map(|(_, n)| n).sum(),
        )
    }

    fn count(&mut self, kind: &'static str, convergence: &Convergence, now_ns: u64) {
        *self.objects.entry((kind, convergence.state.as_str())).or_default() += 1;
        if convergence.state == ConvergenceState::Converged {
            return;
        }
        let reason = convergence.reason.unwrap_or(Reason::Operation);
        *self.unconverged.entry((kind, reason.as_str())).or_default() += 1;
        // A failed object makes no further progress: it would be late forever, and hide objects in progress.
        if convergence.state == ConvergenceState::Failed {
            return;
        }
        if convergence.overdue_at.is_some_and(|at| at.boot_ns.saturating_add(OVERDUE_GRACE_NS) < now_ns) {
            *self.overdue.entry(kind).or_default() += 1;
        }
        if convergence.since.boot_ns > 0 {
            self.lag_ns = self.lag_ns.max(now_ns.saturating_sub(convergence.since.boot_ns));
        }
    }

    /// Counts a volume by its status, because volumes have no verdict.
    fn volume(&mut self, status: &VolumeStatus) {
        let (state, reason) = match status {
            VolumeStatus::Ready { .. } => (ConvergenceState::Converged, None),
            VolumeStatus::Pending => (ConvergenceState::Progressing, Some(Reason::Operation)),
            VolumeStatus::Failed { .. } => (ConvergenceState::Waiting, Some(Reason::Backoff)),
        };
        *self.objects.entry(("volume", state.as_str())).or_default() += 1;
        if let Some(reason) = reason {
            *self.unconverged.entry(("volume", reason.as_str())).or_default() += 1;
        }
    }
}

/// Whether the allocation is part of the desired state. One that was removed as desired is not, though it may stay
/// published for a while.
fn counts(view: &AllocView) -> bool {
    match view.spec.desired {
        Desired::Run => true,
        Desired::Stop | Desired::Gone => view.convergence.state != ConvergenceState::Converged,
    }
}
