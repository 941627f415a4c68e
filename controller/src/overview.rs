//! The one screen, made from the read model: how far everything is, a row for each job.
//!
//! In: what is published. Out: an [`Overview`] for the API, which the command line and the page at `/ui` show.

use herdlet_api_types::{
    Duration,
    nomad::rfc3339,
    overview::{JobRow, Overview},
    view::{AllocView, Convergence, ConvergenceState, JobView},
};

use crate::{publish::ReadModel, telemetry::Gauges};

/// How far everything is at `now_ns` of the boot clock.
pub fn overview(model: &ReadModel, now_ns: u64) -> Overview {
    // Taken first: what is shown is no older.
    let index = model.index();
    let gauges = Gauges::of(model, now_ns);
    let mut jobs: Vec<JobRow> = model.jobs().iter().map(|job| row(job, &model.allocs_of(&job.key))).collect();
    jobs.sort_by_key(|row| row.state == ConvergenceState::Converged);
    Overview {
        index,
        converged: gauges.jobs().0,
        lag: Duration(i64::try_from(gauges.lag_ns).unwrap_or(i64::MAX)),
        overdue: gauges.overdue.values().sum(),
        drift_repaired: model.history().repairs(now_ns),
        drift_known: model.history().known_of_day(now_ns),
        jobs,
    }
}

/// What is said of the job itself; of one that has converged, when it is launched next.
pub fn message(job: &JobView) -> String {
    let said = &job.convergence.message;
    match job.next_launch.and_then(rfc3339) {
        Some(at) if said.is_empty() => format!("launched next at {at}"),
        Some(_) | None => said.clone(),
    }
}

fn row(job: &JobView, allocs: &[std::sync::Arc<AllocView>]) -> JobRow {
    let state = job.convergence.state;
    let is_open = |convergence: &Convergence| convergence.state != ConvergenceState::Converged;
    let open = allocs
        .iter()
        .filter(|alloc| is_open(&alloc.convergence))
        .min_by_key(|alloc| alloc.convergence.since.wall);
    // What is said of an allocation is closer to what is going on than what is said of its job.
    let (next, next_alloc, due) = match open {
        Some(alloc) => {
            let Convergence { message, overdue_at, .. } = &alloc.convergence;
            (format!("{}: {message}", alloc.spec.title()), Some(alloc.spec.id), overdue_at)
        }
        None => (message(job), None, &job.convergence.overdue_at),
    };
    let older =
        allocs.iter().filter(|alloc| !alloc.status.is_terminal()).map(|alloc| alloc.spec.job_version).min();
    JobRow {
        key: job.key.clone(),
        version: job.version,
        from_version: older.filter(|older| *older < job.version && is_open(&job.convergence)),
        deleting: job.deleting,
        stopped: job.job.stop,
        state,
        since: job.convergence.since.wall,
        healthy: allocs.iter().filter(|alloc| alloc.is_healthy() && alloc.fills_a_place()).count() as u64,
        wanted: job.job.groups.iter().map(|group| u64::from(job.wanted(group))).sum(),
        next,
        next_alloc,
        due: due.map(|due| due.wall),
    }
}
