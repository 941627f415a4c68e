//! One turn of a simulation: due effects happen, the agent receives events and plans, and its decisions are committed and
//! released.
//!
//! In: the current state. Out: the next state, or a violation.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use herdlet_api_types::{
    AllocId, JobKey,
    job::Job,
    service::{CheckResult, CheckStatus},
    view::{AllocView, Reason},
};
use herdlet_plan::{
    action::{Action, FailureClass, Outcome, Verb},
    event::{Command, Event, Reply},
    op::{Op, Part, Target, TaskPart},
    parts::{Medium, Withdraw},
    record::{Record, RecordKey, RecordValue},
    state::Durable,
    time::BootId,
    turn::{Note, Turn, View},
};

use super::{Flight, Life, SECOND};
use crate::sim::{coverage::Kind, deployments, jobs::checks_of, machine::Thing, probe};

/// When an operation is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Release {
    /// Its decision has just become durable.
    Committed,
    /// Its decision is durable, but was made long ago: others were made since.
    Late,
    /// It is a stop, and its commit takes too long.
    Ahead,
}

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
            self.post(event);
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

    /// Runs one turn of the agent, with its commit.
    pub(super) fn turn(&mut self) -> Result<(), String> {
        let now = self.now();
        self.launches.see_clock(now.wall);
        let mut turn = std::mem::take(&mut self.turn);
        self.idle_turns = if self.events.is_empty() { self.idle_turns + 1 } else { 0 };
        for event in self.events.drain(..) {
            self.steps += 1;
            self.world.apply(now, event, &mut self.dirty, &mut turn);
        }
        // As in the agent's runtime, a key is planned once per turn, and again in the next if necessary.
        self.planned.clear();
        let mut again = BTreeSet::new();
        while let Some(key) = self.dirty.pop_first() {
            if self.planned.contains(&key) {
                again.insert(key);
                continue;
            }
            self.wakes.retain(|(of, _)| *of != key);
            self.world.reconcile(now, &key, &mut self.dirty, &mut turn);
            for (key, at) in turn.wakes.drain(..) {
                if at <= now.boot_ns {
                    return Err(format!("{key:?} schedules a wake in the past"));
                }
                self.wakes.push((key, at));
            }
            self.planned.push(key);
        }
        if self.idle_turns > 50 && !again.is_empty() {
            return Err(format!("{again:?} are planned again and again"));
        }
        self.dirty = again;
        self.commit(turn)
    }

    fn commit(&mut self, turn: Turn) -> Result<(), String> {
        if self.faults.crash_one_in > 0
            && !turn.records.is_empty()
            && self.rng.one_in(self.faults.crash_one_in)
        {
            // Killed before the commit: the turn leaves no trace.
            self.met.note(Kind::CrashAtCommit);
            return self.crash();
        }
        if self.must_wait(&turn) {
            self.hold(turn);
            return Ok(());
        }
        self.store(turn, Release::Committed)
    }

    /// Makes the turn's records durable and releases its decisions.
    pub(super) fn store(&mut self, mut turn: Turn, release: Release) -> Result<(), String> {
        self.write(&mut turn);
        if !turn.views.is_empty() {
            for view in turn.views.drain(..) {
                self.show(view)?;
            }
            self.rollouts.end_turn(&self.jobs, &self.allocs)?;
            self.rooms.end_turn(&self.jobs, &self.allocs, &self.machine.forgotten)?;
        }
        for (request, reply) in turn.replies.drain(..) {
            self.answer(request, &reply)?;
        }
        for kind in self.launches.end_turn(&self.jobs, &self.allocs)? {
            self.met.note(kind);
        }
        for action in turn.actions.drain(..) {
            self.release(action, release)?;
        }
        let by_check = |note: &&Note| matches!(note, Note::TaskRestart { reason: "check", .. });
        for _ in turn.notes.iter().filter(by_check) {
            self.met.note(Kind::CheckRestart);
        }
        turn.notes.clear();
        self.turn = turn;
        Ok(())
    }

    /// Makes the turn's records durable.
    pub(super) fn write(&mut self, turn: &mut Turn) {
        self.commits += u64::from(!turn.records.is_empty());
        for record in turn.records.drain(..) {
            match record {
                Record::Put(key, value) => {
                    if let Some(journal) = &mut self.journal {
                        journal.push(value.clone());
                    }
                    self.stored.insert(key, value)
                }
                Record::Delete(key) => self.stored.remove(&key),
            };
        }
    }

    /// Starts an operation.
    pub(super) fn release(&mut self, action: Action, release: Release) -> Result<(), String> {
        self.trace.action(self.now_ns, &action);
        let known = match (release, &action.op.target) {
            (Release::Ahead, Target::Alloc(id, _)) => {
                self.world.allocation(*id).map(|(_, state)| &*state.durable)
            }
            (Release::Committed | Release::Late | Release::Ahead, _) => durable(&self.stored, &action.op),
        };
        let passed = |since| self.clock.since(since, self.now_ns);
        match release {
            Release::Committed | Release::Ahead => {
                self.may_start_by_driver(&action)?;
                self.promises.release(&action, known, &self.machine, &passed)?;
            }
            Release::Late => {
                self.promises.release_late(&action, known, BootId(self.machine.boot))?;
            }
        }
        if action.verb == Verb::Withdraw {
            self.withdraw(&action.op);
            return Ok(());
        }
        // A signal may run concurrently with another operation on its process.
        let occupies = |action: &Action| !matches!(action.verb, Verb::Signal { .. });
        let mut others = self.flights.iter().filter(|flight| occupies(&flight.action));
        if occupies(&action) && others.any(|flight| flight.action.op.target == action.op.target) {
            return Err(format!("two concurrent operations on {:?}", action.op.target));
        }
        let slow = self.faults.slow_one_in > 0 && self.rng.one_in(self.faults.slow_one_in);
        if slow {
            self.met.note(Kind::SlowOperation);
        }
        let latency = if slow { 40 * SECOND } else { 1_000_000 };
        let effect_at = self.now_ns + 1 + self.rng.below(latency);
        let done_at = effect_at + self.rng.below(latency / 2);
        let overdue_at = self.now_ns + action.timeout.as_nanos().unsigned_abs();
        let overdue_at = (overdue_at < done_at).then_some(overdue_at);
        self.flights.push(Flight { action, effect_at, done_at, overdue_at, outcome: None });
        Ok(())
    }

    /// Withdraws a waiting start in some cases; a start that is in progress continues.
    fn withdraw(&mut self, start: &Op) {
        let now_ns = self.now_ns;
        let waits = |flight: &&mut Flight| flight.action.op == *start && flight.outcome.is_none();
        if let Some(flight) = self.flights.iter_mut().find(waits)
            && self.rng.one_in(2)
        {
            self.met.note(Kind::WithdrawnStart);
            let why = "it was taken back".to_owned();
            flight.outcome = Some(Outcome::Failed { class: FailureClass::Retry, why });
            flight.done_at = now_ns + 1;
        }
    }

    fn show(&mut self, view: View) -> Result<(), String> {
        match view {
            View::Alloc(view) => {
                self.promises.show(&view)?;
                self.may_have_lost(&view)?;
                let passed = |since| self.clock.since(since, self.now_ns);
                self.rollouts.show(self.allocs.get(&view.spec.id), &view, &passed)?;
                if let Some(was) = self.allocs.get(&view.spec.id) {
                    if was.spec.job_version != view.spec.job_version {
                        self.met.note(Kind::InPlace);
                    }
                    if was.spec.desired_description != view.spec.desired_description
                        && view.spec.desired_description.contains("rescheduled")
                    {
                        self.met.note(Kind::Reschedule);
                    }
                }
                self.trace.alloc(self.now_ns, &view);
                if view.spec.deployment.is_some_and(|part| part.canary) {
                    self.met.note(Kind::Canary);
                    self.machine.canaries.insert(view.spec.id);
                } else if self.machine.canaries.contains(&view.spec.id) {
                    self.machine.promoted.insert(view.spec.id);
                }
                self.allocs.insert(view.spec.id, view);
            }
            View::AllocGone(id) => {
                self.promises.forget(id);
                self.trace.alloc_gone(self.now_ns, id);
                self.allocs.remove(&id);
            }
            View::Job(view) => {
                self.job_views += 1;
                for (reason, kind) in [
                    (Reason::Port, Kind::PortTaken),
                    (Reason::Capacity, Kind::Crowded),
                    (Reason::Constraint, Kind::Unfit),
                ] {
                    if view.convergence.reason == Some(reason) {
                        self.met.note(kind);
                    }
                }
                self.trace.job(self.now_ns, &view);
                let was = self.jobs.insert(view.key.clone(), Arc::clone(&view));
                deployments::show(was.as_deref(), &view)?;
                let is_newer = was.as_ref().is_none_or(|was| was.version < view.version);
                if is_newer && deployments::went_back(&view).is_some() {
                    // The revert was not requested, and is the desired state from now on.
                    self.met.note(Kind::AutoRevert);
                    if let Some(wanted) = self.wanted.get_mut(&*view.key.id) {
                        *wanted = Job::clone(&view.job);
                    }
                }
                match was {
                    Some(was) => self.rollouts.show_job(was),
                    // The child was not requested by name, and is desired from now on.
                    None if self.launches.show_new(&view) => {
                        self.wanted.insert(view.key.id.to_string(), Job::clone(&view.job));
                    }
                    None => {}
                }
            }
            View::JobGone(key) => {
                self.trace.note(self.now_ns, || format!("job {} is forgotten", key.id));
                self.launches.forget(&key);
                self.jobs.remove(&key);
            }
            View::Volume(_) | View::VolumeGone(_) | View::Node(_) => {}
        }
        Ok(())
    }

    /// A directory may be reported as gone only if it existed, as far as the agent can know.
    fn may_have_lost(&self, view: &AllocView) -> Result<(), String> {
        let id = view.spec.id;
        let mut events = view.tasks.iter().flat_map(|task| task.events.iter());
        match events.find(|event| event.message.ends_with("directory is gone")) {
            Some(event) if !self.machine.robbed.contains(&id) && !self.machine.forgotten.contains(&id) => {
                Err(format!("{} wrongly reports that its {}", view.spec.name(), event.message))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn answer(&mut self, request: u64, reply: &Reply) -> Result<(), String> {
        self.trace.reply(self.now_ns, reply);
        let Some(command) = self.asked.remove(&request) else { return Ok(()) };
        if matches!(reply, Reply::Refused(_)) {
            return Ok(());
        }
        self.accepted(command, reply)
    }

    fn accepted(&mut self, command: Command, reply: &Reply) -> Result<(), String> {
        match command {
            Command::Apply { jobs, .. } => {
                if jobs.iter().any(|job| self.wanted.contains_key(&job.id)) {
                    self.met.note(Kind::Update);
                }
                jobs.iter().for_each(|job| self.launches.apply(job));
                self.wanted.extend(jobs.into_iter().map(|job| (job.id.clone(), job)));
            }
            Command::ApplyFolder { .. } => return Err("folders are not simulated".to_owned()),
            Command::Stop { job } => self.is_decided(&job, Kind::StopJob),
            Command::Start { job } => self.is_decided(&job, Kind::StartJob),
            Command::Delete { job } | Command::DeleteVersion { job, .. } => {
                self.met.note(Kind::Delete);
                self.wanted.remove(&*job.id);
            }
            Command::Register { job, .. } => self.is_wanted_now(&job.key()),
            Command::Scale { job, .. } => self.is_decided(&job, Kind::Scale),
            Command::Dispatch { job, dispatch } => {
                self.dispatched(&job, &dispatch.idempotency_token, reply)?;
            }
            Command::ForceLaunch { job } => {
                let Reply::Dispatched { job: child, .. } = reply else {
                    return Err(format!("a launch of {} is answered with {reply:?}", job.id));
                };
                self.launches.force(child.clone());
            }
            Command::Revert { job, .. } => self.is_decided(&job, Kind::Revert),
            Command::PromoteDeployment { .. } => self.met.note(Kind::Promote),
            Command::FailDeployment { .. } => self.met.note(Kind::FailDeployment),
            Command::SetAllocHealth { .. } => self.met.note(Kind::Judge),
            Command::DeleteVolume { .. } => self.met.note(Kind::VolumeDelete),
            Command::StopAlloc { .. } => self.met.note(Kind::Stop),
            Command::StopFast { stop, skips } => {
                self.accepted(*stop, reply)?;
                for skip in skips {
                    self.accepted(skip, reply)?;
                }
            }
            Command::SkipShutdownDelay { .. } => self.met.note(Kind::SkipDelay),
            Command::EndPoststop { .. } => self.met.note(Kind::EndPoststop),
            Command::Collect { .. } => self.collected(reply)?,
            Command::Restart { .. } => self.met.note(Kind::Restart),
            Command::Drain { drain: Some(_), .. } => self.met.note(Kind::Drain),
            Command::PauseDeployment { paused: true, .. } => self.met.note(Kind::Pause),
            Command::SetEligibility { .. }
            | Command::Drain { drain: None, .. }
            | Command::PauseDeployment { paused: false, .. }
            | Command::TagVersion { .. }
            | Command::UntagVersion { .. }
            | Command::Signal { .. }
            | Command::Explain { .. } => {}
        }
        Ok(())
    }

    /// A collected job is no longer desired. Jobs and allocations that run, or will run, must not be collected.
    fn collected(&mut self, reply: &Reply) -> Result<(), String> {
        let Reply::Collected { jobs, allocs, .. } = reply else {
            return Err(format!("a collection is answered with {reply:?}"));
        };
        for key in jobs {
            self.met.note(Kind::CollectJob);
            let wanted = self.wanted.remove(&*key.id);
            if wanted.is_some_and(|job| !job.ends()) {
                return Err(format!("{key} was collected before its end"));
            }
        }
        for id in allocs {
            self.met.note(Kind::CollectAlloc);
            if let Some(((_, index, attempt), _)) = self.machine.live().find(|((of, ..), _)| of == id)
                && self.allocs.get(id).is_some_and(|view| !view.status.is_terminal())
            {
                let name = self.trace.name_of(*id);
                return Err(format!("{name} was collected while attempt {attempt} of task {index} runs"));
            }
        }
        Ok(())
    }

    /// A job was dispatched: the child is desired from now on, and there is one child per token.
    fn dispatched(&mut self, parent: &JobKey, token: &str, reply: &Reply) -> Result<(), String> {
        let Reply::Dispatched { job: child, .. } = reply else {
            return Err(format!("a dispatch is answered with {reply:?}"));
        };
        if self.wanted.contains_key(&*child.id) {
            self.met.note(Kind::DispatchAgain);
            return if token.is_empty() { Err(format!("{} is dispatched twice", child.id)) } else { Ok(()) };
        }
        self.met.note(Kind::Dispatch);
        let twin = self.wanted.values().find(|job| {
            job.parent_id() == Some(&*parent.id) && job.dispatched().is_some_and(|(_, of)| of == token)
        });
        if let Some(twin) = twin.filter(|_| !token.is_empty()) {
            return Err(format!("the token {token} has created {} and {}", twin.id, child.id));
        }
        // A child that was deleted within the turn that created it is not published.
        if let Some(view) = self.jobs.get(child) {
            self.wanted.insert(child.id.to_string(), Job::clone(&view.job));
        }
        Ok(())
    }

    /// A user changed a job: its published state is now the desired one.
    fn is_decided(&mut self, job: &JobKey, kind: Kind) {
        self.met.note(kind);
        self.is_wanted_now(job);
    }

    /// The published state of the job becomes the desired one.
    fn is_wanted_now(&mut self, job: &JobKey) {
        if let Some(view) = self.jobs.get(job) {
            self.wanted.insert(job.id.to_string(), Job::clone(&view.job));
        }
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
        if matches!(&flight.action.verb, Verb::Signal { signal, .. } if *signal == probe::SIGNAL) {
            self.met.note(Kind::ChangedProbe);
        }
        let outcome = self.machine.perform(self.now(), &flight.action)?;
        if matches!(outcome, Outcome::Pending { .. }) {
            self.met.note(Kind::PendingPart);
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
            | Verb::Signal { .. } => outcome,
        });
        if let Op { target: Target::Alloc(id, part), .. } = flight.action.op
            && part.row().medium == Medium::Agent
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

fn durable<'a>(stored: &'a BTreeMap<RecordKey, RecordValue>, op: &Op) -> Option<&'a Durable> {
    let Target::Alloc(id, _) = &op.target else { return None };
    match stored.get(&RecordKey::AllocState(*id)) {
        Some(RecordValue::AllocState(durable)) => Some(durable),
        Some(_) | None => None,
    }
}
