//! Whether a job has converged: each of its slots holds a converged allocation of its current version, and nothing else
//! of it is live.
//!
//! In: the job, its allocations, their verdicts. Out: one verdict, with the worst reason. A change of one allocation's
//! verdict is applied without visiting the others, so that a large job costs no more per allocation than a small one.

use core::{
    cmp::Reverse,
    fmt::{self, Display, Formatter},
};
use std_alloc::{collections::BTreeSet, format, string::String};

use herdlet_api_types::{
    AllocId, JobKey, Moment,
    alloc::Desired,
    deployment::DeploymentStatus,
    job::Group,
    view::{Convergence, ConvergenceState, Reason, Unplaced},
};

use crate::{
    job::{
        deployment::{DeploymentState, healthy_canaries},
        placed::{has_ended, is_bad, is_lost},
        same_work,
    },
    status::{became_healthy_late, failure_of, quarantined},
    world::{
        JobEntry, World,
        allocs::{AllocEntry, Allocs},
        poststop::has_begun_poststop,
    },
};

/// What of a job has not converged.
#[derive(Debug, Default)]
pub(crate) struct Open {
    /// Worst first, then group and slot in the job's order.
    slots: BTreeSet<(Reverse<ConvergenceRank>, usize, usize)>,
    /// An allocation that is still being stopped; the first if there are several.
    lingering: Option<AllocId>,
}

type ConvergenceRank = u8;

impl Open {
    /// Visits all slots and allocations of the job.
    pub(crate) fn of(key: &JobKey, job: &JobEntry, allocs: &Allocs) -> Self {
        let mut slots = BTreeSet::new();
        for (at, group) in job.current.groups.iter().enumerate() {
            for index in 0..usize::try_from(job.current.desired_count(group)).unwrap_or(usize::MAX) {
                let state = state_of(job, group, slot(job, allocs, group, index));
                slots.extend((rank(state) > 0).then_some((Reverse(rank(state)), at, index)));
            }
        }
        let lingers =
            |alloc: &AllocEntry| alloc.spec.desired != Desired::Run && !has_ended(&alloc.state.durable);
        let lingering = allocs.of_job(key).find(|(_, alloc)| lingers(alloc)).map(|(id, _)| id);
        Self { slots, lingering }
    }
}

impl World {
    /// Applies a changed verdict of one of the job's allocations.
    pub(crate) fn note_verdict(&mut self, id: AllocId) {
        let Some(alloc) = self.allocs.get(id) else { return };
        let Some(job) = self.jobs.get_mut(&alloc.spec.job_key) else { return };
        if job.stale {
            return;
        }
        let Some(at) = job.current.groups.iter().position(|group| group.name == alloc.spec.group) else {
            return;
        };
        let (group, index) =
            (&job.current.groups[at], usize::try_from(alloc.spec.index).unwrap_or(usize::MAX));
        let holder = job.state.slots.get(&group.name).and_then(|slots| slots.get(index));
        if alloc.spec.index >= job.current.desired_count(group)
            || holder.is_none_or(|slot| slot.alloc != Some(id))
        {
            return;
        }
        let state = state_of(job, group, Some(alloc));
        for rank in 1..=RANK_MAX {
            job.open.slots.remove(&(Reverse(rank), at, index));
        }
        if rank(state) > 0 {
            job.open.slots.insert((Reverse(rank(state)), at, index));
        }
    }
}

impl JobEntry {
    /// The job's verdict. Of equally bad reasons the first counts.
    pub(crate) fn convergence(&self, key: &JobKey, allocs: &Allocs) -> Convergence {
        let mut worst = Worst::default();
        if let Some(why) = &self.quarantine {
            worst.weigh(ConvergenceState::Failed, || plain(Reason::Error, &quarantined(why)));
        }
        if self.state.deleting {
            worst.weigh(ConvergenceState::Progressing, || {
                let mut endless = allocs.of_job(key).filter_map(|(_, alloc)| poststop_of(alloc));
                let why = endless.next().map_or_else(String::new, |why| format!(", {why}"));
                plain(Reason::Operation, &format!("is being deleted{why}"))
            });
            // Name what blocks: a deletion that can't finish must not look like one that makes progress.
            for (_, alloc) in allocs.of_job(key) {
                let waiting = alloc.verdict.as_ref().filter(|known| known.state == ConvergenceState::Waiting);
                let Some(verdict) = waiting else { continue };
                worst.weigh(verdict.state, || Why {
                    reason: verdict.reason.unwrap_or(Reason::Operation),
                    message: format!("is being deleted, {}: {}", alloc.spec.name(), verdict.message),
                    overdue_at: verdict.overdue_at,
                });
            }
        }
        if let Some(Unplaced { reason, message, .. }) = self.unplaced.values().next() {
            worst.weigh(ConvergenceState::Waiting, || plain(*reason, message));
        }
        self.weigh_deployment(key, allocs, &mut worst);
        if let Some(slot) = self.worst_slot(allocs) {
            worst.weigh(slot.state, || slot.why(self, key));
        }
        if let Some(alloc) = self.open.lingering.and_then(|id| allocs.get(id)) {
            worst.weigh(ConvergenceState::Progressing, || {
                let why = poststop_of(alloc);
                let why = why.unwrap_or_else(|| format!("{} is being stopped", alloc.spec.name()));
                plain(Reason::Operation, &why)
            });
        }
        worst.verdict()
    }
}

impl JobEntry {
    /// The first of the worst slots that have not converged.
    fn worst_slot<'a>(&'a self, allocs: &'a Allocs) -> Option<OpenSlot<'a>> {
        let (_, at, index) = self.open.slots.first()?;
        let group = self.current.groups.get(*at)?;
        let alloc = slot(self, allocs, group, *index);
        Some(OpenSlot { group, index: *index, alloc, state: state_of(self, group, alloc) })
    }

    /// Weighs the deployment of the current version: it failed, or its canaries are not promoted.
    fn weigh_deployment(&self, key: &JobKey, allocs: &Allocs, worst: &mut Worst) {
        let Some(known) = self.state.deployment().filter(|_| !self.state.deleting) else { return };
        let deployment = &known.deployment;
        let is_open = !self.open.slots.is_empty();
        match deployment.status {
            DeploymentStatus::Failed if is_open => {
                worst.weigh(ConvergenceState::Failed, || {
                    let slot = self.worst_slot(allocs).filter(|slot| slot.state == ConvergenceState::Failed);
                    let why = slot.map_or(String::new(), |slot| format!(": {}", slot.why(self, key).message));
                    plain(Reason::Error, &format!("{}{why}", deployment.description))
                });
            }
            DeploymentStatus::Running if deployment.paused => {
                let id = deployment.id.short();
                let message =
                    format!("its deployment is paused; to resume it: herdlet deployment resume {id}");
                worst.weigh(ConvergenceState::Waiting, || plain(Reason::Promotion, &message));
            }
            DeploymentStatus::Running => self.weigh_canaries(key, known, allocs, worst),
            DeploymentStatus::Failed | DeploymentStatus::Successful | DeploymentStatus::Cancelled => {}
        }
    }

    fn weigh_canaries(&self, key: &JobKey, known: &DeploymentState, allocs: &Allocs, worst: &mut Worst) {
        let find = |id| allocs.placement(id);
        for (name, group) in known.deployment.groups.iter().filter(|(_, group)| group.is_canarying()) {
            let healthy = healthy_canaries(group, &find);
            let canaries = group.placed_canaries.iter().filter_map(|id| allocs.get(*id));
            let bad = canaries.clone().find(|canary| is_bad(&canary.state.durable));
            if let Some(canary) = bad {
                worst.weigh(bad_state(self, known, name), || why_bad(self, known, canary));
            } else if healthy < group.desired_canaries {
                let wanted = group.desired_canaries;
                let (state, reason, more) = if canaries.clone().any(needs_manual_health) {
                    (
                        ConvergenceState::Waiting,
                        Reason::Promotion,
                        "; others wait for a manual health decision",
                    )
                } else {
                    (ConvergenceState::Progressing, Reason::Health, "")
                };
                worst.weigh(state, || Why {
                    reason,
                    message: format!("group {name}: {healthy} of {wanted} canaries are healthy{more}"),
                    overdue_at: overdue_at(known, name),
                });
            } else if !group.auto_promote {
                let message = format!(
                    "group {name}: its canaries are healthy; to promote them: herdlet promote {}",
                    key.argument()
                );
                worst.weigh(ConvergenceState::Waiting, || plain(Reason::Promotion, &message));
            }
        }
    }
}

/// The message of a stopping allocation about its running poststop task, which may run forever.
fn poststop_of(alloc: &AllocEntry) -> Option<String> {
    let message = alloc.verdict.as_ref().map(|verdict| &verdict.message)?;
    let runs = alloc.spec.desired != Desired::Run && has_begun_poststop(alloc);
    runs.then(|| format!("{}: {message}", alloc.spec.name()))
}

/// What a bad allocation of a deployment means for its job: failure, unless the deployment reverts the job.
fn bad_state(job: &JobEntry, known: &DeploymentState, group: &str) -> ConvergenceState {
    let reverts = known.deployment.is_running() && known.group(group).is_some_and(|group| group.auto_revert);
    let back = || job.state.newest_stable(|version| job.text(version));
    // A version with the same specification is no target of a revert.
    if reverts && back().is_some_and(|(_, stable)| stable != job.current) {
        ConvergenceState::Progressing
    } else {
        ConvergenceState::Failed
    }
}

fn why_bad(job: &JobEntry, known: &DeploymentState, alloc: &AllocEntry) -> Why {
    let (name, why) = (alloc.spec.title(), why_lost(alloc));
    match bad_state(job, known, &alloc.spec.group) {
        ConvergenceState::Progressing => Why {
            reason: Reason::Health,
            message: format!("{name}: {why}; its deployment will fail and revert the job"),
            overdue_at: overdue_at(known, &alloc.spec.group),
        },
        ConvergenceState::Failed | ConvergenceState::Converged | ConvergenceState::Waiting => {
            plain(Reason::Error, &format!("{name}: {why}"))
        }
    }
}

/// Why an allocation has failed. Its verdict may be older than its failure: the job can be planned first.
fn why_lost(alloc: &AllocEntry) -> String {
    let failed = alloc.verdict.as_ref().filter(|verdict| verdict.state == ConvergenceState::Failed);
    failed
        .map(|verdict| verdict.message.clone())
        .or_else(|| failure_of(&alloc.state))
        .or_else(|| alloc.state.durable.verdict_outdated.then(|| became_healthy_late(&alloc.spec)))
        .or_else(|| alloc.verdict.as_ref().map(|verdict| verdict.message.clone()))
        .unwrap_or_else(|| String::from(&*alloc.state.durable.description))
}

/// It becomes healthy only by request.
fn needs_manual_health(alloc: &AllocEntry) -> bool {
    alloc.verdict.as_ref().is_some_and(|verdict| verdict.reason == Some(Reason::Promotion))
}

fn overdue_at(known: &DeploymentState, group: &str) -> Option<Moment> {
    known.progress_by.get(group).map(|by| Moment { wall: by.wall, boot_ns: by.boot_ns })
}

/// The deployment that an allocation of the current version is part of.
fn deployment_of<'j>(job: &'j JobEntry, group: &Group) -> Option<&'j DeploymentState> {
    job.state.deployment().filter(|known| known.group(&group.name).is_some())
}

/// A slot that has not converged.
struct OpenSlot<'a> {
    group: &'a Group,
    index: usize,
    alloc: Option<&'a AllocEntry>,
    state: ConvergenceState,
}

impl OpenSlot<'_> {
    fn why(&self, job: &JobEntry, key: &JobKey) -> Why {
        let name = SlotName { key, group: &self.group.name, index: self.index };
        why_of(job, self.group, self.alloc, &name)
    }
}

/// Name of a slot in output, also of one without an allocation.
struct SlotName<'a> {
    key: &'a JobKey,
    group: &'a str,
    index: usize,
}

impl Display for SlotName<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}[{}]", self.key.id, self.group, self.index)
    }
}

fn slot<'a>(job: &JobEntry, allocs: &'a Allocs, group: &Group, index: usize) -> Option<&'a AllocEntry> {
    job.state.slots.get(&group.name)?.get(index)?.alloc.and_then(|id| allocs.get(id))
}

/// Whether the allocation does the work of the job's current version and is to run.
pub(super) fn is_current(job: &JobEntry, group: &Group, alloc: &AllocEntry) -> bool {
    alloc.spec.desired == Desired::Run && same_work(&alloc.spec.job, &job.current, &group.name)
}

/// Whether its job has lost the allocation. A running deployment counts each verdict, also on one that is healthy now.
fn is_lost_for(job: &JobEntry, alloc: &AllocEntry) -> bool {
    let known = &alloc.state.durable;
    let is_counting = |of: &DeploymentState| {
        of.deployment.is_running() && alloc.spec.deployment.is_some_and(|own| own.id == of.deployment.id)
    };
    is_lost(known)
        || is_bad(known) && known.reschedule().is_none() && job.state.deployment().is_some_and(is_counting)
}

fn state_of(job: &JobEntry, group: &Group, alloc: Option<&AllocEntry>) -> ConvergenceState {
    match alloc {
        Some(alloc) if is_current(job, group, alloc) => match &alloc.verdict {
            _ if is_lost_for(job, alloc) => match deployment_of(job, group) {
                Some(known) => bad_state(job, known, &group.name),
                None => ConvergenceState::Failed,
            },
            // The decision that another one follows is made after its own verdict.
            Some(verdict)
                if verdict.state == ConvergenceState::Failed
                    && alloc.state.durable.reschedule().is_some() =>
            {
                ConvergenceState::Waiting
            }
            Some(verdict) => verdict.state,
            None => ConvergenceState::Progressing,
        },
        Some(_) | None => ConvergenceState::Progressing,
    }
}

fn why_of(job: &JobEntry, group: &Group, alloc: Option<&AllocEntry>, name: &SlotName<'_>) -> Why {
    let progressing = |what: &str| plain(Reason::Operation, &format!("{name} {what}"));
    let Some(alloc) = alloc else { return progressing("does not exist yet") };
    match &alloc.verdict {
        _ if !is_current(job, group, alloc) => progressing("is being replaced"),
        _ if is_lost_for(job, alloc) => match deployment_of(job, group) {
            Some(deployment) => why_bad(job, deployment, alloc),
            None => plain(Reason::Error, &format!("{name}: {}", why_lost(alloc))),
        },
        Some(verdict) => Why {
            reason: verdict.reason.unwrap_or(Reason::Operation),
            message: format!("{name}: {}", verdict.message),
            overdue_at: verdict.overdue_at,
        },
        None => progressing("is about to be planned"),
    }
}

/// The worst verdict among a job's allocations; of equally bad ones the first.
#[derive(Default)]
struct Worst(Option<(ConvergenceState, Why)>);

/// Why a job has not converged.
struct Why {
    reason: Reason,
    message: String,
    overdue_at: Option<Moment>,
}

impl Worst {
    /// Weighs one verdict. `why` is only called if it counts: of a large job nearly every allocation may be
    /// progressing.
    fn weigh(&mut self, state: ConvergenceState, why: impl FnOnce() -> Why) {
        let worst = self.0.as_ref().map_or(ConvergenceState::Converged, |(worst, _)| *worst);
        if rank(state) > rank(worst) {
            self.0 = Some((state, why()));
        }
    }

    fn verdict(self) -> Convergence {
        let (state, reason, message, overdue_at) = match self.0 {
            None => (ConvergenceState::Converged, None, String::new(), None),
            Some((state, why)) => (state, Some(why.reason), why.message, why.overdue_at),
        };
        Convergence { state, reason, message, since: Moment::default(), overdue_at }
    }
}

fn plain(reason: Reason, message: &str) -> Why {
    Why { reason, message: String::from(message), overdue_at: None }
}

/// The highest value of [`rank`].
const RANK_MAX: ConvergenceRank = 3;

fn rank(state: ConvergenceState) -> ConvergenceRank {
    match state {
        ConvergenceState::Converged => 0,
        ConvergenceState::Progressing => 1,
        ConvergenceState::Waiting => 2,
        ConvergenceState::Failed => 3,
    }
}
