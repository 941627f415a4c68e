//! Quarantines what the planner panicked on.
//!
//! In: a key, and the message of the panic. Out: its view and, for an allocation, its stored state. Nothing is planned
//! here: planning would panic again.

use std_alloc::{collections::BTreeSet, string::String};

use crate::{
    op::Key,
    state::{Doing, PartState},
    status,
    time::Now,
    turn::{OpenTurn, Turn},
    world::World,
};

impl World {
    /// Planning this key panicked: it is not planned any more, and its tasks run on. For an allocation that is stored.
    /// Jobs and volumes are planned again by the next agent, and once they are applied or deleted.
    pub fn quarantine(&mut self, now: Now, key: &Key, why: &str, dirty: &mut BTreeSet<Key>, turn: &mut Turn) {
        let open = &mut OpenTurn { now, dirty, turn };
        match key {
            Key::Alloc(id) => {
                let Some(entry) = self.allocs.get_mut(*id) else { return };
                entry.state.durable.quarantine = Some(String::from(why));
                // Plans nothing any more: only stores and publishes it.
                self.reconcile(open.now, key, open.dirty, open.turn);
            }
            Key::Job(job) | Key::Waiting(job) => {
                let Some(entry) = self.jobs.get_mut(job) else { return };
                entry.quarantine = Some(String::from(why));
                entry.flush(open, job, &self.allocs);
                self.let_others_in(open, job);
            }
            Key::Volume(name) => {
                let Some(entry) = self.ctx.volumes.get_mut(name) else { return };
                let (doing, why) = (Doing::Up, status::quarantined(why));
                entry.part = PartState::Failed { doing, attempt: 1, retry_at_ns: open.now.boot_ns, why };
                self.show_volume(name, open.turn);
            }
        }
    }
}
