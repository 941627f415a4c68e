//! Jobs in the world: accepts versions, plans jobs, and removes them.
//!
//! In: a version of a job, a request to delete it, or the key of a job to plan. Out: the changed world.
//!
//! - [`step`]: carries out the steps of a plan.
//! - [`publish`]: stores and shows a job.

mod publish;
mod step;

use std_alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    sync::Arc,
    vec::Vec,
};

use herdlet_api_types::{
    AllocId, JobKey,
    alloc::Desired,
    job::{Group, Job},
    view::Unplaced,
};

use crate::{
    event::JobChange,
    job::{
        JobState, Submission, feasibility,
        rollout::{self, Step},
    },
    limits::ROUNDS_MAX,
    op::Key,
    record::{Record, RecordKey},
    state::Tracked,
    time::Now,
    turn::{Note, OpenTurn, View},
    world::{JobEntry, World, verdict::Open},
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
        let drains = self.drain_is_due(open.now, key);
        // A mere change of an allocation's convergence does not change the job's plan.
        let is_stale = |entry: &JobEntry| {
            let deployment = entry.state.deployment().filter(|known| known.deployment.is_running());
            let retries = entry.retry.is_some_and(|retry| retry.is_due(open.now));
            entry.stale || drains || retries || deployment.is_some_and(|known| known.is_due(open.now))
        };
        let mut has_changed = false;
        let rounds = if self.jobs.get(key).is_some_and(is_stale) { ROUNDS_MAX } else { 0 };
        for _ in 0..rounds {
            if self.follow_deployments(open, key) {
                has_changed = true;
                continue;
            }
            let mut steps = self.plan_job(open.now, key);
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
            has_changed = true;
        }
        let Some(entry) = self.jobs.get_mut(key) else { return };
        let result = match (entry.unplaced.is_empty(), has_changed) {
            (false, _) => "waiting",
            (true, true) => "changed",
            (true, false) => "unchanged",
        };
        open.turn.notes.push(Note::Reconciled { kind: "job", result });
        if entry.stale {
            entry.prune_versions(key, &self.allocs, open.turn);
        }
        // A deployment that ends by time changes what its verdicts on allocations mean. Other changes of verdicts are
        // applied one by one.
        if entry.stale || has_changed {
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

    fn plan_job(&mut self, now: Now, key: &JobKey) -> Vec<Step> {
        let Some(entry) = self.jobs.get_mut(key) else { return Vec::new() };
        entry.unplaced.clear();
        if !self.ctx.complete && entry.state.deleting {
            return Vec::new();
        }
        // A version does not change, and this node rarely, so the result is cached: regular expressions are not compiled
        // at each plan.
        let (job, node, away) = (&entry.current, &self.ctx.settings.node, &self.ctx.away);
        entry.infeasible.get_or_insert_with(|| {
            let groups = job.groups.iter();
            let held = groups.filter_map(|group| {
                Some((group, feasibility::check_with_drivers(job, group, node, away).err()?))
            });
            held.map(|(group, why)| (group.name.clone(), why.of(&format!("{}.{}:", key.id, group.name))))
                .collect()
        });
        let entry = &*entry;
        let is_held = |group: &Group| entry.infeasible.iter().any(|held| held.contains_key(&group.name));
        entry.read(now, &self.allocs, |pass| rollout::plan(pass, &|group| !is_held(group)))
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

impl JobEntry {
    /// Notes that the group's allocations can't be placed now. The first reason is kept.
    pub(super) fn hold(&mut self, group: &str, unplaced: Unplaced) {
        self.unplaced.entry(String::from(group)).or_insert(unplaced);
    }
}
