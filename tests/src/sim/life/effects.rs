//! What happens outside of the agent: operations take effect or fail, time passes, checks run.
//!
//! In: operations in flight, and the time. Out: the events that the agent receives in its next turn.

use herdlet_api_types::{
    AllocId,
    service::{CheckResult, CheckStatus},
};
use herdlet_plan::{
    action::{FailureClass, Outcome, Verb},
    event::Event,
    op::{Op, Part, Target, TaskPart},
    parts::Withdraw,
};

use super::{Flight, Life};
use crate::sim::{
    clock::SECOND,
    coverage::Kind,
    jobs::checks_of,
    machine::{Thing, runs_checks},
    probe,
};
impl Life {
    /// Executes everything that is due, and collects the events the agent receives.
    pub(super) fn gather(&mut self) -> Result<(), String> {
        let now_ns = self.now_ns;
        let mut index = 0;
        while index < self.late_starts.len() {
            if self.late_starts[index].effect_at <= now_ns {
                let mut ghost = self.late_starts.swap_remove(index);
                self.trace.note(now_ns, || "a start of the dead agent arrives".to_owned());
                self.effect(&mut ghost)?;
            } else {
                index += 1;
            }
        }
        let mut flights = std::mem::take(&mut self.flights);
        for flight in &mut flights {
            if flight.outcome.is_none() && flight.effect_at <= now_ns {
                self.effect(flight)?;
                // A stop lasts until the process has ended.
                let ends_at = self.machine.ends_at(&flight.action).unwrap_or(0);
                flight.done_at = flight.done_at.max(ends_at);
            }
        }
        self.flights = flights;
        for event in self.machine.pass_time(now_ns) {
            self.trace.event(now_ns, &event);
            self.see_exit(event);
        }
        let mut index = 0;
        while index < self.flights.len() {
            let flight = &mut self.flights[index];
            if flight.overdue_at.is_some_and(|at| at <= now_ns) {
                flight.overdue_at = None;
                self.met.note(Kind::Overdue);
                self.events.push(Event::Outcome(flight.action.op.clone(), Outcome::Overdue));
            }
            if flight.outcome.is_some() && flight.done_at <= now_ns {
                let flight = self.flights.swap_remove(index);
                if let Some(outcome) = flight.outcome {
                    self.trace.outcome(now_ns, &flight.action, &outcome);
                    self.promises.end(&flight.action, &outcome);
                    if self.faults.doubled_one_in > 0 && self.rng.one_in(self.faults.doubled_one_in) {
                        self.met.note(Kind::DoubledOutcome);
                        let again = Event::Outcome(flight.action.op.clone(), outcome.clone());
                        self.event_queue.push((now_ns + self.rng.below(SECOND), again));
                    }
                    self.events.push(Event::Outcome(flight.action.op, outcome));
                }
            } else {
                index += 1;
            }
        }
        let mut index = 0;
        while index < self.event_queue.len() {
            if self.event_queue[index].0 <= now_ns {
                let (_, event) = self.event_queue.swap_remove(index);
                self.events.push(event);
            } else {
                index += 1;
            }
        }
        self.make_checks();
        let due = self.wakes.extract_if(.., |(_, at)| *at <= now_ns);
        self.dirty.extend(due.map(|(key, _)| key));
        Ok(())
    }

    /// Executes the operation, or makes it fail.
    pub(super) fn effect(&mut self, flight: &mut Flight) -> Result<(), String> {
        self.steps += 1;
        let faulty = self.faults.failing_one_in > 0 && self.rng.one_in(self.faults.failing_one_in);
        if faulty && self.machine.may_fail(&flight.action) {
            self.met.note(Kind::Failure);
            if let (Verb::Up, Target::Alloc(_, part)) = (&flight.action.verb, &flight.action.op.target)
                && part.row().withdraw == Withdraw::WhileStarting
            {
                self.met.note(Kind::FailedDownload);
            }
            let class = match self.rng.below(8) {
                0 => FailureClass::Fatal,
                1 => FailureClass::Recoverable,
                _ => FailureClass::Retry,
            };
            flight.outcome = Some(Outcome::Failed { class, why: "the rng said so".to_owned() });
            return Ok(());
        }
        if let Some(outcome) = self.without_driver(&flight.action) {
            flight.outcome = Some(outcome);
            return Ok(());
        }
        if flight.action.verb == Verb::Up
            && let Target::Alloc(_, part) = flight.action.op.target
            && self.has_no_room(part)
        {
            let why = "no space left on device".to_owned();
            flight.outcome = Some(Outcome::Failed { class: FailureClass::Retry, why });
            return Ok(());
        }
        if self.machine.renews(&flight.action) {
            self.met.note(Kind::TokenRenewal);
        }
        if self.machine.rebuilds(&flight.action) {
            self.met.note(Kind::RebuiltNetwork);
        }
        if matches!(&flight.action.verb, Verb::Signal { signal, .. } if *signal == probe::SIGNAL) {
            self.met.note(Kind::ChangedProbe);
        }
        let outcome = self.machine.perform(self.now(), &flight.action)?;
        if matches!(outcome, Outcome::Pending { .. }) {
            self.met.note(Kind::PendingPart);
        }
        if matches!(outcome, Outcome::Outdated { .. }) {
            self.met.note(Kind::OutdatedPart);
        }
        if matches!(flight.action.verb, Verb::Script { .. }) {
            self.met.note(Kind::TemplateScript);
        }
        let lost = self.faults.lost_one_in > 0 && self.rng.one_in(self.faults.lost_one_in);
        flight.outcome = Some(match flight.action.verb {
            Verb::Up | Verb::Down | Verb::Stop { .. } | Verb::Destroy { .. } | Verb::Prestop { .. }
                if lost =>
            {
                self.met.note(Kind::LostOutcome);
                let why = "its end was not recorded".to_owned();
                Outcome::Failed { class: FailureClass::Retry, why }
            }
            Verb::Up
            | Verb::Down
            | Verb::Stop { .. }
            | Verb::Destroy { .. }
            | Verb::Prestop { .. }
            | Verb::Inspect
            | Verb::Ask
            | Verb::Start { .. }
            | Verb::Withdraw
            | Verb::Recover { .. }
            | Verb::Script { .. }
            | Verb::Signal { .. } => outcome,
        });
        if let Op { target: Target::Alloc(id, part), .. } = flight.action.op
            && runs_checks(part)
            && flight.action.verb == Verb::Up
        {
            self.checks.insert(id, (self.now_ns + SECOND, None));
        }
        Ok(())
    }

    /// Runs the checks that are due; reports only changes. During faults some fail.
    fn make_checks(&mut self) {
        let now_ns = self.now_ns;
        let due: Vec<AllocId> =
            self.checks.iter().filter(|(_, (at, _))| *at <= now_ns).map(|(id, _)| *id).collect();
        for id in due {
            let hard = self.faults.failing_one_in > 0;
            let status = match hard {
                true if self.rng.one_in(3) => CheckStatus::Failure,
                true if self.rng.one_in(6) => CheckStatus::Warning,
                true | false => CheckStatus::Success,
            };
            if status == CheckStatus::Failure {
                self.met.note(Kind::FailingCheck);
            }
            let was = self.checks.get(&id).and_then(|(_, was)| *was);
            let next = if hard { now_ns + SECOND } else { u64::MAX };
            self.checks.insert(id, (next, Some(status)));
            let Some((spec, _)) = self.world.allocation(id) else {
                self.checks.remove(&id);
                continue;
            };
            let Some(group) = spec.group().filter(|_| was != Some(status)) else { continue };
            let tasks = (0..).zip(&group.tasks).map(|(index, _)| Part::Task(index, TaskPart::Checks));
            for part in tasks.chain([Part::Checks]) {
                if !self.machine.things.contains(&Thing::Part(id, part)) {
                    continue;
                }
                let made = checks_of(spec, part).into_iter().map(|pending| CheckResult { status, ..pending });
                self.events.extend(made.map(|result| Event::Check { alloc: id, result }));
            }
        }
    }
}
