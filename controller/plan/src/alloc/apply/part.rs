//! The parts of an allocation: the ends of operations on them, and signs of drift. [`super::process`] applies what
//! concerns the process of a task.
//!
//! In: an operation's outcome, or a notice that a part may not be as it should be. Out: the part's new state, and the
//! tasks that fail without it.

use core::ops::Range;
use std_alloc::{
    format,
    string::{String, ToString},
    sync::Arc,
    vec::Vec,
};

use herdlet_api_types::task::TaskEventKind;

use super::Writer;
use crate::{
    action::{FailureClass, Outcome},
    backoff::retry_delay,
    facts::Facts,
    op::{Part, TaskIndex, TaskPart},
    parts::{IfFatal, IfLost, WhileRunning},
    state::{Doing, LastValue, Noticed, PartState, Run, TaskState},
    turn::{Drifted, Note},
};

impl Writer<'_> {
    /// Something suggests that a part is not as it should be. Then the parts that lie in it may not be either.
    pub fn drift(&mut self, part: Part, noticed: Noticed) {
        self.suspect(part, noticed);
        let inside: Vec<Part> =
            self.state.parts.iter().map(|(inner, _)| inner).filter(|inner| inner.lies_in(part)).collect();
        for inner in inside {
            self.suspect(inner, noticed);
        }
    }

    fn suspect(&mut self, part: Part, noticed: Noticed) {
        match self.state.parts.get(part) {
            PartState::Up => {
                let known = match part.row().while_running {
                    WhileRunning::Keep => PartState::Suspect(noticed),
                    WhileRunning::Leave => PartState::Unknown,
                };
                self.state.parts.set_part(part, known);
            }
            // The operation's findings may predate this. That of a process counts nevertheless, and the process is inspected
            // once more.
            PartState::Busy { .. } if matches!(part, Part::Task(_, TaskPart::Process)) => {
                self.state.parts.note_drift(part, noticed);
            }
            PartState::Busy { .. } => self.state.parts.supersede_part(part),
            PartState::Unknown | PartState::Suspect(_) | PartState::Absent | PartState::Failed { .. } => {}
            // What it waits for may exist now.
            PartState::Pending { .. } => self.state.parts.set_part(part, PartState::Unknown),
        }
    }

    pub(super) fn part_outcome(&mut self, part: Part, doing: Doing, outcome: Outcome) {
        match outcome {
            Outcome::Done(facts) => match doing {
                Doing::Down => self.part_is_gone(part),
                Doing::Up | Doing::Renew | Doing::Inspect(_) => self.part_is_up_with(part, doing, facts),
            },
            Outcome::Present(facts) => self.part_is_up_with(part, doing, facts),
            Outcome::Checking(wanted) => {
                let task = part.task().and_then(|index| self.task_name(index));
                self.state.expect_checks(task.as_deref(), &wanted, self.now.boot_ns);
                self.part_is_up(part);
            }
            Outcome::Pending { on, ask_in } => self.await_need(part, on, (ask_in, LastValue::Gone)),
            Outcome::Outdated { on, ask_in, since_ns } => {
                self.state.parts.note_need(part, since_ns);
                self.await_need(part, on, (ask_in, LastValue::Kept));
            }
            Outcome::Absent => self.part_is_missing(part, doing),
            Outcome::Foreign { why } => self.part_is_damaged(part, doing, why),
            Outcome::Lost { why } => {
                self.part_is_damaged(part, doing, why.clone());
                self.fail_users(part, &why);
            }
            Outcome::Failed { class: FailureClass::Retry, why } => {
                self.part_failed(part, doing, FailureClass::Retry, why);
            }
            Outcome::Failed { class, why } => self.part_failed_for_good(part, doing, class, why),
            Outcome::Recovered(_) | Outcome::Started(_) | Outcome::Overdue => {}
        }
    }

    /// Marks the part as up, with the facts that it has produced.
    fn part_is_up_with(&mut self, part: Part, doing: Doing, facts: Option<Arc<Facts>>) {
        let message = facts.as_ref().and_then(|facts| facts.message.clone());
        self.set_facts(part, doing, facts);
        self.part_is_up(part);
        if let (Doing::Up, Some(message)) = (doing, message) {
            for index in self.users(part) {
                self.note(index, TaskEventKind::HookMessage, message.clone());
            }
        }
    }

    fn part_is_up(&mut self, part: Part) {
        self.state.parts.set_part(part, PartState::Up);
        self.state.recorded.remove(&part);
        if let Some(since_ns) = self.state.parts.clear_drifted(part) {
            let took_ns = Some(self.now.boot_ns.saturating_sub(since_ns));
            self.notes.push(Note::DriftRepaired { of: self.drifted(part), took_ns });
            // If `secrets` had to be mounted again, it no longer contains any token or rendered file.
            if let Part::Task(index, TaskPart::Dir) = part {
                for own in [TaskPart::Identity, TaskPart::Vault, TaskPart::Consul, TaskPart::Templates] {
                    self.drift(Part::Task(index, own), Noticed::Event);
                }
            }
        }
    }

    fn drifted(&self, part: Part) -> Drifted {
        let task = part.task().and_then(|index| self.task_name(index));
        let (alloc, job, name) = (self.spec.id, self.spec.job_key.clone(), self.spec.name());
        Drifted { alloc, job, name, task, kind: part.row().name }
    }

    /// Something exists in its place that is not as specified: bringing the part up repairs it, and taking it down
    /// removes it.
    fn part_is_damaged(&mut self, part: Part, doing: Doing, why: String) {
        let by = match doing {
            Doing::Inspect(Some(by)) => by,
            Doing::Inspect(None) | Doing::Up | Doing::Renew | Doing::Down => Noticed::Periodic,
        };
        self.notes.push(Note::DriftDetected { of: self.drifted(part), by, why: why.clone() });
        self.state.parts.mark_drifted(part, self.now.boot_ns);
        let (doing, retry_at_ns) = (Doing::Up, self.now.boot_ns);
        self.state.parts.set_part(part, PartState::Failed { doing, attempt: 1, retry_at_ns, why });
    }

    /// It was taken down: what it reported is no longer valid.
    fn part_is_gone(&mut self, part: Part) {
        self.state.parts.set_part(part, PartState::Absent);
        self.remove_facts(part);
        if self.state.parts.clear_drifted(part).is_some() {
            self.notes.push(Note::DriftDropped { of: self.drifted(part) });
        }
        if self.state.durable.is_retired(part) {
            self.state.durable.end_retirement(part);
        }
        let task = match part {
            Part::Checks => {
                self.state.checks.recheck = false;
                None
            }
            Part::Task(index, TaskPart::Checks) => self.task_name(index),
            Part::Dir | Part::Network | Part::Services | Part::Task(..) => return,
        };
        self.state.checks.outdated.remove(&part);
        self.state.remove_checks(|result| result.task == task);
    }

    /// An inspection did not find it.
    fn part_is_missing(&mut self, part: Part, doing: Doing) {
        self.state.parts.set_part(part, PartState::Absent);
        // A catalogue that was only asked has answered: the services can be sent now.
        self.offer(part);
        if let Doing::Inspect(Some(by)) = doing {
            let why = "it is missing".to_string();
            self.notes.push(Note::DriftDetected { of: self.drifted(part), by, why });
            self.state.parts.mark_drifted(part, self.now.boot_ns);
        }
        if let IfLost::FailUsers(why) = part.row().if_lost {
            self.fail_users(part, why);
        }
    }

    /// A part that its users can't do without is not recreated, empty, while they run.
    fn fail_users(&mut self, part: Part, why: &str) {
        if part.row().if_lost == IfLost::Restore {
            return;
        }
        for index in self.users(part) {
            self.fail_if_begun(index, why);
        }
    }

    /// The tasks that use a part: its owner, or all tasks.
    fn users(&self, part: Part) -> Range<TaskIndex> {
        part.task().map_or(0..self.task_count(), |index| index..index.saturating_add(1))
    }

    /// A part that can't be brought up as specified.
    fn part_failed_for_good(&mut self, part: Part, doing: Doing, class: FailureClass, why: String) {
        match (part.row().if_fatal, part.task()) {
            // It ran, or never can.
            (IfFatal::GoOn, Some(index)) => {
                self.note(index, TaskEventKind::HookMessage, format!("{}: {why}", part.row().name));
                self.part_is_up(part);
            }
            (IfFatal::RestartPolicy, Some(_)) if doing == Doing::Up => {
                self.download_failed(part, class, why);
            }
            (
                IfFatal::Ignore | IfFatal::FailUsers { .. } | IfFatal::RestartPolicy | IfFatal::GoOn,
                Some(_) | None,
            ) => self.part_failed(part, doing, class, why),
        }
    }

    pub(super) fn part_failed(&mut self, part: Part, doing: Doing, class: FailureClass, why: String) {
        let attempt = self.state.parts.count_failure(part);
        let delay = retry_delay(attempt, (self.spec.id, part));
        let retry_at_ns = self.now.boot_ns.saturating_add(delay.as_nanos().unsigned_abs());
        self.state.parts.set_part(part, PartState::Failed { doing, attempt, retry_at_ns, why: why.clone() });
        if !matches!(doing, Doing::Up | Doing::Renew) || class != FailureClass::Fatal {
            return;
        }
        self.note_fatal_render(part, &why);
        if let IfFatal::FailUsers { kind, prefix } = part.row().if_fatal {
            for index in self.users(part) {
                self.fail_if_waiting(index, kind, format!("{prefix}: {why}"));
            }
        }
    }

    /// A task that has begun can't go on without this part. A task that began in an earlier boot starts again in any
    /// case: what a power cut removed is created again.
    fn fail_if_begun(&mut self, index: TaskIndex, why: &str) {
        let boot = self.now.boot;
        let has_used = |known: &TaskState| {
            let fenced = matches!(known.run, Run::Stopping { ran: false, .. });
            known.attempt > 0 && !fenced && known.begun_in.is_none_or(|begun_in| begun_in == boot)
        };
        if self.known(index).is_some_and(has_used) {
            self.fail_permanently(index, TaskEventKind::HookFailed, why.to_string());
        }
    }

    /// A part that can't be set up keeps a task from starting; a running task is left alone.
    pub(super) fn fail_if_waiting(&mut self, index: TaskIndex, kind: TaskEventKind, why: String) {
        if self.known(index).is_some_and(|known| matches!(known.run, Run::Waiting | Run::BackingOff { .. })) {
            self.fail_permanently(index, kind, why);
        }
    }
}
