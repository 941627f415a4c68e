//! One task: user, limits, hooks, and its lists.

use herdlet_api_types::job::Task;
use herdlet_api_types::manifest::TaskSpec;

use super::{
    Findings, GroupContext, artifact, children, constraint, identity, mount, policy, service, text, variables,
};
use crate::yaml::Trail;

pub(super) fn validate(
    context: &GroupContext<'_>,
    spec: &TaskSpec,
    task: &Task,
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    if let Some(user) = &spec.user {
        let bad = user.0.is_empty()
            || user.0.len() > 256
            || user.0.contains(|char: char| {
                char.is_control() || char.is_whitespace() || matches!(char, ':' | '/')
            });
        if bad {
            findings.problem(&trail.field("user"), "must be the name or number of one user");
        }
    }
    let level = (constraint::Level::Task, context.job.kind);
    constraint::of(spec.constraints.as_deref(), spec.affinities.as_deref(), level, trail, findings);
    text::meta(spec.meta.as_ref(), &trail.field("meta"), findings);
    resources(task, &trail.field("resources"), findings);
    if spec.restart.is_some() {
        policy::restart(&task.restart, &trail.field("restart"), findings);
    }
    if let Some(signal) = &spec.kill_signal {
        text::signal(&signal.0, &trail.field("kill_signal"), findings);
    }
    if let (Some(spec), Some(prestop)) = (&spec.prestop, &task.prestop) {
        let trail = trail.field("prestop");
        if spec.command.as_ref().is_some_and(String::is_empty) {
            findings.problem(&trail.field("command"), "must not be empty");
        }
        if prestop.timeout.is_zero() {
            findings.problem(&trail.field("timeout"), "must be longer than 0");
        }
    }
    service::list(context, spec.services.as_deref(), &task.services, &trail.field("services"), findings);
    children::of_task(context, spec, &trail.field("dispatch_payload"), findings);
    artifact::of_task(spec, trail, findings);
    mount::of_task(context, spec, task, trail, findings);
    identity::of_task(spec, trail, findings);
    variables::of_task(context, task, trail, findings);
}

/// Validates a task of a job that servers have validated.
pub(super) fn of_servers(
    context: &GroupContext<'_>,
    spec: &TaskSpec,
    task: &Task,
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    if let Some(signal) = &spec.kill_signal {
        text::signal(&signal.0, &trail.field("kill_signal"), findings);
    }
    artifact::of_task(spec, trail, findings);
    mount::of_task(context, spec, task, trail, findings);
    identity::files(spec, trail, findings);
}

fn resources(task: &Task, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let resources = &task.resources;
    match (resources.memory_mib, resources.memory_max_mib) {
        (Some(memory), Some(most)) if most < memory => {
            let message = format!("must be at least `memory` ({memory}), found {most}");
            findings.problem(&trail.field("memory_max"), message);
        }
        (None, Some(_)) => {
            findings.absent(trail, &trail.field("memory_max"), "extends `memory`, which is not set");
        }
        (Some(_) | None, Some(_) | None) => {}
    }
}
