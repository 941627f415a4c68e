//! The parts on this machine of the jobs that servers have placed here.
//!
//! In: the allocations of the read model. Out: a view of each such job, derived from its allocations, and the refusal
//! of commands that would change one here. Jobs of servers are not stored as such; their allocations are all there
//! is.

use std::{collections::BTreeMap, sync::Arc};

use herdlet_api_types::names;
use herdlet_api_types::{
    JobKey,
    alloc::Desired,
    view::{AllocView, Convergence, ConvergenceState, JobView},
};
use herdlet_plan::event::Command;

use crate::publish::ReadModel;

/// A command concerns a job that servers have placed here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "job \"{job}\" belongs to the cluster, whose servers have placed it here; nothing was changed: {hint}"
)]
pub struct ServerJobHint {
    pub job: JobKey,
    /// Where and how the command can be carried out.
    pub hint: String,
}

/// The jobs of servers, each with its allocations here.
pub fn jobs(model: &ReadModel) -> Vec<(JobView, Vec<Arc<AllocView>>)> {
    let mut placed: BTreeMap<JobKey, Vec<Arc<AllocView>>> = BTreeMap::new();
    for view in model.allocs() {
        if view.spec.server.is_some() && view.spec.desired == Desired::Run {
            placed.entry(view.spec.job_key.clone()).or_default().push(view);
        }
    }
    placed.into_values().filter_map(|allocs| Some((view(&allocs)?, allocs))).collect()
}

/// All jobs: this machine's own, and those of servers.
pub fn all_jobs(model: &ReadModel) -> Vec<Arc<JobView>> {
    let mut all = model.jobs();
    all.extend(jobs(model).into_iter().map(|(view, _)| view.into()));
    all
}

/// A job of either kind.
pub fn job(model: &ReadModel, key: &JobKey) -> Option<Arc<JobView>> {
    model.job(key).or_else(|| of_servers(model, key).map(Arc::new))
}

fn of_servers(model: &ReadModel, key: &JobKey) -> Option<JobView> {
    let placed = |alloc: &Arc<AllocView>| alloc.spec.server.is_some() && alloc.spec.desired == Desired::Run;
    view(&model.allocs_of(key).into_iter().filter(placed).collect::<Vec<_>>())
}

/// Whether a command may be carried out, as far as jobs of servers are concerned.
///
/// # Errors
/// The first such job, and where the command can be carried out.
pub fn allow(model: &ReadModel, command: &Command) -> Result<(), ServerJobHint> {
    let (jobs, verb) = match command {
        Command::Apply { jobs, .. } => (jobs.iter().map(|job| job.key()).collect(), "run"),
        Command::ApplyFolder { jobs, .. } => (jobs.iter().map(|(job, _)| job.key()).collect(), "run"),
        Command::Register { job, .. } => (vec![job.key()], "run"),
        Command::Stop { job } => (vec![job.clone()], "stop"),
        Command::Start { job } => (vec![job.clone()], "start"),
        Command::Delete { job } | Command::DeleteVersion { job, .. } => (vec![job.clone()], "stop -purge"),
        Command::Scale { job, .. } => (vec![job.clone()], "scale"),
        Command::Revert { job, .. } => (vec![job.clone()], "revert"),
        Command::Dispatch { job, .. } => (vec![job.clone()], "dispatch"),
        Command::StopFast { stop, .. } => return allow(model, stop),
        Command::ForceLaunch { job } => (vec![job.clone()], "periodic force"),
        // Commands about allocations, volumes and deployments, whose owner is known from the object.
        Command::Collect { .. }
        | Command::Explain { .. }
        | Command::DeleteVolume { .. }
        | Command::StopAlloc { .. }
        | Command::SkipShutdownDelay { .. }
        | Command::EndPoststop { .. }
        | Command::Restart { .. }
        | Command::Signal { .. }
        | Command::SetEligibility { .. }
        | Command::Drain { .. }
        | Command::PauseDeployment { .. }
        | Command::TagVersion { .. }
        | Command::UntagVersion { .. }
        | Command::PromoteDeployment { .. }
        | Command::SetAllocHealth { .. }
        | Command::FailDeployment { .. } => return Ok(()),
    };
    let found = jobs.into_iter().find(|key| model.job(key).is_none() && of_servers(model, key).is_some());
    let Some(job) = found else { return Ok(()) };
    let hint = if verb == "run" {
        "give your job another name, or run it on the cluster: nomad job run FILE".to_owned()
    } else {
        format!(
            "use the cluster instead: nomad job {verb} -namespace={} {}",
            job.namespace,
            names::shell_word(job.id.to_string())
        )
    };
    Err(ServerJobHint { job, hint })
}

/// Derives the view of a job from its allocations: the newest version, and the verdict of the allocation that is
/// furthest from its goal.
fn view(allocs: &[Arc<AllocView>]) -> Option<JobView> {
    let newest = allocs.iter().max_by_key(|alloc| (alloc.spec.job_version, alloc.spec.create_index))?;
    let first = allocs.iter().min_by_key(|alloc| {
        let Convergence { state, since, .. } = &alloc.convergence;
        (*state == ConvergenceState::Converged, since.wall)
    })?;
    let created = allocs.iter().map(|alloc| alloc.spec.create_index);
    Some(JobView {
        key: newest.spec.job_key.clone(),
        version: newest.spec.job_version,
        job: Arc::clone(&newest.spec.job),
        deleting: false,
        create_index: created.clone().min()?,
        modify_index: created.max()?,
        submit_time: newest.spec.create_time,
        allocs: allocs.iter().map(|alloc| alloc.spec.id).collect(),
        convergence: first.convergence.clone(),
        quarantined: false,
        deployments: Vec::new(),
        unplaced: BTreeMap::new(),
        next_launch: None,
        tag: None,
        past: Vec::new(),
        scaled: Arc::default(),
        placed: true,
        held: None,
    })
}
