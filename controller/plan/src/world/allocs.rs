//! The allocations of this machine, with the indexes that make planning one independent of the number of others.
//!
//! In: allocations, and notice that one has changed. Out: each by id, those of a job, those that claim a volume, the
//! host ports in use. It decides nothing.

use std_alloc::{
    borrow::Cow,
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    string::String,
    sync::Arc,
};

use herdlet_api_types::{
    AllocId, JobKey, Moment,
    alloc::{Allocation, CoreSet, Desired},
    job::{Group, Job},
    view::{Convergence, Unplaced},
};

use crate::{
    job::{
        capacity::Room,
        feasibility,
        placed::{Placed, has_ended, is_bad},
        ports::PortClaims,
    },
    op::{Part, TaskPart},
    parts::Need,
    plan::Waiting,
    policy::Owner,
    record::{Meta, Record, RecordKey, RecordValue},
    shared::volume::volume_name,
    spec::AllocSpec,
    state::{AllocState, PartState, Parts, Tracked},
    time::{Deadline, Now},
    turn::OpenTurn,
};

/// Allocations by id, by job and by claimed volume.
#[derive(Debug, Default)]
pub(crate) struct Allocs {
    /// Boxed, since a map's nodes reserve up to twice the space of their entries.
    by_id: BTreeMap<AllocId, Box<AllocEntry>>,
    /// For a job of this machine: its allocations by slot, oldest first, as they are shown. Jobs of servers are not
    /// included.
    by_job: BTreeMap<JobKey, BTreeMap<SlotKey, AllocId>>,
    by_volume: BTreeMap<String, BTreeSet<AllocId>>,
    ports: PortClaims,
    /// Capacity that live allocations have taken.
    taken: Room,
}

/// Group, index, commit in which it was created.
type SlotKey = (String, u32, u64);

/// One allocation.
#[derive(Debug)]
pub(crate) struct AllocEntry {
    pub spec: Tracked<AllocSpec>,
    pub state: AllocState,
    /// Something in its view may have changed.
    pub changed: bool,
    /// Since when it has converged, or has not.
    pub since: Moment,
    /// The verdict as last published.
    pub verdict: Option<Convergence>,
    /// The wait in that verdict. It may change without the state: when a delay is over, or by another allocation.
    pub waits_for: Option<Waiting>,
    /// The standing that its job was last planned with.
    pub standing: Option<AllocSummary>,
    /// Capacity that it holds until it has ended; may include more, promised to its successor.
    holds: Option<Room>,
    /// It holds its host ports.
    holds_ports: bool,
    /// Others of its group that wait for their turn to restart wait for it.
    pub unsettled: bool,
}

/// Everything about an allocation that its tasks can change and its job's plan depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AllocSummary {
    version: u64,
    desired: Desired,
    ended: bool,
    bad: bool,
    healthy: Option<bool>,
}

impl Allocs {
    /// Empty, on a machine that reserves these ports for itself.
    pub(crate) fn beside(reserved_ports: BTreeSet<u16>) -> Self {
        Self { ports: PortClaims::beside(reserved_ports), ..Self::default() }
    }

    /// Capacity that live allocations have taken.
    pub(crate) fn taken(&self) -> Room {
        self.taken
    }

    pub(crate) fn get(&self, id: AllocId) -> Option<&AllocEntry> {
        self.by_id.get(&id).map(Box::as_ref)
    }

    /// The allocation, for changes that no index depends on. Call [`Allocs::review`] after a change of its state.
    pub(crate) fn get_mut(&mut self, id: AllocId) -> Option<&mut AllocEntry> {
        self.by_id.get_mut(&id).map(Box::as_mut)
    }

    /// The allocation as the job controller sees it.
    pub(crate) fn placement(&self, id: AllocId) -> Option<Placed<'_>> {
        let entry = self.by_id.get(&id)?;
        Some(Placed {
            job: &entry.spec.job,
            version: entry.spec.job_version,
            group: &entry.spec.group,
            index: entry.spec.index,
            deployment: entry.spec.deployment,
            desired: entry.spec.desired,
            previous: entry.spec.previous,
            known: &entry.state.durable,
        })
    }

    /// Whether nothing of it runs or will run: it has ended, or was never here.
    pub(crate) fn has_ended(&self, id: AllocId) -> bool {
        self.by_id.get(&id).is_none_or(|entry| has_ended(&entry.state.durable))
    }

    /// All allocations, by id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (AllocId, &AllocEntry)> {
        self.by_id.iter().map(|(id, entry)| (*id, &**entry))
    }

    /// A job's allocations by group and index, older ones first.
    pub(crate) fn of_job(&self, key: &JobKey) -> impl Iterator<Item = (AllocId, &AllocEntry)> {
        let ids = self.by_job.get(key).into_iter().flat_map(BTreeMap::values);
        ids.filter_map(|id| Some((*id, self.get(*id)?)))
    }

    /// When the first replacement of a job's failed allocations is due. Replacements that are already due, but wait for
    /// something, are ignored.
    pub(crate) fn next_retry(&self, key: &JobKey, now: Now) -> Option<Deadline> {
        let wanted = self.of_job(key).filter(|(_, alloc)| alloc.spec.desired == Desired::Run);
        let ahead = wanted.filter_map(|(_, alloc)| alloc.state.durable.reschedule());
        ahead.filter(|due| !due.is_due(now)).min_by_key(|due| due.due_ns(now))
    }

    /// Ids of the allocations that claim a volume.
    pub(crate) fn claiming(&self, volume: &str) -> impl Iterator<Item = AllocId> {
        self.by_volume.get(volume).into_iter().flatten().copied()
    }

    /// Sets the ports on which something listens.
    pub(crate) fn set_listening(&mut self, ports: BTreeSet<u16>) {
        self.ports.set_listening(ports);
    }

    /// The name of an allocation that holds the port.
    pub(crate) fn holder_of(&self, port: u16) -> Option<String> {
        self.get(self.ports.holder(port)?).map(|entry| entry.spec.name())
    }

    /// The offered cores that no live allocation has.
    pub(crate) fn free_cores(&self, offered: &CoreSet) -> CoreSet {
        let live = self.by_id.values().filter(|entry| entry.holds.is_some());
        let taken = live.flat_map(|entry| entry.spec.task_cores.values());
        let taken: BTreeSet<u16> = taken.flat_map(|given| given.cores.0.iter().copied()).collect();
        CoreSet(offered.0.difference(&taken).copied().collect())
    }

    /// Host ports of all allocations that may still use them.
    pub(crate) fn ports(&self) -> &PortClaims {
        &self.ports
    }

    /// Whether one more allocation of the group may run beside the live ones on this node.
    ///
    /// # Errors
    /// The constraint that forbids it.
    pub(crate) fn check_distinct(&self, job: &Job, group: &Group) -> Result<(), Unplaced> {
        let key = job.key();
        let live = || self.of_job(&key).filter(|(_, alloc)| !has_ended(&alloc.state.durable));
        let count = |of: usize| u32::try_from(of).unwrap_or(u32::MAX);
        let of_group = live().filter(|(_, alloc)| alloc.spec.group == group.name).count();
        feasibility::check_distinct(job, group, count(live().count()), count(of_group))
    }

    pub(crate) fn insert(&mut self, mut entry: AllocEntry) {
        let spec = &entry.spec;
        if spec.policy().owner == Owner::Job {
            self.by_job.entry(spec.job_key.clone()).or_default().insert(place(spec), spec.id);
        }
        for volume in claimed_volumes(spec) {
            match self.by_volume.get_mut(&*volume) {
                Some(claims) => {
                    claims.insert(spec.id);
                }
                None => {
                    self.by_volume.insert(volume.into_owned(), [spec.id].into());
                }
            }
        }
        (entry.holds, entry.holds_ports) = (None, false);
        let id = spec.id;
        self.by_id.insert(id, Box::new(entry));
        self.review(id);
    }

    pub(crate) fn remove(&mut self, id: AllocId) -> Option<AllocEntry> {
        let entry = self.by_id.remove(&id)?;
        if entry.holds_ports {
            self.ports.release(&entry.spec);
        }
        if let Some(room) = entry.holds {
            self.taken = self.taken.minus(room);
        }
        if let Some(of_job) = self.by_job.get_mut(&entry.spec.job_key) {
            of_job.remove(&place(&entry.spec));
            if of_job.is_empty() {
                self.by_job.remove(&entry.spec.job_key);
            }
        }
        for volume in claimed_volumes(&entry.spec) {
            if let Some(claims) = self.by_volume.get_mut(&*volume) {
                claims.remove(&id);
                if claims.is_empty() {
                    self.by_volume.remove(&*volume);
                }
            }
        }
        Some(*entry)
    }

    /// Reserves `wants` for the successor of this allocation, which is being stopped: until it ends it holds that as
    /// well.
    pub(crate) fn reserve_for_successor(&mut self, id: AllocId, wants: Room) {
        let Some(entry) = self.by_id.get_mut(&id) else { return };
        if let Some(holds) = &mut entry.holds {
            let own = entry.spec.group().map(Room::of).unwrap_or_default();
            let before = core::mem::replace(holds, own.most(wants));
            self.taken = self.taken.minus(before).plus(*holds);
        }
    }

    /// Updates the indexes after a change of the allocation's state. Returns whether ports or capacity became free.
    pub(crate) fn review(&mut self, id: AllocId) -> bool {
        let Some(entry) = self.by_id.get_mut(&id) else { return false };
        let freed_ports = match (entry.holds_ports, entry.may_use_ports()) {
            (true, true) | (false, false) => false,
            (false, true) => {
                entry.holds_ports = true;
                self.ports.take(&entry.spec);
                false
            }
            (true, false) => {
                entry.holds_ports = false;
                self.ports.release(&entry.spec);
                entry.spec.host_ports().next().is_some() || entry.spec.published_ports().next().is_some()
            }
        };
        let freed_room = match (entry.holds, has_ended(&entry.state.durable)) {
            (None, true) | (Some(_), false) => false,
            (None, false) => {
                let room = entry.spec.group().map(Room::of).unwrap_or_default();
                entry.holds = Some(room);
                self.taken = self.taken.plus(room);
                false
            }
            (Some(room), true) => {
                entry.holds = None;
                self.taken = self.taken.minus(room);
                !room.is_empty()
            }
        };
        freed_ports || freed_room
    }
}

impl AllocEntry {
    /// Whether volumes are mounted for it, or may be later.
    pub(crate) fn may_mount(&self) -> bool {
        let is_mounted = |(part, state): (Part, &PartState)| {
            matches!(part, Part::Task(_, TaskPart::Mounts))
                && !matches!(state, PartState::Absent | PartState::Unknown)
        };
        !has_ended(&self.state.durable) || self.state.parts.iter().any(is_mounted)
    }

    /// Whether something of it uses its host ports, or may later: a task, or its network, which maps them.
    fn may_use_ports(&self) -> bool {
        let has_network = self.spec.need(Part::Network) == Need::Needed
            && *self.state.parts.get(Part::Network) != PartState::Absent;
        !has_ended(&self.state.durable) || has_network
    }

    /// A new allocation without any parts.
    pub(crate) fn new(spec: AllocSpec, now: Now) -> Self {
        let state = AllocState { parts: Parts::absent(), ..AllocState::default() };
        Self::known(Tracked::new(spec), state, now)
    }

    /// An allocation with stored state.
    pub(crate) fn known(spec: Tracked<AllocSpec>, state: AllocState, now: Now) -> Self {
        Self {
            spec,
            state,
            changed: true,
            since: now.moment(),
            verdict: None,
            waits_for: None,
            standing: None,
            holds: None,
            holds_ports: false,
            unsettled: false,
        }
    }

    /// Changes its desired state.
    pub(crate) fn want(&mut self, desired: Desired, why: String) {
        self.spec.change(|spec| {
            spec.desired = desired;
            spec.desired_description = why;
        });
        self.changed = true;
    }

    /// Capacity that it holds; `None` once it has ended.
    pub(crate) fn room(&self) -> Option<Room> {
        self.holds
    }

    /// Its standing for its job's plan.
    pub(crate) fn summary(&self) -> AllocSummary {
        let known = &self.state.durable;
        AllocSummary {
            version: self.spec.job_version,
            desired: self.spec.desired,
            ended: has_ended(known),
            bad: is_bad(known),
            healthy: known.health.map(|health| health.healthy),
        }
    }

    /// Stores what changed. Returns whether anything did.
    pub(crate) fn flush(&mut self, open: &mut OpenTurn<'_>, meta: &mut Tracked<Meta>) -> bool {
        let id = self.spec.id;
        let spec = self.spec.take_touched();
        if spec {
            let value = RecordValue::AllocSpec(Arc::clone(self.spec.allocation()));
            open.turn.records.push(Record::Put(RecordKey::AllocSpec(id), value));
        }
        let state = self.state.durable.is_touched();
        if state {
            meta.index += 1;
            self.state.durable.modify_index = meta.index;
            self.state.durable.modify_time = open.now.wall;
            self.state.durable.take_touched();
            let value = RecordValue::AllocState((*self.state.durable).clone().into());
            open.turn.records.push(Record::Put(RecordKey::AllocState(id), value));
        }
        spec || state
    }
}

/// Names of the volumes that an allocation claims.
pub(crate) fn claimed_volumes(spec: &Allocation) -> impl Iterator<Item = Cow<'_, str>> {
    spec.group()
        .into_iter()
        .flat_map(move |group| group.volumes.values().map(move |request| volume_name(spec, request)))
}

fn place(spec: &Allocation) -> SlotKey {
    (spec.group.clone(), spec.index, spec.create_index)
}

#[cfg(test)]
mod tests {
    use std_alloc::vec;

    use herdlet_api_types::job::Lifecycle;

    use super::*;
    use crate::{
        fixture::{alloc, at, dead, running, task},
        state::{Doing, Durable},
    };

    #[test]
    fn ended_unmounted_allocation_may_not_mount() {
        let mut busy = PartState::Absent;
        busy.begin(1, Doing::Down, 0);
        for (known, mounts, expected) in [
            (running(), PartState::Absent, true),
            (running(), PartState::Up, true),
            (dead(), PartState::Up, true),
            (dead(), busy, true),
            (dead(), PartState::Absent, false),
            // After a start of the agent it is taken down before anything else.
            (dead(), PartState::Unknown, false),
        ] {
            let durable = Durable { adopted: true, tasks: vec![known], ..Durable::default() };
            let mut parts = Parts::unknown();
            parts.set_part(Part::Dir, PartState::Up);
            parts.set_part(Part::Task(0, TaskPart::Mounts), mounts.clone());
            let state = AllocState { durable: Tracked::stored(durable), parts, ..AllocState::default() };
            let spec = alloc(vec![task("main", Lifecycle::Main)]);
            let entry = AllocEntry::known(Tracked::stored(AllocSpec::read(spec)), state, at(1));
            assert_eq!(entry.may_mount(), expected, "{mounts:?}");
        }
    }
}
