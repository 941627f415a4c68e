//! Phrases for what an allocation waits for: names of parts and tasks, failing checks, the last exit.
//!
//! In: an allocation's specification and state. Out: text, written without intermediate strings.

use core::fmt::{self, Display, Formatter};
use std_alloc::string::String;

use herdlet_api_types::{
    Duration,
    alloc::Allocation,
    job::Group,
    service::{CheckResult, CheckStatus},
    task::TaskEventKind,
};

use crate::{
    op::{Part, TaskIndex},
    parts::column::Words,
    policy::{HealthTerms, has_counted_check},
    state::{AllocState, Doing, TaskState},
};

/// The name of a part in output.
pub(super) struct PartName<'a>(pub(super) &'a Allocation, pub(super) Part);

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
pub(super) struct TaskName<'a>(pub(super) &'a Allocation, pub(super) TaskIndex);

impl Display for TaskName<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("task ")?;
        match self.0.group().and_then(|group| group.tasks.get(usize::from(self.1))) {
            Some(task) => f.write_str(&task.name),
            None => write!(f, "{}", self.1),
        }
    }
}

/// What an operation does with a part.
pub(super) struct Work(pub(super) Part, pub(super) Doing);

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

/// What is missing for the roll-out's verdict.
pub(super) struct Lacking<'a>(pub(super) &'a Allocation, pub(super) &'a AllocState);

impl Display for Lacking<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(spec, state) = self;
        let time = HealthTerms::of(spec).map(|terms| terms.min_healthy_time);
        let time = time.filter(|time| *time > Duration::ZERO);
        if state.healthy_since_ns.is_none() {
            match has_counted_check(spec) {
                true => Checks(spec, state).fmt(f)?,
                false => f.write_str("running tasks")?,
            }
            f.write_str(if time.is_some() { ", then for " } else { "" })?;
        }
        time.map_or(Ok(()), |time| write!(f, "min_healthy_time of {time}"))
    }
}

/// That checks must pass, with the failing check and its output.
pub(super) struct Checks<'a>(pub(super) &'a Allocation, pub(super) &'a AllocState);

impl Display for Checks<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("passing checks")?;
        let not_as_required = |status| {
            let is_it = move |result: &&CheckResult| result.status == status && !result.is_as_required();
            self.1.checks.results.values().find(is_it)
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
            let has_own_network = self.0.group().is_some_and(Group::has_own_network);
            let advice = match has_own_network && first.contains(REFUSED) {
                true => LISTEN_EVERYWHERE,
                false => advice,
            };
            write!(f, " ({} of service {} {how}: {output}{advice})", result.check, result.service)
        })
    }
}

/// The text of `ECONNREFUSED`, as checks report it.
const REFUSED: &str = "onnection refused";

/// What a task of a group with a network of its own usually does wrong then: it listens on 127.0.0.1, or on the machine's port.
const LISTEN_EVERYWHERE: &str =
    "; in a network of its own, a task must listen on 0.0.0.0 and on the port's `to`";

/// The maximum length of a check's output in a message.
const SAID_CHARS_MAX: usize = 120;

/// How the task's last attempt ended, if any; if it was made to restart, why.
pub(super) struct LastExit<'a>(pub(super) &'a Allocation, pub(super) &'a AllocState, pub(super) TaskIndex);

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

/// The signal that asks a task to end.
pub(super) fn signal_of(spec: &Allocation, index: TaskIndex) -> &str {
    let task = spec.group().and_then(|group| group.tasks.get(usize::from(index)));
    task.and_then(|task| task.kill_signal.as_deref()).unwrap_or("SIGINT")
}

/// Why the newest attempt was made to restart, if it was.
pub(super) fn why_restarted(task: &TaskState) -> Option<&str> {
    let of_attempt = task.events.iter().rev().take_while(|event| event.kind != TaskEventKind::Started);
    let mut signals = of_attempt.filter(|event| event.kind == TaskEventKind::RestartSignaled);
    signals.next().map(|event| &*event.message)
}
