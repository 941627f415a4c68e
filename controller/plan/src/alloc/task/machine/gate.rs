//! What keeps a task from starting: its allocation's end, servers, a predecessor, its driver, other tasks.
//!
//! In: a pass and the task's state. Out: the wait to report; nothing changes here.

use std_alloc::string::String;

use herdlet_api_types::{
    job::{Dependency, DependencyCondition, Lifecycle},
    task::TaskStatus,
};

use super::TaskTurn;
use crate::{
    alloc::{checks, task::lifecycle},
    pass::Pass,
    plan::Waiting,
    policy::StartGate,
    state::{Run, Stage},
};

impl TaskTurn<'_> {
    /// Whether this task must not start any more.
    pub(super) fn is_over(self, pass: &Pass<'_>) -> bool {
        self.known.permanent_failure.is_some()
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

    /// What keeps the allocation from starting anything.
    pub(super) fn held_back(self, pass: &Pass<'_>) -> Option<Waiting> {
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
    pub(super) fn lacks_driver(self, pass: &Pass<'_>) -> Option<Waiting> {
        let why = pass.ctx.away.get(&self.task.driver)?;
        Some(Waiting::Driver(self.index, why.clone()))
    }

    pub(super) fn unmet_dependency(self, pass: &Pass<'_>) -> Option<String> {
        self.task
            .depends_on
            .iter()
            .find(|dependency| !is_satisfied(pass, dependency))
            .map(|unmet| unmet.task.clone())
    }
}

fn is_satisfied(pass: &Pass<'_>, dependency: &Dependency) -> bool {
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
