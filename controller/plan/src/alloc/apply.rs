//! Applies changes of plans and events: the only place that changes the states of an allocation's tasks and parts.
//!
//! In: a change of a plan, the end of an operation, an observation. Out: the new state, operations to start, notes for
//! the metrics. It decides only what follows an event at once: the end of an attempt, a failed part. Plans decide
//! everything else.
//!
//! - [`artifacts`]: failed downloads, which a task's restart policy counts.
//! - [`facts`]: the facts that parts have produced, for the parts that read them.
//! - [`notices`]: notifications of running tasks.
//! - [`process`]: the attempts of a task, from their start to what follows their end.
//! - [`request`]: restarts and signals.
//! - [`templates`]: data of templates that is missing, and scripts that run after a render.
//! - [`history`]: the events that people read.

mod artifacts;
mod facts;
mod history;
mod notices;
mod process;
mod request;
mod templates;

use core::ops::Range;
use std_alloc::{
    borrow::Cow,
    format,
    string::{String, ToString},
    sync::Arc,
    vec::Vec,
};

use herdlet_api_types::{
    Duration,
    alloc::{Allocation, ClientStatus, RescheduleEvent},
    job::{Group, Service, Task},
    service::CheckResult,
    task::{TaskEvent, TaskEventKind},
};

use crate::{
    action::{FailureClass, Outcome, Verb},
    alloc::{health, services::in_consul, task::restart},
    backoff::retry_delay,
    context::Settings,
    facts::Facts,
    op::{Part, TaskIndex, TaskPart},
    parts::{IfFatal, IfLost, WhileRunning, has_own_checks},
    plan::Change,
    spec::AllocSpec,
    state::{
        AllocState, Doing, Failures, FinishedOperation, LastValue, Noticed, PartState, Run, Stage, Stop,
        TaskState, healthy_by,
    },
    status,
    time::Now,
    turn::{Drifted, Note},
};

/// The message of a task that fails because a server no longer lists it. Nomad's text.
const MISSING_TASK: &str = "update missing task";

/// The inputs and outputs of changes to an allocation's state.
pub struct Writer<'a> {
    /// The present.
    pub now: Now,
    /// The agent's settings.
    pub settings: &'a Settings,
    /// The allocation's specification.
    pub spec: &'a AllocSpec,
    /// Its state.
    pub state: &'a mut AllocState,
    /// Number of the last operation.
    pub generation: &'a mut u64,
    /// Operations to start.
    pub issued: &'a mut Vec<Issued>,
    /// Notes for the metrics.
    pub notes: &'a mut Vec<Note>,
}

/// An operation to start.
#[derive(Debug, Clone)]
pub struct Issued {
    /// The part.
    pub part: Part,
    /// Its number.
    pub generation: u64,
    /// What to do.
    pub verb: Verb,
    /// It is overdue after this time.
    pub timeout: Duration,
}

/// The row of failures that the allocations before this one in its slot have begun. Each was created by one replacement and
/// ended before the next, except the first, of which only its failure is known.
fn failures_before(rescheduled: &[RescheduleEvent]) -> Option<Failures> {
    let lived = |pair: &[RescheduleEvent]| match pair {
        [created, replaced] => {
            let lived_ns = replaced.time.0.saturating_sub(created.time.0);
            Duration(lived_ns.saturating_sub(replaced.delay.as_nanos()).max(0))
        }
        _ => Duration::ZERO,
    };
    let first = rescheduled.first().map(|_| FIRST_FAILURE);
    rescheduled.windows(2).map(lived).fold(first, |row, lived| Some(restart::count_failure(row, lived)))
}

/// A failure of which only is known that it happened.
const FIRST_FAILURE: Failures = Failures { count: 1, longest: Duration::ZERO };

/// A deployment takes the allocation over: the verdict on its health is open again, with a new deadline.
pub fn reset_health(now: Now, spec: &Allocation, state: &mut AllocState) {
    if state.durable.adopted {
        state.durable.health = None;
        state.durable.healthy_by = healthy_by(now, spec);
    }
}

/// Moves the allocation to another version of its job. Services that differ are registered again, and checks that
/// differ begin again. Known results stay valid until then: see [`AllocState::expect_checks`].
pub fn take_new_version(old: &Group, new: &Group, state: &mut AllocState) {
    if old.services != new.services {
        take_new_owner_version(&old.services, &new.services, None, [Part::Services, Part::Checks], state);
    }
    for (index, (old, new)) in (0..).zip(old.tasks.iter().zip(&new.tasks)) {
        if old.services != new.services {
            let parts = [TaskPart::Services, TaskPart::Checks].map(|part| Part::Task(index, part));
            take_new_owner_version(&old.services, &new.services, Some(&*old.name), parts, state);
        }
    }
}

fn take_new_owner_version(
    old: &[Service],
    new: &[Service],
    task: Option<&str>,
    [services, checks]: [Part; 2],
    state: &mut AllocState,
) {
    let alike = old.len() == new.len() && old.iter().zip(new).all(|(old, new)| new.is_checked_as(old));
    if new.iter().all(|service| service.checks.is_empty()) {
        state.remove_checks(|result| result.task.as_deref() == task);
    }
    if !alike && has_own_checks(old) && !has_own_checks(new) {
        state.checks.outdated.insert(checks);
    } else if !alike && *state.parts.get(checks) != PartState::Absent {
        mark_for_inspection(checks, state);
    }
    if new.is_empty() {
        state.durable.retire(services);
    } else {
        state.durable.end_retirement(services);
        mark_for_inspection(services, state);
    }
}

/// The allocation is no longer a canary: services that are registered differently for canaries are registered again.
/// Their checks are the same.
pub fn serve_as_promoted(group: &Group, state: &mut AllocState) {
    let differ_in_canaries = |services: &[Service]| services.iter().any(Service::differs_in_canaries);
    if differ_in_canaries(&group.services) {
        mark_for_inspection(Part::Services, state);
    }
    for (index, _) in (0..).zip(&group.tasks).filter(|(_, task)| differ_in_canaries(&task.services)) {
        mark_for_inspection(Part::Task(index, TaskPart::Services), state);
    }
}

/// Causes an inspection of the part, services or checks, that compares it with the specification.
fn mark_for_inspection(part: Part, state: &mut AllocState) {
    state.parts.supersede_part(part);
    state.parts.set_part(part, PartState::Unknown);
}

impl Writer<'_> {
    /// Carries out one change of a plan. The world carries out [`Change::Forget`].
    pub fn change(&mut self, change: Change) {
        match change {
            Change::Adopt => self.adopt(),
            Change::Stage(stage) => self.enter(stage),
            Change::Stop(stop) => self.begin_group_stop(stop),
            Change::Issue { part, doing, verb, timeout } => self.issue(part, doing, verb, timeout),
            Change::RestartTasks(restart) => self.restart_tasks(restart),
            Change::EndRestart => self.state.durable.restart = None,
            Change::Unhealthy { task, check, output } => self.restart_unhealthy(task, &check, &output),
            Change::Fail(why) => {
                for index in 0..self.task_count() {
                    let why = format!("failed to set up: {why}");
                    self.fail_if_waiting(index, TaskEventKind::SetupFailure, why);
                }
            }
            Change::Task(index, change) => self.change_task(index, change),
            Change::Healthy(healthy) => self.health_changed(healthy),
            Change::Verdict(verdict, message) => {
                self.state.durable.health = Some(verdict);
                if !verdict.healthy {
                    self.note_unhealthy(&message);
                }
            }
            Change::EndTurn => self.state.durable.takes_turn = false,
            Change::Forget => {}
        }
        self.refresh_status();
    }

    /// Applies the end of an operation on one of the allocation's parts, or that it is overdue. Only the operation that
    /// runs on the part counts.
    pub fn outcome(&mut self, part: Part, generation: u64, outcome: Outcome) {
        if outcome == Outcome::Overdue {
            self.state.parts.run_over(part, generation);
            return;
        }
        if let Some(notice) = self.state.notices_in_flight.remove(&generation) {
            self.notice_ended(notice, &outcome);
            return self.refresh_status();
        }
        let Some(ended) = self.state.parts.end(part, generation) else { return };
        if part.lies_in(Part::Dir) && *self.state.parts.get(Part::Dir) == PartState::Absent {
            // The directory was removed from outside; the operation that just ended may have recreated it.
            self.state.parts.set_part(Part::Dir, PartState::Unknown);
        }
        match (part, ended) {
            (Part::Task(index, TaskPart::Process), ended) => self.process_outcome(index, ended, outcome),
            (_, FinishedOperation::Overtaken) => {}
            (part, FinishedOperation::Fresh(doing)) => self.part_outcome(part, doing, outcome),
        }
        if self.state.parts.take_source_change(part) {
            self.source_changed(part);
        }
        self.refresh_status();
    }

    /// A server no longer wants some tasks of the allocation: those fail, as in stock clients, and with them the
    /// allocation.
    pub fn keep_only(&mut self, wanted: &[String]) {
        for index in 0..self.task_count() {
            let is_wanted = |known: &TaskState| wanted.iter().any(|name| **name == *known.name);
            if !self.known(index).is_some_and(is_wanted) {
                self.fail_permanently(index, TaskEventKind::Killing, String::from(MISSING_TASK));
            }
        }
    }

    /// Applies a check's result.
    pub fn checked(&mut self, result: CheckResult) {
        self.state.set_check(result, self.now.boot_ns);
        self.refresh_status();
    }

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

    fn adopt(&mut self) {
        let Some(group) = self.spec.group() else { return };
        let now = self.now;
        // An allocation that replaces a failed one continues its row of failures.
        let failures = failures_before(&self.spec.rescheduled);
        let tasks = group.tasks.iter().map(|task| {
            let mut known = TaskState {
                name: Arc::from(&*task.name),
                failures,
                failed_after: failures.map(|row| row.longest),
                ..TaskState::default()
            };
            known.remember(TaskEvent {
                kind: TaskEventKind::Received,
                time: now.wall,
                message: String::from("Task received by client"),
                details: Default::default(),
            });
            known
        });
        let tasks = tasks.collect();
        let healthy_by = healthy_by(now, self.spec);
        let durable = &mut *self.state.durable;
        durable.adopted = true;
        durable.boot = Some(now.boot);
        durable.tasks = tasks;
        durable.healthy_by = healthy_by;
        durable.begin_offers();
        durable.description = Cow::Borrowed("No tasks have started");
        if let Some(why) = self.spec.policy().refused.clone() {
            for index in 0..self.task_count() {
                self.fail_permanently(index, TaskEventKind::SetupFailure, why.clone());
            }
        }
    }

    /// Once all tasks have ended, there is nothing left to restart.
    fn enter(&mut self, stage: Stage) {
        self.state.durable.stage = stage;
        if stage == Stage::Poststop {
            self.state.durable.restart = None;
        }
    }

    fn begin_group_stop(&mut self, stop: Stop) {
        self.note_stop(&stop.reason);
        self.state.durable.restart = None;
        self.state.durable.stop = Some(stop);
        self.note_killing_restarted();
        for index in 0..self.task_count() {
            self.withdraw_start(index);
        }
    }

    fn issue(&mut self, part: Part, doing: Doing, verb: Verb, timeout: Duration) {
        if self.state.parts.get(part).is_busy() {
            return;
        }
        if doing == Doing::Renew {
            self.expect_change(part);
        }
        if verb == Verb::Up {
            self.offer(part);
            self.expect_part(part);
            self.note_download(part);
            self.note_setup(part);
        }
        *self.generation += 1;
        let generation = *self.generation;
        self.state.parts.begin(part, generation, doing, self.now.boot_ns);
        self.issued.push(Issued { part, generation, verb, timeout });
    }

    fn is_in_consul(&self, part: Part) -> bool {
        part.services(self.spec).is_some_and(in_consul)
    }

    /// Records that a Consul may hold these services from now on.
    fn offer(&mut self, part: Part) {
        if self.is_in_consul(part) {
            self.remember_offer(part);
        }
    }

    fn part_outcome(&mut self, part: Part, doing: Doing, outcome: Outcome) {
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
            Outcome::Outdated { on, ask_in } => self.await_need(part, on, (ask_in, LastValue::Kept)),
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
        self.set_facts(part, doing, facts);
        self.part_is_up(part);
    }

    fn part_is_up(&mut self, part: Part) {
        self.state.parts.set_part(part, PartState::Up);
        self.state.recorded.remove(&part);
        if let Some(since_ns) = self.state.parts.clear_drifted(part) {
            let took_ns = Some(self.now.boot_ns.saturating_sub(since_ns));
            self.notes.push(Note::DriftRepaired { of: self.drifted(part), took_ns });
            // If `secrets` had to be mounted again, it no longer contains any token or rendered file.
            if let Part::Task(index, TaskPart::Dir) = part {
                self.drift(Part::Task(index, TaskPart::Identity), Noticed::Event);
                self.drift(Part::Task(index, TaskPart::Templates), Noticed::Event);
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
        self.notes.push(Note::DriftDetected { of: self.drifted(part), by });
        self.state.parts.mark_drifted(part, self.now.boot_ns);
        let doing = Doing::Inspect(Some(by));
        self.state
            .parts
            .set_part(part, PartState::Failed { doing, attempt: 1, retry_at_ns: self.now.boot_ns, why });
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
            Part::Dir | Part::Services | Part::Task(..) => return,
        };
        self.state.checks.outdated.remove(&part);
        self.state.remove_checks(|result| result.task == task);
    }

    fn task_name(&self, index: TaskIndex) -> Option<String> {
        self.task(index).map(|task| task.name.clone())
    }

    /// An inspection did not find it.
    fn part_is_missing(&mut self, part: Part, doing: Doing) {
        self.state.parts.set_part(part, PartState::Absent);
        // A catalogue that was only asked has answered: the services can be sent now.
        self.offer(part);
        if let Doing::Inspect(Some(by)) = doing {
            self.notes.push(Note::DriftDetected { of: self.drifted(part), by });
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

    fn part_failed(&mut self, part: Part, doing: Doing, class: FailureClass, why: String) {
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
    fn fail_if_waiting(&mut self, index: TaskIndex, kind: TaskEventKind, why: String) {
        if self.known(index).is_some_and(|known| matches!(known.run, Run::Waiting | Run::BackingOff { .. })) {
            self.fail_permanently(index, kind, why);
        }
    }

    /// Updates the reported status. A terminal status never changes.
    fn refresh_status(&mut self) {
        let durable = &self.state.durable;
        let (mut status, mut description) = status::client_status(&durable.tasks);
        if durable.is_outlived() && status.is_terminal() {
            // Regardless of how its tasks ended.
            (status, description) = (ClientStatus::Complete, status::OUTLIVED);
        }
        if durable.status != status && !durable.status.is_terminal() {
            let durable = &mut *self.state.durable;
            durable.status = status;
            durable.description = Cow::Borrowed(description);
        }
        if self.state.healthy_since_ns.is_some() && !health::is_healthy(self.spec, self.state) {
            self.health_changed(false);
        }
    }

    /// An allocation that was judged healthy, has been healthy for `min_healthy_time` and no longer is gets a new
    /// deadline to become healthy again. The deadline is not stored by itself: each agent sets it again.
    fn health_changed(&mut self, healthy: bool) {
        let since_ns =
            core::mem::replace(&mut self.state.healthy_since_ns, healthy.then_some(self.now.boot_ns));
        let judged = !healthy && self.state.durable.is_judged_healthy();
        let Some(terms) = self.spec.policy().health.filter(|_| judged) else { return };
        let lasted_ns = since_ns.map_or(0, |since_ns| self.now.boot_ns.saturating_sub(since_ns));
        if lasted_ns >= terms.min_healthy_time.as_nanos().unsigned_abs() {
            self.state.durable.get_mut_untracked().healthy_by = healthy_by(self.now, self.spec);
        }
    }

    fn kill_timeout(&self, index: TaskIndex) -> Duration {
        let max = self.settings.max_kill_timeout;
        self.task(index).map_or(max, |task| task.kill_timeout.min(max))
    }

    fn task(&self, index: TaskIndex) -> Option<&Task> {
        self.spec.group()?.tasks.get(usize::from(index))
    }

    fn known(&self, index: TaskIndex) -> Option<&TaskState> {
        self.state.durable.tasks.get(usize::from(index))
    }

    /// Returns the task's state for a change, and marks the allocation's state as changed.
    fn known_mut(&mut self, index: TaskIndex) -> Option<&mut TaskState> {
        self.state.durable.tasks.get_mut(usize::from(index))
    }

    fn index_of(&self, task: &str) -> Option<TaskIndex> {
        let at = self.spec.group()?.tasks.iter().position(|known| known.name == task)?;
        TaskIndex::try_from(at).ok()
    }

    fn task_count(&self) -> TaskIndex {
        TaskIndex::try_from(self.state.durable.tasks.len()).unwrap_or(TaskIndex::MAX)
    }
}

#[cfg(test)]
mod tests;
