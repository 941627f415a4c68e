//! Restarts and signals, requested by people and by checks.

use std_alloc::{
    format,
    string::{String, ToString},
};

use herdlet_api_types::{Duration, UnixNanos, alloc::Desired, job::Lifecycle, task::TaskEventKind};

use super::{Issued, Writer};
use crate::{
    action::Verb,
    event::RestartScope,
    limits::OPERATION_TIMEOUT,
    op::{Part, TaskIndex, TaskPart},
    policy::EventTexts,
    state::{AfterStop, GroupRestart, RestartPhase, Run, Stage, healthy_by},
    time::Deadline,
};

impl Writer<'_> {
    /// Accepts a restart, or returns why it can't.
    pub fn restart(&mut self, scope: &RestartScope) -> Result<(), String> {
        let durable = &self.state.durable;
        let is_ending = self.spec.desired != Desired::Run || durable.stop.is_some();
        if durable.status.is_terminal() || is_ending || durable.stage == Stage::Poststop {
            return Err(format!(
                "allocation {} can't be restarted: it has ended or is being stopped",
                self.spec.name()
            ));
        }
        let (all, reason) = match scope {
            RestartScope::Task(task) => return self.restart_one(task),
            RestartScope::Running => (false, "User requested running tasks to restart"),
            RestartScope::All => (true, "User requested all tasks to restart"),
        };
        let delay = self.spec.group().map(|group| group.shutdown_delay).unwrap_or_default();
        self.note_live_tasks(TaskEventKind::RestartSignaled, reason);
        if all {
            self.note_dead_tasks(TaskEventKind::RestartSignaled, reason);
        }
        let delay = Deadline::after(self.now, delay);
        let phase = RestartPhase::Delay;
        self.state.durable.restart = Some(GroupRestart { all, delay, unhealthy: false, phase });
        self.outdate_verdict();
        Ok(())
    }

    /// A user restarts an allocation that was found unhealthy: it gets the full deadline to become healthy.
    fn outdate_verdict(&mut self) {
        if self.state.durable.is_unhealthy() {
            self.state.durable.verdict_outdated = true;
            self.state.durable.healthy_by = healthy_by(self.now, self.spec);
        }
    }

    /// A check has failed for too long: restarts the task that it checks, or all running tasks after the
    /// `shutdown_delay`, during which the group's services are down.
    pub(super) fn restart_unhealthy(&mut self, task: Option<TaskIndex>, check: &str, output: &str) {
        // Nomad's text, and the check's output.
        let colon = if output.is_empty() { "" } else { ": " };
        let reason = format!("healthcheck: check {check:?} unhealthy{colon}{output}");
        match task {
            Some(index) => self.restart_unhealthy_task(index, reason),
            None => {
                self.note_live_tasks(TaskEventKind::RestartSignaled, &reason);
                let delay = self.spec.group().map(|group| group.shutdown_delay).unwrap_or_default();
                let delay = Deadline::after(self.now, delay);
                let phase = RestartPhase::Delay;
                self.state.durable.restart = Some(GroupRestart { all: false, delay, unhealthy: true, phase });
            }
        }
    }

    /// A task was found unhealthy: restarts it by its restart policy.
    pub(super) fn restart_unhealthy_task(&mut self, index: TaskIndex, reason: String) {
        self.note(index, TaskEventKind::RestartSignaled, reason);
        if let Some(known) = self.known_mut(index) {
            known.restart_requested = true;
            known.unhealthy = true;
        }
    }

    /// Ends poststop tasks, and lets none begin.
    pub fn end_poststop(&mut self) {
        self.state.durable.no_poststop = true;
        for index in 0..self.task_count() {
            if self.task(index).is_some_and(|task| task.lifecycle == Lifecycle::Poststop) {
                self.withdraw_start(index);
            }
        }
    }

    /// Accepts a signal to one task, or to all running tasks.
    pub fn signal(&mut self, task: Option<&str>, signal: &str) -> Result<(), String> {
        let name = self.spec.name();
        let mut sent = false;
        for index in 0..self.task_count() {
            let Some(known) = self.known(index) else { continue };
            if task.is_some_and(|task| task != &*known.name) {
                continue;
            }
            sent |= self.send_signal(index, signal, None).is_some();
        }
        match (sent, task) {
            (true, _) => Ok(()),
            (false, Some(task)) => Err(format!("task {task} of {name} is not running")),
            (false, None) => Err(format!("no task of {name} is running")),
        }
    }

    /// Sends a signal to a task that runs, with the text of its event. Returns the number of the operation.
    pub(super) fn send_signal(
        &mut self,
        index: TaskIndex,
        signal: &str,
        message: Option<&str>,
    ) -> Option<u64> {
        let attempt = self.known(index)?.signalled_attempt()?;
        let details = [(String::from("signal"), signal.to_string())].into();
        let message = match (message, self.spec.policy().events) {
            (Some(message), _) => message.to_string(),
            // Nomad's text leaves the signal's name to the details.
            (None, EventTexts::Nomad) => String::from("Task being sent a signal"),
            (None, EventTexts::Own) => format!("Task being sent signal {signal}"),
        };
        self.note_with(index, TaskEventKind::Signaling, message, details);
        Some(self.issue_beside(
            index,
            Verb::Signal { attempt, signal: signal.to_string() },
            OPERATION_TIMEOUT,
        ))
    }

    /// Issues an operation on a task's process that does not take the process's slot.
    pub(super) fn issue_beside(&mut self, index: TaskIndex, verb: Verb, timeout: Duration) -> u64 {
        *self.generation += 1;
        let generation = *self.generation;
        self.issued.push(Issued { part: Part::Task(index, TaskPart::Process), generation, verb, timeout });
        generation
    }

    /// The services of a group-wide restart have been down long enough: restarts its tasks, each in its place in the
    /// stop order.
    pub(super) fn restart_tasks(&mut self, restart: GroupRestart) {
        self.state.durable.restart = Some(GroupRestart { phase: RestartPhase::Stopping, ..restart.clone() });
        if restart.all {
            self.state.durable.stage = Stage::Init;
        }
        for index in 0..self.task_count() {
            if self.task(index).is_none_or(|task| task.lifecycle == Lifecycle::Poststop) {
                continue;
            }
            if restart.all && self.state.maybe_begun.contains(&index) {
                // Its gate closes, after which nothing else shows that its first attempt may have begun.
                self.begin(index);
                self.kill(index, AfterStop::Restart);
                continue;
            }
            let Some(known) = self.known_mut(index) else { continue };
            match &known.run {
                // No check is about a task that has not started.
                Run::Starting { .. } if restart.unhealthy => {}
                Run::Running { .. } | Run::Starting { .. } => {
                    known.restart_requested = true;
                    known.unhealthy = restart.unhealthy;
                }
                Run::Dead | Run::BackingOff { .. } if restart.all => {
                    let is_dead = known.run == Run::Dead;
                    known.run = Run::Waiting;
                    known.failed = false;
                    known.permanent_failure = None;
                    known.finished_at = UnixNanos::default();
                    if is_dead {
                        self.restart_at_once(index, "request");
                    }
                }
                Run::Waiting | Run::BackingOff { .. } | Run::Stopping { .. } | Run::Dead => {}
            }
        }
    }

    fn restart_one(&mut self, task: &str) -> Result<(), String> {
        let name = self.spec.name();
        let Some(index) = self.index_of(task) else {
            return Err(format!("allocation {name} has no task {task}"));
        };
        if !self.known(index).is_some_and(|known| matches!(known.run, Run::Running { .. })) {
            return Err(format!("task {task} of {name} is not running"));
        }
        self.note(index, TaskEventKind::RestartSignaled, String::from("User requested task to restart"));
        if let Some(known) = self.known_mut(index) {
            known.restart_requested = true;
        }
        self.outdate_verdict();
        Ok(())
    }
}
