//! Lifecycles of a group's tasks: at least one main task, at most one leader, meaningful hooks.

use super::{Findings, GroupContext};
use herdlet_api_types::job::Lifecycle;
use herdlet_api_types::manifest::Hook;

/// Validates leader and lifecycle of all tasks of a group.
pub(super) fn of_group(context: &GroupContext<'_>, findings: &mut Findings<'_>) {
    let GroupContext { spec, group, trail, .. } = *context;
    let tasks = trail.field("tasks");
    let has_main = group.tasks.iter().any(|task| task.lifecycle == Lifecycle::Main);
    if !group.tasks.is_empty() && !has_main {
        findings.absent(&tasks, &tasks, "a group needs a main task: one without `lifecycle`");
    }
    let mut leader: Option<&str> = None;
    for (index, (spec, task)) in spec.tasks.iter().flatten().zip(&group.tasks).enumerate() {
        let trail = tasks.item(index);
        if task.leader {
            match leader {
                Some(first) => {
                    let message = format!("`{first}` is the leader already; a group has at most one");
                    findings.problem(&trail.field("leader"), message);
                }
                None => leader = Some(&task.name),
            }
        }
        let Some(lifecycle) = &spec.lifecycle else { continue };
        if lifecycle.hook == Some(Hook::Poststop) && lifecycle.sidecar == Some(true) {
            let lifecycle = trail.field("lifecycle");
            let message = "a poststop task runs after all others, so it can't be a sidecar";
            findings.problem(&lifecycle.field("sidecar"), message);
        }
    }
}
