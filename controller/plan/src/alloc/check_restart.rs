//! `check_restart`: a check that keeps failing restarts the tasks that it checks.
//!
//! In: a pass. Out: the restart that is due; otherwise a wake-up for when the next one will be. A failure counts from
//! its first result on, but not before the `grace` after the last start of the checked tasks is over, and only while
//! they run: a check can't kill a task because of something that the task still waits for. `limit` failures in a row
//! have then taken `limit - 1` intervals. A check of a task's service is about that task and restarts it. A check of
//! one of the group's services is about the task that it names, or else about all main tasks, and restarts all running
//! tasks. This module knows nothing of restart policies, which count the restart.

use std_alloc::string::String;

use herdlet_api_types::{
    job::{Lifecycle, Task},
    service::{CheckResult, RestartsWhen},
};

use crate::{
    op::TaskIndex,
    pass::Pass,
    plan::{Change, Waiting},
    state::{Run, TaskState},
};

/// The restart that is due, if any.
pub(super) fn due(pass: &mut Pass<'_>) -> Option<Change> {
    if pass.state.checks.failing_since_ns.is_empty() || pass.state.durable.stop.is_some() {
        return None;
    }
    let state = pass.state;
    for result in state.checks.results.values() {
        let Some(when) = result.restarts_now() else { continue };
        let Some(since_ns) = state.checks.failing_since_ns.get(&result.id) else { continue };
        let Some(checked) = checked(pass, result) else { continue };
        let at_ns = restart_at_ns(*since_ns, checked.started_ns, when);
        if pass.due(at_ns) {
            let output = result.output.lines().next().unwrap_or_default();
            let output =
                String::from(output.get(..output.floor_char_boundary(SAID_BYTES_MAX)).unwrap_or_default());
            return Some(Change::Unhealthy { task: checked.task, check: result.check.clone(), output });
        }
        pass.wait(Waiting::CheckRestart { check: result.id.clone(), at_ns });
    }
    None
}

/// The maximum length of a check's output in an event.
const SAID_BYTES_MAX: usize = 200;

fn restart_at_ns(since_ns: u64, started_ns: u64, when: &RestartsWhen) -> u64 {
    let nanos = |length: herdlet_api_types::Duration| length.as_nanos().max(0).unsigned_abs();
    let counted_from_ns = since_ns.max(started_ns.saturating_add(nanos(when.grace)));
    counted_from_ns.saturating_add(nanos(when.failing_for))
}

/// The tasks that a check is about.
struct Checked {
    /// The task that it restarts; `None` for all running tasks.
    task: Option<TaskIndex>,
    /// When the last of these tasks started.
    started_ns: u64,
}

/// `None` unless all of these tasks that have not ended run undisturbed.
fn checked(pass: &Pass<'_>, result: &CheckResult) -> Option<Checked> {
    let named = result.task.as_deref().or_else(|| result.restarts.as_ref()?.task.as_deref());
    let is_about = |task: &Task| match named {
        Some(name) => task.name == name,
        None => task.lifecycle == Lifecycle::Main,
    };
    let mut last = None;
    let mut restarted = None;
    for (index, (task, known)) in (0..).zip(pass.group.tasks.iter().zip(&pass.state.durable.tasks)) {
        if is_about(task) && known.run != Run::Dead {
            last = last.max(Some(runs_since(pass, known)?));
            restarted = result.task.is_some().then_some(index);
        }
    }
    Some(Checked { task: restarted, started_ns: last? })
}

/// When the task started, if it runs undisturbed. After a reboot it does not run.
fn runs_since(pass: &Pass<'_>, known: &TaskState) -> Option<u64> {
    match known.run {
        Run::Running { boot, .. } if boot == pass.now.boot && known.permanent_failure.is_none() => {
            (!known.restart_requested).then_some(known.started_ns)
        }
        Run::Running { .. }
        | Run::Waiting
        | Run::BackingOff { .. }
        | Run::Starting { .. }
        | Run::Stopping { .. }
        | Run::Dead => None,
    }
}
