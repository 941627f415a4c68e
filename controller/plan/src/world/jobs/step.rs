//! The steps of a job's plan: new allocations, and changes of existing ones.
//!
//! In: a step of the roll-out. Out: the changed world, and whether anything changed.

use std_alloc::{collections::BTreeMap, format, string::String, sync::Arc, vec::Vec};

use herdlet_api_types::{
    AllocId, JobKey,
    alloc::{AllocDeployment, Allocation, AssignedCores, Desired, RescheduleEvent},
    job::Group,
    view::Unplaced,
};

use crate::{
    alloc::apply::{reset_health, take_new_version},
    hash::Fields,
    job::{
        Slot,
        capacity::Room,
        cores,
        deployment::Role,
        feasibility,
        ports::{self, AllocPorts, OfferedPorts},
        reschedule,
        rollout::Step,
    },
    op::Key,
    spec::AllocSpec,
    time::Now,
    turn::OpenTurn,
    world::{
        JobEntry, World,
        allocs::{AllocEntry, Allocs, claimed_volumes},
    },
};

/// What a new allocation gets.
struct Admission {
    id: AllocId,
    ports: AllocPorts,
    cores: BTreeMap<String, AssignedCores>,
}

impl World {
    /// Carries out one step. Returns whether anything changed.
    pub(super) fn step(&mut self, open: &mut OpenTurn<'_>, key: &JobKey, step: Step) -> bool {
        match step {
            Step::Want { alloc, desired, why } => self.want_of(open, alloc, desired, why),
            Step::Replace(alloc) => self.replace(open, key, alloc),
            Step::Create { group, index, previous } => {
                let place = NewAlloc { group: &group, index, previous, role: Role::Holder };
                self.create_alloc(open, key, place)
            }
            Step::Canary { group, index } => {
                let beside = self.jobs.get(key).and_then(|entry| entry.state.slots.get(&group));
                let at = usize::try_from(index).unwrap_or(usize::MAX);
                let previous = beside.and_then(|slots| slots.get(at)).and_then(|slot| slot.alloc);
                self.create_alloc(open, key, NewAlloc { group: &group, index, previous, role: Role::Canary })
            }
            Step::Follow { alloc, followed } => {
                let Some(entry) = self.allocs.get_mut(alloc) else { return false };
                entry.state.durable.followed = Some(followed);
                entry.changed = true;
                open.dirty.insert(Key::Alloc(alloc));
                true
            }
            Step::TakeOver(alloc) => self.take_over(open, key, alloc),
            Step::Hold { group } => {
                let Some(entry) = self.jobs.get_mut(key) else { return false };
                let why = entry.infeasible.as_ref().and_then(|held| held.get(&group)).cloned();
                if let Some(why) = why {
                    entry.hold(&group, why);
                }
                false
            }
            Step::Forget => false,
        }
    }

    pub(in crate::world) fn want_of(
        &mut self,
        open: &mut OpenTurn<'_>,
        id: AllocId,
        desired: Desired,
        why: String,
    ) -> bool {
        let Some(entry) = self.allocs.get_mut(id) else { return false };
        entry.want(desired, why);
        open.dirty.insert(Key::Alloc(id));
        true
    }

    /// Creates an allocation, unless its group has to wait. Returns whether it was created.
    fn create_alloc(&mut self, open: &mut OpenTurn<'_>, key: &JobKey, place: NewAlloc<'_>) -> bool {
        let Some(Admission { id, ports, cores }) = self.admit(key, place) else { return false };
        let NewAlloc { group, index, previous, role } = place;
        let create_index = self.meta.index + 1;
        let Some(entry) = self.jobs.get_mut(key) else { return false };
        let rescheduled = entry.fill_slot(open.now, &self.allocs, id, place);
        let deployment = entry.join(open.now, group, id, role);
        let alloc = Allocation {
            id,
            job_key: key.clone(),
            job_version: entry.state.version,
            job: Arc::clone(&entry.current),
            group: String::from(group),
            index,
            ports: ports.group,
            task_ports: ports.tasks,
            task_cores: cores,
            desired: Desired::Run,
            desired_description: String::new(),
            create_index,
            create_time: open.now.wall,
            previous,
            deployment,
            next: None,
            rescheduled,
            server: None,
        };
        self.meta.index = create_index;
        let mut takes_turn = false;
        if let Some((id_before, before)) =
            place.successor_of().and_then(|before| Some((before, self.allocs.get_mut(before)?)))
        {
            before.spec.change(|spec| spec.next = Some(id));
            before.changed = true;
            // It may have failed because of the data that this one is about to read.
            takes_turn = before.state.durable.takes_turn;
            open.dirty.insert(Key::Alloc(id_before));
        }
        let claimed = claimed_volumes(&alloc).filter(|name| self.ctx.volumes.contains_key(&**name));
        open.dirty.extend(claimed.map(|name| Key::Volume(name.into_owned())));
        if alloc.predecessor().is_some() {
            self.wait_for_previous_of(&alloc);
        }
        let mut entry = AllocEntry::new(AllocSpec::read(Arc::new(alloc)), open.now);
        entry.state.durable.takes_turn = takes_turn;
        self.allocs.insert(entry);
        self.review_restart(open, id);
        open.dirty.insert(Key::Alloc(id));
        true
    }

    /// The id, ports and cores of a new allocation. `None` if its group has to wait: the reason is noted.
    fn admit(&mut self, key: &JobKey, place: NewAlloc<'_>) -> Option<Admission> {
        let NewAlloc { group, index, previous, role } = place;
        // A successor does not wait again: its group has started before.
        if previous.is_none()
            && role == Role::Holder
            && let Some(why) = self.unmet_dependency(key, group)
        {
            self.wait_for_others(key, group, why.of(&format!("{}.{group}", key.id)));
            return None;
        }
        let entry = self.jobs.get_mut(key)?;
        let job = Arc::clone(&entry.current);
        let spec = job.group(group)?;
        if feasibility::is_distinct(&job, spec)
            && let Err(why) = self.allocs.check_distinct(&job, spec)
        {
            entry.hold(group, why.of(&format!("{}.{group}:", key.id)));
            return None;
        }
        let id = entry.next_alloc_id(&self.ctx.settings.instance.0, place);
        let settings = &self.ctx.settings;
        let wants = Room::of(spec);
        if (!wants.is_empty() || spec.needs_fixed_ports()) && self.line.is_anothers_turn(key) {
            return None;
        }
        let name = || format!("{}.{group}[{index}]", key.id);
        let cores = match self.assign_cores(spec, wants) {
            Ok(cores) => cores,
            Err(why) => {
                self.wait_for_room(key, group, why.of(&name()));
                return None;
            }
        };
        let offered = OfferedPorts {
            dynamic: &settings.dynamic_ports,
            host_ip: &settings.host_ip,
            networks: &settings.host_networks,
        };
        let held = self.allocs.ports();
        let assigned = ports::check_published(spec, key, held, &offered)
            .and_then(|()| ports::assign(spec, id, held, &offered));
        match assigned {
            Ok(ports) => Some(Admission { id, ports, cores }),
            Err(why) => {
                let unplaced = why.unplaced(|port| self.allocs.holder_of(port));
                self.wait_for_room(key, group, unplaced.of(&name()));
                None
            }
        }
    }

    /// Checks the capacity for a new allocation of the group, and assigns cores to its tasks.
    fn assign_cores(&self, group: &Group, wants: Room) -> Result<BTreeMap<String, AssignedCores>, Unplaced> {
        let settings = &self.ctx.settings;
        let (all, free) = (settings.room, settings.room.minus(self.allocs.taken()));
        if wants.cores == 0 {
            return wants.check(free, all).map(|()| BTreeMap::new());
        }
        let unused = self.allocs.free_cores(settings.cores.available()?);
        let count = u64::try_from(unused.0.len()).unwrap_or(u64::MAX);
        wants.check(Room { cores: free.cores.min(count), ..free }, all)?;
        Ok(cores::assign(group, unused, all.core_mhz()))
    }

    /// Moves the allocation, unchanged, to the current version. A running deployment judges it again.
    fn take_over(&mut self, open: &mut OpenTurn<'_>, key: &JobKey, id: AllocId) -> bool {
        let Some(entry) = self.jobs.get_mut(key) else { return false };
        let Some(alloc) = self.allocs.get_mut(id) else { return false };
        let old = Arc::clone(&alloc.spec.job);
        let joined = entry.join(open.now, &alloc.spec.group, id, Role::Holder);
        alloc.spec.change(|spec| {
            spec.job = Arc::clone(&entry.current);
            spec.job_version = entry.state.version;
            spec.deployment = joined.or(spec.deployment);
        });
        if let (Some(old), Some(new)) = (old.group(&alloc.spec.group), alloc.spec.group()) {
            take_new_version(old, new, &mut alloc.state);
        }
        if alloc.state.durable.followed.is_some() {
            alloc.state.durable.followed = None;
        }
        if joined.is_some() {
            reset_health(open.now, &alloc.spec, &mut alloc.state);
        }
        alloc.changed = true;
        open.dirty.insert(Key::Alloc(id));
        true
    }
}

/// The slot of a new allocation.
#[derive(Debug, Clone, Copy)]
struct NewAlloc<'a> {
    group: &'a str,
    index: u32,
    previous: Option<AllocId>,
    role: Role,
}

impl NewAlloc<'_> {
    /// The allocation that it replaces: a canary replaces none yet.
    fn successor_of(&self) -> Option<AllocId> {
        self.previous.filter(|_| self.role == Role::Holder)
    }

    fn slot(&self) -> usize {
        usize::try_from(self.index).unwrap_or(usize::MAX)
    }
}

impl JobEntry {
    /// Puts the new allocation into its slot. Returns the reschedules that led to it.
    fn fill_slot(
        &mut self,
        now: Now,
        allocs: &Allocs,
        id: AllocId,
        place: NewAlloc<'_>,
    ) -> Vec<RescheduleEvent> {
        let policy = self.current.group(place.group).map(|group| group.reschedule);
        let followed = place.successor_of().and_then(|previous| allocs.get(previous));
        let retry = followed.and_then(|alloc| Some((alloc, alloc.state.durable.reschedule()?)));
        let retry = retry.filter(|(_, due)| due.is_due(now));
        let slots = self.state.slots.entry(String::from(place.group)).or_default();
        if slots.len() <= place.slot() {
            slots.resize(place.slot() + 1, Slot::default());
        }
        let Some(slot) = slots.get_mut(place.slot()) else { return Vec::new() };
        slot.had += 1;
        if place.role == Role::Canary {
            slot.canary = Some(id);
            return Vec::new();
        }
        slot.alloc = Some(id);
        let Some(((before, due), policy)) = retry.zip(policy) else {
            slot.rescheduled = Vec::new();
            return Vec::new();
        };
        slot.rescheduled = reschedule::follow(now, &policy, &slot.rescheduled, due.length);
        let forgotten = (before.spec.rescheduled.len() + 1).saturating_sub(slot.rescheduled.len());
        let event = RescheduleEvent { time: now.wall, previous: before.spec.id, delay: due.length };
        before.spec.rescheduled.iter().copied().chain([event]).skip(forgotten).collect()
    }

    /// The id of a slot's next allocation: a hash of everything that identifies it.
    fn next_alloc_id(&self, instance: &str, place: NewAlloc<'_>) -> AllocId {
        let slots = self.state.slots.get(place.group);
        let had = slots.and_then(|slots| slots.get(place.slot())).map_or(0, |slot| slot.had);
        let mut fields = Fields::default();
        for text in [instance, &self.state.key.namespace, &self.state.key.id, place.group] {
            fields.text(text);
        }
        fields.number(self.state.create_index);
        fields.number(u64::from(place.index));
        fields.number(u64::from(had));
        AllocId::from_hash(fields.start())
    }

    /// Adds an allocation to the running deployment, if there is one.
    fn join(&mut self, now: Now, group: &str, id: AllocId, role: Role) -> Option<AllocDeployment> {
        let version = self.state.version;
        let joined = self.state.deployment().filter(|known| known.deployment.is_running())?;
        joined.group(group)?;
        let state = &mut *self.state;
        let known = state.deployments.iter_mut().find(|known| known.deployment.job_version == version)?;
        known.place(now, group, id, role);
        Some(AllocDeployment { id: known.deployment.id, canary: role == Role::Canary })
    }
}
