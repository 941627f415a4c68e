//! All objects of this machine. They can apply an event and plan a key.
//!
//! In: events and keys. Out: actions, records and views of the turn. Synchronous, total and without IO, so that the
//! same code runs under the agent's loop and under the simulator.

mod allocs;
mod children;
mod collect;
pub mod command;
mod definitions;
mod depends;
mod deployments;
mod drain;
mod jobs;
mod launches;
mod node;
mod poststop;
mod quarantine;
mod restore;
mod room;
mod scaling;
mod servers;
mod template_restarts;
mod verdict;
mod versions;
mod volumes;

use std_alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    sync::Arc,
    vec::Vec,
};

use herdlet_api_types::{
    AllocId, JobKey, Moment, UnixNanos,
    alloc::Allocation,
    job::Job,
    view::{Convergence, ConvergenceState, JobVersion, JobView, Unplaced},
};

use crate::{
    action::Action,
    alloc::{
        self,
        apply::{Issued, Writer},
        show,
    },
    context::{Context, Settings},
    event::{DesiredChange, Event},
    job::{JobState, capacity::Line, turns::RestartTurns},
    limits::ROUNDS_MAX,
    op::{Key, Op, Part, Subject, Target, TaskPart},
    plan::{Change, Plan},
    record::{Meta, Record, RecordKey, RecordValue},
    shared::volume::Origin,
    spec::AllocSpec,
    state::{AllocState, Tracked},
    status,
    time::{Deadline, Now},
    turn::{Note, OpenTurn, Turn, View},
    world::{
        allocs::{AllocEntry, Allocs, claimed_volumes},
        verdict::Open,
    },
};

/// All objects of this machine.
#[derive(Debug)]
pub struct World {
    pub(crate) ctx: Context,
    pub(crate) meta: Tracked<Meta>,
    pub(crate) jobs: BTreeMap<JobKey, JobEntry>,
    pub(crate) allocs: Allocs,
    /// Jobs that wait for ports or capacity held by other allocations.
    pub(crate) short: BTreeSet<JobKey>,
    /// Jobs with groups that wait for other groups and jobs.
    pub(crate) dependent: BTreeSet<JobKey>,
    /// The queue of jobs that compete for free capacity.
    pub(crate) line: Line,
    pub(crate) generation: u64,
    /// The node's present state was published.
    pub(crate) node_is_shown: bool,
    /// Buffer for issued operations, reused across turns.
    issued: Vec<Issued>,
    /// Buffer for plans of allocations, reused across turns.
    plan: Plan,
}

#[derive(Debug)]
pub(crate) struct JobEntry {
    pub state: Tracked<JobState>,
    pub current: Arc<Job>,
    /// Older versions whose specification is stored.
    pub past: BTreeMap<u64, Arc<JobVersion>>,
    /// The newest version whose specification was passed on to be stored.
    pub written: Option<u64>,
    /// Groups of the current version that may not run on this node; `None` until checked.
    pub infeasible: Option<BTreeMap<String, Unplaced>>,
    /// Why slots can't be filled now, by group.
    pub unplaced: BTreeMap<String, Unplaced>,
    /// When the first replacement of its failed allocations is due.
    pub retry: Option<Deadline>,
    pub since: Moment,
    /// The message of a panic in planning it.
    pub quarantine: Option<String>,
    /// Why it last had to converge; see [`crate::turn::Note::Converged`].
    pub cause: &'static str,
    /// The view as last published.
    pub shown: Option<Arc<JobView>>,
    /// Something that its plan depends on has changed.
    pub stale: bool,
    /// Slots and allocations that have not converged.
    pub open: Open,
    /// Its next launch.
    pub next_launch: Option<UnixNanos>,
}

impl World {
    /// An empty world.
    pub fn new(settings: Settings) -> Self {
        let allocs = Allocs::beside(settings.reserved_ports.clone());
        Self {
            ctx: Context {
                settings,
                volumes: BTreeMap::new(),
                complete: false,
                contact: false,
                awaited: BTreeMap::new(),
                away: BTreeMap::new(),
                disabled: BTreeSet::new(),
                successors: BTreeMap::new(),
                restarts: RestartTurns::default(),
            },
            meta: Tracked::stored(Meta::default()),
            jobs: BTreeMap::new(),
            allocs,
            short: BTreeSet::new(),
            dependent: BTreeSet::new(),
            line: Line::default(),
            generation: 0,
            node_is_shown: false,
            issued: Vec::new(),
            plan: Plan::default(),
        }
    }

    /// Applies one event: changes state and marks the keys to plan.
    pub fn apply(&mut self, now: Now, event: Event, dirty: &mut BTreeSet<Key>, turn: &mut Turn) {
        let open = &mut OpenTurn { now, dirty, turn };
        match event {
            Event::Desired(change) => self.desired(open, change),
            Event::Node { facts, away, disabled } => {
                self.ctx.disabled = disabled;
                self.node_changed(open, *facts, away);
            }
            Event::Listening(ports) => self.allocs.set_listening(ports),
            Event::HostNetworks(networks) => self.host_networks_changed(open, networks),
            Event::ClockSet => self.clock_set(open),
            Event::Outcome(Op { target: Target::Alloc(id, part), generation }, outcome) => {
                self.write(open, id, |writer| writer.outcome(part, generation, outcome));
            }
            Event::Outcome(Op { target: Target::Volume(name), generation }, outcome) => {
                self.volume_outcome(open, &name, generation, outcome);
            }
            Event::Exited { alloc, task, attempt, result } => {
                self.write(open, alloc, |writer| writer.exited(&task, attempt, result));
            }
            Event::Check { alloc, result } => {
                self.write(open, alloc, |writer| writer.checked(result));
            }
            Event::Drift { alloc, part, by } => {
                self.write(open, alloc, |writer| writer.drift(part, by));
            }
            Event::SourceChanging { alloc, part } => {
                self.write(open, alloc, |writer| writer.source_changing(part));
            }
            Event::SourceChanged { alloc, part } => {
                self.write(open, alloc, |writer| writer.source_changed(part));
            }
            Event::Driver { alloc, task, message } => {
                self.write(open, alloc, |writer| writer.driver_message(&task, message));
            }
            Event::Plugin { alloc, task, attempt, health } => {
                self.write(open, alloc, |writer| writer.plugin_reported(&task, attempt, health));
            }
            Event::Progress { alloc, task, what } => {
                self.write(open, alloc, |writer| writer.progress(&task, what));
            }
            Event::Found { alloc, task, attempt } => {
                self.write(open, alloc, |writer| writer.on_attempt_found(&task, attempt));
            }
            Event::Command { request, command } => {
                let reply = self.command(open, command);
                open.turn.replies.push((request, reply));
                // A change of the node alone marks no key.
                self.show_node(open.turn);
                self.flush_meta(open.turn);
            }
        }
    }

    /// Plans one key until its plan makes no more changes, and adds the resulting actions to the turn.
    pub fn reconcile(&mut self, now: Now, key: &Key, dirty: &mut BTreeSet<Key>, turn: &mut Turn) {
        let open = &mut OpenTurn { now, dirty, turn };
        match key {
            Key::Job(job) => self.reconcile_job(open, job),
            Key::Waiting(job) => {
                self.open_line(open, job);
                self.reconcile_job(open, job);
            }
            Key::Volume(name) => self.reconcile_volume(open, name),
            Key::Alloc(id) => self.reconcile_alloc(open, *id),
        }
        open.dirty.remove(key);
        // Repeated each time, so that a panic can't lose these keys: only they open the queue.
        open.dirty.extend(self.line.waiting().cloned().map(Key::Waiting));
        self.show_node(open.turn);
        self.flush_meta(open.turn);
    }

    /// Every key, for the first turn after a start.
    pub fn keys(&self) -> BTreeSet<Key> {
        let jobs = self.jobs.keys().cloned().map(Key::Job);
        let volumes = self.ctx.volumes.keys().cloned().map(Key::Volume);
        let allocs = self.allocs.iter().map(|(id, _)| Key::Alloc(id));
        jobs.chain(volumes).chain(allocs).collect()
    }

    /// All allocations with their states.
    pub fn allocations(&self) -> impl Iterator<Item = (&Arc<Allocation>, &AllocState)> {
        self.allocs.iter().map(|(_, entry)| (entry.spec.allocation(), &entry.state))
    }

    /// All allocations as they are planned.
    pub fn alloc_specs(&self) -> impl Iterator<Item = (&AllocSpec, &AllocState)> {
        self.allocs.iter().map(|(_, entry)| (&*entry.spec, &entry.state))
    }

    /// One allocation with its state.
    pub fn allocation(&self, id: AllocId) -> Option<(&Arc<Allocation>, &AllocState)> {
        self.allocs.get(id).map(|entry| (entry.spec.allocation(), &entry.state))
    }

    /// The context of every plan.
    pub fn context(&self) -> &Context {
        &self.ctx
    }

    fn desired(&mut self, open: &mut OpenTurn<'_>, change: DesiredChange) {
        match change {
            DesiredChange::Volume(volume) => self.want_volume(open, *volume, Origin::Config),
            DesiredChange::VolumeGone(name) => self.drop_volume(open, &name),
            DesiredChange::Job(job) => {
                self.accept_job(open, *job);
            }
            DesiredChange::JobGone(key) => self.delete_job(open, &key),
            DesiredChange::Alloc(spec) => self.place(open, *spec),
            DesiredChange::AllocGone(id) => self.displace(open, id),
            DesiredChange::AllocOutOfContact(id) => self.give_up(open, id),
            DesiredChange::EndedElsewhere(id) => self.follow(open, id),
            DesiredChange::AllocReconnected(id) => {
                self.write(open, id, |writer| writer.reconnected());
            }
            DesiredChange::Contact => self.on_server_allocs(open),
            DesiredChange::Complete => {
                self.ctx.complete = true;
                self.show_node(open.turn);
                for (key, entry) in &mut self.jobs {
                    entry.stale = true;
                    open.dirty.insert(Key::Job(key.clone()));
                }
            }
        }
    }

    /// Changes one allocation's state.
    fn write<R>(
        &mut self,
        open: &mut OpenTurn<'_>,
        id: AllocId,
        change: impl FnOnce(&mut Writer<'_>) -> R,
    ) -> Option<R> {
        let entry = self.allocs.get_mut(id)?;
        let mut issued = core::mem::take(&mut self.issued);
        let result = change(&mut Writer {
            now: open.now,
            settings: &self.ctx.settings,
            spec: &entry.spec,
            state: &mut entry.state,
            generation: &mut self.generation,
            issued: &mut issued,
            notes: &mut open.turn.notes,
        });
        entry.changed = true;
        hand_out(&self.ctx, entry, &mut issued, open.turn);
        self.issued = issued;
        self.review(open, id);
        open.dirty.insert(Key::Alloc(id));
        Some(result)
    }

    /// After a change of the allocation's state: wakes those that wait for its end, or for ports or capacity that it
    /// held.
    fn review(&mut self, open: &mut OpenTurn<'_>, id: AllocId) {
        if self.allocs.review(id) {
            self.room_is_free(open, id);
        }
        if self.ctx.awaited.contains_key(&id) && self.allocs.has_ended(id) {
            self.follow(open, id);
        }
        self.finish_migration(open, id);
    }

    fn reconcile_alloc(&mut self, open: &mut OpenTurn<'_>, id: AllocId) {
        let Some(entry) = self.allocs.get_mut(id) else { return };
        let mut issued = core::mem::take(&mut self.issued);
        let mut plan = core::mem::take(&mut self.plan);
        let mut rounds = 0;
        let gone = loop {
            plan = alloc::plan_on(plan, open.now, &self.ctx, &entry.spec, &entry.state);
            let gone = plan.changes.contains(&Change::Forget);
            if plan.changes.is_empty() || gone || rounds == ROUNDS_MAX {
                break gone;
            }
            rounds += 1;
            entry.changed = true;
            let mut writer = Writer {
                now: open.now,
                settings: &self.ctx.settings,
                spec: &entry.spec,
                state: &mut entry.state,
                generation: &mut self.generation,
                issued: &mut issued,
                notes: &mut open.turn.notes,
            };
            for change in plan.changes.drain(..) {
                writer.change(change);
            }
        };
        hand_out(&self.ctx, entry, &mut issued, open.turn);
        self.issued = issued;
        if gone {
            self.plan = plan;
            return self.remove_alloc(open, id);
        }
        if rounds > 0 {
            self.review(open, id);
        }
        self.follow_restarts(open, id, &plan);
        if let Some(at) = plan.wake_ns {
            open.turn.wakes.push((Key::Alloc(id), at));
        }
        let result = match (rounds, plan.waits.is_empty()) {
            (0, true) => "unchanged",
            (0, false) => "waiting",
            (_, _) => "changed",
        };
        open.turn.notes.push(Note::Reconciled { kind: "alloc", result });
        self.show_alloc(open, id, &plan);
        self.plan = plan;
    }

    /// Stores what changed of an allocation, publishes its view if that may differ, and notifies its job of relevant
    /// changes.
    fn show_alloc(&mut self, open: &mut OpenTurn<'_>, id: AllocId, plan: &Plan) {
        let Some(entry) = self.allocs.get_mut(id) else { return };
        let touched = entry.flush(open, &mut self.meta);
        let standing = Some(entry.summary());
        let stirs = entry.standing != standing;
        entry.standing = standing;
        let (mut has_new_verdict, mut is_published) = (false, false);
        let waits_for = status::foremost(plan, &entry.state);
        let has_new_wait = entry.waits_for.as_ref() != waits_for;
        if has_new_wait {
            entry.waits_for = waits_for.cloned();
        }
        if core::mem::take(&mut entry.changed) || touched || has_new_wait {
            let mut convergence = status::convergence(open.now, &entry.spec, &entry.state, plan, entry.since);
            let converged = |verdict: &Convergence| verdict.state == ConvergenceState::Converged;
            if entry.verdict.as_ref().is_none_or(|was| converged(was) != converged(&convergence)) {
                entry.since = open.now.moment();
                convergence.since = open.now.moment();
            }
            if entry.verdict.as_ref() != Some(&convergence) {
                entry.verdict = Some(convergence.clone());
                has_new_verdict = true;
            }
            let view = show::view(&entry.spec, &entry.state, convergence);
            open.turn.views.push(View::Alloc(view.into()));
            is_published = true;
        }
        if stirs {
            let key = entry.spec.job_key.clone();
            self.mark_stale(open, key);
            self.follow_drain(open);
        } else if has_new_verdict {
            open.dirty.insert(Key::Job(entry.spec.job_key.clone()));
            self.note_verdict(id);
        }
        if is_published {
            self.wake_dependents(open);
        }
    }

    /// Nothing of the allocation is left on the machine: removes it from the world.
    fn remove_alloc(&mut self, open: &mut OpenTurn<'_>, id: AllocId) {
        let Some(entry) = self.allocs.remove(id) else { return };
        self.follow(open, id);
        self.forget_restart(open, &entry.spec);
        self.cancel_migration(open, &entry.spec);
        self.follow_drain(open);
        self.mark_stale(open, entry.spec.job_key.clone());
        open.turn.records.push(Record::Delete(RecordKey::AllocSpec(id)));
        open.turn.records.push(Record::Delete(RecordKey::AllocState(id)));
        open.turn.views.push(View::AllocGone(id));
        self.wake_blocked_jobs();
        open.dirty.extend(claimed_volumes(&entry.spec).map(|name| Key::Volume(name.into_owned())));
    }

    fn flush_meta(&mut self, turn: &mut Turn) {
        if self.meta.take_touched() {
            turn.records.push(Record::Put(RecordKey::Meta, RecordValue::Meta(Meta::clone(&self.meta))));
        }
    }
}

/// Adds the allocation's issued operations to the turn.
fn hand_out(ctx: &Context, entry: &AllocEntry, issued: &mut Vec<Issued>, turn: &mut Turn) {
    let spec = entry.spec.allocation();
    turn.actions.extend(issued.drain(..).map(|Issued { part, generation, verb, timeout }| {
        let mounts = match part {
            Part::Task(index, TaskPart::Mounts | TaskPart::Process) => {
                ctx.mount_sources(spec, usize::from(index))
            }
            Part::Dir | Part::Network | Part::Services | Part::Checks | Part::Task(..) => Vec::new(),
        };
        let op = Op { target: Target::Alloc(spec.id, part), generation };
        let (subject, inputs) = (Subject::Alloc(Arc::clone(spec), part), entry.state.inputs(part));
        let launch = entry.state.launch(part).cloned();
        Action { op, subject, mounts, inputs, launch, verb, timeout }
    }));
}

#[cfg(test)]
mod tests;
