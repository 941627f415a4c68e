//! What is left alone because planning it panicked.
//!
//! In: a key, and what the panic said. Out: the same shown, and stored for an allocation. Nothing is planned here: what has just
//! panicked would again.

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
    /// Planning this key panicked: it is left alone, its tasks run on. For an allocation that is stored; jobs and volumes are
    /// planned again by the next agent, and once somebody applies or deletes them.
    pub fn quarantine(&mut self, now: Now, key: &Key, why: &str, dirty: &mut BTreeSet<Key>, turn: &mut Turn) {
        let open = &mut OpenTurn { now, dirty, turn };
        match key {
            Key::Alloc(id) => {
                let Some(entry) = self.allocs.get_mut(*id) else { return };
                entry.state.durable.quarantine = Some(String::from(why));
                // Nothing is planned any more: it is stored and shown.
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
