//! The ends of operations on a task's process: what a start, a stop or an inspection reports.
//!
//! In: an operation's outcome. Out: the new state of the task and its process.

use std_alloc::string::String;

use crate::{
    action::{FailureClass, Outcome, Recovered, Started},
    alloc::apply::{Writer, mark_for_inspection},
    launch::Launch,
    op::{Part, TaskIndex, TaskPart},
    parts::Need,
    state::{AfterStop, Doing, FinishedOperation, Noticed, PartState, Run, StopStep, TaskState},
};

impl Writer<'_> {
    pub(in crate::alloc::apply) fn process_outcome(
        &mut self,
        index: TaskIndex,
        ended: FinishedOperation,
        outcome: Outcome,
    ) {
        let part = Part::Task(index, TaskPart::Process);
        let Some(run) = self.known(index).map(|known| known.run.clone()) else { return };
        let doing = match ended {
            // The attempt ended while it ran: what is left of it is to be removed.
            FinishedOperation::Overtaken => return self.state.parts.set_part(part, PartState::Up),
            FinishedOperation::Fresh(doing) => doing,
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

    fn recovered(&mut self, index: TaskIndex, run: &Run, recovered: Recovered) {
        let part = Part::Task(index, TaskPart::Process);
        if *run == Run::Waiting && self.state.maybe_begun.contains(&index) {
            return self.first_recovered(index, recovered);
        }
        match (run, recovered) {
            // It will start with the current facts.
            (Run::Starting { boot, .. }, Recovered::NotStarted) if *boot == self.now.boot => {
                self.state.parts.set_part(part, PartState::Absent);
                if let Some(known) = self.known_mut(index) {
                    known.clear_owed();
                }
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

    /// The process runs. If it may have drifted since the operation began that showed that, it is inspected again.
    fn process_lives(&mut self, index: TaskIndex) {
        let part = Part::Task(index, TaskPart::Process);
        let noticed = self.state.parts.take_drift_note(part);
        self.state.parts.set_part(part, noticed.map_or(PartState::Up, PartState::Suspect));
    }
}
