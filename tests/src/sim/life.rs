//! One simulated life: the planner, a machine, commits, operations in flight, crashes.

use std::collections::{BTreeMap, BTreeSet};

use herdlet_api_types::{AllocId, Duration, InstanceId, JobKey, UnixNanos, alloc::ClientStatus, job::Job};
use herdlet_plan::{
    action::{Action, FailureClass, Outcome, Verb},
    event::{Command, DesiredChange, Event, RestartScope},
    op::{Key, Op, Part, Subject},
    record::{Record, RecordKey, RecordValue},
    shared::volume::Origin,
    time::{BootId, Now},
    turn::{Turn, View},
    world::{Settings, World},
};

use super::{
    Dice, jobs,
    machine::{self, Machine, Phase},
};

/// How hard a life is.
#[derive(Debug, Clone, Copy)]
pub struct Faults {
    /// An operation fails once in so many; 0 for never.
    pub failing_one_in: u64,
    /// The agent is killed once in so many steps; 0 for never.
    pub crash_one_in: u64,
    /// The machine restarts with every so many crashes; 0 for never.
    pub reboot_one_in: u64,
    /// A real thing vanishes once in so many steps; 0 for never.
    pub drift_one_in: u64,
}

/// An operation in flight.
#[derive(Debug)]
struct Flight {
    action: Action,
    done_at: u64,
    /// The effect has happened; only its outcome is on the way.
    done: Option<Outcome>,
}

/// One simulated life.
pub struct Life {
    dice: Dice,
    now_ns: u64,
    world: World,
    machine: Machine,
    stored: BTreeMap<RecordKey, RecordValue>,
    flights: Vec<Flight>,
    dirty: BTreeSet<Key>,
    wakes: BTreeMap<Key, u64>,
    /// Results of checks on their way.
    checks: Vec<(u64, AllocId)>,
    events: Vec<Event>,
    terminal: BTreeMap<AllocId, ClientStatus>,
    faults: Faults,
    /// Steps taken: events applied and effects done.
    pub steps: u64,
    /// What happened, a line a step.
    pub log: Vec<String>,
    /// Convergence of every job that is shown.
    pub jobs: BTreeMap<JobKey, herdlet_api_types::view::JobView>,
    /// Every allocation that is shown.
    pub allocs: BTreeMap<AllocId, herdlet_api_types::view::AllocView>,
    requests: u64,
    keep_log: bool,
}

fn settings() -> Settings {
    Settings {
        instance: InstanceId("0123456789abcdef".to_owned()),
        max_kill_timeout: Duration::from_secs(30),
        dynamic_ports: 20_000..=32_000,
        host_ip: "127.0.0.1".to_owned(),
    }
}

impl Life {
    /// A life of this seed, with an empty machine.
    pub fn new(seed: u64, faults: Faults) -> Self {
        let mut world = World::new(settings());
        let now_ns = 1_000_000_000;
        let now = Now { boot: BootId(1), boot_ns: now_ns, wall: UnixNanos(1_700_000_000_000_000_000) };
        let mut dirty = BTreeSet::new();
        world.apply(now, Event::Desired(DesiredChange::Complete), &mut dirty, &mut Turn::default());
        Self {
            dice: Dice::new(seed),
            now_ns,
            world,
            machine: Machine { boot: 1, ..Machine::default() },
            stored: BTreeMap::new(),
            flights: Vec::new(),
            dirty,
            wakes: BTreeMap::new(),
            checks: Vec::new(),
            events: Vec::new(),
            terminal: BTreeMap::new(),
            faults,
            steps: 0,
            log: Vec::new(),
            jobs: BTreeMap::new(),
            allocs: BTreeMap::new(),
            requests: 0,
            keep_log: false,
        }
    }

    /// Keeps a log of every step.
    pub fn logged(mut self) -> Self {
        self.keep_log = true;
        self
    }

    /// Lives through `moments` of everything that can happen, then lets the faults stop, waits until all has settled, removes
    /// every job and checks that nothing is left.
    pub fn live(&mut self, moments: u64) -> Result<(), String> {
        self.apply(vec![]);
        let ids = ["a", "b", "c"];
        for _ in 0..moments {
            if self.dice.one_in(6) {
                self.act(&ids);
            }
            self.moment()?;
        }
        self.faults = Faults { failing_one_in: 0, crash_one_in: 0, reboot_one_in: 0, drift_one_in: 0 };
        self.settle("after the faults stopped")?;
        if let Err(why) = self.check_converged() {
            self.explain();
            return Err(why);
        }
        for id in ids {
            self.delete(id);
        }
        self.settle("after everything was deleted")?;
        self.check_nothing_left()
    }

    /// The present.
    pub fn now(&self) -> Now {
        let wall = UnixNanos(1_700_000_000_000_000_000 + self.now_ns as i64);
        Now { boot: BootId(self.machine.boot), boot_ns: self.now_ns, wall }
    }

    /// What is real.
    pub fn machine(&mut self) -> &mut Machine {
        &mut self.machine
    }

    /// Asks for these jobs.
    pub fn apply(&mut self, jobs: Vec<Job>) {
        self.request(Command::Apply { jobs, volumes: vec![jobs::volume()] });
    }

    /// Asks for a job to be deleted.
    pub fn delete(&mut self, id: &str) {
        self.request(Command::Delete { job: JobKey { namespace: "default".to_owned(), id: id.to_owned() } });
    }

    /// Asks for something.
    pub fn request(&mut self, command: Command) {
        self.requests += 1;
        self.note(|| format!("request {command:?}").chars().take(160).collect());
        self.events.push(Event::Command { request: self.requests, command });
    }

    /// Kills the agent: what was not committed and what was in flight is gone, or has just happened.
    pub fn crash(&mut self) -> Result<(), String> {
        self.note(|| "CRASH".to_owned());
        let flights = std::mem::take(&mut self.flights);
        for mut flight in flights {
            if flight.done.is_none() && self.dice.one_in(2) {
                self.effect(&mut flight)?;
            }
        }
        self.checks.clear();
        self.events.clear();
        self.wakes.clear();
        self.machine.things.retain(|thing| !matches!(thing, machine::Thing::Part(_, Part::Checks)));
        if self.faults.reboot_one_in > 0 && self.dice.one_in(self.faults.reboot_one_in) {
            self.note(|| "REBOOT".to_owned());
            self.machine.reboot();
            self.now_ns = 1_000_000_000;
        }
        let records = self.stored.clone();
        let (world, unusable) = World::restore(settings(), self.now(), records);
        if !unusable.is_empty() {
            return Err(format!("stored records contradict each other: {unusable:?}"));
        }
        self.world = world;
        self.dirty = self.world.keys();
        self.events.push(Event::Desired(DesiredChange::Complete));
        Ok(())
    }

    /// Goes on until nothing more happens by itself, or nothing but token renewals for eight minutes.
    pub fn settle(&mut self, when: &str) -> Result<(), String> {
        let mut calm_since = self.now_ns;
        for _ in 0..50_000 {
            if !self.moment()? {
                return Ok(());
            }
            if self.check_converged().is_err() {
                calm_since = self.now_ns;
            } else if self.now_ns > calm_since + 480_000_000_000 {
                return Ok(());
            }
        }
        Err(format!("{when}: never settles; {:?}", self.check_converged()))
    }

    /// One moment: whatever is due next. `false` when nothing ever will be.
    fn moment(&mut self) -> Result<bool, String> {
        if self.faults.crash_one_in > 0 && self.dice.one_in(self.faults.crash_one_in) {
            self.crash()?;
        }
        if self.faults.drift_one_in > 0 && self.dice.one_in(self.faults.drift_one_in) {
            self.drift();
        }
        if self.events.is_empty() && self.dirty.is_empty() && !self.advance()? {
            return Ok(false);
        }
        self.turn()?;
        Ok(true)
    }

    /// Moves time to whatever is next and gathers its events.
    fn advance(&mut self) -> Result<bool, String> {
        let next = [
            self.flights.iter().map(|flight| flight.done_at).min(),
            self.wakes.values().copied().min(),
            self.checks.iter().map(|(at, _)| *at).min(),
            self.machine.next_end(),
        ];
        let Some(at) = next.into_iter().flatten().min() else { return Ok(false) };
        // Far ahead only deadlines of a settled world remain: tokens to renew, windows to close.
        self.now_ns = self.now_ns.max(at);
        let mut index = 0;
        while index < self.flights.len() {
            if self.flights[index].done_at > self.now_ns {
                index += 1;
                continue;
            }
            let mut flight = self.flights.swap_remove(index);
            self.effect(&mut flight)?;
            if let Some(outcome) = flight.done.take() {
                self.steps += 1;
                self.events.push(Event::Outcome(flight.action.op.clone(), outcome));
            }
        }
        let ended = self.machine.pass_time(self.now_ns);
        self.events.extend(ended);
        let now_ns = self.now_ns;
        let due: Vec<AllocId> =
            self.checks.iter().filter(|(at, _)| *at <= now_ns).map(|(_, id)| *id).collect();
        self.checks.retain(|(at, _)| *at > now_ns);
        for id in due {
            if let Some((spec, _)) = self.world.allocations().find(|(spec, _)| spec.id == id) {
                let results = machine::check_results(spec);
                self.events.extend(results.into_iter().map(|result| Event::Check { alloc: id, result }));
            }
        }
        let due: Vec<Key> =
            self.wakes.iter().filter(|(_, at)| **at <= now_ns).map(|(key, _)| key.clone()).collect();
        for key in due {
            self.wakes.remove(&key);
            self.dirty.insert(key);
        }
        Ok(true)
    }

    /// One turn of the agent, with its commit.
    fn turn(&mut self) -> Result<(), String> {
        let now = self.now();
        let mut turn = Turn::default();
        for event in std::mem::take(&mut self.events) {
            self.steps += 1;
            self.note(|| format!("event {event:?}").chars().take(220).collect());
            self.world.apply(now, event, &mut self.dirty, &mut turn);
        }
        let mut seen: BTreeMap<Key, u32> = BTreeMap::new();
        while let Some(key) = self.dirty.pop_first() {
            let times = seen.entry(key.clone()).or_default();
            *times += 1;
            if *times > 50 {
                return Err(format!("{key:?} is planned over and over"));
            }
            self.wakes.remove(&key);
            self.world.reconcile(now, &key, &mut self.dirty, &mut turn);
            for (key, at) in turn.wakes.drain(..) {
                if at <= now.boot_ns {
                    return Err(format!("{key:?} asks to be woken in the past"));
                }
                self.wakes.insert(key, at);
            }
        }
        self.commit(turn)
    }

    fn commit(&mut self, turn: Turn) -> Result<(), String> {
        if self.faults.crash_one_in > 0
            && !turn.records.is_empty()
            && self.dice.one_in(self.faults.crash_one_in)
        {
            // Killed before the commit: the turn has never been.
            return self.crash();
        }
        for record in turn.records {
            match record {
                Record::Put(key, value) => {
                    self.stored.insert(key, value);
                }
                Record::Delete(key) => {
                    self.stored.remove(&key);
                }
            }
        }
        for action in turn.actions {
            self.note(|| format!("action {:?} {:?}", action.op, action.verb));
            let latency = if self.dice.one_in(20) { 40_000_000_000 } else { 1_000_000 };
            let done_at = self.now_ns + 1 + self.dice.below(latency);
            // A signal is sent beside whatever else is done with its process.
            let occupies = |action: &Action| !matches!(action.verb, Verb::Signal { .. });
            let mut others = self.flights.iter().filter(|flight| occupies(&flight.action));
            if occupies(&action) && others.any(|flight| flight.action.op.target == action.op.target) {
                return Err(format!("two operations at once on {:?}", action.op.target));
            }
            self.flights.push(Flight { action, done_at, done: None });
        }
        for view in turn.views {
            self.show(view)?;
        }
        Ok(())
    }

    fn show(&mut self, view: View) -> Result<(), String> {
        match view {
            View::Alloc(view) => {
                if let Some(was) = self.terminal.get(&view.spec.id)
                    && *was != view.status
                {
                    return Err(format!("{} was {was:?} and is now {:?}", view.spec.name(), view.status));
                }
                if view.status.is_terminal() {
                    self.terminal.insert(view.spec.id, view.status);
                }
                self.note(|| {
                    let tasks: Vec<String> = view
                        .tasks
                        .iter()
                        .map(|task| format!("{} {} {}", task.name, task.phase, task.attempt))
                        .collect();
                    let (name, status) = (view.spec.name(), view.status.as_str());
                    format!("{name} is {status} [{}]: {}", tasks.join(", "), view.convergence.message)
                });
                self.allocs.insert(view.spec.id, *view);
            }
            View::AllocGone(id) => {
                self.allocs.remove(&id);
            }
            View::Job(view) => {
                self.note(|| format!("job {} is {:?}", view.key, view.convergence));
                self.jobs.insert(view.key.clone(), *view);
            }
            View::JobGone(key) => {
                self.jobs.remove(&key);
            }
            View::Volume(_) | View::VolumeGone(_) => {}
        }
        Ok(())
    }

    /// Does what the operation does, or fails.
    fn effect(&mut self, flight: &mut Flight) -> Result<(), String> {
        let faulty = self.faults.failing_one_in > 0 && self.dice.one_in(self.faults.failing_one_in);
        if faulty && !matches!(flight.action.verb, Verb::Signal { .. }) {
            let class = match self.dice.below(8) {
                0 => FailureClass::Fatal,
                1 => FailureClass::Recoverable,
                _ => FailureClass::Retry,
            };
            flight.done = Some(Outcome::Failed { class, why: "the dice said so".to_owned() });
            return Ok(());
        }
        let outcome = self.machine.perform(self.now_ns, &flight.action)?;
        if let (
            Subject::Alloc(alloc, _),
            Verb::Up,
            Op { target: herdlet_plan::op::Target::Alloc(_, part), .. },
        ) = (&flight.action.subject, &flight.action.verb, &flight.action.op)
            && matches!(part, Part::Checks | Part::Task(_, herdlet_plan::op::TaskPart::Checks))
        {
            self.checks.push((self.now_ns + 1_000_000_000, alloc.id));
        }
        flight.done = Some(outcome);
        Ok(())
    }

    /// Somebody does something.
    fn act(&mut self, ids: &[&str]) {
        let id = ids[self.dice.below(ids.len() as u64) as usize];
        match self.dice.below(8) {
            0..=3 => {
                let job = jobs::random(&mut self.dice, id);
                self.apply(vec![job]);
            }
            4 => self.delete(id),
            _ => {
                let allocs: Vec<AllocId> = self.allocs.keys().copied().collect();
                if allocs.is_empty() {
                    return;
                }
                let alloc = allocs[self.dice.below(allocs.len() as u64) as usize];
                let scope = match self.dice.below(3) {
                    0 => RestartScope::Running,
                    1 => RestartScope::All,
                    _ => RestartScope::Task("main".to_owned()),
                };
                self.request(Command::Restart { alloc, scope });
            }
        }
    }

    /// A real thing vanishes, and a look sees it.
    fn drift(&mut self) {
        let things: Vec<machine::Thing> = self.machine.things.iter().cloned().collect();
        if things.is_empty() {
            return;
        }
        let thing = things[self.dice.below(things.len() as u64) as usize].clone();
        if let machine::Thing::Part(id, part) = thing
            && matches!(part, Part::Services | Part::Task(_, herdlet_plan::op::TaskPart::Mounts))
        {
            self.note(|| format!("DRIFT {part:?} of {id}"));
            self.machine.vanish(&machine::Thing::Part(id, part));
            self.events.push(Event::Drift { alloc: id, part, by: herdlet_plan::event::Noticed::Look });
        }
    }

    /// Every job that is wanted has what it wants, or says that it failed.
    fn check_converged(&self) -> Result<(), String> {
        for view in self.jobs.values() {
            use herdlet_api_types::view::ConvergenceState as C;
            match view.convergence.state {
                C::Converged | C::Failed => {}
                C::Progressing | C::Waiting => {
                    return Err(format!("job {} has settled as {:?}", view.key, view.convergence));
                }
            }
        }
        Ok(())
    }

    /// Logs what every allocation waits for.
    fn explain(&mut self) {
        let ids: Vec<AllocId> = self.world.allocations().map(|(spec, _)| spec.id).collect();
        for alloc in ids {
            let mut turn = Turn::default();
            let command = Command::Explain { alloc };
            self.world.apply(
                self.now(),
                Event::Command { request: 0, command },
                &mut BTreeSet::new(),
                &mut turn,
            );
            for (_, reply) in turn.replies {
                self.note(|| format!("{reply:?}"));
            }
        }
    }

    fn check_nothing_left(&self) -> Result<(), String> {
        if let Some((key, _)) = self.machine.live().next() {
            return Err(format!("{key:?} lives on"));
        }
        if let Some((key, _)) =
            self.machine.attempts.iter().find(|(_, known)| known.phase != Phase::Tombstone)
        {
            return Err(format!("the record of {key:?} is left"));
        }
        let left: Vec<_> =
            self.machine.things.iter().filter(|thing| matches!(thing, machine::Thing::Part(..))).collect();
        if !left.is_empty() {
            return Err(format!("left behind: {left:?}"));
        }
        let stored: Vec<_> =
            self.stored.keys().filter(|key| !matches!(key, RecordKey::Meta | RecordKey::Volume(_))).collect();
        if !stored.is_empty() {
            return Err(format!("stored still: {stored:?}"));
        }
        let _ = Origin::Manifest;
        Ok(())
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if self.keep_log {
            self.log.push(format!("{:>12.6} {}", self.now_ns as f64 / 1e9, line()));
        }
    }
}
