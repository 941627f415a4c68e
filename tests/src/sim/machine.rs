//! The invented machine: everything that is real in a simulated life. It survives crashes of the agent, and knows what must
//! never happen on it.

mod process;

use std::collections::{BTreeMap, BTreeSet};

use herdlet_api_types::{
    AllocId, Duration, UnixNanos,
    alloc::Allocation,
    job::{ChangeMode, Group, Task},
    task::ExitResult,
};
use herdlet_plan::{
    action::{Action, FailureClass, Outcome, Verb},
    event::Event,
    facts::{Facts, Input},
    launch::{Handle, Launch},
    op::{Part, Subject, TaskPart},
    parts::{Down, IfLost, Medium},
    shared::volume::volume_name,
    time::{Deadline, Now},
};

use super::{jobs::checks_of, probe::Probes};

/// A real thing that an operation makes or removes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Thing {
    /// A part of an allocation but its processes.
    Part(AllocId, Part),
    /// A volume's data.
    Volume(String),
}

impl Thing {
    /// Whether it is a part that consists of this.
    pub fn consists_of(&self, medium: Medium) -> bool {
        matches!(self, Self::Part(_, part) if part.row().medium == medium)
    }

    /// Whether it is a part of this allocation.
    fn is_of(&self, alloc: AllocId) -> bool {
        matches!(self, Self::Part(id, _) if *id == alloc)
    }

    /// Whether it is a directory that tasks can't do without.
    pub fn is_dir(&self) -> bool {
        matches!(self, Self::Part(_, part) if part.row().if_lost != IfLost::Restore)
    }
}

/// An attempt's identity: allocation, index of the task in its group, number.
pub type AttemptKey = (AllocId, u16, u32);

/// One attempt, as its record tells.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// What it was made from.
    pub alloc: std::sync::Arc<Allocation>,
    /// Where it stands.
    pub phase: Phase,
    /// How it ends by itself.
    pub exit_code: i32,
}

/// What starting an attempt tells, and what its driver wants to be given back.
fn launch_of(key: AttemptKey, inputs: &[Input]) -> Launch {
    let (_, index, attempt) = key;
    let state = [u32::from(index), attempt].iter().flat_map(|number| number.to_le_bytes()).collect();
    Launch { handle: Some(Handle { version: 1, state }), ..Launch::with(attempt, inputs) }
}

/// Where an attempt stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Fenced: it never ran and never will.
    Tombstone,
    /// Its process lives.
    Live,
    /// It ended.
    Exited(ExitResult),
    /// Its process and its supervisor are gone, without a word.
    Lost,
}

/// Until when tokens are good, in nanoseconds since boot.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tokens {
    lying: Option<u64>,
    known: Option<u64>,
    /// When those that lie there are half through.
    renew_at: Option<Deadline>,
}

/// Everything that is real.
#[derive(Debug, Default)]
pub struct Machine {
    /// Things that are there.
    pub things: BTreeSet<Thing>,
    /// Things that went behind the agent's back and are not there again: no promise rests on them.
    pub vanished: BTreeSet<Thing>,
    /// Allocations of which anything ever went so.
    pub robbed: BTreeSet<AllocId>,
    /// Allocations that were made to stand beside the one of their slot.
    pub canaries: BTreeSet<AllocId>,
    /// Those of them that have taken its place.
    pub promoted: BTreeSet<AllocId>,
    /// Things that are covered by something that is not ours.
    pub covered: BTreeSet<Thing>,
    /// Attempts that have a record.
    pub attempts: BTreeMap<AttemptKey, Attempt>,
    /// Attempts whose process lives, each with the time when it ends by itself, in nanoseconds.
    pub(super) living: BTreeMap<AttemptKey, u64>,
    /// Every attempt whose process ever began: none begins twice.
    pub begun: BTreeSet<AttemptKey>,
    /// When the tokens expire that lie in a task's directory, and those that its process knows.
    pub(super) tokens: BTreeMap<(AllocId, u16), Tokens>,
    /// What only tests have.
    pub probes: Probes,
    /// Allocations of which an agent has forgotten how far they had come: the order of their tasks is no promise any more.
    pub forgotten: BTreeSet<AllocId>,
    /// Until then supervisors may come that a dead agent has spawned: records of ended attempts become fences.
    pub late_until: u64,
    /// The next boot has another number.
    pub boot: u64,
    /// In which boot an agent made the directory of records, and whether it was there when the present agent came: then an attempt
    /// without a record never began.
    pub(super) records_of: u64,
    pub(super) remembers: bool,
    /// Registering and deregistering fail until then.
    pub catalogue_down_until: u64,
}

/// The end of what does not end by itself.
const NEVER: u64 = u64::MAX;

/// How long the raw_exec driver keeps fences, for supervisors that come late.
const LATE_NS: u64 = 60_000_000_000;

impl Machine {
    /// Does what an action asks. The answer is what its operation returns; an error is a broken promise.
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

    /// Ends what ends by itself until `now_ns`; the events that a living agent sees.
    pub fn pass_time(&mut self, now_ns: u64) -> Vec<Event> {
        let due = self.living.iter().filter(|(_, at)| **at <= now_ns);
        let ended: Vec<AttemptKey> = due.map(|(key, _)| *key).collect();
        let end = |key| {
            let code = self.attempts.get(&key)?.exit_code;
            self.end(key, ExitResult { code, at: UnixNanos(1), ..ExitResult::default() })
        };
        ended.into_iter().filter_map(end).collect()
    }

    /// When something next ends by itself.
    pub fn next_end(&self) -> Option<u64> {
        self.living.values().copied().filter(|at| *at != NEVER).min()
    }

    /// Attempts whose process lives.
    pub fn live(&self) -> impl Iterator<Item = (&AttemptKey, &Attempt)> {
        self.living.keys().filter_map(|key| self.attempts.get_key_value(key))
    }

    /// Whether a process of this task of the allocation lives.
    pub fn lives(&self, alloc: AllocId, index: u16) -> bool {
        let of_task = (alloc, index, 0)..=(alloc, index, u32::MAX);
        self.living.range(of_task).next().is_some()
    }

    /// Whether an action can fail now. A start that fails leaves a fence: it did not run and never will; one that finds its
    /// process running does not fail.
    pub fn may_fail(&mut self, action: &Action) -> bool {
        match (&action.subject, &action.verb) {
            (_, Verb::Signal { .. }) => false,
            (Subject::Alloc(alloc, Part::Task(index, _)), Verb::Start { attempt }) => {
                let key = (alloc.id, *index, *attempt);
                let fence = Attempt { alloc: alloc.clone(), phase: Phase::Tombstone, exit_code: 0 };
                self.attempts.entry(key).or_insert(fence).phase == Phase::Tombstone
            }
            _ => true,
        }
    }

    /// When the process ends that an action stops.
    pub fn ends_at(&self, action: &Action) -> Option<u64> {
        match (&action.subject, &action.verb) {
            (Subject::Alloc(alloc, Part::Task(index, _)), Verb::Stop { attempt, .. }) => {
                self.living.get(&(alloc.id, *index, *attempt)).copied().filter(|at| *at != NEVER)
            }
            _ => None,
        }
    }

    /// A thing goes behind the agent's back, a directory with all that lies in it.
    pub fn vanish(&mut self, gone: &Thing) {
        if let Thing::Part(alloc, _) = gone {
            self.robbed.insert(*alloc);
        }
        let lost = self.remove(gone);
        self.vanished.extend(lost);
    }

    /// It is not there any more, nor what lies in it.
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

    /// Somebody kills a process: what a living agent sees of it.
    pub fn kill(&mut self, key: AttemptKey) -> Option<Event> {
        self.end(key, ExitResult { code: 137, signal: 9, at: UnixNanos(1), ..ExitResult::default() })
    }

    /// Somebody kills a process and its supervisor.
    pub fn lose(&mut self, key: AttemptKey) -> Option<Event> {
        let attempt = self.attempts.get_mut(&key)?;
        attempt.phase = Phase::Lost;
        self.living.remove(&key);
        let error = "the supervisor died".to_owned();
        Some(exited(key, attempt, ExitResult { code: -1, error, ..ExitResult::default() }))
    }

    /// An attempt's record is damaged. What a living agent sees of it: it makes an end of the process.
    pub fn damage(&mut self, key: AttemptKey) -> Option<Event> {
        let attempt = self.attempts.get_mut(&key)?;
        match attempt.phase {
            Phase::Live => self.lose(key),
            // How it ended can't be told any more.
            Phase::Exited(_) => {
                attempt.phase = Phase::Lost;
                None
            }
            // A tombstone takes the place of what can't be read.
            Phase::Tombstone | Phase::Lost => None,
        }
    }

    /// The number of the newest attempt that has a record.
    pub fn newest_attempt(&self, alloc: AllocId, index: u16) -> Option<u32> {
        let of_task = (alloc, index, 0)..=(alloc, index, u32::MAX);
        self.attempts.range(of_task).next_back().map(|((_, _, attempt), _)| *attempt)
    }

    /// What was stored about an allocation is lost. What left no record has never been, as far as anybody can tell.
    pub fn forget(&mut self, alloc: AllocId) {
        self.begun.retain(|key| key.0 != alloc || self.attempts.contains_key(key));
        self.forgotten.insert(alloc);
    }

    /// When the tokens expire that a task's process knows; none where it is not told of new ones.
    pub fn token_known_until(&self, alloc: AllocId, index: u16) -> Option<u64> {
        self.tokens.get(&(alloc, index))?.known
    }

    /// Whether an action renews tokens.
    pub fn renews(&self, action: &Action) -> bool {
        match &action.subject {
            Subject::Alloc(alloc, part @ Part::Task(_, TaskPart::Identity)) => {
                action.verb == Verb::Up && self.things.contains(&Thing::Part(alloc.id, *part))
            }
            Subject::Alloc(..) | Subject::Volume(_) => false,
        }
    }

    /// The machine restarts: processes, their records, mounts and what ran in the agent are gone; Consul forgets nothing.
    pub fn reboot(&mut self) {
        self.boot += 1;
        self.attempts.clear();
        self.living.clear();
        self.tokens.clear();
        self.catalogue_down_until = 0;
        self.things.retain(|thing| !thing.consists_of(Medium::Mounts));
        self.crash(0);
        self.late_until = 0;
    }

    /// An agent begins.
    pub fn start_agent(&mut self) {
        self.remembers = self.records_of == self.boot;
        self.records_of = self.boot;
    }

    /// The agent dies: its checks go with it.
    pub fn crash(&mut self, now_ns: u64) {
        self.late_until = now_ns + LATE_NS;
        self.things.retain(|thing| !thing.consists_of(Medium::Agent));
    }

    /// A process ends: what a living agent sees of it.
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
                        tokens.lying = lasts.filter(|_| is_told(alloc, index));
                        tokens.renew_at = renew_in.map(|half| Deadline::after(now, half));
                        Outcome::Done(Some(Facts::renewed_at(tokens.renew_at)))
                    }
                    Part::Task(_, TaskPart::Mounts) if action.mounts.is_empty() => {
                        return Err(format!("{} mounts nothing", alloc.name()));
                    }
                    _ if medium == Medium::Agent => Outcome::Checking(checks_of(alloc, part)),
                    Part::Dir | Part::Services | Part::Checks | Part::Task(..) => Outcome::Done(None),
                }
            }
            Verb::Down => {
                let in_use = match (part.row().down, part.task()) {
                    (Down::WithDir, None) => self.live().any(|((id, ..), _)| *id == alloc.id),
                    (Down::AfterProcess, Some(index)) => self.lives(alloc.id, index),
                    (Down::First | Down::AfterProcess | Down::EachAttempt | Down::WithDir, _) => false,
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
                (true, Part::Task(index, own)) => {
                    Outcome::Present(self.probes.inspect((alloc.id, index), own))
                }
                (true, _) => Outcome::Present(None),
                (false, _) => Outcome::Absent,
            },
            Verb::Ask if of_catalogue && self.things.contains(&thing) => {
                return Err(format!("{part:?} of {} is asked for and was sent before", alloc.name()));
            }
            Verb::Ask if of_catalogue => Outcome::Absent,
            verb @ (Verb::Ask
            | Verb::Start { .. }
            | Verb::Withdraw
            | Verb::Recover { .. }
            | Verb::Stop { .. }
            | Verb::Destroy { .. }
            | Verb::Prestop { .. }
            | Verb::Signal { .. }) => return Err(format!("{verb:?} on {part:?}")),
        })
    }
}

/// Tokens lie on a file system of their own.
fn is_token(part: Part) -> bool {
    matches!(part, Part::Task(_, TaskPart::Identity))
}

/// Group and task of an allocation.
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

/// Whether a task is told of new tokens, by a signal or by being restarted.
fn is_told(alloc: &Allocation, index: u16) -> bool {
    let identities = spec_of(alloc, index).map(|(_, task)| task.identities.as_slice()).unwrap_or_default();
    identities.iter().any(|identity| identity.change_mode != ChangeMode::Noop)
}

fn renew_in(alloc: &Allocation, index: u16) -> Option<Duration> {
    let (_, task) = spec_of(alloc, index).ok()?;
    let ttl = task.identities.iter().filter_map(|identity| identity.ttl).min()?;
    Some(Duration(ttl.as_nanos() / 2))
}
