//! One wait of a plan, in words, with its reason and its times.
//!
//! In: a wait, and the allocation that waits. Out: the text, which begins with the part that waits.

use core::fmt::{Arguments, Display, Write};
use std_alloc::string::String;

use herdlet_api_types::{
    AllocId, Duration,
    alloc::Allocation,
    task::TaskStatus,
    view::{Reason, Wait},
};

use super::words::{Checks, Lacking, LastExit, PartName, TaskName, Work, signal_of, why_restarted};
use crate::{
    facts::ChangeAction,
    op::{Part, TaskIndex, TaskPart},
    plan::Waiting,
    state::{AllocState, LastValue, PartState, Progress},
    time::{Deadline, Now},
};

/// Capacity for most messages about a wait.
pub(super) const SENTENCE: usize = 80;

/// Separates the part from the message.
const SEPARATOR: &str = ": ";
/// Names of what waits, where it is no part and no task.
const GROUP: &str = "group";
const HEALTH: &str = "health";

/// One wait of a plan, in words.
pub fn describe(now: Now, spec: &Allocation, state: &AllocState, waiting: &Waiting) -> Wait {
    let mut part = String::new();
    let details = Sentence::begin(&mut part, now, spec, state).write(waiting);
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

/// The reason of a wait, and its times.
struct Cause {
    reason: Reason,
    since_ns: Option<u64>,
    until_ns: Option<u64>,
}

impl Cause {
    const DEPENDENCY: Self = Self::new(Reason::Dependency);
    const OPERATION: Self = Self::new(Reason::Operation);

    const fn new(reason: Reason) -> Self {
        Self { reason, since_ns: None, until_ns: None }
    }

    fn since(reason: Reason, since_ns: u64) -> Self {
        Self { since_ns: Some(since_ns), ..Self::new(reason) }
    }

    fn until(reason: Reason, until_ns: Option<u64>) -> Self {
        Self { until_ns, ..Self::new(reason) }
    }
}

/// A message that is written, the part first, without intermediate strings: this happens on each change of each
/// allocation.
pub(super) struct Sentence<'a> {
    text: &'a mut String,
    part: usize,
    now: Now,
    spec: &'a Allocation,
    state: &'a AllocState,
}

impl<'a> Sentence<'a> {
    /// Writes to `text` about this allocation.
    pub(super) fn begin(text: &'a mut String, now: Now, spec: &'a Allocation, state: &'a AllocState) -> Self {
        Self { text, part: 0, now, spec, state }
    }

    /// Writes one wait.
    pub(super) fn write(mut self, waiting: &Waiting) -> ReasonFields {
        let Cause { reason, since_ns, until_ns } = self.cause(waiting);
        ReasonFields { part: self.part, reason, since_ns, until_ns }
    }

    fn say(&mut self, name: &dyn Display, message: Arguments<'_>) {
        // Writing to a string can't fail.
        let _ = write!(self.text, "{name}");
        self.part = self.text.len();
        let _ = write!(self.text, "{SEPARATOR}{message}");
    }

    fn say_of_task(&mut self, index: TaskIndex, message: Arguments<'_>) {
        self.say(&TaskName(self.spec, index), message);
    }

    fn due(&self, deadline: &Deadline) -> Option<u64> {
        Some(deadline.due_ns(self.now))
    }

    fn cause(&mut self, waiting: &Waiting) -> Cause {
        match waiting {
            Waiting::Part(part) => self.part(*part),
            Waiting::Gate(index) => self.depends(*index, format_args!("waits for its turn in the lifecycle")),
            Waiting::Dependency(index, other) => self.depends(*index, format_args!("waits for task {other}")),
            Waiting::Driver(index, why) => {
                let driver = self.driver(*index);
                self.depends(*index, format_args!("waits for the driver {driver}: {why}"))
            }
            Waiting::Stale(index, why) => {
                let driver = self.driver(*index);
                self.depends(
                    *index,
                    format_args!("its state is stale: the driver {driver} is not available: {why}"),
                )
            }
            Waiting::Contact(index) => self.depends(
                *index,
                format_args!("waits for the servers: this allocation may have been replaced on another node"),
            ),
            Waiting::Previous(index, awaited) => self.previous(*index, *awaited),
            Waiting::Volume(index, volume, why) => self.volume(*index, volume, why.as_deref()),
            Waiting::Backoff(index, until) => {
                let last = LastExit(self.spec, self.state, *index);
                self.say_of_task(*index, format_args!("restarts after a delay{last}"));
                Cause::until(Reason::Backoff, self.due(until))
            }
            Waiting::Proof(index, at_ns) => self.proof(*index, *at_ns),
            Waiting::Delay(index, until) => self.delay(*index, until),
            Waiting::Splay(index, part) => self.splay(*index, *part),
            Waiting::Source(index, part) => {
                let name = PartName(self.spec, Part::Task(*index, *part));
                self.say(&name, format_args!("data has changed; it is read once it is quiet (`wait`)"));
                Cause::new(Reason::Delay)
            }
            Waiting::Turn(index, other) => self.turn(*index, other),
            Waiting::StopOrder(index) => {
                self.depends(*index, format_args!("stops after the tasks before it in the stop order"))
            }
            Waiting::Exit(index, until) => self.exit(*index, until),
            Waiting::Task(index, status) => {
                let progress = match status {
                    TaskStatus::Pending => "is being prepared",
                    TaskStatus::Running => "is running",
                    TaskStatus::Dead => "has ended",
                };
                self.say_of_task(*index, format_args!("{progress}"));
                Cause::OPERATION
            }
            Waiting::Poststop(index) => {
                let name = self.spec.name();
                self.say_of_task(
                    *index,
                    format_args!("runs last and has no time limit; to end it: herdlet stop --force '{name}'"),
                );
                Cause::OPERATION
            }
            Waiting::Checks(by) => {
                self.say(&HEALTH, format_args!("waits for {}", Checks(self.spec, self.state)));
                Cause::until(Reason::Health, by.as_ref().and_then(|by| self.due(by)))
            }
            Waiting::CheckRestart { check, at_ns } => self.check_restart(check, *at_ns),
            Waiting::Health(by) => {
                self.say(&HEALTH, format_args!("waits for {}", Lacking(self.spec, self.state)));
                Cause::until(Reason::Health, by.as_ref().and_then(|by| self.due(by)))
            }
            Waiting::Judgement(id) => {
                self.say(
                    &HEALTH,
                    format_args!(
                        "waits for a manual health decision: POST /v1/deployment/allocation-health/{id}"
                    ),
                );
                Cause::new(Reason::Promotion)
            }
        }
    }

    /// The task waits for something else.
    fn depends(&mut self, index: TaskIndex, message: Arguments<'_>) -> Cause {
        self.say_of_task(index, message);
        Cause::DEPENDENCY
    }

    /// The driver of a task.
    fn driver(&self, index: TaskIndex) -> &'a str {
        let task = self.spec.group().and_then(|group| group.tasks.get(usize::from(index)));
        task.map_or("", |task| &*task.driver)
    }

    fn part(&mut self, part: Part) -> Cause {
        let name = PartName(self.spec, part);
        match self.state.parts.get(part) {
            PartState::Busy { doing, since_ns, overdue, .. } => {
                let how = if *overdue { " is overdue" } else { "" };
                let work = Work(part, *doing);
                match progress(self.state, part, *since_ns) {
                    Some(Progress { what, since_ns }) => {
                        self.say(&name, format_args!("{work}{how}: {what}"));
                        Cause::since(Reason::Operation, *since_ns)
                    }
                    None => {
                        self.say(&name, format_args!("{work}{how}"));
                        Cause::since(Reason::Operation, *since_ns)
                    }
                }
            }
            PartState::Failed { doing, attempt, retry_at_ns, why } => {
                self.say(&name, format_args!("{} failed (try {attempt}): {why}", Work(part, *doing)));
                Cause::until(Reason::Error, Some(*retry_at_ns))
            }
            PartState::Pending { on, since_ns, last, .. } => {
                let last = match (last, part) {
                    (LastValue::Gone, _) => "",
                    (LastValue::Kept, Part::Task(_, TaskPart::Vault | TaskPart::Consul)) => {
                        "the last token is kept: "
                    }
                    (LastValue::Kept, _) => "outdated, the last output is kept: ",
                };
                self.say(&name, format_args!("{last}waits for {on}"));
                Cause::since(Reason::Dependency, *since_ns)
            }
            PartState::Unknown | PartState::Suspect(_) => {
                self.say(&name, format_args!("not inspected yet"));
                Cause::OPERATION
            }
            PartState::Absent | PartState::Up => {
                self.say(&name, format_args!("about to change"));
                Cause::OPERATION
            }
        }
    }

    fn previous(&mut self, index: TaskIndex, awaited: AllocId) -> Cause {
        let why = if self.spec.previous == Some(awaited) {
            "which it replaces"
        } else {
            "which was preempted for it"
        };
        self.depends(index, format_args!("waits for allocation {awaited} to end, {why}"))
    }

    fn volume(&mut self, index: Option<TaskIndex>, volume: &str, why: Option<&str>) -> Cause {
        let (separator, why) = why.map_or(("", ""), |why| (": ", why));
        let message = format_args!("waits for volume \"{volume}\"{separator}{why}");
        match index {
            Some(index) => self.say_of_task(index, message),
            None => self.say(&GROUP, message),
        }
        Cause::DEPENDENCY
    }

    fn proof(&mut self, index: TaskIndex, at_ns: u64) -> Cause {
        let known = self.state.durable.tasks.get(usize::from(index));
        let started_ns = known.map_or(at_ns, |known| known.started_ns);
        let length = Duration(i64::try_from(at_ns.saturating_sub(started_ns)).unwrap_or(i64::MAX));
        let length = length.rounded();
        self.say_of_task(
            index,
            format_args!("has failed before; counts as running after {length} without a failure"),
        );
        Cause::until(Reason::Backoff, Some(at_ns))
    }

    fn delay(&mut self, index: Option<TaskIndex>, until: &Deadline) -> Cause {
        let length = until.length;
        if let Some(index) = index {
            self.say_of_task(index, format_args!("shutdown_delay of {length} runs"));
            return Cause::until(Reason::Delay, self.due(until));
        }
        let what = match (&self.state.durable.stop, &self.state.durable.restart) {
            (None, Some(restart)) if restart.unhealthy => {
                " before its tasks restart because of a failing check"
            }
            (None, Some(_)) => " before its tasks restart",
            (Some(_), _) | (None, None) => "",
        };
        self.say(&GROUP, format_args!("shutdown_delay of {length} runs{what}"));
        Cause::until(Reason::Delay, self.due(until))
    }

    fn splay(&mut self, index: TaskIndex, part: TaskPart) -> Cause {
        let known = self.state.durable.tasks.get(usize::from(index));
        let Some(owed) = known.and_then(|known| known.owed.get(&part)) else { return Cause::OPERATION };
        let (action, why) = match &owed.action {
            ChangeAction::Restart(why) => ("restarts", &**why),
            ChangeAction::Signal(_) => ("gets a signal", "its data has changed"),
            ChangeAction::Run { .. } => ("runs a script", "its data has changed"),
        };
        let name = PartName(self.spec, Part::Task(index, part));
        self.say(&name, format_args!("the task {action} after a random delay: {why}"));
        Cause::until(Reason::Delay, self.due(&owed.due))
    }

    fn turn(&mut self, index: TaskIndex, other: &str) -> Cause {
        let update = self.spec.group().and_then(|group| group.update.as_ref());
        let most = update.map_or(0, |update| update.max_parallel);
        self.depends(
            index,
            format_args!(
                "waits for its turn to restart: its templates have changed, but {other} restarts or is not healthy \
                 yet, and `max_parallel` of `update` is {most}"
            ),
        )
    }

    fn exit(&mut self, index: TaskIndex, until: &Deadline) -> Cause {
        let known = self.state.durable.tasks.get(usize::from(index));
        let why = known.and_then(why_restarted).unwrap_or_default();
        let colon = if why.is_empty() { "" } else { "; reason: " };
        let (length, signal) = (until.length, signal_of(self.spec, index));
        self.say_of_task(index, format_args!("got {signal}; is killed after {length}{colon}{why}"));
        Cause::until(Reason::Operation, self.due(until))
    }

    fn check_restart(&mut self, check: &str, at_ns: u64) -> Cause {
        let result = self.state.checks.results.get(check);
        let (check, service) = result.map_or(("", ""), |result| (&*result.check, &*result.service));
        match result.and_then(|result| result.task.as_deref()) {
            Some(task) => self.say(
                &format_args!("task {task}"),
                format_args!("restarts unless check {check} of service {service} passes"),
            ),
            None => self.say(
                &GROUP,
                format_args!("its running tasks restart unless check {check} of service {service} passes"),
            ),
        }
        Cause::until(Reason::Health, Some(at_ns))
    }
}

/// How far the start of a task is, if its driver has reported it since the start began.
fn progress(state: &AllocState, part: Part, began_ns: u64) -> Option<&Progress> {
    let Part::Task(index, TaskPart::Process) = part else { return None };
    state.progress.get(&index).filter(|progress| progress.since_ns >= began_ns)
}
