//! An allocation as shown to people.

use std_alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

use herdlet_api_types::{
    UnixNanos,
    alloc::{Allocation, Desired},
    task::TaskPhase,
    view::{AllocView, Convergence, Explanation, Reason, TaskView, Wait},
};

use crate::{
    alloc::health,
    plan::Plan,
    spec::AllocSpec,
    state::{AllocState, Run, TaskState},
    status,
    time::Now,
};

/// The allocation's view.
pub fn view(spec: &AllocSpec, state: &AllocState, convergence: Convergence) -> AllocView {
    AllocView {
        spec: spec.allocation().clone(),
        status: state.durable.status,
        description: state.durable.description.clone(),
        tasks: state.durable.tasks.iter().map(task_view).collect(),
        checks: state.checks.results.values().cloned().collect(),
        healthy: health::now(spec, state),
        verdict: state.durable.health.map(|health| health.healthy),
        verdict_at: state.durable.health.map(|health| health.at).unwrap_or_default(),
        reschedule_at: state.durable.reschedule().map(|due| due.wall),
        collected: state.durable.collected,
        quarantined: state.durable.quarantine.is_some(),
        no_shutdown_delay: state.durable.no_shutdown_delay,
        network: state.durable.network.clone(),
        modify_index: state.durable.modify_index,
        modify_time: state.durable.modify_time,
        convergence,
    }
}

/// What the allocation's plan waits for.
pub fn explain(now: Now, spec: &Allocation, state: &AllocState, plan: &Plan) -> Explanation {
    let goal = match spec.desired {
        Desired::Run if state.durable.stop.is_some() => "stop",
        Desired::Run => "run",
        Desired::Stop => "stop",
        Desired::Gone => "remove",
    };
    let mut waits: Vec<Wait> =
        plan.waits.iter().map(|waiting| status::describe(now, spec, state, waiting)).collect();
    let due = state.durable.reschedule().filter(|_| spec.desired == Desired::Run);
    waits.extend(due.map(|due| Wait {
        part: String::from("allocation"),
        reason: Reason::Backoff,
        message: format!("has failed; {}", status::rescheduled_after(&due)),
        since: None,
        until: Some(now.moment_at(due.due_ns(now)).wall),
    }));
    let wake_ns = plan.wake_ns.into_iter().chain(due.map(|due| due.due_ns(now))).min();
    Explanation {
        name: spec.name(),
        alloc: spec.id.to_string(),
        goal: String::from(goal),
        status: state.durable.status,
        waits,
        wake_at: wake_ns.map(|at| {
            let ahead = i64::try_from(at.saturating_sub(now.boot_ns)).unwrap_or(i64::MAX);
            UnixNanos(now.wall.0.saturating_add(ahead))
        }),
    }
}

pub(crate) fn task_view(task: &TaskState) -> TaskView {
    let phase = match task.run {
        Run::Waiting => TaskPhase::Waiting,
        Run::BackingOff { .. } => TaskPhase::BackingOff,
        Run::Starting { .. } => TaskPhase::Starting,
        Run::Running { .. } => TaskPhase::Running,
        Run::Stopping { .. } => TaskPhase::Stopping,
        Run::Dead => TaskPhase::Dead,
    };
    TaskView {
        name: task.name.clone(),
        state: task.status(),
        phase,
        attempt: task.attempt,
        failed: task.failed,
        restarts: task.restarts,
        last_restart: task.last_restart,
        started_at: task.started_at,
        finished_at: task.finished_at,
        exit: task.exit.clone(),
        events: task.events.clone(),
    }
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::{Duration, job::Lifecycle};
    use std_alloc::{sync::Arc, vec};

    use super::*;
    use crate::{
        fixture::{alloc, at, pending, task},
        plan::Waiting,
        state::{Durable, Stop, StopReason, Tracked},
        time::Deadline,
    };

    #[test]
    fn explanation_has_goal_waits_and_wake_time() {
        let mut spec = alloc(vec![task("main", Lifecycle::Main)]);
        let delay = Deadline::after(at(1), Duration::from_secs(1));
        let stop = Stop { reason: StopReason::MainDead, decided_at: at(1).wall, delay };
        for (desired, stop, goal) in [
            (Desired::Run, None, "run"),
            (Desired::Run, Some(stop), "stop"),
            (Desired::Stop, None, "stop"),
            (Desired::Gone, None, "remove"),
        ] {
            Arc::make_mut(&mut spec).desired = desired;
            let durable = Durable { tasks: vec![pending()], stop, ..Durable::default() };
            let state = AllocState { durable: Tracked::stored(durable), ..AllocState::default() };
            let plan =
                Plan { waits: vec![Waiting::Gate(0)], wake_ns: Some(at(7).boot_ns), ..Plan::default() };
            let explanation = explain(at(5), &spec, &state, &plan);
            assert_eq!((&*explanation.name, &*explanation.goal), ("j.g[0]", goal));
            assert_eq!(explanation.alloc, spec.id.to_string());
            assert_eq!(
                explanation.waits.iter().map(|wait| &*wait.part).collect::<vec::Vec<_>>(),
                ["task main"]
            );
            assert_eq!(explanation.wake_at, Some(at(7).wall));
        }
    }
}
