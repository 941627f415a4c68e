//! From fine states to coarse ones, and the one verdict whether something has converged.

use std_alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

use herdlet_api_types::{
    UnixNanos,
    alloc::{Allocation, ClientStatus, Desired},
    task::{TaskEvent, TaskEventKind, TaskStatus},
    view::{Convergence, ConvergenceState, Reason},
};

use crate::{
    alloc::apply::kind_of,
    op::{Part, TaskIndex},
    plan::{Plan, Waiting},
    state::{AllocState, Doing, PartState, TaskState},
    time::{Deadline, Now},
};

/// Nomad's client status of an allocation, first match wins, poststop tasks included.
pub fn client_status(tasks: &[TaskState]) -> (ClientStatus, &'static str) {
    let any = |holds: &dyn Fn(&TaskState) -> bool| tasks.iter().any(holds);
    if any(&|task| task.status() == TaskStatus::Dead && task.failed) {
        (ClientStatus::Failed, "Failed tasks")
    } else if any(&|task| task.status() == TaskStatus::Running) {
        (ClientStatus::Running, "Tasks are running")
    } else if tasks.is_empty() || any(&|task| task.status() == TaskStatus::Pending) {
        (ClientStatus::Pending, "No tasks have started")
    } else {
        (ClientStatus::Complete, "All tasks have completed")
    }
}

/// Whether an allocation has converged, by its own plan: a plan that waits for nothing has arrived.
pub fn convergence(
    now: Now,
    spec: &Allocation,
    state: &AllocState,
    plan: &Plan,
    since: UnixNanos,
) -> Convergence {
    if state.durable.status == ClientStatus::Failed && spec.desired == Desired::Run {
        let why = state.durable.tasks.iter().find(|task| task.failed).map_or_else(String::new, |task| {
            // That it is not restarted is the policy's word; why is what was told before.
            let (policy, causes): (Vec<_>, Vec<_>) =
                task.events.iter().rev().partition(|event| event.kind == TaskEventKind::NotRestarting);
            let said = |event: &&TaskEvent| event.message.clone();
            let told: Vec<String> =
                causes.first().map(said).into_iter().chain(policy.first().map(said)).collect();
            format!("task {} failed: {}", task.name, told.join("; "))
        });
        return Convergence {
            state: ConvergenceState::Failed,
            reason: Some(Reason::Error),
            message: why,
            since,
            overdue_at: None,
        };
    }
    if let Some(why) = &state.durable.quarantine {
        return Convergence {
            state: ConvergenceState::Failed,
            reason: Some(Reason::Error),
            message: format!("planning it failed, it is left alone: {why}"),
            since,
            overdue_at: None,
        };
    }
    let unhealthy =
        state.durable.health.is_some_and(|health| !health.healthy) && spec.desired == Desired::Run;
    let Some(waiting) = plan.waits.iter().max_by_key(|waiting| rank(waiting, state)) else {
        if unhealthy {
            return Convergence {
                state: ConvergenceState::Failed,
                reason: Some(Reason::Health),
                message: String::from("did not become healthy in time"),
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
    let wait = describe(now, spec, state, waiting);
    let verdict = match wait.reason {
        _ if unhealthy => ConvergenceState::Failed,
        Reason::Operation | Reason::Delay | Reason::Health => ConvergenceState::Progressing,
        Reason::Dependency
        | Reason::Capacity
        | Reason::Port
        | Reason::Backoff
        | Reason::Manifest
        | Reason::Error => ConvergenceState::Waiting,
    };
    Convergence {
        state: verdict,
        reason: Some(wait.reason),
        message: format!("{}: {}", wait.part, wait.message),
        since,
        overdue_at: wait.until,
    }
}

/// One thing that is waited for, in words.
pub fn describe(
    now: Now,
    spec: &Allocation,
    state: &AllocState,
    waiting: &Waiting,
) -> herdlet_api_types::view::Wait {
    let wait = |part: String, reason, message: String, since_ns: Option<u64>, until_ns: Option<u64>| {
        herdlet_api_types::view::Wait {
            part,
            reason,
            message,
            since: since_ns.map(|at| wall_of(now, at)),
            until: until_ns.map(|at| wall_of(now, at)),
        }
    };
    let due = |deadline: &Deadline| Some(deadline.due_ns(now));
    match waiting {
        Waiting::Part(part) => {
            let name = part_name(spec, *part);
            match state.parts.get(*part) {
                PartState::Busy { doing, since_ns, overdue, .. } => wait(
                    name,
                    Reason::Operation,
                    format!("{} {}", verb(*doing), if *overdue { "is overdue" } else { "is under way" }),
                    Some(*since_ns),
                    None,
                ),
                PartState::Failed { doing, attempt, retry_at_ns, why } => wait(
                    name,
                    Reason::Error,
                    format!("{} failed {attempt} times: {why}", verb(*doing)),
                    None,
                    Some(*retry_at_ns),
                ),
                PartState::Unknown | PartState::Suspect(_) => {
                    wait(name, Reason::Operation, String::from("not looked at yet"), None, None)
                }
                PartState::Absent | PartState::Up => {
                    wait(name, Reason::Operation, String::from("about to change"), None, None)
                }
            }
        }
        Waiting::Gate(index) => wait(
            task_name(spec, *index),
            Reason::Dependency,
            String::from("waits for its turn in the lifecycle"),
            None,
            None,
        ),
        Waiting::Dependency(index, other) => {
            wait(task_name(spec, *index), Reason::Dependency, format!("waits for task {other}"), None, None)
        }
        Waiting::Volume(index, volume) => wait(
            task_name(spec, *index),
            Reason::Dependency,
            format!("waits for volume \"{volume}\""),
            None,
            None,
        ),
        Waiting::Backoff(index, until) => wait(
            task_name(spec, *index),
            Reason::Backoff,
            format!("waits before it starts again{}", last_exit(state, *index)),
            None,
            due(until),
        ),
        Waiting::Delay(Some(index), until) => wait(
            task_name(spec, *index),
            Reason::Delay,
            format!("shutdown_delay of {} runs", until.length),
            None,
            due(until),
        ),
        Waiting::Delay(None, until) => wait(
            String::from("group"),
            Reason::Delay,
            format!("shutdown_delay of {} runs", until.length),
            None,
            due(until),
        ),
        Waiting::StopOrder(index) => wait(
            task_name(spec, *index),
            Reason::Dependency,
            String::from("stops after the tasks before it in the stop order"),
            None,
            None,
        ),
        Waiting::Exit(index, until) => wait(
            task_name(spec, *index),
            Reason::Operation,
            format!("has been asked to end and has {} for it", until.length),
            None,
            due(until),
        ),
        Waiting::Task(index, status) => {
            wait(task_name(spec, *index), Reason::Operation, format!("is {}", status.as_str()), None, None)
        }
        Waiting::Health(by) => wait(
            String::from("health"),
            Reason::Health,
            String::from("waits for passing checks and time in health"),
            None,
            by.as_ref().and_then(due),
        ),
    }
}

/// How a part is called in output.
pub fn part_name(spec: &Allocation, part: Part) -> String {
    match part {
        Part::Task(index, _) => format!("{}: {}", task_name(spec, index), kind_of(part)),
        Part::Dir | Part::Services | Part::Checks => kind_of(part).to_string(),
    }
}

fn task_name(spec: &Allocation, index: TaskIndex) -> String {
    let task = spec.group().and_then(|group| group.tasks.get(usize::from(index)));
    task.map_or_else(|| format!("task {index}"), |task| format!("task {}", task.name))
}

fn last_exit(state: &AllocState, index: TaskIndex) -> String {
    let exit = state.durable.tasks.get(usize::from(index)).and_then(|task| task.exit.as_ref());
    match exit {
        Some(exit) if !exit.error.is_empty() => format!("; last: {}", exit.error),
        Some(exit) => format!("; last exit code {}", exit.code),
        None => String::new(),
    }
}

fn verb(doing: Doing) -> &'static str {
    match doing {
        Doing::Up => "bringing it up",
        Doing::Renew => "renewing it",
        Doing::Down => "taking it down",
        Doing::Look(_) => "looking at it",
    }
}

/// What a person wants to hear first: failures, then what is waited for, then what is under way.
fn rank(waiting: &Waiting, state: &AllocState) -> u8 {
    match waiting {
        Waiting::Part(part) if matches!(state.parts.get(*part), PartState::Failed { .. }) => 9,
        Waiting::Volume(..) => 8,
        Waiting::Backoff(..) => 7,
        Waiting::Delay(..) => 6,
        Waiting::Exit(..) => 5,
        Waiting::Part(_) => 4,
        Waiting::Health(_) => 3,
        Waiting::Task(..) => 2,
        Waiting::Gate(_) | Waiting::Dependency(..) | Waiting::StopOrder(_) => 1,
    }
}

fn wall_of(now: Now, at_ns: u64) -> UnixNanos {
    let ahead = i64::try_from(i128::from(at_ns) - i128::from(now.boot_ns)).unwrap_or(0);
    UnixNanos(now.wall.0.saturating_add(ahead))
}

#[cfg(test)]
mod tests;
