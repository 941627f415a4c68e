//! Limits that jobs set and that this machine can't enforce, because the agent has no cgroups or lacks a controller.
//!
//! In: controllers, jobs. Out: a sentence for users. It enforces nothing.

use std::collections::BTreeSet;

use herdlet_api_types::job::{Job, Task};

use super::{Controller, Isolation, Limits};

/// Controllers that are missing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ineffective {
    missing: BTreeSet<Controller>,
}

impl Isolation {
    /// What limits have no effect on.
    pub fn ineffective(&self) -> Ineffective {
        let has = |controller: Controller| {
            self.cgroups().is_some_and(|cgroups| {
                cgroups.v2.contains(&controller) || cgroups.v1.contains_key(&controller)
            })
        };
        Ineffective { missing: Controller::ALL.into_iter().filter(|controller| !has(*controller)).collect() }
    }
}

impl Ineffective {
    /// The same, as the kernel calls the controllers.
    pub fn names(&self) -> Vec<String> {
        self.missing.iter().map(|controller| controller.name().to_owned()).collect()
    }

    /// The reverse of [`names`](Self::names); other names are ignored.
    pub fn named(names: &[String]) -> Self {
        let is_named = |controller: &Controller| names.iter().any(|name| name == controller.name());
        Self { missing: Controller::ALL.into_iter().filter(is_named).collect() }
    }

    /// A warning about the limits of these jobs that have no effect; none where each has.
    pub fn warning<'j>(&self, jobs: impl IntoIterator<Item = &'j Job>) -> Option<String> {
        let concerned: Vec<String> = jobs.into_iter().filter_map(|job| self.of_job(job)).collect();
        (!concerned.is_empty()).then(|| {
            format!(
                "{}: these limits have no effect here, because the agent has no cgroups for them; `herdlet doctor` says what is missing",
                concerned.join("; ")
            )
        })
    }

    fn of_job(&self, job: &Job) -> Option<String> {
        let tasks = || job.groups.iter().flat_map(|group| &group.tasks);
        let is_set = |controller: &&Controller| tasks().any(|task| limits(task).needs(**controller));
        let keys: Vec<&str> = self.missing.iter().filter(is_set).map(|controller| key(*controller)).collect();
        (!keys.is_empty()).then(|| format!("{} ({})", job.key(), keys.join(", ")))
    }
}

/// As jobs write it.
fn key(controller: Controller) -> &'static str {
    match controller {
        Controller::Memory => "memory",
        Controller::Cpu => "cpu",
        Controller::Pids => "pids_limit",
    }
}

/// The limits of a task of `raw_exec`; tasks of other drivers have no processes of their own.
fn limits(task: &Task) -> Limits {
    if task.driver != "raw_exec" {
        return Limits::default();
    }
    let processes = task.config.get("pids_limit").and_then(serde_json::Value::as_u64);
    Limits { processes, ..Limits::of(&task.resources) }
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::job::Resources;

    use super::*;
    use crate::test_views::job;

    #[test]
    fn a_limit_without_its_controller_is_warned_about() {
        let mut limited = Job::clone(&job("web", "front", "httpd"));
        let task = &mut limited.groups[0].tasks[0];
        task.driver = "raw_exec".to_owned();
        task.resources = Resources::default();
        let free = [limited.clone()];
        let task = &mut limited.groups[0].tasks[0];
        task.config = serde_json::json!({ "pids_limit": 10 });
        task.resources.memory_mib = Some(64);
        let none = Isolation::None { why: String::new() }.ineffective();
        assert_eq!(none.warning(&free), None, "nothing is limited");
        let warning = none.warning([&limited]).unwrap();
        assert!(warning.contains("web (memory, pids_limit)"), "{warning}");
        let pids = Ineffective::named(&["pids".to_owned(), "unknown".to_owned()]);
        assert_eq!(pids.names(), ["pids"]);
        assert!(pids.warning([&limited]).unwrap().contains("(pids_limit)"));
        assert_eq!(Ineffective::default().warning([&limited]), None);
    }
}
