//! `depends_on`: existing tasks, conditions that can become true, no cycles.

use herdlet_api_types::job::{DependencyCondition, Group, JobType, Lifecycle, Task};

use super::text::no_such;
use super::{Findings, GroupContext};
use crate::yaml::Trail;

/// Validates the dependencies of all tasks of a group.
pub(super) fn of_group(context: &GroupContext<'_>, findings: &mut Findings<'_>) {
    let GroupContext { group, trail, job, .. } = *context;
    let tasks = trail.field("tasks");
    let mut impossible = false;
    for (index_of_task, task) in group.tasks.iter().enumerate() {
        let trail = tasks.item(index_of_task);
        let list = trail.field("depends_on");
        for (index, dependency) in task.depends_on.iter().enumerate() {
            let item = list.item(index);
            let repeated = task.depends_on.iter().take(index).any(|other| other.task == dependency.task);
            if dependency.task.is_empty() {
                continue;
            } else if repeated {
                findings.problem(&item, format!("`{}` is already listed", dependency.task));
            } else if dependency.task == task.name {
                findings.problem(&item, "a task can't wait for itself");
            } else if let Some(other) = group.task(&dependency.task) {
                if let Some(message) = objection(task, other, dependency.condition, job.kind) {
                    let at = group.tasks.iter().position(|known| known.name == other.name);
                    let its = tasks.item(at.unwrap_or(index_of_task));
                    let stages = [its.field("lifecycle"), trail.field("lifecycle")];
                    if !stages.iter().any(|stage| findings.is_unread(stage)) {
                        findings.of_type(&item, message);
                    }
                    impossible = true;
                }
            } else {
                let names = group.tasks.iter().map(|task| task.name.as_str());
                let names = names.filter(|name| *name != task.name);
                findings.absent_with(&tasks, &item, || no_such("task", &dependency.task, names));
            }
        }
    }
    // A task that waits for a later stage also forms a cycle with the stages, and is already reported.
    if !impossible {
        circles(group, &tasks, findings);
    }
}

/// Returns why a condition can never become true, if so.
fn objection(task: &Task, other: &Task, condition: DependencyCondition, kind: JobType) -> Option<String> {
    use DependencyCondition::{Completed, Healthy, Started};
    let name = &other.name;
    let (own, its) = (stage(task.lifecycle), stage(other.lifecycle));
    if its > own {
        return Some(format!("`{name}` starts only after this task's stage; the wait would never end"));
    }
    if task.lifecycle == Lifecycle::Poststop && other.lifecycle != Lifecycle::Poststop {
        return Some(format!("a poststop task starts when all others have ended; remove `{name}`"));
    }
    match (condition, other.lifecycle) {
        (Completed, Lifecycle::PrestartSidecar | Lifecycle::PoststartSidecar) => {
            Some(format!("`{name}` is a sidecar, which never completes; wait for `started` or `healthy`"))
        }
        (Completed, Lifecycle::Main) if !kind.completes() => Some(format!(
            "`{name}` is a main task of a {} job, which is restarted when it ends; wait for `started` or `healthy`, \
             or make it a prestart task",
            kind.as_str()
        )),
        (Healthy, Lifecycle::Prestart | Lifecycle::Poststart) if its < own => {
            Some(format!("`{name}` has ended by then; wait for `completed`"))
        }
        (Completed | Healthy | Started, _) => None,
    }
}

/// The position of a lifecycle in the order of stages.
fn stage(lifecycle: Lifecycle) -> u8 {
    match lifecycle {
        Lifecycle::Prestart | Lifecycle::PrestartSidecar => 0,
        Lifecycle::Main => 1,
        Lifecycle::Poststart | Lifecycle::PoststartSidecar => 2,
        Lifecycle::Poststop => 3,
    }
}

/// Reports one cycle, if there is any, by repeatedly removing the tasks without open dependencies.
fn circles(group: &Group, tasks: &Trail<'_>, findings: &mut Findings<'_>) {
    let mut waiting: Vec<&Task> = group.tasks.iter().collect();
    loop {
        let before = waiting.len();
        let names: Vec<&str> = waiting.iter().map(|task| task.name.as_str()).collect();
        waiting.retain(|task| {
            task.depends_on.iter().any(|on| on.task != task.name && names.contains(&on.task.as_str()))
        });
        if waiting.is_empty() {
            return;
        }
        if waiting.len() == before {
            break;
        }
    }
    let Some(first) = waiting.first() else { return };
    let mut way = vec![first.name.as_str()];
    // Every remaining task waits for another one, so the walk ends in a cycle.
    while let Some(next) = next_of(group, &waiting, way.last().copied().unwrap_or_default()) {
        if let Some(start) = way.iter().position(|name| *name == next) {
            way.drain(..start);
            way.push(next);
            break;
        }
        way.push(next);
    }
    let Some(index) = way.first().and_then(|name| group.tasks.iter().position(|task| task.name == *name))
    else {
        return;
    };
    let way: Vec<String> = way.iter().map(|name| format!("`{name}`")).collect();
    let message = format!("tasks wait for each other: {}", way.join(" → "));
    findings.problem(&tasks.item(index).field("depends_on"), message);
}

fn next_of<'g>(group: &'g Group, waiting: &[&Task], name: &str) -> Option<&'g str> {
    let is_waiting = |name: &str| waiting.iter().any(|task| task.name == name);
    let task = group.task(name)?;
    task.depends_on.iter().map(|on| on.task.as_str()).find(|on| *on != name && is_waiting(on))
}
