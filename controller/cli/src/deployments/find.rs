//! Deployments by the names of their jobs, or by prefixes of their ids.

use herdlet_api_types::{deployment::Deployment, view::JobView};

use crate::{
    client::Client,
    failure::Failure,
    missing::Missing,
    selection::{job_named, plain_name},
};

/// The deployments of all targets, each once. All targets are checked before anything changes.
pub(super) async fn find_all(client: &Client, targets: &[String]) -> Result<Vec<Deployment>, Failure> {
    each_once(&client.jobs().await?, targets)
}

pub(super) fn each_once(jobs: &[JobView], targets: &[String]) -> Result<Vec<Deployment>, Failure> {
    let mut found: Vec<Deployment> = Vec::new();
    for target in targets {
        let one = find(jobs, target)?;
        if !found.iter().any(|known| known.id == one.id) {
            found.push(one);
        }
    }
    Ok(found)
}

/// The newest deployment of a job, or a deployment by a prefix of its id.
fn find(jobs: &[JobView], target: &str) -> Result<Deployment, Failure> {
    let target = plain_name(target, jobs);
    if let Some(job) = job_named(jobs, target) {
        let newest = job.deployments.first().map(|newest| Deployment::clone(newest));
        return newest.ok_or_else(|| {
            Failure::new(format!("job {target} has no deployment"))
                .hint("one is created for each new version of a service job with `update`")
        });
    }
    let mut found: Vec<&Deployment> =
        all_deployments(jobs).into_iter().filter(|one| one.id.to_string().starts_with(target)).collect();
    match (found.len(), found.pop()) {
        (1, Some(one)) => Ok(one.clone()),
        (0, _) | (_, None) => Err(unknown(target)),
        (several, _) => Err(Failure::new(format!("{several} deployment ids begin with {target:?}"))),
    }
}

/// The deployments of these jobs, newest first within each job.
pub(super) fn all_deployments(jobs: &[JobView]) -> Vec<&Deployment> {
    jobs.iter().flat_map(|job| job.deployments.iter().map(|one| &**one)).collect()
}

/// Deployments by job name or id prefix; all if there are no targets.
pub(crate) fn of<'j>(
    jobs: &'j [JobView],
    targets: &[String],
    missing: Missing,
) -> Result<Vec<&'j Deployment>, Failure> {
    let mut found = all_deployments(jobs);
    // A job's name may also be a prefix of an id, and a job may have no deployment.
    let is_meant = |one: &Deployment, target: &str| match job_named(jobs, target) {
        Some(view) => one.job_key == view.key,
        None => one.id.to_string().starts_with(target),
    };
    let is_there =
        |target: &str| job_named(jobs, target).is_some() || found.iter().any(|one| is_meant(one, target));
    if let Some(target) = missing.among(targets, is_there) {
        return Err(unknown(target));
    }
    found.retain(|one| targets.is_empty() || targets.iter().any(|target| is_meant(one, target)));
    Ok(found)
}

fn unknown(target: &str) -> Failure {
    Failure::new(format!("there is no job or deployment {target:?}"))
        .hint("list them: herdlet get deployments")
}
