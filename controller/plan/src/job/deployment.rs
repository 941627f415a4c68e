//! The deployment of a job's current version. It begins where a service job has `update`, counts each allocation that
//! becomes healthy, and ends when all are healthy, when it gets stuck, or when a newer version comes.
//!
//! In: the job, the stored state of its deployments, the states of its allocations. Out: the deployment state to store,
//! and whether its canaries are promoted or the job reverts to a stable version. It creates and stops no allocation:
//! the roll-out does.
//!
//! ```text
//!                     all healthy, all promoted
//!  (none) ──► Running ───────────────────────────► Successful: its version is stable
//!                │ no progress in time, or failed by request
//!                ├───────────────────────────────► Failed, with auto_revert a new version with a stable one's text
//!                │ a newer version, job stopped or deleted
//!                └───────────────────────────────► Cancelled
//! ```
//!
//! Source of the rules and of the texts: Nomad's `nomad/deploymentwatcher`, `scheduler/reconcile.go`,
//! `nomad/structs/structs.go`.

mod state;

use std_alloc::{
    collections::BTreeMap,
    format,
    string::{String, ToString},
    sync::Arc,
    vec::Vec,
};

use herdlet_api_types::{
    AllocId, DeploymentId, UnixNanos,
    alloc::Desired,
    deployment::{Deployment, DeploymentGroup, DeploymentStatus},
    job::{Group, JobType, Update},
};

use crate::{
    hash::Fields,
    job::{
        JobState,
        pass::JobPass,
        placed::{Placed, is_bad},
        same_work,
    },
};

pub use self::state::{DeploymentState, Role};

const RUNNING: &str = "Deployment is running";
const PAUSED: &str = "Deployment is paused";
const NEEDS_PROMOTION: &str = "Deployment is running but requires manual promotion";
const AUTO_PROMOTION: &str = "Deployment is running pending automatic promotion";
const SUCCESSFUL: &str = "Deployment completed successfully";
const STOPPED_JOB: &str = "Cancelled because job is stopped";
const NEWER_JOB: &str = "Cancelled due to newer version of job";
const FAILED_ALLOCATIONS: &str = "Failed due to unhealthy allocations";
const FAILED_PROGRESS: &str = "Failed due to progress deadline";
const FAILED_BY_USER: &str = "Deployment marked as failed";

/// An outcome of planning a deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turnout {
    /// Store this state.
    Is(DeploymentState),
    /// The canaries of these groups replace the old allocations.
    Promote(Vec<String>),
    /// The specification of this version becomes the newest version.
    Revert(u64),
}

/// Plans the job's deployments.
pub fn plan(pass: &JobPass<'_, '_>) -> Vec<Turnout> {
    let state = pass.state;
    let mut turnouts = Vec::new();
    for older in state.deployments.iter().filter(|older| older.deployment.is_running()) {
        if state.deleting || pass.job.stop {
            turnouts.push(Turnout::Is(older.ended(DeploymentStatus::Cancelled, STOPPED_JOB)));
        } else if older.deployment.job_version != state.version {
            turnouts.push(Turnout::Is(older.ended(DeploymentStatus::Cancelled, NEWER_JOB)));
        }
    }
    if !state.deleting
        && let Some(known) = state.deployment().filter(|known| known.deployment.is_running())
    {
        turnouts.extend(follow(pass, known));
    }
    turnouts
}

/// Creates the deployment that the current version needs and does not have: for a new job, and for a version that
/// replaces allocations or takes them over.
pub fn begin(pass: &JobPass<'_, '_>, instance: &str) -> Option<DeploymentState> {
    let (job, state) = (pass.job, pass.state);
    let updates = job.groups.iter().any(|group| group.update.is_some() && job.desired_count(group) > 0);
    if job.kind != JobType::Service || !updates || state.deleting || state.deployment().is_some() {
        return None;
    }
    let placed = || pass.allocs.iter().filter_map(|id| pass.placed(*id));
    let has_run = placed().any(|placed| placed.version == state.version);
    let changes = placed().any(|placed| placed.desired == Desired::Run && placed.version != state.version);
    if has_run && !changes {
        return None;
    }
    // A canary of an older deployment is only removed, not replaced.
    let replaces = |group: &Group| {
        let mut standing =
            state.slots.get(&group.name).into_iter().flatten().filter_map(|slot| pass.placed(slot.alloc?));
        standing.any(|placed| placed.desired == Desired::Run && !same_work(placed.job, job, &group.name))
    };
    let group_of = |group: &Group| {
        let update = group.update.as_ref().filter(|_| group.count > 0)?;
        let canaries = if replaces(group) { update.canary } else { 0 };
        Some((group.name.clone(), new_group(update, group.count, canaries)))
    };
    let groups: BTreeMap<_, _> = job.groups.iter().filter_map(group_of).collect();
    let mut deployment = Deployment {
        id: deployment_id(instance, state),
        job_key: state.key.clone(),
        job_version: state.version,
        status: DeploymentStatus::Running,
        description: String::new(),
        paused: false,
        groups,
        reverted_to: None,
        create_index: 0,
        modify_index: 0,
        create_time: UnixNanos::default(),
        modify_time: UnixNanos::default(),
    };
    deployment.description = running(&deployment).to_string();
    let deployment = Arc::new(deployment);
    Some(DeploymentState { deployment, progress_by: BTreeMap::new(), judged: BTreeMap::new() })
}

/// The same deployment, marked as failed by request, and the version to revert to.
pub fn fail_by_request(pass: &JobPass<'_, '_>, known: &DeploymentState) -> Vec<Turnout> {
    fail(pass, known, FAILED_BY_USER, known.deployment.groups.values())
}

/// The same deployment, failed because these allocations of it were reported unhealthy.
pub fn fail_unhealthy(
    pass: &JobPass<'_, '_>,
    known: &DeploymentState,
    unhealthy: &[AllocId],
) -> Vec<Turnout> {
    let counted = known.counted(pass);
    let groups = unhealthy.iter().filter_map(|alloc| known.group(pass.placed(*alloc)?.group));
    fail(pass, &counted, FAILED_ALLOCATIONS, groups)
}

/// Number of the group's canaries that are healthy now.
pub fn healthy_canaries<'a>(group: &DeploymentGroup, find: &dyn Fn(AllocId) -> Option<Placed<'a>>) -> u32 {
    let healthy = |id: &&AllocId| find(**id).is_some_and(|placed| verdict(&placed) == Some(true));
    u32::try_from(group.placed_canaries.iter().filter(healthy).count()).unwrap_or(u32::MAX)
}

fn new_group(update: &Update, desired_total: u32, desired_canaries: u32) -> DeploymentGroup {
    DeploymentGroup {
        auto_revert: update.auto_revert,
        auto_promote: update.auto_promote,
        promoted: false,
        progress_deadline: update.progress_deadline,
        require_progress_by: None,
        desired_canaries,
        desired_total,
        placed_canaries: Vec::new(),
        placed_allocs: 0,
        healthy_allocs: 0,
        unhealthy_allocs: 0,
    }
}

/// A hash of everything that identifies it.
fn deployment_id(instance: &str, state: &JobState) -> DeploymentId {
    let mut fields = Fields::default();
    for text in ["deployment", instance, &state.key.namespace, &state.key.id] {
        fields.text(text);
    }
    fields.number(state.create_index);
    fields.number(state.version);
    DeploymentId::from_hash(fields.start())
}

fn running(deployment: &Deployment) -> &'static str {
    if deployment.paused {
        return PAUSED;
    }
    let waiting = || deployment.groups.values().filter(|group| group.is_canarying());
    match (waiting().next().is_some(), waiting().all(|group| group.auto_promote)) {
        (false, _) => RUNNING,
        (true, true) => AUTO_PROMOTION,
        (true, false) => NEEDS_PROMOTION,
    }
}

/// Recounts a running deployment, and ends it where that is due.
fn follow(pass: &JobPass<'_, '_>, known: &DeploymentState) -> Vec<Turnout> {
    let mut next = known.counted(pass);
    if next.deployment.paused {
        return if next == *known { Vec::new() } else { Vec::from([Turnout::Is(next)]) };
    }
    let groups = &next.deployment.groups;
    let at_once = |group: &&DeploymentGroup| group.progress_deadline.is_zero() && group.unhealthy_allocs > 0;
    if let Some(group) = groups.values().find(at_once) {
        return fail(pass, &next, FAILED_ALLOCATIONS, [group]);
    }
    let mut stuck = groups.iter().filter(|(name, group)| {
        !next.is_content(group) && next.progress_by.get(*name).is_some_and(|by| by.is_due(pass.now))
    });
    if stuck.next().is_some() {
        let lacking = groups.values().filter(|group| !next.is_content(group));
        return fail(pass, &next, FAILED_PROGRESS, lacking);
    }
    let mut turnouts = Vec::new();
    if promotes_itself(&next.deployment, pass.find) {
        let waiting = groups.iter().filter(|(_, group)| group.is_canarying());
        turnouts.push(Turnout::Promote(waiting.map(|(name, _)| name.clone()).collect()));
    } else if is_complete(pass, &next) {
        next = next.ended(DeploymentStatus::Successful, SUCCESSFUL);
    }
    if next != *known {
        turnouts.insert(0, Turnout::Is(next));
    }
    turnouts
}

/// Marks the deployment as failed, because of these groups. If one of them has `auto_revert`, the job goes back to the
/// newest stable version, unless that has the same specification.
fn fail<'g>(
    pass: &JobPass<'_, '_>,
    known: &DeploymentState,
    why: &str,
    groups: impl IntoIterator<Item = &'g DeploymentGroup>,
) -> Vec<Turnout> {
    let end = |why: &str| Turnout::Is(known.ended(DeploymentStatus::Failed, why));
    if !groups.into_iter().any(|group| group.auto_revert) {
        return Vec::from([end(why)]);
    }
    match pass.state.newest_stable(pass.version) {
        None => Vec::from([end(&format!("{why} - no stable job version to auto revert to"))]),
        Some((version, stable)) if *stable == *pass.job => Vec::from([end(&format!(
            "{why} - not rolling back to stable job version {version} as current job has same specification"
        ))]),
        Some((version, _)) => {
            let why = format!("{why} - rolling back to job version {version}");
            let mut ended = known.ended(DeploymentStatus::Failed, &why);
            Arc::make_mut(&mut ended.deployment).reverted_to = Some(version);
            Vec::from([Turnout::Is(ended), Turnout::Revert(version)])
        }
    }
}

/// Groups with canaries are promoted together, once all of these canaries are healthy.
fn promotes_itself<'a>(deployment: &Deployment, find: &dyn Fn(AllocId) -> Option<Placed<'a>>) -> bool {
    let ready = |group: &DeploymentGroup| {
        group.auto_promote && healthy_canaries(group, find) >= group.desired_canaries
    };
    deployment.requires_promotion()
        && deployment.groups.values().filter(|group| group.is_canarying()).all(ready)
}

/// Whether every slot of its groups holds a healthy allocation of this version, and as many were counted.
fn is_complete(pass: &JobPass<'_, '_>, known: &DeploymentState) -> bool {
    let state = pass.state;
    let is_placed = |group: &Group| {
        let slots = state.slots.get(&group.name).map_or(&[][..], Vec::as_slice);
        let current = |id: AllocId| {
            known.judged.get(&id) == Some(&true)
                && pass
                    .placed(id)
                    .is_some_and(|placed| placed.desired == Desired::Run && placed.version == state.version)
        };
        let placed = slots.iter().take(usize::try_from(group.count).unwrap_or(usize::MAX));
        placed.filter(|slot| slot.alloc.is_some_and(current)).count()
            >= usize::try_from(group.count).unwrap_or(usize::MAX)
    };
    let is_done = |(name, group): (&String, &DeploymentGroup)| {
        !group.is_canarying()
            && group.healthy_allocs >= group.desired_total
            && pass.job.group(name).is_none_or(is_placed)
    };
    known.deployment.groups.iter().all(is_done)
}

/// Whether the allocation is healthy; `None` while that is open.
fn verdict(placed: &Placed<'_>) -> Option<bool> {
    if is_bad(placed.known) {
        return Some(false);
    }
    placed.known.health.map(|health| health.healthy)
}

#[cfg(test)]
mod tests;
