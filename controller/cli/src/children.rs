//! Periodic and parameterized jobs, and their children, as text for people.

use herdlet_api_types::{
    job::Job,
    nomad::{self, Children},
    rfc3339::rfc3339,
    view::{ConvergenceState, JobView},
};

use super::{failure::Failure, show};

/// At most this many children are named, newest first.
const NAMED_LEN: usize = 3;

pub(super) fn kind(job: &Job) -> &'static str {
    if job.takes_dispatches() { "parameterized" } else { "periodic" }
}

/// The children of a job, counted by state.
pub(super) fn of(parent: &JobView, jobs: &[JobView]) -> Children {
    Children::of(all_of(parent, jobs))
}

/// The number of failed children.
pub(super) fn failed(parent: &JobView, jobs: &[JobView]) -> usize {
    let has_failed = |job: &&JobView| job.convergence.state == ConvergenceState::Failed;
    all_of(parent, jobs).filter(has_failed).count()
}

fn newest_first<'j>(parent: &'j JobView, jobs: &'j [JobView]) -> Vec<&'j JobView> {
    let mut children: Vec<_> = all_of(parent, jobs).collect();
    children.sort_by_key(|child| std::cmp::Reverse((child.create_index, &child.key)));
    children
}

/// An error that names children which `command` could target instead; none if the job is not a parent.
pub(super) fn instead(command: &str, parent: &JobView, jobs: &[JobView]) -> Option<Failure> {
    if !parent.job.makes_children() {
        return None;
    }
    let children = newest_first(parent, jobs);
    let (key, kind) = (&parent.key, kind(&parent.job));
    let failure = Failure::new(format!("job {key} is {kind}: only its children have allocations"));
    Some(match children.first() {
        Some(newest) => failure.hint(format!(
            "{}; the newest: herdlet {command} {}",
            named(&children),
            newest.key.argument()
        )),
        None if parent.job.takes_dispatches() => {
            failure.hint(format!("it has none now; create one: herdlet dispatch {}", key.argument()))
        }
        None => failure.hint(format!(
            "it has none now; launch one at once: herdlet job periodic force {}",
            key.argument()
        )),
    })
}

/// A message about the children that remain when their parent is deleted; none if there are none.
pub(super) fn left(parent: &JobView, jobs: &[JobView]) -> Option<String> {
    let children = newest_first(parent, jobs);
    let newest = children.first()?;
    Some(format!(
        "its children remain until they are collected: {}; to delete one: herdlet delete {}",
        named(&children),
        newest.key.argument()
    ))
}

/// The names and states of the first children.
fn named(children: &[&JobView]) -> String {
    let first = children.iter().take(NAMED_LEN);
    let first: Vec<_> = first.map(|child| format!("{} ({})", child.key, status_text(child))).collect();
    let more = match children.len().saturating_sub(NAMED_LEN) {
        0 => String::new(),
        more => format!(" and {more} more (herdlet get jobs)"),
    };
    format!("{}{more}", first.join(", "))
}

/// Nomad's status, except that Nomad reports failed jobs as dead too.
fn status_text(child: &JobView) -> &'static str {
    match child.convergence.state {
        ConvergenceState::Failed => "failed",
        ConvergenceState::Converged | ConvergenceState::Progressing | ConvergenceState::Waiting => {
            nomad::job_status(child)
        }
    }
}

/// A hint about a missing child, which may have been garbage-collected.
pub(super) fn collected(name: &str, jobs: &[JobView]) -> Option<String> {
    let made_of = |parent: &&JobView| {
        let rest = name.strip_prefix(&parent.key.to_string()).unwrap_or_default();
        parent.job.makes_children() && (rest.starts_with("/dispatch-") || rest.starts_with("/periodic-"))
    };
    let parent = jobs.iter().find(made_of)?;
    let children = newest_first(parent, jobs);
    let there = if children.is_empty() { "none exists now".to_owned() } else { named(&children) };
    Some(format!("ended children are collected after job_gc_threshold; children of {}: {there}", parent.key))
}

fn all_of<'j>(parent: &'j JobView, jobs: &'j [JobView]) -> impl Iterator<Item = &'j JobView> {
    let is_child = |job: &&JobView| {
        job.job.parent_id() == Some(&*parent.key.id) && job.key.namespace == parent.key.namespace
    };
    jobs.iter().filter(is_child)
}

/// Prints the state of a parent and its children, or the parent of a child.
pub(super) fn show(view: &JobView, jobs: &[JobView]) {
    lines(view, jobs).iter().for_each(|line| show::out(&format!("  {line}\n")));
}

fn lines(view: &JobView, jobs: &[JobView]) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(parent) = view.job.parent_id() {
        lines.push(format!("child of job {parent}"));
    }
    if view.job.makes_children() {
        let Children { pending, running, dead } = of(view, jobs);
        let failed = match failed(view, jobs) {
            0 => String::new(),
            failed => format!(", {failed} failed"),
        };
        lines.push(format!("children: {pending} pending, {running} running, {dead} dead{failed}"));
        let children = newest_first(view, jobs);
        if let Some(newest) = children.first() {
            lines.push(format!(
                "newest: {}; its output: herdlet logs {}",
                named(&children),
                newest.key.argument()
            ));
        }
    }
    if let Some(periodic) = view.job.launches().filter(|_| !view.is_stopped()) {
        lines.push(match view.next_launch.and_then(rfc3339) {
            Some(at) => {
                format!("next launch: {at} ({}, {})", periodic.crons.join(", "), periodic.time_zone)
            }
            None if !periodic.enabled => "disabled: it launches no children".to_owned(),
            None => "no further launches".to_owned(),
        });
    }
    if view.job.takes_dispatches() && !view.is_stopped() {
        lines.push(format!("runs when it is dispatched: herdlet dispatch {}", view.key.argument()));
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use herdlet_api_types::job::{Child, JobType, Origin, Parameterized};

    use super::*;
    use herdlet_manifest::fixture::{job, job_view};

    #[test]
    fn parent_lists_children_and_child_names_its_parent() {
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
            [
                "children: 0 pending, 0 running, 1 dead",
                "newest: import/dispatch-1-0a1b2c3d (dead); its output: herdlet logs import/dispatch-1-0a1b2c3d",
                "runs when it is dispatched: herdlet dispatch import",
            ]
        );
        let message = instead("logs", &jobs[0], &jobs).unwrap().to_string();
        assert_eq!(message, "job import is parameterized: only its children have allocations");
        assert!(instead("logs", &jobs[1], &jobs).is_none());
        let message = collected("import/dispatch-0-00000000", &jobs).unwrap();
        assert!(message.contains("of import: import/dispatch-1-0a1b2c3d (dead)"), "{message}");
        let mut failed = jobs.clone();
        failed[1].convergence.state = ConvergenceState::Failed;
        let message = lines(&failed[0], &failed).join("\n");
        assert!(message.contains("0a1b2c3d (failed); its output"), "{message}");
        assert_eq!(collected("imports", &jobs), None);
        assert_eq!(lines(&jobs[1], &jobs), ["child of job import"]);
    }
}
