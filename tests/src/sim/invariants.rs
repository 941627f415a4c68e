//! Invariants that must hold when the agent releases an action or publishes a view. The machine checks what must hold when
//! the action takes effect.

use std::collections::{BTreeMap, BTreeSet};

use herdlet_api_types::{
    AllocId, UnixNanos,
    alloc::{Allocation, ClientStatus},
    job::{Group, Lifecycle, Service, Task},
    task::TaskEventKind,
    view::AllocView,
};
use herdlet_plan::{
    action::{Action, Outcome, Recovered, Verb},
    op::{Part, Subject, TaskPart},
    state::{AfterStop, Durable, Run, TaskState},
    time::BootId,
};

use super::{
    jobs::is_unfit,
    machine::{AttemptKey, Machine, spec_of},
};

/// The actions and views released so far.
#[derive(Debug, Default)]
pub struct Invariants {
    terminal: BTreeMap<AllocId, ClientStatus>,
    gone: BTreeSet<AllocId>,
    /// Whether the last request to the catalogue about a group's services registered them.
    registered: BTreeMap<AllocId, bool>,
    /// Allocations with a pending catalogue request: until it ends no other can follow, and nothing waits for it.
    asking: BTreeSet<AllocId>,
    /// Attempts reported to an agent as running.
    reported_running: BTreeSet<AttemptKey>,
}

impl Invariants {
    /// The agent dies; its catalogue requests are unknown to the next one.
    pub fn crash(&mut self) {
        self.registered.clear();
        self.asking.clear();
    }

    /// An operation was decided and waits for its commit: until it ends, no other can follow on its part.
    pub fn hold(&mut self, action: &Action) {
        if let Subject::Alloc(alloc, Part::Services) = &action.subject {
            self.asking.insert(alloc.id);
        }
    }

    /// An operation has ended.
    pub fn end(&mut self, action: &Action, outcome: &Outcome) {
        if let Subject::Alloc(alloc, Part::Task(index, TaskPart::Process)) = &action.subject
            && let (Verb::Start { attempt }, Outcome::Started(_))
            | (Verb::Recover { attempt }, Outcome::Recovered(Recovered::Running(_))) =
                (&action.verb, outcome)
        {
            self.reported_running.insert((alloc.id, *index, *attempt));
        }
        if let Subject::Alloc(alloc, Part::Services) = &action.subject {
            self.asking.remove(&alloc.id);
            // They are not registered, so no deregistration is needed.
            if *outcome == Outcome::Absent {
                self.registered.insert(alloc.id, false);
            }
        }
    }

    /// Checks a published view.
    pub fn show(&mut self, view: &AllocView) -> Result<(), String> {
        let (id, name) = (view.spec.id, || view.spec.name());
        if is_unfit(&view.spec.job) {
            return Err(format!("{} was created although this node does not satisfy its constraint", name()));
        }
        if view.spec.job.stop {
            return Err(format!("{} was created for a stopped job", name()));
        }
        if self.gone.contains(&id) {
            return Err(format!("{} exists again after it was forgotten", name()));
        }
        match self.terminal.get(&id) {
            Some(was) if *was != view.status => {
                return Err(format!("{} changed from the final status {was:?} to {:?}", name(), view.status));
            }
            Some(_) => {}
            None if view.status.is_terminal() => {
                self.terminal.insert(id, view.status);
            }
            None => {}
        }
        Ok(())
    }

    /// An allocation was forgotten.
    pub fn forget(&mut self, id: AllocId) {
        self.gone.insert(id);
        self.terminal.remove(&id);
        self.registered.remove(&id);
    }

    /// The stored state of an allocation is lost: the next agent is not bound by earlier views.
    pub fn forget_history(&mut self, id: AllocId) {
        self.terminal.remove(&id);
        self.reported_running.retain(|(of, ..)| *of != id);
    }

    /// An action is released after it had to wait for its commit. Later decisions became durable with it: an attempt that a
    /// dead agent started may have ended, and stops were released ahead.
    pub fn release_late(
        &mut self,
        action: &Action,
        stored: Option<&Durable>,
        boot: BootId,
    ) -> Result<(), String> {
        let Subject::Alloc(alloc, part) = &action.subject else { return Ok(()) };
        self.note_services(alloc.id, *part, &action.verb);
        let (Part::Task(index, TaskPart::Process), Verb::Start { attempt }) = (part, &action.verb) else {
            return Ok(());
        };
        let known = stored.and_then(|known| known.tasks.get(usize::from(*index)));
        let first =
            *attempt == 1 && stored.is_some_and(|stored| may_begin_unstored(alloc, *index, stored, boot));
        if !first && known.is_none_or(|task| task.attempt < *attempt) {
            return Err(format!("{} starts attempt {attempt} without having committed it", alloc.name()));
        }
        Ok(())
    }

    /// Checks a released action. `stored` is the committed state of its allocation; `passed` returns the time since the
    /// clock displayed a time, if it can be determined.
    pub fn release(
        &mut self,
        action: &Action,
        stored: Option<&Durable>,
        machine: &Machine,
        passed: &dyn Fn(UnixNanos) -> Option<i64>,
    ) -> Result<(), String> {
        let Subject::Alloc(alloc, part) = &action.subject else { return Ok(()) };
        let Some(known) = stored else {
            return Err(format!("{:?} of {} before the attempt was adopted", action.verb, alloc.name()));
        };
        self.note_services(alloc.id, *part, &action.verb);
        gives_back(action, known)?;
        match (part, &action.verb) {
            (Part::Task(index, TaskPart::Process), Verb::Start { attempt }) => {
                self.may_start(alloc, *index, *attempt, known, BootId(machine.boot))?;
            }
            (Part::Task(index, TaskPart::Process), Verb::Stop { .. }) => {
                self.may_stop(alloc, *index, known, machine, passed)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn note_services(&mut self, alloc: AllocId, part: Part, verb: &Verb) {
        if part != Part::Services {
            return;
        }
        self.asking.insert(alloc);
        match verb {
            Verb::Up => {
                self.registered.insert(alloc, true);
            }
            Verb::Down => {
                self.registered.insert(alloc, false);
            }
            // The agent does not wait for a Consul that has not responded: the request is enough.
            Verb::Ask => {
                self.registered.insert(alloc, true);
            }
            Verb::Inspect
            | Verb::Start { .. }
            | Verb::Withdraw
            | Verb::Recover { .. }
            | Verb::Stop { .. }
            | Verb::Destroy { .. }
            | Verb::Prestop { .. }
            | Verb::Script { .. }
            | Verb::Signal { .. } => {}
        }
    }

    fn may_start(
        &self,
        alloc: &Allocation,
        index: u16,
        attempt: u32,
        known: &Durable,
        boot: BootId,
    ) -> Result<(), String> {
        let (group, task) = spec_of(alloc, index)?;
        let name = || format!("{}/{}", alloc.name(), task.name);
        let stored = known.tasks.get(usize::from(index)).map(|task| (task.attempt, &task.run));
        let committed = match stored {
            Some((0, Run::Waiting)) => attempt == 1 && may_begin_unstored(alloc, index, known, boot),
            Some((last, Run::Starting { attempt: starting, .. })) => last == attempt && *starting == attempt,
            Some(_) | None => false,
        };
        if !committed {
            return Err(format!("{} starts attempt {attempt} without having committed it", name()));
        }
        if group.has_own_network() && !known.facts.contains_key(&Part::Network) {
            return Err(format!("{} starts before the facts of its network are stored", name()));
        }
        let wants_services = known.stop.is_none() && known.restart.is_none();
        if wants_services
            && task.lifecycle != Lifecycle::Poststop
            && !group.services.is_empty()
            && self.registered.get(&alloc.id) != Some(&true)
            && !self.asking.contains(&alloc.id)
        {
            return Err(format!("{} starts before the group's services were requested", name()));
        }
        Ok(())
    }

    /// A task that is stopped for a restart gets its `shutdown_delay`, and keeps its place in the stop order of the
    /// restarting tasks.
    fn may_restart(
        &self,
        alloc: &Allocation,
        index: u16,
        known: &Durable,
        machine: &Machine,
        passed: &dyn Fn(UnixNanos) -> Option<i64>,
    ) -> Result<(), String> {
        let (group, task) = spec_of(alloc, index)?;
        let name = || format!("{}/{}", alloc.name(), task.name);
        let state = known.tasks.get(usize::from(index)).ok_or("no such task")?;
        let restarts = matches!(
            state.run,
            Run::Stopping { ran: true, then: AfterStop::Restart | AfterStop::RestartUnhealthy, .. }
        );
        if !restarts
            || !self.reported_running.contains(&(alloc.id, index, state.attempt))
            || !machine.lives(alloc.id, index)
        {
            return Ok(());
        }
        let since_start = state.events.iter().rev().take_while(|event| event.kind != TaskEventKind::Started);
        let mut delays = since_start.filter(|event| event.kind == TaskEventKind::WaitingShutdownDelay);
        let due = if known.no_shutdown_delay { 0 } else { task.shutdown_delay.as_nanos() };
        let waited = delays.next().map(|event| passed(event.time).unwrap_or(due)).unwrap_or(0);
        if waited < due {
            return Err(format!("{} restarts {waited} ns after the decision, not {due}", name()));
        }
        for (other, spec) in (0..).zip(&group.tasks).filter(|(other, _)| *other != index) {
            let restarts = known.tasks.get(usize::from(other)).is_some_and(TaskState::is_restarting);
            if restarts && stops_before(spec, task) && machine.lives(alloc.id, other) {
                return Err(format!("{} restarts before {}", name(), spec.name));
            }
        }
        Ok(())
    }

    fn may_stop(
        &self,
        alloc: &Allocation,
        index: u16,
        known: &Durable,
        machine: &Machine,
        passed: &dyn Fn(UnixNanos) -> Option<i64>,
    ) -> Result<(), String> {
        let (group, task) = spec_of(alloc, index)?;
        let name = || format!("{}/{}", alloc.name(), task.name);
        let state = known.tasks.get(usize::from(index)).ok_or("no such task")?;
        if matches!(state.run, Run::Stopping { then: AfterStop::RestartUnhealthy, .. })
            && !may_be_unhealthy(group, task, known)
            && !is_plugin_reported(state)
        {
            return Err(format!("{} is restarted as unhealthy without a report about it", name()));
        }
        if known.stop.is_none() {
            self.may_restart(alloc, index, known, machine, passed)?;
        }
        let Some(stop) = &known.stop else { return Ok(()) };
        let for_good = matches!(state.run, Run::Stopping { then: AfterStop::Dead, .. });
        // An attempt never known to run is fenced, not stopped: its start may come late, from a dead agent.
        let ran = state.started_at.0 != 0
            && state.exit.is_none()
            && self.reported_running.contains(&(alloc.id, index, state.attempt));
        if !for_good
            || !ran
            || state.permanent_failure.is_some()
            || task.lifecycle == Lifecycle::Poststop
            || !machine.lives(alloc.id, index)
        {
            return Ok(());
        }
        let stand = known.may_be_held(Part::Services) && self.registered.get(&alloc.id) == Some(&true);
        if stand && !self.asking.contains(&alloc.id) {
            return Err(format!("{} is killed while its group's services are registered", name()));
        }
        let delays = group.shutdown_delay.as_nanos() + task.shutdown_delay.as_nanos();
        let due = if known.no_shutdown_delay { 0 } else { delays };
        if let Some(waited) = passed(stop.decided_at).filter(|waited| *waited < due) {
            return Err(format!("{} is killed {waited} ns after the decision, not {due}", name()));
        }
        for (other, spec) in (0..).zip(&group.tasks).filter(|(other, _)| *other != index) {
            if stops_before(spec, task)
                && spec.lifecycle != Lifecycle::Poststop
                && machine.lives(alloc.id, other)
            {
                return Err(format!("{} is killed before {}", name(), spec.name));
            }
        }
        Ok(())
    }
}

/// Whether a task is stopped before another: the leader first, sidecars last, dependents before their dependencies.
fn stops_before(first: &Task, then: &Task) -> bool {
    let rank = |task: &Task| if task.leader { 0 } else { 1 + u8::from(task.lifecycle.is_sidecar()) };
    rank(first) < rank(then)
        || rank(first) == rank(then) && first.depends_on.iter().any(|on| on.task == then.name)
}

/// Whether the tasks have started whose checks may restart this task; true if there are no such checks.
fn may_be_unhealthy(group: &Group, task: &Task, known: &Durable) -> bool {
    let began = |name: &str| known.tasks.iter().any(|task| *task.name == *name && task.started_at.0 != 0);
    let restarts = |service: &&Service| service.checks.iter().any(|check| check.check_restart.is_some());
    let mut of_group = group.services.iter().filter(restarts).peekable();
    let of_task = task.services.iter().any(|service| restarts(&service));
    if of_group.peek().is_none() && !of_task {
        return true;
    }
    let mains_began = || {
        let mut mains = group.tasks.iter().filter(|task| task.lifecycle == Lifecycle::Main);
        mains.all(|task| began(&task.name))
    };
    let about_began = |service: &Service| service.task.as_deref().map_or_else(mains_began, began);
    began(&task.name) && (of_task || of_group.any(about_began))
}

/// Whether there was a report about the task's present attempt as a CSI plugin.
fn is_plugin_reported(state: &TaskState) -> bool {
    state.plugin.is_some_and(|plugin| plugin.attempt == state.attempt)
}

/// Operations on a process must pass the stored handle of its start to the driver.
fn gives_back(action: &Action, known: &Durable) -> Result<(), String> {
    let (Subject::Alloc(alloc, Part::Task(index, TaskPart::Process)), Some(attempt)) =
        (&action.subject, attempt_of(&action.verb))
    else {
        return Ok(());
    };
    let stored = known.tasks.get(usize::from(*index)).and_then(|task| task.launch_of(attempt));
    let Some(handle) = stored.and_then(|launch| launch.handle.as_ref()) else { return Ok(()) };
    let given = action.launch.as_ref().filter(|launch| launch.attempt == attempt);
    if given.and_then(|launch| launch.handle.as_ref()) != Some(handle) {
        return Err(format!("{:?} of {} without the stored handle of its start", action.verb, alloc.name()));
    }
    Ok(())
}

/// The started attempt that an operation refers to.
fn attempt_of(verb: &Verb) -> Option<u32> {
    match verb {
        Verb::Recover { attempt }
        | Verb::Stop { attempt, .. }
        | Verb::Script { attempt, .. }
        | Verb::Signal { attempt, .. } => Some(*attempt),
        Verb::Up
        | Verb::Down
        | Verb::Inspect
        | Verb::Ask
        | Verb::Withdraw
        | Verb::Start { .. }
        | Verb::Destroy { .. }
        | Verb::Prestop { .. } => None,
    }
}

/// Whether the stored state shows the next agent that a first attempt may have started.
fn may_begin_unstored(alloc: &Allocation, index: u16, stored: &Durable, boot: BootId) -> bool {
    let (Ok((_, task)), Some(known)) = (spec_of(alloc, index), stored.tasks.get(usize::from(index))) else {
        return false;
    };
    known.run == Run::Waiting
        && known.newest() == 0
        && stored.boot == Some(boot)
        && stored.stage.admits(task.lifecycle)
}
