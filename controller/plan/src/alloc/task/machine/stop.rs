//! The stop of a task: why it stops, its steps, and its turn in the stop order.
//!
//! In: a pass and the task's state. Out: the next step of the stop, or the wait for it.

use herdlet_api_types::{
    Duration,
    job::{Lifecycle, Task},
};

use super::TaskTurn;
use crate::{
    action::Verb,
    alloc::task::lifecycle,
    limits::{PRESTOP_REPORT, STOP_MARGIN},
    op::TaskPart,
    pass::Pass,
    plan::{TaskChange, Waiting},
    state::{AfterStop, Doing, PartState, StopStep},
    time::Deadline,
};

impl TaskTurn<'_> {
    pub(super) fn plan_stopping(self, pass: &mut Pass<'_>, attempt: u32, step: &StopStep) {
        self.withdraw(pass);
        match step {
            StopStep::Delay { until } => {
                self.watch(pass, attempt);
                if pass.state.durable.no_shutdown_delay || pass.passed(until) {
                    if !self.is_next_to_stop(pass) {
                        return pass.wait(Waiting::StopOrder(self.index));
                    }
                    let next = step_after_delay(pass, self.task);
                    pass.change(self.index, TaskChange::Step(next));
                } else {
                    pass.wait(Waiting::Delay(Some(self.index), *until));
                }
            }
            StopStep::Prestop { until } => {
                self.watch(pass, attempt);
                let part = self.part(TaskPart::Prestop);
                let mut end = *until;
                let is_due = match pass.state.parts.get(part) {
                    PartState::Up => {
                        let next = kill_step(pass, self.task);
                        return pass.change(self.index, TaskChange::Step(next));
                    }
                    PartState::Unknown | PartState::Suspect(_) | PartState::Absent => true,
                    PartState::Busy { .. } => {
                        end = until.extended(PRESTOP_REPORT);
                        false
                    }
                    // The machine lacked something: the command did not run.
                    PartState::Failed { retry_at_ns: due_ns, .. }
                    | PartState::Pending { ask_at_ns: due_ns, .. } => {
                        let due_ns = *due_ns;
                        pass.due(due_ns)
                    }
                };
                if pass.passed(&end) {
                    let next = kill_step(pass, self.task);
                    return pass.change(self.index, TaskChange::Step(next));
                }
                // A driver executes nothing in an attempt that it has not recovered yet.
                if is_due && self.is_followed(pass) {
                    let timeout = until.extended(PRESTOP_REPORT).remaining(pass.now);
                    pass.issue(part, Doing::Up, Verb::Prestop { attempt }, timeout);
                }
                pass.wait(Waiting::Part(part));
            }
            StopStep::Kill { until } => self.kill(pass, attempt, until),
        }
    }

    /// Whether the running process is to be stopped now, and what follows.
    pub(super) fn stop_reason(self, pass: &mut Pass<'_>) -> Option<AfterStop> {
        if self.known.permanent_failure.is_some() {
            return Some(AfterStop::Dead);
        }
        if let Some(stop) = &pass.state.durable.stop
            && self.task.lifecycle != Lifecycle::Poststop
        {
            let delay = stop.delay;
            if !pass.state.durable.no_shutdown_delay && !pass.passed(&delay) {
                pass.wait(Waiting::Delay(None, delay));
                return None;
            }
            if !self.is_next_to_stop(pass) {
                pass.wait(Waiting::StopOrder(self.index));
                return None;
            }
            return Some(AfterStop::Dead);
        }
        if !self.known.restart_requested {
            return None;
        }
        if !self.is_next_to_stop(pass) {
            pass.wait(Waiting::StopOrder(self.index));
            return None;
        }
        Some(if self.known.unhealthy { AfterStop::RestartUnhealthy } else { AfterStop::Restart })
    }

    /// Whether all tasks before it in the stop order have ended; if only some tasks restart, only those count.
    fn is_next_to_stop(self, pass: &Pass<'_>) -> bool {
        let may_stop = if self.known.permanent_failure.is_some() || self.task.lifecycle == Lifecycle::Poststop
        {
            return true;
        } else if pass.state.durable.stop.is_some() {
            lifecycle::may_stop
        } else {
            lifecycle::may_restart
        };
        may_stop(usize::from(self.index), &pass.group.tasks, &pass.state.durable.tasks)
    }

    /// Asks the process to end, then inspects what became of it.
    fn kill(self, pass: &mut Pass<'_>, attempt: u32, until: &Deadline) {
        let part = self.part(TaskPart::Process);
        let grace = until.remaining(pass.now);
        let stop = Verb::Stop { attempt, signal: self.task.kill_signal.clone(), grace };
        let timeout = Duration(grace.as_nanos().saturating_add(STOP_MARGIN.as_nanos()));
        match pass.state.parts.get(part) {
            PartState::Busy { .. } => {}
            // A stop is done without an observed exit: the inspection shows how it ended.
            PartState::Suspect(noticed) => {
                let noticed = *noticed;
                self.recover(pass, attempt, Some(noticed));
            }
            PartState::Up | PartState::Unknown | PartState::Absent | PartState::Pending { .. } => {
                pass.issue(part, Doing::Down, stop, timeout)
            }
            PartState::Failed { doing, retry_at_ns, .. } => {
                let (doing, retry_at_ns) = (*doing, *retry_at_ns);
                if pass.due(retry_at_ns) {
                    match doing {
                        Doing::Inspect(_) => self.recover(pass, attempt, None),
                        Doing::Up | Doing::Renew | Doing::Down => {
                            pass.issue(part, Doing::Down, stop, timeout)
                        }
                    }
                }
            }
        }
        // A driver that has answered with an error may not have sent the signal.
        pass.wait(match pass.state.parts.get(part) {
            PartState::Failed { .. } => Waiting::Part(part),
            PartState::Busy { .. }
            | PartState::Suspect(_)
            | PartState::Up
            | PartState::Unknown
            | PartState::Absent
            | PartState::Pending { .. } => Waiting::Exit(self.index, *until),
        });
        if let Some(why) = pass.ctx.away.get(&self.task.driver) {
            pass.wait(Waiting::Stale(self.index, why.clone()));
        }
    }
}

/// The first step of a stop. A `shutdown_delay` applies unless a request waived it, also if the task starts again, as
/// in Nomad from 2.0 on. Earlier clients kill a restarting task at once.
pub(super) fn first_stop_step(pass: &Pass<'_>, task: &Task) -> StopStep {
    if task.shutdown_delay > Duration::ZERO && !pass.state.durable.no_shutdown_delay {
        return StopStep::Delay { until: Deadline::after(pass.now, task.shutdown_delay) };
    }
    step_after_delay(pass, task)
}

fn step_after_delay(pass: &Pass<'_>, task: &Task) -> StopStep {
    match &task.prestop {
        Some(prestop) => StopStep::Prestop { until: Deadline::after(pass.now, prestop.timeout) },
        None => kill_step(pass, task),
    }
}

pub(super) fn kill_step(pass: &Pass<'_>, task: &Task) -> StopStep {
    StopStep::Kill {
        until: Deadline::after(pass.now, task.kill_timeout.min(pass.ctx.settings.max_kill_timeout)),
    }
}
