//! All objects of this machine, and the two things that can be done with them: take in an event, plan a key.
//!
//! Synchronous, total and without IO, so that the same code runs under the agent's loop and under the simulator.

pub mod command;
mod jobs;
mod restore;

use std_alloc::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    string::String,
    sync::Arc,
    vec::Vec,
};

use herdlet_api_types::{
    AllocId, Duration, InstanceId, JobKey, UnixNanos,
    alloc::Allocation,
    job::Job,
    view::{Convergence, ConvergenceState, VolumeView},
    volume::VolumeStatus,
};

use crate::{
    action::{Action, MountSource, Outcome},
    alloc::{
        self,
        apply::{Issued, Writer},
        show,
        volumes::volume_name,
    },
    event::{DesiredChange, Event},
    job::JobState,
    limits::{OPERATION_TIMEOUT, ROUNDS_MAX},
    op::{Key, Op, Part, Subject, Target, TaskPart},
    plan::Change,
    record::{Meta, Record, RecordKey, RecordValue},
    shared::volume::{self, Fate, Origin, VolumeState},
    state::{AllocState, Ended, PartState, Tracked},
    status,
    time::Now,
    turn::{Note, Turn, View},
};

/// The agent's settings, as far as the planner needs them.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This instance; part of every id that is made here.
    pub instance: InstanceId,
    /// Longest `kill_timeout` that a task gets.
    pub max_kill_timeout: Duration,
    /// Dynamic ports are taken from here.
    pub dynamic_ports: core::ops::RangeInclusive<u16>,
    /// Address that ports are given on.
    pub host_ip: String,
}

/// What every plan may read.
#[derive(Debug)]
pub struct Context {
    /// The agent's settings.
    pub settings: Settings,
    /// Volumes by name.
    pub(crate) volumes: BTreeMap<String, VolumeEntry>,
    /// The first complete desired list was seen: what it did not name may be removed.
    pub(crate) complete: bool,
}

impl Context {
    /// Where a volume's data is; none while it is not ready.
    pub fn volume_path(&self, name: &str) -> Option<&str> {
        let entry = self.volumes.get(name)?;
        if entry.part != PartState::Up || entry.state.fate != Fate::Wanted {
            return None;
        }
        entry.state.path.as_deref()
    }
}

/// All objects of this machine.
#[derive(Debug)]
pub struct World {
    pub(crate) ctx: Context,
    pub(crate) meta: Tracked<Meta>,
    pub(crate) jobs: BTreeMap<JobKey, JobEntry>,
    pub(crate) allocs: BTreeMap<AllocId, AllocEntry>,
    pub(crate) generation: u64,
}

#[derive(Debug)]
pub(crate) struct VolumeEntry {
    pub state: Tracked<VolumeState>,
    pub part: PartState,
    pub failures: u32,
}

#[derive(Debug)]
pub(crate) struct JobEntry {
    pub state: Tracked<JobState>,
    pub current: Arc<Job>,
    /// Why a slot can't be filled now.
    pub blocked: Option<(herdlet_api_types::view::Reason, String)>,
    pub since: UnixNanos,
    pub shown: Option<ConvergenceState>,
}

#[derive(Debug)]
pub(crate) struct AllocEntry {
    pub spec: Tracked<Arc<Allocation>>,
    pub state: AllocState,
    /// Something that is shown may have changed.
    pub changed: bool,
    /// Since when it has converged, or has not.
    pub since: UnixNanos,
    /// The verdict as last shown.
    pub verdict: Option<Convergence>,
}

impl World {
    /// An empty world.
    pub fn new(settings: Settings) -> Self {
        Self {
            ctx: Context { settings, volumes: BTreeMap::new(), complete: false },
            meta: Tracked::stored(Meta::default()),
            jobs: BTreeMap::new(),
            allocs: BTreeMap::new(),
            generation: 0,
        }
    }

    /// Takes in one event: changes state, marks what has to be planned.
    pub fn apply(&mut self, now: Now, event: Event, dirty: &mut BTreeSet<Key>, turn: &mut Turn) {
        match event {
            Event::Desired(change) => self.desired(now, change, dirty),
            Event::Outcome(Op { target: Target::Alloc(id, part), generation }, outcome) => {
                self.write(now, id, dirty, turn, |writer| writer.outcome(part, generation, outcome));
            }
            Event::Outcome(Op { target: Target::Volume(name), generation }, outcome) => {
                self.volume_outcome(now, &name, generation, outcome, dirty);
            }
            Event::Exited { alloc, task, attempt, result } => {
                self.write(now, alloc, dirty, turn, |writer| writer.exited(&task, attempt, result));
            }
            Event::Check { alloc, result } => {
                self.write(now, alloc, dirty, turn, |writer| writer.checked(result));
            }
            Event::Drift { alloc, part, by } => {
                self.write(now, alloc, dirty, turn, |writer| writer.drift(part, by));
            }
            Event::Driver { alloc, task, message } => {
                self.write(now, alloc, dirty, turn, |writer| writer.driver_message(&task, message));
            }
            Event::Found { alloc, task, attempt } => {
                self.write(now, alloc, dirty, turn, |writer| writer.found(&task, attempt));
            }
            Event::Command { request, command } => {
                let reply = self.command(now, command, dirty, turn);
                turn.replies.push((request, reply));
            }
        }
    }

    /// Plans one key until its plan changes nothing more, and hands out what comes of it.
    pub fn reconcile(&mut self, now: Now, key: &Key, dirty: &mut BTreeSet<Key>, turn: &mut Turn) {
        match key {
            Key::Job(job) => self.reconcile_job(now, job, dirty, turn),
            Key::Volume(name) => self.reconcile_volume(now, name, dirty, turn),
            Key::Alloc(id) => self.reconcile_alloc(now, *id, dirty, turn),
        }
        self.flush_meta(turn);
    }

    /// Planning this key panicked: it is left alone, its tasks run on.
    pub fn quarantine(&mut self, key: &Key, why: &str, turn: &mut Turn) {
        if let Key::Alloc(id) = key
            && let Some(entry) = self.allocs.get_mut(id)
        {
            entry.state.durable.quarantine = Some(String::from(why));
            let value = RecordValue::AllocState((*entry.state.durable).clone().into());
            turn.records.push(Record::Put(RecordKey::AllocState(*id), value));
        }
    }

    /// Every key, for the first turn after a start.
    pub fn keys(&self) -> BTreeSet<Key> {
        let jobs = self.jobs.keys().cloned().map(Key::Job);
        let volumes = self.ctx.volumes.keys().cloned().map(Key::Volume);
        let allocs = self.allocs.keys().copied().map(Key::Alloc);
        jobs.chain(volumes).chain(allocs).collect()
    }

    /// Every wanted allocation that is known.
    pub fn allocations(&self) -> impl Iterator<Item = (&Arc<Allocation>, &AllocState)> {
        self.allocs.values().map(|entry| (&*entry.spec, &entry.state))
    }

    /// What every plan may read.
    pub fn context(&self) -> &Context {
        &self.ctx
    }

    fn desired(&mut self, now: Now, change: DesiredChange, dirty: &mut BTreeSet<Key>) {
        match change {
            DesiredChange::Volume(volume) => self.want_volume(*volume, Origin::Config, dirty),
            DesiredChange::VolumeGone(name) => self.drop_volume(&name, dirty),
            DesiredChange::Job(job) => {
                self.accept_job(now, *job, dirty);
            }
            DesiredChange::JobGone(key) => self.delete_job(now, &key, dirty),
            DesiredChange::Alloc(spec) => {
                let id = spec.id;
                let spec = Arc::new(*spec);
                match self.allocs.get_mut(&id) {
                    Some(entry) => {
                        *entry.spec = spec;
                        entry.changed = true;
                    }
                    None => {
                        self.allocs.insert(id, AllocEntry::new(spec, now));
                    }
                }
                dirty.insert(Key::Alloc(id));
            }
            DesiredChange::Complete => {
                self.ctx.complete = true;
                dirty.extend(self.jobs.keys().cloned().map(Key::Job));
            }
        }
    }

    /// Writes to one allocation's state.
    fn write<R>(
        &mut self,
        now: Now,
        id: AllocId,
        dirty: &mut BTreeSet<Key>,
        turn: &mut Turn,
        change: impl FnOnce(&mut Writer<'_>) -> R,
    ) -> Option<R> {
        let entry = self.allocs.get_mut(&id)?;
        let mut issued = Vec::new();
        let result = change(&mut Writer {
            now,
            settings: &self.ctx.settings,
            spec: &entry.spec,
            state: &mut entry.state,
            generation: &mut self.generation,
            issued: &mut issued,
            notes: &mut turn.notes,
        });
        entry.changed = true;
        self.issue(id, issued, turn);
        dirty.insert(Key::Alloc(id));
        Some(result)
    }

    fn reconcile_alloc(&mut self, now: Now, id: AllocId, dirty: &mut BTreeSet<Key>, turn: &mut Turn) {
        let mut rounds = 0;
        let plan = loop {
            let Some(entry) = self.allocs.get(&id) else { return };
            let plan = alloc::plan(now, &self.ctx, &entry.spec, &entry.state);
            if plan.changes.is_empty() {
                break plan;
            }
            if plan.changes.contains(&Change::Forget) {
                self.forget_alloc(id, dirty, turn);
                return;
            }
            rounds += 1;
            if rounds > ROUNDS_MAX {
                break plan;
            }
            self.write(now, id, dirty, turn, |writer| {
                for change in plan.changes {
                    writer.change(change);
                }
            });
        };
        dirty.remove(&Key::Alloc(id));
        if let Some(at) = plan.wake_ns {
            turn.wakes.push((Key::Alloc(id), at));
        }
        let waiting = !plan.waits.is_empty();
        let Some(entry) = self.allocs.get_mut(&id) else { return };
        let touched = entry.flush(id, &mut self.meta, now, turn);
        if touched {
            dirty.insert(Key::Job(entry.spec.job_key.clone()));
        }
        let result = if rounds > 0 {
            "changed"
        } else if waiting {
            "waiting"
        } else {
            "unchanged"
        };
        turn.notes.push(Note::Reconciled { kind: "alloc", result });
        if core::mem::take(&mut entry.changed) || touched || rounds > 0 {
            let mut convergence = status::convergence(now, &entry.spec, &entry.state, &plan, entry.since);
            let converged = |verdict: &Convergence| verdict.state == ConvergenceState::Converged;
            if entry.verdict.as_ref().is_none_or(|was| converged(was) != converged(&convergence)) {
                entry.since = now.wall;
                convergence.since = now.wall;
            }
            if entry.verdict.as_ref() != Some(&convergence) {
                entry.verdict = Some(convergence.clone());
                dirty.insert(Key::Job(entry.spec.job_key.clone()));
            }
            let view = show::view(&entry.spec, &entry.state, convergence);
            turn.views.push(View::Alloc(view.into()));
        }
    }

    /// Nothing of the allocation is left in the world: nothing of it is kept here either.
    fn forget_alloc(&mut self, id: AllocId, dirty: &mut BTreeSet<Key>, turn: &mut Turn) {
        let Some(entry) = self.allocs.remove(&id) else { return };
        dirty.remove(&Key::Alloc(id));
        dirty.insert(Key::Job(entry.spec.job_key.clone()));
        turn.records.push(Record::Delete(RecordKey::AllocSpec(id)));
        turn.records.push(Record::Delete(RecordKey::AllocState(id)));
        turn.views.push(View::AllocGone(id));
        dirty.extend(claimed_volumes(&entry.spec).map(|name| Key::Volume(name.into_owned())));
    }

    fn issue(&self, id: AllocId, issued: Vec<Issued>, turn: &mut Turn) {
        let Some(entry) = self.allocs.get(&id) else { return };
        for Issued { part, generation, verb, timeout } in issued {
            let mounts = match part {
                Part::Task(index, TaskPart::Mounts) => self.mount_sources(&entry.spec, usize::from(index)),
                Part::Dir | Part::Services | Part::Checks | Part::Task(..) => Vec::new(),
            };
            turn.actions.push(Action {
                op: Op { target: Target::Alloc(id, part), generation },
                subject: Subject::Alloc(Arc::clone(&entry.spec), part),
                mounts,
                verb,
                timeout,
            });
        }
    }

    fn mount_sources(&self, spec: &Allocation, task: usize) -> Vec<MountSource> {
        let Some(group) = spec.group() else { return Vec::new() };
        let Some(task) = group.tasks.get(task) else { return Vec::new() };
        let sources = task.volume_mounts.iter().filter_map(|mount| {
            let request = group.volumes.get(&mount.volume)?;
            let name = volume_name(spec, request);
            let path = self.ctx.volume_path(&name)?;
            let volume = self.ctx.volumes.get(&*name)?;
            Some(MountSource {
                path: String::from(path),
                destination: mount.destination.clone(),
                read_only: mount.read_only || request.read_only || volume.state.spec.read_only,
                volume: name.into_owned(),
            })
        });
        sources.collect()
    }

    pub(crate) fn want_volume(
        &mut self,
        spec: herdlet_api_types::volume::Volume,
        origin: Origin,
        dirty: &mut BTreeSet<Key>,
    ) {
        let name = spec.name.clone();
        match self.ctx.volumes.get_mut(&name) {
            Some(entry) if entry.state.spec == spec && entry.state.fate == Fate::Wanted => {}
            Some(entry) => {
                entry.state.spec = spec;
                entry.state.fate = Fate::Wanted;
                entry.part.overtake();
                entry.part.learn(PartState::Unknown);
            }
            None => {
                let state = VolumeState { spec, origin, fate: Fate::Wanted, path: None };
                let state = match origin {
                    Origin::Config => Tracked::stored(state),
                    Origin::Manifest => Tracked::new(state),
                };
                let entry = VolumeEntry { state, part: PartState::Unknown, failures: 0 };
                self.ctx.volumes.insert(name.clone(), entry);
            }
        }
        dirty.insert(Key::Volume(name));
    }

    fn drop_volume(&mut self, name: &str, dirty: &mut BTreeSet<Key>) {
        if let Some(entry) = self.ctx.volumes.get_mut(name)
            && entry.state.origin == Origin::Config
        {
            entry.state.fate = Fate::Dropped;
            dirty.insert(Key::Volume(String::from(name)));
        }
    }

    fn volume_outcome(
        &mut self,
        now: Now,
        name: &str,
        generation: u64,
        outcome: Outcome,
        dirty: &mut BTreeSet<Key>,
    ) {
        let Some(entry) = self.ctx.volumes.get_mut(name) else { return };
        if outcome == Outcome::Overdue {
            return entry.part.run_over(generation);
        }
        match entry.part.end(generation) {
            None => return,
            Some(Ended::Overtaken) => {}
            Some(Ended::Fresh(doing)) => {
                let ended = (doing, outcome);
                volume::outcome(now, &mut entry.state, &mut entry.part, &mut entry.failures, ended);
            }
        }
        dirty.insert(Key::Volume(String::from(name)));
        dirty.extend(self.claims(name).map(Key::Alloc));
    }

    fn reconcile_volume(&mut self, now: Now, name: &str, dirty: &mut BTreeSet<Key>, turn: &mut Turn) {
        dirty.remove(&Key::Volume(String::from(name)));
        let Some(entry) = self.ctx.volumes.get_mut(name) else {
            turn.views.push(View::VolumeGone(String::from(name)));
            return;
        };
        let mut result = "unchanged";
        match volume::plan(now, &entry.state, &entry.part) {
            volume::Step::Issue(doing, verb) => {
                self.generation += 1;
                entry.part.begin(self.generation, doing, now.boot_ns);
                turn.actions.push(Action {
                    op: Op { target: Target::Volume(String::from(name)), generation: self.generation },
                    subject: Subject::Volume(Arc::new(entry.state.spec.clone())),
                    mounts: Vec::new(),
                    verb,
                    timeout: OPERATION_TIMEOUT,
                });
                result = "changed";
            }
            volume::Step::WaitUntil(at) => {
                turn.wakes.push((Key::Volume(String::from(name)), at));
                result = "waiting";
            }
            volume::Step::Forget => {
                self.ctx.volumes.remove(name);
                turn.records.push(Record::Delete(RecordKey::Volume(String::from(name))));
                turn.views.push(View::VolumeGone(String::from(name)));
                return;
            }
            volume::Step::Rest => {}
        }
        turn.notes.push(Note::Reconciled { kind: "volume", result });
        if entry.state.take_touched() && entry.state.origin == Origin::Manifest {
            let value = RecordValue::Volume((*entry.state).clone().into());
            turn.records.push(Record::Put(RecordKey::Volume(String::from(name)), value));
        }
        let spec = Arc::new(entry.state.spec.clone());
        let status: VolumeStatus = volume::status(&entry.state, &entry.part);
        let claims = self.claims(name).collect();
        turn.views.push(View::Volume(VolumeView { spec, status, claims }.into()));
    }

    /// Allocations that mount the volume and are not being removed.
    pub(crate) fn claims(&self, name: &str) -> impl Iterator<Item = AllocId> {
        self.allocs
            .iter()
            .filter(move |(_, entry)| claimed_volumes(&entry.spec).any(|claimed| claimed == name))
            .map(|(id, _)| *id)
    }

    fn flush_meta(&mut self, turn: &mut Turn) {
        if self.meta.take_touched() {
            turn.records.push(Record::Put(RecordKey::Meta, RecordValue::Meta(*self.meta)));
        }
    }
}

impl AllocEntry {
    /// A wanted allocation that has never had anything.
    pub(crate) fn new(spec: Arc<Allocation>, now: Now) -> Self {
        let state = AllocState { parts: crate::state::Parts::absent(), ..AllocState::default() };
        Self { spec: Tracked::new(spec), state, changed: true, since: now.wall, verdict: None }
    }

    /// Writes what changed. Whether anything did.
    fn flush(&mut self, id: AllocId, meta: &mut Tracked<Meta>, now: Now, turn: &mut Turn) -> bool {
        let spec = self.spec.take_touched();
        if spec {
            let value = RecordValue::AllocSpec(Arc::clone(&self.spec));
            turn.records.push(Record::Put(RecordKey::AllocSpec(id), value));
        }
        let state = self.state.durable.is_touched();
        if state {
            meta.index += 1;
            self.state.durable.modify_index = meta.index;
            self.state.durable.modify_time = now.wall;
            self.state.durable.take_touched();
            let value = RecordValue::AllocState((*self.state.durable).clone().into());
            turn.records.push(Record::Put(RecordKey::AllocState(id), value));
        }
        spec || state
    }
}

fn claimed_volumes(spec: &Allocation) -> impl Iterator<Item = Cow<'_, str>> {
    spec.group()
        .into_iter()
        .flat_map(move |group| group.volumes.values().map(move |request| volume_name(spec, request)))
}
