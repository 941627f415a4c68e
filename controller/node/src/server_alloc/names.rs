//! Names of groups and tasks that servers accept but manifests do not.
//!
//! In: a group in the JSON of a job file. Out: the same group with valid names, and, after parsing, a job with the original names.

use std::collections::BTreeMap;

use herdlet_api_types::job::{CheckKind, Job};
use serde_json::{Map, Value as Json};

use super::ignored_fields::maps;

/// Maximum length of a group or task name in bytes.
const NAME_MAX: usize = 128;

/// The original names of a group and its tasks, which are replaced while parsing.
pub(super) struct Names {
    group: String,
    tasks: Vec<String>,
}

impl Names {
    /// Replaces names that manifests do not accept.
    pub(super) fn plain(group: &mut Map<String, Json>) -> Result<Self, String> {
        let own = name_of(group)?;
        group.insert("Name".into(), "group".into());
        let mut tasks = Vec::new();
        for (at, task) in maps(group, "Tasks").enumerate() {
            let own = name_of(task)?;
            if !is_label(&own) {
                task.insert("Name".into(), stand_in_name(at).into());
            }
            tasks.push(own);
        }
        let renamed: BTreeMap<&str, String> = tasks
            .iter()
            .enumerate()
            .filter(|(_, own)| !is_label(own))
            .map(|(at, own)| (&**own, stand_in_name(at)))
            .collect();
        let rename = |owner: &mut Map<String, Json>| {
            for service in maps(owner, "Services") {
                maps(service, "Checks").for_each(|check| renamed_in(check, &renamed));
                renamed_in(service, &renamed);
            }
        };
        rename(group);
        maps(group, "Tasks").for_each(rename);
        Ok(Self { group: own, tasks })
    }

    /// Restores the original names.
    pub(super) fn restored(self, mut job: Job) -> Job {
        let Some(group) = job.groups.first_mut() else { return job };
        let own = |name: &str| {
            let at = (0..self.tasks.len()).find(|at| stand_in_name(*at) == name);
            at.and_then(|at| self.tasks.get(at)).cloned()
        };
        let of_tasks = group.tasks.iter_mut().flat_map(|task| &mut task.services);
        for check in group.services.iter_mut().chain(of_tasks).flat_map(|service| &mut service.checks) {
            if let CheckKind::Script { task, .. } = &mut check.kind
                && let Some(own) = own(task)
            {
                *task = own;
            }
        }
        for task in &mut group.tasks {
            if let Some(own) = own(&task.name) {
                task.name = own;
            }
        }
        group.name = self.group;
        job
    }
}

/// A task's name while parsing.
fn stand_in_name(at: usize) -> String {
    format!("task-{at}-of-a-server")
}

fn renamed_in(owner: &mut Map<String, Json>, names: &BTreeMap<&str, String>) {
    let name = owner.get("TaskName").and_then(Json::as_str).and_then(|name| names.get(name));
    if let Some(name) = name.cloned() {
        owner.insert("TaskName".into(), name.into());
    }
}

/// Whether manifests accept a name.
fn is_label(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&name.len())
        && name.bytes().all(is_inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// The name of a group or task; an error if it cannot be a directory name.
fn name_of(owner: &Map<String, Json>) -> Result<String, String> {
    let name = owner.get("Name").and_then(Json::as_str).unwrap_or_default();
    let is_bad = |char: char| matches!(char, '/' | '\\') || char.is_control();
    if matches!(name, "" | "." | "..") || name.len() > NAME_MAX || name.contains(is_bad) {
        return Err(format!("the name {name:?} cannot be a directory name"));
    }
    Ok(name.to_owned())
}
