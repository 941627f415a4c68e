//! One turn of a simulation: the agent receives events and plans, and its decisions are committed and released.
//!
//! In: the current state, with the events that [`super::effects`] has gathered. Out: the next state, or a violation.

use std::collections::{BTreeMap, BTreeSet};

use herdlet_plan::{
    action::{Action, FailureClass, Outcome, Verb},
    op::{Op, Target},
    record::{Record, RecordKey, RecordValue},
    state::Durable,
    time::BootId,
    turn::{Note, Turn},
};

use super::{Flight, Life};
use crate::sim::{clock::SECOND, coverage::Kind};

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
        let turns = self.restart_turns();
        self.write(&mut turn);
        if !turn.views.is_empty() {
            for view in turn.views.drain(..) {
                self.show(view)?;
            }
            self.rollouts.end_turn(&self.jobs, &self.allocs)?;
            self.rooms.end_turn(&self.jobs, &self.allocs, &self.machine.forgotten)?;
            self.check_restart_turns(&turns)?;
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
        for note in turn.notes.drain(..) {
            let Note::TaskRestart { reason, .. } = note else { continue };
            match reason {
                "check" => self.met.note(Kind::CheckRestart),
                "plugin" => self.met.note(Kind::PluginRestart),
                _ => {}
            }
        }
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
        // A signal or a script may run concurrently with another operation on its process.
        let occupies = |action: &Action| !matches!(action.verb, Verb::Signal { .. } | Verb::Script { .. });
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
}

fn durable<'a>(stored: &'a BTreeMap<RecordKey, RecordValue>, op: &Op) -> Option<&'a Durable> {
    let Target::Alloc(id, _) = &op.target else { return None };
    match stored.get(&RecordKey::AllocState(*id)) {
        Some(RecordValue::AllocState(durable)) => Some(durable),
        Some(_) | None => None,
    }
}
