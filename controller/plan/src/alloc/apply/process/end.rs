//! The ends of a task's attempts, and what follows: a restart at once or after a delay, or the task's end.
//!
//! In: how an attempt ended. Out: the task's next state, and notes for the metrics.

use std_alloc::{
    format,
    string::{String, ToString},
};

use herdlet_api_types::{
    Duration,
    alloc::Allocation,
    job::Lifecycle,
    task::{ExitResult, TaskEventKind},
};

use crate::{
    action::FailureClass,
    alloc::{
        apply::Writer,
        task::restart::{self, Decision, RestartCause},
    },
    op::{Part, TaskIndex, TaskPart},
    parts::Need,
    state::{AfterStop, PartState, Run, TaskState},
    time::{BootId, Deadline},
    turn::Note,
};

/// Exit code of a task whose program does not exist, as shells have it.
const NO_PROGRAM: i32 = 127;

/// The reason for a restart if there is no other. Nomad's text.
const WITHIN_POLICY: &str = "Restart within policy";

impl Writer<'_> {
    pub(super) fn start_failed(&mut self, index: TaskIndex, attempt: u32, class: FailureClass, why: &str) {
        self.state.parts.set_part(Part::Task(index, TaskPart::Process), PartState::Up);
        self.note(index, TaskEventKind::DriverFailure, why.to_string());
        let (ended, code) = match class {
            FailureClass::Retry | FailureClass::Recoverable => (RestartCause::StartFailed, 0),
            FailureClass::Fatal => (RestartCause::StartImpossible, 0),
            FailureClass::NoProgram => (RestartCause::StartImpossible, NO_PROGRAM),
        };
        let result = ExitResult { code, error: why.to_string(), at: self.now.wall, ..ExitResult::default() };
        if let Some(known) = self.known_mut(index) {
            known.exit = Some(result);
        }
        self.after_end(index, attempt, ended, "failed_start");
    }

    /// The attempt is gone without a result. After a reboot, that does not count against the restart policy.
    pub(super) fn lost(&mut self, index: TaskIndex, attempt: u32, boot: BootId, why: String) {
        let rebooted = boot != self.now.boot;
        if let Some(known) = self.known_mut(index)
            && matches!(known.run, Run::Stopping { ran: false, .. })
        {
            // It was only fenced: its number is used, and it never began.
            (known.attempt, known.used) = (attempt.saturating_sub(1), attempt);
        }
        let stopping = self.known(index).is_some_and(|known| matches!(known.run, Run::Stopping { .. }));
        if !rebooted || stopping {
            let result = ExitResult { code: -1, error: why, at: self.now.wall, ..ExitResult::default() };
            return self.attempt_ended(index, attempt, result);
        }
        self.clear_process(index);
        self.note(index, TaskEventKind::Terminated, String::from("Task was lost when the machine restarted"));
        self.restart_at_once(index, "reboot");
    }

    pub(super) fn attempt_ended(&mut self, index: TaskIndex, attempt: u32, result: ExitResult) {
        let Some(known) = self.known(index) else { return };
        if known.live_attempt() != Some(attempt) {
            return;
        }
        if matches!(known.run, Run::Starting { .. }) {
            self.started(index, attempt);
        }
        self.clear_process(index);
        self.restart_group_checks(index);
        self.end_own_checks(index);
        self.note_exit(index, &result);
        if let Some(known) = self.known_mut(index) {
            let task = String::from(&*known.name);
            known.exit = Some(result.clone());
            if result.oom_killed {
                self.notes.push(Note::OutOfMemory { job: self.spec.job_key.clone(), task });
            }
        }
        self.after_end(index, attempt, RestartCause::Exit(&result), "exit");
    }

    /// A task's own checks end with its process. The next attempt's checks begin from scratch, even if these have not
    /// ended by then.
    fn end_own_checks(&mut self, index: TaskIndex) {
        let Some(task) = self.task(index) else { return };
        let name = Some(task.name.clone());
        self.state.remove_checks(|result| result.task == name);
        let part = Part::Task(index, TaskPart::Checks);
        if self.spec.need(part) == Need::Needed && *self.state.parts.get(part) != PartState::Absent {
            self.state.checks.outdated.insert(part);
        }
    }

    /// Only leftovers of the attempt can exist; the outcome of an operation in flight on it is outdated.
    pub(super) fn clear_process(&mut self, index: TaskIndex) {
        let part = Part::Task(index, TaskPart::Process);
        self.state.parts.take_drift_note(part);
        self.state.parts.supersede_part(part);
        self.state.parts.set_part(part, PartState::Up);
    }

    /// The attempt is over: decides what the task does next.
    fn after_end(&mut self, index: TaskIndex, attempt: u32, ended: RestartCause<'_>, cause: &'static str) {
        let (mut ended, mut cause) = (ended, cause);
        let Some(known) = self.known(index) else { return };
        let Some(task) = self.task(index) else { return };
        if let Some(permanent_failure) = &known.permanent_failure {
            let message = permanent_failure.message.clone();
            self.note(index, TaskEventKind::NotRestarting, message);
            return self.die(index, Failed::Yes);
        }
        let group_stops = self.state.durable.stop.is_some() && task.lifecycle != Lifecycle::Poststop;
        match &known.run {
            Run::Stopping { then: AfterStop::Restart, .. } if !group_stops => {
                return self.restart_at_once(index, "request");
            }
            Run::Stopping { then: AfterStop::RestartUnhealthy, .. } if !group_stops => {
                (ended, cause) = (RestartCause::Unhealthy, unhealthy_cause(known));
            }
            Run::Stopping { .. } => {
                let failed = if known.failed { Failed::Yes } else { Failed::No };
                self.note(index, TaskEventKind::Killed, String::from("Task successfully killed"));
                return self.die(index, failed);
            }
            Run::Starting { .. } | Run::Running { .. } if group_stops => return self.die(index, Failed::No),
            Run::Running { .. } if known.unhealthy => {
                (ended, cause) = (RestartCause::Unhealthy, unhealthy_cause(known));
            }
            Run::Running { .. } if known.restart_requested => return self.restart_at_once(index, "request"),
            Run::Starting { .. } | Run::Running { .. } => {}
            Run::Waiting | Run::BackingOff { .. } | Run::Dead => return,
        }
        let (now, seed, spec) = (self.now, seed(self.spec, index, attempt), self.spec.allocation().clone());
        let Some(task) = spec.group().and_then(|group| group.tasks.get(usize::from(index))) else { return };
        let on_success = restart::restarts_on_success(spec.job.kind, task.lifecycle);
        let Some(known) = self.known_mut(index) else { return };
        match restart::decide(now, &task.restart, on_success, ended, known, seed) {
            Decision::Restart { delay, reason } => self.back_off(index, delay, &reason, cause),
            Decision::Done => self.die(index, Failed::No),
            Decision::Fail { reason } => {
                self.note(index, TaskEventKind::NotRestarting, reason);
                self.die(index, Failed::Yes);
            }
        }
    }

    pub(in crate::alloc::apply) fn back_off(
        &mut self,
        index: TaskIndex,
        delay: Duration,
        reason: &str,
        cause: &'static str,
    ) {
        let prefix = if reason.is_empty() { String::new() } else { format!("{reason} - ") };
        let message = format!("{prefix}Task restarting in {}", delay.rounded());
        let reason = if reason.is_empty() { WITHIN_POLICY } else { reason };
        let details = [("restart_reason", reason.to_string()), ("start_delay", delay.as_nanos().to_string())];
        let details = details.map(|(key, text)| (String::from(key), text)).into();
        self.note_with(index, TaskEventKind::Restarting, message, details);
        let (now, until) = (self.now, Deadline::after(self.now, delay));
        let min_healthy_time = self.spec.policy().health.map(|terms| terms.min_healthy_time);
        let known = self.task(index).zip(self.known(index));
        let proof = known.and_then(|(task, known)| restart::proof(&task.restart, min_healthy_time, known));
        self.count_restart(index, cause);
        if let Some(known) = self.known_mut(index) {
            let lived = known.lived_since_failure(now);
            if let Some(length) = proof {
                known.late_at.get_or_insert(Deadline::after(
                    now,
                    Duration(length.as_nanos().saturating_sub(lived.as_nanos())),
                ));
            }
            let failures = restart::count_failure(known.failures, lived);
            known.failures = Some(failures);
            known.failed_after = Some(failures.longest);
            known.survived = None;
            known.withdraw_restart();
            known.run = Run::BackingOff { until };
        }
        self.render_for_restart(index);
    }

    pub(in crate::alloc::apply) fn restart_at_once(&mut self, index: TaskIndex, cause: &'static str) {
        let details = [("restart_reason", ""), ("start_delay", "0")];
        let details = details.map(|(key, text)| (String::from(key), String::from(text))).into();
        self.note_with(index, TaskEventKind::Restarting, String::from("Task restarting in 0s"), details);
        self.count_restart(index, cause);
        let now = self.now;
        if let Some(known) = self.known_mut(index) {
            known.survived = known.failed_after.map(|_| known.lived_since_failure(now));
            known.withdraw_restart();
            known.run = Run::Waiting;
        }
        self.render_for_restart(index);
    }

    fn count_restart(&mut self, index: TaskIndex, reason: &'static str) {
        let wall = self.now.wall;
        let Some(known) = self.known_mut(index) else { return };
        known.restarts = known.restarts.saturating_add(1);
        known.last_restart = wall;
        let task = String::from(&*known.name);
        self.notes.push(Note::TaskRestart { job: self.spec.job_key.clone(), task, reason });
    }

    pub(super) fn die(&mut self, index: TaskIndex, failed: Failed) {
        let wall = self.now.wall;
        let Some(known) = self.known_mut(index) else { return };
        known.run = Run::Dead;
        known.failed = failed == Failed::Yes;
        known.forgive();
        known.withdraw_restart();
        known.clear_owed();
        known.finished_at = wall;
    }
}

/// Whether a task that ends has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failed {
    Yes,
    No,
}

/// Why a task is unhealthy: a CSI plugin that was never ready, or a check.
fn unhealthy_cause(known: &TaskState) -> &'static str {
    let was_never_ready =
        known.plugin.is_some_and(|plugin| plugin.attempt == known.attempt && !plugin.was_ready);
    if was_never_ready { "plugin" } else { "check" }
}

pub(in crate::alloc::apply) fn seed(spec: &Allocation, index: TaskIndex, attempt: u32) -> u64 {
    let (high, low) = spec.id.0.as_u64_pair();
    high ^ low.rotate_left(17) ^ (u64::from(index) << 32) ^ u64::from(attempt)
}
