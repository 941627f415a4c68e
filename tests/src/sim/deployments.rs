//! Invariants of deployments, checked on the published job views.
//!
//! In: the previous and the current view of a job. Out: the first violation. A finished deployment does not change; a
//! successful one has all allocations healthy; no more canaries are created than requested, and they are healthy when
//! promoted; a reverted job has the text of the version it was reverted to.

use std::{collections::BTreeMap, sync::Arc};

use herdlet_api_types::{
    DeploymentId,
    deployment::{Deployment, DeploymentStatus},
    view::{JobView, Reason},
};

/// Checks a new view of a job.
pub fn show(was: Option<&JobView>, is: &JobView) -> Result<(), String> {
    let before: BTreeMap<DeploymentId, &Deployment> =
        was.iter().flat_map(|job| &job.deployments).map(|one| (one.id, &**one)).collect();
    for one in &is.deployments {
        follows(before.get(&one.id).copied(), one).map_err(|why| {
            format!("the deployment of {} version {} {why}: {one:?}", one.job_key.id, one.job_version)
        })?;
    }
    let running = is.deployments.iter().filter(|one| one.is_running());
    if let Some(stray) = running.clone().find(|one| one.job_version != is.version) {
        return Err(format!(
            "the deployment of {} version {} still runs, but the job has another version",
            is.key.id, stray.job_version
        ));
    }
    match went_back(is) {
        Some(to) if is.past.iter().any(|past| past.version == to && past.job != is.job) => {
            Err(format!("{} was reverted to version {to}, but differs from it", is.key.id))
        }
        Some(_) | None => Ok(()),
    }
}

/// The version to which a failed deployment reverted the job.
pub fn went_back(job: &JobView) -> Option<u64> {
    job.deployments.iter().find(|one| one.job_version + 1 == job.version)?.reverted_to
}

/// A running deployment of a settled job that does not wait for anything. One may wait for its promotion beside an allocation that
/// it counts as unhealthy.
pub fn stuck(job: &JobView) -> Option<&Arc<Deployment>> {
    let waits = matches!(
        job.convergence.reason,
        Some(Reason::Promotion | Reason::Port | Reason::Constraint | Reason::Capacity)
    );
    job.deployments.iter().find(|one| one.is_running() && !one.requires_promotion() && !waits)
}

fn follows(was: Option<&Deployment>, is: &Deployment) -> Result<(), &'static str> {
    if let Some(was) = was
        && !was.is_running()
        && was != is
    {
        return Err("changes after its end");
    }
    for (name, group) in &is.groups {
        if group.placed_canaries.len() > group.desired_canaries as usize {
            return Err("has more canaries than it wants");
        }
        let stood = was.and_then(|was| was.groups.get(name)).is_some_and(|was| was.is_canarying());
        if stood && group.promoted && group.placed_canaries.len() < group.desired_canaries as usize {
            return Err("was promoted before its canaries were there");
        }
        if is.status == DeploymentStatus::Successful
            && (group.is_canarying() || group.healthy_allocs < group.desired_total)
        {
            return Err("is successful and not all are healthy");
        }
    }
    Ok(())
}
