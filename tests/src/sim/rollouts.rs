//! Invariants of rolling updates, checked on the published views.
//!
//! In: the views before and after a turn. Out: the first violation. At most `max_parallel` slots are between versions when
//! another is replaced; none is replaced while a new allocation is bad, or while canaries exist. A healthy allocation has
//! been so for `min_healthy_time`; an unhealthy one failed, or had all of `healthy_deadline`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use herdlet_api_types::{
    AllocId, DeploymentId, JobKey, UnixNanos,
    alloc::{Allocation, ClientStatus, Desired},
    deployment::{Deployment, DeploymentGroup},
    job::{Group, HealthCheck, Update},
    task::TaskStatus,
    view::{AllocView, JobView},
};
use herdlet_plan::job::same_work;

/// The changes of a turn to rolling updates.
#[derive(Debug, Default)]
pub struct Rollouts {
    /// Allocations stopped for a newer version.
    replaced: Vec<AllocId>,
    /// Allocations that became bad in this turn.
    newly_bad: BTreeSet<AllocId>,
    /// The views before this turn of jobs published in it. An allocation that was planned before its job decided on it is
    /// published a turn later, and then the job may have another version.
    before: BTreeMap<JobKey, Arc<JobView>>,
    /// The views before this turn of allocations that users stopped in it, for the same reason.
    asked: Vec<Arc<AllocView>>,
}

impl Rollouts {
    /// Checks a new view of an allocation.
    pub fn show(
        &mut self,
        was: Option<&Arc<AllocView>>,
        is: &AllocView,
        passed: Passed<'_>,
    ) -> Result<(), String> {
        let stops = |view: &AllocView| {
            view.spec.desired == Desired::Stop && view.spec.desired_description.contains("newer version")
        };
        let ran = was.filter(|was| was.spec.desired == Desired::Run);
        self.asked.extend(ran.filter(|_| is.spec.desired == Desired::Stop && !stops(is)).cloned());
        let was = was.map(|was| &**was);
        if stops(is) && !was.is_some_and(stops) {
            self.replaced.push(is.spec.id);
        }
        if is_bad(is) && !was.is_some_and(is_bad) {
            self.newly_bad.insert(is.spec.id);
        }
        // A user's health decision is not checked.
        let is_judged =
            |update: &&Update| update.health_check == HealthCheck::Manual && is.spec.deployment.is_some();
        let update =
            is.spec.group().and_then(|group| group.update.as_ref()).filter(|update| !is_judged(update));
        match (was.and_then(|view| view.verdict), is.verdict, update) {
            (None, Some(verdict), Some(update)) => may_judge(is, verdict, update, passed),
            // A deployment that adopts the allocation judges it again.
            (Some(before), after, _)
                if after != Some(before)
                    && was.is_some_and(|was| was.spec.deployment == is.spec.deployment) =>
            {
                Err(format!("the health of {} changed from {before} to {after:?}", is.spec.name()))
            }
            _ => Ok(()),
        }
    }

    /// A job is published again.
    pub fn show_job(&mut self, was: Arc<JobView>) {
        self.before.entry(was.key.clone()).or_insert(was);
    }

    /// Ends the turn: `jobs` and `allocs` contain all published views.
    pub fn end_turn(
        &mut self,
        jobs: &BTreeMap<JobKey, Arc<JobView>>,
        allocs: &BTreeMap<AllocId, Arc<AllocView>>,
    ) -> Result<(), String> {
        let newly_bad = std::mem::take(&mut self.newly_bad);
        let before = std::mem::take(&mut self.before);
        let asked = std::mem::take(&mut self.asked);
        for spec in self.replaced.drain(..).filter_map(|id| Some(&*allocs.get(&id)?.spec)) {
            let Some(job) = jobs.get(&spec.job_key) else { continue };
            let Err(broken) = may_take(spec, job, allocs, &newly_bad) else { continue };
            let was = before.get(&spec.job_key).filter(|was| was.version != job.version).unwrap_or(job);
            let mut were = allocs.clone();
            were.extend(asked.iter().map(|was| (was.spec.id, Arc::clone(was))));
            may_take(spec, was, &were, &newly_bad).map_err(|_| broken)?;
        }
        Ok(())
    }
}

/// Whether this allocation may be replaced for this version of its job.
fn may_take(
    spec: &Allocation,
    job: &JobView,
    allocs: &BTreeMap<AllocId, Arc<AllocView>>,
    newly_bad: &BTreeSet<AllocId>,
) -> Result<(), String> {
    let Some(group) = job.job.group(&spec.group) else { return Ok(()) };
    let Some(update) = &group.update else { return Ok(()) };
    let deployment = job.deployments.first().filter(|newest| newest.job_version == job.version);
    let canaries_stand =
        |newest: &Arc<Deployment>| newest.groups.get(&group.name).is_some_and(DeploymentGroup::is_canarying);
    if deployment.is_some_and(canaries_stand) {
        return Err(format!("{} is replaced while canaries exist", spec.name()));
    }
    let slots: Vec<Option<&AllocView>> =
        (0..group.count).map(|index| newest(allocs, job, &group.name, index)).collect();
    let between = slots.iter().filter(|slot| is_between(job, group, **slot)).count();
    if between > update.max_parallel as usize {
        let (name, most) = (spec.name(), update.max_parallel);
        return Err(format!(
            "{name} is replaced, so {between} slots are between versions; the maximum is {most}"
        ));
    }
    let proved_bad = |slot: &&&AllocView| {
        is_current(job, group, slot) && is_bad(slot) && !newly_bad.contains(&slot.spec.id)
    };
    match slots.iter().flatten().find(proved_bad) {
        Some(bad) => Err(format!("{} is replaced although {} is bad", spec.name(), bad.spec.name())),
        None => Ok(()),
    }
}

/// Returns the time since the clock displayed a time, if it can be determined.
type Passed<'a> = &'a dyn Fn(UnixNanos) -> Option<i64>;

fn may_judge(view: &AllocView, healthy: bool, update: &Update, passed: Passed<'_>) -> Result<(), String> {
    let name = view.spec.name();
    if healthy {
        let running = view.tasks.iter().filter(|task| task.state == TaskStatus::Running);
        for ran in running.filter_map(|task| passed(task.started_at)) {
            if ran < update.min_healthy_time.as_nanos() {
                return Err(format!("{name} counts as healthy {ran} ns after a task's start"));
            }
        }
    } else if !view.tasks.iter().any(|task| task.failed)
        && passed(view.spec.create_time).is_some_and(|old| old < update.healthy_deadline.as_nanos())
    {
        return Err(format!("{name} counts as unhealthy before its deadline"));
    }
    Ok(())
}

/// Whether the slot is empty, or its allocation is being stopped or not known to be healthy yet.
fn is_between(job: &JobView, group: &Group, slot: Option<&AllocView>) -> bool {
    let Some(slot) = slot else { return true };
    slot.spec.desired != Desired::Run
        || is_current(job, group, slot) && !job.job.kind.completes() && slot.verdict != Some(true)
}

fn is_current(job: &JobView, group: &Group, slot: &AllocView) -> bool {
    slot.spec.desired == Desired::Run && same_work(&slot.spec.job, &job.job, &group.name)
}

fn is_bad(view: &AllocView) -> bool {
    view.status == ClientStatus::Failed || view.verdict == Some(false)
}

/// The current allocation of a slot. A canary becomes that when promoted, which its job's view shows; its own view follows a
/// turn later. One that was stopped before never does.
fn newest<'a>(
    allocs: &'a BTreeMap<AllocId, Arc<AllocView>>,
    job: &JobView,
    group: &str,
    index: u32,
) -> Option<&'a AllocView> {
    let is_promoted = |id: DeploymentId| {
        let deployment = job.deployments.iter().find(|deployment| deployment.id == id);
        deployment.and_then(|deployment| deployment.groups.get(group)).is_some_and(|group| group.promoted)
    };
    let of_slot = |view: &&AllocView| {
        let is_stopped = view.spec.desired != Desired::Run;
        let is_canary =
            view.spec.deployment.is_some_and(|part| part.canary && (is_stopped || !is_promoted(part.id)));
        view.spec.index == index && view.spec.group == group && view.spec.job_key == job.key && !is_canary
    };
    allocs.values().map(|view| &**view).filter(of_slot).max_by_key(|view| view.spec.create_index)
}
