//! The oracle: checks safety at each step, and liveness after the faults have stopped. The system settles; a settled system
//! rests; its state does not depend on its history; deleting everything leaves nothing.

mod processes;

use std::{cell::LazyCell, collections::BTreeSet, fmt, sync::Arc};

use herdlet_api_types::{
    AllocId, JobKey,
    job::{ChangeMode, Group, Job, Periodic},
    view::{ConvergenceState, JobView, Reason},
};
use herdlet_plan::{
    event::{Command, Event, Noticed},
    job::capacity::Room,
    record::RecordKey,
    state::{PartState, Run},
    turn::Turn,
};

use super::{
    clock::SECOND,
    deployments,
    jobs::is_unfit,
    launches::{PERIOD, is_free},
    life::{Faults, Life},
    machine::{Phase, Thing},
    rooms::{self, Occupancy},
};

/// A violated property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// A safety violation: a forbidden state. Checked at each step.
    Safety(String),
    /// A liveness violation: an expected state was not reached after the faults stopped.
    Liveness(String),
}

/// An error that is not a liveness violation is a safety violation.
impl From<String> for Violation {
    fn from(why: String) -> Self {
        Self::Safety(why)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Safety(why) => write!(f, "safety: {why}"),
            Self::Liveness(why) => write!(f, "liveness: {why}"),
        }
    }
}

impl From<Violation> for String {
    fn from(broken: Violation) -> Self {
        broken.to_string()
    }
}

fn never_comes<T>(why: String) -> Result<T, Violation> {
    Err(Violation::Liveness(why))
}

/// How long a system with few jobs may take to settle once the faults stop: stopping, waiting for deadlines and starting
/// alone take minutes, and a task that has failed again and again counts after an hour.
const SETTLED_WITHIN_NS: u64 = 2 * 3_600 * SECOND;

/// How many moments it may take: a system that never rests may do so within no time.
const SETTLED_WITHIN_MOMENTS: u64 = 20_000;

/// The maximum of "few" jobs. Of more, many wait for each other's room.
const FEW_JOBS: usize = 8;

impl Life {
    /// Simulates `moments` with all faults, then stops the faults and checks liveness: the system settles and rests, it has
    /// the state of a simulation without faults, and deleting everything leaves nothing.
    pub fn live(&mut self, moments: u64) -> Result<(), Violation> {
        let faults = self.faults;
        self.try_everything(moments, Self::act)?;
        self.end_faults();
        self.check_launches()?;
        self.settle("after the faults stopped")?;
        self.check_wanted()?;
        // Replicas that are healthy restart in turns.
        self.complete_data();
        self.settle("after a change of all data")?;
        self.check_wanted()?;
        if self.rng.one_in(3) {
            // A settled deployment can be rolled out completely, wait for users, and be reverted to.
            self.faults = faults;
            self.release_all();
            self.try_everything(moments, Self::decide)?;
            self.end_faults();
            self.settle("after new releases")?;
            self.check_wanted()?;
            self.decide();
            self.settle("after a decision on a deployment")?;
            self.check_wanted()?;
        }
        self.check_processes_are_current()?;
        self.check_launch_records()?;
        self.rest()?;
        self.check_processes_are_current()?;
        self.check_history()?;
        for id in self.wanted.keys().cloned().collect::<Vec<_>>() {
            self.delete(&id);
        }
        self.settle("after everything was deleted")?;
        self.check_nothing_left()
    }

    /// Simulates this many moments with faults. Now and then users do `something`.
    fn try_everything(&mut self, moments: u64, something: fn(&mut Self)) -> Result<(), Violation> {
        for _ in 0..moments {
            // Requests are not admitted while nothing can be stored.
            if self.rng.one_in(6) && !self.is_full() {
                something(self);
            }
            self.moment()?;
        }
        Ok(())
    }

    fn end_faults(&mut self) {
        self.faults = Faults::default();
        self.end_driver_fault();
        self.machine.catalogue_down_until = 0;
        self.complete_data();
        self.full_until = 0;
        self.want_volumes();
        self.go_on();
    }

    /// Continues until nothing happens by itself any more, or only timers of a converged system for eight minutes.
    pub fn settle(&mut self, when: &str) -> Result<(), Violation> {
        let mut calm_since = self.now_ns;
        let (began, mut moments, mut times) = (self.now_ns, 0, 1);
        while calm_since < began + SETTLED_WITHIN_NS * times && moments < SETTLED_WITHIN_MOMENTS * times {
            times = times.max(self.jobs.len().div_ceil(FEW_JOBS) as u64);
            moments += 1;
            let idle = self.events.is_empty() && self.dirty.is_empty() && self.flights.is_empty();
            if self.unsettled().is_some() {
                calm_since = self.now_ns;
            } else if idle && self.next().is_none_or(|at| at > calm_since + 480 * SECOND) {
                return Ok(());
            }
            self.moment()?;
        }
        let why = self.unsettled().map(|view| format!("job {} is {:?}", view.key, view.convergence));
        never_comes(format!("{when}: does not settle: {why:?}"))
    }

    /// A job that has neither converged nor failed, and does not wait for a legitimate reason such as a taken port.
    fn unsettled(&self) -> Option<&JobView> {
        let occupancy = LazyCell::new(|| Occupancy::new(&self.jobs, &self.allocs));
        let unsettled = |view: &&JobView| match view.convergence.state {
            ConvergenceState::Converged | ConvergenceState::Failed => false,
            ConvergenceState::Waiting if view.convergence.reason == Some(Reason::Port) => {
                !self.is_beaten(view)
            }
            ConvergenceState::Waiting if rooms::waits(view) => !occupancy.lacks_room(view, Room::default()),
            ConvergenceState::Waiting if view.convergence.reason == Some(Reason::Constraint) => {
                !is_unfit(&view.job)
            }
            // Another allocation of its group does not become healthy.
            ConvergenceState::Waiting if self.is_turn_blocked(view) => false,
            // No user will promote it any more.
            ConvergenceState::Waiting if view.convergence.reason == Some(Reason::Promotion) => false,
            ConvergenceState::Progressing | ConvergenceState::Waiting => true,
        };
        self.jobs.values().map(|view| &**view).find(unsettled)
    }

    /// Whether a live allocation of another job has a port that this job requests.
    fn is_beaten(&self, job: &JobView) -> bool {
        let published = job.job.groups.iter().flat_map(Group::published_ports).map(|publish| publish.port);
        let fixed: Vec<u16> = job.job.groups.iter().flat_map(Group::fixed_ports).chain(published).collect();
        self.allocs.values().any(|view| {
            let held = view.spec.host_ports().map(|port| port.value);
            let holds = held.chain(view.spec.published_ports()).any(|port| fixed.contains(&port));
            holds && view.spec.job_key != job.key && !view.status.is_terminal()
        })
    }

    /// Each moment is launched, also after a kill. Of the moments that the clock skips one is launched, and none is launched
    /// again when the clock goes back. Then disables all launches.
    fn check_launches(&mut self) -> Result<(), Violation> {
        self.pass(1)?;
        if self.launching().next().is_some() {
            let behind = self.launches.behind(self.now().wall).max(0);
            self.leap(behind + 3 * PERIOD)?;
            self.check_moments(2)?;
            self.crash()?;
            self.check_moments(2)?;
            let before = self.count_launches();
            self.leap(10 * PERIOD)?;
            self.expect_launches("a clock that leaps", &before, 1)?;
            let before = self.count_launches();
            self.leap(-5 * PERIOD)?;
            self.pass(4 * PERIOD.unsigned_abs())?;
            self.expect_launches("a clock that goes back", &before, 0)?;
            self.leap(5 * PERIOD)?;
        }
        let off = |job: &Job| Job {
            periodic: job.periodic.clone().map(|periodic| Periodic { enabled: false, ..periodic }),
            ..job.clone()
        };
        let launching = self.wanted.values().filter(|job| job.launches().is_some());
        // A child can't be changed.
        let (children, jobs): (Vec<&Job>, Vec<&Job>) = launching.partition(|job| job.parent_id().is_some());
        let children: Vec<String> = children.into_iter().map(|job| job.id.clone()).collect();
        self.apply(jobs.into_iter().map(off).collect());
        for id in children {
            self.delete(&id);
        }
        Ok(())
    }

    /// Jobs with enabled launches.
    fn launching(&self) -> impl Iterator<Item = &Arc<JobView>> {
        let enabled = |view: &&Arc<JobView>| {
            !view.is_stopped() && view.job.launches().is_some_and(|periodic| periodic.enabled)
        };
        self.jobs.values().filter(enabled)
    }

    /// Changes the clock, and lets a second pass.
    fn leap(&mut self, seconds: i64) -> Result<(), Violation> {
        self.set_clock_by(seconds * SECOND as i64);
        Ok(self.pass(1)?)
    }

    /// Continues over this many moments, and checks that each is launched for all jobs that are free to launch.
    fn check_moments(&mut self, moments: u32) -> Result<(), Violation> {
        for _ in 0..moments {
            let wall = self.now().wall.0.div_euclid(SECOND as i64);
            let due = wall - wall.rem_euclid(PERIOD) + PERIOD;
            self.pass((due - wall - 1).unsigned_abs())?;
            let free = self.launching().filter(|view| is_free(view, &self.jobs, &self.allocs));
            let free: Vec<JobKey> = free.map(|view| view.key.clone()).collect();
            self.pass(3)?;
            if let Some(job) = free.iter().find(|job| !self.launches.has(job, due)) {
                return never_comes(format!("the launch of {job} at {due}"));
            }
        }
        Ok(())
    }

    /// The number of launches so far of each job that is free to launch.
    fn count_launches(&self) -> Vec<(JobKey, usize)> {
        let free = self.launching().filter(|view| is_free(view, &self.jobs, &self.allocs));
        free.map(|view| (view.key.clone(), self.launches.count(&view.key))).collect()
    }

    fn expect_launches(
        &self,
        when: &str,
        before: &[(JobKey, usize)],
        expected: usize,
    ) -> Result<(), Violation> {
        let since = |(job, before): &(JobKey, usize)| self.launches.count(job) - before;
        match before.iter().find(|known| since(known) != expected) {
            Some(known) => {
                let (job, since) = (&known.0, since(known));
                Err(Violation::Safety(format!("{when}: {job} is launched {since} times, not {expected}")))
            }
            None => Ok(()),
        }
    }

    /// Checks that exactly the desired jobs exist.
    fn check_wanted(&mut self) -> Result<(), Violation> {
        if let Some(view) = self.unsettled() {
            let why = format!("job {} has settled as {:?}", view.key, view.convergence);
            self.explain();
            return never_comes(why);
        }
        // Replicas that wait for their turn to restart wait for one whose health users decide on.
        let mut jobs = self.jobs.values().filter(|job| !self.is_turn_blocked(job));
        if let Some(stuck) = jobs.find_map(|job| deployments::stuck(job)) {
            return never_comes(format!("a deployment does not end: {stuck:?}"));
        }
        let stopped = |key| self.jobs.get(key).is_some_and(|view: &Arc<JobView>| view.job.stop);
        let mut live = self.machine.live().map(|(_, attempt)| &attempt.alloc);
        if let Some(alloc) = live.find(|alloc| stopped(&alloc.job_key)) {
            return never_comes(format!("{} still runs although its job is stopped", alloc.name()));
        }
        let shown: Vec<&str> = self.jobs.keys().map(|key| &*key.id).collect();
        let wanted: Vec<&str> = self.wanted.keys().map(String::as_str).collect();
        if shown != wanted {
            return never_comes(format!("found jobs {shown:?}, expected {wanted:?}"));
        }
        Ok(())
    }

    /// A settled system that is inspected completely and then left alone for an hour does only what its timers require.
    fn rest(&mut self) -> Result<(), Violation> {
        let since = self.now_ns;
        while self.is_proving() && self.now_ns < since + 2 * 3_600 * SECOND && self.moment()? {}
        let mut inspections = Vec::new();
        for (spec, state) in self.world.allocations() {
            let up = state.parts.iter().filter(|(_, state)| **state == PartState::Up);
            inspections.extend(up.map(|(part, _)| Event::Drift {
                alloc: spec.id,
                part,
                by: Noticed::Periodic,
            }));
        }
        let renewing = self.allocs.values().filter_map(|view| view.spec.group()).any(|group| {
            let mut identities = group.tasks.iter().flat_map(|task| &task.identities);
            let mut vaults = group.tasks.iter().filter_map(|task| task.vault.as_ref());
            // Secrets in templates are renewed too.
            let mut secrets =
                group.tasks.iter().filter(|task| task.vault.is_some()).flat_map(|task| &task.templates);
            identities.any(|identity| identity.ttl.is_some() && identity.change_mode != ChangeMode::Noop)
                || vaults.any(|access| access.change_mode != ChangeMode::Noop)
                || secrets.next().is_some()
        });
        self.events.extend(inspections);
        let (commits, since, mut views) = (self.commits, self.now_ns, self.job_views);
        let shown: Vec<_> = self.jobs.values().map(|view| view.convergence.clone()).collect();
        while self.now_ns < since + 3_600 * SECOND && self.moment()? {
            if self.commits != commits && !renewing {
                return never_comes("rest: a settled world writes".to_owned());
            }
            if self.job_views == views {
                continue;
            }
            views = self.job_views;
            if !renewing && shown.iter().ne(self.jobs.values().map(|view| &view.convergence)) {
                return never_comes("rest: a settled world shows something else".to_owned());
            }
        }
        self.settle("after hours of rest")
    }

    /// Whether a running task that has failed before has yet to run long enough to count; that it did is stored.
    fn is_proving(&self) -> bool {
        let mut tasks = self.world.allocations().flat_map(|(_, state)| &state.durable.tasks);
        tasks.any(|task| matches!(task.run, Run::Running { .. }) && task.failed_after.is_some())
    }

    /// Checks that the state equals that of a simulation without faults in which the same was applied.
    fn check_history(&mut self) -> Result<(), Violation> {
        let mut clean = Life::new(1, Faults::default()).with_turns_of(self.turn_ns);
        clean.machine.templates.is_complete = true;
        clean.want_volumes();
        clean.apply(self.wanted.values().cloned().collect());
        clean.settle("a life without faults")?;
        self.steps += clean.steps;
        for (key, view) in &self.jobs {
            let Some(other) = clean.jobs.get(key) else { continue };
            let converged = |view: &JobView| view.convergence.state == ConvergenceState::Converged;
            if converged(view) && converged(other) {
                let (mine, theirs) = (self.inventory(key), clean.inventory(key));
                if mine != theirs {
                    return never_comes(format!(
                        "job {key} has {mine:?}, but {theirs:?} in a simulation without faults"
                    ));
                }
            }
        }
        Ok(())
    }

    /// A job's inventory: the processes of its desired allocations by slot, and the parts they use. Leftovers of ended tasks
    /// are not included.
    fn inventory(&self, key: &JobKey) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for view in self.allocs.values().filter(|view| view.spec.job_key == *key) {
            if view.spec.desired != herdlet_api_types::alloc::Desired::Run {
                continue;
            }
            let (id, name) = (view.spec.id, view.spec.name());
            for thing in &self.machine.things {
                let Thing::Part(of, part) = thing else { continue };
                let used = match part.task() {
                    Some(index) => self.machine.lives(id, index),
                    None => !view.status.is_terminal(),
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

    fn check_nothing_left(&self) -> Result<(), Violation> {
        if let Some((key, _)) = self.machine.live().next() {
            return never_comes(format!("{key:?} still runs"));
        }
        let mut records = self.machine.attempts.iter();
        if let Some((key, _)) = records.find(|(_, known)| known.phase != Phase::Tombstone) {
            return never_comes(format!("the record of {key:?} remains"));
        }
        if let Some(thing) = self.machine.things.iter().find(|thing| matches!(thing, Thing::Part(..))) {
            let Thing::Part(id, part) = thing else { return Ok(()) };
            return never_comes(format!("left behind: {part:?} of {}", self.trace.name_of(*id)));
        }
        if let Some(id) = self.machine.networks.left() {
            return never_comes(format!("left behind: the network of {}", self.trace.name_of(id)));
        }
        let mut stored = self.stored.keys();
        match stored.find(|key| !matches!(key, RecordKey::Meta | RecordKey::Volume(_))) {
            Some(key) => never_comes(format!("still stored: {key:?}")),
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
                self.trace.note(self.now_ns, || format!("{reply:?}"));
            }
        }
    }
}
