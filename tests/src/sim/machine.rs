//! The invented machine: everything that is real in a simulated life. It survives crashes of the agent, and knows what must
//! never happen on it.

use std::collections::{BTreeMap, BTreeSet};

use herdlet_api_types::{
    AllocId, Duration, UnixNanos,
    alloc::Allocation,
    job::{Group, Lifecycle, Task},
    task::ExitResult,
};
use herdlet_plan::{
    action::{Action, FailureClass, Outcome, Recovered, Verb},
    event::Event,
    op::{Part, Subject, TaskPart},
};

/// A real thing that an operation makes or removes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Thing {
    /// A part of an allocation but its processes.
    Part(AllocId, Part),
    /// A volume's data.
    Volume(String),
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
    /// When it ends by itself, in nanoseconds.
    pub ends_at: Option<u64>,
    /// How it ends by itself.
    pub exit_code: i32,
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

/// Everything that is real.
#[derive(Debug, Default)]
pub struct Machine {
    /// Things that are there.
    pub things: BTreeSet<Thing>,
    /// Things that went behind the agent's back and are not there again: no promise rests on them.
    pub vanished: BTreeSet<Thing>,
    /// Things that are covered by something that is not ours.
    pub covered: BTreeSet<Thing>,
    /// Attempts that have a record.
    pub attempts: BTreeMap<AttemptKey, Attempt>,
    /// Attempts whose process lives.
    pub(super) living: BTreeSet<AttemptKey>,
    /// Every attempt whose process ever began: none begins twice.
    pub begun: BTreeSet<AttemptKey>,
    /// Until then supervisors may come that a dead agent has spawned: records of ended attempts become fences.
    pub late_until: u64,
    /// The next boot has another number.
    pub boot: u64,
    /// Registering and deregistering fail until then.
    pub catalogue_down_until: u64,
}

/// How long the raw_exec driver keeps fences, for supervisors that come late.
const LATE_NS: u64 = 60_000_000_000;

impl Machine {
    /// Does what an action asks. The answer is what its operation returns; an error is a broken promise.
    pub fn perform(&mut self, now_ns: u64, action: &Action) -> Result<Outcome, String> {
        match &action.subject {
            Subject::Volume(volume) => {
                let thing = Thing::Volume(volume.name.clone());
                if action.verb == Verb::Down {
                    self.things.remove(&thing);
                    return Ok(Outcome::Done);
                }
                self.things.insert(thing);
                Ok(Outcome::Volume { path: format!("/volumes/{}", volume.name) })
            }
            Subject::Alloc(alloc, Part::Task(index, TaskPart::Process)) => {
                self.process(now_ns, alloc, *index, &action.verb)
            }
            Subject::Alloc(_, Part::Task(_, TaskPart::Prestop)) => Ok(Outcome::Done),
            Subject::Alloc(alloc, part) => self.part(now_ns, alloc, *part, action),
        }
    }

    /// Ends what ends by itself until `now_ns`; the events that a living agent sees.
    pub fn pass_time(&mut self, now_ns: u64) -> Vec<Event> {
        let due = |attempt: &Attempt| attempt.ends_at.is_some_and(|at| at <= now_ns);
        let ended: Vec<AttemptKey> =
            self.live().filter(|(_, known)| due(known)).map(|(key, _)| *key).collect();
        let end = |key| {
            let code = self.attempts.get(&key)?.exit_code;
            self.end(key, ExitResult { code, at: UnixNanos(1), ..ExitResult::default() })
        };
        ended.into_iter().filter_map(end).collect()
    }

    /// When something next ends by itself.
    pub fn next_end(&self) -> Option<u64> {
        self.live().filter_map(|(_, attempt)| attempt.ends_at).min()
    }

    /// Attempts whose process lives.
    pub fn live(&self) -> impl Iterator<Item = (&AttemptKey, &Attempt)> {
        self.living.iter().filter_map(|key| self.attempts.get_key_value(key))
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
                let fence =
                    Attempt { alloc: alloc.clone(), phase: Phase::Tombstone, ends_at: None, exit_code: 0 };
                self.attempts.entry(key).or_insert(fence).phase == Phase::Tombstone
            }
            _ => true,
        }
    }

    /// When the process ends that an action stops.
    pub fn ends_at(&self, action: &Action) -> Option<u64> {
        match (&action.subject, &action.verb) {
            (Subject::Alloc(alloc, Part::Task(index, _)), Verb::Stop { attempt, .. }) => {
                self.attempts.get(&(alloc.id, *index, *attempt))?.ends_at
            }
            _ => None,
        }
    }

    /// A thing goes behind the agent's back, a directory with all that lies in it.
    pub fn vanish(&mut self, gone: &Thing) {
        let goes = |thing: &Thing| match (gone, thing) {
            (Thing::Part(of, Part::Dir), Thing::Part(id, part)) => id == of && lies_in_dir(*part),
            _ => thing == gone,
        };
        self.vanished.extend(self.things.iter().filter(|thing| goes(thing)).cloned());
        self.things.retain(|thing| !goes(thing));
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

    /// The machine restarts: processes, their records, mounts and what ran in the agent are gone; Consul forgets nothing.
    pub fn reboot(&mut self) {
        self.boot += 1;
        self.attempts.clear();
        self.living.clear();
        self.catalogue_down_until = 0;
        self.things.retain(|thing| !matches!(thing, Thing::Part(_, Part::Task(_, TaskPart::Mounts))));
        self.crash(0);
        self.late_until = 0;
    }

    /// The agent dies: its checks go with it.
    pub fn crash(&mut self, now_ns: u64) {
        self.late_until = now_ns + LATE_NS;
        self.things
            .retain(|thing| !matches!(thing, Thing::Part(_, Part::Checks | Part::Task(_, TaskPart::Checks))));
    }

    /// A process ends: what a living agent sees of it.
    fn end(&mut self, key: AttemptKey, result: ExitResult) -> Option<Event> {
        let attempt = self.attempts.get_mut(&key)?;
        attempt.phase = Phase::Exited(result.clone());
        self.living.remove(&key);
        Some(exited(key, attempt, result))
    }

    fn process(
        &mut self,
        now_ns: u64,
        alloc: &std::sync::Arc<Allocation>,
        index: u16,
        verb: &Verb,
    ) -> Result<Outcome, String> {
        let (group, task) = spec_of(alloc, index)?;
        match verb {
            Verb::Start { attempt } => {
                let key = (alloc.id, index, *attempt);
                if let Some(known) = self.attempts.get(&key) {
                    return Ok(match known.phase {
                        Phase::Live | Phase::Exited(_) | Phase::Lost => Outcome::Done,
                        Phase::Tombstone => Outcome::Failed {
                            class: FailureClass::Recoverable,
                            why: "was cancelled".to_owned(),
                        },
                    });
                }
                self.may_start(alloc, group, task, index)?;
                if !self.begun.insert(key) {
                    return Err(format!("attempt {attempt} of {}/{} starts twice", alloc.name(), task.name));
                }
                let run_for = task.config["run_for_ms"].as_u64().map(|ms| ms * 1_000_000);
                let exit_code = task.config["exit_code"].as_i64().unwrap_or(0) as i32;
                let ends_at = run_for.map(|run_for| now_ns + run_for);
                let attempt = Attempt { alloc: alloc.clone(), phase: Phase::Live, ends_at, exit_code };
                self.attempts.insert(key, attempt);
                self.living.insert(key);
                Ok(Outcome::Done)
            }
            Verb::Recover { attempt } => {
                let known = self.attempts.get(&(alloc.id, index, *attempt));
                Ok(Outcome::Recovered(match known.map(|known| &known.phase) {
                    None => Recovered::NotStarted,
                    Some(Phase::Tombstone) => Recovered::Lost { why: "it was cancelled".to_owned() },
                    Some(Phase::Lost) => Recovered::Lost { why: "the supervisor died".to_owned() },
                    Some(Phase::Live) => Recovered::Running,
                    Some(Phase::Exited(result)) => Recovered::Exited(result.clone()),
                }))
            }
            Verb::Stop { attempt, grace, .. } => {
                let alloc = alloc.clone();
                let fence = Attempt { alloc, phase: Phase::Tombstone, ends_at: None, exit_code: 0 };
                let key = (fence.alloc.id, index, *attempt);
                let known = self.attempts.entry(key).or_insert(fence);
                if known.phase == Phase::Live {
                    // Some need their time to end, some never would.
                    let stubborn = task.config["stubborn"].as_bool() == Some(true);
                    let (after, code) = if stubborn { (grace.as_nanos(), 137) } else { (0, 130) };
                    let at = now_ns + after.unsigned_abs();
                    known.ends_at = Some(known.ends_at.map_or(at, |ends_at| ends_at.min(at)));
                    known.exit_code = code;
                }
                Ok(Outcome::Done)
            }
            Verb::Destroy { attempt } => {
                let key = (alloc.id, index, *attempt);
                let Some(known) = self.attempts.get_mut(&key) else { return Ok(Outcome::Done) };
                match known.phase {
                    Phase::Live => {
                        return Err(format!("{}/{} is destroyed while it lives", alloc.name(), task.name));
                    }
                    // The fence stays for a supervisor that comes late.
                    Phase::Tombstone => {}
                    Phase::Exited(_) | Phase::Lost if now_ns < self.late_until => {
                        known.phase = Phase::Tombstone
                    }
                    Phase::Exited(_) | Phase::Lost => {
                        self.attempts.remove(&key);
                    }
                }
                Ok(Outcome::Done)
            }
            Verb::Signal { .. } => Ok(Outcome::Done),
            Verb::Up | Verb::Down | Verb::Look | Verb::Prestop { .. } => {
                Err(format!("{verb:?} on a process"))
            }
        }
    }

    /// What must hold when a process starts.
    fn may_start(&self, alloc: &Allocation, group: &Group, task: &Task, index: u16) -> Result<(), String> {
        let name = || format!("{}/{}", alloc.name(), task.name);
        let same_slot = |other: &Allocation| {
            other.index == alloc.index && other.group == alloc.group && other.job_key == alloc.job_key
        };
        if let Some((other, _)) =
            self.live().find(|((_, other, _), known)| *other == index && same_slot(&known.alloc))
        {
            return Err(format!("{} starts while {other:?} lives", name()));
        }
        let needed = [
            (true, Part::Dir),
            (true, Part::Task(index, TaskPart::Dir)),
            (!task.volume_mounts.is_empty(), Part::Task(index, TaskPart::Mounts)),
            (!task.identities.is_empty(), Part::Task(index, TaskPart::Identity)),
        ];
        for (_, part) in needed.into_iter().filter(|(needed, _)| *needed) {
            let thing = Thing::Part(alloc.id, part);
            if !self.things.contains(&thing) && !self.vanished.contains(&thing) {
                return Err(format!("{} starts without {part:?}", name()));
            }
        }
        for (other, spec) in (0..).zip(&group.tasks).filter(|(other, _)| *other != index) {
            let of_other = (alloc.id, other, 0)..=(alloc.id, other, u32::MAX);
            let began = self.begun.range(of_other).next().is_some();
            let lives = self.lives(alloc.id, other);
            let broken = match (task.lifecycle, spec.lifecycle) {
                (Lifecycle::Poststop, Lifecycle::Poststop) => false,
                (Lifecycle::Poststop, _) => lives,
                (_, Lifecycle::Poststop) => began,
                (Lifecycle::Prestart | Lifecycle::PrestartSidecar, _) => false,
                (_, Lifecycle::Prestart) => lives || !began,
                (_, Lifecycle::PrestartSidecar) => !began,
                (Lifecycle::Poststart | Lifecycle::PoststartSidecar, Lifecycle::Main) => !began,
                (_, _) => task.depends_on.iter().any(|on| on.task == spec.name) && !began,
            };
            if broken {
                return Err(format!("{} starts out of order with {}", name(), spec.name));
            }
        }
        Ok(())
    }

    fn part(
        &mut self,
        now_ns: u64,
        alloc: &Allocation,
        part: Part,
        action: &Action,
    ) -> Result<Outcome, String> {
        let thing = Thing::Part(alloc.id, part);
        let of_catalogue = matches!(part, Part::Services | Part::Task(_, TaskPart::Services));
        if of_catalogue && now_ns < self.catalogue_down_until {
            let why = "the catalogue is down".to_owned();
            return Ok(Outcome::Failed { class: FailureClass::Retry, why });
        }
        Ok(match &action.verb {
            Verb::Up => {
                self.vanished.remove(&thing);
                self.covered.remove(&thing);
                self.things.insert(thing);
                if lies_in_dir(part) {
                    self.things.insert(Thing::Part(alloc.id, Part::Dir));
                }
                match part {
                    Part::Task(index, TaskPart::Identity) => {
                        Outcome::Issued { renew_in: renew_in(alloc, index) }
                    }
                    Part::Task(_, TaskPart::Mounts) if action.mounts.is_empty() => {
                        return Err(format!("{} mounts nothing", alloc.name()));
                    }
                    Part::Dir | Part::Services | Part::Checks | Part::Task(..) => Outcome::Done,
                }
            }
            Verb::Down => {
                let in_use = match part {
                    Part::Dir => self.live().any(|((id, ..), _)| *id == alloc.id),
                    Part::Task(index, TaskPart::Mounts) => self.lives(alloc.id, index),
                    Part::Services | Part::Checks | Part::Task(..) => false,
                };
                if in_use {
                    return Err(format!("{part:?} of {} is removed under a process", alloc.name()));
                }
                self.covered.remove(&thing);
                if part == Part::Dir {
                    let ours = |thing: &Thing| matches!(thing, Thing::Part(id, part) if *id == alloc.id && lies_in_dir(*part));
                    self.things.retain(|thing| !ours(thing));
                }
                self.things.remove(&thing);
                Outcome::Done
            }
            Verb::Look if self.covered.contains(&thing) => {
                Outcome::Foreign { why: "another file system is mounted there".to_owned() }
            }
            Verb::Look => match (self.things.contains(&thing), part) {
                (true, Part::Task(index, TaskPart::Identity)) => {
                    Outcome::Issued { renew_in: renew_in(alloc, index) }
                }
                (true, _) => Outcome::Present,
                (false, _) => Outcome::Absent,
            },
            verb @ (Verb::Start { .. }
            | Verb::Recover { .. }
            | Verb::Stop { .. }
            | Verb::Destroy { .. }
            | Verb::Prestop { .. }
            | Verb::Signal { .. }) => return Err(format!("{verb:?} on {part:?}")),
        })
    }
}

/// Group and task of an allocation.
pub fn spec_of(alloc: &Allocation, index: u16) -> Result<(&Group, &Task), String> {
    let group = alloc.group().ok_or("no group")?;
    Ok((group, group.tasks.get(usize::from(index)).ok_or("no such task")?))
}

/// What goes with the allocation directory.
fn lies_in_dir(part: Part) -> bool {
    matches!(part, Part::Dir | Part::Task(_, TaskPart::Dir | TaskPart::Identity))
}

fn exited(key: AttemptKey, attempt: &Attempt, result: ExitResult) -> Event {
    let (alloc, index, number) = key;
    let task = spec_of(&attempt.alloc, index).map(|(_, task)| task.name.clone()).unwrap_or_default();
    Event::Exited { alloc, task, attempt: number, result }
}

fn renew_in(alloc: &Allocation, index: u16) -> Option<Duration> {
    let (_, task) = spec_of(alloc, index).ok()?;
    let ttl = task.identities.iter().filter_map(|identity| identity.ttl).min()?;
    Some(Duration(ttl.as_nanos() / 2))
}
