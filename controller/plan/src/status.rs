//! Derives coarse states from fine ones, and the verdict whether an allocation has converged.
//!
//! In: an allocation's specification, state and plan. Out: its client status, its convergence, its waits in words.

mod wait;
mod words;

use std_alloc::{format, string::String, vec::Vec};

use herdlet_api_types::{
    Moment,
    alloc::{Allocation, ClientStatus, Desired},
    job::HealthCheck,
    task::{TaskEvent, TaskEventKind, TaskStatus},
    view::{Convergence, ConvergenceState, Reason},
};

pub use self::wait::describe;
use self::{
    wait::{SENTENCE, Sentence},
    words::why_restarted,
};
use crate::{
    plan::{Plan, Waiting},
    policy::HealthTerms,
    state::{AllocState, PartState, Run, TaskState},
    time::{Deadline, Now},
};

/// The description of an allocation that was stopped because of its `max_run_duration`. Nomad's text.
pub(crate) const OUTLIVED: &str = "allocation exceeded max_run_duration";

/// Nomad's client status of an allocation: the first match wins, poststop tasks included.
pub fn client_status(tasks: &[TaskState]) -> (ClientStatus, &'static str) {
    let any = |holds: &dyn Fn(&TaskState) -> bool| tasks.iter().any(holds);
    if any(&|task| task.status() == TaskStatus::Dead && task.failed) {
        (ClientStatus::Failed, "Failed tasks")
    } else if any(&|task| task.status() == TaskStatus::Running) {
        (ClientStatus::Running, "Tasks are running")
    } else if tasks.is_empty() || any(&|task| task.status() == TaskStatus::Pending) {
        // As in Nomad, a task is also pending while its `shutdown_delay` runs.
        let why = if any(&|task| matches!(task.run, Run::Stopping { .. })) {
            "Tasks are being stopped"
        } else if any(&|task| task.status() == TaskStatus::Pending && task.attempt > 0) {
            "Tasks are waiting to restart"
        } else {
            "No tasks have started"
        };
        (ClientStatus::Pending, why)
    } else {
        (ClientStatus::Complete, "All tasks have completed")
    }
}

/// The message for a failed allocation that will be replaced.
pub(crate) fn rescheduled_after(due: &Deadline) -> String {
    format!("a replacement starts {} later", due.length)
}

/// The message for an object that is left alone because planning it panicked.
pub(crate) fn quarantined(why: &str) -> String {
    format!("planning it failed with an internal error, so it is left alone: {why}")
}

/// Whether an allocation has converged, according to its own plan: if the plan waits for nothing, it has.
pub fn convergence(
    now: Now,
    spec: &Allocation,
    state: &AllocState,
    plan: &Plan,
    since: Moment,
) -> Convergence {
    if state.durable.status == ClientStatus::Failed && spec.desired == Desired::Run {
        let why = failure_of(state).unwrap_or_default();
        return match state.durable.reschedule() {
            None => Convergence {
                state: ConvergenceState::Failed,
                reason: Some(Reason::Error),
                message: why,
                since,
                overdue_at: None,
            },
            Some(due) => Convergence {
                state: ConvergenceState::Waiting,
                reason: Some(Reason::Backoff),
                message: format!("{why}; {}", rescheduled_after(&due)),
                since,
                overdue_at: Some(now.moment_at(due.due_ns(now))),
            },
        };
    }
    if let Some(why) = &state.durable.quarantine {
        return Convergence {
            state: ConvergenceState::Failed,
            reason: Some(Reason::Error),
            message: quarantined(why),
            since,
            overdue_at: None,
        };
    }
    let unhealthy = state.durable.is_unhealthy() && spec.desired == Desired::Run;
    let Some(waiting) = foremost(plan, state) else {
        if unhealthy {
            return Convergence {
                state: ConvergenceState::Failed,
                reason: Some(Reason::Health),
                message: unhealthy_why(spec),
                since,
                overdue_at: None,
            };
        }
        return Convergence {
            state: ConvergenceState::Converged,
            reason: None,
            message: String::new(),
            since,
            overdue_at: None,
        };
    };
    let mut message = String::with_capacity(SENTENCE);
    let details = Sentence::begin(&mut message, now, spec, state).write(waiting);
    if unhealthy {
        message = format!("{}; {message}", unhealthy_why(spec));
    }
    let verdict = match details.reason {
        _ if unhealthy => ConvergenceState::Failed,
        Reason::Operation | Reason::Delay | Reason::Health => ConvergenceState::Progressing,
        Reason::Dependency
        | Reason::Promotion
        | Reason::Capacity
        | Reason::Constraint
        | Reason::Port
        | Reason::Backoff
        | Reason::Manifest
        | Reason::Error => ConvergenceState::Waiting,
    };
    Convergence {
        state: verdict,
        reason: Some(details.reason),
        message,
        since,
        overdue_at: overdue_ns(now, (spec, state), details.until_ns).map(|at| now.moment_at(at)),
    }
}

/// When the allocation is overdue. Each failure of a crash loop begins another wait, and does not extend the first one.
fn overdue_ns(now: Now, (spec, state): (&Allocation, &AllocState), until_ns: Option<u64>) -> Option<u64> {
    let late = state.durable.tasks.iter().filter(|_| spec.desired == Desired::Run);
    let late_ns = late.filter_map(|task| task.late_at).map(|at| at.due_ns(now)).min();
    late_ns.into_iter().chain(until_ns).min()
}

/// The failed task of an allocation, and its cause.
pub(crate) fn failure_of(state: &AllocState) -> Option<String> {
    let task = state.durable.tasks.iter().find(|task| task.failed)?;
    // The restart policy's event explains only why the task is not restarted; the event before it gives the cause. If the
    // task was made to restart, the way it ended is not the cause.
    let (policy, causes): (Vec<_>, Vec<_>) =
        task.events.iter().rev().partition(|event| event.kind == TaskEventKind::NotRestarting);
    let first_message = |events: &[&'_ TaskEvent]| events.first().map(|event| event.message.clone());
    let cause = why_restarted(task).map(String::from).or_else(|| first_message(&causes));
    let reasons: Vec<String> = cause.into_iter().chain(first_message(&policy)).collect();
    Some(format!("task {} failed: {}", task.name, reasons.join("; ")))
}

/// Why the roll-out judged the running allocation as unhealthy.
fn unhealthy_why(spec: &Allocation) -> String {
    match HealthTerms::of(spec).filter(|terms| terms.health_check != HealthCheck::Manual) {
        Some(terms) => format!("not healthy within healthy_deadline ({})", terms.healthy_deadline),
        None => String::from("judged as unhealthy"),
    }
}

/// What a running deployment counts against an allocation that is, or may be, healthy now.
pub(crate) fn became_healthy_late(spec: &Allocation) -> String {
    format!("its deployment counts it as unhealthy ({})", unhealthy_why(spec))
}

/// The wait that the verdict names.
pub(crate) fn foremost<'a>(plan: &'a Plan, state: &AllocState) -> Option<&'a Waiting> {
    plan.waits.iter().max_by_key(|waiting| rank(waiting, state))
}

/// The priority of a wait in messages: failures first, then unmet needs, then work in progress.
fn rank(waiting: &Waiting, state: &AllocState) -> u8 {
    match waiting {
        Waiting::Part(part) if matches!(state.parts.get(*part), PartState::Failed { .. }) => 9,
        Waiting::Part(part) if matches!(state.parts.get(*part), PartState::Pending { .. }) => 8,
        Waiting::Volume(..) | Waiting::Driver(..) | Waiting::Stale(..) => 8,
        Waiting::Backoff(..) | Waiting::Proof(..) => 7,
        Waiting::Delay(..) | Waiting::Splay(..) | Waiting::Source(..) => 6,
        Waiting::Exit(..) | Waiting::CheckRestart { .. } => 5,
        Waiting::Part(_) => 4,
        Waiting::Checks(_) | Waiting::Health(_) | Waiting::Judgement(_) => 3,
        Waiting::Task(..) | Waiting::Poststop(_) => 2,
        Waiting::Gate(_) | Waiting::Dependency(..) | Waiting::Turn(..) | Waiting::StopOrder(_) => 1,
        Waiting::Contact(_) | Waiting::Previous(..) => 3,
    }
}

#[cfg(test)]
mod tests;
