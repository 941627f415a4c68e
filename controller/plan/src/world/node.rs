//! The planner's knowledge of the node: its facts, and the task drivers that are away.
//!
//! In: the current state of the node. Out: keys to plan again. Jobs are checked again for whether they may run here;
//! running allocations continue.

use std_alloc::{collections::BTreeMap, string::String};

use super::World;
use crate::{env::NodeFacts, op::Key, turn::OpenTurn};

impl World {
    pub(super) fn node_changed(
        &mut self,
        open: &mut OpenTurn<'_>,
        facts: NodeFacts,
        away: BTreeMap<String, String>,
    ) {
        self.ctx.settings.node = facts;
        self.ctx.away = away;
        for (key, entry) in &mut self.jobs {
            entry.infeasible = None;
            entry.stale = true;
            open.dirty.insert(Key::Job(key.clone()));
        }
        open.dirty.extend(self.allocs.iter().map(|(id, _)| Key::Alloc(id)));
    }
}
