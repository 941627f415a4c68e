//! Whether an allocation is healthy, and the roll-out's verdict on it.
//!
//! In: a pass. Out: changes of health, and the verdict. Healthy: all tasks run as they should and, unless
//! `health_check` makes that sufficient, all checks pass. The verdict: healthy for `min_healthy_time` without
//! interruption before `healthy_deadline`, or not. It is watched only if there are [`HealthTerms`], and given once.
//! With `health_check: manual`, an operator gives the verdict in a deployment. A verdict is final, as in Nomad
//! (`client/allochealth`); an allocation that is healthy later is no longer shown as failed.

use std_alloc::{collections::BTreeSet, format, string::String, vec::Vec};

use herdlet_api_types::{
    DeploymentId,
    alloc::{ClientStatus, Desired},
    job::{Group, HealthCheck, Lifecycle, Task},
    service::CheckResult,
    task::TaskStatus,
};

use crate::{
    alloc::checks,
    goal::wants_tasks,
    pass::Pass,
    plan::{Change, Waiting},
    policy::{HealthTerms, has_counted_check},
    spec::AllocSpec,
    state::{AllocState, Health, TaskState},
};

/// Follows the allocation's health and gives the verdict when it is due.
pub fn watch(pass: &mut Pass<'_>) {
    let healthy = is_healthy(pass.spec, pass.state);
    if healthy != pass.state.healthy_since_ns.is_some() {
        pass.plan.changes.push(Change::Healthy(healthy));
        return;
    }
    if pass.state.durable.takes_turn && has_recovered(pass) {
        pass.plan.changes.push(Change::EndTurn);
        return;
    }
    let judged_for = judged_for(pass);
    // Only operators revise what operators have decided.
    if healthy && judged_for.is_none() && is_unhealthy(pass) && has_recovered(pass) {
        pass.plan.changes.push(Change::OutdateVerdict);
        return;
    }
    let by = pass.state.durable.healthy_by;
    let is_open = pass.state.durable.health.is_none() && pass.spec.desired == Desired::Run;
    let open = pass.spec.policy().health.filter(|_| is_open);
    let (Some(terms), None) = (open, judged_for) else {
        if !healthy && wants_tasks(pass.state) && has_counted_check(pass.spec) {
            pass.wait(Waiting::Checks(by.filter(|_| judged_for.is_none())));
        } else if let (true, Some(_), Some(deployment)) = (healthy, open, judged_for) {
            pass.wait(Waiting::Judgement(deployment));
        }
        return;
    };
    let failed = pass.state.durable.tasks.iter().any(|task| task.failed);
    if failed {
        verdict(pass, false, String::from("Unhealthy because of failed task"));
    } else if let Some(since_ns) = pass.state.healthy_since_ns.filter(|_| !is_hearsay(pass.state))
        && pass.due(since_ns.saturating_add(terms.min_healthy_time.as_nanos().unsigned_abs()))
    {
        verdict(pass, true, String::new());
    } else if by.is_some_and(|by| pass.passed(&by)) {
        let message = format!(
            "Task not running or checks not passing for min_healthy_time of {} by healthy_deadline of {}",
            terms.min_healthy_time, terms.healthy_deadline
        );
        verdict(pass, false, message);
    } else {
        pass.wait(Waiting::Health(by));
    }
}

fn is_unhealthy(pass: &Pass<'_>) -> bool {
    pass.spec.desired == Desired::Run && pass.state.durable.is_unhealthy()
}

/// Whether an allocation that restarted in its turn, or became healthy late, has been healthy for long enough since.
fn has_recovered(pass: &mut Pass<'_>) -> bool {
    let Some(terms) = pass.spec.policy().health else { return true };
    // Until its process has ended, a task that restarts counts as healthy.
    let restarts = pass.state.durable.tasks.iter().any(TaskState::is_restarting);
    let since_ns = pass.state.healthy_since_ns.filter(|_| !restarts && !is_hearsay(pass.state));
    since_ns.is_some_and(|since_ns| {
        pass.due(since_ns.saturating_add(terms.min_healthy_time.as_nanos().unsigned_abs()))
    })
}

/// What keeps a task from being healthy, if anything. Source: Nomad's `client/allochealth/tracker.go` (`event`).
pub(crate) fn why_unhealthy(
    task: &Task,
    known: &TaskState,
    state: &AllocState,
    terms: &HealthTerms,
) -> Option<String> {
    if known.failed {
        return Some(String::from("Unhealthy because of failed task"));
    }
    let is_to_end = match task.lifecycle {
        Lifecycle::Prestart | Lifecycle::Poststart | Lifecycle::Poststop => true,
        Lifecycle::Main | Lifecycle::PrestartSidecar | Lifecycle::PoststartSidecar => false,
    };
    match known.status() {
        TaskStatus::Pending => {
            Some(format!("Task not running by healthy_deadline of {}", terms.healthy_deadline))
        }
        TaskStatus::Running => {
            let long_enough = known.started_at.0.saturating_add(terms.min_healthy_time.as_nanos());
            let deadline = state.durable.healthy_by.as_ref()?.wall.0;
            if long_enough > deadline {
                return Some(format!(
                    "Task not running for min_healthy_time of {} by healthy_deadline of {}",
                    terms.min_healthy_time, terms.healthy_deadline
                ));
            }
            failing_services(task, state).filter(|_| terms.health_check != HealthCheck::TaskStates)
        }
        TaskStatus::Dead => (!is_to_end).then(|| String::from("Unhealthy because of dead task")),
    }
}

fn failing_services(task: &Task, state: &AllocState) -> Option<String> {
    let is_failing =
        |result: &&CheckResult| result.task.as_deref() == Some(&*task.name) && !result.is_as_required();
    let names: BTreeSet<&str> =
        state.checks.results.values().filter(is_failing).map(|result| result.service.as_str()).collect();
    let names: Vec<&str> = names.into_iter().collect();
    (!names.is_empty()).then(|| format!("Services not healthy by deadline: {}", names.join(", ")))
}

/// The deployment in which an operator judges it. Outside a deployment, nobody can.
fn judged_for(pass: &Pass<'_>) -> Option<DeploymentId> {
    pass.spec.policy().health.filter(|terms| terms.health_check == HealthCheck::Manual)?;
    pass.spec.deployment.map(|of| of.id)
}

/// Whether it is healthy now, for display: its work goes well, or is done. `None` if it is to end.
pub fn now(spec: &AllocSpec, state: &AllocState) -> Option<bool> {
    let wanted = spec.desired == Desired::Run && spec.group().is_some();
    wanted.then(|| state.durable.status == ClientStatus::Complete || is_healthy(spec, state))
}

/// Whether every task runs as it should and every check that counts passes, now.
pub fn is_healthy(spec: &AllocSpec, state: &AllocState) -> bool {
    let Some(group) = spec.group() else { return false };
    let tasks =
        group.tasks.iter().zip(&state.durable.tasks).all(|(task, known)| task_is_well(task.lifecycle, known));
    tasks && !state.durable.tasks.is_empty() && (!spec.policy().counts_checks() || checks_pass(group, state))
}

fn task_is_well(lifecycle: Lifecycle, known: &TaskState) -> bool {
    let ended_well = known.status() == TaskStatus::Dead && !known.failed;
    match lifecycle {
        Lifecycle::Poststop => true,
        Lifecycle::Prestart => ended_well,
        Lifecycle::Poststart => ended_well || known.status() == TaskStatus::Running,
        Lifecycle::Main | Lifecycle::PrestartSidecar | Lifecycle::PoststartSidecar => {
            known.status() == TaskStatus::Running
        }
    }
}

/// Whether every check of the group and of its tasks that counts passes. Results from a previous agent are still valid.
fn checks_pass(group: &Group, state: &AllocState) -> bool {
    let are_well = |services, owner: Option<&str>| checks::are_as_required(services, state, |of| of == owner);
    are_well(&group.services, None)
        && group.tasks.iter().all(|task| are_well(&task.services, Some(&task.name)))
}

/// Whether its health rests on check results from a previous agent.
fn is_hearsay(state: &AllocState) -> bool {
    state.checks.results.values().any(|result| result.stale && result.counts())
}

fn verdict(pass: &mut Pass<'_>, healthy: bool, message: String) {
    pass.plan.changes.push(Change::Verdict(Health { healthy, at: pass.now.wall }, message));
}
