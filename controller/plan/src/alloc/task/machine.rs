//! One task's state machine, from waiting through its process to its end. [`crate::state::Run`] has a diagram.
//!
//! In: a pass and the task's index. Out: changes of the pass's plan, and whether nothing of the task is left. Exits
//! don't pass through here: they are applied when they happen (see [`crate::alloc::apply`]).

mod gate;
mod process;
mod stop;

use herdlet_api_types::{
    job::{Lifecycle, Task},
    task::TaskStatus,
};

use self::stop::{first_stop_step, kill_step};
use crate::{
    alloc::{
        checks, services,
        task::{
            lifecycle, notices,
            restart::{proof_ends_ns, restarts_on_success},
        },
    },
    op::{Part, TaskIndex, TaskPart},
    parts::{
        BeforeStart, Inside, Need, PartSet, Progress,
        set::{AFTER_PROCESS, BEFORE_START, KEPT},
    },
    pass::Pass,
    plan::{TaskChange, Waiting},
    shared::volume::volume_name,
    state::{AfterStop, Doing, LastValue, PartState, Run, TaskState},
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
        let own = part;
        let part = self.part(own);
        if pass.state.changed_sources.contains_key(&part) {
            pass.wait(Waiting::Source(self.index, own));
        }
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

    /// Whether a start may use what the part has made before, although its data is gone or Vault does not answer: only a
    /// task that demands the newest files waits for them again.
    fn may_use_last(self, pass: &Pass<'_>, part: Part) -> bool {
        let is_kept = matches!(pass.state.parts.get(part), PartState::Pending { last: LastValue::Kept, .. });
        let is_rendered = matches!(part, Part::Task(_, TaskPart::Templates));
        is_kept && !(is_rendered && self.task.restart.render_templates)
    }

    /// Withdraws the task's services and checks. It waits for the checks to end, but not for a catalogue.
    fn withdraw(self, pass: &mut Pass<'_>) -> Progress {
        services::withdraw(pass, self.part(TaskPart::Services), &self.task.services);
        checks::end(pass, self.part(TaskPart::Checks))
    }

    /// Whether all volumes that the task mounts have a path.
    fn volumes_ready(self, pass: &Pass<'_>) -> bool {
        self.task.volume_mounts.iter().all(|mount| {
            pass.group
                .volumes
                .get(&mount.volume)
                .is_none_or(|request| pass.ctx.volume_path(&volume_name(pass.spec, request)).is_some())
        })
    }

    /// Whether the volumes of the task are mounted, as far as it has any.
    fn is_mounted(self, pass: &Pass<'_>) -> bool {
        let mounts = self.part(TaskPart::Mounts);
        pass.spec.need(mounts) == Need::Unneeded || *pass.state.parts.get(mounts) == PartState::Up
    }

    fn part(self, part: TaskPart) -> Part {
        Part::Task(self.index, part)
    }
}
