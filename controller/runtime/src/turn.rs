//! One turn, synchronously: apply the events, reconcile the dirty keys, keep their wakes.
//!
//! In: the time and a chunk of events. Out: a [`Turn`]. No IO, no clock, no tokio: the agent's loop and a simulator
//! drive the same [`Reconciler`]. A panic of the world quarantines one key and does not affect the rest of the turn.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::clock::Now;
use crate::panic::message;
use crate::queue::WakeQueue;
use crate::world::{Dirty, Hold, Turn, World};

/// A world together with its wakes and its quarantine.
pub struct Reconciler<W: World> {
    world: W,
    wakes: WakeQueue<W::Key>,
    /// Keys that became dirty again after they were reconciled: the next turn is due at once.
    again: BTreeSet<W::Key>,
    quarantine: BTreeSet<W::Key>,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    New,
    Begun,
}

impl<W: World> Reconciler<W> {
    /// Creates a reconciler whose first turn begins the world.
    #[must_use]
    pub fn new(world: W) -> Self {
        Self {
            world,
            wakes: WakeQueue::default(),
            again: BTreeSet::new(),
            quarantine: BTreeSet::new(),
            stage: Stage::New,
        }
    }

    /// Takes one turn: applies `events` in order, then reconciles every dirty and every due key, in key order.
    pub fn turn(&mut self, now: Now, events: impl IntoIterator<Item = W::Event>) -> Turn<W> {
        let mut turn = Turn::default();
        let mut dirty = Dirty::default();
        dirty.keys.append(&mut self.again);
        if self.stage == Stage::New {
            self.stage = Stage::Begun;
            self.begin(now, &mut dirty, &mut turn);
        }
        while let Some(wake) = self.wakes.pop_due(now.boot_ns) {
            tracing::trace!(key = ?wake.key, why = wake.why, "wake");
            turn.counts.wakes += 1;
            dirty.keys.insert(wake.key);
        }
        for event in events {
            turn.counts.events += 1;
            self.apply(now, event, &mut dirty, &mut turn);
        }
        self.reconcile(now, dirty.keys, &mut turn);
        for wake in turn.wakes.drain(..) {
            if !self.quarantine.contains(&wake.key) {
                self.wakes.wake(wake);
            }
        }
        turn
    }

    /// The boot time at which the next turn is due without any event; `None` if only an event can make one due.
    #[must_use]
    pub fn next_at(&self) -> Option<u64> {
        if self.stage == Stage::New || !self.again.is_empty() { Some(0) } else { self.wakes.next_at() }
    }

    /// Whether a turn without events would have something to do.
    #[must_use]
    pub fn is_due(&self, now: Now) -> bool {
        self.next_at().is_some_and(|at_boot_ns| at_boot_ns <= now.boot_ns)
    }

    /// The wakes, for `explain` and metrics.
    #[must_use]
    pub fn wakes(&self) -> &WakeQueue<W::Key> {
        &self.wakes
    }

    /// The keys that panicked and are no longer reconciled.
    #[must_use]
    pub fn quarantine(&self) -> &BTreeSet<W::Key> {
        &self.quarantine
    }

    /// Borrows the world.
    #[must_use]
    pub fn world(&self) -> &W {
        &self.world
    }

    /// Returns the world.
    #[must_use]
    pub fn into_world(self) -> W {
        self.world
    }

    fn begin(&mut self, now: Now, dirty: &mut Dirty<W::Key>, turn: &mut Turn<W>) {
        let caught = catch_unwind(AssertUnwindSafe(|| self.world.begin(now, dirty)));
        if let Err(payload) = caught {
            turn.counts.panics += 1;
            tracing::error!(panic = message(&*payload), "failed to mark the restored state");
        }
        self.hold(dirty);
    }

    fn apply(&mut self, now: Now, event: W::Event, dirty: &mut Dirty<W::Key>, turn: &mut Turn<W>) {
        let extent = turn.extent();
        let mut key = None;
        let caught = catch_unwind(AssertUnwindSafe(|| {
            key = self.world.key_of(&event);
            self.world.apply(now, event, dirty, turn);
        }));
        self.hold(dirty);
        if let Err(payload) = caught {
            turn.roll_back(extent);
            let message = message(&*payload);
            match key {
                Some(key) => self.take_out(now, key, &message, turn),
                None => {
                    turn.counts.panics += 1;
                    tracing::error!(panic = message, "a panic lost an event that belongs to no key");
                }
            }
        }
        // Keys that the event has marked through `turn` belong to this turn.
        dirty.keys.extend(turn.dirty.drain(..));
    }

    fn reconcile(&mut self, now: Now, mut dirty: BTreeSet<W::Key>, turn: &mut Turn<W>) {
        let mut seen = BTreeSet::new();
        while let Some(key) = dirty.pop_first() {
            self.wakes.cancel(&key);
            if self.quarantine.contains(&key) {
                continue;
            }
            turn.counts.keys += 1;
            let extent = turn.extent();
            let caught = catch_unwind(AssertUnwindSafe(|| self.world.reconcile(now, &key, turn)));
            seen.insert(key.clone());
            if let Err(payload) = caught {
                turn.roll_back(extent);
                self.take_out(now, key, &message(&*payload), turn);
            }
            for further in turn.dirty.drain(..) {
                if seen.contains(&further) {
                    self.again.insert(further);
                } else {
                    dirty.insert(further);
                }
            }
        }
    }

    /// Quarantines a key that panicked and lets the world record it.
    fn take_out(&mut self, now: Now, key: W::Key, why: &str, turn: &mut Turn<W>) {
        tracing::error!(?key, panic = why, "key is quarantined because planning it panicked");
        turn.counts.panics += 1;
        self.wakes.cancel(&key);
        self.again.remove(&key);
        let extent = turn.extent();
        let caught = catch_unwind(AssertUnwindSafe(|| self.world.quarantined(now, &key, why, turn)));
        if let Err(payload) = caught {
            turn.counts.panics += 1;
            turn.roll_back(extent);
            tracing::error!(?key, panic = message(&*payload), "failed to record a quarantine");
        }
        self.quarantine.insert(key);
    }

    fn hold(&mut self, dirty: &mut Dirty<W::Key>) {
        for (key, hold) in dirty.holds.drain(..) {
            match hold {
                Hold::Take => {
                    self.quarantine.insert(key);
                }
                Hold::Release => {
                    self.quarantine.remove(&key);
                }
            }
        }
    }
}
