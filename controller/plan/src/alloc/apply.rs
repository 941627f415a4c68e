//! Applies changes of plans and events: the only place that changes the states of an allocation's tasks and parts.
//!
//! In: a change of a plan, the end of an operation, an observation. Out: the new state, operations to start, notes for
//! the metrics. It decides only what follows an event at once: the end of an attempt, a failed part. Plans decide
//! everything else.
//!
//! - [`artifacts`]: failed downloads, which a task's restart policy counts.
//! - [`facts`]: the facts that parts have produced, for the parts that read them.
//! - [`notices`]: notifications of running tasks.
//! - [`part`]: the ends of operations on parts, and signs of drift.
//! - [`process`]: the attempts of a task, from their start to what follows their end.
//! - [`plugin`]: the health of tasks that are CSI plugins.
//! - [`request`]: restarts and signals.
//! - [`templates`]: data of templates that is missing, and scripts that run after a render.
//! - [`version`]: another version of the job, another deployment.
//! - [`history`]: the events that people read.

mod artifacts;
mod facts;
mod history;
mod notices;
mod part;
mod plugin;
mod process;
mod request;
mod templates;
mod version;

use std_alloc::{borrow::Cow, format, string::String, sync::Arc, vec::Vec};

use herdlet_api_types::{
    Duration,
    alloc::{ClientStatus, RescheduleEvent},
    job::Task,
    service::CheckResult,
    task::{TaskEvent, TaskEventKind},
};

use crate::{
    action::{Outcome, Verb},
    alloc::{health, services::in_consul, task::restart},
    context::Settings,
    op::{Part, TaskIndex, TaskPart},
    plan::Change,
    spec::AllocSpec,
    state::{AllocState, Doing, Failures, FinishedOperation, PartState, Stage, Stop, TaskState, healthy_by},
    status,
    time::Now,
    turn::Note,
};

use self::version::mark_for_inspection;
pub use self::version::{reset_health, serve_as_promoted, take_new_version};

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
                self.state.durable.verdict_outdated = false;
                if !verdict.healthy {
                    self.note_unhealthy(&message);
                }
            }
            Change::OutdateVerdict => self.state.durable.verdict_outdated = true,
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
            (part, FinishedOperation::Fresh(doing)) => {
                if !matches!(doing, Doing::Inspect(_)) {
                    self.source_read(part, generation);
                }
                self.part_outcome(part, doing, outcome);
            }
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
        self.withdraw_setup();
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

    fn task_name(&self, index: TaskIndex) -> Option<String> {
        self.task(index).map(|task| task.name.clone())
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

    /// An allocation whose roll-out is over, has been healthy for `min_healthy_time` and no longer is gets a new
    /// deadline to become healthy again. The deadline is not stored by itself: each agent sets it again.
    fn health_changed(&mut self, healthy: bool) {
        let since_ns =
            core::mem::replace(&mut self.state.healthy_since_ns, healthy.then_some(self.now.boot_ns));
        let judged = !healthy && self.state.durable.has_passed_rollout();
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
