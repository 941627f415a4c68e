//! The attempts of a task: their starts, their ends, and what follows.

use std_alloc::{
    format,
    string::{String, ToString},
};

use herdlet_api_types::{
    Duration,
    alloc::Allocation,
    job::{Lifecycle, Task},
    task::{ExitResult, TaskEventKind},
};

use super::{Issued, Writer, mark_for_inspection};
use crate::{
    action::{FailureClass, Outcome, Recovered, Started, Verb},
    alloc::task::restart::{self, Decision, RestartCause},
    launch::Launch,
    limits::OPERATION_TIMEOUT,
    op::{Part, TaskIndex, TaskPart},
    parts::{Need, TASK_PARTS, Withdraw},
    plan::TaskChange,
    state::{self, AfterStop, Doing, Noticed, PartState, PermanentFailure, Run, Stage, StopStep, TaskState},
    time::{BootId, Deadline},
    turn::Note,
};

/// Exit code of a task whose program does not exist, as shells have it.
const NO_PROGRAM: i32 = 127;

/// The reason for a restart if there is no other. Nomad's text.
const WITHIN_POLICY: &str = "Restart within policy";

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
                    known.failed_after = None;
                }
            }
            TaskChange::Settle(part) => self.settle(index, part),
            TaskChange::Die => {
                let doomed = self.known(index).is_some_and(|known| known.doom.is_some());
                if !doomed {
                    self.note_killing_unstarted(index);
                }
                self.die(index, if doomed { Failed::Yes } else { Failed::No });
            }
        }
    }

    /// Cancels operations that a task waits for before it starts: a start may wait for others, a download may take
    /// long, and a task that is to end must not wait for either.
    pub(super) fn withdraw_start(&mut self, index: TaskIndex) {
        let withdrawn =
            TASK_PARTS.into_iter().rev().filter(|row| row.row.withdraw == Withdraw::WhileStarting);
        for part in withdrawn.map(|row| Part::Task(index, row.part)) {
            if let PartState::Busy { generation, doing: Doing::Up, .. } = *self.state.parts.get(part) {
                let (verb, timeout) = (Verb::Withdraw, OPERATION_TIMEOUT);
                self.issued.push(Issued { part, generation, verb, timeout });
            }
        }
    }

    pub(super) fn process_outcome(
        &mut self,
        index: TaskIndex,
        ended: state::FinishedOperation,
        outcome: Outcome,
    ) {
        let part = Part::Task(index, TaskPart::Process);
        let Some(run) = self.known(index).map(|known| known.run.clone()) else { return };
        let doing = match ended {
            // The attempt ended while it ran: what is left of it is to be removed.
            state::FinishedOperation::Overtaken => return self.state.parts.set_part(part, PartState::Up),
            state::FinishedOperation::Fresh(doing) => doing,
        };
        match (doing, &run, outcome) {
            // It was stopped, and so an inspection was due.
            (
                Doing::Inspect(Some(_)),
                Run::Stopping { step: StopStep::Kill { .. }, .. },
                Outcome::Recovered(Recovered::Running(_)),
            ) => {
                let why = String::from("the process is still running");
                self.part_failed(part, Doing::Down, FailureClass::Retry, why);
            }
            (_, _, Outcome::Recovered(recovered)) => self.recovered(index, &run, recovered),
            (Doing::Up, Run::Starting { attempt, .. }, Outcome::Started(launch)) => {
                self.process_lives(index);
                self.started(index, *attempt);
                if let Some(known) = self.known_mut(index) {
                    known.launch = launch.into_record();
                }
            }
            // The machine lacks something at the moment, which is not the task's fault: the process is inspected and
            // started again.
            (Doing::Up, Run::Starting { .. }, Outcome::Failed { class: FailureClass::Retry, why }) => {
                self.part_failed(part, Doing::Up, FailureClass::Retry, why);
            }
            (Doing::Up, Run::Starting { attempt, .. }, Outcome::Failed { class, why }) => {
                self.start_failed(index, *attempt, class, &why);
            }
            // Its exit reports how it ended, or an inspection if that got lost.
            (Doing::Down, Run::Stopping { .. }, Outcome::Done(_)) => {
                self.state.parts.set_part(part, PartState::Suspect(Noticed::Event));
            }
            (Doing::Down, Run::Waiting | Run::BackingOff { .. } | Run::Dead, Outcome::Done(_)) => {
                self.state.parts.set_part(part, PartState::Absent);
            }
            (_, _, Outcome::Failed { why, .. }) => self.part_failed(part, doing, FailureClass::Retry, why),
            (
                _,
                _,
                Outcome::Done(_)
                | Outcome::Started(_)
                | Outcome::Present(_)
                | Outcome::Absent
                | Outcome::Foreign { .. }
                | Outcome::Lost { .. }
                | Outcome::Overdue
                | Outcome::Pending { .. }
                | Outcome::Outdated { .. }
                | Outcome::Checking(_),
            ) => {}
        }
    }

    pub(super) fn fail_permanently(&mut self, index: TaskIndex, kind: TaskEventKind, message: String) {
        if self.known(index).is_none_or(|known| known.doom.is_some() || known.run == Run::Dead) {
            return;
        }
        if let Some(known) = self.known_mut(index) {
            known.doom = Some(PermanentFailure { kind, message: message.clone() });
        }
        self.note(index, kind, message);
    }

    fn recovered(&mut self, index: TaskIndex, run: &Run, recovered: Recovered) {
        let part = Part::Task(index, TaskPart::Process);
        if *run == Run::Waiting && self.state.maybe_begun.contains(&index) {
            return self.first_recovered(index, recovered);
        }
        match (run, recovered) {
            (Run::Starting { boot, .. }, Recovered::NotStarted) if *boot == self.now.boot => {
                self.state.parts.set_part(part, PartState::Absent);
            }
            (
                Run::Starting { attempt, boot }
                | Run::Running { attempt, boot }
                | Run::Stopping { attempt, boot, .. },
                Recovered::NotStarted,
            ) => {
                self.lost(index, *attempt, *boot, String::from("no trace of the process was found"));
            }
            (
                Run::Starting { attempt, boot }
                | Run::Running { attempt, boot }
                | Run::Stopping { attempt, boot, .. },
                Recovered::Lost { why },
            ) => self.lost(index, *attempt, *boot, why),
            (Run::Starting { attempt, .. }, Recovered::Running(started)) => {
                self.process_lives(index);
                self.started(index, *attempt);
                self.set_started(index, started);
            }
            (Run::Running { .. }, Recovered::Running(started)) => {
                self.process_lives(index);
                self.set_started(index, started);
            }
            (Run::Stopping { .. }, Recovered::Running(started)) => {
                self.process_lives(index);
                self.set_started(index, started);
                if let Some(TaskState { run: Run::Stopping { ran, .. }, .. }) = self.known_mut(index) {
                    *ran = true;
                }
            }
            (
                Run::Starting { attempt, .. } | Run::Running { attempt, .. } | Run::Stopping { attempt, .. },
                Recovered::Exited(result),
            ) => self.attempt_ended(index, *attempt, result),
            (Run::Waiting | Run::BackingOff { .. } | Run::Dead, Recovered::Running(started)) => {
                self.state.parts.set_part(part, PartState::Up);
                self.stop_stray(index);
                self.set_started(index, started);
            }
            (
                Run::Waiting | Run::BackingOff { .. } | Run::Dead,
                Recovered::NotStarted | Recovered::Exited(_) | Recovered::Lost { .. },
            ) => self.state.parts.set_part(part, PartState::Up),
        }
    }

    /// Applies what became of a first attempt that a previous agent may have begun.
    fn first_recovered(&mut self, index: TaskIndex, recovered: Recovered) {
        let part = Part::Task(index, TaskPart::Process);
        match recovered {
            Recovered::NotStarted => self.state.parts.set_part(part, PartState::Absent),
            Recovered::Running(started) => {
                self.begin(index);
                self.process_lives(index);
                self.started(index, 1);
                self.set_started(index, started);
            }
            Recovered::Exited(result) => {
                self.begin(index);
                self.attempt_ended(index, 1, result);
            }
            // It never ran, or whether it did is unknown. It is removed, and does not count.
            Recovered::Lost { .. } => {
                self.state.maybe_begun.remove(&index);
                if let Some(known) = self.known_mut(index) {
                    known.used = 1;
                }
                self.clear_process(index);
            }
        }
    }

    /// Stores the driver's report about a recovered attempt, if an agent died before it stored the result of its start.
    /// Services that read the attempt's network are compared with it again.
    fn set_started(&mut self, index: TaskIndex, Started { handle, network }: Started) {
        let Some(known) = self.known(index) else { return };
        let attempt = known.newest();
        let stored =
            known.launch_of(attempt).map_or_else(|| Launch::of(attempt), |launch| Launch::clone(launch));
        if (&stored.handle, &stored.network) == (&handle, &network) {
            return;
        }
        let is_moved = stored.network != network;
        let launch = Launch { handle, network, ..stored }.into_record();
        if let Some(known) = self.known_mut(index) {
            known.launch = launch;
        }
        if is_moved {
            self.compare_services(index);
        }
    }

    /// Has the services and checks of a task set up again where they differ from the present addresses.
    fn compare_services(&mut self, index: TaskIndex) {
        let [services, checks] = [TaskPart::Services, TaskPart::Checks].map(|part| Part::Task(index, part));
        if self.spec.need(services) == Need::Needed && *self.state.parts.get(services) != PartState::Absent {
            mark_for_inspection(services, self.state);
        }
        if self.spec.need(checks) == Need::Needed && *self.state.parts.get(checks) != PartState::Absent {
            self.state.checks.outdated.insert(checks);
        }
    }

    /// A process lives that should not: it is stopped like any other.
    fn stop_stray(&mut self, index: TaskIndex) {
        let boot = self.now.boot;
        let Some(known) = self.known_mut(index) else { return };
        let then = if known.run == Run::Dead { AfterStop::Dead } else { AfterStop::Restart };
        known.attempt = known.newest();
        known.run = Run::Running { attempt: known.attempt, boot };
        self.kill(index, then);
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
        self.state.maybe_begun.remove(&index);
        let unstored = self.state.leaves_first_unstored(now)
            && self.known(index).is_some_and(|known| known.newest() == 0);
        let durable =
            if unstored { self.state.durable.get_mut_untracked() } else { &mut *self.state.durable };
        let Some(known) = durable.tasks.get_mut(usize::from(index)) else { return };
        known.attempt = known.newest().saturating_add(1);
        known.begun_in = Some(now.boot);
        known.clear_owed();
        known.launch = Launch::with(known.attempt, &inputs).into_record();
        known.run = Run::Starting { attempt: known.attempt, boot: now.boot };
        if let (None, Some(interval)) = (known.window, interval) {
            known.window = Some(Deadline::after(now, interval));
        }
        self.state.later_notices.retain(|(task, _), _| *task != index);
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

    fn start_failed(&mut self, index: TaskIndex, attempt: u32, class: FailureClass, why: &str) {
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
    fn lost(&mut self, index: TaskIndex, attempt: u32, boot: BootId, why: String) {
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

    fn attempt_ended(&mut self, index: TaskIndex, attempt: u32, result: ExitResult) {
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

    /// The process runs. If it may have drifted since the operation began that showed that, it is inspected again.
    fn process_lives(&mut self, index: TaskIndex) {
        let part = Part::Task(index, TaskPart::Process);
        let noticed = self.state.parts.take_drift_note(part);
        self.state.parts.set_part(part, noticed.map_or(PartState::Up, PartState::Suspect));
    }

    /// Only leftovers of the attempt can exist; the outcome of an operation in flight on it is outdated.
    fn clear_process(&mut self, index: TaskIndex) {
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
        if let Some(doom) = &known.doom {
            let message = doom.message.clone();
            self.note(index, TaskEventKind::NotRestarting, message);
            return self.die(index, Failed::Yes);
        }
        let group_stops = self.state.durable.stop.is_some() && task.lifecycle != Lifecycle::Poststop;
        match &known.run {
            Run::Stopping { then: AfterStop::Restart, .. } if !group_stops => {
                return self.restart_at_once(index, "request");
            }
            Run::Stopping { then: AfterStop::RestartUnhealthy, .. } if !group_stops => {
                (ended, cause) = (RestartCause::Unhealthy, "check");
            }
            Run::Stopping { .. } => {
                let failed = if known.failed { Failed::Yes } else { Failed::No };
                self.note(index, TaskEventKind::Killed, String::from("Task successfully killed"));
                return self.die(index, failed);
            }
            Run::Starting { .. } | Run::Running { .. } if group_stops => return self.die(index, Failed::No),
            Run::Running { .. } if known.unhealthy => (ended, cause) = (RestartCause::Unhealthy, "check"),
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

    pub(super) fn back_off(&mut self, index: TaskIndex, delay: Duration, reason: &str, cause: &'static str) {
        let prefix = if reason.is_empty() { String::new() } else { format!("{reason} - ") };
        let message = format!("{prefix}Task restarting in {}", delay.rounded());
        let reason = if reason.is_empty() { WITHIN_POLICY } else { reason };
        let details = [("restart_reason", reason.to_string()), ("start_delay", delay.as_nanos().to_string())];
        let details = details.map(|(key, text)| (String::from(key), text)).into();
        self.note_with(index, TaskEventKind::Restarting, message, details);
        let (now, until) = (self.now, Deadline::after(self.now, delay));
        self.count_restart(index, cause);
        if let Some(known) = self.known_mut(index) {
            let failures = restart::count_failure(known.failures, known.lived(now));
            known.failures = Some(failures);
            known.failed_after = Some(failures.longest);
            known.withdraw_restart();
            known.run = Run::BackingOff { until };
        }
        self.render_for_restart(index);
    }

    pub(super) fn restart_at_once(&mut self, index: TaskIndex, cause: &'static str) {
        let details = [("restart_reason", ""), ("start_delay", "0")];
        let details = details.map(|(key, text)| (String::from(key), String::from(text))).into();
        self.note_with(index, TaskEventKind::Restarting, String::from("Task restarting in 0s"), details);
        self.count_restart(index, cause);
        if let Some(known) = self.known_mut(index) {
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

    fn die(&mut self, index: TaskIndex, failed: Failed) {
        let wall = self.now.wall;
        let Some(known) = self.known_mut(index) else { return };
        known.run = Run::Dead;
        known.failed = failed == Failed::Yes;
        known.failed_after = None;
        known.withdraw_restart();
        known.clear_owed();
        known.finished_at = wall;
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

/// Whether a task that ends has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failed {
    Yes,
    No,
}

pub(super) fn seed(spec: &Allocation, index: TaskIndex, attempt: u32) -> u64 {
    let (high, low) = spec.id.0.as_u64_pair();
    high ^ low.rotate_left(17) ^ (u64::from(index) << 32) ^ u64::from(attempt)
}
