//! Allocations that a server has placed on this machine (node mode).
//!
//! In: what a server wants of one, or that it has forgotten it. Out: the same, wanted here. What is older than what is known changes
//! nothing, what was to stop never runs again, and no allocation is removed but by its id.

use std_alloc::{collections::BTreeSet, sync::Arc};

use herdlet_api_types::{
    AllocId,
    alloc::{Allocation, Desired, ServerSide},
};

use crate::{
    alloc::apply::{judge_anew, serve_anew},
    op::Key,
    time::Now,
    world::{
        World,
        allocs::{AllocEntry, claimed_volumes},
    },
};

impl World {
    /// A server wants this of an allocation. One that is to stop and was never here needs nothing.
    pub(super) fn place(&mut self, now: Now, spec: Allocation, dirty: &mut BTreeSet<Key>) {
        let Some(server) = spec.server.clone() else { return };
        let id = spec.id;
        match self.allocs.get(id).map(|known| known.spec.server.as_ref().map(|known| known.modify_index)) {
            None if spec.desired == Desired::Run => self.place_first(now, spec, &server, dirty),
            Some(Some(known)) if known < server.modify_index => self.place_again(now, spec, &server, dirty),
            // Nothing new; or one of this machine's own, which no server can know.
            None | Some(_) => return,
        }
        dirty.insert(Key::Alloc(id));
    }

    fn place_first(&mut self, now: Now, spec: Allocation, server: &ServerSide, dirty: &mut BTreeSet<Key>) {
        // This machine's commits are numbered apart from the server's.
        self.meta.index += 1;
        let (create_index, job) = (self.meta.index, Arc::clone(&server.job));
        let spec = Allocation { create_index, job, ..spec };
        let volumes = claimed_volumes(&spec).filter(|name| self.ctx.volumes.contains_key(&**name));
        dirty.extend(volumes.map(|name| Key::Volume(name.into_owned())));
        self.allocs.insert(AllocEntry::new(Arc::new(spec), now));
    }

    fn place_again(&mut self, now: Now, spec: Allocation, server: &ServerSide, dirty: &mut BTreeSet<Key>) {
        let Some(mut entry) = self.allocs.remove(spec.id) else { return };
        dirty.extend(claimed_volumes(&entry.spec).map(|name| Key::Volume(name.into_owned())));
        let old = Arc::clone(&entry.spec);
        let desired = match old.desired {
            Desired::Run => spec.desired,
            Desired::Stop | Desired::Gone => old.desired,
        };
        let (create_index, job) = (old.create_index, Arc::clone(&server.job));
        let spec = Allocation { create_index, job, desired, ..spec };
        if let (Some(before), Some(after)) = (old.group(), spec.group()) {
            serve_anew(before, after, &mut entry.state);
        }
        let judged_by = |spec: &Allocation| spec.deployment.map(|of| of.id);
        if judged_by(&old) != judged_by(&spec) {
            judge_anew(now, spec.group(), &mut entry.state);
        }
        if server.no_shutdown_delay && !entry.state.durable.no_shutdown_delay {
            entry.state.durable.no_shutdown_delay = true;
        }
        *entry.spec = Arc::new(spec);
        entry.changed = true;
        self.allocs.insert(entry);
    }

    /// No server knows it any more.
    pub(super) fn displace(&mut self, id: AllocId, dirty: &mut BTreeSet<Key>) {
        let Some(entry) = self.allocs.get_mut(id) else { return };
        if entry.spec.server.is_none() || entry.spec.desired == Desired::Gone {
            return;
        }
        Arc::make_mut(&mut entry.spec).desired = Desired::Gone;
        entry.changed = true;
        dirty.insert(Key::Alloc(id));
    }
}
