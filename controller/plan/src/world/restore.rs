//! Restores the world from stored records.

use std_alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    string::String,
    sync::Arc,
    vec::Vec,
};

use herdlet_api_types::{AllocId, JobKey, alloc::Allocation, job::Job};

use crate::{
    context::{Settings, VolumeEntry},
    job::JobState,
    record::RecordValue,
    shared::volume::VolumeState,
    spec::AllocSpec,
    state::{AllocState, Durable, Followed, PartState, Run, StopStep, Tracked},
    time::Now,
    world::{JobEntry, World, allocs::AllocEntry, verdict::Open},
};

/// A stored object that can't be used, because its other half is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unusable {
    /// The job's current version is missing.
    Job(JobKey),
    /// There is a state but no specification.
    Alloc(AllocId),
}

impl World {
    /// Builds the world from stored records, in any order. The state of all parts is unknown, so their plan is to
    /// inspect them.
    pub fn restore(
        settings: Settings,
        now: Now,
        records: impl IntoIterator<Item = (crate::record::RecordKey, RecordValue)>,
    ) -> (Self, Vec<Unusable>) {
        let mut world = Self::new(settings);
        let mut unusable = Vec::new();
        let mut jobs: Vec<Box<JobState>> = Vec::new();
        let mut versions: BTreeMap<(JobKey, u64), Arc<Job>> = BTreeMap::new();
        let mut specs: BTreeMap<AllocId, Arc<Allocation>> = BTreeMap::new();
        let mut states: BTreeMap<AllocId, Box<Durable>> = BTreeMap::new();
        for (key, value) in records {
            match (key, value) {
                (_, RecordValue::Meta(meta)) => {
                    let mut meta = meta;
                    meta.node.rebase(now);
                    world.meta = Tracked::stored(meta);
                }
                (_, RecordValue::Job(job)) => jobs.push(job),
                (crate::record::RecordKey::JobVersion(key, version), RecordValue::JobVersion(job)) => {
                    versions.insert((key, version), job);
                }
                (_, RecordValue::JobVersion(_)) => {}
                (_, RecordValue::Volume(volume)) => world.restore_volume(*volume),
                (_, RecordValue::AllocSpec(spec)) => {
                    specs.insert(spec.id, spec);
                }
                (crate::record::RecordKey::AllocState(id), RecordValue::AllocState(state)) => {
                    states.insert(id, state);
                }
                (_, RecordValue::AllocState(_)) => {}
            }
        }
        for mut state in jobs {
            state.deployments.iter_mut().for_each(|known| known.rebase(now));
            let slots = state.slots.values_mut().flatten();
            slots.flat_map(|slot| &mut slot.rescheduled).for_each(|one| one.rebase(now));
            match versions.get(&(state.key.clone(), state.version)) {
                Some(current) => {
                    let (key, version) = (state.key.clone(), state.version);
                    let mut entry = JobEntry {
                        state: Tracked::stored(*state),
                        current: Arc::clone(current),
                        past: BTreeMap::new(),
                        written: Some(version),
                        infeasible: None,
                        unplaced: BTreeMap::new(),
                        retry: None,
                        since: now.moment(),
                        quarantine: None,
                        cause: "boot",
                        shown: None,
                        stale: true,
                        open: Open::default(),
                        next_launch: None,
                    };
                    for ((_, version), job) in versions.range((key.clone(), 0)..(key.clone(), version)) {
                        entry.keep(*version, Arc::clone(job));
                    }
                    world.jobs.insert(key, entry);
                }
                None => unusable.push(Unusable::Job(state.key.clone())),
            }
        }
        for (id, spec) in specs {
            let durable = states.remove(&id).map(|state| *state).unwrap_or_default();
            let indexes: BTreeSet<u64> = [world.meta.index, spec.create_index, durable.modify_index].into();
            let newest = indexes.last().copied().unwrap_or_default();
            if newest > world.meta.index {
                world.meta.index = newest;
            }
            world.allocs.insert(restored(spec, durable, now));
        }
        unusable.extend(states.into_keys().map(Unusable::Alloc));
        world.wait_for_previous();
        for (key, entry) in &world.jobs {
            world.line.join(key, entry.current.priority, entry.state.create_index, false);
        }
        let keys: Vec<JobKey> = world.jobs.keys().cloned().collect();
        for key in keys {
            world.reserve_again(&key);
        }
        (world, unusable)
    }

    fn restore_volume(&mut self, state: VolumeState) {
        let name: String = state.spec.name.clone();
        let state = Tracked::stored(state);
        self.ctx.volumes.insert(name, VolumeEntry { state, part: PartState::Unknown, failures: 0 });
    }
}

fn restored(spec: Arc<Allocation>, mut durable: Durable, now: Now) -> AllocEntry {
    rebase(&mut durable, now);
    let state = AllocState::restored(&spec, durable, now);
    AllocEntry::known(Tracked::stored(AllocSpec::read(spec)), state, now)
}

/// Binds every deadline to this boot.
fn rebase(durable: &mut Durable, now: Now) {
    if let Some(stop) = &mut durable.stop {
        stop.delay = stop.delay.rebased(now);
    }
    if let Some(restart) = &mut durable.restart {
        restart.delay = restart.delay.rebased(now);
    }
    if let Some(by) = &mut durable.healthy_by {
        *by = by.rebased(now);
    }
    if let Some(Followed::At(due)) = &mut durable.followed {
        *due = due.rebased(now);
    }
    for task in &mut durable.tasks {
        task.owed.values_mut().for_each(|owed| owed.due = owed.due.rebased(now));
        if let Some(window) = &mut task.window {
            *window = window.rebased(now);
        }
        match &mut task.run {
            Run::BackingOff { until }
            | Run::Stopping {
                step: StopStep::Delay { until } | StopStep::Prestop { until } | StopStep::Kill { until },
                ..
            } => *until = until.rebased(now),
            Run::Waiting | Run::Starting { .. } | Run::Running { .. } | Run::Dead => {}
        }
    }
}
