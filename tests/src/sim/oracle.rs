//! The oracle: what a life must come to once its faults stop. All settles; a settled world rests; what is there does not
//! depend on how it came about; deleting everything leaves nothing.

use std::collections::BTreeSet;

use herdlet_api_types::{
    AllocId, JobKey,
    job::ChangeMode,
    view::{ConvergenceState, JobView},
};
use herdlet_plan::{
    event::{Command, Event, Noticed},
    op::Part,
    record::RecordKey,
    state::PartState,
    turn::Turn,
};

use super::{
    life::{Faults, Life, SECOND},
    machine::{Phase, Thing},
};

impl Life {
    /// Lives through `moments` of everything that can happen, then lets the faults stop and holds the oracle: all settles, a
    /// settled world rests, it is what a life without faults comes to, and deleting everything leaves nothing.
    pub fn live(&mut self, moments: u64) -> Result<(), String> {
        for _ in 0..moments {
            if self.dice.one_in(6) {
                self.act();
            }
            self.moment()?;
        }
        self.faults = Faults::default();
        self.machine.catalogue_down_until = 0;
        self.want_volume();
        self.settle("after the faults stopped")?;
        self.check_wanted()?;
        self.rest()?;
        self.check_history()?;
        for id in self.wanted.keys().cloned().collect::<Vec<_>>() {
            self.delete(&id);
        }
        self.settle("after everything was deleted")?;
        self.check_nothing_left()
    }

    /// Goes on until nothing more happens by itself, or nothing but timers of a converged world for eight minutes.
    pub fn settle(&mut self, when: &str) -> Result<(), String> {
        let mut calm_since = self.now_ns;
        for _ in 0..20_000 {
            let idle = self.events.is_empty() && self.dirty.is_empty() && self.flights.is_empty();
            if self.unsettled().is_some() {
                calm_since = self.now_ns;
            } else if idle && self.next().is_none_or(|at| at > calm_since + 480 * SECOND) {
                return Ok(());
            }
            self.moment()?;
        }
        let why = self.unsettled().map(|view| format!("job {} is {:?}", view.key, view.convergence));
        Err(format!("{when}: never settles; {why:?}"))
    }

    /// A job that neither has what it wants nor says that it failed.
    fn unsettled(&self) -> Option<&JobView> {
        self.jobs.values().find(|view| match view.convergence.state {
            ConvergenceState::Converged | ConvergenceState::Failed => false,
            ConvergenceState::Progressing | ConvergenceState::Waiting => true,
        })
    }

    /// Exactly the jobs exist that people were told are wanted.
    fn check_wanted(&mut self) -> Result<(), String> {
        if let Some(view) = self.unsettled() {
            let why = format!("job {} has settled as {:?}", view.key, view.convergence);
            self.explain();
            return Err(why);
        }
        let shown: Vec<&String> = self.jobs.keys().map(|key| &key.id).collect();
        let wanted: Vec<&String> = self.wanted.keys().collect();
        if shown != wanted {
            return Err(format!("{shown:?} exist, {wanted:?} are wanted"));
        }
        Ok(())
    }

    /// A settled world that is looked at all over, and left alone for hours, does nothing but what its timers ask for.
    fn rest(&mut self) -> Result<(), String> {
        let mut looks = Vec::new();
        for (spec, state) in self.world.allocations() {
            let up = state.parts.iter().filter(|(_, state)| **state == PartState::Up);
            looks.extend(up.map(|(part, _)| Event::Drift { alloc: spec.id, part, by: Noticed::Look }));
        }
        let renewing = self.allocs.values().filter_map(|view| view.spec.group()).any(|group| {
            let mut identities = group.tasks.iter().flat_map(|task| &task.identities);
            identities.any(|identity| identity.ttl.is_some() && identity.change_mode != ChangeMode::Noop)
        });
        self.events.extend(looks);
        let (commits, since, mut views) = (self.commits, self.now_ns, self.job_views);
        let shown: Vec<_> = self.jobs.values().map(|view| view.convergence.clone()).collect();
        while self.now_ns < since + 3_600 * SECOND && self.moment()? {
            if self.commits != commits && !renewing {
                return Err("a settled world writes".to_owned());
            }
            if self.job_views == views {
                continue;
            }
            views = self.job_views;
            if !renewing && shown.iter().ne(self.jobs.values().map(|view| &view.convergence)) {
                return Err("a settled world shows something else".to_owned());
            }
        }
        self.settle("after hours of rest")
    }

    /// What is there is what a life without faults comes to that is asked for the same.
    fn check_history(&mut self) -> Result<(), String> {
        let mut clean = Life::new(1, Faults::default());
        clean.want_volume();
        clean.apply(self.wanted.values().cloned().collect());
        clean.settle("a life without faults")?;
        self.steps += clean.steps;
        for (key, view) in &self.jobs {
            let Some(other) = clean.jobs.get(key) else { continue };
            let converged = |view: &JobView| view.convergence.state == ConvergenceState::Converged;
            if converged(view) && converged(other) {
                let (mine, theirs) = (self.inventory(key), clean.inventory(key));
                if mine != theirs {
                    return Err(format!("job {key} has {mine:?}, without its history {theirs:?}"));
                }
            }
        }
        Ok(())
    }

    /// What a job has: the processes of its wanted allocations by slot, and what they use. What ended tasks left is not kept.
    fn inventory(&self, key: &JobKey) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for view in self.allocs.values().filter(|view| view.spec.job_key == *key) {
            if view.spec.desired != herdlet_api_types::alloc::Desired::Run {
                continue;
            }
            let (id, name) = (view.spec.id, view.spec.name());
            for thing in &self.machine.things {
                let Thing::Part(of, part) = thing else { continue };
                let used = match part {
                    Part::Task(index, _) => self.machine.lives(id, *index),
                    Part::Dir | Part::Services | Part::Checks => !view.status.is_terminal(),
                };
                if *of == id && used {
                    all.insert(format!("{name} {part:?}"));
                }
            }
            let live = self.machine.live().filter(|((of, ..), _)| *of == id);
            all.extend(live.map(|((_, index, _), _)| format!("{name} task {index}")));
        }
        all
    }

    fn check_nothing_left(&self) -> Result<(), String> {
        if let Some((key, _)) = self.machine.live().next() {
            return Err(format!("{key:?} lives on"));
        }
        let mut records = self.machine.attempts.iter();
        if let Some((key, _)) = records.find(|(_, known)| known.phase != Phase::Tombstone) {
            return Err(format!("the record of {key:?} is left"));
        }
        if let Some(thing) = self.machine.things.iter().find(|thing| matches!(thing, Thing::Part(..))) {
            let Thing::Part(id, part) = thing else { return Ok(()) };
            return Err(format!("left behind: {part:?} of {}", self.tale.name_of(*id)));
        }
        let mut stored = self.stored.keys();
        match stored.find(|key| !matches!(key, RecordKey::Meta | RecordKey::Volume(_))) {
            Some(key) => Err(format!("stored still: {key:?}")),
            None => Ok(()),
        }
    }

    /// Logs what every allocation waits for.
    fn explain(&mut self) {
        let ids: Vec<AllocId> = self.world.allocations().map(|(spec, _)| spec.id).collect();
        for alloc in ids {
            let (mut turn, command) = (Turn::default(), Command::Explain { alloc });
            let event = Event::Command { request: 0, command };
            self.world.apply(self.now(), event, &mut BTreeSet::new(), &mut turn);
            for (_, reply) in turn.replies {
                self.tale.note(self.now_ns, || format!("{reply:?}"));
            }
        }
    }
}
