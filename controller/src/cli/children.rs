//! Jobs that run nothing by themselves, and what was made of them, for people.

use herdlet_api_types::{
    job::Job,
    nomad::{self, Children},
    view::JobView,
};

use super::show;

/// What kind of job it is, in a word.
pub(super) fn kind(job: &Job) -> &'static str {
    if job.takes_dispatches() { "parameterized" } else { "periodic" }
}

/// How its children are.
pub(super) fn of(parent: &JobView, jobs: &[JobView]) -> Children {
    Children::of(jobs.iter().filter(|job| is_child(job, parent)))
}

fn is_child(job: &JobView, parent: &JobView) -> bool {
    job.job.parent_id() == Some(&*parent.key.id) && job.key.namespace == parent.key.namespace
}

/// Tells what a job waits for that runs nothing by itself, and how its children are.
pub(super) fn show(view: &JobView, jobs: &[JobView]) {
    lines(view, jobs).iter().for_each(|line| show::out(&format!("  {line}\n")));
}

fn lines(view: &JobView, jobs: &[JobView]) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(parent) = view.job.parent_id() {
        lines.push(format!("made of job {parent}"));
    }
    if view.job.makes_children() {
        let Children { pending, running, dead } = of(view, jobs);
        lines.push(format!("children: {pending} pending, {running} running, {dead} dead"));
    }
    if let Some(periodic) = view.job.launches().filter(|_| !view.deleting) {
        lines.push(match view.next_launch.and_then(nomad::rfc3339) {
            Some(at) => {
                format!("launched next at {at} ({}, {})", periodic.crons.join(", "), periodic.time_zone)
            }
            None if !periodic.enabled => "not enabled: nothing is launched".to_owned(),
            None => "never launched again".to_owned(),
        });
    }
    if view.job.takes_dispatches() && !view.deleting {
        lines.push(format!("runs when it is dispatched: herdlet dispatch {}", view.key));
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use herdlet_api_types::job::{Child, JobType, Origin, Parameterized};

    use super::*;
    use crate::test_views::{job, job_view};

    #[test]
    fn a_parent_tells_of_its_children_and_a_child_of_its_parent() {
        let mut parent = Job::clone(&job("import", "g", "t"));
        (parent.kind, parent.parameterized) = (JobType::Batch, Some(Parameterized::default()));
        let origin = Origin::Dispatch { payload: String::new(), idempotency_token: String::new() };
        let child = Job {
            id: "import/dispatch-1-0a1b2c3d".to_owned(),
            child: Some(Child { parent: "import".to_owned(), origin }),
            ..parent.clone()
        };
        let jobs = [parent, child].map(|job| job_view(&Arc::new(job), 0));
        assert_eq!(
            lines(&jobs[0], &jobs),
            ["children: 0 pending, 0 running, 1 dead", "runs when it is dispatched: herdlet dispatch import"]
        );
        assert_eq!(lines(&jobs[1], &jobs), ["made of job import"]);
    }
}
