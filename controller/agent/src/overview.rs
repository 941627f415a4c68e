//! The overview screen, made from the read model: overall progress, and a row for each job. Complete children, of
//! which there may be any number, have no rows; their parent's row shows their number.
//!
//! In: the published state. Out: an [`Overview`] for the API, which the command line and the page at `/ui` display.

pub mod placed;

use std::{collections::BTreeMap, sync::Arc};

use herdlet_api_types::{
    Duration, JobKey,
    nomad::job_status,
    overview::{JobRow, Overview},
    view::{AllocView, Convergence, ConvergenceState, JobView},
};

use crate::{publish::ReadModel, telemetry::Gauges};

/// The overall progress at `now_ns` of the boot clock.
pub fn overview(model: &ReadModel, now_ns: u64) -> Overview {
    // Read first, so that the data are at least as new as the index.
    let index = model.index();
    let gauges = Gauges::of(model, now_ns);
    let all = model.jobs();
    let children = children(&all);
    let is_shown = |job: &&Arc<JobView>| {
        !(is_complete(job) && parent(job).is_some_and(|key| children.contains_key(&key)))
    };
    let mut jobs: Vec<JobRow> = Vec::new();
    for job in all.iter().filter(is_shown) {
        let mut row = row(job, &model.allocs_of(&job.key));
        if let Some(children) = children.get(&job.key) {
            row.next = children.prefix_text(&row.next);
        }
        jobs.push(row);
    }
    let complete_children = (all.len() - jobs.len()) as u64;
    let placed: Vec<JobRow> =
        placed::jobs(model).iter().map(|(job, allocs)| server_job_row(job, allocs)).collect();
    let converged = placed.iter().filter(|row| row.state == ConvergenceState::Converged).count() as u64;
    jobs.extend(placed);
    jobs.sort_by_key(|row| row.state == ConvergenceState::Converged);
    Overview {
        index,
        converged: gauges.jobs().0 + converged,
        lag: Duration(i64::try_from(gauges.lag_ns).unwrap_or(i64::MAX)),
        overdue: gauges.overdue.values().sum(),
        drift_repaired: model.history().repairs(now_ns),
        drift_known: model.history().known_of_day(now_ns),
        complete_children,
        jobs,
    }
}

/// The row of a job that servers have placed here.
fn server_job_row(job: &JobView, allocs: &[Arc<AllocView>]) -> JobRow {
    let Convergence { state, message, since, overdue_at, .. } = &job.convergence;
    let first = allocs.iter().find(|alloc| alloc.convergence == job.convergence);
    let first = first.filter(|_| *state != ConvergenceState::Converged);
    let oldest = allocs.iter().map(|alloc| alloc.spec.job_version).min();
    JobRow {
        key: job.key.clone(),
        version: job.version,
        from_version: oldest.filter(|oldest| *oldest < job.version),
        deleting: false,
        stopped: false,
        placed: true,
        held: None,
        state: *state,
        since: since.wall,
        healthy: allocs.iter().filter(|alloc| alloc.is_healthy()).count() as u64,
        wanted: allocs.len() as u64,
        next: first.map_or(String::new(), |first| format!("{}: {message}", first.spec.title())),
        next_alloc: first.map(|first| first.spec.id),
        due: overdue_at.as_ref().map(|due| due.wall),
    }
}

/// The children of a job, counted by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Children {
    pending: usize,
    running: usize,
    failed: usize,
    complete: usize,
}

impl Children {
    /// Formats the counts, followed by `next`.
    fn prefix_text(self, next: &str) -> String {
        let Self { pending, running, failed, complete } = self;
        let parts = [
            (pending > 0).then(|| format!("{pending} pending")),
            Some(format!("{running} running")),
            Some(format!("{failed} failed")),
            Some(format!("{complete} complete{}", if complete > 0 { " (not shown)" } else { "" })),
        ];
        let counts = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
        let next = if next.is_empty() { String::new() } else { format!("; {next}") };
        format!("children: {counts}{next}")
    }
}

/// The children of each job that creates them.
fn children(jobs: &[Arc<JobView>]) -> BTreeMap<JobKey, Children> {
    let parents = jobs.iter().filter(|job| job.job.makes_children());
    let mut counted: BTreeMap<JobKey, Children> =
        parents.map(|job| (job.key.clone(), Children::default())).collect();
    for child in jobs {
        let Some(children) = parent(child).and_then(|key| counted.get_mut(&key)) else { continue };
        let count = match child.convergence.state {
            ConvergenceState::Failed => &mut children.failed,
            _ if is_complete(child) => &mut children.complete,
            ConvergenceState::Waiting if child.allocs.is_empty() => &mut children.pending,
            ConvergenceState::Converged | ConvergenceState::Progressing | ConvergenceState::Waiting => {
                &mut children.running
            }
        };
        *count += 1;
    }
    counted
}

/// Whether the job has ended successfully.
fn is_complete(job: &JobView) -> bool {
    job.convergence.state == ConvergenceState::Converged && job_status(job) == "dead"
}

/// The job that created it.
fn parent(child: &JobView) -> Option<JobKey> {
    let id = child.job.parent_id()?;
    Some(JobKey { namespace: child.key.namespace.clone(), id: id.into() })
}

fn row(job: &JobView, allocs: &[Arc<AllocView>]) -> JobRow {
    let state = job.convergence.state;
    let is_open = |convergence: &Convergence| convergence.state != ConvergenceState::Converged;
    let open = allocs
        .iter()
        .filter(|alloc| is_open(&alloc.convergence))
        .min_by_key(|alloc| alloc.convergence.since.wall);
    // An allocation's message is more specific than its job's.
    let (next, next_alloc, due) = match open {
        Some(alloc) => {
            let Convergence { message, overdue_at, .. } = &alloc.convergence;
            (format!("{}: {message}", alloc.spec.title()), Some(alloc.spec.id), overdue_at)
        }
        None => (job.message(), None, &job.convergence.overdue_at),
    };
    let older =
        allocs.iter().filter(|alloc| !alloc.status.is_terminal()).map(|alloc| alloc.spec.job_version).min();
    JobRow {
        key: job.key.clone(),
        version: job.version,
        from_version: older.filter(|older| *older < job.version && is_open(&job.convergence)),
        deleting: job.deleting,
        placed: false,
        held: job.held.clone(),
        stopped: job.job.stop,
        state,
        since: job.convergence.since.wall,
        healthy: allocs.iter().filter(|alloc| alloc.is_healthy() && alloc.fills_a_place()).count() as u64,
        wanted: job.job.groups.iter().map(|group| u64::from(job.desired_count(group))).sum(),
        next,
        next_alloc,
        due: due.map(|due| due.wall),
    }
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::job::{Child, Job, JobType, Origin, Parameterized};
    use herdlet_plan::turn::View;
    use herdlet_runtime::{CommitIndex, Publisher as _};

    use super::*;
    use herdlet_manifest::fixture::{job, job_view};

    // A job that is launched every minute used to fill the screen with children that had ended long ago, and did not
    // mention the failed ones.
    #[test]
    fn parent_counts_children_and_hides_complete_ones() {
        let model = Arc::new(ReadModel::default());
        let mut parent = Job::clone(&job("import", "g", "t"));
        (parent.kind, parent.parameterized) = (JobType::Batch, Some(Parameterized::default()));
        let child = |id: &str, state: ConvergenceState| {
            let origin = Origin::Dispatch { payload: String::new(), idempotency_token: String::new() };
            let child = Some(Child { parent: "import".to_owned(), origin });
            let text = Job { id: format!("import/dispatch-{id}"), child, ..parent.clone() };
            let mut view = job_view(&Arc::new(text), 0);
            view.convergence.state = state;
            view.convergence.message.clear();
            view
        };
        let orphan =
            Job { child: child("5", ConvergenceState::Converged).job.child.clone(), ..parent.clone() };
        let orphan = Job { id: "other/dispatch-1".to_owned(), ..orphan };
        let orphan = Job {
            child: orphan.child.clone().map(|child| Child { parent: "other".to_owned(), ..child }),
            ..orphan
        };
        let views = [
            job_view(&Arc::new(parent.clone()), 0),
            child("1", ConvergenceState::Converged),
            child("2", ConvergenceState::Converged),
            child("3", ConvergenceState::Failed),
            child("4", ConvergenceState::Progressing),
            child("5", ConvergenceState::Waiting),
            job_view(&Arc::new(orphan), 0),
        ];
        let views = views.map(|view| View::Job(Arc::new(view)));
        model.publisher().offer(CommitIndex(1), views.into());
        let shown = overview(&model, 1);
        let rows: Vec<(String, &str)> =
            shown.jobs.iter().map(|row| (row.key.to_string(), row.next.as_str())).collect();
        let parents = rows.iter().find(|(name, _)| name == "import").map(|(_, next)| *next);
        let prefix = parents.unwrap_or_default();
        assert!(
            prefix.starts_with("children: 1 pending, 1 running, 1 failed, 2 complete (not shown)"),
            "{prefix}"
        );
        let mut names: Vec<&str> = rows.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        let expected =
            ["import", "import/dispatch-3", "import/dispatch-4", "import/dispatch-5", "other/dispatch-1"];
        assert_eq!(names, expected);
        assert_eq!((shown.complete_children, shown.job_count()), (2, 7));
        assert_eq!(Children::default().prefix_text(""), "children: 0 running, 0 failed, 0 complete");
    }
}
