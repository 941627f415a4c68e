//! Jobs in the world: accepts versions, and carries out the job controller's steps.

use std_alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    sync::Arc,
    vec::Vec,
};

use herdlet_api_types::{
    AllocId, JobKey,
    alloc::{AllocDeployment, Allocation, Desired, RescheduleEvent},
    job::{Group, Job},
    view::{Convergence, ConvergenceState, JobView, Reason, Unplaced},
};

use crate::{
    alloc::apply::{reset_health, take_new_version},
    event::JobChange,
    hash::Fields,
    job::{
        JobState, Slot, Submission,
        capacity::Room,
        feasibility, ports, reschedule,
        rollout::{self, Step},
    },
    limits::ROUNDS_MAX,
    op::Key,
    record::{Record, RecordKey, RecordValue},
    spec::AllocSpec,
    state::Tracked,
    time::Now,
    turn::{Note, OpenTurn, View},
    world::{
        JobEntry, World,
        allocs::{AllocEntry, Allocs, claimed_volumes},
        verdict::Open,
    },
};

impl World {
    /// Makes this the job's current version, unless it already is. A job that is being deleted is wanted again.
    pub(crate) fn accept_job(&mut self, open: &mut OpenTurn<'_>, job: Job) -> (u64, JobChange) {
        let key = job.key();
        open.dirty.insert(Key::Job(key.clone()));
        self.wake_dependents(open);
        if let Some(entry) = self.jobs.get_mut(&key) {
            entry.stale = true;
            entry.quarantine = None;
        }
        let index = self.meta.index + 1;
        match self.jobs.get_mut(&key) {
            Some(entry) if *entry.current == job && !entry.state.deleting => {
                (entry.state.version, JobChange::Unchanged)
            }
            Some(entry) => {
                entry.since = open.now.moment();
                entry.cause = "apply";
                entry.change_launches(open.now, &job);
                entry.begin_version(Arc::new(job), Submission { index, time: open.now.wall });
                let state = &mut *entry.state;
                state.deleting = false;
                state.modify_index = index;
                self.line.join(&key, entry.current.priority, entry.state.create_index, false);
                self.meta.index = index;
                let version = entry.state.version;
                if self.reserve_again(&key) {
                    self.wake_blocked_jobs();
                }
                self.keep_shutdown_delays(open, &key);
                (version, JobChange::Updated)
            }
            None => {
                let state = JobState {
                    key: key.clone(),
                    version: 0,
                    versions: [0].into(),
                    submitted: [(0, Submission { index, time: open.now.wall })].into(),
                    create_index: index,
                    modify_index: index,
                    submit_time: open.now.wall,
                    deleting: false,
                    slots: BTreeMap::new(),
                    deployments: Vec::new(),
                    launches: None,
                    stable: BTreeSet::new(),
                    tags: BTreeMap::new(),
                    scaled: Arc::default(),
                    definition: None,
                };
                self.meta.index = index;
                let entry = JobEntry {
                    state: Tracked::new(state),
                    current: Arc::new(job),
                    past: BTreeMap::new(),
                    written: None,
                    infeasible: None,
                    unplaced: BTreeMap::new(),
                    retry: None,
                    since: open.now.moment(),
                    quarantine: None,
                    cause: "apply",
                    shown: None,
                    stale: true,
                    open: Open::default(),
                    next_launch: None,
                };
                self.line.join(&key, entry.current.priority, index, false);
                self.jobs.insert(key, entry);
                (0, JobChange::Created)
            }
        }
    }

    /// Deletes a job: its allocations are stopped and removed, then the job.
    pub(crate) fn delete_job(&mut self, open: &mut OpenTurn<'_>, key: &JobKey) {
        let index = self.meta.index + 1;
        if let Some(entry) = self.jobs.get_mut(key)
            && !entry.state.deleting
        {
            entry.state.deleting = true;
            entry.quarantine = None;
            entry.stale = true;
            entry.state.modify_index = index;
            entry.since = open.now.moment();
            self.meta.index = index;
            open.dirty.insert(Key::Job(key.clone()));
            if self.reserve_again(key) {
                self.wake_blocked_jobs();
            }
        }
    }

    /// The job is wanted again: clears `no_shutdown_delay` on allocations that keep running.
    fn keep_shutdown_delays(&mut self, open: &mut OpenTurn<'_>, key: &JobKey) {
        let ids: Vec<AllocId> = self.allocs.of_job(key).map(|(id, _)| id).collect();
        for id in ids {
            if let Some(entry) = self.allocs.get_mut(id)
                && entry.spec.desired == Desired::Run
                && entry.state.durable.no_shutdown_delay
            {
                entry.state.durable.no_shutdown_delay = false;
                entry.changed = true;
                open.dirty.insert(Key::Alloc(id));
            }
        }
    }

    /// Marks the job's plan as outdated.
    pub(crate) fn mark_stale(&mut self, open: &mut OpenTurn<'_>, key: JobKey) {
        if let Some(entry) = self.jobs.get_mut(&key) {
            entry.stale = true;
        }
        open.dirty.insert(Key::Job(key));
    }

    pub(crate) fn reconcile_job(&mut self, open: &mut OpenTurn<'_>, key: &JobKey) {
        if self.jobs.get(key).is_some_and(|entry| entry.quarantine.is_some()) {
            return;
        }
        let launch_ns = self.launch_due(open, key);
        let drain_ns = self.drain_wake_ns(open.now);
        let mut result = "unchanged";
        let drains = self.drain_is_due(open.now, key);
        // A mere change of an allocation's convergence does not change the job's plan.
        let is_stale = |entry: &JobEntry| {
            let deployment = entry.state.deployment().filter(|known| known.deployment.is_running());
            let retries = entry.retry.is_some_and(|retry| retry.is_due(open.now));
            entry.stale || drains || retries || deployment.is_some_and(|known| known.is_due(open.now))
        };
        let rounds = if self.jobs.get(key).is_some_and(is_stale) { ROUNDS_MAX } else { 0 };
        for _ in 0..rounds {
            let allocs: Vec<AllocId> = self.allocs.of_job(key).map(|(id, _)| id).collect();
            if self.follow_deployments(open, key, &allocs) {
                result = "changed";
                continue;
            }
            let mut steps = self.plan_job(open.now, key, &allocs);
            self.hold_back(key, &mut steps);
            steps.extend(self.drain_steps(open.now, key));
            if steps.contains(&Step::Forget) {
                self.remove_job(open, key);
                return;
            }
            let mut moved = false;
            for step in steps {
                moved |= self.step(open, key, step);
            }
            if !moved {
                break;
            }
            result = "changed";
        }
        let Some(entry) = self.jobs.get_mut(key) else { return };
        if !entry.unplaced.is_empty() {
            result = "waiting";
        }
        open.turn.notes.push(Note::Reconciled { kind: "job", result });
        if entry.stale {
            entry.prune_versions(key, &self.allocs, open.turn);
            entry.open = Open::of(key, entry, &self.allocs);
        }
        if rounds > 0 {
            entry.retry = self.allocs.next_retry(key, open.now);
        }
        entry.flush(open, key, &self.allocs);
        let wakes = [
            entry.state.deployment().and_then(|known| known.wake_ns(open.now)),
            entry.retry.map(|retry| retry.due_ns(open.now)),
            launch_ns,
            drain_ns,
        ];
        open.turn.wakes.extend(wakes.into_iter().flatten().map(|at| (Key::Job(key.clone()), at)));
        open.dirty.extend(self.line.planned(key).into_iter().map(Key::Waiting));
    }

    fn plan_job(&mut self, now: Now, key: &JobKey, allocs: &[AllocId]) -> Vec<Step> {
        let Some(entry) = self.jobs.get_mut(key) else { return Vec::new() };
        entry.unplaced.clear();
        if !self.ctx.complete && entry.state.deleting {
            return Vec::new();
        }
        // A version does not change, and this node rarely, so the result is cached: regular expressions are not compiled
        // at each plan.
        let (job, node, away) = (&entry.current, &self.ctx.settings.node, &self.ctx.away);
        let infeasible = entry.infeasible.get_or_insert_with(|| {
            let groups = job.groups.iter();
            let held = groups.filter_map(|group| {
                Some((group, feasibility::check_with_drivers(job, group, node, away).err()?))
            });
            held.map(|(group, why)| (group.name.clone(), why.of(&format!("{}.{}:", key.id, group.name))))
                .collect()
        });
        let fits = |group: &Group| !infeasible.contains_key(&group.name);
        rollout::plan(now, &entry.current, &entry.state, allocs, &|id| self.allocs.placement(id), &fits)
    }

    /// Carries out one step. Returns whether anything changed.
    fn step(&mut self, open: &mut OpenTurn<'_>, key: &JobKey, step: Step) -> bool {
        match step {
            Step::Want { alloc, desired, why } => self.want_of(open, alloc, desired, why),
            Step::Replace(alloc) => self.replace(open, key, alloc),
            Step::Create { group, index, previous } => {
                let place = NewAlloc { group: &group, index, previous, canary: false };
                self.create_alloc(open, key, place)
            }
            Step::Canary { group, index } => {
                let beside = self.jobs.get(key).and_then(|entry| entry.state.slots.get(&group));
                let at = usize::try_from(index).unwrap_or(usize::MAX);
                let previous = beside.and_then(|slots| slots.get(at)).and_then(|slot| slot.alloc);
                self.create_alloc(open, key, NewAlloc { group: &group, index, previous, canary: true })
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

    pub(super) fn want_of(
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

    fn create_alloc(&mut self, open: &mut OpenTurn<'_>, key: &JobKey, place: NewAlloc<'_>) -> bool {
        let NewAlloc { group, index, previous, canary } = place;
        // A successor does not wait again: its group has started before.
        if previous.is_none()
            && !canary
            && let Some(why) = self.unmet_dependency(key, group)
        {
            self.wait_for_others(key, group, why.of(&format!("{}.{group}", key.id)));
            return false;
        }
        let create_index = self.meta.index + 1;
        let Some(entry) = self.jobs.get_mut(key) else { return false };
        let job = Arc::clone(&entry.current);
        let Some(spec) = job.group(group) else { return false };
        let at = usize::try_from(index).unwrap_or(usize::MAX);
        let had = entry.state.slots.get(group).and_then(|slots| slots.get(at)).map_or(0, |slot| slot.had);
        if feasibility::is_distinct(&job, spec)
            && let Err(why) = self.allocs.check_distinct(&job, spec)
        {
            entry.hold(group, why.of(&format!("{}.{group}:", key.id)));
            return false;
        }
        let settings = &self.ctx.settings;
        let wants = Room::of(spec);
        if (!wants.is_empty() || spec.fixed_ports().next().is_some()) && self.line.is_anothers_turn(key) {
            return false;
        }
        let name = || format!("{}.{group}[{index}]", key.id);
        if let Err(why) = wants.check(settings.room.minus(self.allocs.taken()), settings.room) {
            self.wait_for_room(key, group, why.of(&name()));
            return false;
        }
        let id = alloc_id(&settings.instance.0, key, entry.state.create_index, group, index, had);
        let ports =
            match ports::assign(spec, id, self.allocs.ports(), &settings.dynamic_ports, &settings.host_ip) {
                Ok(ports) => ports,
                Err(why) => {
                    let unplaced = why.unplaced(|port| self.allocs.holder_of(port));
                    self.wait_for_room(key, group, unplaced.of(&name()));
                    return false;
                }
            };
        let followed = previous.filter(|_| !canary).and_then(|previous| self.allocs.get(previous));
        let retry = followed.and_then(|alloc| Some((alloc, alloc.state.durable.reschedule()?)));
        let retry = retry.filter(|(_, due)| due.is_due(open.now));
        let slots = entry.state.slots.entry(String::from(group)).or_default();
        if slots.len() <= at {
            slots.resize(at + 1, Slot::default());
        }
        let mut rescheduled = Vec::new();
        if let Some(slot) = slots.get_mut(at) {
            slot.had += 1;
            if canary {
                slot.canary = Some(id);
            } else {
                slot.alloc = Some(id);
                slot.rescheduled = match &retry {
                    Some((_, due)) => {
                        reschedule::follow(open.now, &spec.reschedule, &slot.rescheduled, due.length)
                    }
                    None => Vec::new(),
                };
                let forgotten = retry.map_or(0, |(alloc, _)| alloc.spec.rescheduled.len() + 1);
                let forgotten = forgotten.saturating_sub(slot.rescheduled.len());
                rescheduled.extend(retry.into_iter().flat_map(|(alloc, due)| {
                    let event =
                        RescheduleEvent { time: open.now.wall, previous: alloc.spec.id, delay: due.length };
                    alloc.spec.rescheduled.iter().copied().chain([event]).skip(forgotten)
                }));
            }
        }
        let deployment = entry.join(open.now, group, id, canary);
        let alloc = Allocation {
            id,
            job_key: key.clone(),
            job_version: entry.state.version,
            job,
            group: String::from(group),
            index,
            ports: ports.group,
            task_ports: ports.tasks,
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
        if let Some((id_before, before)) =
            previous.filter(|_| !canary).and_then(|before| Some((before, self.allocs.get_mut(before)?)))
        {
            before.spec.change(|spec| spec.next = Some(id));
            before.changed = true;
            open.dirty.insert(Key::Alloc(id_before));
        }
        let claimed = claimed_volumes(&alloc).filter(|name| self.ctx.volumes.contains_key(&**name));
        open.dirty.extend(claimed.map(|name| Key::Volume(name.into_owned())));
        if alloc.predecessor().is_some() {
            self.wait_for_previous_of(&alloc);
        }
        self.allocs.insert(AllocEntry::new(AllocSpec::read(Arc::new(alloc)), open.now));
        self.review_restart(open, id);
        open.dirty.insert(Key::Alloc(id));
        true
    }

    /// Moves the allocation, unchanged, to the current version. A running deployment judges it again.
    fn take_over(&mut self, open: &mut OpenTurn<'_>, key: &JobKey, id: AllocId) -> bool {
        let Some(entry) = self.jobs.get_mut(key) else { return false };
        let Some(alloc) = self.allocs.get_mut(id) else { return false };
        let old = Arc::clone(&alloc.spec.job);
        let joined = entry.join(open.now, &alloc.spec.group, id, false);
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

    fn remove_job(&mut self, open: &mut OpenTurn<'_>, key: &JobKey) {
        let Some(entry) = self.jobs.remove(key) else { return };
        self.short.remove(key);
        self.let_others_in(open, key);
        for version in &entry.state.versions {
            open.turn.records.push(Record::Delete(RecordKey::JobVersion(key.clone(), *version)));
        }
        open.turn.records.push(Record::Delete(RecordKey::Job(key.clone())));
        open.turn.views.push(View::JobGone(key.clone()));
    }
}

/// The slot of a new allocation.
#[derive(Debug, Clone, Copy)]
struct NewAlloc<'a> {
    group: &'a str,
    index: u32,
    previous: Option<AllocId>,
    canary: bool,
}

impl JobEntry {
    /// Notes that the group's allocations can't be placed now. The first reason is kept.
    pub(super) fn hold(&mut self, group: &str, unplaced: Unplaced) {
        self.unplaced.entry(String::from(group)).or_insert(unplaced);
    }

    /// Adds an allocation to the running deployment, if there is one.
    fn join(&mut self, now: Now, group: &str, id: AllocId, canary: bool) -> Option<AllocDeployment> {
        let version = self.state.version;
        let joined = self.state.deployment().filter(|known| known.deployment.is_running())?;
        joined.group(group)?;
        let state = &mut *self.state;
        let known = state.deployments.iter_mut().find(|known| known.deployment.job_version == version)?;
        known.place(now, group, id, canary);
        Some(AllocDeployment { id: known.deployment.id, canary })
    }

    /// Stores what changed of the job and publishes its view if that differs.
    pub(crate) fn flush(&mut self, open: &mut OpenTurn<'_>, key: &JobKey, allocs: &Allocs) {
        let convergence = self.convergence(key, allocs);
        if self.state.take_touched() {
            self.write_versions(key, open.turn);
            let value = RecordValue::Job((*self.state).clone().into());
            open.turn.records.push(Record::Put(RecordKey::Job(key.clone()), value));
        }
        let stale = core::mem::take(&mut self.stale);
        let shown = self.shown.as_deref();
        let was = shown.map(|view| view.convergence.state);
        if was != Some(convergence.state) {
            if convergence.state == ConvergenceState::Converged {
                let took = open.now.boot_ns.saturating_sub(self.since.boot_ns);
                open.turn.notes.push(Note::Converged { kind: "job", took_ns: took, cause: self.cause });
            }
            if was == Some(ConvergenceState::Converged) && self.since.wall != self.state.submit_time {
                let ended = convergence.reason == Some(Reason::Backoff);
                self.cause = if ended { "exit" } else { "drift" };
            }
            if was == Some(ConvergenceState::Converged) || convergence.state == ConvergenceState::Converged {
                self.since = open.now.moment();
            }
        }
        let convergence = Convergence { since: self.since, ..convergence };
        let state = &self.state;
        let same = shown.is_some_and(|shown| {
            shown.modify_index == state.modify_index
                && shown.convergence == convergence
                && shown.quarantined == self.quarantine.is_some()
                && shown.unplaced == self.unplaced
                && shown.past.len() == self.past.len()
                && shown.past.iter().map(|past| &past.tag).eq(self.past.values().map(|past| &past.tag))
                && shown.tag.as_ref() == state.tags.get(&state.version)
                && shown.scaled == state.scaled
                && shown.held.as_deref() == state.held()
                && shown.next_launch == self.next_launch
                && shown.deployments.iter().eq(state.deployments.iter().rev().map(|known| &known.deployment))
                && (!stale || shown.allocs.iter().copied().eq(allocs.of_job(key).map(|(id, _)| id)))
        });
        if same {
            return;
        }
        let view = Arc::new(JobView {
            key: key.clone(),
            version: state.version,
            job: Arc::clone(&self.current),
            deleting: state.deleting,
            create_index: state.create_index,
            modify_index: state.modify_index,
            submit_time: state.submit_time,
            allocs: allocs.of_job(key).map(|(id, _)| id).collect(),
            convergence,
            quarantined: self.quarantine.is_some(),
            deployments: state.deployments.iter().rev().map(|known| Arc::clone(&known.deployment)).collect(),
            unplaced: self.unplaced.clone(),
            tag: state.tags.get(&state.version).cloned(),
            past: self.past.values().map(Arc::clone).collect(),
            scaled: Arc::clone(&state.scaled),
            next_launch: self.next_launch,
            placed: false,
            held: state.held().map(String::from),
        });
        self.shown = Some(Arc::clone(&view));
        open.turn.views.push(View::Job(view));
    }
}

/// The id of a slot's next allocation: a hash of everything that identifies it.
fn alloc_id(instance: &str, key: &JobKey, create_index: u64, group: &str, index: u32, had: u32) -> AllocId {
    let mut fields = Fields::default();
    for text in [instance, &key.namespace, &key.id, group] {
        fields.text(text);
    }
    fields.number(create_index);
    fields.number(u64::from(index));
    fields.number(u64::from(had));
    AllocId::from_hash(fields.start())
}
