//! Rows of jobs.
//!
//! In: the agent's jobs and allocations, and names. Out: rows in the agent's order.

use std::collections::BTreeSet;

use herdlet_api_types::{
    JobKey,
    alloc::ClientStatus,
    view::{AllocView, ConvergenceState, HELD, JobView},
};

use super::listing::{Cell, Document, Listing, Row};
use crate::{children, client::Client, failure::Failure, missing::Missing, selection, show, target};

pub(super) async fn list(client: &Client, targets: &[String], missing: Missing) -> Result<Listing, Failure> {
    let (all, allocs) = tokio::try_join!(client.jobs(), client.allocs())?;
    // The origin is a column only if there are jobs of servers.
    let has_placed = all.iter().any(|view| view.placed);
    let mut columns = vec!["JOB", "TYPE", "VERSION", "RUNNING", "STATE", "AGE", "MESSAGE"];
    if has_placed {
        columns.insert(1, "FROM");
    }
    let mut listing = Listing::new(&columns);
    for view in with_fates(client, &all, targets, chosen_jobs(all.clone(), targets, missing)).await? {
        let name = view.key.to_string();
        let mut cells = Vec::from(job_cells(&view, &allocs, &all));
        if has_placed {
            cells.insert(1, show::origin(&view).to_owned().into());
        }
        listing.rows.push(Row { key: name.clone(), name, cells, document: Document::Job(Box::new(view)) });
    }
    Ok(listing)
}

/// The jobs with these names, or all.
fn chosen_jobs(
    mut jobs: Vec<JobView>,
    targets: &[String],
    missing: Missing,
) -> Result<Vec<JobView>, Failure> {
    if targets.is_empty() {
        return Ok(jobs);
    }
    let is_there = |name: &str| selection::job_named(&jobs, name).is_some();
    if let Some(name) = missing.among(targets, is_there) {
        return Err(Failure::new(format!("there is no job {name:?}")));
    }
    let named = targets.iter().filter_map(|name| selection::job_named(&jobs, name));
    let named: BTreeSet<JobKey> = named.map(|view| view.key.clone()).collect();
    jobs.retain(|view| named.contains(&view.key));
    Ok(jobs)
}

/// Adds to the error what happened to the missing job.
async fn with_fates<T>(
    client: &Client,
    jobs: &[JobView],
    targets: &[String],
    found: Result<T, Failure>,
) -> Result<T, Failure> {
    let is_missing = |target: &&String| selection::job_named(jobs, target).is_none();
    match (found, targets.iter().find(is_missing)) {
        (Ok(found), _) => Ok(found),
        (Err(failure), Some(target)) => Err(target::with_fate(client, target, jobs, failure).await),
        (Err(failure), None) => Err(failure),
    }
}

/// A row for a job; `jobs` has all jobs.
fn job_cells(view: &JobView, allocs: &[AllocView], jobs: &[JobView]) -> [Cell; 7] {
    let of_job = || allocs.iter().filter(|alloc| alloc.spec.job_key == view.key);
    let running = of_job().filter(|alloc| alloc.status == ClientStatus::Running).count();
    let wanted: usize = if view.placed {
        view.allocs.len()
    } else {
        view.job.groups.iter().map(|group| view.desired_count(group) as usize).sum()
    };
    let mut kind = view.job.kind.as_str();
    let count = if view.job.makes_children() && !view.placed {
        let children = children::of(view, jobs);
        let all = children.pending + children.running + children.dead;
        kind = children::kind(&view.job);
        let failed = match children::failed(view, jobs) {
            0 => String::new(),
            failed => format!(", {failed} failed"),
        };
        format!("{} ({}/{all} ended{failed})", children.running, children.dead)
    } else if view.job.kind.completes() {
        let done = of_job().filter(|alloc| alloc.status == ClientStatus::Complete).count();
        format!("{running} ({done}/{wanted} done)")
    } else {
        format!("{running}/{wanted}")
    };
    let state = match (view.deleting, view.convergence.state) {
        (true, _) => "deleting",
        (false, ConvergenceState::Converged) if view.job.stop => "stopped",
        (false, ConvergenceState::Progressing) if view.job.stop => "stopping",
        (false, ConvergenceState::Converged) if view.held.is_some() => HELD,
        (false, state) => state.as_str(),
    };
    [
        view.key.to_string().into(),
        kind.to_owned().into(),
        view.version.to_string().into(),
        count.into(),
        state.to_owned().into(),
        Cell::Age(view.submit_time),
        view.message().into(),
    ]
}
