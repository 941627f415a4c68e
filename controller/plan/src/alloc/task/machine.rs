//! One task's state machine, from waiting through its process to its end. [`crate::state::Run`] has a diagram.
//!
//! In: a pass and the task's index. Out: changes of the pass's plan, and whether nothing of the task is left. Exits
//! don't pass through here: they are applied when they happen (see [`crate::alloc::apply`]).

use herdlet_api_types::{
    Duration,
    job::{DependencyCondition, Lifecycle, Task},
    task::TaskStatus,
};

use crate::{
    action::Verb,
    alloc::{
        checks, services,
        task::{
            lifecycle, notices,
            restart::{proof_ends_ns, restarts_on_success},
        },
    },
    limits::{PRESTOP_REPORT, STOP_MARGIN},
    op::{Part, TaskIndex, TaskPart},
    parts::{
        BeforeStart, Inside, PartSet, Progress,
        set::{AFTER_PROCESS, BEFORE_START, KEPT},
    },
    pass::Pass,
    plan::{TaskChange, Waiting},
    policy::StartGate,
    shared::volume::volume_name,
    state::{AfterStop, Doing, LastValue, Noticed, PartState, Run, Stage, StopStep, TaskState},
    time::Deadline,
};

/// Plans one task. Arrived once nothing of it is left. `shared` is the progress of the steps that all tasks share: it
/// only holds back a start.
pub fn plan(pass: &mut Pass<'_>, index: TaskIndex, shared: Progress) -> Progress {
    let (group, state) = (pass.group, pass.state);
    let at = usize::from(index);
    let (Some(task), Some(known)) = (group.tasks.get(at), state.durable.tasks.get(at)) else {
        return Progress::Arrived;
    };
    let me = TaskTurn { index, task, known, needed: pass.spec.task_parts(index) };
    match &known.run {
        Run::Waiting => me.plan_waiting(pass, shared),
        Run::BackingOff { until } => me.plan_backing_off(pass, until),
        Run::Starting { attempt, .. } => me.plan_starting(pass, *attempt),
        Run::Running { attempt, .. } => me.plan_running(pass, *attempt),
        Run::Stopping { attempt, step, .. } => me.plan_stopping(pass, *attempt, step),
        Run::Dead => return me.plan_dead(pass),
    }
    Progress::Pending
}

/// The first step of a stop. A `shutdown_delay` applies unless a request waived it, also if the task starts again, as
/// in Nomad from 2.0 on. Earlier clients kill a restarting task at once.
pub fn first_stop_step(pass: &Pass<'_>, task: &Task) -> StopStep {
    if task.shutdown_delay > Duration::ZERO && !pass.state.durable.no_shutdown_delay {
        return StopStep::Delay { until: Deadline::after(pass.now, task.shutdown_delay) };
    }
    step_after_delay(pass, task)
}

fn step_after_delay(pass: &Pass<'_>, task: &Task) -> StopStep {
    match &task.prestop {
        Some(prestop) => StopStep::Prestop { until: Deadline::after(pass.now, prestop.timeout) },
        None => kill_step(pass, task),
    }
}

fn kill_step(pass: &Pass<'_>, task: &Task) -> StopStep {
    StopStep::Kill {
        until: Deadline::after(pass.now, task.kill_timeout.min(pass.ctx.settings.max_kill_timeout)),
    }
}

/// One task within a pass.
#[derive(Clone, Copy)]
struct TaskTurn<'a> {
    index: TaskIndex,
    task: &'a Task,
    known: &'a TaskState,
    needed: PartSet,
}

impl TaskTurn<'_> {
    fn plan_waiting(self, pass: &mut Pass<'_>, shared: Progress) {
        self.withdraw(pass);
        let maybe_begun = pass.state.maybe_begun.contains(&self.index);
        if maybe_begun && !self.first_is_known(pass) {
            return;
        }
        if self.is_over(pass) {
            return self.end_unstarted(pass);
        }
        if !pass.state.durable.stage.admits(self.task.lifecycle) {
            // A poststop task does not report a wait for its turn, which comes with the others' end.
            if self.task.lifecycle != Lifecycle::Poststop {
                pass.wait(Waiting::Gate(self.index));
            }
            return;
        }
        if let Some(waiting) = self.held_back(pass).or_else(|| self.lacks_driver(pass)) {
            pass.wait(waiting);
            return;
        }
        let (tasks, states) = (&pass.group.tasks, &pass.state.durable.tasks);
        if let Some(later) = lifecycle::restarts_after(usize::from(self.index), tasks, states) {
            pass.wait(Waiting::Dependency(self.index, later.name.clone()));
            return;
        }
        if let Some(dependency) = self.unmet_dependency(pass) {
            pass.wait(Waiting::Dependency(self.index, dependency));
            return;
        }
        let clean = self.clean_process(pass).and(self.clean_prestop(pass));
        if shared.and(clean).has_arrived() && self.parts_up(pass).has_arrived() {
            pass.change(self.index, TaskChange::Begin);
        } else {
            pass.wait(Waiting::Task(self.index, TaskStatus::Pending));
        }
    }

    fn plan_backing_off(self, pass: &mut Pass<'_>, until: &Deadline) {
        self.withdraw(pass);
        self.clean_process(pass);
        if self.is_over(pass) {
            self.end_unstarted(pass);
        } else if pass.passed(until) {
            pass.change(self.index, TaskChange::Wait);
        } else {
            pass.wait(Waiting::Backoff(self.index, *until));
        }
    }

    /// A start by a dead agent may still be in progress: the attempt is begun, so that it gets fenced.
    fn end_unstarted(self, pass: &mut Pass<'_>) {
        let maybe_begun = pass.state.maybe_begun.contains(&self.index);
        pass.change(self.index, if maybe_begun { TaskChange::Begin } else { TaskChange::Die });
    }

    fn plan_starting(self, pass: &mut Pass<'_>, attempt: u32) {
        let part = self.part(TaskPart::Process);
        match pass.state.parts.get(part) {
            PartState::Busy { .. } => {}
            // Nothing runs, but a start may still be in progress: stopping it leaves a record that blocks any start.
            PartState::Absent if self.is_over(pass) => {
                let step = kill_step(pass, self.task);
                pass.change(self.index, TaskChange::Stop { step, then: AfterStop::Dead });
            }
            PartState::Absent => self.start(pass, attempt),
            PartState::Unknown | PartState::Suspect(_) | PartState::Up => self.recover(pass, attempt, None),
            PartState::Failed { retry_at_ns: due_ns, .. } | PartState::Pending { ask_at_ns: due_ns, .. } => {
                let due_ns = *due_ns;
                if pass.due(due_ns) {
                    self.recover(pass, attempt, None);
                }
            }
        }
        pass.wait(Waiting::Part(part));
    }

    /// Starts the attempt, once all facts that it reads are known: an agent that began since may have to inspect them.
    fn start(self, pass: &mut Pass<'_>, attempt: u32) {
        let part = self.part(TaskPart::Process);
        if let Some(waiting) = self.lacks_driver(pass) {
            pass.wait(waiting);
        } else if pass.inputs(part).has_arrived() {
            pass.operate(part, Doing::Up, Verb::Start { attempt });
        } else {
            self.parts_up(pass);
        }
    }

    fn plan_running(self, pass: &mut Pass<'_>, attempt: u32) {
        self.watch(pass, attempt);
        if self.task.lifecycle == Lifecycle::Poststop && pass.state.durable.no_poststop {
            let step = kill_step(pass, self.task);
            pass.change(self.index, TaskChange::Stop { step, then: AfterStop::Dead });
            return;
        }
        if let Some(then) = self.stop_reason(pass) {
            let step = first_stop_step(pass, self.task);
            pass.change(self.index, TaskChange::Stop { step, then });
            return;
        }
        notices::settle(pass, self.index, self.known);
        if pass.state.durable.stop.is_some() && self.task.lifecycle != Lifecycle::Poststop {
            return;
        }
        self.keep_parts(pass);
        self.await_proof(pass);
        if let Some(why) = pass.ctx.away.get(&self.task.driver) {
            pass.wait(Waiting::Stale(self.index, why.clone()));
        }
        // A task whose goal is an exit with code 0 has not converged while it runs.
        if !restarts_on_success(pass.spec.job.kind, self.task.lifecycle) {
            // A job that has ended by itself ends only with its poststop tasks.
            pass.wait(if self.task.lifecycle == Lifecycle::Poststop {
                Waiting::Poststop(self.index)
            } else {
                Waiting::Task(self.index, TaskStatus::Running)
            });
        }
    }

    fn plan_stopping(self, pass: &mut Pass<'_>, attempt: u32, step: &StopStep) {
        self.withdraw(pass);
        match step {
            StopStep::Delay { until } => {
                self.watch(pass, attempt);
                if pass.state.durable.no_shutdown_delay || pass.passed(until) {
                    if !self.is_next_to_stop(pass) {
                        return pass.wait(Waiting::StopOrder(self.index));
                    }
                    let next = step_after_delay(pass, self.task);
                    pass.change(self.index, TaskChange::Step(next));
                } else {
                    pass.wait(Waiting::Delay(Some(self.index), *until));
                }
            }
            StopStep::Prestop { until } => {
                self.watch(pass, attempt);
                let part = self.part(TaskPart::Prestop);
                let mut end = *until;
                let is_due = match pass.state.parts.get(part) {
                    PartState::Up => {
                        let next = kill_step(pass, self.task);
                        return pass.change(self.index, TaskChange::Step(next));
                    }
                    PartState::Unknown | PartState::Suspect(_) | PartState::Absent => true,
                    PartState::Busy { .. } => {
                        end = until.extended(PRESTOP_REPORT);
                        false
                    }
                    // The machine lacked something: the command did not run.
                    PartState::Failed { retry_at_ns: due_ns, .. }
                    | PartState::Pending { ask_at_ns: due_ns, .. } => {
                        let due_ns = *due_ns;
                        pass.due(due_ns)
                    }
                };
                if pass.passed(&end) {
                    let next = kill_step(pass, self.task);
                    return pass.change(self.index, TaskChange::Step(next));
                }
                // A driver executes nothing in an attempt that it has not recovered yet.
                if is_due && self.is_followed(pass) {
                    let timeout = until.extended(PRESTOP_REPORT).remaining(pass.now);
                    pass.issue(part, Doing::Up, Verb::Prestop { attempt }, timeout);
                }
                pass.wait(Waiting::Part(part));
            }
            StopStep::Kill { until } => self.kill(pass, attempt, until),
        }
    }

    fn plan_dead(self, pass: &mut Pass<'_>) -> Progress {
        let unchecked = self.withdraw(pass);
        let mut gone = self.clean_process(pass);
        if gone.has_arrived() {
            for row in self.needed.and(AFTER_PROCESS).rows() {
                gone = gone.and(pass.want_down(self.part(row.part)));
            }
        }
        unchecked.and(gone)
    }

    /// An attempt that follows a failed one counts once it has lived longer: until then the task may be failing
    /// repeatedly.
    fn await_proof(self, pass: &mut Pass<'_>) {
        let min_healthy_time = pass.spec.policy().health.map(|terms| terms.min_healthy_time);
        let Some(at_ns) = proof_ends_ns(&self.task.restart, min_healthy_time, self.known) else { return };
        if pass.due(at_ns) {
            pass.change(self.index, TaskChange::Prove);
        } else {
            pass.wait(Waiting::Proof(self.index, at_ns));
        }
    }

    /// Ensures that the process's state is known, and inspects it if not.
    fn watch(self, pass: &mut Pass<'_>, attempt: u32) {
        let part = self.part(TaskPart::Process);
        match pass.state.parts.get(part) {
            PartState::Up | PartState::Busy { doing: Doing::Inspect(Some(_)) | Doing::Renew, .. } => {}
            PartState::Suspect(noticed) => {
                let noticed = *noticed;
                self.recover(pass, attempt, Some(noticed));
            }
            PartState::Unknown | PartState::Absent => self.recover(pass, attempt, None),
            PartState::Busy { doing: Doing::Up | Doing::Down | Doing::Inspect(None), .. } => {
                pass.wait(Waiting::Part(part));
            }
            PartState::Failed { retry_at_ns: due_ns, .. } | PartState::Pending { ask_at_ns: due_ns, .. } => {
                let due_ns = *due_ns;
                if pass.due(due_ns) {
                    self.recover(pass, attempt, None);
                }
                pass.wait(Waiting::Part(part));
            }
        }
    }

    /// Whether the driver follows the process, as far as is known.
    fn is_followed(self, pass: &Pass<'_>) -> bool {
        matches!(
            pass.state.parts.get(self.part(TaskPart::Process)),
            PartState::Up
                | PartState::Suspect(_)
                | PartState::Busy { doing: Doing::Inspect(Some(_)) | Doing::Renew, .. }
        )
    }

    /// Asks the process to end, then inspects what became of it.
    fn kill(self, pass: &mut Pass<'_>, attempt: u32, until: &Deadline) {
        let part = self.part(TaskPart::Process);
        let grace = until.remaining(pass.now);
        let stop = Verb::Stop { attempt, signal: self.task.kill_signal.clone(), grace };
        let timeout = Duration(grace.as_nanos().saturating_add(STOP_MARGIN.as_nanos()));
        match pass.state.parts.get(part) {
            PartState::Busy { .. } => {}
            // A stop is done without an observed exit: the inspection shows how it ended.
            PartState::Suspect(noticed) => {
                let noticed = *noticed;
                self.recover(pass, attempt, Some(noticed));
            }
            PartState::Up | PartState::Unknown | PartState::Absent | PartState::Pending { .. } => {
                pass.issue(part, Doing::Down, stop, timeout)
            }
            PartState::Failed { doing, retry_at_ns, .. } => {
                let (doing, retry_at_ns) = (*doing, *retry_at_ns);
                if pass.due(retry_at_ns) {
                    match doing {
                        Doing::Inspect(_) => self.recover(pass, attempt, None),
                        Doing::Up | Doing::Renew | Doing::Down => {
                            pass.issue(part, Doing::Down, stop, timeout)
                        }
                    }
                }
            }
        }
        pass.wait(Waiting::Exit(self.index, *until));
    }

    /// Brings up everything that a start needs, in the table's order.
    fn parts_up(self, pass: &mut Pass<'_>) -> Progress {
        let mut all = Progress::Arrived;
        for row in self.needed.and(BEFORE_START).rows() {
            let dir = pass.state.parts.get(self.part(TaskPart::Dir));
            if row.row.inside == Inside::TaskDir && *dir != PartState::Up {
                return Progress::Pending;
            }
            let up = self.part_up(pass, row.part);
            if row.before_start == BeforeStart::Once && !up.has_arrived() {
                return Progress::Pending;
            }
            all = all.and(up);
        }
        all
    }

    /// Keeps the parts of a running task up, without touching its process.
    fn keep_parts(self, pass: &mut Pass<'_>) {
        for row in self.needed.and(KEPT).rows() {
            // The task's mounts stay while a volume is not ready.
            if row.part != TaskPart::Mounts || self.volumes_ready(pass) {
                self.part_up(pass, row.part);
            }
        }
        let (services, checks) = (self.part(TaskPart::Services), self.part(TaskPart::Checks));
        services::register(pass, services, &self.task.services, checks);
        checks::run(pass, checks);
    }

    /// Brings up a part, or renews it if that is due.
    fn part_up(self, pass: &mut Pass<'_>, part: TaskPart) -> Progress {
        let part = self.part(part);
        if let Some(renew_at) = pass.state.renewal(part)
            && *pass.state.parts.get(part) == PartState::Up
            && pass.passed(&renew_at)
        {
            pass.bring_up(part, Doing::Renew);
            return Progress::Pending;
        }
        let up = pass.want_up(part);
        if self.may_use_last(pass, part) { Progress::Arrived } else { up }
    }

    /// Whether a start may use what the part has made before, although its data is gone: only a task that demands the
    /// newest waits for it again.
    fn may_use_last(self, pass: &Pass<'_>, part: Part) -> bool {
        let is_kept = matches!(pass.state.parts.get(part), PartState::Pending { last: LastValue::Kept, .. });
        is_kept && !self.task.restart.render_templates
    }

    /// Withdraws the task's services and checks. It waits for the checks to end, but not for a catalogue.
    fn withdraw(self, pass: &mut Pass<'_>) -> Progress {
        services::withdraw(pass, self.part(TaskPart::Services), &self.task.services);
        checks::end(pass, self.part(TaskPart::Checks))
    }

    /// Removes what an ended attempt left. After a restart of the agent it inspects first: a live process is stopped,
    /// not removed.
    fn clean_process(self, pass: &mut Pass<'_>) -> Progress {
        let part = self.part(TaskPart::Process);
        let attempt = self.known.newest();
        if attempt == 0 {
            return Progress::Arrived;
        }
        match pass.state.parts.get(part) {
            PartState::Unknown => self.recover(pass, attempt, None),
            PartState::Absent => return Progress::Arrived,
            PartState::Up | PartState::Suspect(_) | PartState::Pending { .. } => {
                pass.operate(part, Doing::Down, Verb::Destroy { attempt });
            }
            PartState::Busy { .. } => {}
            PartState::Failed { doing, retry_at_ns, .. } => {
                let (doing, retry_at_ns) = (*doing, *retry_at_ns);
                if pass.due(retry_at_ns) {
                    match doing {
                        Doing::Inspect(_) => self.recover(pass, attempt, None),
                        Doing::Up | Doing::Renew | Doing::Down => {
                            pass.operate(part, Doing::Down, Verb::Destroy { attempt });
                        }
                    }
                }
            }
        }
        pass.wait(Waiting::Part(part));
        Progress::Pending
    }

    /// Whether the fate of a first attempt that a previous agent may have begun is known.
    fn first_is_known(self, pass: &mut Pass<'_>) -> bool {
        let part = self.part(TaskPart::Process);
        match pass.state.parts.get(part) {
            PartState::Absent => return true,
            PartState::Unknown | PartState::Suspect(_) | PartState::Up => self.recover(pass, 1, None),
            PartState::Busy { .. } => {}
            PartState::Failed { retry_at_ns: due_ns, .. } | PartState::Pending { ask_at_ns: due_ns, .. } => {
                let due_ns = *due_ns;
                if pass.due(due_ns) {
                    self.recover(pass, 1, None);
                }
            }
        }
        pass.wait(Waiting::Part(part));
        false
    }

    /// The `prestop` command of an ended attempt may take time to end.
    fn clean_prestop(self, pass: &mut Pass<'_>) -> Progress {
        let part = self.part(TaskPart::Prestop);
        if !pass.state.parts.get(part).is_busy() {
            return Progress::Arrived;
        }
        pass.wait(Waiting::Part(part));
        Progress::Pending
    }

    fn recover(self, pass: &mut Pass<'_>, attempt: u32, noticed: Option<Noticed>) {
        pass.operate(self.part(TaskPart::Process), Doing::Inspect(noticed), Verb::Recover { attempt });
    }

    /// Whether this task must not start any more.
    fn is_over(self, pass: &Pass<'_>) -> bool {
        self.known.doom.is_some()
            || match self.task.lifecycle {
                // If nothing ever ran, there is nothing to clean up after; if `max_run_duration` is used up, there is
                // no time for it.
                Lifecycle::Poststop if pass.state.durable.is_outlived() || pass.state.durable.no_poststop => {
                    true
                }
                Lifecycle::Poststop => {
                    pass.state.durable.stage == Stage::Poststop
                        && !lifecycle::any_began(&pass.group.tasks, &pass.state.durable.tasks)
                }
                Lifecycle::Prestart
                | Lifecycle::PrestartSidecar
                | Lifecycle::Main
                | Lifecycle::Poststart
                | Lifecycle::PoststartSidecar => pass.state.durable.stop.is_some(),
            }
    }

    /// Whether the running process is to be stopped now, and what follows.
    fn stop_reason(self, pass: &mut Pass<'_>) -> Option<AfterStop> {
        if self.known.doom.is_some() {
            return Some(AfterStop::Dead);
        }
        if let Some(stop) = &pass.state.durable.stop
            && self.task.lifecycle != Lifecycle::Poststop
        {
            let delay = stop.delay;
            if !pass.state.durable.no_shutdown_delay && !pass.passed(&delay) {
                pass.wait(Waiting::Delay(None, delay));
                return None;
            }
            if !self.is_next_to_stop(pass) {
                pass.wait(Waiting::StopOrder(self.index));
                return None;
            }
            return Some(AfterStop::Dead);
        }
        if !self.known.restart_requested {
            return None;
        }
        if !self.is_next_to_stop(pass) {
            pass.wait(Waiting::StopOrder(self.index));
            return None;
        }
        Some(if self.known.unhealthy { AfterStop::RestartUnhealthy } else { AfterStop::Restart })
    }

    /// Whether all tasks before it in the stop order have ended; if only some tasks restart, only those count.
    fn is_next_to_stop(self, pass: &Pass<'_>) -> bool {
        let may_stop = if self.known.doom.is_some() || self.task.lifecycle == Lifecycle::Poststop {
            return true;
        } else if pass.state.durable.stop.is_some() {
            lifecycle::may_stop
        } else {
            lifecycle::may_restart
        };
        may_stop(usize::from(self.index), &pass.group.tasks, &pass.state.durable.tasks)
    }

    /// What keeps the allocation from starting anything.
    fn held_back(self, pass: &Pass<'_>) -> Option<Waiting> {
        if pass.state.durable.stop.is_some() {
            return None;
        }
        match pass.spec.policy().start {
            StartGate::Open => return None,
            StartGate::Contact if !pass.ctx.contact && !pass.ctx.settings.starts_offline(&pass.spec.job) => {
                return Some(Waiting::Contact(self.index));
            }
            StartGate::Contact | StartGate::Previous => {}
        }
        pass.ctx.awaits(pass.spec).map(|awaited| Waiting::Previous(self.index, awaited))
    }

    /// A driver that is away starts nothing. What it runs is left alone.
    fn lacks_driver(self, pass: &Pass<'_>) -> Option<Waiting> {
        let why = pass.ctx.away.get(&self.task.driver)?;
        Some(Waiting::Driver(self.index, why.clone()))
    }

    fn unmet_dependency(self, pass: &Pass<'_>) -> Option<std_alloc::string::String> {
        self.task
            .depends_on
            .iter()
            .find(|dependency| !is_satisfied(pass, dependency))
            .map(|unmet| unmet.task.clone())
    }

    fn volumes_ready(self, pass: &Pass<'_>) -> bool {
        self.task.volume_mounts.iter().all(|mount| {
            pass.group
                .volumes
                .get(&mount.volume)
                .is_none_or(|request| pass.ctx.volume_path(&volume_name(pass.spec, request)).is_some())
        })
    }

    fn part(self, part: TaskPart) -> Part {
        Part::Task(self.index, part)
    }
}

fn is_satisfied(pass: &Pass<'_>, dependency: &herdlet_api_types::job::Dependency) -> bool {
    let Some((task, state)) =
        pass.group.tasks.iter().zip(&pass.state.durable.tasks).find(|(task, _)| task.name == dependency.task)
    else {
        return false;
    };
    // A task that ended well satisfies its dependents that start later.
    if state.status() == TaskStatus::Dead {
        return !state.failed;
    }
    // A task that is being stopped does not, and may never have run: possibly only its start is fenced.
    let running = matches!(state.run, Run::Running { .. });
    match dependency.condition {
        DependencyCondition::Started => running,
        DependencyCondition::Completed => false,
        DependencyCondition::Healthy => {
            let is_its = |owner: Option<&str>| owner == Some(task.name.as_str());
            running && checks::are_as_required(&task.services, pass.state, is_its)
        }
    }
}
