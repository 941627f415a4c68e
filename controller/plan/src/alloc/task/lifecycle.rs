//! When the tasks of a group may start, and when they end together: Nomad's coordinator as pure functions.
//!
//! In: the stage of the allocation and the states of its tasks. Out: the next stage, and why all tasks must end.
//! [`Stage::admits`] lists the gates that a stage opens. A closed gate keeps a task from starting; it never affects a
//! running task, and nothing here keeps a running task from being watched.

use std_alloc::string::ToString;

use herdlet_api_types::{
    job::{Lifecycle, Task},
    task::TaskStatus,
};

use crate::state::{Stage, StopReason, TaskState};

/// The next stage. Repeats until nothing changes, so that a stage without tasks is passed at once.
pub fn advance(stage: Stage, tasks: &[Task], states: &[TaskState]) -> Stage {
    let mut stage = stage;
    loop {
        let next = step(stage, tasks, states);
        if next == stage {
            return stage;
        }
        stage = next;
    }
}

/// Why all tasks must end, if they must. Poststop tasks neither cause this nor are affected by it.
pub fn stop_reason(tasks: &[Task], states: &[TaskState]) -> Option<StopReason> {
    let members = || tasks.iter().zip(states).filter(|(task, _)| task.lifecycle != Lifecycle::Poststop);
    let dead = |state: &TaskState| state.status() == TaskStatus::Dead;
    if !members().any(|(_, state)| !dead(state)) {
        return None;
    }
    if members().any(|(task, state)| task.leader && dead(state) && !state.failed) {
        return Some(StopReason::LeaderDead);
    }
    if let Some((task, _)) = members().find(|(_, state)| dead(state) && state.failed) {
        return Some(StopReason::SiblingFailed(task.name.to_string()));
    }
    let (mut others, mut others_live) = (false, false);
    for (_, state) in members().filter(|(task, _)| !task.lifecycle.is_sidecar()) {
        others = true;
        others_live |= !dead(state);
    }
    (others && !others_live).then_some(StopReason::MainDead)
}

/// Whether a task may be stopped now: all tasks before it in the stop order have ended.
pub fn may_stop(index: usize, tasks: &[Task], states: &[TaskState]) -> bool {
    tasks.get(index).is_some_and(|task| {
        !others(index, tasks, states).any(|(other, state)| state.status_live() && stops_before(other, task))
    })
}

/// Whether a task may be stopped now for a restart: all restarting tasks before it in the stop order have been stopped.
pub fn may_restart(index: usize, tasks: &[Task], states: &[TaskState]) -> bool {
    tasks.get(index).is_some_and(|task| {
        !others(index, tasks, states).any(|(other, state)| state.is_restarting() && stops_before(other, task))
    })
}

/// The first restarting task that is stopped after this one: until it has been stopped, this one does not start again.
pub fn restarts_after<'t>(index: usize, tasks: &'t [Task], states: &[TaskState]) -> Option<&'t Task> {
    let task = tasks.get(index)?;
    let mut later = others(index, tasks, states)
        .filter(|(other, state)| state.is_restarting() && stops_before(task, other));
    later.next().map(|(other, _)| other)
}

/// The stop order: the leader, then the others, sidecars last; among equals, a task precedes the tasks that it depends
/// on.
fn stops_before(first: &Task, then: &Task) -> bool {
    let rank = |task: &Task| if task.leader { 0 } else { 1 + u8::from(task.lifecycle.is_sidecar()) };
    rank(first) < rank(then)
        || (rank(first) == rank(then)
            && first.depends_on.iter().any(|dependency| dependency.task == then.name))
}

/// All tasks except this one and poststop tasks.
fn others<'t, 's>(
    index: usize,
    tasks: &'t [Task],
    states: &'s [TaskState],
) -> impl Iterator<Item = (&'t Task, &'s TaskState)> {
    let all = tasks.iter().zip(states).enumerate();
    all.filter(move |(other, (task, _))| *other != index && task.lifecycle != Lifecycle::Poststop)
        .map(|(_, known)| known)
}

/// Whether any task except poststop tasks has begun, or there are none.
pub fn any_began(tasks: &[Task], states: &[TaskState]) -> bool {
    let mut members =
        tasks.iter().zip(states).filter(|(task, _)| task.lifecycle != Lifecycle::Poststop).peekable();
    members.peek().is_none() || members.any(|(_, state)| state.attempt > 0)
}

fn step(stage: Stage, tasks: &[Task], states: &[TaskState]) -> Stage {
    use Lifecycle as L;
    let all_of = |kind: &dyn Fn(L) -> bool, holds: &dyn Fn(&TaskState) -> bool| {
        tasks.iter().zip(states).filter(|(task, _)| kind(task.lifecycle)).all(|(_, state)| holds(state))
    };
    let dead = |state: &TaskState| state.status() == TaskStatus::Dead;
    let pending = |state: &TaskState| state.status() == TaskStatus::Pending;
    let running = |state: &TaskState| state.status() == TaskStatus::Running;
    let only = |wanted: L| move |kind: L| kind == wanted;

    if stage != Stage::Poststop && all_of(&|kind| kind != L::Poststop, &dead) {
        return Stage::Poststop;
    }
    let passed = match stage {
        // A task that is being started is pending too, but its process may live before this is known. Poststop tasks
        // are not waited for: one can be other than pending only if this stage was rebuilt from a damaged state.
        Stage::Init => {
            all_of(&|kind| kind != L::Poststop, &|state| pending(state) && state.live_attempt().is_none())
        }
        Stage::Prestart => {
            all_of(&only(L::Prestart), &|state| dead(state) && !state.failed)
                && all_of(&only(L::PrestartSidecar), &running)
        }
        Stage::Main => all_of(&only(L::Main), &|state| !pending(state)),
        Stage::Poststart => all_of(&only(L::Poststart), &dead),
        Stage::WaitAlloc | Stage::Poststop => false,
    };
    match stage {
        _ if !passed => stage,
        Stage::Init => Stage::Prestart,
        Stage::Prestart => Stage::Main,
        Stage::Main => Stage::Poststart,
        Stage::Poststart | Stage::WaitAlloc => Stage::WaitAlloc,
        Stage::Poststop => Stage::Poststop,
    }
}

#[cfg(test)]
mod tests;
