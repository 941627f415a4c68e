//! Why tasks have no logs yet.
//!
//! In: a target. Out: a message for each of its tasks that has not started.

use herdlet_api_types::{
    UnixNanos,
    task::TaskStatus,
    view::{AllocView, ConvergenceState, TaskView},
};

use crate::{show, table::plain, target::Target};

/// At most this many tasks are named.
const UNBEGUN_LEN_MAX: usize = 10;

/// The tasks of a job to explain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    /// All that have not started.
    All,
    /// Not those of a converged allocation: they run when others have ended.
    Expected,
}

/// Explains the missing logs of tasks that have not started. If the target is a task, it is always explained.
pub(super) fn unbegun(target: &Target, named: Named) -> Vec<String> {
    let is_meant = |view: &AllocView| {
        named == Named::All || target.task.is_some() || view.convergence.state != ConvergenceState::Converged
    };
    // An attempt whose program could not be executed has no output either.
    let never_ran = |task: &TaskView| task.attempt == 0 || task.started_at == UnixNanos(0);
    let unbegun = target.tasks().filter(|(view, task)| never_ran(task) && !view.collected && is_meant(view));
    let mut messages: Vec<String> = unbegun
        .map(|(view, task)| {
            let title = view.spec.task_title(&task.name);
            let word = if task.state == TaskStatus::Dead { "never started" } else { "has not started" };
            let last = task.events.last().map(|event| plain(&event.message)).unwrap_or_default();
            let why = match (view.convergence.state, last.as_str()) {
                (ConvergenceState::Converged, "") => show::phase(task),
                (ConvergenceState::Converged, last) => last.to_owned(),
                (ConvergenceState::Progressing | ConvergenceState::Waiting | ConvergenceState::Failed, _) => {
                    show::convergence(&view.convergence)
                }
            };
            format!("{title} {word}: {why}")
        })
        .collect();
    let more = messages.len().saturating_sub(UNBEGUN_LEN_MAX);
    messages.truncate(UNBEGUN_LEN_MAX);
    messages.extend((more > 0).then(|| format!("and {more} more")));
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    // `logs` of a task that waits for another one printed nothing and succeeded.
    #[test]
    fn unstarted_task_is_listed_with_its_state() {
        let web = herdlet_manifest::fixture::job("web", "front", "httpd");
        let waiting = |state: ConvergenceState, message: &str| {
            let mut view = herdlet_manifest::fixture::alloc_view(&web, 0, 1);
            view.tasks[0].attempt = 0;
            (view.convergence.state, view.convergence.message) = (state, message.to_owned());
            view
        };
        let target = |view: AllocView, task: Option<&str>| Target {
            job: Some(web.key()),
            allocs: vec![view],
            task: task.map(str::to_owned),
        };
        let waits = waiting(ConvergenceState::Waiting, "task httpd: dependency: waits for task init");
        assert_eq!(
            unbegun(&target(waits.clone(), None), Named::Expected),
            ["web.front[0]/httpd has not started: waiting: task httpd: dependency: waits for task init"]
        );
        // A task that runs when the others have ended is mentioned only if it is the target.
        let last = waiting(ConvergenceState::Converged, "");
        assert!(unbegun(&target(last.clone(), None), Named::Expected).is_empty());
        assert_eq!(unbegun(&target(last.clone(), Some("httpd")), Named::Expected).len(), 1);
        assert_eq!(unbegun(&target(last, None), Named::All).len(), 1);
        let mut never = waits;
        never.tasks[0].state = TaskStatus::Dead;
        assert!(
            unbegun(&target(never, None), Named::Expected)[0]
                .starts_with("web.front[0]/httpd never started: ")
        );
        // `logs` of a task whose program was not found printed nothing.
        let mut not_found = waiting(ConvergenceState::Failed, "task httpd failed: nobin: not found");
        (not_found.tasks[0].attempt, not_found.tasks[0].started_at) = (2, UnixNanos(0));
        assert!(unbegun(&target(not_found, None), Named::Expected)[0].contains("nobin: not found"));
        let begun = herdlet_manifest::fixture::alloc_view(&web, 0, 1);
        assert!(unbegun(&target(begun, Some("httpd")), Named::All).is_empty());
        let many: Vec<AllocView> =
            (0..13).map(|_| waiting(ConvergenceState::Waiting, "health: waits")).collect();
        let many = Target { job: Some(web.key()), allocs: many, task: None };
        assert_eq!(unbegun(&many, Named::All).last().unwrap(), "and 3 more");
    }
}
