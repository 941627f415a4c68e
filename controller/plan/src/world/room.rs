//! The machine's room in the world: who waits for it, whose turn it is, and what is kept for whom.
//!
//! What a group asks for and the order of the line are `job/capacity`'s; what is held is counted with the allocations.

use std_alloc::{collections::BTreeSet, format, string::String, vec::Vec};

use herdlet_api_types::{AllocId, JobKey, alloc::Desired, job::Group, view::Unplaced};

use crate::{
    job::{capacity::Room, ports},
    op::Key,
    world::{World, allocs::AllocEntry},
};

impl World {
    /// An allocation has ended: its own job may follow it first, then whoever waits.
    pub(super) fn room_is_free(&mut self, id: AllocId, dirty: &mut BTreeSet<Key>) {
        if let Some(key) = self.allocs.get(id).map(|entry| entry.spec.job_key.clone()) {
            self.join_line(&key, true);
            self.stir_job(key, dirty);
        }
        self.stir_short(dirty);
    }

    /// Whoever waits for ports or room may have them now.
    pub(super) fn stir_short(&mut self, dirty: &mut BTreeSet<Key>) {
        for key in core::mem::take(&mut self.short) {
            self.join_line(&key, false);
            self.stir_job(key, dirty);
        }
    }

    /// What is left alone is not planned, and must not be waited for.
    fn join_line(&mut self, key: &JobKey, has_made_room: bool) {
        if let Some(entry) = self.jobs.get(key).filter(|entry| entry.quarantine.is_none()) {
            self.line.join(key, entry.current.priority, entry.state.create_index, has_made_room);
        }
    }

    /// The job takes nothing now: whose turn it is next may try again.
    pub(super) fn let_others_in(&mut self, key: &JobKey, dirty: &mut BTreeSet<Key>) {
        for next in self.line.leave(key) {
            self.stir_job(next, dirty);
        }
    }

    /// The group's allocation can't be placed for lack of ports or room: its job waits for either.
    pub(super) fn wait_for_room(&mut self, key: &JobKey, group: &str, why: Unplaced) {
        self.short.insert(key.clone());
        if let Some(entry) = self.jobs.get_mut(key) {
            entry.hold(group, why);
        }
    }

    /// Stops an allocation for one of the current version, if that will have ports and room once it has ended: nothing is stopped
    /// for what can't follow it.
    pub(super) fn replace(&mut self, key: &JobKey, id: AllocId, dirty: &mut BTreeSet<Key>) -> bool {
        let (Some(entry), Some(old)) = (self.jobs.get(key), self.allocs.get(id)) else { return false };
        let Some(group) = entry.current.group(&old.spec.group) else { return false };
        let (holds, wants) = (old.room().unwrap_or_default(), Room::of(group));
        if !wants.minus(holds).is_empty() && self.line.is_anothers_turn(key) {
            return false;
        }
        let fits = self.check_fixed_ports(key, group).and_then(|()| self.check_in_place_of(holds, wants));
        if let Err(why) = fits {
            let group = group.name.clone();
            let why = why.of(&format!("{} is not replaced: its successor", old.spec.name()));
            self.wait_for_room(key, &group, why);
            return false;
        }
        self.allocs.promise(id, wants);
        self.want_of(id, Desired::Stop, String::from("replaced by a newer version of the job"), dirty)
    }

    /// After a restart: what is on its way out holds what follows it wants, if there is so much.
    pub(super) fn promise_again(&mut self) {
        let mut leaving = Vec::new();
        for entry in self.jobs.values() {
            for group in &entry.current.groups {
                let slots = entry.state.slots.get(&group.name).into_iter().flatten();
                let wanted = (0..group.count).zip(slots).filter_map(|(_, slot)| slot.alloc);
                leaving.extend(wanted.map(|id| (id, Room::of(group))));
            }
        }
        for (id, wants) in leaving {
            let stopping = self.allocs.get(id).filter(|old| old.spec.desired == Desired::Stop);
            let holds = stopping.and_then(AllocEntry::room);
            if holds.is_some_and(|holds| self.check_in_place_of(holds, wants).is_ok()) {
                self.allocs.promise(id, wants);
            }
        }
    }

    /// Whether so much is there once what holds this much has ended.
    fn check_in_place_of(&self, holds: Room, wants: Room) -> Result<(), Unplaced> {
        if wants.minus(holds).is_empty() {
            return Ok(());
        }
        let all = self.ctx.settings.room;
        wants.check(all.minus(self.allocs.taken().minus(holds)), all)
    }

    /// Whether nobody but the job itself holds the group's fixed ports.
    fn check_fixed_ports(&self, key: &JobKey, group: &Group) -> Result<(), Unplaced> {
        let own = self.allocs.of_job(key).filter(|(_, alloc)| alloc.room().is_some());
        let own = own.flat_map(|(_, alloc)| alloc.spec.ports.values()).map(|port| port.value).collect();
        ports::check_fixed(group, self.allocs.ports(), &own).map_err(|why| why.unplaced())
    }
}
