//! The attempts of a task, from their start to their stop.
//!
//! - [`outcome`]: what operations on the process report.
//! - [`end`]: the ends of attempts, and what follows.

mod end;
mod outcome;

use std_alloc::string::String;

use herdlet_api_types::{
    job::{Lifecycle, Task},
    task::{ExitResult, TaskEventKind},
};

use self::end::Failed;
pub(super) use self::end::seed;
use super::{Issued, Writer, mark_for_inspection};
use crate::{
    action::Verb,
    launch::Launch,
    limits::OPERATION_TIMEOUT,
    op::{Part, TaskIndex, TaskPart},
    parts::{TASK_PARTS, Withdraw},
    plan::TaskChange,
    state::{AfterStop, Doing, PartState, PermanentFailure, Run, Stage, StopStep, TaskState},
    time::Deadline,
};

/// Why a task restarts whose network no longer exists.
const NETWORK_REBUILT: &str = "The network of its allocation was lost and set up again";

impl Writer<'_> {
    /// Applies the end of a task's process. Only the live attempt's end counts; later reports about it change nothing.
    pub fn exited(&mut self, task: &str, attempt: u32, result: ExitResult) {
        let Some(index) = self.index_of(task) else { return };
        if attempt == 1 && self.state.maybe_begun.contains(&index) {
            self.begin(index);
        }
        self.attempt_ended(index, attempt, result);
        self.refresh_status();
    }

    /// A record or cgroup of this attempt exists, although its state may be lost.
    pub fn on_attempt_found(&mut self, task: &str, attempt: u32) {
        let Some(index) = self.index_of(task) else { return };
        if !self.state.durable.adopted {
            self.adopt();
            // The agent that began it may have sent its services too.
            self.state.durable.lose_offers();
        }
        if self.known(index).is_none_or(|known| known.attempt >= attempt) {
            return;
        }
        let boot = self.now.boot;
        if self.state.durable.stage == Stage::Init {
            // An attempt newer than the stored state: the state was lost.
            self.state.durable.stage = Stage::UNTOLD;
        }
        self.state.maybe_begun.remove(&index);
        if let Some(known) = self.known_mut(index) {
            known.attempt = attempt;
            known.begun_in = Some(boot);
            if matches!(known.run, Run::Waiting | Run::BackingOff { .. }) {
                known.run = Run::Starting { attempt, boot };
            }
        }
        self.clear_process(index);
        self.refresh_status();
    }

    pub(super) fn change_task(&mut self, index: TaskIndex, change: TaskChange) {
        match change {
            TaskChange::Begin => self.begin(index),
            TaskChange::Wait => {
                if let Some(known) = self.known_mut(index) {
                    known.run = Run::Waiting;
                }
            }
            TaskChange::Stop { step, then } => self.begin_stop(index, step, then),
            TaskChange::Step(step) => {
                self.note_prestop_not_run(index);
                if let Some(TaskState { run: Run::Stopping { step: current, .. }, .. }) =
                    self.known_mut(index)
                {
                    *current = step.clone();
                }
                self.note_step(index, &step);
            }
            TaskChange::Prove => {
                if let Some(known) = self.known_mut(index) {
                    known.forgive();
                }
            }
            TaskChange::Settle(part) => self.settle(index, part),
            TaskChange::ChangeNetwork => {
                self.note(index, TaskEventKind::RestartSignaled, String::from(NETWORK_REBUILT));
                if let Some(known) = self.known_mut(index) {
                    known.restart_requested = true;
                }
            }
            TaskChange::Die => {
                let failing = self.known(index).is_some_and(|known| known.permanent_failure.is_some());
                if !failing {
                    self.note_killing_unstarted(index);
                }
                self.die(index, if failing { Failed::Yes } else { Failed::No });
            }
        }
    }

    /// Cancels operations that a task waits for before it starts: a start may wait for others, a download may take
    /// long, and a task that is to end must not wait for either.
    pub(super) fn withdraw_start(&mut self, index: TaskIndex) {
        let withdrawn =
            TASK_PARTS.into_iter().rev().filter(|row| row.row.withdraw == Withdraw::WhileStarting);
        for part in withdrawn.map(|row| Part::Task(index, row.part)) {
            self.withdraw(part);
        }
    }

    /// Cancels operations on the allocation's own parts that its tasks wait for before they start. What is repaired under
    /// a running task goes on: the task may need it until its end.
    pub(super) fn withdraw_setup(&mut self) {
        if self.state.durable.tasks.iter().any(|task| task.live_attempt().is_some()) {
            return;
        }
        for part in Part::OWN.into_iter().filter(|part| part.row().withdraw == Withdraw::WhileStarting) {
            self.withdraw(part);
        }
    }

    fn withdraw(&mut self, part: Part) {
        if let PartState::Busy { generation, doing: Doing::Up, .. } = *self.state.parts.get(part) {
            let (verb, timeout) = (Verb::Withdraw, OPERATION_TIMEOUT);
            self.issued.push(Issued { part, generation, verb, timeout });
        }
    }

    pub(super) fn fail_permanently(&mut self, index: TaskIndex, kind: TaskEventKind, message: String) {
        if self.known(index).is_none_or(|known| known.permanent_failure.is_some() || known.run == Run::Dead) {
            return;
        }
        if let Some(known) = self.known_mut(index) {
            known.permanent_failure = Some(PermanentFailure { kind, message: message.clone() });
        }
        self.note(index, kind, message);
    }

    /// Begins to stop an attempt, with its kill signal at once.
    pub(super) fn kill(&mut self, index: TaskIndex, then: AfterStop) {
        let until = Deadline::after(self.now, self.kill_timeout(index));
        self.begin_stop(index, StopStep::Kill { until }, then);
    }

    pub(super) fn begin(&mut self, index: TaskIndex) {
        let now = self.now;
        let interval = self.task(index).map(|task| task.restart.interval);
        let inputs = self.state.inputs(Part::Task(index, TaskPart::Process));
        let maybe_begun = self.state.maybe_begun.remove(&index);
        let unstored = self.state.leaves_first_unstored(now)
            && self.known(index).is_some_and(|known| known.newest() == 0);
        let durable =
            if unstored { self.state.durable.get_mut_untracked() } else { &mut *self.state.durable };
        let Some(known) = durable.tasks.get_mut(usize::from(index)) else { return };
        known.attempt = known.newest().saturating_add(1);
        known.begun_in = Some(now.boot);
        known.clear_owed();
        // If an earlier agent began it, it has read what that agent had stored. A start that follows sets the record again.
        let earlier = known.launch_of(known.attempt).filter(|_| maybe_begun).cloned();
        known.launch = earlier.or_else(|| Launch::with(known.attempt, &inputs).into_record());
        known.run = Run::Starting { attempt: known.attempt, boot: now.boot };
        if let (None, Some(interval)) = (known.window, interval) {
            known.window = Some(Deadline::after(now, interval));
        }
        self.state.later_notices.retain(|(task, _), _| *task != index);
        self.state.delayed_scripts.retain(|(task, _), _| *task != index);
        // An inspection in flight was about the state before.
        self.state.parts.supersede_part(Part::Task(index, TaskPart::Process));
        self.state.parts.set_part(Part::Task(index, TaskPart::Process), PartState::Absent);
        self.state.parts.set_part(Part::Task(index, TaskPart::Prestop), PartState::Absent);
    }

    fn started(&mut self, index: TaskIndex, attempt: u32) {
        let (wall, boot, boot_ns) = (self.now.wall, self.now.boot, self.now.boot_ns);
        let Some(known) = self.known_mut(index) else { return };
        known.run = Run::Running { attempt, boot };
        known.started_at = wall;
        known.started_ns = boot_ns;
        known.exit = None;
        let is_first = known.restarts == 0;
        self.note(index, TaskEventKind::Started, String::from("Task started by client"));
        if is_first {
            self.owe_first_scripts(index);
        }
        self.restart_group_checks(index);
    }

    /// Results of the group's checks from before this start or end of a process are no longer valid: as in Kubernetes,
    /// a group is healthy together with all its lasting tasks, sidecars included. Checks without a result go on.
    fn restart_group_checks(&mut self, index: TaskIndex) {
        let lasts = |task: &Task| task.lifecycle == Lifecycle::Main || task.lifecycle.is_sidecar();
        let known = self.state.checks.results.len();
        if self.task(index).is_some_and(lasts) {
            self.state.remove_checks(|result| result.task.is_none());
        }
        if self.state.checks.results.len() < known {
            self.state.checks.recheck = true;
            if self.is_in_consul(Part::Services) {
                // Consul's checks go on: their results are reported once more.
                mark_for_inspection(Part::Services, self.state);
            }
        }
    }

    fn begin_stop(&mut self, index: TaskIndex, step: StopStep, then: AfterStop) {
        let Some(known) = self.known_mut(index) else { return };
        let (attempt, boot, ran) = match known.run {
            Run::Starting { attempt, boot } => (attempt, boot, false),
            Run::Running { attempt, boot } => (attempt, boot, true),
            Run::Waiting | Run::BackingOff { .. } | Run::Stopping { .. } | Run::Dead => return,
        };
        known.run = Run::Stopping { attempt, boot, ran, step: step.clone(), then };
        known.withdraw_restart();
        if then == AfterStop::Dead {
            self.note_decided_kill(index);
        }
        self.note_step(index, &step);
    }
}
