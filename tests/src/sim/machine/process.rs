//! Processes of attempts: the effects of operations, and the invariants of starts.

use herdlet_api_types::{
    AllocId,
    alloc::Allocation,
    job::{Group, Lifecycle, Task},
};
use herdlet_plan::{
    action::{Action, FailureClass, Outcome, Recovered, Verb},
    op::{Part, Subject, TaskPart},
    parts::{BeforeStart, Medium, PartSet},
};

use super::{super::templates, Attempt, Machine, NEVER, Phase, Thing, launch_of, spec_of, started};

impl Machine {
    pub(super) fn process(
        &mut self,
        now_ns: u64,
        alloc: &std::sync::Arc<Allocation>,
        index: u16,
        action: &Action,
    ) -> Result<Outcome, String> {
        let (group, task) = spec_of(alloc, index)?;
        let verb = &action.verb;
        match verb {
            Verb::Start { attempt } => {
                let key = (alloc.id, index, *attempt);
                if let Some(known) = self.attempts.get(&key) {
                    return Ok(match known.phase {
                        Phase::Live | Phase::Exited(_) | Phase::Lost => {
                            Outcome::Started(launch_of(key, &action.inputs))
                        }
                        Phase::Tombstone => Outcome::Failed {
                            class: FailureClass::Recoverable,
                            why: "was cancelled".to_owned(),
                        },
                    });
                }
                self.may_start(alloc, group, task, index)?;
                if group.has_own_network() && !self.has_network(alloc.id) {
                    let why = "enter the network namespace: it is missing".to_owned();
                    return Ok(Outcome::Failed { class: FailureClass::Retry, why });
                }
                self.networks.enter(key, group, &action.inputs)?;
                self.probes.start((alloc.id, index), task, &action.inputs)?;
                self.templates.start(key, task, &action.inputs)?;
                if !self.begun.insert(key) {
                    return Err(format!("attempt {attempt} of {}/{} starts twice", alloc.name(), task.name));
                }
                let run_for = task.config["run_for_ms"].as_u64().map(|ms| ms * 1_000_000);
                let exit_code = task.config["exit_code"].as_i64().unwrap_or(0) as i32;
                self.read_tokens(alloc.id, index);
                let begun = Attempt { alloc: alloc.clone(), phase: Phase::Live, exit_code };
                self.attempts.insert(key, begun);
                self.living.insert(key, run_for.map_or(NEVER, |run_for| now_ns + run_for));
                Ok(Outcome::Started(launch_of(key, &action.inputs)))
            }
            Verb::Recover { attempt } => {
                let key = (alloc.id, index, *attempt);
                if !self.remembers && !self.attempts.contains_key(&key) {
                    let fence = Attempt { alloc: alloc.clone(), phase: Phase::Tombstone, exit_code: 0 };
                    self.attempts.insert(key, fence);
                    let why = "whether it ran is not known".to_owned();
                    return Ok(Outcome::Recovered(Recovered::Lost { why }));
                }
                Ok(Outcome::Recovered(match self.attempts.get(&key).map(|known| &known.phase) {
                    None => Recovered::NotStarted,
                    Some(Phase::Tombstone) => Recovered::Lost { why: "it was cancelled".to_owned() },
                    Some(Phase::Lost) => Recovered::Lost { why: "the supervisor died".to_owned() },
                    Some(Phase::Live) => Recovered::Running(started(key)),
                    Some(Phase::Exited(result)) => Recovered::Exited(result.clone()),
                }))
            }
            Verb::Stop { attempt, grace, .. } => {
                let alloc = alloc.clone();
                let fence = Attempt { alloc, phase: Phase::Tombstone, exit_code: 0 };
                let key = (fence.alloc.id, index, *attempt);
                let known = self.attempts.entry(key).or_insert(fence);
                if known.phase == Phase::Live {
                    // Stubborn tasks ignore the signal and are killed after the grace period.
                    let stubborn = task.config["stubborn"].as_bool() == Some(true);
                    let (after, code) = if stubborn { (grace.as_nanos(), 137) } else { (0, 130) };
                    let at = now_ns + after.unsigned_abs();
                    known.exit_code = code;
                    let ends_at = self.living.entry(key).or_insert(at);
                    *ends_at = at.min(*ends_at);
                }
                Ok(Outcome::Done(None))
            }
            Verb::Destroy { attempt } => {
                let key = (alloc.id, index, *attempt);
                let Some(known) = self.attempts.get_mut(&key) else { return Ok(Outcome::Done(None)) };
                match known.phase {
                    Phase::Live => {
                        return Err(format!("{}/{} is destroyed while it runs", alloc.name(), task.name));
                    }
                    // The fence remains for a late supervisor.
                    Phase::Tombstone => {}
                    Phase::Exited(_) | Phase::Lost if now_ns < self.late_until => {
                        known.phase = Phase::Tombstone
                    }
                    Phase::Exited(_) | Phase::Lost => {
                        self.attempts.remove(&key);
                    }
                }
                Ok(Outcome::Done(None))
            }
            Verb::Signal { attempt, signal } => {
                let key = (alloc.id, index, *attempt);
                if signal == templates::SIGNAL && self.living.contains_key(&key) {
                    self.templates.signal(key, task)?;
                }
                self.read_tokens(alloc.id, index);
                self.probes.signal((alloc.id, index));
                Ok(Outcome::Done(None))
            }
            Verb::Script { attempt, template } => {
                let key = (alloc.id, index, *attempt);
                if !self.living.contains_key(&key) {
                    let why = "the process has ended".to_owned();
                    return Ok(Outcome::Failed { class: FailureClass::Fatal, why });
                }
                self.templates.script(key, (task, usize::from(*template)))?;
                Ok(Outcome::Done(None))
            }
            Verb::Up | Verb::Down | Verb::Inspect | Verb::Ask | Verb::Withdraw | Verb::Prestop { .. } => {
                Err(format!("{verb:?} on a process"))
            }
        }
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

    /// Whether an action sets up a network again, under processes that were started in the last one.
    pub fn rebuilds(&self, action: &Action) -> bool {
        let Subject::Alloc(alloc, Part::Network) = &action.subject else { return false };
        let is_gone = !self.things.contains(&Thing::Part(alloc.id, Part::Network));
        action.verb == Verb::Up && is_gone && self.live().any(|((id, ..), _)| *id == alloc.id)
    }

    /// Whether a process can enter the network of the allocation.
    fn has_network(&self, alloc: AllocId) -> bool {
        let network = Thing::Part(alloc, Part::Network);
        self.things.contains(&network) && !self.covered.contains(&network)
    }

    /// A process reads its tokens when it starts, and when it is signalled.
    pub(super) fn read_tokens(&mut self, alloc: AllocId, index: u16) {
        self.vault.read((alloc, index));
        if let Some(tokens) = self.tokens.get_mut(&(alloc, index)) {
            tokens.known = tokens.lying;
        }
    }

    /// The invariants of a process start.
    fn may_start(&self, alloc: &Allocation, group: &Group, task: &Task, index: u16) -> Result<(), String> {
        let name = || format!("{}/{}", alloc.name(), task.name);
        let same_slot = |other: &Allocation| {
            other.index == alloc.index && other.group == alloc.group && other.job_key == alloc.job_key
        };
        // A canary may run beside its slot's allocation: if promoted, while its predecessor ends; if given up, until it has
        // ended itself, beside any successor in the slot except another canary.
        let stands = |id: AllocId| self.canaries.contains(&id) && !self.promoted.contains(&id);
        let beside = |one: &Allocation, other: &Allocation| {
            let made_beside = self.canaries.contains(&one.id) && one.previous == Some(other.id);
            made_beside || stands(one.id) && one.id != other.id && !stands(other.id)
        };
        if let Some((other, _)) = self.live().find(|((_, other, _), known)| {
            let known = &known.alloc;
            *other == index && same_slot(known) && !beside(alloc, known) && !beside(known, alloc)
        }) {
            return Err(format!("{} starts while {other:?} runs", name()));
        }
        // A start of a dead agent may arrive after what ended with that agent.
        let before_start = PartSet::needed_by(task)
            .rows()
            .filter(|row| row.before_start != BeforeStart::Nothing && row.row.medium != Medium::Agent);
        let of_task = before_start.map(|row| Part::Task(index, row.part));
        let network = group.has_own_network().then_some(Part::Network);
        for part in [Part::Dir].into_iter().chain(network).chain(of_task) {
            let thing = Thing::Part(alloc.id, part);
            if !self.things.contains(&thing) && !self.vanished.contains(&thing) {
                return Err(format!("{} starts without {part:?}", name()));
            }
        }
        let shared = |held: &Allocation| {
            let mut ports = alloc.host_ports().map(|port| port.value);
            let is_anothers = held.job_key != alloc.job_key;
            ports.any(|port| {
                held.host_ports().any(|held| held.value == port)
                    || held.published_ports().any(|published| published == port)
            }) || alloc.published_ports().any(|port| {
                held.host_ports().any(|held| held.value == port)
                    || (is_anothers && held.published_ports().any(|published| published == port))
            })
        };
        if let Some((_, other)) =
            self.live().find(|((id, ..), known)| *id != alloc.id && shared(&known.alloc))
        {
            return Err(format!("{} starts with a port that {} has", name(), other.alloc.name()));
        }
        if self.forgotten.contains(&alloc.id) {
            return Ok(());
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
}
