//! One wait of a plan, in words, with its reason and its times.
//!
//! In: a wait, and the allocation that waits. Out: the text, which begins with the part that waits.

use core::fmt::{Arguments, Display, Write};
use std_alloc::string::String;

use herdlet_api_types::{
    Duration,
    alloc::Allocation,
    task::TaskStatus,
    view::{Reason, Wait},
};

use super::words::{Checks, Lacking, LastExit, PartName, TaskName, Work, signal_of, why_restarted};
use crate::{
    op::{Part, TaskIndex, TaskPart},
    plan::Waiting,
    state::{AllocState, LastValue, PartState, Progress},
    time::{Deadline, Now},
};

/// Capacity for most messages about a wait.
pub(super) const SENTENCE: usize = 80;

/// Separates the part from the message.
const SEPARATOR: &str = ": ";

/// One wait of a plan, in words.
pub fn describe(now: Now, spec: &Allocation, state: &AllocState, waiting: &Waiting) -> Wait {
    let mut part = String::new();
    let details = write_reason(&mut part, now, spec, state, waiting);
    let message = String::from(part.get(details.part + SEPARATOR.len()..).unwrap_or_default());
    part.truncate(details.part);
    Wait {
        part,
        reason: details.reason,
        message,
        since: details.since_ns.map(|at| now.moment_at(at).wall),
        until: details.until_ns.map(|at| now.moment_at(at).wall),
    }
}

/// The properties of a written message.
pub(super) struct ReasonFields {
    /// Length of the part's name, which precedes the message.
    part: usize,
    pub(super) reason: Reason,
    pub(super) since_ns: Option<u64>,
    pub(super) until_ns: Option<u64>,
}

/// Writes one wait, the part first, without intermediate strings: this happens on each change of each allocation.
pub(super) fn write_reason(
    text: &mut String,
    now: Now,
    spec: &Allocation,
    state: &AllocState,
    waiting: &Waiting,
) -> ReasonFields {
    let mut part = 0;
    let mut say = |name: &dyn Display, message: Arguments<'_>| {
        // Writing to a string can't fail.
        let _ = write!(text, "{name}");
        part = text.len();
        let _ = write!(text, "{SEPARATOR}{message}");
    };
    let task = |index: &TaskIndex| TaskName(spec, *index);
    let due = |deadline: &Deadline| Some(deadline.due_ns(now));
    let (reason, since_ns, until_ns) = match waiting {
        Waiting::Part(part) => {
            let name = PartName(spec, *part);
            match state.parts.get(*part) {
                PartState::Busy { doing, since_ns, overdue, .. } => {
                    let how = if *overdue { " is overdue" } else { "" };
                    let work = Work(*part, *doing);
                    match progress(state, *part, *since_ns) {
                        Some(Progress { what, since_ns }) => {
                            say(&name, format_args!("{work}{how}: {what}"));
                            (Reason::Operation, Some(*since_ns), None)
                        }
                        None => {
                            say(&name, format_args!("{work}{how}"));
                            (Reason::Operation, Some(*since_ns), None)
                        }
                    }
                }
                PartState::Failed { doing, attempt, retry_at_ns, why } => {
                    say(&name, format_args!("{} failed (try {attempt}): {why}", Work(*part, *doing)));
                    (Reason::Error, None, Some(*retry_at_ns))
                }
                PartState::Pending { on, since_ns, last, .. } => {
                    let last = match last {
                        LastValue::Gone => "",
                        LastValue::Kept => "outdated, the last output is kept: ",
                    };
                    say(&name, format_args!("{last}waits for {on}"));
                    (Reason::Dependency, Some(*since_ns), None)
                }
                PartState::Unknown | PartState::Suspect(_) => {
                    say(&name, format_args!("not inspected yet"));
                    (Reason::Operation, None, None)
                }
                PartState::Absent | PartState::Up => {
                    say(&name, format_args!("about to change"));
                    (Reason::Operation, None, None)
                }
            }
        }
        Waiting::Gate(index) => {
            say(&task(index), format_args!("waits for its turn in the lifecycle"));
            (Reason::Dependency, None, None)
        }
        Waiting::Dependency(index, other) => {
            say(&task(index), format_args!("waits for task {other}"));
            (Reason::Dependency, None, None)
        }
        Waiting::Driver(index, why) => {
            let driver =
                spec.group().and_then(|group| group.tasks.get(usize::from(*index))).map(|task| &*task.driver);
            say(&task(index), format_args!("waits for the driver {}: {why}", driver.unwrap_or_default()));
            (Reason::Dependency, None, None)
        }
        Waiting::Stale(index, why) => {
            let driver =
                spec.group().and_then(|group| group.tasks.get(usize::from(*index))).map(|task| &*task.driver);
            let driver = driver.unwrap_or_default();
            say(&task(index), format_args!("its state is stale: the driver {driver} is away: {why}"));
            (Reason::Dependency, None, None)
        }
        Waiting::Contact(index) => {
            let why = "waits for the servers: this allocation may have been replaced on another node";
            say(&task(index), format_args!("{why}"));
            (Reason::Dependency, None, None)
        }
        Waiting::Previous(index, awaited) => {
            let why = if spec.previous == Some(*awaited) {
                "which it replaces"
            } else {
                "which was preempted for it"
            };
            say(&task(index), format_args!("waits for allocation {awaited} to end, {why}"));
            (Reason::Dependency, None, None)
        }
        Waiting::Volume(index, volume, why) => {
            let (separator, why) = why.as_ref().map_or(("", ""), |why| (": ", why.as_str()));
            let text = format_args!("waits for volume \"{volume}\"{separator}{why}");
            match index {
                Some(index) => say(&task(index), text),
                None => say(&"group", text),
            }
            (Reason::Dependency, None, None)
        }
        Waiting::Backoff(index, until) => {
            let last = LastExit(spec, state, *index);
            say(&task(index), format_args!("restarts after a delay{last}"));
            (Reason::Backoff, None, due(until))
        }
        Waiting::Proof(index, at_ns) => {
            let known = state.durable.tasks.get(usize::from(*index));
            let started_ns = known.map_or(*at_ns, |known| known.started_ns);
            let length = Duration(i64::try_from(at_ns.saturating_sub(started_ns)).unwrap_or(i64::MAX));
            let length = length.rounded();
            say(
                &task(index),
                format_args!("has failed before; counts as running after {length} without a failure"),
            );
            (Reason::Backoff, None, Some(*at_ns))
        }
        Waiting::Delay(Some(index), until) => {
            say(&task(index), format_args!("shutdown_delay of {} runs", until.length));
            (Reason::Delay, None, due(until))
        }
        Waiting::Delay(None, until) => {
            let what = match (&state.durable.stop, &state.durable.restart) {
                (None, Some(restart)) if restart.unhealthy => {
                    " before its tasks restart because of a failing check"
                }
                (None, Some(_)) => " before its tasks restart",
                (Some(_), _) | (None, None) => "",
            };
            say(&"group", format_args!("shutdown_delay of {} runs{what}", until.length));
            (Reason::Delay, None, due(until))
        }
        Waiting::Turn(index, other) => {
            let update = spec.group().and_then(|group| group.update.as_ref());
            let most = update.map_or(0, |update| update.max_parallel);
            say(
                &task(index),
                format_args!(
                    "waits for its turn to restart: its templates have changed, but {other} restarts or is not \
                     healthy yet, and `max_parallel` of `update` is {most}"
                ),
            );
            (Reason::Dependency, None, None)
        }
        Waiting::StopOrder(index) => {
            say(&task(index), format_args!("stops after the tasks before it in the stop order"));
            (Reason::Dependency, None, None)
        }
        Waiting::Exit(index, until) => {
            let known = state.durable.tasks.get(usize::from(*index));
            let why = known.and_then(why_restarted).unwrap_or_default();
            let colon = if why.is_empty() { "" } else { "; reason: " };
            let length = until.length;
            let signal = signal_of(spec, *index);
            say(&task(index), format_args!("got {signal}; is killed after {length}{colon}{why}"));
            (Reason::Operation, None, due(until))
        }
        Waiting::Task(index, status) => {
            let progress = match status {
                TaskStatus::Pending => "is being prepared",
                TaskStatus::Running => "is running",
                TaskStatus::Dead => "has ended",
            };
            say(&task(index), format_args!("{progress}"));
            (Reason::Operation, None, None)
        }
        Waiting::Poststop(index) => {
            let name = spec.name();
            say(
                &task(index),
                format_args!("runs last and has no time limit; to end it: herdlet stop --force '{name}'"),
            );
            (Reason::Operation, None, None)
        }
        Waiting::Checks(by) => {
            say(&"health", format_args!("waits for {}", Checks(state)));
            (Reason::Health, None, by.as_ref().and_then(due))
        }
        Waiting::CheckRestart { check, at_ns } => {
            let result = state.checks.results.get(check);
            let (check, service) = result.map_or(("", ""), |result| (&*result.check, &*result.service));
            match result.and_then(|result| result.task.as_deref()) {
                Some(task) => say(
                    &format_args!("task {task}"),
                    format_args!("restarts unless check {check} of service {service} passes"),
                ),
                None => say(
                    &"group",
                    format_args!(
                        "its running tasks restart unless check {check} of service {service} passes"
                    ),
                ),
            }
            (Reason::Health, None, Some(*at_ns))
        }
        Waiting::Health(by) => {
            say(&"health", format_args!("waits for {}", Lacking(spec, state)));
            (Reason::Health, None, by.as_ref().and_then(due))
        }
        Waiting::Judgement(id) => {
            say(
                &"health",
                format_args!(
                    "waits for a manual health decision: POST /v1/deployment/allocation-health/{id}"
                ),
            );
            (Reason::Promotion, None, None)
        }
    };
    ReasonFields { part, reason, since_ns, until_ns }
}

/// How far the start of a task is, if its driver has reported it since the start began.
fn progress(state: &AllocState, part: Part, began_ns: u64) -> Option<&Progress> {
    let Part::Task(index, TaskPart::Process) = part else { return None };
    state.progress.get(&index).filter(|progress| progress.since_ns >= began_ns)
}
