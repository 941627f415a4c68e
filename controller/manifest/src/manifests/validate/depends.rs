//! `depends_on` of tasks and groups: existing names, conditions that can become true, no cycles.

use herdlet_api_types::job::{DependencyCondition, Group, GroupDependency, Job, JobType, Lifecycle, Task};

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

/// Validates the dependencies between groups. Other jobs may be applied later.
pub(super) fn between_groups(job: &Job, findings: &mut Findings<'_>) {
    let spec = Trail::begin("spec");
    let groups = spec.field("groups");
    for (index, group) in job.groups.iter().enumerate() {
        let trail = groups.item(index);
        let list = trail.field("depends_on");
        for (index, on) in group.depends_on.iter().enumerate() {
            let item = list.item(index);
            if let Some(message) = group_objection(job, group, on) {
                findings.problem(&item, message);
            } else if let Some(name) = own_group(job, on).filter(|name| !has_group(job, name)) {
                let names =
                    job.groups.iter().map(|known| known.name.as_str()).filter(|known| *known != group.name);
                findings.absent_with(&groups, &item, || no_such("group", name, names));
            }
        }
    }
    let Some(way) = group_circle(job) else { return };
    let at = way.first().and_then(|name| job.groups.iter().position(|group| group.name == *name));
    let shown: Vec<String> = way.iter().map(|name| format!("`{name}`")).collect();
    let trail = groups.item(at.unwrap_or_default());
    let message = format!("groups wait for each other: {}", shown.join(" → "));
    findings.problem(&trail.field("depends_on"), message);
}

fn group_objection(job: &Job, group: &Group, on: &GroupDependency) -> Option<String> {
    let is_own = on.job.as_ref().is_none_or(|other| *other == job.id);
    match (&on.job, &on.group) {
        (None, None) => Some("needs `group`, `job`, or both".to_owned()),
        (_, Some(name)) if is_own && *name == group.name => Some("a group can't wait for itself".to_owned()),
        (Some(_), None) if is_own => {
            Some("a group can't wait for its own job; name another group of it".to_owned())
        }
        (_, _) if is_own && on.condition == DependencyCondition::Completed && !job.kind.completes() => {
            Some(format!(
                "a group of a {} job never completes; wait for `started` or `healthy`",
                job.kind.as_str()
            ))
        }
        (_, _) => None,
    }
}

/// The group of the same job that a dependency names.
fn own_group<'o>(job: &Job, on: &'o GroupDependency) -> Option<&'o str> {
    on.group.as_deref().filter(|_| on.job.as_ref().is_none_or(|other| *other == job.id))
}

fn has_group(job: &Job, name: &str) -> bool {
    job.groups.iter().any(|group| group.name == name)
}

/// A cycle of groups, if there is any: what remains when groups without open dependencies are removed.
fn group_circle(job: &Job) -> Option<Vec<&str>> {
    let mut waiting: Vec<&Group> = job.groups.iter().collect();
    let open_in = |group: &Group, waiting: &[&Group]| {
        let names = group.depends_on.iter().filter_map(|on| own_group(job, on));
        let is_open = |name: &&str| *name != group.name && waiting.iter().any(|other| other.name == **name);
        names.map(str::to_owned).find(|name| is_open(&name.as_str()))
    };
    loop {
        let before = waiting.clone();
        waiting.retain(|group| open_in(group, &before).is_some());
        if waiting.len() == before.len() {
            break;
        }
    }
    // Every remaining group waits for another one, so the walk ends in a cycle.
    let mut way = vec![waiting.first()?.name.as_str()];
    while let Some(last) = waiting.iter().find(|group| way.last() == Some(&group.name.as_str())) {
        let next = open_in(last, &waiting)?;
        let next = waiting.iter().find(|group| group.name == next)?.name.as_str();
        let start = way.iter().position(|name| *name == next);
        way.push(next);
        if let Some(start) = start {
            return Some(way.split_off(start));
        }
    }
    None
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
