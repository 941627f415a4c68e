//! Derives coarse states from fine ones, and the verdict whether an allocation has converged.

use core::fmt::{self, Arguments, Display, Formatter, Write};
use std_alloc::{format, string::String, vec::Vec};

use herdlet_api_types::{
    Duration, Moment,
    alloc::{Allocation, ClientStatus, Desired},
    job::HealthCheck,
    service::{CheckResult, CheckStatus},
    task::{TaskEvent, TaskEventKind, TaskStatus},
    view::{Convergence, ConvergenceState, Reason},
};

use crate::{
    op::{Part, TaskIndex, TaskPart},
    parts::column::Words,
    plan::{Plan, Waiting},
    policy::{HealthTerms, has_counted_check},
    state::{AllocState, Doing, PartState, Progress, Run, TaskState},
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
    let unhealthy =
        state.durable.health.is_some_and(|health| !health.healthy) && spec.desired == Desired::Run;
    let Some(waiting) = plan.waits.iter().max_by_key(|waiting| rank(waiting, state)) else {
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
    let details = write_reason(&mut message, now, spec, state, waiting);
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
        overdue_at: details.until_ns.map(|at| now.moment_at(at)),
    }
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

/// One wait of a plan, in words.
pub fn describe(
    now: Now,
    spec: &Allocation,
    state: &AllocState,
    waiting: &Waiting,
) -> herdlet_api_types::view::Wait {
    let mut part = String::new();
    let details = write_reason(&mut part, now, spec, state, waiting);
    let message = String::from(part.get(details.part + SEPARATOR.len()..).unwrap_or_default());
    part.truncate(details.part);
    herdlet_api_types::view::Wait {
        part,
        reason: details.reason,
        message,
        since: details.since_ns.map(|at| now.moment_at(at).wall),
        until: details.until_ns.map(|at| now.moment_at(at).wall),
    }
}

/// Capacity for most messages about a wait.
const SENTENCE: usize = 80;

/// Separates the part from the message.
const SEPARATOR: &str = ": ";

/// The properties of a written message.
struct ReasonFields {
    /// Length of the part's name, which precedes the message.
    part: usize,
    reason: Reason,
    since_ns: Option<u64>,
    until_ns: Option<u64>,
}

/// Why the roll-out judged the running allocation as unhealthy.
fn unhealthy_why(spec: &Allocation) -> String {
    match HealthTerms::of(spec).filter(|terms| terms.health_check != HealthCheck::Manual) {
        Some(terms) => format!("not healthy within healthy_deadline ({})", terms.healthy_deadline),
        None => String::from("judged as unhealthy"),
    }
}

/// Writes one wait, the part first, without intermediate strings: this happens on each change of each allocation.
fn write_reason(
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
                PartState::Pending { on, since_ns, .. } => {
                    say(&name, format_args!("waits for {on}"));
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

/// The name of a part in output.
struct PartName<'a>(&'a Allocation, Part);

impl Display for PartName<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let name = self.1.row().words.name;
        match self.1.task() {
            Some(index) => write!(f, "{}: {name}", TaskName(self.0, index)),
            None => f.write_str(name),
        }
    }
}

/// The name of a task in output.
struct TaskName<'a>(&'a Allocation, TaskIndex);

impl Display for TaskName<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("task ")?;
        match self.0.group().and_then(|group| group.tasks.get(usize::from(self.1))) {
            Some(task) => f.write_str(&task.name),
            None => write!(f, "{}", self.1),
        }
    }
}

/// The signal that asks a task to end.
fn signal_of(spec: &Allocation, index: TaskIndex) -> &str {
    let task = spec.group().and_then(|group| group.tasks.get(usize::from(index)));
    task.and_then(|task| task.kill_signal.as_deref()).unwrap_or("SIGINT")
}

/// What is missing for the roll-out's verdict.
struct Lacking<'a>(&'a Allocation, &'a AllocState);

impl Display for Lacking<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(spec, state) = self;
        let time = HealthTerms::of(spec).map(|terms| terms.min_healthy_time);
        let time = time.filter(|time| *time > Duration::ZERO);
        if state.healthy_since_ns.is_none() {
            match has_counted_check(spec) {
                true => Checks(state).fmt(f)?,
                false => f.write_str("running tasks")?,
            }
            f.write_str(if time.is_some() { ", then for " } else { "" })?;
        }
        time.map_or(Ok(()), |time| write!(f, "min_healthy_time of {time}"))
    }
}

/// That checks must pass, with the failing check and its output.
struct Checks<'a>(&'a AllocState);

/// The maximum length of a check's output in a message.
const SAID_CHARS_MAX: usize = 120;

impl Display for Checks<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("passing checks")?;
        let not_as_required = |status| {
            let is_it = move |result: &&CheckResult| result.status == status && !result.is_as_required();
            self.0.checks.results.values().find(is_it)
        };
        let failing = not_as_required(CheckStatus::Failure).map(|result| (result, "fails", ""));
        let warning = || {
            let advice = "; set `on_update: ignore_warnings` to accept warnings";
            not_as_required(CheckStatus::Warning).map(|result| (result, "warns", advice))
        };
        failing.or_else(warning).map_or(Ok(()), |(result, how, advice)| {
            let first = result.output.lines().next().unwrap_or_default();
            // Nomad's clients begin the output of every check with this word.
            let first = first.strip_prefix("nomad: ").unwrap_or(first);
            let output: String = first.chars().take(SAID_CHARS_MAX).collect();
            write!(f, " ({} of service {} {how}: {output}{advice})", result.check, result.service)
        })
    }
}

/// How the task's last attempt ended, if any; if it was made to restart, why.
struct LastExit<'a>(&'a Allocation, &'a AllocState, TaskIndex);

impl Display for LastExit<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(spec, state, index) = self;
        let task = state.durable.tasks.get(usize::from(*index));
        if let Some(why) = task.and_then(why_restarted) {
            return write!(f, "; {why}");
        }
        match task.and_then(|task| task.exit.as_ref()) {
            Some(exit) if !exit.error.is_empty() => write!(f, "; last: {}", exit.error),
            Some(exit) if exit.oom_killed => {
                f.write_str("; last: out of memory")?;
                let task = spec.group().and_then(|group| group.tasks.get(usize::from(*index)));
                let limit = task.and_then(|task| task.resources.memory_limit_mib());
                limit.map_or(Ok(()), |limit| write!(f, " (limit {limit} MiB)"))
            }
            Some(exit) => write!(f, "; last exit code {}", exit.code),
            None => Ok(()),
        }
    }
}

/// Why the newest attempt was made to restart, if it was.
fn why_restarted(task: &TaskState) -> Option<&str> {
    let of_attempt = task.events.iter().rev().take_while(|event| event.kind != TaskEventKind::Started);
    let mut signals = of_attempt.filter(|event| event.kind == TaskEventKind::RestartSignaled);
    signals.next().map(|event| &*event.message)
}

/// What an operation does with a part.
struct Work(Part, Doing);

impl Display for Work {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Words { them, up, down, .. } = self.0.row().words;
        match self.1 {
            Doing::Up => write!(f, "{up} {them}"),
            Doing::Down => write!(f, "{down} {them}"),
            Doing::Renew => write!(f, "renewing {them}"),
            Doing::Inspect(_) => write!(f, "inspecting {them}"),
        }
    }
}

/// How far the start of a task is, if its driver has reported it since the start began.
fn progress(state: &AllocState, part: Part, began_ns: u64) -> Option<&Progress> {
    let Part::Task(index, TaskPart::Process) = part else { return None };
    state.progress.get(&index).filter(|progress| progress.since_ns >= began_ns)
}

/// The priority of a wait in messages: failures first, then unmet needs, then work in progress.
fn rank(waiting: &Waiting, state: &AllocState) -> u8 {
    match waiting {
        Waiting::Part(part) if matches!(state.parts.get(*part), PartState::Failed { .. }) => 9,
        Waiting::Part(part) if matches!(state.parts.get(*part), PartState::Pending { .. }) => 8,
        Waiting::Volume(..) | Waiting::Driver(..) | Waiting::Stale(..) => 8,
        Waiting::Backoff(..) | Waiting::Proof(..) => 7,
        Waiting::Delay(..) => 6,
        Waiting::Exit(..) | Waiting::CheckRestart { .. } => 5,
        Waiting::Part(_) => 4,
        Waiting::Checks(_) | Waiting::Health(_) | Waiting::Judgement(_) => 3,
        Waiting::Task(..) | Waiting::Poststop(_) => 2,
        Waiting::Gate(_) | Waiting::Dependency(..) | Waiting::StopOrder(_) => 1,
        Waiting::Contact(_) | Waiting::Previous(..) => 3,
    }
}

#[cfg(test)]
mod tests;
