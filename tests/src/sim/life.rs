//! One simulated life: the agent's loop around the planner, with commits, operations in flight and crashes.

use std::collections::{BTreeMap, BTreeSet};

use herdlet_api_types::{
    AllocId, Duration, InstanceId, JobKey, UnixNanos,
    job::Job,
    service::{CheckResult, CheckStatus},
    view::{AllocView, JobView},
};
use herdlet_plan::{
    action::{Action, FailureClass, Outcome, Verb},
    event::{Command, DesiredChange, Event, Reply},
    op::{Key, Op, Part, Subject, Target, TaskPart},
    record::{Record, RecordKey, RecordValue},
    state::Durable,
    time::{BootId, Now},
    turn::{Turn, View},
    world::{Settings, World},
};

use super::{
    Dice, jobs,
    machine::{Machine, Thing},
    promises::Promises,
    tale::Tale,
};

pub(super) const SECOND: u64 = 1_000_000_000;
const WALL: i64 = 1_700_000_000_000_000_000;

/// How hard a life is. Each happens once in so many; 0 for never.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// An operation fails.
    pub failing_one_in: u64,
    /// An operation takes up to forty seconds instead of a millisecond.
    pub slow_one_in: u64,
    /// The agent is killed, per moment and per commit.
    pub crash_one_in: u64,
    /// The machine restarts, per crash.
    pub reboot_one_in: u64,
    /// Something happens behind the agent's back, per moment.
    pub drift_one_in: u64,
    /// The catalogue goes down for minutes, per moment.
    pub outage_one_in: u64,
}

/// An operation in flight.
#[derive(Debug)]
pub(super) struct Flight {
    action: Action,
    effect_at: u64,
    done_at: u64,
    overdue_at: Option<u64>,
    /// The effect has happened; only the word of it is on the way.
    outcome: Option<Outcome>,
}

/// One simulated life.
pub struct Life {
    pub(super) dice: Dice,
    pub(super) machine: Machine,
    pub(super) faults: Faults,
    pub(super) tale: Tale,
    pub(super) now_ns: u64,
    /// What the wall clock is ahead of the time since boot.
    wall_ahead: i64,
    pub(super) world: World,
    promises: Promises,
    pub(super) stored: BTreeMap<RecordKey, RecordValue>,
    pub(super) flights: Vec<Flight>,
    /// Starts that a dead agent asked for and that have not happened yet.
    ghosts: Vec<Flight>,
    pub(super) dirty: BTreeSet<Key>,
    wakes: BTreeMap<Key, u64>,
    /// Events on their way.
    mail: Vec<(u64, Event)>,
    /// When the checks of an allocation are made next, and what they last said.
    checks: BTreeMap<AllocId, (u64, Option<CheckStatus>)>,
    pub(super) events: Vec<Event>,
    requests: u64,
    /// Requests that have not been answered.
    asked: BTreeMap<u64, Command>,
    /// What people were told is wanted.
    pub(super) wanted: BTreeMap<String, Job>,
    /// Events applied and effects done.
    pub steps: u64,
    /// Transactions.
    pub commits: u64,
    /// Every job that is shown.
    pub jobs: BTreeMap<JobKey, JobView>,
    /// Every allocation that is shown.
    pub allocs: BTreeMap<AllocId, AllocView>,
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
        let mut life = Self {
            dice: Dice::new(seed),
            machine: Machine { boot: 1, ..Machine::default() },
            faults,
            tale: Tale::default(),
            now_ns: SECOND,
            wall_ahead: WALL,
            world: World::new(settings()),
            promises: Promises::default(),
            stored: BTreeMap::new(),
            flights: Vec::new(),
            ghosts: Vec::new(),
            dirty: BTreeSet::new(),
            wakes: BTreeMap::new(),
            mail: Vec::new(),
            checks: BTreeMap::new(),
            events: Vec::new(),
            requests: 0,
            asked: BTreeMap::new(),
            wanted: BTreeMap::new(),
            steps: 0,
            commits: 0,
            jobs: BTreeMap::new(),
            allocs: BTreeMap::new(),
        };
        life.events.push(Event::Desired(DesiredChange::Complete));
        life
    }

    /// Keeps a log.
    pub fn logged(mut self) -> Self {
        self.tale = Tale::kept();
        self
    }

    /// A new chapter of the log begins.
    pub fn chapter(&mut self, title: &str) {
        self.tale.chapter(title);
    }

    /// What happened, a line each.
    pub fn log(&self) -> &[String] {
        self.tale.lines()
    }

    /// The present.
    pub fn now(&self) -> Now {
        let wall = UnixNanos(self.wall_ahead + self.now_ns as i64);
        Now { boot: BootId(self.machine.boot), boot_ns: self.now_ns, wall }
    }

    /// What the agent knows.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// What is real.
    pub fn machine(&mut self) -> &mut Machine {
        &mut self.machine
    }

    /// Asks for these jobs.
    pub fn apply(&mut self, jobs: Vec<Job>) {
        self.request(Command::Apply { jobs, volumes: Vec::new() });
    }

    /// Asks for the volume that jobs mount.
    pub fn want_volume(&mut self) {
        self.request(Command::Apply { jobs: Vec::new(), volumes: vec![jobs::volume()] });
    }

    /// Asks for a job to be deleted.
    pub fn delete(&mut self, id: &str) {
        self.request(Command::Delete { job: job_key(id) });
    }

    /// Asks for something.
    pub fn request(&mut self, command: Command) {
        self.requests += 1;
        self.tale.request(self.now_ns, &command);
        self.asked.insert(self.requests, command.clone());
        self.events.push(Event::Command { request: self.requests, command });
    }

    /// Something is seen by the agent now.
    pub fn see(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Something is seen by the agent up to a second later, and again once in four.
    pub(super) fn post(&mut self, event: Event) {
        let late = if self.faults.slow_one_in == 0 { 0 } else { self.dice.below(SECOND) };
        if self.faults.slow_one_in > 0 && self.dice.one_in(4) {
            self.mail.push((self.now_ns + late + self.dice.below(SECOND), event.clone()));
        }
        self.mail.push((self.now_ns + late, event));
    }

    /// Kills the agent: what was not committed is gone, what was in flight is gone or has just happened, and starts may still
    /// happen a moment later.
    pub fn crash(&mut self) -> Result<(), String> {
        self.tale.note(self.now_ns, || "the agent is killed".to_owned());
        for mut flight in std::mem::take(&mut self.flights) {
            if flight.outcome.is_some() {
                continue;
            }
            let is_start = matches!(flight.action.verb, Verb::Start { .. });
            match self.dice.below(3) {
                0 => self.effect(&mut flight)?,
                1 if is_start => {
                    flight.effect_at = self.now_ns + 1 + self.dice.below(1_000_000);
                    self.ghosts.push(flight);
                }
                _ => {}
            }
        }
        self.checks.clear();
        self.events.clear();
        self.mail.clear();
        self.wakes.clear();
        self.asked.clear();
        self.machine.crash();
        self.promises.crash();
        if self.faults.reboot_one_in > 0 && self.dice.one_in(self.faults.reboot_one_in) {
            self.reboot();
        }
        let (world, unusable) = World::restore(settings(), self.now(), self.stored.clone());
        if !unusable.is_empty() {
            return Err(format!("stored records contradict each other: {unusable:?}"));
        }
        self.world = world;
        self.dirty = self.world.keys();
        self.events.push(Event::Desired(DesiredChange::Complete));
        Ok(())
    }

    /// The machine restarts; takes ten seconds. To be followed by [`Life::crash`], where it does not come from there.
    pub fn reboot(&mut self) {
        self.tale.note(self.now_ns, || "the machine restarts".to_owned());
        self.machine.reboot();
        self.ghosts.clear();
        self.wall_ahead += (self.now_ns + 9 * SECOND) as i64;
        self.now_ns = SECOND;
    }

    /// Goes on until this is told.
    pub fn until(&mut self, text: &str) -> Result<(), String> {
        let told = self.log().len();
        for _ in 0..10_000 {
            if self.log().iter().skip(told).any(|line| line.contains(text)) {
                return Ok(());
            }
            if !self.moment()? {
                break;
            }
        }
        Err(format!("it never comes to \"{text}\""))
    }

    /// What is said of an allocation by its name; the newest of that name.
    pub fn alloc(&self, name: &str) -> Option<&AllocView> {
        self.allocs.values().filter(|view| view.spec.name() == name).max_by_key(|view| view.spec.create_index)
    }

    /// Goes on for so long.
    pub fn pass(&mut self, seconds: u64) -> Result<(), String> {
        let until = self.now_ns + seconds * SECOND;
        loop {
            if self.events.is_empty() && self.dirty.is_empty() && self.next().is_none_or(|at| at > until) {
                self.now_ns = until;
                return Ok(());
            }
            self.moment()?;
        }
    }

    /// One moment: whatever is due next. `false` when nothing ever will be.
    pub fn moment(&mut self) -> Result<bool, String> {
        if self.faults.crash_one_in > 0 && self.dice.one_in(self.faults.crash_one_in) {
            self.crash()?;
        }
        if self.faults.drift_one_in > 0 && self.dice.one_in(self.faults.drift_one_in) {
            self.drift();
        }
        if self.faults.outage_one_in > 0 && self.dice.one_in(self.faults.outage_one_in) {
            let seconds = self.dice.below(300);
            self.catalogue_down(seconds);
        }
        if self.events.is_empty() && self.dirty.is_empty() {
            let Some(at) = self.next() else { return Ok(false) };
            self.now_ns = self.now_ns.max(at);
            self.gather()?;
        }
        self.turn()?;
        Ok(true)
    }

    /// The catalogue answers nothing but errors for so long.
    pub fn catalogue_down(&mut self, seconds: u64) {
        self.tale.note(self.now_ns, || format!("the catalogue goes down for {seconds}s"));
        self.machine.catalogue_down_until = self.now_ns + seconds * SECOND;
    }

    /// When something is next due.
    pub(super) fn next(&self) -> Option<u64> {
        let flights = self.flights.iter().map(|flight| {
            let at = if flight.outcome.is_some() { flight.done_at } else { flight.effect_at };
            flight.overdue_at.map_or(at, |overdue| overdue.min(at))
        });
        let ghosts = self.ghosts.iter().map(|ghost| ghost.effect_at);
        let mail = self.mail.iter().map(|(at, _)| *at);
        let wakes = self.wakes.values().copied();
        let checks = self.checks.values().map(|(at, _)| *at).filter(|at| *at != u64::MAX);
        flights.chain(ghosts).chain(mail).chain(wakes).chain(checks).chain(self.machine.next_end()).min()
    }

    /// Lets everything happen that is due, and gathers what the agent sees of it.
    fn gather(&mut self) -> Result<(), String> {
        let now_ns = self.now_ns;
        let mut index = 0;
        while index < self.ghosts.len() {
            if self.ghosts[index].effect_at <= now_ns {
                let mut ghost = self.ghosts.swap_remove(index);
                self.tale.note(now_ns, || "a start of the dead agent arrives".to_owned());
                self.effect(&mut ghost)?;
            } else {
                index += 1;
            }
        }
        for index in 0..self.flights.len() {
            if self.flights[index].outcome.is_none() && self.flights[index].effect_at <= now_ns {
                let placeholder = self.flights[index].action.clone();
                let mut flight =
                    Flight { action: placeholder, effect_at: 0, done_at: 0, overdue_at: None, outcome: None };
                self.effect(&mut flight)?;
                self.flights[index].outcome = flight.outcome;
                // Stopping takes until the process has ended.
                let ends_at = self.machine.ends_at(&flight.action).unwrap_or(0);
                self.flights[index].done_at = self.flights[index].done_at.max(ends_at);
            }
        }
        for event in self.machine.pass_time(now_ns) {
            self.tale.event(now_ns, &event);
            self.post(event);
        }
        let mut index = 0;
        while index < self.flights.len() {
            let flight = &mut self.flights[index];
            if flight.overdue_at.is_some_and(|at| at <= now_ns) {
                flight.overdue_at = None;
                self.events.push(Event::Outcome(flight.action.op.clone(), Outcome::Overdue));
            }
            if flight.outcome.is_some() && flight.done_at <= now_ns {
                let flight = self.flights.swap_remove(index);
                if let Some(outcome) = flight.outcome {
                    self.tale.outcome(now_ns, &flight.action, &outcome);
                    self.promises.end(&flight.action, &outcome);
                    self.events.push(Event::Outcome(flight.action.op, outcome));
                }
            } else {
                index += 1;
            }
        }
        let mut index = 0;
        while index < self.mail.len() {
            if self.mail[index].0 <= now_ns {
                let (_, event) = self.mail.swap_remove(index);
                self.events.push(event);
            } else {
                index += 1;
            }
        }
        self.make_checks();
        while let Some(key) = self.wakes.iter().find(|(_, at)| **at <= now_ns).map(|(key, _)| key.clone()) {
            self.wakes.remove(&key);
            self.dirty.insert(key);
        }
        Ok(())
    }

    /// One turn of the agent, with its commit.
    fn turn(&mut self) -> Result<(), String> {
        let now = self.now();
        let mut turn = Turn::default();
        for event in std::mem::take(&mut self.events) {
            self.steps += 1;
            self.world.apply(now, event, &mut self.dirty, &mut turn);
        }
        let mut planned = 0;
        while let Some(key) = self.dirty.pop_first() {
            planned += 1;
            if planned > 2_000 {
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
        self.commits += u64::from(!turn.records.is_empty());
        for record in turn.records {
            match record {
                Record::Put(key, value) => self.stored.insert(key, value),
                Record::Delete(key) => self.stored.remove(&key),
            };
        }
        for view in turn.views {
            self.show(view)?;
        }
        for (request, reply) in turn.replies {
            self.answer(request, &reply);
        }
        for action in turn.actions {
            self.release(action)?;
        }
        Ok(())
    }

    fn release(&mut self, action: Action) -> Result<(), String> {
        self.tale.action(self.now_ns, &action);
        let (stored, now) = (durable(&self.stored, &action.op), self.now());
        self.promises.release(&action, stored, &self.machine, now.wall)?;
        // A signal is sent beside whatever else is done with its process.
        let occupies = |action: &Action| !matches!(action.verb, Verb::Signal { .. });
        let mut others = self.flights.iter().filter(|flight| occupies(&flight.action));
        if occupies(&action) && others.any(|flight| flight.action.op.target == action.op.target) {
            return Err(format!("two operations at once on {:?}", action.op.target));
        }
        let slow = self.faults.slow_one_in > 0 && self.dice.one_in(self.faults.slow_one_in);
        let latency = if slow { 40 * SECOND } else { 1_000_000 };
        let effect_at = self.now_ns + 1 + self.dice.below(latency);
        let done_at = effect_at + self.dice.below(latency / 2);
        let overdue_at = self.now_ns + action.timeout.as_nanos().unsigned_abs();
        let overdue_at = (overdue_at < done_at).then_some(overdue_at);
        self.flights.push(Flight { action, effect_at, done_at, overdue_at, outcome: None });
        Ok(())
    }

    fn show(&mut self, view: View) -> Result<(), String> {
        match view {
            View::Alloc(view) => {
                self.promises.show(&view)?;
                self.tale.alloc(self.now_ns, &view);
                self.allocs.insert(view.spec.id, *view);
            }
            View::AllocGone(id) => {
                self.promises.forget(id);
                self.tale.alloc_gone(self.now_ns, id);
                self.allocs.remove(&id);
            }
            View::Job(view) => {
                self.tale.job(self.now_ns, &view);
                self.jobs.insert(view.key.clone(), *view);
            }
            View::JobGone(key) => {
                self.tale.note(self.now_ns, || format!("job {} is forgotten", key.id));
                self.jobs.remove(&key);
            }
            View::Volume(_) | View::VolumeGone(_) => {}
        }
        Ok(())
    }

    fn answer(&mut self, request: u64, reply: &Reply) {
        self.tale.reply(self.now_ns, reply);
        let Some(command) = self.asked.remove(&request) else { return };
        if matches!(reply, Reply::Refused(_)) {
            return;
        }
        match command {
            Command::Apply { jobs, .. } => {
                self.wanted.extend(jobs.into_iter().map(|job| (job.id.clone(), job)));
            }
            Command::Delete { job } => {
                self.wanted.remove(&job.id);
            }
            Command::DeleteVolume { .. }
            | Command::Restart { .. }
            | Command::Signal { .. }
            | Command::Explain { .. } => {}
        }
    }

    /// Does what the operation does, or fails.
    fn effect(&mut self, flight: &mut Flight) -> Result<(), String> {
        self.steps += 1;
        let faulty = self.faults.failing_one_in > 0 && self.dice.one_in(self.faults.failing_one_in);
        if faulty && self.machine.may_fail(&flight.action) {
            let class = match self.dice.below(8) {
                0 => FailureClass::Fatal,
                1 => FailureClass::Recoverable,
                _ => FailureClass::Retry,
            };
            flight.outcome = Some(Outcome::Failed { class, why: "the dice said so".to_owned() });
            return Ok(());
        }
        flight.outcome = Some(self.machine.perform(self.now_ns, &flight.action)?);
        if let Op { target: Target::Alloc(id, Part::Checks | Part::Task(_, TaskPart::Checks)), .. } =
            flight.action.op
        {
            self.checks.insert(id, (self.now_ns + SECOND, None));
        }
        Ok(())
    }

    /// Makes the checks that are due; only changes are reported. While there are faults some fail.
    fn make_checks(&mut self) {
        let now_ns = self.now_ns;
        let due: Vec<AllocId> =
            self.checks.iter().filter(|(_, (at, _))| *at <= now_ns).map(|(id, _)| *id).collect();
        for id in due {
            let hard = self.faults.failing_one_in > 0;
            let status =
                if hard && self.dice.one_in(3) { CheckStatus::Failure } else { CheckStatus::Success };
            let was = self.checks.get(&id).and_then(|(_, was)| *was);
            let next = if hard { now_ns + SECOND } else { u64::MAX };
            self.checks.insert(id, (next, Some(status)));
            let Some((spec, _)) = self.world.allocations().find(|(spec, _)| spec.id == id) else { continue };
            let Some(group) = spec.group().filter(|_| was != Some(status)) else { continue };
            for (task, service) in group.all_services() {
                let part = match task.and_then(|task| group.tasks.iter().position(|other| other == task)) {
                    Some(index) => Part::Task(index as u16, TaskPart::Checks),
                    None => Part::Checks,
                };
                if !self.machine.things.contains(&Thing::Part(id, part)) {
                    continue;
                }
                let owner = task.map_or("group", |task| task.name.as_str());
                self.events.extend(service.checks.iter().map(|check| Event::Check {
                    alloc: id,
                    result: CheckResult {
                        id: format!("{owner}-{}-{}", service.name, check.name),
                        service: service.name.clone(),
                        check: check.name.clone(),
                        task: task.map(|task| task.name.clone()),
                        status,
                        output: String::new(),
                        at: UnixNanos(0),
                    },
                }));
            }
        }
    }
}

/// Key of a job in the default namespace.
pub fn job_key(id: &str) -> JobKey {
    JobKey { namespace: "default".to_owned(), id: id.to_owned() }
}

fn durable<'a>(stored: &'a BTreeMap<RecordKey, RecordValue>, op: &Op) -> Option<&'a Durable> {
    let Target::Alloc(id, _) = &op.target else { return None };
    match stored.get(&RecordKey::AllocState(*id)) {
        Some(RecordValue::AllocState(durable)) => Some(durable),
        Some(_) | None => None,
    }
}

/// Whether an action is about a part of an allocation.
pub fn part_of(action: &Action) -> Option<Part> {
    match &action.subject {
        Subject::Alloc(_, part) => Some(*part),
        Subject::Volume(_) => None,
    }
}
