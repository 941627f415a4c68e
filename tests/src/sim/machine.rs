//! The invented machine: everything that is real in a simulated life. It survives crashes of the agent, and knows what must
//! never happen on it.

use std::collections::{BTreeMap, BTreeSet};

use herdlet_api_types::{
    AllocId, UnixNanos,
    alloc::Allocation,
    job::Lifecycle,
    service::{CheckResult, CheckStatus},
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

/// One attempt, as its record tells.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// Slot of the allocation: two live attempts of one task in one slot are a broken promise.
    pub slot: String,
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
}

/// Everything that is real.
#[derive(Debug, Default)]
pub struct Machine {
    /// Things that are there.
    pub things: BTreeSet<Thing>,
    /// Things that went behind the agent's back and are not there again: no promise rests on them.
    pub vanished: BTreeSet<Thing>,
    /// Attempts that have a record.
    pub attempts: BTreeMap<(AllocId, String, u32), Attempt>,
    /// The next boot has another number.
    pub boot: u64,
}

impl Machine {
    /// Does what an action asks. The answer is what its operation returns.
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
                let task = alloc.group().ok_or("no group")?.tasks[usize::from(*index)].name.clone();
                self.process(now_ns, alloc, &task, &action.verb)
            }
            Subject::Alloc(_, Part::Task(_, TaskPart::Prestop)) => Ok(Outcome::Done),
            Subject::Alloc(alloc, part) => self.part(now_ns, alloc, *part, &action.verb),
        }
    }

    /// Ends what ends by itself until `now_ns`; the events that a living agent sees.
    pub fn pass_time(&mut self, now_ns: u64) -> Vec<Event> {
        let mut events = Vec::new();
        for ((alloc, task, number), attempt) in &mut self.attempts {
            if attempt.phase == Phase::Live && attempt.ends_at.is_some_and(|at| at <= now_ns) {
                let result =
                    ExitResult { code: attempt.exit_code, at: UnixNanos(1), ..ExitResult::default() };
                attempt.phase = Phase::Exited(result.clone());
                events.push(Event::Exited { alloc: *alloc, task: task.clone(), attempt: *number, result });
            }
        }
        events
    }

    /// When something next ends by itself.
    pub fn next_end(&self) -> Option<u64> {
        self.attempts
            .values()
            .filter(|attempt| attempt.phase == Phase::Live)
            .filter_map(|attempt| attempt.ends_at)
            .min()
    }

    /// Processes that live, with their slot and task.
    pub fn live(&self) -> impl Iterator<Item = (&(AllocId, String, u32), &Attempt)> {
        self.attempts.iter().filter(|(_, attempt)| attempt.phase == Phase::Live)
    }

    /// A thing goes behind the agent's back.
    pub fn vanish(&mut self, thing: &Thing) {
        if self.things.remove(thing) {
            self.vanished.insert(thing.clone());
        }
    }

    /// The machine restarts: processes, their records and mounts are gone.
    pub fn reboot(&mut self) {
        self.boot += 1;
        self.attempts.clear();
        self.things.retain(|thing| match thing {
            Thing::Part(_, Part::Task(_, TaskPart::Mounts | TaskPart::Services)) => false,
            Thing::Part(_, Part::Services | Part::Checks) => false,
            Thing::Part(..) | Thing::Volume(_) => true,
        });
    }

    fn process(
        &mut self,
        now_ns: u64,
        alloc: &Allocation,
        task: &str,
        verb: &Verb,
    ) -> Result<Outcome, String> {
        let key = |attempt: u32| (alloc.id, task.to_owned(), attempt);
        match verb {
            Verb::Start { attempt } => {
                if let Some(known) = self.attempts.get(&key(*attempt)) {
                    return Ok(match known.phase {
                        Phase::Live | Phase::Exited(_) => Outcome::Done,
                        Phase::Tombstone => Outcome::Failed {
                            class: FailureClass::Recoverable,
                            why: "was cancelled".to_owned(),
                        },
                    });
                }
                self.may_start(alloc, task)?;
                let spec = alloc.task(task).ok_or("no task")?;
                let run_for = spec.config["run_for_ms"].as_u64().map(|ms| ms * 1_000_000);
                let exit_code = spec.config["exit_code"].as_i64().unwrap_or(0) as i32;
                self.attempts.insert(
                    key(*attempt),
                    Attempt {
                        slot: format!("{}/{task}", alloc.name()),
                        phase: Phase::Live,
                        ends_at: run_for.map(|run_for| now_ns + run_for),
                        exit_code,
                    },
                );
                Ok(Outcome::Done)
            }
            Verb::Recover { attempt } => Ok(Outcome::Recovered(match self.attempts.get(&key(*attempt)) {
                None => Recovered::NotStarted,
                Some(known) => match &known.phase {
                    Phase::Tombstone => Recovered::Lost { why: "was cancelled".to_owned() },
                    Phase::Live => Recovered::Running,
                    Phase::Exited(result) => Recovered::Exited(result.clone()),
                },
            })),
            Verb::Stop { attempt, .. } => {
                let slot = format!("{}/{task}", alloc.name());
                let known = self.attempts.entry(key(*attempt)).or_insert(Attempt {
                    slot,
                    phase: Phase::Tombstone,
                    ends_at: None,
                    exit_code: 0,
                });
                if known.phase == Phase::Live {
                    known.ends_at = Some(now_ns);
                    known.exit_code = 130;
                }
                Ok(Outcome::Done)
            }
            Verb::Destroy { attempt } => {
                if let Some(known) = self.attempts.get(&key(*attempt))
                    && known.phase == Phase::Live
                {
                    return Err(format!("{} was destroyed while it lived", known.slot));
                }
                self.attempts.remove(&key(*attempt));
                Ok(Outcome::Done)
            }
            Verb::Signal { .. } => Ok(Outcome::Done),
            Verb::Up | Verb::Down | Verb::Look | Verb::Prestop { .. } => {
                Err(format!("{verb:?} on a process"))
            }
        }
    }

    /// What must hold when a process starts.
    fn may_start(&self, alloc: &Allocation, task: &str) -> Result<(), String> {
        let group = alloc.group().ok_or("no group")?;
        let index = group.tasks.iter().position(|known| known.name == task).ok_or("no task")? as u16;
        let slot = format!("{}/{task}", alloc.name());
        if let Some((other, _)) = self.live().find(|(_, attempt)| attempt.slot == slot) {
            return Err(format!("{slot} starts while {other:?} lives"));
        }
        let spec = &group.tasks[usize::from(index)];
        let mut needed = vec![Part::Dir, Part::Task(index, TaskPart::Dir)];
        if !spec.volume_mounts.is_empty() {
            needed.push(Part::Task(index, TaskPart::Mounts));
        }
        if !spec.identities.is_empty() {
            needed.push(Part::Task(index, TaskPart::Identity));
        }
        for part in needed {
            let thing = Thing::Part(alloc.id, part);
            if !self.things.contains(&thing) && !self.vanished.contains(&thing) {
                return Err(format!("{slot} starts without {part:?}"));
            }
        }
        if spec.lifecycle == Lifecycle::Poststop {
            let others = self.live().any(|((id, name, _), _)| {
                *id == alloc.id && group.task(name).is_some_and(|task| task.lifecycle != Lifecycle::Poststop)
            });
            if others {
                return Err(format!("{slot} is a poststop task and starts while others live"));
            }
        }
        Ok(())
    }

    fn part(&mut self, _now_ns: u64, alloc: &Allocation, part: Part, verb: &Verb) -> Result<Outcome, String> {
        let thing = Thing::Part(alloc.id, part);
        Ok(match verb {
            Verb::Up => {
                self.vanished.remove(&thing);
                self.things.insert(thing);
                match part {
                    Part::Task(index, TaskPart::Identity) => {
                        Outcome::Issued { renew_in: renew_in(alloc, index) }
                    }
                    Part::Dir | Part::Services | Part::Checks | Part::Task(..) => Outcome::Done,
                }
            }
            Verb::Down => {
                if let Some(((_, task, _), _)) = self.live().find(|((id, ..), _)| *id == alloc.id)
                    && matches!(part, Part::Dir)
                {
                    return Err(format!("{part:?} of {} is removed while {task} lives", alloc.name()));
                }
                if let Part::Task(index, TaskPart::Mounts) = part {
                    let name = &alloc.group().ok_or("no group")?.tasks[usize::from(index)].name;
                    if self.live().any(|((id, task, _), _)| *id == alloc.id && task == name) {
                        return Err(format!("mounts of {}/{name} are removed while it lives", alloc.name()));
                    }
                }
                if part == Part::Dir {
                    self.things.retain(|thing| !matches!(thing, Thing::Part(id, _) if *id == alloc.id));
                }
                self.things.remove(&thing);
                Outcome::Done
            }
            Verb::Look => match (self.things.contains(&thing), part) {
                (true, Part::Task(index, TaskPart::Identity)) => {
                    Outcome::Issued { renew_in: renew_in(alloc, index) }
                }
                (true, _) => Outcome::Present,
                (false, _) => Outcome::Absent,
            },
            Verb::Start { .. }
            | Verb::Recover { .. }
            | Verb::Stop { .. }
            | Verb::Destroy { .. }
            | Verb::Prestop { .. }
            | Verb::Signal { .. } => return Err(format!("{verb:?} on {part:?}")),
        })
    }
}

/// Results that checks report once the group's services are registered and its tasks run.
pub fn check_results(alloc: &Allocation) -> Vec<CheckResult> {
    let Some(group) = alloc.group() else { return Vec::new() };
    group
        .all_services()
        .flat_map(|(task, service)| {
            service.checks.iter().map(move |check| CheckResult {
                id: format!(
                    "{}-{}-{}",
                    task.map_or("group", |task| task.name.as_str()),
                    service.name,
                    check.name
                ),
                service: service.name.clone(),
                check: check.name.clone(),
                task: task.map(|task| task.name.clone()),
                status: CheckStatus::Success,
                output: String::new(),
                at: UnixNanos(0),
            })
        })
        .collect()
}

fn renew_in(alloc: &Allocation, index: u16) -> Option<herdlet_api_types::Duration> {
    let task = alloc.group()?.tasks.get(usize::from(index))?;
    let ttl = task.identities.iter().filter_map(|identity| identity.ttl).min()?;
    Some(herdlet_api_types::Duration(ttl.as_nanos() / 2))
}
