//! The agent is killed, its state is lost or damaged, the machine restarts.
//!
//! In: the current state. Out: the state that the next agent finds.

use herdlet_api_types::AllocId;
use herdlet_plan::{
    action::Verb,
    event::{DesiredChange, Event},
    record::RecordKey,
    world::World,
};

use super::{Life, settings};
use crate::sim::{
    clock::SECOND,
    coverage::Kind,
    machine::{Phase, Thing, spec_of},
};
impl Life {
    /// Kills the agent. Everything uncommitted is lost. Operations in flight are lost or take effect now, and starts may
    /// still take effect a moment later.
    pub fn crash(&mut self) -> Result<(), String> {
        self.trace.note(self.now_ns, || "the agent is killed".to_owned());
        for mut flight in std::mem::take(&mut self.flights) {
            if flight.outcome.is_some() {
                continue;
            }
            let is_start = matches!(flight.action.verb, Verb::Start { .. });
            match self.rng.below(3) {
                0 => self.effect(&mut flight)?,
                1 if is_start => {
                    flight.effect_at = self.now_ns + 1 + self.rng.below(1_000_000);
                    self.late_starts.push(flight);
                    self.met.note(Kind::LateStart);
                }
                _ => {}
            }
        }
        self.checks.clear();
        self.events.clear();
        self.event_queue.clear();
        self.wakes.clear();
        self.asked.clear();
        self.held.clear();
        self.forget_unseen_exits();
        self.machine.crash(self.now_ns);
        self.promises.crash();
        if self.faults.reboot_one_in > 0 && self.rng.one_in(self.faults.reboot_one_in) {
            self.reboot();
        }
        if self.faults.damage_one_in > 0 && self.rng.one_in(self.faults.damage_one_in) {
            self.damage_state()?;
        }
        let (world, unusable) = World::restore(settings(), self.now(), self.stored.clone());
        if !unusable.is_empty() {
            return Err(format!("stored records contradict each other: {unusable:?}"));
        }
        self.world = world;
        self.dirty = self.world.keys();
        self.describe_node();
        self.machine.start_agent();
        self.find();
        self.events.push(Event::Desired(DesiredChange::Complete));
        Ok(())
    }

    /// The agent lists the existing records. It may miss some, which supervisors of a dead agent create only afterwards;
    /// inspections find those attempts.
    fn find(&mut self) {
        for ((alloc, index, attempt), known) in &self.machine.attempts {
            let begun = match known.phase {
                Phase::Live | Phase::Exited(_) | Phase::Lost => true,
                Phase::Tombstone => false,
            };
            let task = spec_of(&known.alloc, *index).map(|(_, task)| task.name.clone());
            if let (true, Ok(task)) = (begun && !self.rng.one_in(4), task) {
                self.events.push(Event::Found { alloc: *alloc, task, attempt: *attempt });
            }
        }
    }

    /// Kills the agent and loses the stored state of an allocation. As in the real agent, the next one gets an event for
    /// each attempt that has a record.
    pub fn lose_state(&mut self, alloc: AllocId) -> Result<(), String> {
        self.trace.note(self.now_ns, || "what was stored about the allocation is lost".to_owned());
        self.stored.remove(&RecordKey::AllocState(alloc));
        self.crash()?;
        let of_alloc = (alloc, 0, 0)..=(alloc, u16::MAX, u32::MAX);
        for ((_, index, attempt), known) in self.machine.attempts.range(of_alloc) {
            let (_, task) = spec_of(&known.alloc, *index)?;
            self.events.push(Event::Found { alloc, task: task.name.clone(), attempt: *attempt });
        }
        Ok(())
    }

    /// Kills the agent and damages the stored state of an allocation: the next agent finds a rebuilt state.
    pub fn damage(&mut self, alloc: AllocId) -> Result<(), String> {
        self.rebuild_state(alloc)?;
        self.crash()
    }

    /// Restarts the machine, which takes ten seconds. Unless [`Life::crash`] calls it, call that next.
    pub fn reboot(&mut self) {
        self.trace.note(self.now_ns, || "the machine restarts".to_owned());
        self.met.note(Kind::Reboot);
        self.machine.reboot();
        if self.faults.reboot_one_in > 0 && self.rng.one_in(3) {
            self.met.note(Kind::PowerCut);
            let dirs: Vec<Thing> =
                self.machine.things.iter().filter(|thing| thing.is_dir()).cloned().collect();
            for dir in dirs {
                if self.rng.one_in(3) {
                    self.machine.remove(&dir);
                }
            }
        }
        self.late_starts.clear();
        self.clock.reboot(self.now_ns, 9 * SECOND);
        self.full_until = self.full_until.saturating_sub(self.now_ns + 9 * SECOND);
        self.now_ns = SECOND;
    }
}
