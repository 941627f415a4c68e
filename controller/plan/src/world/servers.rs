//! Allocations that a server has placed on this machine (node mode).
//!
//! In: a server's desired state of an allocation, or its removal. Out: the desired state here. A known state changes
//! nothing, a stopped allocation never runs again, and an allocation is only removed by its id. The session filters
//! outdated states: only it knows whether servers lag, or were restored from an older state.

use std_alloc::{string::String, sync::Arc, vec::Vec};

use herdlet_api_types::{
    AllocId,
    alloc::{Allocation, Desired, ServerSide},
};

use crate::{
    alloc::apply::{reset_health, take_new_version},
    op::{Key, Part},
    policy::Owner,
    spec::AllocSpec,
    state::PartState,
    turn::OpenTurn,
    world::{
        World,
        allocs::{AllocEntry, claimed_volumes},
    },
};

/// Reason to stop an allocation that ran too long without servers.
const OUT_OF_CONTACT: &str = "stopped: no server was reachable for stop_on_client_after";

impl World {
    /// Applies a server's desired state of an allocation. One that is to stop and was never here is accepted too: it
    /// ends without having begun, which is reported to its server and to those that wait for its end.
    pub(super) fn place(&mut self, open: &mut OpenTurn<'_>, spec: Allocation) {
        let Some(server) = spec.server.clone() else { return };
        let id = spec.id;
        match self.allocs.get(id).map(|known| known.spec.server.as_ref().map(|known| known.modify_index)) {
            None => self.place_first(open, spec, &server),
            Some(Some(known)) if known != server.modify_index => self.place_again(open, spec),
            // Nothing new; or one of this machine's own, which no server can know.
            Some(_) => return,
        }
        open.dirty.insert(Key::Alloc(id));
    }

    fn place_first(&mut self, open: &mut OpenTurn<'_>, spec: Allocation, server: &ServerSide) {
        // This machine numbers its commits independently of the server.
        self.meta.index += 1;
        let (create_index, job) = (self.meta.index, Arc::clone(&server.job));
        let spec = Allocation { create_index, job, ..spec };
        let volumes = claimed_volumes(&spec).filter(|name| self.ctx.volumes.contains_key(&**name));
        open.dirty.extend(volumes.map(|name| Key::Volume(name.into_owned())));
        self.wait_for_previous_of(&spec);
        self.allocs.insert(AllocEntry::new(AllocSpec::read(Arc::new(spec)), open.now));
    }

    /// Makes the allocation wait until those that it replaces or preempts have ended. The code that
    /// queries the servers reports the end of allocations on other nodes.
    pub(super) fn wait_for_previous_of(&mut self, spec: &Allocation) {
        if spec.desired != Desired::Run {
            return;
        }
        for id in spec.awaited() {
            let is_known = self.allocs.get(id).is_some();
            // Only servers place allocations after those of other nodes; one of this machine that is gone was collected.
            if spec.server.is_none() && !is_known {
                continue;
            }
            if !is_known || !self.allocs.has_ended(id) {
                self.ctx.awaited.entry(id).or_default().insert(spec.id);
            }
        }
        // A predecessor that is already collected has no data to keep.
        if let Some(previous) = spec.predecessor().filter(|id| self.allocs.get(*id).is_some()) {
            self.ctx.successors.insert(previous, spec.id);
        }
    }

    /// Does this for every allocation that an earlier agent had yet to begin.
    pub(super) fn wait_for_previous(&mut self) {
        let unbegun = |entry: &AllocEntry| {
            let known = &entry.state.durable;
            known.stop.is_none() && known.tasks.iter().all(|task| task.newest() == 0)
        };
        let begin =
            self.allocs.iter().filter(|(_, entry)| entry.spec.desired == Desired::Run && unbegun(entry));
        let specs: Vec<Arc<Allocation>> =
            begin.map(|(_, entry)| Arc::clone(entry.spec.allocation())).collect();
        for spec in specs {
            self.wait_for_previous_of(&spec);
        }
    }

    /// The allocation has ended: those that waited for it may begin.
    pub(super) fn follow(&mut self, open: &mut OpenTurn<'_>, id: AllocId) {
        let waiting = self.ctx.awaited.remove(&id).unwrap_or_default();
        open.dirty.extend(waiting.into_iter().map(Key::Alloc));
    }

    /// An allocation whose directory is ready has migrated its predecessor's data, and an ended one does not need it:
    /// the predecessor's directory may be removed.
    pub(super) fn finish_migration(&mut self, open: &mut OpenTurn<'_>, id: AllocId) {
        if self.ctx.successors.is_empty() {
            return;
        }
        let Some(entry) = self.allocs.get(id) else { return };
        if *entry.state.parts.get(Part::Dir) == PartState::Up || self.allocs.has_ended(id) {
            let spec = Arc::clone(entry.spec.allocation());
            self.cancel_migration(open, &spec);
        }
    }

    /// The allocation needs its predecessor's data no more.
    pub(super) fn cancel_migration(&mut self, open: &mut OpenTurn<'_>, spec: &Allocation) {
        let Some(previous) = spec.previous else { return };
        if self.ctx.successors.get(&previous) == Some(&spec.id) {
            self.ctx.successors.remove(&previous);
            open.dirty.insert(Key::Alloc(previous));
        }
    }

    /// The servers were reached: allocations that waited for them continue.
    pub(super) fn on_server_allocs(&mut self, open: &mut OpenTurn<'_>) {
        if core::mem::replace(&mut self.ctx.contact, true) {
            return;
        }
        let placed = self.allocs.iter().filter(|(_, entry)| entry.spec.policy().owner == Owner::Servers);
        open.dirty.extend(placed.map(|(id, _)| Key::Alloc(id)));
    }

    /// Stops an allocation that may not run without servers for this long.
    pub(super) fn give_up(&mut self, open: &mut OpenTurn<'_>, id: AllocId) {
        let Some(entry) = self.allocs.get_mut(id) else { return };
        if entry.spec.policy().owner == Owner::Job || entry.spec.desired != Desired::Run {
            return;
        }
        entry.want(Desired::Stop, String::from(OUT_OF_CONTACT));
        open.dirty.insert(Key::Alloc(id));
    }

    fn place_again(&mut self, open: &mut OpenTurn<'_>, spec: Allocation) {
        let Some(server) = spec.server.clone() else { return };
        let Some(mut entry) = self.allocs.remove(spec.id) else { return };
        open.dirty.extend(claimed_volumes(&entry.spec).map(|name| Key::Volume(name.into_owned())));
        let old = Arc::clone(entry.spec.allocation());
        let desired = match old.desired {
            Desired::Run => spec.desired,
            Desired::Stop | Desired::Gone => old.desired,
        };
        let create_index = old.create_index;
        let is_refused = |known: &ServerSide| server.refused.is_some() && known.refused.is_none();
        // No server does that; the allocation keeps the tasks that it began with, which its state refers to by index.
        let is_other = tasks(&old) != tasks(&spec);
        let kept = old.server.as_ref().filter(|known| is_other || is_refused(known));
        let wanted = (is_other && desired == Desired::Run).then(|| tasks(&spec));
        let spec = match kept {
            // It runs on unchanged if the new specification can't be run.
            Some(known) => {
                let server = ServerSide { modify_index: server.modify_index, ..ServerSide::clone(known) };
                Allocation { desired, server: Some(Arc::new(server)), ..Allocation::clone(&old) }
            }
            None => Allocation { create_index, job: Arc::clone(&server.job), desired, ..spec },
        };
        if let (Some(before), Some(after)) = (old.group(), spec.group()) {
            take_new_version(before, after, &mut entry.state);
        }
        let judged_by = |spec: &Allocation| spec.deployment.map(|of| of.id);
        if judged_by(&old) != judged_by(&spec) {
            reset_health(open.now, &spec, &mut entry.state);
        }
        if server.no_shutdown_delay && !entry.state.durable.no_shutdown_delay {
            entry.state.durable.no_shutdown_delay = true;
        }
        let id = spec.id;
        *entry.spec = AllocSpec::read(Arc::new(spec));
        entry.changed = true;
        self.allocs.insert(entry);
        if let Some(wanted) = wanted {
            self.write(open, id, |writer| writer.keep_only(&wanted));
        }
    }

    /// No server knows it any more.
    pub(super) fn displace(&mut self, open: &mut OpenTurn<'_>, id: AllocId) {
        let Some(entry) = self.allocs.get_mut(id) else { return };
        if entry.spec.policy().owner == Owner::Job || entry.spec.desired == Desired::Gone {
            return;
        }
        entry.spec.change(|spec| spec.desired = Desired::Gone);
        entry.changed = true;
        open.dirty.insert(Key::Alloc(id));
    }
}

/// The names of an allocation's tasks.
fn tasks(spec: &Allocation) -> Vec<String> {
    spec.group().into_iter().flat_map(|group| &group.tasks).map(|task| task.name.clone()).collect()
}
