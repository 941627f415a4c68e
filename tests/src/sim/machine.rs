//! The simulated machine: the real state of a simulation. It survives crashes of the agent, and checks invariants.

mod process;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};

use herdlet_api_types::{
    AllocId, Duration, UnixNanos,
    alloc::Allocation,
    job::{Group, Task},
    task::ExitResult,
};
use herdlet_plan::{
    action::{Action, FailureClass, Outcome, Started, Verb},
    event::Event,
    facts::{Facts, Input},
    launch::{Handle, Launch},
    network::DriverNetwork,
    op::{Part, Subject, TaskPart},
    parts::{Down, IfLost, Medium},
    shared::volume::volume_name,
    time::{Deadline, Now},
};

use self::tokens::{LoginTokens, renew_in};
use super::{jobs::checks_of, networks::Networks, probe::Probes, templates::Templates};

/// A real object that an operation creates or removes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Thing {
    /// A part of an allocation, other than its processes.
    Part(AllocId, Part),
    /// A volume's data.
    Volume(String),
}

impl Thing {
    /// Whether it is a part with this medium.
    pub fn consists_of(&self, medium: Medium) -> bool {
        matches!(self, Self::Part(_, part) if part.row().medium == medium)
    }

    /// Whether it is a part of this allocation.
    fn is_of(&self, alloc: AllocId) -> bool {
        matches!(self, Self::Part(id, _) if *id == alloc)
    }

    /// Whether it is a directory that tasks need.
    pub fn is_dir(&self) -> bool {
        matches!(self, Self::Part(_, part) if part.row().if_lost != IfLost::Restore)
    }
}

/// An attempt's identity: allocation, index of the task in its group, number.
pub type AttemptKey = (AllocId, u16, u32);

/// An attempt, as its record describes it.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The allocation it was started from.
    pub alloc: std::sync::Arc<Allocation>,
    /// Its current phase.
    pub phase: Phase,
    /// Its exit code when it ends by itself.
    pub exit_code: i32,
}

/// The launch record of an attempt, with its driver's report.
fn launch_of(key: AttemptKey, inputs: &[Input]) -> Launch {
    let Started { handle, network } = started(key);
    Launch { handle, network, ..Launch::with(key.2, inputs) }
}

/// The driver's report about a running attempt: a handle, and a network for each second task.
pub fn started((_, index, attempt): AttemptKey) -> Started {
    let state = [u32::from(index), attempt].iter().flat_map(|number| number.to_le_bytes()).collect();
    let ip = format!("10.0.{index}.{}", attempt % 250);
    let network = (index % 2 == 0).then(|| DriverNetwork { ip, ..DriverNetwork::default() });
    Started { handle: Some(Handle { version: 1, state }), network }
}

/// The phase of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Fenced: it never ran and never will.
    Tombstone,
    /// Its process runs.
    Live,
    /// It exited.
    Exited(ExitResult),
    /// Its process and its supervisor are gone, and its exit is unknown.
    Lost,
}

/// Expiry of tokens, in nanoseconds since boot.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tokens {
    lying: Option<u64>,
    known: Option<u64>,
    /// When half of the lifetime of the tokens on disk is over.
    renew_at: Option<Deadline>,
}

/// The machine's state.
#[derive(Debug, Default)]
pub struct Machine {
    /// Objects that exist.
    pub things: BTreeSet<Thing>,
    /// Objects that vanished behind the agent's back and were not created again: no invariant depends on them.
    pub vanished: BTreeSet<Thing>,
    /// Allocations that ever lost an object that way.
    pub robbed: BTreeSet<AllocId>,
    /// Allocations created as canaries.
    pub canaries: BTreeSet<AllocId>,
    /// Canaries that were promoted.
    pub promoted: BTreeSet<AllocId>,
    /// Objects covered by a foreign mount.
    pub covered: BTreeSet<Thing>,
    /// Attempts that have a record.
    pub attempts: BTreeMap<AttemptKey, Attempt>,
    /// Attempts whose process runs, with the time at which it ends by itself, in nanoseconds.
    pub(super) living: BTreeMap<AttemptKey, u64>,
    /// Every attempt whose process ever started: none may start twice.
    pub begun: BTreeSet<AttemptKey>,
    /// When the tokens on disk and the tokens known to the process expire, by task.
    pub(super) tokens: BTreeMap<(AllocId, u16), Tokens>,
    /// The parts that only tests have.
    pub probes: Probes,
    /// Tokens of Vault.
    pub vault: LoginTokens,
    /// Tokens of Consul.
    pub consul: LoginTokens,
    /// Templates of tasks, and their data.
    pub templates: Templates,
    /// Networks of allocations.
    pub networks: Networks,
    /// Allocations whose progress an agent has forgotten: the order of their tasks is not checked any more.
    pub forgotten: BTreeSet<AllocId>,
    /// Until this time supervisors spawned by a dead agent may still start: records of ended attempts become fences.
    pub late_until: u64,
    /// The number of the current boot.
    pub boot: u64,
    /// The boot in which an agent created the directory of records, and whether it existed when the current agent started:
    /// then an attempt without a record never started.
    pub(super) records_of: u64,
    pub(super) remembers: bool,
    /// Registrations and deregistrations fail until this time.
    pub catalogue_down_until: u64,
}

/// The end time of a process that does not end by itself.
const NEVER: u64 = u64::MAX;

/// How long the raw_exec driver keeps fences for late supervisors.
const LATE_NS: u64 = 60_000_000_000;

impl Machine {
    /// Executes an action. Returns the outcome of its operation, or a violation.
    pub fn perform(&mut self, now: Now, action: &Action) -> Result<Outcome, String> {
        match &action.subject {
            Subject::Volume(volume) => {
                let thing = Thing::Volume(volume.name.clone());
                if action.verb == Verb::Down {
                    if let Some((_, user)) = self
                        .live()
                        .find(|((_, index, _), known)| mounts_volume(&known.alloc, *index, &volume.name))
                    {
                        return Err(format!("volume {} is removed under {}", volume.name, user.alloc.name()));
                    }
                    self.things.remove(&thing);
                    return Ok(Outcome::Done(None));
                }
                self.things.insert(thing);
                Ok(Outcome::Done(Some(Facts::rooted(format!("/volumes/{}", volume.name)))))
            }
            Subject::Alloc(alloc, Part::Task(index, TaskPart::Process)) => {
                self.process(now.boot_ns, alloc, *index, action)
            }
            Subject::Alloc(_, Part::Task(_, TaskPart::Prestop)) => Ok(Outcome::Done(None)),
            Subject::Alloc(alloc, part) => self.part(now, alloc, *part, action),
        }
    }

    /// Ends processes that end by themselves until `now_ns`. Returns the events that a running agent receives.
    pub fn pass_time(&mut self, now_ns: u64) -> Vec<Event> {
        let due = self.living.iter().filter(|(_, at)| **at <= now_ns);
        let ended: Vec<AttemptKey> = due.map(|(key, _)| *key).collect();
        let end = |key| {
            let code = self.attempts.get(&key)?.exit_code;
            self.end(key, ExitResult { code, at: UnixNanos(1), ..ExitResult::default() })
        };
        ended.into_iter().filter_map(end).collect()
    }

    /// Ends all processes now, with this code. Returns how many.
    pub fn end_all(&mut self, now_ns: u64, code: i32) -> usize {
        for (key, ends_at) in &mut self.living {
            *ends_at = now_ns.min(*ends_at);
            if let Some(attempt) = self.attempts.get_mut(key) {
                attempt.exit_code = code;
            }
        }
        self.living.len()
    }

    /// When a process next ends by itself.
    pub fn next_end(&self) -> Option<u64> {
        self.living.values().copied().filter(|at| *at != NEVER).min()
    }

    /// Attempts whose process runs.
    pub fn live(&self) -> impl Iterator<Item = (&AttemptKey, &Attempt)> {
        self.living.keys().filter_map(|key| self.attempts.get_key_value(key))
    }

    /// Whether a process of this task of the allocation runs.
    pub fn lives(&self, alloc: AllocId, index: u16) -> bool {
        let of_task = (alloc, index, 0)..=(alloc, index, u32::MAX);
        self.living.range(of_task).next().is_some()
    }

    /// Whether an action can fail now. A failed start leaves a fence: the attempt did not run and never will. A start that
    /// finds its process running does not fail.
    pub fn may_fail(&mut self, action: &Action) -> bool {
        match (&action.subject, &action.verb) {
            (_, Verb::Signal { .. } | Verb::Script { .. }) => false,
            (Subject::Alloc(alloc, Part::Task(index, _)), Verb::Start { attempt }) => {
                let key = (alloc.id, *index, *attempt);
                let fence = Attempt { alloc: alloc.clone(), phase: Phase::Tombstone, exit_code: 0 };
                self.attempts.entry(key).or_insert(fence).phase == Phase::Tombstone
            }
            _ => true,
        }
    }

    /// When the process that an action stops will end.
    pub fn ends_at(&self, action: &Action) -> Option<u64> {
        match (&action.subject, &action.verb) {
            (Subject::Alloc(alloc, Part::Task(index, _)), Verb::Stop { attempt, .. }) => {
                self.living.get(&(alloc.id, *index, *attempt)).copied().filter(|at| *at != NEVER)
            }
            _ => None,
        }
    }

    /// Removes an object behind the agent's back, a directory with its contents.
    pub fn vanish(&mut self, gone: &Thing) {
        if let Thing::Part(alloc, _) = gone {
            self.robbed.insert(*alloc);
        }
        let lost = self.remove(gone);
        self.lose_tokens(&lost);
        self.vanished.extend(lost);
    }

    /// Removes an object and its contents.
    pub fn remove(&mut self, gone: &Thing) -> BTreeSet<Thing> {
        let goes = |thing: &Thing| match (gone, thing) {
            (Thing::Part(of, Part::Dir), thing) => thing.is_of(*of) && thing.consists_of(Medium::Files),
            (Thing::Part(of, dir @ Part::Task(_, TaskPart::Dir)), Thing::Part(id, part)) => {
                let goes_along = part.lies_in(*dir) && thing.consists_of(Medium::Files) && !is_token(*part);
                id == of && (part == dir || goes_along)
            }
            _ => thing == gone,
        };
        self.things.extract_if(.., goes).collect()
    }

    /// Kills a process. Returns the event that a running agent receives.
    pub fn kill(&mut self, key: AttemptKey) -> Option<Event> {
        self.end(key, ExitResult { code: 137, signal: 9, at: UnixNanos(1), ..ExitResult::default() })
    }

    /// Kills a process and its supervisor.
    pub fn lose(&mut self, key: AttemptKey) -> Option<Event> {
        let attempt = self.attempts.get_mut(&key)?;
        attempt.phase = Phase::Lost;
        self.living.remove(&key);
        let error = "the supervisor died".to_owned();
        Some(exited(key, attempt, ExitResult { code: -1, error, ..ExitResult::default() }))
    }

    /// Damages an attempt's record. Returns the event that a running agent receives; it kills the process.
    pub fn damage(&mut self, key: AttemptKey) -> Option<Event> {
        let attempt = self.attempts.get_mut(&key)?;
        match attempt.phase {
            Phase::Live => self.lose(key),
            // The exit can no longer be determined.
            Phase::Exited(_) => {
                attempt.phase = Phase::Lost;
                None
            }
            // A tombstone replaces an unreadable record.
            Phase::Tombstone | Phase::Lost => None,
        }
    }

    /// The number of the newest attempt that has a record.
    pub fn newest_attempt(&self, alloc: AllocId, index: u16) -> Option<u32> {
        let of_task = (alloc, index, 0)..=(alloc, index, u32::MAX);
        self.attempts.range(of_task).next_back().map(|((_, _, attempt), _)| *attempt)
    }

    /// The stored state of an allocation is lost. Attempts without a record then count as never started.
    pub fn forget(&mut self, alloc: AllocId) {
        self.begun.retain(|key| key.0 != alloc || self.attempts.contains_key(key));
        self.forgotten.insert(alloc);
    }

    /// When the tokens known to a task's process expire; none if it is not notified of new ones.
    pub fn token_known_until(&self, alloc: AllocId, index: u16) -> Option<u64> {
        self.tokens.get(&(alloc, index))?.known
    }

    /// Restarts the machine: processes, their records, mounts and the agent's in-memory objects are gone; Consul keeps its
    /// state.
    pub fn reboot(&mut self) {
        self.boot += 1;
        self.attempts.clear();
        self.living.clear();
        self.tokens.clear();
        self.vault.reboot();
        self.consul.reboot();
        self.networks.reboot();
        self.catalogue_down_until = 0;
        self.things.retain(|thing| !thing.consists_of(Medium::Mounts) && !tokens::is_of_login(thing));
        self.crash(0);
        self.late_until = 0;
    }

    /// An agent starts.
    pub fn start_agent(&mut self) {
        self.remembers = self.records_of == self.boot;
        self.records_of = self.boot;
    }

    /// The agent dies, and its checks with it.
    pub fn crash(&mut self, now_ns: u64) {
        self.late_until = now_ns + LATE_NS;
        self.templates.crash();
        self.things.retain(|thing| !thing.consists_of(Medium::Agent));
    }

    /// Renders the templates of a task. If their data is missing, no file is written.
    fn render(
        &mut self,
        now: Now,
        alloc: &Allocation,
        part: Part,
        action: &Action,
    ) -> Result<Outcome, String> {
        let index = part.task().unwrap_or_default();
        let (_, task) = spec_of(alloc, index)?;
        let thing = Thing::Part(alloc.id, part);
        let has_files = self.things.contains(&thing);
        let outcome = self.templates.render(now, (alloc, index, task), (&action.inputs, has_files));
        if matches!(outcome, Outcome::Done(_)) {
            self.vanished.remove(&thing);
            self.things.insert(thing);
        }
        Ok(outcome)
    }

    /// Ends a process. Returns the event that a running agent receives.
    fn end(&mut self, key: AttemptKey, result: ExitResult) -> Option<Event> {
        let attempt = self.attempts.get_mut(&key)?;
        attempt.phase = Phase::Exited(result.clone());
        self.living.remove(&key);
        Some(exited(key, attempt, result))
    }

    fn part(&mut self, now: Now, alloc: &Allocation, part: Part, action: &Action) -> Result<Outcome, String> {
        let now_ns = now.boot_ns;
        let thing = Thing::Part(alloc.id, part);
        let medium = part.row().medium;
        let of_catalogue = medium == Medium::Catalogue;
        if of_catalogue && now_ns < self.catalogue_down_until {
            if let (Part::Task(_, TaskPart::Probe), Verb::Up) = (part, &action.verb) {
                let (on, ask_in) = ("the catalogue".to_owned(), Duration::from_secs(20));
                return Ok(Outcome::Pending { on, ask_in });
            }
            let why = "the catalogue is down".to_owned();
            return Ok(Outcome::Failed { class: FailureClass::Retry, why });
        }
        let has_dir = self.things.contains(&Thing::Part(alloc.id, Part::Dir));
        Ok(match &action.verb {
            Verb::Up if medium == Medium::Files && part != Part::Dir && !has_dir => {
                let why = "the allocation directory is missing".to_owned();
                Outcome::Failed { class: FailureClass::Retry, why }
            }
            Verb::Up if matches!(part, Part::Task(_, TaskPart::Vault | TaskPart::Consul)) => {
                self.get_token(now, alloc.id, part)
            }
            Verb::Up if matches!(part, Part::Task(_, TaskPart::Templates)) => {
                return self.render(now, alloc, part, action);
            }
            Verb::Up => {
                self.vanished.remove(&thing);
                self.covered.remove(&thing);
                let is_new = self.things.insert(thing);
                match part {
                    Part::Task(index, TaskPart::Probe) => {
                        Outcome::Done(Some(self.probes.make((alloc.id, index), is_new)))
                    }
                    Part::Task(index, TaskPart::ProbeReader) => {
                        Outcome::Done(Some(self.probes.read((alloc.id, index), &action.inputs)?))
                    }
                    Part::Task(index, TaskPart::Identity) => {
                        let renew_in = renew_in(alloc, index);
                        let lasts = renew_in.map(|half| now_ns + 2 * half.as_nanos().unsigned_abs());
                        let tokens = self.tokens.entry((alloc.id, index)).or_default();
                        tokens.lying = lasts.filter(|_| tokens::is_told(alloc, index));
                        tokens.renew_at = renew_in.map(|half| Deadline::after(now, half));
                        Outcome::Done(Some(Facts::renewed_at(tokens.renew_at)))
                    }
                    Part::Network => Outcome::Done(Some(self.networks.make(alloc, !is_new)?)),
                    Part::Task(_, TaskPart::Mounts) if action.mounts.is_empty() => {
                        return Err(format!("{} mounts nothing", alloc.name()));
                    }
                    _ if runs_checks(part) => Outcome::Checking(checks_of(alloc, part)),
                    Part::Dir | Part::Services | Part::Checks | Part::Task(..) => Outcome::Done(None),
                }
            }
            Verb::Down => {
                let in_use = match (part.row().down, part.task()) {
                    (Down::WithDir | Down::AfterProcess, None) => {
                        self.live().any(|((id, ..), _)| *id == alloc.id)
                    }
                    (Down::AfterProcess, Some(index)) => self.lives(alloc.id, index),
                    (Down::First | Down::EachAttempt, _) | (Down::WithDir, Some(_)) => false,
                };
                if in_use {
                    return Err(format!("{part:?} of {} is removed under a process", alloc.name()));
                }
                self.covered.remove(&thing);
                if part == Part::Dir {
                    let ours = |thing: &Thing| thing.is_of(alloc.id) && thing.consists_of(Medium::Files);
                    self.things.retain(|thing| !ours(thing));
                }
                self.things.remove(&thing);
                self.forget_token(alloc.id, part);
                if part == Part::Network {
                    self.networks.remove(alloc.id);
                }
                Outcome::Done(None)
            }
            Verb::Inspect if self.covered.contains(&thing) => {
                Outcome::Foreign { why: "another file system is mounted there".to_owned() }
            }
            Verb::Inspect => match (self.things.contains(&thing), part) {
                (true, Part::Task(index, TaskPart::Identity)) => {
                    let renew_at = self.tokens.get(&(alloc.id, index)).and_then(|tokens| tokens.renew_at);
                    Outcome::Present(Some(Facts::renewed_at(renew_at)))
                }
                (true, Part::Task(_, TaskPart::Vault | TaskPart::Consul)) => {
                    Outcome::Present(self.inspect_token(alloc.id, part))
                }
                (true, Part::Task(index, own)) => {
                    Outcome::Present(self.probes.inspect((alloc.id, index), own))
                }
                (true, Part::Network) => Outcome::Present(self.networks.facts(alloc.id)),
                (false, Part::Network) if self.networks.facts(alloc.id).is_some() => {
                    Outcome::Foreign { why: "its namespace is gone".to_owned() }
                }
                (true, _) => Outcome::Present(None),
                (false, _) => Outcome::Absent,
            },
            Verb::Ask if of_catalogue && self.things.contains(&thing) => {
                return Err(format!(
                    "{part:?} of {} is queried although a request was sent before",
                    alloc.name()
                ));
            }
            Verb::Ask if of_catalogue => Outcome::Absent,
            verb @ (Verb::Ask
            | Verb::Start { .. }
            | Verb::Withdraw
            | Verb::Recover { .. }
            | Verb::Stop { .. }
            | Verb::Destroy { .. }
            | Verb::Prestop { .. }
            | Verb::Script { .. }
            | Verb::Signal { .. }) => return Err(format!("{verb:?} on {part:?}")),
        })
    }
}

/// Whether a part runs checks. The socket of a task is the agent's own work, too.
pub fn runs_checks(part: Part) -> bool {
    matches!(part, Part::Checks | Part::Task(_, TaskPart::Checks))
}

/// Tokens are on a file system of their own.
fn is_token(part: Part) -> bool {
    matches!(part, Part::Task(_, TaskPart::Identity | TaskPart::Vault | TaskPart::Consul))
}

/// The group and task of an allocation.
pub fn spec_of(alloc: &Allocation, index: u16) -> Result<(&Group, &Task), String> {
    let group = alloc.group().ok_or("no group")?;
    Ok((group, group.tasks.get(usize::from(index)).ok_or("no such task")?))
}

/// Whether a task of the allocation mounts this volume.
fn mounts_volume(alloc: &Allocation, index: u16, volume: &str) -> bool {
    let Ok((group, task)) = spec_of(alloc, index) else { return false };
    let mut requests = task.volume_mounts.iter().filter_map(|mount| group.volumes.get(&mount.volume));
    requests.any(|request| volume_name(alloc, request) == volume)
}

fn exited(key: AttemptKey, attempt: &Attempt, result: ExitResult) -> Event {
    let (alloc, index, number) = key;
    let task = spec_of(&attempt.alloc, index).map(|(_, task)| task.name.clone()).unwrap_or_default();
    Event::Exited { alloc, task, attempt: number, result }
}
