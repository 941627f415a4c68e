//! The planner's knowledge of the node: its facts, and the task drivers that are away.
//!
//! In: the current state of the node. Out: keys to plan again. Jobs are checked again for whether they may run here;
//! running allocations continue.

use std_alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};

use herdlet_api_types::AllocId;

use super::World;
use crate::{
    env::NodeFacts,
    job::ports::HostNetwork,
    op::{Key, Part, TaskPart},
    spec::AllocSpec,
    state::AllocState,
    turn::OpenTurn,
};

/// What failed while a driver was away is tried again now.
fn retry_processes(drivers: &BTreeSet<&str>, spec: &AllocSpec, state: &mut AllocState) {
    let tasks = spec.group().map(|group| group.tasks.as_slice()).unwrap_or_default();
    for (index, _) in (0..).zip(tasks).filter(|(_, task)| drivers.contains(&*task.driver)) {
        state.parts.retry_now(Part::Task(index, TaskPart::Process));
    }
}

fn uses(drivers: &BTreeSet<&str>, spec: &AllocSpec) -> bool {
    spec.group().is_some_and(|group| group.tasks.iter().any(|task| drivers.contains(&*task.driver)))
}

impl World {
    pub(super) fn node_changed(
        &mut self,
        open: &mut OpenTurn<'_>,
        facts: NodeFacts,
        away: BTreeMap<String, String>,
    ) {
        self.ctx.settings.node = facts;
        let before = core::mem::replace(&mut self.ctx.away, away);
        let back: BTreeSet<&str> =
            before.keys().filter(|name| !self.ctx.away.contains_key(*name)).map(String::as_str).collect();
        let all = before.keys().chain(self.ctx.away.keys());
        let changed: BTreeSet<&str> =
            all.filter(|name| before.get(*name) != self.ctx.away.get(*name)).map(String::as_str).collect();
        if !changed.is_empty() {
            let ids: Vec<AllocId> = self.allocs.iter().map(|(id, _)| id).collect();
            for id in ids {
                if let Some(entry) = self.allocs.get_mut(id) {
                    retry_processes(&back, &entry.spec, &mut entry.state);
                    // The state of its running tasks is old from now on, or known again.
                    entry.changed |= uses(&changed, &entry.spec);
                }
            }
        }
        self.examine_jobs(open);
        open.dirty.extend(self.allocs.iter().map(|(id, _)| Key::Alloc(id)));
    }

    /// Allocations that are placed keep their ports, at the addresses from before.
    pub(super) fn host_networks_changed(
        &mut self,
        open: &mut OpenTurn<'_>,
        networks: BTreeMap<String, HostNetwork>,
    ) {
        if self.ctx.settings.host_networks != networks {
            self.ctx.settings.host_networks = networks;
            self.examine_jobs(open);
        }
    }

    fn examine_jobs(&mut self, open: &mut OpenTurn<'_>) {
        for (key, entry) in &mut self.jobs {
            entry.infeasible = None;
            entry.stale = true;
            open.dirty.insert(Key::Job(key.clone()));
        }
    }
}
