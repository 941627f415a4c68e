//! Capacity in the world: which jobs wait for it, whose turn it is, and what is reserved for successors.
//!
//! In: ends of allocations, jobs that find no room. Out: jobs to plan again, reservations. Requests of groups and the
//! order of the queue are in `job/capacity`; the allocations count what is in use.

use std_alloc::{collections::BTreeSet, format, string::String, vec::Vec};

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
    /// An allocation has ended: its own job goes first, then the jobs that wait.
    pub(super) fn room_is_free(&mut self, open: &mut OpenTurn<'_>, id: AllocId) {
        if let Some(key) = self.allocs.get(id).map(|entry| entry.spec.job_key.clone()) {
            self.join_line(&key, true);
            self.mark_stale(open, key);
        }
        self.wake_blocked_jobs();
    }

    /// Queues the jobs that wait for ports or capacity, to be planned once it is known what else becomes free in this
    /// turn.
    pub(super) fn wake_blocked_jobs(&mut self) {
        for key in core::mem::take(&mut self.short) {
            if self.join_line(&key, false) {
                self.line.close(key);
            }
        }
    }

    /// Opens the queue: all that becomes free in this turn is free.
    pub(super) fn open_line(&mut self, open: &mut OpenTurn<'_>, key: &JobKey) {
        open.dirty.extend(self.line.open(key).into_iter().map(Key::Waiting));
        // It may have been planned in this turn while the queue was closed.
        if let Some(entry) = self.jobs.get_mut(key) {
            entry.stale = true;
        }
    }

    /// Returns `false` if the job is gone or quarantined: it is not planned, so nothing must wait for it.
    fn join_line(&mut self, key: &JobKey, has_made_room: bool) -> bool {
        let Some(entry) = self.jobs.get(key).filter(|entry| entry.quarantine.is_none()) else { return false };
        self.line.join(key, entry.current.priority, entry.state.create_index, has_made_room);
        true
    }

    /// The job takes no capacity now: the next in the queue may try again.
    pub(super) fn let_others_in(&mut self, open: &mut OpenTurn<'_>, key: &JobKey) {
        open.dirty.extend(self.line.leave(key).into_iter().map(Key::Waiting));
    }

    /// The group's allocation can't be placed for lack of ports or capacity: its job waits.
    pub(super) fn wait_for_room(&mut self, key: &JobKey, group: &str, why: Unplaced) {
        self.short.insert(key.clone());
        if let Some(entry) = self.jobs.get_mut(key) {
            entry.hold(group, why);
        }
    }

    /// Stops an allocation for one of the current version, if that gets ports and capacity once it has ended. Otherwise
    /// it is not stopped.
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
        self.allocs.reserve_for_successor(id, wants);
        self.want_of(open, id, Desired::Stop, String::from(OUTDATED))
    }

    /// Reserves again, for each successor of a stopping allocation of the job, what it wants, if that is available:
    /// after a restart, and when the job changes. Returns whether capacity became free.
    pub(super) fn reserve_again(&mut self, key: &JobKey) -> bool {
        let Some(entry) = self.jobs.get(key) else { return false };
        let before = self.allocs.taken();
        let leaving = self.allocs.of_job(key).filter(|(_, old)| old.spec.desired == Desired::Stop);
        let leaving: Vec<(AllocId, Option<Room>)> =
            leaving.map(|(id, old)| (id, entry.follower_of(&old.spec).map(Room::of))).collect();
        for (id, _) in &leaving {
            self.allocs.reserve_for_successor(*id, Room::default());
        }
        for (id, wants) in leaving {
            let holds = self.allocs.get(id).and_then(AllocEntry::room);
            if let (Some(holds), Some(wants)) = (holds, wants)
                && self.check_in_place_of(holds, wants).is_ok()
            {
                self.allocs.reserve_for_successor(id, wants);
            }
        }
        !before.minus(self.allocs.taken()).is_empty()
    }

    /// Whether `wants` is available once an allocation that holds `holds` has ended.
    fn check_in_place_of(&self, holds: Room, wants: Room) -> Result<(), Unplaced> {
        if wants.minus(holds).is_empty() {
            return Ok(());
        }
        let all = self.ctx.settings.room;
        wants.check(all.minus(self.allocs.taken().minus(holds)), all)
    }

    /// Whether the group's fixed ports are free or held by the job itself.
    fn check_fixed_ports(&self, key: &JobKey, group: &Group) -> Result<(), Unplaced> {
        let own = self.allocs.of_job(key).filter(|(_, alloc)| alloc.room().is_some());
        let ports_of = |alloc: &Allocation| -> BTreeSet<u16> {
            alloc.host_ports().map(|port| port.value).chain(alloc.published_ports()).collect()
        };
        let own = own.flat_map(|(_, alloc)| ports_of(&alloc.spec)).collect();
        ports::check_fixed(group, self.allocs.ports(), &own)
            .map_err(|why| why.unplaced(|port| self.allocs.holder_of(port)))
    }
}

impl JobEntry {
    /// The group whose allocation follows this one once it has ended.
    fn follower_of(&self, old: &Allocation) -> Option<&Group> {
        let is_wanted =
            |group: &&Group| !self.state.deleting && old.index < self.current.desired_count(group);
        let group = self.current.group(&old.group).filter(is_wanted)?;
        let at = usize::try_from(old.index).ok()?;
        let slot = self.state.slots.get(&group.name)?.get(at)?;
        (slot.alloc == Some(old.id)).then_some(group)
    }
}
