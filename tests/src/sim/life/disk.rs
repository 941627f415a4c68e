//! Full disks, and damaged records.
//!
//! In: how long nothing can be stored, what is damaged. Out: turns that wait for their commit, with their stops released
//! ahead of it as in the agent's committer; records rebuilt as in the agent.

use herdlet_api_types::{AllocId, job::Task};
use herdlet_plan::{
    event::Event,
    op::{Part, Target},
    parts::Medium,
    record::{RecordKey, RecordValue},
    state::Durable,
    turn::Turn,
};

use super::{Life, turn::Release};
use crate::sim::{clock::SECOND, coverage::Kind, machine::AttemptKey};

/// A turn that could not be stored.
#[derive(Debug)]
pub(super) struct Held {
    since: u64,
    turn: Turn,
    /// Whether its stops were released, or it has none.
    stopped: bool,
}

/// How long stops wait for their commit.
const STOP_GRACE: u64 = SECOND;

/// The largest change of the clock.
const JUMP_MAX: u64 = 2 * 86_400 * SECOND;

impl Life {
    /// Makes the disk full for this long.
    pub fn disk_full(&mut self, seconds: u64) {
        self.trace.note(self.now_ns, || format!("the disk is full for {seconds}s"));
        self.met.note(Kind::DiskFull);
        self.full_until = self.now_ns + seconds * SECOND;
    }

    /// Whether the disk is full, so that requests don't reach the planner.
    pub(in crate::sim) fn is_full(&self) -> bool {
        self.now_ns < self.full_until
    }

    /// Whether an operation fails because the disk is full.
    pub(super) fn has_no_room(&mut self, part: Part) -> bool {
        let makes_files = part.row().medium == Medium::Files;
        self.is_full() && makes_files && self.rng.one_in(2)
    }

    /// Holds a turn until it can be stored.
    pub(super) fn hold(&mut self, turn: Turn) {
        turn.actions.iter().for_each(|action| self.promises.hold(action));
        let stopped = !turn.actions.iter().any(|action| action.is_stop());
        self.held.push(Held { since: self.now_ns, turn, stopped });
    }

    /// Whether a turn has to wait: it must not overtake waiting turns.
    pub(super) fn must_wait(&self, turn: &Turn) -> bool {
        let is_empty = turn.actions.is_empty() && turn.views.is_empty() && turn.replies.is_empty();
        self.is_full() && !(turn.records.is_empty() && (is_empty || self.held.is_empty()))
    }

    /// Stores the waiting turns once there is room; until then releases stops that have waited long enough.
    pub(super) fn try_disk(&mut self) -> Result<(), String> {
        if self.held.is_empty() {
            return Ok(());
        }
        if !self.is_full() {
            // All turns in one commit, then released in order.
            let mut held = std::mem::take(&mut self.held);
            held.iter_mut().for_each(|held| self.write(&mut held.turn));
            for held in held {
                self.store(held.turn, Release::Late)?;
            }
            return Ok(());
        }
        let mut stops = Vec::new();
        for held in &mut self.held {
            if !held.stopped && held.since + STOP_GRACE <= self.now_ns {
                held.stopped = true;
                stops.extend(held.turn.actions.extract_if(.., |action| action.is_stop()));
            }
        }
        for stop in stops {
            self.met.note(Kind::StopAhead);
            self.release(stop, Release::Ahead)?;
        }
        Ok(())
    }

    /// When a waiting turn is due next.
    pub(super) fn next_try(&self) -> impl Iterator<Item = u64> {
        let stops = self.held.iter().filter(|held| !held.stopped).map(|held| held.since + STOP_GRACE);
        stops.chain((!self.held.is_empty()).then_some(self.full_until))
    }

    /// Changes the clock by a random amount.
    pub(super) fn set_clock(&mut self) {
        let by = self.rng.below(JUMP_MAX) as i64;
        let (by, kind) = if self.rng.one_in(2) { (by, Kind::ClockForth) } else { (-by, Kind::ClockBack) };
        self.met.note(kind);
        self.set_clock_by(by);
    }

    /// Changes the clock by this many nanoseconds, and reports it to the agent.
    pub fn set_clock_by(&mut self, by: i64) {
        self.trace.note(self.now_ns, || format!("the clock is set by {}s", by / SECOND as i64));
        self.clock.jump(self.now_ns, by);
        self.events.push(Event::ClockSet);
    }

    /// Damages the record of a random attempt.
    pub(super) fn damage_record(&mut self) {
        let records: Vec<AttemptKey> = self.machine.attempts.keys().copied().collect();
        if records.is_empty() {
            return;
        }
        let key = records[self.rng.below(records.len() as u64) as usize];
        self.trace.note(self.now_ns, || format!("the record of attempt {} of {} is damaged", key.2, key.0));
        self.met.note(Kind::RecordDamaged);
        if let Some(event) = self.machine.damage(key) {
            self.trace.event(self.now_ns, &event);
            self.post(event);
        }
    }

    /// Damages the stored state of a random allocation while no agent runs: the state is rebuilt from the records of its
    /// attempts. Allocations whose tasks have all ended are excluded, since that fact is stored separately.
    pub(super) fn damage_state(&mut self) -> Result<(), String> {
        let live = |(key, value): (&RecordKey, &RecordValue)| match (key, value) {
            (RecordKey::AllocState(id), RecordValue::AllocState(known))
                if known.adopted && known.tasks.iter().any(|task| task.status_live()) =>
            {
                Some(*id)
            }
            _ => None,
        };
        let live: Vec<AllocId> = self.stored.iter().filter_map(live).collect();
        if live.is_empty() {
            return Ok(());
        }
        let id = live[self.rng.below(live.len() as u64) as usize];
        self.rebuild_state(id)
    }

    /// Rebuilds the state as the agent does.
    pub(super) fn rebuild_state(&mut self, id: AllocId) -> Result<(), String> {
        let Some(RecordValue::AllocSpec(spec)) = self.stored.get(&RecordKey::AllocSpec(id)) else {
            return Err(format!("a state without a specification: {id}"));
        };
        self.trace.note(self.now_ns, || format!("the stored state of {} is damaged", spec.name()));
        self.met.note(Kind::StateDamaged);
        let newest = |index, _: &Task| self.machine.newest_attempt(id, index as u16);
        let known = Durable::rebuilt(spec, newest, self.now());
        self.stored.insert(RecordKey::AllocState(id), RecordValue::AllocState(known.into()));
        // A start that has not reached its record when the state is rebuilt can't be known, so the two faults are not
        // combined.
        self.late_starts
            .retain(|ghost| !matches!(&ghost.action.op.target, Target::Alloc(of, _) if *of == id));
        self.machine.forget(id);
        self.promises.forget_history(id);
        if let Some(shown) = self.allocs.get_mut(&id) {
            std::sync::Arc::make_mut(shown).verdict = None;
        }
        Ok(())
    }
}
