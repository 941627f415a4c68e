//! The machine's room in the world: who waits for it, whose turn it is, and what is kept for whom.
//!
//! What a group asks for and the order of the line are `job/capacity`'s; what is held is counted with the allocations.

use std_alloc::{format, string::String, vec::Vec};

use herdlet_api_types::{
    AllocId, JobKey,
    alloc::{Allocation, Desired},
    job::Group,
    view::Unplaced,
};

use crate::{
    job::{capacity::Room, ports, rollout::OUTDATED},
    op::Key,
    turn::OpenTurn,
    world::{JobEntry, World, allocs::AllocEntry},
};

impl World {
    /// An allocation has ended: its own job may follow it first, then whoever waits.
    pub(super) fn room_is_free(&mut self, open: &mut OpenTurn<'_>, id: AllocId) {
        if let Some(key) = self.allocs.get(id).map(|entry| entry.spec.job_key.clone()) {
            self.join_line(&key, true);
            self.stir_job(open, key);
        }
        self.stir_short();
    }

    /// Whoever waits for ports or room may have them, once it is known what else becomes free in this turn.
    pub(super) fn stir_short(&mut self) {
        for key in core::mem::take(&mut self.short) {
            if self.join_line(&key, false) {
                self.line.close(key);
            }
        }
    }

    /// All that becomes free in this turn is free.
    pub(super) fn open_line(&mut self, open: &mut OpenTurn<'_>, key: &JobKey) {
        open.dirty.extend(self.line.open(key).into_iter().map(Key::Waiting));
        // It may have been planned in this turn, and have found the line closed.
        if let Some(entry) = self.jobs.get_mut(key) {
            entry.stale = true;
        }
    }

    /// `false` where the job is gone or left alone: it is not planned, and must not be waited for.
    fn join_line(&mut self, key: &JobKey, has_made_room: bool) -> bool {
        let Some(entry) = self.jobs.get(key).filter(|entry| entry.quarantine.is_none()) else { return false };
        self.line.join(key, entry.current.priority, entry.state.create_index, has_made_room);
        true
    }

    /// The job takes nothing now: whose turn it is next may try again.
    pub(super) fn let_others_in(&mut self, open: &mut OpenTurn<'_>, key: &JobKey) {
        open.dirty.extend(self.line.leave(key).into_iter().map(Key::Waiting));
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
    pub(super) fn replace(&mut self, open: &mut OpenTurn<'_>, key: &JobKey, id: AllocId) -> bool {
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
        self.want_of(open, id, Desired::Stop, String::from(OUTDATED))
    }

    /// What of the job is on its way out holds what follows it wants, if there is so much, and no more: after a restart, and once
    /// something else is wanted of the job. Whether room became free by that.
    pub(super) fn promise_anew(&mut self, key: &JobKey) -> bool {
        let Some(entry) = self.jobs.get(key) else { return false };
        let before = self.allocs.taken();
        let leaving = self.allocs.of_job(key).filter(|(_, old)| old.spec.desired == Desired::Stop);
        let leaving: Vec<(AllocId, Option<Room>)> =
            leaving.map(|(id, old)| (id, entry.follower_of(&old.spec).map(Room::of))).collect();
        for (id, _) in &leaving {
            self.allocs.promise(*id, Room::default());
        }
        for (id, wants) in leaving {
            let holds = self.allocs.get(id).and_then(AllocEntry::room);
            if let (Some(holds), Some(wants)) = (holds, wants)
                && self.check_in_place_of(holds, wants).is_ok()
            {
                self.allocs.promise(id, wants);
            }
        }
        !before.minus(self.allocs.taken()).is_empty()
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

impl JobEntry {
    /// What is to follow the allocation once it has ended.
    fn follower_of(&self, old: &Allocation) -> Option<&Group> {
        let is_wanted = |group: &&Group| !self.state.deleting && old.index < self.current.wanted(group);
        let group = self.current.group(&old.group).filter(is_wanted)?;
        let at = usize::try_from(old.index).ok()?;
        let slot = self.state.slots.get(&group.name)?.get(at)?;
        (slot.alloc == Some(old.id)).then_some(group)
    }
}
