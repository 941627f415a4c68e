//! Plans one allocation: the pipeline.
//!
//! In: the specification and the state. Out: a [`Plan`]. The tables in [`crate::parts`] give the order.

pub mod apply;
mod check_restart;
pub mod checks;
pub mod dir;
pub mod health;
pub mod network;
pub mod services;
pub mod show;
pub mod task;
pub mod tasks;
pub mod volumes;

use herdlet_api_types::{alloc::Desired, task::TaskStatus};

use crate::{
    alloc::task::lifecycle,
    context::Context,
    goal::wants_tasks,
    parts::{self, AllocStep, Progress},
    pass::Pass,
    plan::{Change, Plan, Waiting},
    spec::AllocSpec,
    state::{AllocState, GroupRestart, RestartPhase, Stop, StopReason, TaskState},
    time::{Deadline, Now},
};

/// Plans an allocation once. Total: an allocation whose specification can't be read is left alone.
pub fn plan(now: Now, ctx: &Context, spec: &AllocSpec, state: &AllocState) -> Plan {
    plan_on(Plan::default(), now, ctx, spec, state)
}

/// Like [`plan`], reusing the memory of an earlier plan.
pub(crate) fn plan_on(mut plan: Plan, now: Now, ctx: &Context, spec: &AllocSpec, state: &AllocState) -> Plan {
    plan.clear();
    let Some(group) = spec.group() else { return plan };
    if state.durable.quarantine.is_some() {
        return plan;
    }
    let mut pass = Pass { now, ctx, spec, group, state, plan };
    if !state.durable.adopted {
        pass.plan.changes.push(match spec.desired {
            Desired::Run | Desired::Stop => Change::Adopt,
            Desired::Gone => Change::Forget,
        });
        return pass.plan;
    }
    if decide(&mut pass) {
        return pass.plan;
    }
    let mut all = Progress::Arrived;
    if wants_tasks(state) {
        for step in parts::UP {
            all = all.and(up(step, &mut pass, all));
        }
        health::watch(&mut pass);
        return pass.plan;
    }
    for step in parts::DOWN {
        all = all.and(down(step, &mut pass, all));
    }
    health::watch(&mut pass);
    if all.has_arrived() && spec.desired == Desired::Gone && services::withdrawn(&pass) {
        pass.plan.changes.push(Change::Forget);
    }
    pass.plan
}

/// Brings one step nearer to being up; `above` is the progress of the steps before it.
fn up(step: AllocStep, pass: &mut Pass<'_>, above: Progress) -> Progress {
    match step {
        AllocStep::Dir => dir::up(pass),
        AllocStep::Network => network::up(pass),
        AllocStep::Services => services::up(pass),
        AllocStep::Volumes => volumes::up(pass),
        AllocStep::Tasks => tasks::up(pass, above),
        AllocStep::Checks => checks::up(pass),
    }
}

/// Brings one step nearer to being gone; `above` is the progress of the steps before it.
fn down(step: AllocStep, pass: &mut Pass<'_>, above: Progress) -> Progress {
    match step {
        AllocStep::Dir => dir::down(pass, above),
        AllocStep::Network => network::down(pass, above),
        AllocStep::Services => services::down(pass),
        // A claim ends with its allocation.
        AllocStep::Volumes => Progress::Arrived,
        AllocStep::Tasks => tasks::down(pass),
        AllocStep::Checks => checks::down(pass),
    }
}

/// Returns the reason to stop if `max_run_duration` has passed since its creation and a task lives.
fn outlived(pass: &mut Pass<'_>) -> Option<StopReason> {
    let longest = pass.spec.policy().run_for?;
    let lives = pass.state.durable.tasks.iter().any(|task| task.status() != TaskStatus::Dead);
    let made = pass.spec.create_time.0;
    if !lives || made == 0 {
        return None;
    }
    let left = made.saturating_add(longest.as_nanos()).saturating_sub(pass.now.wall.0).max(0);
    pass.due(pass.now.boot_ns.saturating_add(left.unsigned_abs())).then_some(StopReason::Outlived)
}

/// Decides about the allocation as a whole. Returns `true` if it made a change: the rest is then planned on the result.
fn decide(pass: &mut Pass<'_>) -> bool {
    let durable = &*pass.state.durable;
    let stage = lifecycle::advance(durable.stage, &pass.group.tasks, &durable.tasks);
    if stage != durable.stage {
        pass.plan.changes.push(Change::Stage(stage));
        return true;
    }
    if durable.stop.is_none() {
        let reason = match pass.spec.desired {
            Desired::Run => {
                lifecycle::stop_reason(&pass.group.tasks, &durable.tasks).or_else(|| outlived(pass))
            }
            Desired::Stop | Desired::Gone => Some(StopReason::Desired),
        };
        if let Some(reason) = reason {
            // No client was routed here before the first start, so none needs time to move elsewhere.
            let never_ran = durable.tasks.iter().all(|task| task.attempt == 0) && !pass.state.first_is_open();
            let none = never_ran || durable.no_shutdown_delay;
            let delay = if none { Default::default() } else { pass.group.shutdown_delay };
            let stop = Stop { reason, decided_at: pass.now.wall, delay: Deadline::after(pass.now, delay) };
            pass.plan.changes.push(Change::Stop(stop));
            return true;
        }
    }
    if let Some(restart) = &durable.restart {
        return go_on_restarting(pass, restart.clone());
    }
    // A check that fails for that reason is not a failure of its task.
    if network::restart_users(pass) {
        return true;
    }
    if let Some(change) = check_restart::due(pass) {
        pass.plan.changes.push(change);
        return true;
    }
    false
}

/// Advances a restart of the group: its services are down for the `shutdown_delay`, then the affected tasks are
/// stopped.
fn go_on_restarting(pass: &mut Pass<'_>, restart: GroupRestart) -> bool {
    match restart.phase {
        RestartPhase::Delay if pass.passed(&restart.delay) => {
            pass.plan.changes.push(Change::RestartTasks(restart));
            true
        }
        RestartPhase::Delay => {
            pass.wait(Waiting::Delay(None, restart.delay));
            false
        }
        RestartPhase::Stopping if pass.state.durable.tasks.iter().any(TaskState::is_restarting) => false,
        RestartPhase::Stopping => {
            pass.plan.changes.push(Change::EndRestart);
            true
        }
    }
}

#[cfg(test)]
mod tests;
