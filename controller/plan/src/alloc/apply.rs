//! Carrying out changes and taking in what happened: the only place where an allocation's state is written.

use std_alloc::{
    collections::BTreeMap,
    format,
    string::{String, ToString},
    sync::Arc,
    vec::Vec,
};

use herdlet_api_types::{
    Duration, UnixNanos,
    alloc::Allocation,
    job::{ChangeMode, Lifecycle, Task},
    service::CheckResult,
    task::{ExitResult, TaskEvent, TaskEventKind},
};

use crate::{
    action::{FailureClass, Outcome, Recovered, Verb},
    alloc::health,
    backoff::retry_delay,
    event::{Noticed, RestartScope},
    limits::OPERATION_TIMEOUT,
    op::{Part, TaskIndex, TaskPart},
    plan::{Change, TaskChange},
    state::{
        AfterStop, AllocState, Doing, Doom, GroupRestart, PartState, Run, Stage, StopReason, StopStep,
        TaskState,
    },
    task::restart::{self, Decision, Ended},
    time::{Deadline, Now},
    turn::Note,
    world::Settings,
};

/// What writing an allocation's state needs and produces.
pub struct Writer<'a> {
    /// The present.
    pub now: Now,
    /// The agent's settings.
    pub settings: &'a Settings,
    /// What is wanted.
    pub spec: &'a Arc<Allocation>,
    /// What is remembered.
    pub state: &'a mut AllocState,
    /// Number of the next operation.
    pub generation: &'a mut u64,
    /// Operations to start: part, generation, verb, timeout.
    pub issued: &'a mut Vec<Issued>,
    /// For the metrics.
    pub notes: &'a mut Vec<Note>,
}

/// An operation to start.
#[derive(Debug, Clone)]
pub struct Issued {
    /// On which part.
    pub part: Part,
    /// Its number.
    pub generation: u64,
    /// What to do.
    pub verb: Verb,
    /// After this it is overdue.
    pub timeout: Duration,
}

impl Writer<'_> {
    /// Carries out one change of a plan. [`Change::Forget`] is the world's.
    pub fn change(&mut self, change: Change) {
        match change {
            Change::Adopt => self.adopt(),
            Change::Stage(stage) => self.state.durable.stage = stage,
            Change::Stop(stop) => {
                self.note_stop(&stop.reason);
                self.state.durable.restart = None;
                self.state.durable.stop = Some(stop);
            }
            Change::Issue { part, doing, verb, timeout } => self.issue(part, doing, verb, timeout),
            Change::NothingThere(part) => self.state.parts.set(part, PartState::Absent),
            Change::RestartTasks(restart) => self.restart_tasks(&restart),
            Change::Task(index, change) => self.change_task(index, change),
            Change::Healthy(healthy) => self.state.healthy_since_ns = healthy.then_some(self.now.boot_ns),
            Change::Verdict(verdict, message) => {
                self.state.durable.health = Some(verdict);
                if !verdict.healthy {
                    self.note_live_tasks(TaskEventKind::AllocUnhealthy, &message);
                }
            }
            Change::Forget => {}
        }
        self.refresh_status();
    }

    /// Takes in the end of an operation on one of the allocation's parts.
    pub fn outcome(&mut self, part: Part, generation: u64, outcome: Outcome) {
        let (doing, awaited) = match self.state.parts.get(part) {
            PartState::Busy { generation: awaited, doing, .. } => (*doing, *awaited == generation),
            PartState::Unknown
            | PartState::Suspect(_)
            | PartState::Absent
            | PartState::Up
            | PartState::Failed { .. } => (Doing::Look(None), false),
        };
        if !awaited {
            return;
        }
        match (part, outcome) {
            // Past its time an operation keeps its slot until it truly ends.
            (_, Outcome::Overdue) => return,
            (Part::Task(index, TaskPart::Process), outcome) => self.process_outcome(index, doing, outcome),
            (part, Outcome::Issued { renew_in }) => {
                self.identity_issued(part, doing, renew_in);
            }
            (part, Outcome::Done) => match doing {
                Doing::Down => self.state.parts.set(part, PartState::Absent),
                Doing::Up | Doing::Look(_) => self.part_is_up(part),
            },
            (part, Outcome::Present) => self.part_is_up(part),
            (part, Outcome::Absent) => self.part_is_absent(part, doing, None),
            (part, Outcome::Foreign { why }) => self.part_is_absent(part, doing, Some(why)),
            (part, Outcome::Failed { class, why }) => self.part_failed(part, doing, class, why),
            (part, Outcome::Recovered(_) | Outcome::Volume { .. }) => {
                self.state.parts.set(part, PartState::Unknown)
            }
        }
        self.refresh_status();
    }

    /// Takes in the end of a task's process. Only the live attempt's end counts; later words about it change nothing.
    pub fn exited(&mut self, task: &str, attempt: u32, result: ExitResult) {
        let Some(index) = self.index_of(task) else { return };
        self.attempt_ended(index, attempt, result);
        self.refresh_status();
    }

    /// Takes in a check's result.
    pub fn checked(&mut self, result: CheckResult) {
        self.state.checks.insert(result.id.clone(), result);
    }

    /// Something suggests that a part is not as it should be.
    pub fn drift(&mut self, part: Part, noticed: Noticed) {
        if *self.state.parts.get(part) == PartState::Up {
            self.state.parts.set(part, PartState::Suspect(noticed));
        }
    }

    /// A record or cgroup of this attempt exists although its state may be lost.
    pub fn found(&mut self, task: &str, attempt: u32) {
        let Some(index) = self.index_of(task) else { return };
        if self.state.durable.tasks.is_empty() {
            self.adopt();
        }
        let boot = self.now.boot;
        let Some(known) = self.known(index) else { return };
        if known.attempt >= attempt {
            return;
        }
        known.attempt = attempt;
        if matches!(known.run, Run::Waiting | Run::BackingOff { .. }) {
            known.run = Run::Starting { attempt, boot };
        }
        self.refresh_status();
    }

    /// Accepts a restart, or says why it can't be.
    pub fn restart(&mut self, scope: &RestartScope) -> Result<(), String> {
        let name = self.spec.name();
        if self.state.durable.status.is_terminal() || self.state.durable.stop.is_some() {
            return Err(format!(
                "allocation {name} has ended or is being stopped; nothing of it can be restarted"
            ));
        }
        let (all, reason) = match scope {
            RestartScope::Task(task) => return self.restart_one(task),
            RestartScope::Running => (false, "User requested running tasks to restart"),
            RestartScope::All => (true, "User requested all tasks to restart"),
        };
        let delay = self.spec.group().map(|group| group.shutdown_delay).unwrap_or_default();
        self.note_live_tasks(TaskEventKind::RestartSignaled, reason);
        self.state.durable.restart = Some(GroupRestart { all, delay: Deadline::after(self.now, delay) });
        Ok(())
    }

    /// Accepts a signal to one task, or to all running ones.
    pub fn signal(&mut self, task: Option<&str>, signal: &str) -> Result<(), String> {
        let name = self.spec.name();
        let mut sent = false;
        for index in 0..self.task_count() {
            let Some(known) = self.known_ref(index) else { continue };
            if task.is_some_and(|task| task != known.name) {
                continue;
            }
            let Run::Running { attempt, .. } = known.run else { continue };
            sent = true;
            self.note(index, TaskEventKind::Signaling, format!("Task being sent signal {signal}"));
            *self.generation += 1;
            self.issued.push(Issued {
                part: Part::Task(index, TaskPart::Process),
                generation: *self.generation,
                verb: Verb::Signal { attempt, signal: signal.to_string() },
                timeout: OPERATION_TIMEOUT,
            });
        }
        match (sent, task) {
            (true, _) => Ok(()),
            (false, Some(task)) => Err(format!("task {task} of {name} is not running")),
            (false, None) => Err(format!("no task of {name} is running")),
        }
    }

    /// A driver says something about a task.
    pub fn driver_message(&mut self, task: &str, message: String) {
        if let Some(index) = self.index_of(task) {
            self.note(index, TaskEventKind::Driver, message);
        }
    }

    fn adopt(&mut self) {
        let Some(group) = self.spec.group() else { return };
        let now = self.now;
        let tasks = group.tasks.iter().map(|task| {
            let mut known = TaskState { name: task.name.clone(), ..TaskState::default() };
            known.remember(event(now.wall, TaskEventKind::Received, String::from("Task received by client")));
            known
        });
        let healthy_by = group.update.as_ref().map(|update| Deadline::after(now, update.healthy_deadline));
        let tasks = tasks.collect();
        let durable = &mut *self.state.durable;
        durable.adopted = true;
        durable.tasks = tasks;
        durable.healthy_by = healthy_by;
        durable.description = String::from("No tasks have started");
    }

    fn issue(&mut self, part: Part, doing: Doing, verb: Verb, timeout: Duration) {
        *self.generation += 1;
        let generation = *self.generation;
        self.state.parts.set(part, PartState::Busy { generation, doing, since_ns: self.now.boot_ns });
        self.issued.push(Issued { part, generation, verb, timeout });
    }

    fn part_is_up(&mut self, part: Part) {
        self.state.parts.set(part, PartState::Up);
        if self.state.parts.clear_drifted(part) {
            self.notes.push(Note::DriftRepaired { kind: kind_of(part) });
        }
    }

    fn part_is_absent(&mut self, part: Part, doing: Doing, foreign: Option<String>) {
        self.state.parts.set(part, PartState::Absent);
        if let Doing::Look(Some(by)) = doing {
            self.notes.push(Note::DriftDetected { kind: kind_of(part), by });
            self.state.parts.mark_drifted(part);
        } else if foreign.is_some() {
            self.notes.push(Note::DriftDetected { kind: kind_of(part), by: Noticed::Look });
            self.state.parts.mark_drifted(part);
        }
        // A directory that a task has used is not made anew, empty, under it.
        match part {
            Part::Task(index, TaskPart::Dir) => {
                if self.known_ref(index).is_some_and(|known| known.attempt > 0) {
                    self.doom(index, TaskEventKind::HookFailed, String::from("task directory is gone"));
                }
            }
            Part::Dir => {
                for index in 0..self.task_count() {
                    if self.known_ref(index).is_some_and(|known| known.attempt > 0) {
                        self.doom(
                            index,
                            TaskEventKind::HookFailed,
                            String::from("allocation directory is gone"),
                        );
                    }
                }
            }
            Part::Services
            | Part::Checks
            | Part::Task(
                _,
                TaskPart::Identity
                | TaskPart::Mounts
                | TaskPart::Process
                | TaskPart::Services
                | TaskPart::Checks
                | TaskPart::Prestop,
            ) => {}
        }
    }

    fn part_failed(&mut self, part: Part, doing: Doing, class: FailureClass, why: String) {
        let attempt = self.failures(part).saturating_add(1);
        let delay = retry_delay(attempt, (self.spec.id, part));
        let retry_at_ns = self.now.boot_ns.saturating_add(delay.as_nanos().unsigned_abs());
        self.state.parts.set(part, PartState::Failed { doing, attempt, retry_at_ns, why: why.clone() });
        self.state.parts.count_failure(part, attempt);
        if doing != Doing::Up || class == FailureClass::Retry {
            return;
        }
        match part {
            Part::Dir => {
                for index in 0..self.task_count() {
                    self.doom(index, TaskEventKind::SetupFailure, format!("failed to setup alloc: {why}"));
                }
            }
            Part::Task(index, TaskPart::Dir | TaskPart::Identity | TaskPart::Mounts) => {
                self.doom(index, TaskEventKind::HookFailed, format!("{}: {why}", kind_of(part)));
            }
            Part::Task(index, TaskPart::Prestop) => {
                self.note(index, TaskEventKind::HookMessage, format!("prestop: {why}"));
            }
            // Registrations never fail a task; a process has its own rules.
            Part::Services
            | Part::Checks
            | Part::Task(_, TaskPart::Services | TaskPart::Checks | TaskPart::Process) => {}
        }
    }

    fn failures(&self, part: Part) -> u32 {
        self.state.parts.failures(part)
    }

    fn process_outcome(&mut self, index: TaskIndex, doing: Doing, outcome: Outcome) {
        let part = Part::Task(index, TaskPart::Process);
        let Some(run) = self.known_ref(index).map(|known| known.run.clone()) else { return };
        match outcome {
            Outcome::Done => match (doing, &run) {
                (Doing::Up, Run::Starting { attempt, .. }) => self.started(index, *attempt),
                (Doing::Down, Run::Stopping { .. }) => {
                    // Stopped; how it ended is told by its exit, or by a look if that got lost.
                    self.state.parts.set(part, PartState::Suspect(Noticed::Event));
                }
                (Doing::Down, Run::Waiting | Run::BackingOff { .. } | Run::Dead) => {
                    self.state.parts.set(part, PartState::Absent);
                }
                (Doing::Up | Doing::Down | Doing::Look(_), _) => {
                    self.state.parts.set(part, PartState::Unknown)
                }
            },
            Outcome::Recovered(recovered) => self.recovered(index, &run, recovered),
            Outcome::Failed { class, why } => match (doing, &run) {
                (Doing::Up, Run::Starting { attempt, .. }) => self.start_failed(index, *attempt, class, &why),
                (Doing::Up | Doing::Down | Doing::Look(_), _) => {
                    self.part_failed(part, doing, FailureClass::Retry, why)
                }
            },
            Outcome::Present
            | Outcome::Absent
            | Outcome::Foreign { .. }
            | Outcome::Overdue
            | Outcome::Issued { .. }
            | Outcome::Volume { .. } => self.state.parts.set(part, PartState::Unknown),
        }
    }

    fn recovered(&mut self, index: TaskIndex, run: &Run, recovered: Recovered) {
        let part = Part::Task(index, TaskPart::Process);
        match (recovered, run) {
            (Recovered::NotStarted, Run::Starting { .. }) => self.state.parts.set(part, PartState::Absent),
            (Recovered::NotStarted, Run::Running { attempt, boot } | Run::Stopping { attempt, boot, .. }) => {
                let why = String::from("no trace of the process was found");
                self.lost(index, *attempt, *boot, why);
            }
            (
                Recovered::Lost { why },
                Run::Starting { attempt, boot }
                | Run::Running { attempt, boot }
                | Run::Stopping { attempt, boot, .. },
            ) => {
                self.lost(index, *attempt, *boot, why);
            }
            (Recovered::Running, Run::Starting { attempt, .. }) => self.started(index, *attempt),
            (Recovered::Running, Run::Running { .. } | Run::Stopping { .. }) => {
                self.state.parts.set(part, PartState::Up)
            }
            (Recovered::Running, Run::Waiting | Run::BackingOff { .. } | Run::Dead) => {
                // It should not live: stop it as any other.
                let Some(known) = self.known_ref(index) else { return };
                let (attempt, boot) = (known.attempt, self.now.boot);
                let then = if known.run == Run::Dead { AfterStop::Dead } else { AfterStop::Restart };
                let step = StopStep::Kill { until: Deadline::after(self.now, self.kill_timeout(index)) };
                self.state.parts.set(part, PartState::Up);
                if let Some(known) = self.known(index) {
                    known.run = Run::Stopping { attempt, boot, step, then };
                }
            }
            (
                Recovered::Exited(result),
                Run::Starting { attempt, .. } | Run::Running { attempt, .. } | Run::Stopping { attempt, .. },
            ) => {
                if matches!(run, Run::Starting { .. }) {
                    self.started(index, *attempt);
                }
                self.attempt_ended(index, *attempt, result);
            }
            (
                Recovered::NotStarted | Recovered::Exited(_) | Recovered::Lost { .. },
                Run::Waiting | Run::BackingOff { .. } | Run::Dead,
            ) => self.state.parts.set(part, PartState::Up),
        }
    }

    fn started(&mut self, index: TaskIndex, attempt: u32) {
        self.state.parts.set(Part::Task(index, TaskPart::Process), PartState::Up);
        let (wall, boot) = (self.now.wall, self.now.boot);
        let Some(known) = self.known(index) else { return };
        known.run = Run::Running { attempt, boot };
        known.started_at = wall;
        known.exit = None;
        self.note(index, TaskEventKind::Started, String::from("Task started by client"));
    }

    fn start_failed(&mut self, index: TaskIndex, attempt: u32, class: FailureClass, why: &str) {
        self.state.parts.set(Part::Task(index, TaskPart::Process), PartState::Up);
        self.note(index, TaskEventKind::DriverFailure, why.to_string());
        let ended = match class {
            FailureClass::Retry | FailureClass::Recoverable => Ended::StartFailed,
            FailureClass::Fatal => Ended::StartImpossible,
        };
        let result =
            ExitResult { code: 0, error: why.to_string(), at: self.now.wall, ..ExitResult::default() };
        if let Some(known) = self.known(index) {
            known.exit = Some(result);
        }
        self.after_end(index, attempt, ended, "failed_start");
    }

    /// The attempt is gone without a result. After a reboot that does not count against the restart policy.
    fn lost(&mut self, index: TaskIndex, attempt: u32, boot: crate::time::BootId, why: String) {
        self.state.parts.set(Part::Task(index, TaskPart::Process), PartState::Up);
        let rebooted = boot != self.now.boot;
        let stopping = matches!(self.known_ref(index).map(|known| &known.run), Some(Run::Stopping { .. }));
        if rebooted && !stopping {
            self.note(
                index,
                TaskEventKind::Terminated,
                String::from("Task was lost when the machine restarted"),
            );
            self.restart_at_once(index, "reboot");
            return;
        }
        let result = ExitResult { code: -1, error: why, at: self.now.wall, ..ExitResult::default() };
        self.attempt_ended(index, attempt, result);
    }

    fn attempt_ended(&mut self, index: TaskIndex, attempt: u32, result: ExitResult) {
        if self.known_ref(index).and_then(TaskState::live_attempt) != Some(attempt) {
            return;
        }
        self.state.parts.set(Part::Task(index, TaskPart::Process), PartState::Up);
        self.state.parts.set(Part::Task(index, TaskPart::Prestop), PartState::Absent);
        self.note_with(index, TaskEventKind::Terminated, terminated_message(&result), exit_details(&result));
        if let Some(known) = self.known(index) {
            known.exit = Some(result.clone());
        }
        self.after_end(index, attempt, Ended::Exit(&result), "exit");
    }

    /// The attempt is over: what the task does next.
    fn after_end(&mut self, index: TaskIndex, attempt: u32, ended: Ended<'_>, cause: &'static str) {
        let Some(task) = self.task(index).cloned() else { return };
        let Some(known) = self.known_ref(index) else { return };
        if let Some(doom) = known.doom.clone() {
            self.note(index, TaskEventKind::NotRestarting, doom.message);
            self.die(index, Failed::Yes);
            return;
        }
        let poststop = task.lifecycle == Lifecycle::Poststop;
        match &known.run {
            Run::Stopping { then: AfterStop::Restart, .. } => return self.restart_at_once(index, "request"),
            Run::Stopping { then: AfterStop::Dead, .. } => {
                self.note(index, TaskEventKind::Killed, String::from("Task successfully killed"));
                return self.die(index, Failed::No);
            }
            Run::Starting { .. } | Run::Running { .. } if self.state.durable.stop.is_some() && !poststop => {
                return self.die(index, Failed::No);
            }
            Run::Running { .. } if known.restart_requested => return self.restart_at_once(index, "request"),
            Run::Starting { .. } | Run::Running { .. } => {}
            Run::Waiting | Run::BackingOff { .. } | Run::Dead => return,
        }
        let on_success = restart::restarts_on_success(self.spec.job.kind, task.lifecycle);
        let (now, seed) = (self.now, seed(self.spec, index, attempt));
        let Some(known) = self.known(index) else { return };
        match restart::decide(now, &task.restart, on_success, ended, known, seed) {
            Decision::Restart { delay, reason } => self.back_off(index, delay, &reason, cause),
            Decision::Done => self.die(index, Failed::No),
            Decision::Fail { reason } => {
                self.note(index, TaskEventKind::NotRestarting, reason);
                self.die(index, Failed::Yes);
            }
        }
    }

    fn back_off(&mut self, index: TaskIndex, delay: Duration, reason: &str, cause: &'static str) {
        let prefix = if reason.is_empty() { String::new() } else { format!("{reason} - ") };
        self.note(index, TaskEventKind::Restarting, format!("{prefix}Task restarting in {delay}"));
        let until = Deadline::after(self.now, delay);
        self.count_restart(index, cause);
        if let Some(known) = self.known(index) {
            known.run = Run::BackingOff { until };
        }
    }

    fn restart_at_once(&mut self, index: TaskIndex, cause: &'static str) {
        self.note(index, TaskEventKind::Restarting, String::from("Task restarting in 0s"));
        self.count_restart(index, cause);
        if let Some(known) = self.known(index) {
            known.restart_requested = false;
            known.run = Run::Waiting;
        }
    }

    fn count_restart(&mut self, index: TaskIndex, reason: &'static str) {
        let wall = self.now.wall;
        let Some(known) = self.known(index) else { return };
        known.restarts = known.restarts.saturating_add(1);
        known.last_restart = wall;
        let task = known.name.clone();
        self.notes.push(Note::TaskRestart { job: self.spec.job_key.clone(), task, reason });
    }

    fn die(&mut self, index: TaskIndex, failed: Failed) {
        let wall = self.now.wall;
        let Some(known) = self.known(index) else { return };
        known.run = Run::Dead;
        known.failed = failed == Failed::Yes;
        known.restart_requested = false;
        known.finished_at = wall;
    }

    fn doom(&mut self, index: TaskIndex, kind: TaskEventKind, message: String) {
        let Some(known) = self.known(index) else { return };
        if known.doom.is_some() || known.run == Run::Dead {
            return;
        }
        known.doom = Some(Doom { kind, message: message.clone() });
        self.note(index, kind, message);
    }

    fn change_task(&mut self, index: TaskIndex, change: TaskChange) {
        let now = self.now;
        match change {
            TaskChange::Begin => {
                let policy_window = self.task(index).map(|task| task.restart.interval);
                let Some(known) = self.known(index) else { return };
                known.attempt += 1;
                let attempt = known.attempt;
                known.run = Run::Starting { attempt, boot: now.boot };
                if let (None, Some(interval)) = (known.window, policy_window) {
                    known.window = Some(Deadline::after(now, interval));
                }
                self.state.parts.set(Part::Task(index, TaskPart::Process), PartState::Absent);
                self.state.parts.set(Part::Task(index, TaskPart::Prestop), PartState::Absent);
            }
            TaskChange::Wait => {
                if let Some(known) = self.known(index) {
                    known.run = Run::Waiting;
                }
            }
            TaskChange::Stop { step, then } => self.begin_stop(index, step, then),
            TaskChange::Step(step) => {
                self.note_step(index, &step);
                if let Some(TaskState { run: Run::Stopping { step: current, .. }, .. }) = self.known(index) {
                    *current = step;
                }
            }
            TaskChange::Die => {
                let doomed = self.known_ref(index).is_some_and(|known| known.doom.is_some());
                self.die(index, if doomed { Failed::Yes } else { Failed::No });
            }
            TaskChange::Note(kind, message) => self.note(index, kind, message),
            TaskChange::Renewed => {
                self.state.renew_at_ns.remove(&index);
            }
        }
    }

    fn begin_stop(&mut self, index: TaskIndex, step: StopStep, then: AfterStop) {
        let Some(known) = self.known(index) else { return };
        let (attempt, boot) = match known.run {
            Run::Starting { attempt, boot } | Run::Running { attempt, boot } => (attempt, boot),
            Run::Waiting | Run::BackingOff { .. } | Run::Stopping { .. } | Run::Dead => return,
        };
        known.run = Run::Stopping { attempt, boot, step: step.clone(), then };
        known.restart_requested = false;
        self.note_step(index, &step);
    }

    fn note_step(&mut self, index: TaskIndex, step: &StopStep) {
        match step {
            StopStep::Delay { until } => {
                let message =
                    format!("Waiting for shutdown_delay of {} before killing the task.", until.length);
                self.note(index, TaskEventKind::WaitingShutdownDelay, message);
            }
            StopStep::Prestop { .. } => {
                self.note(index, TaskEventKind::HookMessage, String::from("Running prestop command"));
            }
            StopStep::Kill { until } => {
                let details = BTreeMap::from([(String::from("kill_timeout"), until.length.to_string())]);
                let message = format!("Sent interrupt. Waiting {} before force killing", until.length);
                self.note_with(index, TaskEventKind::Killing, message, details);
            }
        }
    }

    fn restart_one(&mut self, task: &str) -> Result<(), String> {
        let name = self.spec.name();
        let Some(index) = self.index_of(task) else {
            return Err(format!("allocation {name} has no task {task}"));
        };
        if !matches!(self.known_ref(index).map(|known| &known.run), Some(Run::Running { .. })) {
            return Err(format!("task {task} of {name} is not running"));
        }
        self.note(index, TaskEventKind::RestartSignaled, String::from("User requested task to restart"));
        if let Some(known) = self.known(index) {
            known.restart_requested = true;
        }
        Ok(())
    }

    /// The services of a group-wide restart have been down long enough: its tasks are restarted.
    fn restart_tasks(&mut self, restart: &GroupRestart) {
        self.state.durable.restart = None;
        if restart.all {
            self.state.durable.stage = Stage::Init;
        }
        for index in 0..self.task_count() {
            let poststop = self.task(index).is_none_or(|task| task.lifecycle == Lifecycle::Poststop);
            if poststop {
                continue;
            }
            let Some(known) = self.known(index) else { continue };
            match &known.run {
                Run::Running { .. } | Run::Starting { .. } => known.restart_requested = true,
                Run::Dead | Run::BackingOff { .. } if restart.all => {
                    known.run = Run::Waiting;
                    known.failed = false;
                    known.doom = None;
                    known.finished_at = UnixNanos::default();
                }
                Run::Waiting | Run::BackingOff { .. } | Run::Stopping { .. } | Run::Dead => {}
            }
        }
    }

    fn identity_issued(&mut self, part: Part, doing: Doing, renew_in: Option<Duration>) {
        let Part::Task(index, _) = part else { return };
        let renewed = self.state.renew_at_ns.contains_key(&index) && doing == Doing::Up;
        match renew_in {
            Some(renew_in) => {
                let at_ns = self.now.boot_ns.saturating_add(renew_in.as_nanos().unsigned_abs());
                self.state.renew_at_ns.insert(index, at_ns);
            }
            None => {
                self.state.renew_at_ns.remove(&index);
            }
        }
        self.part_is_up(part);
        if renewed {
            self.tokens_changed(index);
        }
    }

    /// Tokens were renewed under a running task: what its identities ask for.
    fn tokens_changed(&mut self, index: TaskIndex) {
        let Some(task) = self.task(index).cloned() else { return };
        if !matches!(self.known_ref(index).map(|known| &known.run), Some(Run::Running { .. })) {
            return;
        }
        let expiring = || task.identities.iter().filter(|identity| identity.ttl.is_some());
        if expiring().any(|identity| identity.change_mode == ChangeMode::Restart) {
            self.note(index, TaskEventKind::RestartSignaled, String::from("Identity token was renewed"));
            if let Some(known) = self.known(index) {
                known.restart_requested = true;
            }
            return;
        }
        let signals: std_alloc::collections::BTreeSet<String> = expiring()
            .filter(|identity| identity.change_mode == ChangeMode::Signal)
            .map(|identity| identity.change_signal.clone().unwrap_or_else(|| String::from("SIGHUP")))
            .collect();
        for signal in signals {
            // A task that ended meanwhile reads the new token when it starts.
            let _ = self.signal(Some(&task.name), &signal);
        }
    }

    fn note_stop(&mut self, reason: &StopReason) {
        let (kind, message, cause) = match reason {
            StopReason::Desired => (None, String::new(), "stop"),
            StopReason::LeaderDead => {
                (Some(TaskEventKind::LeaderDead), String::from("Leader Task in Group dead"), "leader")
            }
            StopReason::SiblingFailed(sibling) => (
                Some(TaskEventKind::SiblingFailed),
                format!("Task's sibling \"{sibling}\" failed"),
                "sibling",
            ),
            StopReason::MainDead => {
                (Some(TaskEventKind::MainDead), String::from("Main tasks in the group died"), "main")
            }
        };
        if let Some(kind) = kind {
            self.note_live_tasks(kind, &message);
        }
        self.notes.push(Note::Disruption { job: self.spec.job_key.clone(), cause });
    }

    fn note_live_tasks(&mut self, kind: TaskEventKind, message: &str) {
        for index in 0..self.task_count() {
            let poststop = self.task(index).is_none_or(|task| task.lifecycle == Lifecycle::Poststop);
            if !poststop && self.known_ref(index).is_some_and(TaskState::status_live) {
                self.note(index, kind, message.to_string());
            }
        }
    }

    fn note(&mut self, index: TaskIndex, kind: TaskEventKind, message: String) {
        self.note_with(index, kind, message, BTreeMap::new());
    }

    fn note_with(
        &mut self,
        index: TaskIndex,
        kind: TaskEventKind,
        message: String,
        details: BTreeMap<String, String>,
    ) {
        let time = self.now.wall;
        if let Some(known) = self.known(index) {
            known.remember(TaskEvent { kind, time, message, details });
        }
    }

    /// Brings the reported status up to date. A terminal status is never taken back.
    fn refresh_status(&mut self) {
        let (status, description) = crate::status::client_status(&self.state.durable.tasks);
        if self.state.durable.status != status && !self.state.durable.status.is_terminal() {
            let durable = &mut *self.state.durable;
            durable.status = status;
            durable.description = String::from(description);
        }
        if self.state.durable.is_touched() {
            self.state.durable.modify_time = self.now.wall;
        }
        let healthy = self.spec.group().is_some_and(|group| health::is_healthy(group, self.state));
        if !healthy {
            self.state.healthy_since_ns = None;
        }
    }

    fn kill_timeout(&self, index: TaskIndex) -> Duration {
        let max = self.settings.max_kill_timeout;
        self.task(index).map_or(max, |task| task.kill_timeout.min(max))
    }

    fn task(&self, index: TaskIndex) -> Option<&Task> {
        self.spec.group()?.tasks.get(usize::from(index))
    }

    fn known(&mut self, index: TaskIndex) -> Option<&mut TaskState> {
        self.state.durable.tasks.get_mut(usize::from(index))
    }

    fn known_ref(&self, index: TaskIndex) -> Option<&TaskState> {
        self.state.durable.tasks.get(usize::from(index))
    }

    fn index_of(&self, task: &str) -> Option<TaskIndex> {
        let at = self.spec.group()?.tasks.iter().position(|known| known.name == task)?;
        TaskIndex::try_from(at).ok()
    }

    fn task_count(&self) -> TaskIndex {
        TaskIndex::try_from(self.state.durable.tasks.len()).unwrap_or(TaskIndex::MAX)
    }
}

/// How a task ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failed {
    Yes,
    No,
}

/// The name of a part in metrics and messages.
pub fn kind_of(part: Part) -> &'static str {
    match part {
        Part::Dir => "alloc_dir",
        Part::Services | Part::Task(_, TaskPart::Services) => "service",
        Part::Checks | Part::Task(_, TaskPart::Checks) => "check",
        Part::Task(_, TaskPart::Dir) => "task_dir",
        Part::Task(_, TaskPart::Identity) => "identity",
        Part::Task(_, TaskPart::Mounts) => "mount",
        Part::Task(_, TaskPart::Process) => "process",
        Part::Task(_, TaskPart::Prestop) => "prestop",
    }
}

fn terminated_message(result: &ExitResult) -> String {
    let mut message = format!("Exit Code: {}", result.code);
    if result.signal != 0 {
        message.push_str(&format!(", Signal: {}", result.signal));
    }
    if !result.error.is_empty() {
        message.push_str(&format!(", Exit Message: \"{}\"", result.error));
    }
    message
}

fn exit_details(result: &ExitResult) -> BTreeMap<String, String> {
    BTreeMap::from([
        (String::from("exit_code"), result.code.to_string()),
        (String::from("signal"), result.signal.to_string()),
        (String::from("oom_killed"), result.oom_killed.to_string()),
        (String::from("exit_message"), result.error.clone()),
    ])
}

fn event(time: UnixNanos, kind: TaskEventKind, message: String) -> TaskEvent {
    TaskEvent { kind, time, message, details: BTreeMap::new() }
}

fn seed(spec: &Allocation, index: TaskIndex, attempt: u32) -> u64 {
    let (high, low) = spec.id.0.as_u64_pair();
    high ^ low.rotate_left(17) ^ (u64::from(index) << 32) ^ u64::from(attempt)
}
