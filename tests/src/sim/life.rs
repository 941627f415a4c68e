//! One simulation: the agent's loop around the planner, with commits, operations in flight and crashes.

mod crash;
mod disk;
mod driver;
mod effects;
mod replies;
mod templates;
mod turn;
mod views;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use herdlet_api_types::{
    AllocId, Duration, InstanceId, JobKey,
    job::Job,
    service::CheckStatus,
    view::{AllocView, JobView},
};
use herdlet_plan::{
    action::{Action, Outcome},
    context::Settings,
    env::NodeFacts,
    event::{Command, DesiredChange, Event},
    job::cores::OfferedCores,
    op::Key,
    record::{RecordKey, RecordValue},
    time::{BootId, Now},
    turn::Turn,
    world::World,
};

use self::{disk::Held, driver::Driver};
use super::{
    Rng,
    clock::{Clock, SECOND},
    coverage::{Coverage, Kind},
    invariants::Invariants,
    jobs,
    launches::Launches,
    machine::Machine,
    rollouts::Rollouts,
    rooms::Rooms,
    trace::Trace,
};

/// The probabilities of faults: each happens once in so many times; 0 means never.
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
    /// An operation takes effect and is reported as failed.
    pub lost_one_in: u64,
    /// An operation's outcome is reported twice, the second time up to a second later.
    pub doubled_one_in: u64,
    /// The wall clock is changed, per moment.
    pub jump_one_in: u64,
    /// Nothing can be stored for up to a minute, per moment.
    pub full_one_in: u64,
    /// The driver goes away, or comes back, per moment.
    pub driver_one_in: u64,
    /// A record of an attempt is damaged, per moment; the stored state of an allocation, per crash.
    pub damage_one_in: u64,
}

/// An operation in flight.
#[derive(Debug)]
pub(super) struct Flight {
    action: Action,
    effect_at: u64,
    done_at: u64,
    overdue_at: Option<u64>,
    /// The outcome of an effect that has happened and has not been reported yet.
    outcome: Option<Outcome>,
}

/// One simulation.
pub struct Life {
    pub(super) rng: Rng,
    pub(super) machine: Machine,
    pub(super) faults: Faults,
    pub(super) trace: Trace,
    pub(super) now_ns: u64,
    /// The longest duration of a turn. The next turn takes all events that arrive meanwhile.
    pub(super) turn_ns: u64,
    /// The machine's wall clock.
    pub(super) clock: Clock,
    /// The driver of all tasks.
    pub(super) driver: Driver,
    /// Nothing can be stored until this time.
    pub(super) full_until: u64,
    /// Turns that could not be stored, oldest first.
    held: Vec<Held>,
    /// The kinds of events that occurred.
    pub met: Coverage,
    pub(super) world: World,
    promises: Invariants,
    rollouts: Rollouts,
    rooms: Rooms,
    pub(super) launches: Launches,
    pub(super) stored: BTreeMap<RecordKey, RecordValue>,
    journal: Option<Vec<RecordValue>>,
    pub(super) flights: Vec<Flight>,
    /// Starts requested by a dead agent that have not taken effect yet.
    late_starts: Vec<Flight>,
    pub(super) dirty: BTreeSet<Key>,
    wakes: Vec<(Key, u64)>,
    /// The buffer of a turn, kept for its memory.
    turn: Turn,
    /// The keys planned in this turn; kept for its memory.
    planned: Vec<Key>,
    /// Consecutive turns without new events.
    idle_turns: u32,
    /// Events in transit.
    event_queue: Vec<(u64, Event)>,
    /// When the checks of an allocation run next, and their last status.
    checks: BTreeMap<AllocId, (u64, Option<CheckStatus>)>,
    pub(super) events: Vec<Event>,
    requests: u64,
    /// Unanswered requests.
    asked: BTreeMap<u64, Command>,
    /// The jobs that users were told are wanted.
    pub(super) wanted: BTreeMap<String, Job>,
    /// Events applied and effects executed.
    pub steps: u64,
    /// Transactions.
    pub commits: u64,
    /// The number of published job views.
    pub job_views: u64,
    /// All published jobs.
    pub jobs: BTreeMap<JobKey, Arc<JobView>>,
    /// All published allocations.
    pub allocs: BTreeMap<AllocId, Arc<AllocView>>,
}

fn settings() -> Settings {
    Settings {
        instance: InstanceId("0123456789abcdef".to_owned()),
        max_kill_timeout: Duration::from_secs(30),
        dynamic_ports: 20_000..=32_000,
        host_ip: "127.0.0.1".to_owned(),
        host_networks: BTreeMap::new(),
        node: NodeFacts {
            meta: [("color".to_owned(), jobs::COLOR.to_owned())].into(),
            ..NodeFacts::default()
        },
        room: jobs::ROOM,
        cores: OfferedCores::OfServers,
        start_offline: false,
        reserved_ports: BTreeSet::new(),
    }
}

impl Life {
    /// A simulation with this seed, and with an empty machine.
    pub fn new(seed: u64, faults: Faults) -> Self {
        let mut life = Self {
            rng: Rng::new(seed),
            machine: Machine { boot: 1, ..Machine::default() },
            faults,
            trace: Trace::default(),
            now_ns: SECOND,
            turn_ns: 0,
            clock: Clock::new(),
            driver: Driver::default(),
            full_until: 0,
            held: Vec::new(),
            met: Coverage::default(),
            world: World::new(settings()),
            promises: Invariants::default(),
            rollouts: Rollouts::default(),
            rooms: Rooms::default(),
            launches: Launches::default(),
            stored: BTreeMap::new(),
            journal: None,
            flights: Vec::new(),
            late_starts: Vec::new(),
            dirty: BTreeSet::new(),
            wakes: Vec::new(),
            turn: Turn::default(),
            planned: Vec::new(),
            idle_turns: 0,
            event_queue: Vec::new(),
            checks: BTreeMap::new(),
            events: Vec::new(),
            requests: 0,
            asked: BTreeMap::new(),
            wanted: BTreeMap::new(),
            steps: 0,
            commits: 0,
            job_views: 0,
            jobs: BTreeMap::new(),
            allocs: BTreeMap::new(),
        };
        life.machine.start_agent();
        life.events.push(Event::Desired(DesiredChange::Complete));
        life
    }

    /// Enables the log.
    pub fn logged(mut self) -> Self {
        self.trace = Trace::kept();
        self
    }

    /// Sets the longest duration of a turn.
    pub fn with_turns_of(mut self, turn_ns: u64) -> Self {
        self.turn_ns = turn_ns;
        self
    }

    /// Keeps every written record.
    #[must_use]
    pub fn with_journal(mut self) -> Self {
        self.journal = Some(Vec::new());
        self
    }

    /// Starts a new chapter of the log.
    pub fn chapter(&mut self, title: &str) {
        self.trace.chapter(title);
    }

    /// The log, one line per event.
    pub fn log(&self) -> &[String] {
        self.trace.lines()
    }

    /// Every written record, in order; none unless [`Self::with_journal`] was called.
    pub fn journal(&self) -> &[RecordValue] {
        self.journal.as_deref().unwrap_or_default()
    }

    /// The current time.
    pub fn now(&self) -> Now {
        Now { boot: BootId(self.machine.boot), boot_ns: self.now_ns, wall: self.clock.wall(self.now_ns) }
    }

    /// The agent's state.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The real state of the machine.
    pub fn machine(&mut self) -> &mut Machine {
        &mut self.machine
    }

    /// Applies these jobs.
    pub fn apply(&mut self, jobs: Vec<Job>) {
        self.request(Command::Apply { jobs, volumes: Vec::new() });
    }

    /// Applies the volume that all jobs may mount.
    pub fn want_volume(&mut self) {
        let volumes = jobs::volumes().into_iter().take(1).collect();
        self.request(Command::Apply { jobs: Vec::new(), volumes });
    }

    /// Applies the volumes that jobs mount.
    pub fn want_volumes(&mut self) {
        self.request(Command::Apply { jobs: Vec::new(), volumes: jobs::volumes() });
    }

    /// Deletes a job.
    pub fn delete(&mut self, id: &str) {
        self.request(Command::Delete { job: job_key(id) });
    }

    /// Sends a request.
    pub fn request(&mut self, command: Command) {
        self.requests += 1;
        self.trace.request(self.now_ns, &command);
        self.asked.insert(self.requests, command.clone());
        self.events.push(Event::Command { request: self.requests, command });
    }

    /// Reports an event to the agent now.
    pub fn see(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Reports an event to the agent up to a second later, and a second time once in four.
    pub(super) fn post(&mut self, event: Event) {
        let late = if self.faults.slow_one_in == 0 { 0 } else { self.rng.below(SECOND) };
        if self.faults.slow_one_in > 0 && self.rng.one_in(4) {
            self.event_queue.push((self.now_ns + late + self.rng.below(SECOND), event.clone()));
        }
        self.event_queue.push((self.now_ns + late, event));
    }

    /// Continues until the log contains this text.
    pub fn until(&mut self, text: &str) -> Result<(), String> {
        let before = self.log().len();
        for _ in 0..10_000 {
            if self.log().iter().skip(before).any(|line| line.contains(text)) {
                return Ok(());
            }
            if !self.moment()? {
                break;
            }
        }
        Err(format!("the log never contains \"{text}\""))
    }

    /// The published view of an allocation by its name; the newest with that name.
    pub fn alloc(&self, name: &str) -> Option<&AllocView> {
        let named = self.allocs.values().filter(|view| view.spec.name() == name);
        named.max_by_key(|view| view.spec.create_index).map(|view| &**view)
    }

    /// Continues for this long.
    pub fn pass(&mut self, seconds: u64) -> Result<(), String> {
        let until = self.now_ns + seconds * SECOND;
        loop {
            if self.events.is_empty() && self.dirty.is_empty() && self.next().is_none_or(|at| at > until) {
                self.now_ns = self.now_ns.max(until);
                return Ok(());
            }
            self.moment()?;
        }
    }

    /// Simulates one moment: whatever is due next. Returns `false` if nothing ever will be.
    pub fn moment(&mut self) -> Result<bool, String> {
        if self.faults.crash_one_in > 0 && self.rng.one_in(self.faults.crash_one_in) {
            self.met.note(Kind::Crash);
            self.crash()?;
        }
        if self.faults.jump_one_in > 0 && self.rng.one_in(self.faults.jump_one_in) {
            self.set_clock();
        }
        if self.faults.full_one_in > 0 && self.rng.one_in(self.faults.full_one_in) {
            let seconds = self.rng.below(60);
            self.disk_full(seconds);
        }
        if self.faults.damage_one_in > 0 && self.rng.one_in(self.faults.damage_one_in) {
            self.damage_record();
        }
        if self.faults.drift_one_in > 0 && self.rng.one_in(self.faults.drift_one_in) {
            self.drift();
        }
        if self.faults.driver_one_in > 0 && self.rng.one_in(self.faults.driver_one_in) {
            self.turn_driver();
        }
        if self.faults.outage_one_in > 0 && self.rng.one_in(self.faults.outage_one_in) {
            let seconds = self.rng.below(300);
            self.catalogue_down(seconds);
        }
        if self.faults.outage_one_in > 0 && self.rng.one_in(self.faults.outage_one_in) {
            self.met.note(Kind::DataOutage);
            self.machine.templates.down_until = self.now_ns + self.rng.below(120) * SECOND;
        }
        if self.faults.drift_one_in > 0 && self.rng.one_in(self.faults.drift_one_in) {
            self.change_data();
        }
        if self.events.is_empty() && self.dirty.is_empty() {
            let Some(at) = self.next() else { return Ok(false) };
            self.now_ns = self.now_ns.max(at);
            self.idle_turns = 0;
            self.gather()?;
        }
        self.try_disk()?;
        self.turn()?;
        if self.turn_ns > 0 {
            self.now_ns += self.rng.below(self.turn_ns);
        }
        Ok(true)
    }

    /// The catalogue returns only errors for this long.
    pub fn catalogue_down(&mut self, seconds: u64) {
        self.trace.note(self.now_ns, || format!("the catalogue goes down for {seconds}s"));
        self.met.note(Kind::Outage);
        self.machine.catalogue_down_until = self.now_ns + seconds * SECOND;
    }

    /// When something is due next.
    pub(super) fn next(&self) -> Option<u64> {
        let flights = self.flights.iter().map(|flight| {
            let at = if flight.outcome.is_some() { flight.done_at } else { flight.effect_at };
            flight.overdue_at.map_or(at, |overdue| overdue.min(at))
        });
        let ghosts = self.late_starts.iter().map(|ghost| ghost.effect_at);
        let mail = self.event_queue.iter().map(|(at, _)| *at);
        let wakes = self.wakes.iter().map(|(_, at)| *at);
        let checks = self.checks.values().map(|(at, _)| *at).filter(|at| *at != u64::MAX);
        flights
            .chain(ghosts)
            .chain(self.next_try())
            .chain(mail)
            .chain(wakes)
            .chain(checks)
            .chain(self.machine.next_end())
            .min()
    }
}

/// Key of a job in the default namespace.
pub fn job_key(id: &str) -> JobKey {
    JobKey { namespace: "default".into(), id: id.into() }
}
