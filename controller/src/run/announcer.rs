//! Progress messages and the exit code of a run.
//!
//! In: the read model. Out: a line on stderr for each start, restart and end of a task, and for each reason to wait; the exit
//! code. It waits for nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use herdlet_agent::publish::ReadModel;
use herdlet_api_types::{
    AllocId,
    job::Job,
    task::{ExitResult, TaskPhase, TaskStatus},
    view::{AllocView, Convergence, ConvergenceState, Reason, TaskView},
};

/// Exit code for a task that could not run, as in shells.
const CANNOT_RUN: u8 = 126;

/// Added to the number of a signal that ended a task, as in shells.
const KILLED: i32 = 128;

/// What was printed already.
#[derive(Default)]
pub(super) struct Announcer {
    ended: BTreeSet<(AllocId, Arc<str>)>,
    running: BTreeSet<(AllocId, Arc<str>, u32)>,
    restarts: BTreeSet<(AllocId, Arc<str>, u32)>,
    /// What a job or an allocation waited for last, by its name.
    waits: BTreeMap<String, Option<Reason>>,
}

impl Announcer {
    /// Prints what is new.
    pub(super) fn announce(&mut self, model: &ReadModel, began: Instant) {
        for view in model.jobs().iter().filter(|view| !view.unplaced.is_empty()) {
            self.announce_wait(view.key.to_string(), &view.convergence);
        }
        for view in model.allocs() {
            for task in &view.tasks {
                self.announce_task(&view, task, began);
            }
            // Once the tasks have ended, only their remains are waited for.
            if !view.status.is_terminal() {
                self.announce_wait(view.spec.title(), &view.convergence);
            }
        }
    }

    /// Prints a reason to wait. Progress between two equal reasons, such as another try, is not a line.
    fn announce_wait(&mut self, name: String, verdict: &Convergence) {
        if let Some(line) = self.wait_line(name, verdict) {
            herdlet_base::stderr_line!("{line}");
        }
    }

    fn wait_line(&mut self, name: String, verdict: &Convergence) -> Option<String> {
        match verdict.state {
            ConvergenceState::Waiting => {
                let line = format!("{name}: waiting, {}", verdict.message);
                let last = self.waits.insert(name, verdict.reason);
                (last != Some(verdict.reason)).then_some(line)
            }
            ConvergenceState::Converged => {
                self.waits.remove(&name);
                None
            }
            ConvergenceState::Progressing | ConvergenceState::Failed => None,
        }
    }

    fn announce_task(&mut self, view: &AllocView, task: &TaskView, began: Instant) {
        let name = format!("{}/{}", view.spec.name(), task.name);
        let key = (view.spec.id, task.name.clone());
        if task.restarts > 0 && self.restarts.insert((key.0, key.1.clone(), task.restarts)) {
            let exit = task.exit.as_ref().map(describe_exit).unwrap_or_default();
            herdlet_base::stderr_line!("{name} restarting (restart {}){exit}", task.restarts);
        }
        if !view.spec.job.kind.completes()
            && task.phase == TaskPhase::Running
            && self.running.insert((key.0, key.1.clone(), task.attempt))
        {
            herdlet_base::stderr_line!("{name} running after {}", format_elapsed(began));
        }
        if task.state == TaskStatus::Dead
            && !task.failed
            && task.never_ran()
            && self.ended.insert(key.clone())
        {
            let why = task.events.last().map(|event| event.message.as_str()).unwrap_or_default();
            herdlet_base::stderr_line!("{name}: {}", lower_first(why));
            return;
        }
        if task.state == TaskStatus::Dead && self.ended.insert(key) {
            let stopped = task.exit.as_ref().is_some_and(|exit| exit.signal != 0);
            let word = if task.failed {
                "failed"
            } else if stopped {
                "stopped"
            } else {
                "complete"
            };
            let exit = task.exit.as_ref().map(describe_exit).unwrap_or_default();
            let outcome = if task.failed { "gave up after" } else { "converged in" };
            herdlet_base::stderr_line!("{name} {word}{exit}, {outcome} {}", format_elapsed(began));
            if task.failed
                && let Some(event) = task.events.last()
            {
                herdlet_base::stderr_line!("  {}: {}", event.kind.as_str(), event.message);
            }
        }
    }
}

/// A sentence as a part of another.
fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

fn describe_exit(exit: &ExitResult) -> String {
    match (exit.signal, exit.error.as_str()) {
        (0, "") => format!(" (exit {})", exit.code),
        (0, error) => format!(" ({error})"),
        (signal, _) => format!(" (signal {signal})"),
    }
}

fn format_elapsed(began: Instant) -> String {
    let elapsed = began.elapsed();
    if elapsed.as_secs() < 10 {
        format!("{} ms", elapsed.as_millis())
    } else {
        format!("{} s", elapsed.as_secs())
    }
}

/// The first exit code of a task that is not zero, in the order of files, groups and tasks.
pub(super) fn exit_code(model: &ReadModel, jobs: &[Job]) -> u8 {
    for job in jobs {
        for group in &job.groups {
            let allocs = model.allocs_of(&job.key());
            for view in allocs.iter().filter(|view| view.spec.group == group.name) {
                for task in &view.tasks {
                    if let Some(code) = task_code(task) {
                        return code;
                    }
                }
            }
        }
    }
    0
}

/// The exit code for a failed task; none if the task succeeded or was stopped by the agent. A task that never ran gets
/// the code of a program that can't be executed; if the program does not exist, the task already has its code.
fn task_code(task: &TaskView) -> Option<u8> {
    if !task.failed {
        return None;
    }
    let (code, signal) = task.exit.as_ref().map_or((0, 0), |exit| (exit.code, exit.signal));
    let code = if code == 0 && signal != 0 { KILLED + signal } else { code };
    Some(if code == 0 { CANNOT_RUN } else { u8::try_from(code).unwrap_or(u8::MAX) })
}

#[cfg(test)]
mod tests {
    use herdlet_manifest::fixture;

    use super::*;

    /// `herdlet run` printed nothing while a network could not be made.
    #[test]
    fn each_reason_to_wait_is_a_line() {
        let mut announcer = Announcer::default();
        let mut line = |state, reason, message: &str| {
            let verdict = Convergence { reason, ..fixture::verdict(state, message) };
            announcer.wait_line("web.web[0]".to_owned(), &verdict)
        };
        use ConvergenceState::{Converged, Progressing, Waiting};
        let (port, backoff) = (Some(Reason::Port), Some(Reason::Backoff));
        assert_eq!(line(Progressing, Some(Reason::Operation), "creating it"), None);
        let first = line(Waiting, port, "waits for port 80");
        assert_eq!(first.as_deref(), Some("web.web[0]: waiting, waits for port 80"));
        assert_eq!(line(Progressing, Some(Reason::Operation), "creating it"), None);
        assert_eq!(line(Waiting, port, "waits for port 80"), None);
        assert!(line(Waiting, backoff, "creating it failed").is_some());
        assert_eq!(line(Converged, None, ""), None);
        assert!(line(Waiting, port, "waits for port 80").is_some());
    }
}
